/* read_json_steps.c - the "normalizer" and "pre_tokenizer" sections. */
#include "tokenizer/read_json.h"
#include "tokenizer/unicode.h"

#include "base/mem.h"
#include "base/num.h"

#include <string.h>

static const char GPT2[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* ---- normalizers ---- */

static nib_status add_normalizer(json_reading *r, const json_t *section, int depth);

static nib_status add_normalizers(json_reading *r, const json_t *list, int depth) {
    size_t i;
    json_t *section;
    if (!json_is_array(list) || depth > 8)
        return nib_fail(r->err, NIB_E_MODEL, "tokenizer.json: normalizers: expected a list, at most 8 deep");
    json_array_foreach(list, i, section) NIB_TRY(add_normalizer(r, section, depth + 1));
    return NIB_OK;
}

static nib_status add_replace(json_reading *r, const json_t *section) {
    const char *pattern, *content;
    size_t n;
    bool regular;
    normal_step *step = NULL;
    NIB_TRY(json_read_pattern(r, section, &pattern, &n, &regular));
    NIB_TRY(jsonx_get_string(section, "content", true, &content, r->err));
    NIB_TRY(normalizer_add(&r->t->normalizer, NORMAL_REPLACE, &step, r->err));
    NIB_TRY(json_keep(r, content, json_string_length(json_object_get(section, "content")), &step->to,
                      &step->n_to));
    return regular ? regex_open(pattern, n, &step->pattern, r->err)
                   : json_keep(r, pattern, n, &step->from, &step->n_from);
}

static int base64_digit(char c) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c ? strchr(digits, c) : NULL;
    return at ? (int)(at - digits) : -1;
}

static nib_status add_charsmap(json_reading *r, const json_t *section) {
    const json_t *value = json_object_get(section, "precompiled_charsmap");
    normal_step *step = NULL;
    const char *text = json_string_value(value);
    size_t n = json_string_length(value), n_out = 0;
    if (!text)
        return nib_fail(r->err, NIB_E_MODEL, "tokenizer.json: precompiled_charsmap: expected a string");
    if (!n)
        return NIB_OK;
    char *bytes = mem_alloc(n);
    if (!bytes)
        return nib_fail_nomem(r->err, n, "the charsmap");
    uint32_t bits = 0;
    int n_bit = 0;
    nib_status status = NIB_OK;
    for (size_t i = 0; i < n && text[i] != '='; i++) {
        int digit = base64_digit(text[i]);
        if (digit < 0) {
            status = nib_fail(
                r->err, NIB_E_MODEL,
                "tokenizer.json: precompiled_charsmap: expected base64, found another character at byte %zu",
                i);
            break;
        }
        bits = bits << 6 | (uint32_t)digit;
        n_bit += 6;
        if (n_bit >= 8)
            bytes[n_out++] = (char)(bits >> (n_bit -= 8));
    }
    if (status == NIB_OK)
        status = normalizer_add(&r->t->normalizer, NORMAL_CHARSMAP, &step, r->err);
    if (status == NIB_OK)
        status = charsmap_open(bytes, n_out, &step->map, r->err);
    mem_free(bytes);
    return status;
}

static nib_status add_normalizer(json_reading *r, const json_t *section, int depth) {
    static const struct {
        const char *type;
        normal_kind kind;
    } plain[] = {{"NFC", NORMAL_NFC},
                 {"NFD", NORMAL_NFD},
                 {"NFKC", NORMAL_NFKC},
                 {"NFKD", NORMAL_NFKD},
                 {"Lowercase", NORMAL_LOWERCASE},
                 {"StripAccents", NORMAL_STRIP_ACCENTS}};
    const char *type, *text;
    normal_step *step = NULL;
    NIB_TRY(json_read_type(r, section, "normalizer", &type));
    for (size_t i = 0; i < NUM_COUNT(plain); i++)
        if (strcmp(type, plain[i].type) == 0)
            return normalizer_add(&r->t->normalizer, plain[i].kind, &step, r->err);
    if (strcmp(type, "Sequence") == 0)
        return add_normalizers(r, json_object_get(section, "normalizers"), depth);
    if (strcmp(type, "Replace") == 0)
        return add_replace(r, section);
    if (strcmp(type, "Precompiled") == 0)
        return add_charsmap(r, section);
    if (strcmp(type, "Prepend") == 0) {
        NIB_TRY(jsonx_get_string(section, "prepend", true, &text, r->err));
        NIB_TRY(normalizer_add(&r->t->normalizer, NORMAL_PREPEND, &step, r->err));
        return json_keep(r, text, strlen(text), &step->to, &step->n_to);
    }
    if (strcmp(type, "Strip") == 0) {
        NIB_TRY(normalizer_add(&r->t->normalizer, NORMAL_STRIP, &step, r->err));
        step->left = step->right = true;
        NIB_TRY(jsonx_get_bool(section, "strip_left", false, &step->left, r->err));
        return jsonx_get_bool(section, "strip_right", false, &step->right, r->err);
    }
    return json_refuse(r, "normalizer", type);
}

nib_status json_read_normalizer(json_reading *r) {
    const json_t *section = json_object_get(r->root, "normalizer");
    return section && !json_is_null(section) ? add_normalizer(r, section, 0) : NIB_OK;
}

/* ---- pre-tokenizers ---- */

static nib_status add_pre_tokenizer(json_reading *r, const json_t *section, int depth);

static nib_status add_pre_tokenizers(json_reading *r, const json_t *list, int depth) {
    size_t i;
    json_t *section;
    if (!json_is_array(list) || depth > 8)
        return nib_fail(r->err, NIB_E_MODEL,
                        "tokenizer.json: pretokenizers: expected a list, at most 8 deep");
    json_array_foreach(list, i, section) NIB_TRY(add_pre_tokenizer(r, section, depth + 1));
    return NIB_OK;
}

static nib_status read_behavior(json_reading *r, const json_t *section, bool required, split_behavior *out) {
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext",
                                        "Contiguous"};
    const char *name = NULL;
    NIB_TRY(jsonx_get_string(section, "behavior", required, &name, r->err));
    for (size_t i = 0; name && i < NUM_COUNT(names); i++) {
        if (strcasecmp(name, names[i]) == 0) {
            *out = (split_behavior)i;
            return NIB_OK;
        }
    }
    return name ? json_refuse(r, "behavior", name) : NIB_OK;
}

static nib_status add_split(json_reading *r, const json_t *section) {
    const char *pattern;
    size_t n;
    bool regular, invert = false;
    split_behavior behavior = SPLIT_ISOLATED;
    split_step *step = NULL;
    NIB_TRY(json_read_pattern(r, section, &pattern, &n, &regular));
    NIB_TRY(read_behavior(r, section, true, &behavior));
    NIB_TRY(jsonx_get_bool(section, "invert", false, &invert, r->err));
    if (regular)
        return splitter_add_regex(&r->t->splitter, pattern, n, behavior, invert, r->err);
    if (!n)
        return nib_fail(r->err, NIB_E_MODEL, "tokenizer.json: Split: expected a pattern, found an empty one");
    NIB_TRY(splitter_add(&r->t->splitter, SPLIT_STRING, &step, r->err));
    step->behavior = behavior;
    step->invert = invert;
    return json_keep(r, pattern, n, &step->string, &step->n_string);
}

static nib_status add_byte_level(json_reading *r, const json_t *section) {
    bool prefix = true, use_regex = true;
    split_step *step = NULL;
    NIB_TRY(jsonx_get_bool(section, "add_prefix_space", false, &prefix, r->err));
    NIB_TRY(jsonx_get_bool(section, "use_regex", false, &use_regex, r->err));
    r->byte_level = true;
    if (prefix)
        NIB_TRY(splitter_add(&r->t->splitter, SPLIT_PREFIX, &step, r->err));
    return use_regex
               ? splitter_add_regex(&r->t->splitter, GPT2, sizeof GPT2 - 1, SPLIT_ISOLATED, false, r->err)
               : NIB_OK;
}

static nib_status add_metaspace(json_reading *r, const json_t *section) {
    const char *sign = "\xE2\x96\x81", *scheme = NULL;
    bool prefix = true;
    split_step *step = NULL;
    NIB_TRY(jsonx_get_string(section, "replacement", false, &sign, r->err));
    NIB_TRY(jsonx_get_string(section, "prepend_scheme", false, &scheme, r->err));
    NIB_TRY(jsonx_get_bool(section, "add_prefix_space", false, &prefix, r->err));
    if (!scheme)
        scheme = prefix ? "always" : "never";
    NIB_TRY(splitter_add(&r->t->splitter, SPLIT_METASPACE, &step, r->err));
    step->cut = true;
    step->behavior = SPLIT_MERGED_WITH_NEXT;
    NIB_TRY(jsonx_get_bool(section, "split", false, &step->cut, r->err));
    if (!*sign)
        return nib_fail(r->err, NIB_E_MODEL,
                        "tokenizer.json: Metaspace: expected a replacement, found an empty one");
    if (strcmp(scheme, "always") == 0)
        step->prepend = PREPEND_ALWAYS;
    else if (strcmp(scheme, "first") == 0)
        step->prepend = PREPEND_FIRST;
    else if (strcmp(scheme, "never") != 0)
        return json_refuse(r, "prepend_scheme", scheme);
    return json_keep(r, sign, strlen(sign), &step->string, &step->n_string);
}

static nib_status add_class(json_reading *r, unsigned classes, split_behavior behavior, bool ascii_punct) {
    split_step *step = NULL;
    NIB_TRY(splitter_add(&r->t->splitter, SPLIT_CLASS, &step, r->err));
    step->classes = classes;
    step->single = true;
    step->behavior = behavior;
    step->ascii_punct = ascii_punct;
    return NIB_OK;
}

static nib_status add_other(json_reading *r, const json_t *section, const char *type) {
    split_step *step = NULL;
    split_behavior behavior = SPLIT_ISOLATED;
    bool individual = false;
    const char *delimiter;
    if (strcmp(type, "Digits") == 0) {
        NIB_TRY(jsonx_get_bool(section, "individual_digits", false, &individual, r->err));
        return add_class(r, UNI_NUMBER, individual ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS, false);
    }
    if (strcmp(type, "Punctuation") == 0) {
        NIB_TRY(read_behavior(r, section, false, &behavior));
        return add_class(r, UNI_PUNCT, behavior, true);
    }
    if (strcmp(type, "WhitespaceSplit") == 0)
        return add_class(r, UNI_SPACE, SPLIT_REMOVED, false);
    if (strcmp(type, "BertPreTokenizer") == 0) {
        NIB_TRY(add_class(r, UNI_SPACE, SPLIT_REMOVED, false));
        return add_class(r, UNI_PUNCT, SPLIT_ISOLATED, true);
    }
    if (strcmp(type, "Whitespace") == 0) {
        NIB_TRY(splitter_add(&r->t->splitter, SPLIT_WORDS, &step, r->err));
        step->behavior = SPLIT_REMOVED;
        step->invert = true;
        return NIB_OK;
    }
    if (strcmp(type, "CharDelimiterSplit") == 0) {
        NIB_TRY(jsonx_get_string(section, "delimiter", true, &delimiter, r->err));
        if (!*delimiter)
            return nib_fail(r->err, NIB_E_MODEL,
                            "tokenizer.json: CharDelimiterSplit: expected a delimiter, found an empty one");
        NIB_TRY(splitter_add(&r->t->splitter, SPLIT_STRING, &step, r->err));
        step->behavior = SPLIT_REMOVED;
        return json_keep(r, delimiter, strlen(delimiter), &step->string, &step->n_string);
    }
    return json_refuse(r, "pre-tokenizer", type);
}

static nib_status add_pre_tokenizer(json_reading *r, const json_t *section, int depth) {
    const char *type;
    NIB_TRY(json_read_type(r, section, "pre_tokenizer", &type));
    if (strcmp(type, "Sequence") == 0)
        return add_pre_tokenizers(r, json_object_get(section, "pretokenizers"), depth);
    if (r->byte_level) /* its output is in the byte alphabet, on which later rules would match other
                          characters */
        return nib_fail(r->err, NIB_E_MODEL,
                        "tokenizer.json: a pre-tokenizer '%.80s' after ByteLevel is not supported", type);
    if (strcmp(type, "Split") == 0)
        return add_split(r, section);
    if (strcmp(type, "ByteLevel") == 0)
        return add_byte_level(r, section);
    if (strcmp(type, "Metaspace") == 0)
        return add_metaspace(r, section);
    return add_other(r, section, type);
}

nib_status json_read_pre_tokenizer(json_reading *r) {
    const json_t *section = json_object_get(r->root, "pre_tokenizer");
    return section && !json_is_null(section) ? add_pre_tokenizer(r, section, 0) : NIB_OK;
}
