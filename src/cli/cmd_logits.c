/* cmd_logits.c - nibble logits: the raw output of every position, for comparing engines. */
#include "cli/cli.h"

#include "formats/safetensors_write.h"

#include <stdlib.h>

typedef struct logits_job {
    safetensors_writer *writer;
    int64_t n_vocab;
    nib_error err;
    nib_status status; /* of writing */
} logits_job;

static void write_row(void *user, int64_t position, const float *logits) {
    (void)position;
    logits_job *job = user;
    if (!job->status)
        job->status =
            safetensors_writer_data(job->writer, logits, (size_t)job->n_vocab * sizeof *logits, &job->err);
}

static int write_logits(cli_args *args, nib_engine *engine, const int32_t *tokens, size_t n_token) {
    const canceller cancel = {cli_cancel, NULL};
    logits_job job = {.n_vocab = nib_engine_info(engine)->n_vocab};
    nib_session *session;
    nib_error err;
    if (nib_session_open(engine, NULL, &session, &err))
        return cli_fail(&err);
    int64_t shape[2] = {(int64_t)n_token, job.n_vocab};
    nib_status status = safetensors_writer_open(args->output, &job.writer, &err);
    if (!status)
        status = safetensors_writer_tensor(job.writer, "logits", TYPE_F32, 2, shape, &err);
    if (!status) {
        safetensors_writer_ask(job.writer, &cancel);
        status = nib_session_forward(session, tokens, n_token, 0, write_row, &job, &err);
    }
    if (!status && job.status) {
        status = job.status;
        err = job.err;
    }
    if (status)
        safetensors_writer_abort(job.writer);
    else
        status = safetensors_writer_commit(job.writer, &err);
    nib_session_close(session);
    return status ? cli_fail(&err) : 0;
}

static int run(cli_args *args) {
    if (!args->tokens || !args->output)
        return cli_usage_error("logits needs --tokens IDS and -o FILE");
    int32_t *tokens;
    size_t n_token;
    int code = cli_parse_tokens(args->tokens, &tokens, &n_token);
    if (code)
        return code;
    nib_engine_options options;
    cli_engine_options(args, &options);
    options.n_logits = CLI_LOGITS_ROWS;
    if (!options.n_ctx)
        options.n_ctx = (int64_t)n_token;
    nib_engine *engine = NULL;
    code = n_token ? cli_open_engine(args, &options, &engine)
                   : cli_usage_error("--tokens: expected at least one id");
    if (!code)
        code = write_logits(args, engine, tokens, n_token);
    if (!code && args->json)
        code = cli_write_json(json_pack("{s:s, s:[I, I], s:o}", "file", args->output, "shape",
                                        (json_int_t)n_token, (json_int_t)nib_engine_info(engine)->n_vocab,
                                        "memory", cli_memory_json(engine)),
                              args);
    nib_engine_close(engine);
    free(tokens);
    return code;
}

const cli_command cmd_logits = {
    .name = "logits",
    .usage = "MODEL --tokens 1,2,3 -o FILE",
    .summary = "write the logits of every position to a safetensors file",
    .details = "One pass over the tokens as they are (nothing is added); FILE gets `logits` F32 [n_token, "
               "n_vocab].\n\n"
               "  nibble logits smollm2 --tokens 19556,905 -o logits.safetensors\n",
    .groups = CLI_MODEL | CLI_MEMORY | CLI_TARGETS | CLI_PLANNED | CLI_LOGITS,
    .run = run,
};
