/* cmd_logits.c - nibble logits: the raw output of every position, for comparing engines. */
#include "cli/cli.h"

#include "nib_tools.h"

#include <stdlib.h>

static int write_logits(const cli_args *args, nib_engine *engine, const int32_t *tokens, size_t n_token) {
    nib_session *session;
    nib_error err;
    if (nib_session_open(engine, NULL, &session, &err))
        return cli_fail(&err);
    const nib_status status = nib_session_logits_save(session, tokens, n_token, args->output, &err);
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
                                        "memory", memory_json((memory_use){.engine = engine})),
                              args);
    nib_engine_close(engine);
    free(tokens);
    return code;
}

const cli_command cmd_logits = {
    .name = "logits",
    .usage = "MODEL --tokens 1,2,3 -o FILE",
    .summary = "write the logits of every position to a safetensors file",
    .details = "One pass over the tokens as they are (no token is added). FILE gets `logits` F32 [n_token, "
               "n_vocab].\n\n"
               "  nibble logits smollm2 --tokens 19556,905 -o logits.safetensors\n",
    .groups = CLI_MODEL | CLI_MEMORY | CLI_TARGETS | CLI_PLANNED | CLI_LOGITS,
    .run = run,
};
