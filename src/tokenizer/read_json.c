/* read_json.c - reads a tokenizer from tokenizer.json, the format of HF's `tokenizers` library. The
 * vocabulary and the merges are parsed in place. The rest is small: jansson parses it, with null instead of
 * the two large values. */
#include "tokenizer/read_json.h"

#include "base/mem.h"

#include <string.h>

nib_status json_refuse(json_reading *r, const char *what, const char *type) {
    return nib_fail(r->err, NIB_E_MODEL, "tokenizer.json: unknown %s '%.80s'", what, type);
}

nib_status json_read_type(json_reading *r, const json_t *section, const char *what, const char **type) {
    if (!json_is_object(section))
        return nib_fail(r->err, NIB_E_MODEL, "tokenizer.json: %s: expected an object", what);
    return jsonx_get_string(section, "type", true, type, r->err);
}

nib_status json_read_pattern(json_reading *r, const json_t *owner, const char **text, size_t *n_byte,
                             bool *regular) {
    const json_t *pattern = json_object_get(owner, "pattern");
    const json_t *plain = json_object_get(pattern, "String"),
                 *regular_text = json_object_get(pattern, "Regex");
    const json_t *found = plain ? plain : regular_text;
    if (!json_is_string(found))
        return nib_fail(r->err, NIB_E_MODEL,
                        "tokenizer.json: pattern: expected {\"String\": ...} or {\"Regex\": ...}");
    *text = json_string_value(found);
    *n_byte = json_string_length(found);
    *regular = !plain;
    return NIB_OK;
}

nib_status json_keep(json_reading *r, const char *text, size_t n_byte, char **out, size_t *n_out) {
    *out = mem_strndup(text, n_byte);
    *n_out = n_byte;
    return *out ? NIB_OK : nib_fail_nomem(r->err, n_byte, "a tokenizer's text");
}

/* Copies the text with null instead of the two large values. */
static nib_status shorten(const char *json, size_t n_byte, const json_text *a, const json_text *b,
                          text_buffer *out, nib_error *err) {
    const json_text *order[2] = {a, b};
    const char *p = json;
    size_t rest = n_byte;
    if (a->begin && b->begin && b->begin < a->begin) {
        order[0] = b;
        order[1] = a;
    }
    for (int i = 0; i < 2; i++)
        rest -= order[i]->begin ? (size_t)(order[i]->end - order[i]->begin) : 0;
    if (rest > JSONX_MAX_TEXT)
        return nib_fail(err, NIB_E_MODEL,
                        "expected at most %d bytes beside the vocabulary and the merges, found %zu",
                        JSONX_MAX_TEXT, rest);
    for (int i = 0; i < 2; i++) {
        if (!order[i]->begin)
            continue;
        NIB_TRY(text_append(out, p, (size_t)(order[i]->begin - p), err));
        NIB_TRY(text_append(out, "null", 4, err));
        p = order[i]->end;
    }
    return text_append(out, p, (size_t)(json + n_byte - p), err);
}

static nib_status read_sections(json_reading *r) {
    NIB_TRY(json_read_pre_tokenizer(r)); /* first, because it determines the alphabet of the vocabulary */
    NIB_TRY(json_read_normalizer(r));
    NIB_TRY(json_read_model(r));
    NIB_TRY(json_read_decoder(r));
    return json_read_special(r);
}

nib_status tokenizer_read_json(tokenizer *t, const char *json, size_t n_byte, const char *config,
                               size_t n_config, nib_error *err) {
    json_reading r = {.t = t, .err = err};
    text_buffer small = {0};
    json_t *root = NULL, *config_root = NULL;
    NIB_TRY(json_text_find(json, n_byte, "model", "vocab", &r.vocab, err));
    NIB_TRY(json_text_find(json, n_byte, "model", "merges", &r.merges, err));
    nib_status status = shorten(json, n_byte, &r.vocab, &r.merges, &small, err);
    if (status == NIB_OK)
        status = jsonx_parse(small.data, small.n, &root, err);
    text_buffer_clear(&small);
    if (status == NIB_OK && config && n_config)
        status = jsonx_parse(config, n_config, &config_root, err);
    r.root = root;
    r.config = config_root;
    if (status == NIB_OK)
        status = read_sections(&r);
    json_decref(root);
    json_decref(config_root);
    return status;
}
