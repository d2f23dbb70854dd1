/* read_json_special.c - reads added tokens, and the tokens before and after a text: "added_tokens",
 * "post_processor" and tokenizer_config.json. */
#include "tokenizer/read_json.h"

#include "base/num.h"

#include <string.h>

/* ---- added tokens ---- */

static nib_status read_flags(json_reading *r, const json_t *token, uint8_t *out) {
    static const struct {
        const char *key;
        uint8_t flag;
    } flags[] = {{"special", VOCAB_CONTROL},
                 {"lstrip", VOCAB_LSTRIP},
                 {"rstrip", VOCAB_RSTRIP},
                 {"single_word", VOCAB_WORD},
                 {"normalized", VOCAB_NORMALIZED}};
    *out = VOCAB_ADDED;
    for (size_t i = 0; i < NUM_COUNT(flags); i++) {
        bool on = false;
        NIB_TRY(jsonx_get_bool(token, flags[i].key, false, &on, r->err));
        *out |= on ? flags[i].flag : 0;
    }
    return NIB_OK;
}

nib_status json_read_added(json_reading *r) {
    const json_t *list = json_object_get(r->root, "added_tokens");
    vocab *v = &r->t->vocab;
    size_t i;
    json_t *token;
    if (list && !json_is_null(list) && !json_is_array(list))
        return nib_fail(r->err, NIB_E_MODEL, "tokenizer.json: added_tokens: expected a list");
    json_array_foreach(list, i, token) {
        int64_t id = -1;
        const char *content;
        uint8_t flags;
        if (!json_is_object(token))
            return nib_fail(r->err, NIB_E_MODEL, "tokenizer.json: added_tokens: expected objects");
        NIB_TRY(jsonx_get_i64(token, "id", true, &id, r->err));
        NIB_TRY(jsonx_get_string(token, "content", true, &content, r->err));
        NIB_TRY(read_flags(r, token, &flags));
        size_t n = json_string_length(json_object_get(token, "content"));
        int32_t there = vocab_find(v, content, n);
        if (id < 0 || id >= v->n)
            return nib_fail(r->err, NIB_E_MODEL,
                            "tokenizer.json: added token '%.80s': expected an id below %d, found %lld",
                            content, v->n, (long long)id);
        if (there < 0) {
            NIB_TRY(vocab_set(v, (int32_t)id, content, n, r->err));
            there = (int32_t)id;
        }
        v->flags[there] |= flags;
    }
    return NIB_OK;
}

/* ---- tokens before and after a text ---- */

static nib_status put_around(json_reading *r, bool before, int64_t id) {
    tokenizer *t = r->t;
    int32_t *list = before ? t->prefix : t->suffix;
    int *n = before ? &t->n_prefix : &t->n_suffix;
    if (id < 0 || id >= t->vocab.n)
        return nib_fail(r->err, NIB_E_MODEL,
                        "tokenizer.json: post_processor: expected ids below %d, found %lld", t->vocab.n,
                        (long long)id);
    if (*n == TOKENIZER_AROUND)
        return nib_fail(
            r->err, NIB_E_MODEL,
            "tokenizer.json: post_processor: expected at most %d tokens before or after a text, found more",
            TOKENIZER_AROUND);
    list[(*n)++] = (int32_t)id;
    return NIB_OK;
}

static nib_status read_template(json_reading *r, const json_t *section) {
    const json_t *single = json_object_get(section, "single"),
                 *tokens = json_object_get(section, "special_tokens");
    bool before = true;
    size_t i, k;
    json_t *piece, *id;
    if (!json_is_array(single))
        return nib_fail(r->err, NIB_E_MODEL, "tokenizer.json: TemplateProcessing: expected a list 'single'");
    json_array_foreach(single, i, piece) {
        const json_t *special = json_object_get(piece, "SpecialToken");
        if (!special) {
            before = false;
            continue;
        }
        const char *name = json_string_value(json_object_get(special, "id"));
        const json_t *ids = name ? json_object_get(json_object_get(tokens, name), "ids") : NULL;
        if (!json_is_array(ids))
            return nib_fail(r->err, NIB_E_MODEL,
                            "tokenizer.json: TemplateProcessing: expected ids for '%.80s', found none",
                            name ? name : "");
        json_array_foreach(ids, k, id)
            NIB_TRY(put_around(r, before, json_is_integer(id) ? json_integer_value(id) : -1));
    }
    return NIB_OK;
}

/* Reads a pair of token and id: ["</s>", 2]. */
static nib_status read_bracket(json_reading *r, const json_t *section, const char *key, bool before) {
    const json_t *id = json_array_get(json_object_get(section, key), 1);
    return put_around(r, before, json_is_integer(id) ? json_integer_value(id) : -1);
}

static nib_status read_post_processor(json_reading *r, const json_t *section, int depth) {
    const char *type;
    size_t i;
    json_t *inner;
    if (!section || json_is_null(section))
        return NIB_OK;
    NIB_TRY(json_read_type(r, section, "post_processor", &type));
    if (strcmp(type, "ByteLevel") == 0) /* changes offsets only */
        return NIB_OK;
    if (strcmp(type, "TemplateProcessing") == 0)
        return read_template(r, section);
    if (strcmp(type, "RobertaProcessing") == 0 || strcmp(type, "BertProcessing") == 0) {
        NIB_TRY(read_bracket(r, section, "cls", true));
        return read_bracket(r, section, "sep", false);
    }
    if (strcmp(type, "Sequence") == 0 && depth < 8) {
        json_array_foreach(json_object_get(section, "processors"), i, inner)
            NIB_TRY(read_post_processor(r, inner, depth + 1));
        return NIB_OK;
    }
    return json_refuse(r, "post_processor", type);
}

/* Reads "bos_token": "<s>" or {"content": "<s>", ...}; -1: missing, or not a token. */
static int32_t config_token(const json_reading *r, const char *key) {
    const json_t *value = json_object_get(r->config, key);
    if (json_is_object(value))
        value = json_object_get(value, "content");
    return json_is_string(value)
               ? vocab_find(&r->t->vocab, json_string_value(value), json_string_length(value))
               : -1;
}

/* The configuration's BOS and EOS, if it has any, override the post-processor's. */
static void configure(const json_reading *r, const char *key, int32_t token, int32_t *list, int *n) {
    const json_t *value = json_object_get(r->config, key);
    if (!json_is_boolean(value))
        return;
    if (!json_is_true(value)) {
        *n = 0;
    } else if (token >= 0) {
        list[0] = token;
        *n = 1;
    }
}

nib_status json_read_special(json_reading *r) {
    tokenizer *t = r->t;
    NIB_TRY(read_post_processor(r, json_object_get(r->root, "post_processor"), 0));
    t->bos = config_token(r, "bos_token");
    t->eos = config_token(r, "eos_token");
    configure(r, "add_bos_token", t->bos, t->prefix, &t->n_prefix);
    configure(r, "add_eos_token", t->eos, t->suffix, &t->n_suffix);
    if (t->bos < 0 && t->n_prefix)
        t->bos = t->prefix[0];
    if (t->eos < 0 && t->n_suffix)
        t->eos = t->suffix[0];
    return NIB_OK;
}
