/* cmd_tokenize.c - nibble tokenize: converts text to ids and back. */
#include "cli/cli.h"

#include "base/jsonx.h"

#include <stdlib.h>
#include <string.h>

static json_t *piece_json(const nib_engine *engine, int32_t token) {
    size_t n;
    const char *piece = nib_token_piece(engine, token, &n);
    json_t *text = piece ? json_stringn(piece, n) : NULL; /* NULL for invalid UTF-8: shown escaped */
    if (text || !piece)
        return text ? text : json_null();
    char escaped[1024];
    size_t used = 0;
    for (size_t i = 0; i < n && used + 5 < sizeof escaped; i++)
        used += (size_t)snprintf(escaped + used, 6, "<%02X>", (unsigned char)piece[i]);
    return json_string(escaped);
}

static int write_tokens(const cli_args *args, const nib_engine *engine, const int32_t *tokens, size_t n) {
    if (args->json) {
        json_t *pieces = json_array();
        for (size_t i = 0; i < n; i++)
            json_array_append_new(pieces, piece_json(engine, tokens[i]));
        return cli_write_json(json_pack("{s:o, s:o}", "tokens", cli_tokens_json(tokens, n), "pieces", pieces),
                              args);
    }
    for (size_t i = 0; i < n; i++) {
        char id[16];
        int length = snprintf(id, sizeof id, "%s%d", i ? " " : "", tokens[i]);
        if (!cli_write(id, (size_t)length))
            return 1;
    }
    cli_write("\n", 1);
    return 0;
}

static int decode(const cli_args *args, const nib_engine *engine, const char *list) {
    int32_t *tokens;
    size_t n_token, n_byte;
    int code = cli_parse_tokens(list, &tokens, &n_token);
    if (code)
        return code;
    char *text;
    nib_error err;
    if (nib_detokenize(engine, tokens, n_token, &text, &n_byte, &err)) {
        code = cli_fail(&err);
    } else if (args->json) {
        code = cli_write_json(json_pack("{s:o, s:o}", "text", jsonx_string(text, n_byte), "tokens",
                                        cli_tokens_json(tokens, n_token)),
                              args);
        nib_free(text);
    } else {
        cli_write(text, n_byte);
        cli_write("\n", 1);
        nib_free(text);
    }
    free(tokens);
    return code;
}

static int encode(const cli_args *args, const nib_engine *engine, const char *text, size_t n_byte) {
    unsigned flags = (args->no_bos ? 0 : NIB_TOKENIZE_BOS) | (args->special ? NIB_TOKENIZE_SPECIAL : 0);
    int32_t *tokens;
    size_t n_token;
    nib_error err;
    if (nib_tokenize(engine, text, n_byte, flags, &tokens, &n_token, &err))
        return cli_fail(&err);
    int code = write_tokens(args, engine, tokens, n_token);
    nib_free(tokens);
    return code;
}

static int run(cli_args *args) {
    if (args->tokens && !args->decode)
        return cli_usage_error("--tokens needs --decode, which converts ids to text");
    if (args->tokens && (args->prompt || args->file || args->rest.n))
        return cli_usage_error("give a text or --tokens, not both");
    nib_engine_options options;
    cli_engine_options(args, &options);
    options.vocab_only = true;
    nib_engine *engine;
    int code = cli_open_engine(args, &options, &engine);
    if (code)
        return code;
    char *text = NULL;
    size_t n_byte = 0;
    if (!nib_engine_info(engine)->has_tokenizer) {
        nib_error err = {NIB_E_MODEL, ""};
        snprintf(err.message, sizeof err.message, "%s has no tokenizer", args->model);
        code = cli_fail(&err);
    }
    if (!code && !args->tokens)
        code = cli_read_text(args, NULL, 0, &text, &n_byte);
    if (!code)
        code = args->decode ? decode(args, engine, args->tokens ? args->tokens : text)
                            : encode(args, engine, text, n_byte);
    free(text);
    nib_engine_close(engine);
    return code;
}

const cli_command cmd_tokenize = {
    .name = "tokenize",
    .usage = "MODEL [TEXT | -f FILE] [options]",
    .summary = "convert text to token ids, or back",
    .details = "TEXT comes from the argument, -f FILE or stdin. The ids are printed on one line. With "
               "--decode TEXT\n"
               "is ids, which --tokens sets as well.\n\n"
               "  nibble tokenize smollm2 \"Hello world\"\n"
               "  nibble tokenize smollm2 --json -f poem.txt\n"
               "  nibble tokenize smollm2 --decode --tokens 19556,905\n",
    .groups = CLI_MODEL | CLI_PROMPT | CLI_TOKENIZE,
    .n_rest = 1,
    .run = run,
};
