/* prompt.c - the prompt of 'nibble run', see prompt.h. */
#include "cli/chat/prompt.h"

#include "base/mem.h"
#include "cli/chat/conversation.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int prompt_check(const cli_args *args) {
    if (args->tokens && (args->prompt || args->file || args->rest.n))
        return cli_usage_error("give a text or --tokens, not both");
    return args->tokens ? 0 : cli_check_text(args, 0);
}

int64_t max_prompt(const cli_args *args) {
    /* Tokens beyond one for each byte: of a text, those that a tokenizer adds at the beginning, and some
     * ligatures; of a turn, the template's markers and its default system message, unless it is very long. */
    enum { AROUND_TEXT = 64, AROUND_TURN = 256 };
    const char *given = args->tokens   ? args->tokens
                        : args->prompt ? args->prompt
                        : args->file   ? NULL
                        : args->rest.n ? args->rest.data[0]
                                       : NULL;
    struct stat file;
    int64_t n = 0;
    if (given)
        n = (int64_t)strlen(given);
    else if (args->file && !stat(args->file, &file) && S_ISREG(file.st_mode))
        n = file.st_size;
    if (!n || args->predict < 0)
        return 0;
    const int64_t system = args->system ? (int64_t)strlen(args->system) : 0;
    return n + args->predict + (args->raw || args->tokens ? AROUND_TEXT : AROUND_TURN + system);
}

static bool is_blank(const char *text, size_t n_byte) {
    for (size_t i = 0; i < n_byte; i++)
        if (!strchr(" \t\r\n", text[i]))
            return false;
    return true;
}

static nib_status turn_tokens(const cli_args *args, const nib_engine *engine, const char *text, size_t n_byte,
                              prompt *out, nib_error *err) {
    conversation c;
    nib_status status = conversation_init(&c, engine, args->special_in_messages, err);
    while (n_byte && strchr("\r\n", text[n_byte - 1])) /* the newline at the end of a file */
        n_byte--;
    if (status == NIB_OK)
        status = conversation_begin(&c, args->system, err);
    if (status == NIB_OK)
        status = conversation_add(&c, "user", text, n_byte, err);
    if (status == NIB_OK)
        status = conversation_tokens(&c, NULL, &out->tokens, &out->n_token, err);
    conversation_deinit(&c);
    return status;
}

static int read_text(const cli_args *args, const nib_engine *engine, prompt *out) {
    char *text;
    size_t n_byte;
    nib_error err;
    int code = cli_read_text(args, engine, 0, &text, &n_byte);
    if (code)
        return code;
    if (n_byte == 0 || (out->turn && is_blank(text, n_byte))) {
        free(text);
        return cli_usage_error("the text is empty: there is nothing to %s",
                               out->turn ? "answer" : "go on from");
    }
    const unsigned flags = NIB_TOKENIZE_BOS | (args->special ? (unsigned)NIB_TOKENIZE_SPECIAL : 0);
    const nib_status status =
        out->turn ? turn_tokens(args, engine, text, n_byte, out, &err)
                  : nib_tokenize(engine, text, n_byte, flags, &out->tokens, &out->n_token, &err);
    free(text);
    if (status == NIB_OK)
        return 0;
    code = cli_fail(&err);
    if (out->turn && status != NIB_E_NOMEM)
        cli_note(args, "nibble: --raw continues the text without the model's chat template");
    return code;
}

int prompt_read(const cli_args *args, const nib_engine *engine, prompt *out) {
    const nib_model_info *info = nib_engine_info(engine);
    *out = (prompt){.turn = info->has_tokenizer && info->has_chat_template && !args->raw && !args->tokens};
    if (args->system && !out->turn)
        cli_note(args, "nibble: the system message is ignored: %s",
                 args->tokens ? "--tokens is the whole prompt"
                 : args->raw  ? "--raw continues the text as it stands"
                              : "the model has no chat template");
    if (args->tokens)
        return cli_parse_tokens(args->tokens, &out->tokens, &out->n_token);
    if (!info->has_tokenizer)
        return cli_usage_error("%s has no tokenizer; give token ids with --tokens 1,2,3", args->model);
    if (!info->has_chat_template && !args->raw)
        cli_note(args, "nibble: this is a base model, without a chat template: it continues the text");
    return read_text(args, engine, out);
}

void prompt_clear(prompt *p) {
    nib_free(p->tokens);
    p->tokens = NULL;
}
