/* text.c - the public functions of the engine's tokenizer. */
#include "engine/engine.h"
#include "grammar/schema.h"

#include "base/mem.h"

#include <string.h>

static nib_status need_tokenizer(const nib_engine *e, const tokenizer **out, nib_error *err) {
    *out = engine_tokenizer(e);
    if (*out)
        return NIB_OK;
    return nib_fail(err, NIB_E_USAGE, "%s: the model has no tokenizer, so only token ids can be used",
                    engine_path(e));
}

nib_status nib_tokenize(const nib_engine *e, const char *text, size_t n_byte, unsigned flags,
                        int32_t **tokens, size_t *n_token, nib_error *err) {
    return nib_tokenize_marked(e, text, NULL, n_byte, flags, tokens, n_token, err);
}

nib_status nib_tokenize_marked(const nib_engine *e, const char *text, const uint8_t *marks, size_t n_byte,
                               unsigned flags, int32_t **tokens, size_t *n_token, nib_error *err) {
    unsigned f = (flags & NIB_TOKENIZE_BOS ? (unsigned)TOKENIZE_BOS : 0) |
                 (flags & NIB_TOKENIZE_SPECIAL ? (unsigned)TOKENIZE_SPECIAL : 0);
    token_list list = {0};
    const tokenizer *t;
    NIB_TRY(need_tokenizer(e, &t, err));
    nib_status status = tokenizer_encode_marked(t, text, marks, n_byte, f, &list, err);
    if (status == NIB_OK && !list.data) {
        list.data = mem_alloc(sizeof *list.data);
        if (!list.data)
            status = nib_fail_nomem(err, sizeof *list.data, "tokens");
    }
    if (status != NIB_OK) {
        token_list_clear(&list);
        return status;
    }
    *tokens = list.data;
    *n_token = list.n;
    return NIB_OK;
}

nib_status nib_detokenize(const nib_engine *e, const int32_t *tokens, size_t n_token, char **text,
                          size_t *n_byte, nib_error *err) {
    decode_state state = {0};
    text_buffer out = {0};
    const tokenizer *t;
    NIB_TRY(need_tokenizer(e, &t, err));
    nib_status status = NIB_OK;
    for (size_t i = 0; i < n_token && status == NIB_OK; i++)
        status = tokenizer_decode(t, &state, tokens[i], true, &out, err);
    if (status == NIB_OK)
        status = tokenizer_decode_end(t, &state, &out, err);
    if (status == NIB_OK && !out.data) {
        out.data = mem_strdup("");
        if (!out.data)
            status = nib_fail_nomem(err, 1, "text");
    }
    if (status != NIB_OK) {
        text_buffer_clear(&out);
        return status;
    }
    *text = out.data;
    *n_byte = out.n;
    return NIB_OK;
}

const char *nib_token_piece(const nib_engine *e, int32_t token, size_t *n_byte) {
    const tokenizer *t = engine_tokenizer(e);
    if (!t || token < 0 || token >= tokenizer_n_vocab(t))
        return NULL;
    return tokenizer_piece(t, token, n_byte);
}

bool nib_token_is_end(const nib_engine *e, int32_t token) {
    const tokenizer *t = engine_tokenizer(e);
    return t && token >= 0 && token < tokenizer_n_vocab(t) && tokenizer_is_end(t, token);
}

nib_status nib_schema_grammar(const char *schema, size_t n_byte, const char *root, char **gbnf,
                              nib_error *err) {
    return schema_grammar(schema, n_byte, root, gbnf, err);
}
