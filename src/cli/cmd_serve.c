/* cmd_serve.c - nibble serve: serves models with OpenAI's API. */
#include "cli/serve/serve.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"
#include "nib_tools.h"

#include <poll.h>
#include <string.h>

enum { USUAL_SEQUENCES = 4, LAST_WAIT_MS = 1000 };

/* The folder of /v1/files; NULL: none. */
static char *files_of(const cli_args *args) {
    if (args->files)
        return strcmp(args->files, "none") ? mem_strdup(args->files) : NULL;
    char *state = path_state_dir(), *folder = state ? path_join(state, "files") : NULL;
    mem_free(state);
    return folder;
}

static int open_server(serve_job *job) {
    const cli_args *args = job->args;
    server_defaults defaults = {.max_tokens = args->predict == CLI_PREDICT_UNSET ? -1 : args->predict,
                                .seed = args->seed,
                                .ignore_eos = args->ignore_eos};
    cli_sampling(args, &defaults.sampling);
    job->files = files_of(args);
    const server_options o = {.host = args->host,
                              .port = (int)args->port,
                              .keys = job->keys.data,
                              .n_key = job->keys.n,
                              .keyless = args->no_api_key,
                              .models = job->models,
                              .n_model = job->n_model,
                              .n_loaded = (int)args->models_max,
                              .open = serve_open_on_demand,
                              .opener = job,
                              .ram_cap = args->ram,
                              .n_connection = (int)args->connections,
                              .n_queue = (int)args->queue,
                              .max_body = args->max_body == NIB_AUTO ? 0 : args->max_body,
                              .request_bytes = serve_request_bytes(args),
                              .timeout_s = (int)args->timeout,
                              .prefix_cache = args->prefix_cache,
                              .prefix_bytes =
                                  args->prefix_cache_size == NIB_AUTO ? 0 : args->prefix_cache_size,
                              .cache_ram = args->cache_ram,
                              .latency_s = (double)args->latency / 1000,
                              .n_beside = serve_sessions_beside(job),
                              .n_position = args->cache_size,
                              .n_draft = (int)cli_draft_max(args),
                              .n_draft_min = (int)args->draft_min,
                              .pooling = job->pooling,
                              .special_in_messages = args->special_in_messages,
                              .files = job->files,
                              .defaults = &defaults,
                              .log_requests = args->verbose,
                              .log = cli_log,
                              .user = job->args};
    nib_error err;
    return server_open(&o, &job->server, &err) ? cli_fail(&err) : 0;
}

static void wait_for(void *user, int fd, int max_ms) {
    (void)user;
    struct pollfd one = {.fd = fd, .events = POLLIN};
    if (cli_interrupted()) /* during the last answers cli_wait_input returns immediately */
        poll(&one, 1, NUM_MIN(max_ms, LAST_WAIT_MS));
    else
        cli_wait_input(fd, max_ms);
}

static bool is_ending(void *user) {
    (void)user;
    return cli_interrupted();
}

static json_t *names_json(const serve_job *job) {
    json_t *list = json_array();
    for (size_t i = 0; i < job->n_model; i++)
        json_array_append_new(list, json_string(job->names[i]));
    return list;
}

static int print_address(const serve_job *job, const nib_engine *engine) {
    const char *address = server_address(job->server);
    const nib_model_info *info = engine ? nib_engine_info(engine) : NULL;
    const int64_t n_ctx = info ? info->n_ctx : 0;
    const int64_t capacity = job->args->cache_size ? job->args->cache_size
                             : info                ? (info->n_session - serve_sessions_beside(job)) * n_ctx
                                                   : 0;
    if (job->args->json)
        return cli_write_json(json_pack("{s:s, s:i, s:s, s:o, s:i, s:I}", "address", address, "port",
                                        server_port(job->server), "model", job->names[0], "models",
                                        names_json(job), "parallel", job->n_sequence, "n_ctx",
                                        (json_int_t)n_ctx),
                              job->args);
    if (job->n_model > 1)
        cli_note(job->args, "nibble: %zu models, each loaded on request; Ctrl-C ends", job->n_model);
    else if (n_ctx > 0 && capacity < job->n_sequence * n_ctx)
        cli_note(
            job->args,
            "nibble: %s, %d answers at a time with at most %lld tokens of context each and %lld together "
            "(--cache-size N); Ctrl-C ends",
            job->names[0], job->n_sequence, (long long)n_ctx, (long long)capacity);
    else if (n_ctx > 0)
        cli_note(job->args, "nibble: %s, %d answers at a time with %lld tokens of context each; Ctrl-C ends",
                 job->names[0], job->n_sequence, (long long)n_ctx);
    return cli_write(address, strlen(address)) && cli_write("\n", 1) && !fflush(stdout) ? 0 : 1;
}

static int serve(serve_job *job, nib_engine *engine) {
    const server_host host = {wait_for, is_ending, NULL};
    nib_error err;
    if (server_begin(job->server, engine, job->n_sequence, &err))
        return cli_fail(&err);
    cli_signals_drain();
    const int code = print_address(job, engine);
    if (!code)
        server_run(job->server, &host);
    const nib_engine *last = server_engine(job->server);
    if (!code && job->args->verbose && last)
        cli_print_memory(job->args, serve_memory(job, last), stderr);
    return code;
}

static int run(cli_args *args) {
    serve_job job = {.args = args};
    nib_engine *engine = NULL;
    int code = cli_unescape(args);
    if (!code)
        code = cli_sampling_check(args, NULL);
    if (!code)
        code = serve_read(&job, USUAL_SEQUENCES);
    if (!code)
        code = open_server(&job);
    if (!code)
        code = serve_open_draft(&job);
    if (!code)
        code = serve_open_first(&job, &engine);
    if (!code)
        code = serve(&job, engine);
    server_close(job.server);
    nib_engine_close(job.draft);
    serve_forget(&job);
    return code;
}

const cli_command cmd_serve = {
    .name = "serve",
    .usage = "MODEL [options]",
    .summary = "serve OpenAI's API over HTTP",
    .details =
        "POST /v1/chat/completions, /v1/completions and /v1/embeddings; GET /v1/models, /health,\n"
        "/metrics and /memory; POST /tokenize, /detokenize, /apply-template. Anthropic's /v1/messages\n"
        "and Ollama's /api/chat and /api/generate work as well (docs/server.md lists all). The address\n"
        "itself is a page with a chat.\n"
        "Requests are computed together; an answer with a seed does not depend on the others. The address\n"
        "is printed when the server is ready. Only this machine can reach it unless --host is given; then\n"
        "an API key is required (or --no-api-key). A Unix socket is usable by its owner only. Several\n"
        "models (--models) are loaded when a request names them, and unloaded when others need their\n"
        "memory. On SIGTERM and Ctrl-C running answers are finished first; a second signal stops at once.\n\n"
        "  nibble serve smollm2\n"
        "  nibble serve smollm2 --ram 120M --parallel 2 --port 0\n"
        "  nibble serve --models smollm2,big=models/large.gguf --ram 4G\n"
        "  curl http://127.0.0.1:8080/v1/chat/completions -d '{\"messages\":\n"
        "      [{\"role\": \"user\", \"content\": \"Why is the sky blue?\"}]}'\n",
    .groups = CLI_MODEL | CLI_MODEL_OPTIONAL | CLI_MEMORY | CLI_TARGETS | CLI_PLANNED | CLI_SERVE,
    .run = run,
};
