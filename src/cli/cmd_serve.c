/* cmd_serve.c - nibble serve: a model behind OpenAI's API. */
#include "cli/cli.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"
#include "server/server.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

enum {
    USUAL_SEQUENCES = 4,
    MAX_SEQUENCES = 512,
    MAX_KEYS_TEXT = 1 << 20,
    ROOM_SHARE = 12,
    LAST_WAIT_MS = 1000
};
#define MIN_ROOM (UINT64_C(3) << 20)
#define MAX_ROOM (UINT64_C(64) << 20)

typedef struct serve_job {
    cli_args *args;
    int n_sequence, pooling;
    char *key_text; /* of the file; keys points into it */
    cli_strings keys;
    char *name;
    nib_engine *engine;
    server *server;
} serve_job;

static int read_parallel(serve_job *job) {
    const char *text = job->args->parallel;
    char *end;
    const long n = text ? strtol(text, &end, 10) : USUAL_SEQUENCES;
    if (text && (end == text || *end || n < 1 || n > MAX_SEQUENCES))
        return cli_usage_error("--parallel: expected a whole number from 1 to %d, found '%s'", MAX_SEQUENCES,
                               text);
    job->n_sequence = (int)n;
    return 0;
}

static int read_pooling(serve_job *job) {
    static const char *const names[] = {[NIB_POOLING_MEAN] = "mean", [NIB_POOLING_LAST] = "last"};
    const char *text = job->args->pooling;
    for (int i = NIB_POOLING_MEAN; text && i <= NIB_POOLING_LAST; i++)
        if (!strcmp(text, names[i]))
            job->pooling = i;
    return text && !job->pooling ? cli_usage_error("--pooling: expected mean or last, found '%s'", text) : 0;
}

/* A key goes into a header, which has no spaces at its ends. */
static int add_key(serve_job *job, const char *key) {
    if (!*key)
        return cli_usage_error("an API key is empty");
    return cli_strings_add(&job->keys, key) ? 0 : cli_usage_error("out of memory");
}

static int read_keys(serve_job *job) {
    size_t n_byte;
    nib_error err;
    char *rest = NULL;
    int code = 0;
    for (size_t i = 0; i < job->args->api_key.n && !code; i++)
        code = add_key(job, job->args->api_key.data[i]);
    if (code || !job->args->api_key_file)
        return code;
    if (file_read_all(job->args->api_key_file, MAX_KEYS_TEXT, &job->key_text, &n_byte, &err))
        return cli_usage_error("--api-key-file: %s", err.message);
    for (char *line = strtok_r(job->key_text, "\r\n", &rest); line && !code;
         line = strtok_r(NULL, "\r\n", &rest))
        code = add_key(job, line);
    if (!code && job->keys.n == 0)
        return cli_usage_error("--api-key-file: %s has no key", job->args->api_key_file);
    return code;
}

/* "models/smollm2.gguf" is smollm2. */
static int name_model(serve_job *job) {
    const char *model = job->args->model, *slash = strrchr(model, '/');
    const char *base = slash && slash[1] ? slash + 1 : model;
    const size_t n = strlen(base), end = n > 5 && !strcmp(base + n - 5, ".gguf") ? n - 5 : n;
    job->name = job->args->alias ? mem_strdup(job->args->alias) : mem_strndup(base, end);
    return job->name ? 0 : cli_usage_error("out of memory");
}

/* What requests may take of the cap; the engine has the rest. */
static uint64_t room_of(const cli_args *args) {
    return args->ram == NIB_AUTO ? 0 : NUM_MIN(NUM_MAX(args->ram / ROOM_SHARE, MIN_ROOM), MAX_ROOM);
}

static int open_server(serve_job *job) {
    const cli_args *args = job->args;
    const server_options o = {.host = args->host,
                              .port = (int)args->port,
                              .keys = job->keys.data,
                              .n_key = job->keys.n,
                              .name = job->name,
                              .n_connection = (int)args->connections,
                              .n_queue = (int)args->queue,
                              .max_body = args->max_body == NIB_AUTO ? 0 : args->max_body,
                              .room = room_of(args),
                              .timeout_s = (int)args->timeout,
                              .prefix_cache = args->prefix_cache,
                              .prefix_bytes =
                                  args->prefix_cache_size == NIB_AUTO ? 0 : args->prefix_cache_size,
                              .latency_s = (double)args->latency / 1000,
                              .n_position = args->cache_size,
                              .n_draft = (int)args->draft_max,
                              .n_draft_min = (int)args->draft_min,
                              .pooling = job->pooling,
                              .log_requests = args->verbose,
                              .log = cli_log,
                              .user = job->args};
    nib_error err;
    return server_open(&o, &job->server, &err) ? cli_fail(&err) : 0;
}

/* Before it serves, a signal ends everything; then it only ends what is not begun. */
static bool cancels(void *user) {
    const serve_job *job = user;
    return !job->engine && cli_interrupted();
}

static bool progress(void *user, const char *what, uint64_t done, uint64_t total) {
    const serve_job *job = user;
    return cli_progress(job->args, what, done, total);
}

static void log_line(void *user, const char *line) {
    const serve_job *job = user;
    cli_log(job->args, line);
}

/* Contexts that keys and values are kept for: --cache-size may be less than all. */
static int sessions_of(const serve_job *job) {
    const int64_t n_ctx = job->args->ctx_size, n = job->args->cache_size;
    if (n == 0 || n_ctx <= 0)
        return job->n_sequence;
    return (int)NUM_MIN(NUM_MAX(num_div_up(n, n_ctx), 1), (int64_t)job->n_sequence);
}

/* Rows of logits together: one for each answer, and those of what is proposed for some of them. */
static int64_t logits_rows(const serve_job *job) {
    enum { ENOUGH = 32 };
    const int64_t all = job->n_sequence * (1 + job->args->draft_max);
    return NUM_MIN(all, NUM_MAX(job->n_sequence, ENOUGH));
}

static int open_engine(serve_job *job) {
    nib_engine_options o;
    cli_engine_options(job->args, &o);
    const uint64_t room = room_of(job->args);
    if (o.ram != NIB_AUTO && o.ram <= room)
        return cli_usage_error("--ram: a server needs more for its requests alone");
    o.ram = o.ram == NIB_AUTO ? o.ram : o.ram - room;
    o.n_session = sessions_of(job) + (job->args->embeddings ? 1 : 0);
    o.n_logits = logits_rows(job);
    o.grammar = true;
    if (o.n_batch && o.n_batch < job->n_sequence)
        return cli_usage_error("-b: expected at least the %d sequences of --parallel", job->n_sequence);
    o.cancel = cancels;
    o.progress = progress;
    o.log = log_line;
    o.user = job;
    nib_engine *engine;
    const int code = cli_open_engine(job->args, &o, &engine);
    char size[32];
    if (code == nib_status_exit_code(NIB_E_NOFIT) && room)
        cli_note(job->args,
                 "nibble: these sizes come beside the %s of --ram that a server keeps for requests",
                 num_format_size(room, size));
    if (code)
        return code;
    job->engine = engine;
    if (!nib_engine_info(engine)->has_tokenizer)
        return cli_usage_error("%s has no tokenizer: there is nothing to serve", job->args->model);
    return 0;
}

static void wait_for(void *user, int fd, int max_ms) {
    (void)user;
    struct pollfd one = {.fd = fd, .events = POLLIN};
    if (cli_interrupted()) /* for the last answers: cli_wait_input waits no more */
        poll(&one, 1, NUM_MIN(max_ms, LAST_WAIT_MS));
    else
        cli_wait_input(fd, max_ms);
}

static bool is_ending(void *user) {
    (void)user;
    return cli_interrupted();
}

static int say_address(const serve_job *job) {
    const char *address = server_address(job->server);
    if (job->args->json)
        return cli_write_json(json_pack("{s:s, s:i, s:s, s:i, s:I}", "address", address, "port",
                                        server_port(job->server), "model", job->name, "parallel",
                                        job->n_sequence, "n_ctx",
                                        (json_int_t)nib_engine_info(job->engine)->n_ctx),
                              job->args);
    cli_note(job->args, "nibble: %s, %d answers at a time with %lld tokens of context each; Ctrl-C ends",
             job->name, job->n_sequence, (long long)nib_engine_info(job->engine)->n_ctx);
    return cli_write(address, strlen(address)) && cli_write("\n", 1) && !fflush(stdout) ? 0 : 1;
}

static int serve(serve_job *job) {
    const server_host host = {wait_for, is_ending, NULL};
    nib_error err;
    if (server_begin(job->server, job->engine, job->n_sequence, &err))
        return cli_fail(&err);
    cli_signals_drain();
    const int code = say_address(job);
    if (!code)
        server_run(job->server, &host);
    if (!code && job->args->verbose)
        cli_print_memory(job->args, job->engine, stderr);
    return code;
}

static int run(cli_args *args) {
    serve_job job = {.args = args};
    int code = read_parallel(&job);
    if (!code)
        code = read_pooling(&job);
    if (!code)
        code = read_keys(&job);
    if (!code)
        code = name_model(&job);
    if (!code)
        code = open_server(&job);
    if (!code)
        code = open_engine(&job);
    if (!code)
        code = serve(&job);
    server_close(job.server);
    nib_engine_close(job.engine);
    mem_free(job.name);
    mem_free(job.key_text);
    free(job.keys.data);
    return code;
}

const cli_command cmd_serve = {
    .name = "serve",
    .usage = "MODEL [options]",
    .summary = "answer requests over HTTP, as OpenAI's API has them",
    .details =
        "POST /v1/chat/completions, /v1/completions and /v1/embeddings; GET /v1/models, /health,\n"
        "/metrics and /memory; POST /tokenize, /detokenize, /apply-template. Anthropic's /v1/messages\n"
        "and Ollama's /api/chat and /api/generate are there as well (docs/server.md has the rest). At the\n"
        "address itself is a page to talk to the model.\n"
        "Requests are computed together, and an answer with a seed is the same whatever else runs. The\n"
        "address is printed when requests are answered. Only this machine can reach it unless --host says\n"
        "otherwise; then give an API key as well. SIGTERM and Ctrl-C let answers end that are begun; a\n"
        "second one stops at once. A Unix socket is its owner's alone.\n\n"
        "  nibble serve smollm2\n"
        "  nibble serve smollm2 --ram 120M --parallel 2 --port 0\n"
        "  curl http://127.0.0.1:8080/v1/chat/completions -d '{\"messages\":\n"
        "      [{\"role\": \"user\", \"content\": \"Why is the sky blue?\"}]}'\n",
    .groups = CLI_MODEL | CLI_MEMORY | CLI_TARGETS | CLI_PLANNED | CLI_SERVE,
    .run = run,
};
