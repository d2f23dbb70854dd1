/* read_json_decoder.c - the "decoder" section. Text is decoded token by token, so steps that need the whole
 * text (stripping its end) are refused. */
#include "tokenizer/read_json.h"

#include <string.h>

static nib_status add_decoder(json_reading *r, const json_t *section, int depth, bool *fused);

static nib_status add_decoders(json_reading *r, const json_t *list, int depth, bool *fused) {
    size_t i;
    json_t *section;
    if (!json_is_array(list) || depth > 8)
        return nib_fail(r->err, NIB_E_MODEL, "tokenizer.json: decoders: expected a list, at most 8 deep");
    json_array_foreach(list, i, section) NIB_TRY(add_decoder(r, section, depth + 1, fused));
    return NIB_OK;
}

static nib_status add_replace(json_reading *r, const json_t *section) {
    const char *pattern, *content;
    size_t n;
    bool regular;
    decode_step *step = NULL;
    NIB_TRY(json_read_pattern(r, section, &pattern, &n, &regular));
    if (regular)
        return nib_fail(r->err, NIB_E_MODEL,
                        "tokenizer.json: decoder: replacing the regular expression '%.80s' is not supported",
                        pattern);
    NIB_TRY(jsonx_get_string(section, "content", true, &content, r->err));
    NIB_TRY(decoder_add(&r->t->decoder, DECODE_REPLACE, &step, r->err));
    NIB_TRY(json_keep(r, pattern, n, &step->from, &step->n_from));
    return json_keep(r, content, strlen(content), &step->to, &step->n_to);
}

static nib_status add_metaspace(json_reading *r, const json_t *section) {
    const char *sign = "\xE2\x96\x81", *scheme = NULL;
    bool prefix = true;
    decode_step *step = NULL;
    NIB_TRY(jsonx_get_string(section, "replacement", false, &sign, r->err));
    NIB_TRY(jsonx_get_string(section, "prepend_scheme", false, &scheme, r->err));
    NIB_TRY(jsonx_get_bool(section, "add_prefix_space", false, &prefix, r->err));
    NIB_TRY(decoder_add(&r->t->decoder, DECODE_METASPACE, &step, r->err));
    step->first = scheme ? strcmp(scheme, "never") != 0 : prefix;
    return json_keep(r, sign, strlen(sign), &step->from, &step->n_from);
}

static nib_status add_strip(json_reading *r, const json_t *section, bool fused) {
    const char *content;
    decode_step *step = NULL;
    NIB_TRY(jsonx_get_string(section, "content", true, &content, r->err));
    NIB_TRY(decoder_add(&r->t->decoder, DECODE_STRIP, &step, r->err));
    NIB_TRY(jsonx_get_i64(section, "start", true, &step->start, r->err));
    NIB_TRY(jsonx_get_i64(section, "stop", true, &step->stop, r->err));
    if ((fused && step->stop) || !*content)
        return nib_fail(
            r->err, NIB_E_MODEL,
            "tokenizer.json: decoder: stripping '%.80s' from the end of the text is not supported", content);
    return json_keep(r, content, strlen(content), &step->from, &step->n_from);
}

static nib_status add_decoder(json_reading *r, const json_t *section, int depth, bool *fused) {
    const char *type;
    decode_step *step = NULL;
    decoder *d = &r->t->decoder;
    NIB_TRY(json_read_type(r, section, "decoder", &type));
    if (strcmp(type, "Sequence") == 0)
        return add_decoders(r, json_object_get(section, "decoders"), depth, fused);
    if (strcmp(type, "ByteLevel") == 0) {
        d->raw_added =
            true; /* an added token "é" is that letter, not the byte that é represents in the byte alphabet */
        return decoder_add(d, DECODE_BYTE_LEVEL, &step, r->err);
    }
    if (strcmp(type, "ByteFallback") == 0)
        return decoder_add(d, DECODE_BYTE_FALLBACK, &step, r->err);
    if (strcmp(type, "Fuse") == 0) {
        *fused = true;
        return decoder_add(d, DECODE_FUSE, &step, r->err);
    }
    if (strcmp(type, "Replace") == 0)
        return add_replace(r, section);
    if (strcmp(type, "Metaspace") == 0)
        return add_metaspace(r, section);
    if (strcmp(type, "Strip") == 0)
        return add_strip(r, section, *fused);
    return json_refuse(r, "decoder", type);
}

nib_status json_read_decoder(json_reading *r) {
    const json_t *section = json_object_get(r->root, "decoder");
    bool fused = false;
    if (section && !json_is_null(section))
        return add_decoder(r, section, 0, &fused);
    r->t->decoder.join_with_spaces = true;
    return NIB_OK;
}
