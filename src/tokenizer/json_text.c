/* json_text.c - see json_text.h. */
#include "tokenizer/json_text.h"

#include "base/num.h"
#include "tokenizer/normalize.h"
#include "tokenizer/unicode.h"

#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX 64
#define MAX_STRING                                                                                           \
    ((size_t)1 << 20) /* names, tokens and pairs of tokens, which have 64 KiB at most each                   \
                       */

static nib_status fail(const json_text *j, const char *expected, nib_error *err) {
    return nib_fail(err, NIB_E_MODEL, "JSON: expected %s at byte %zu", expected, (size_t)(j->p - j->begin));
}

char json_text_peek(json_text *j) {
    while (j->p < j->end && (*j->p == ' ' || *j->p == '\n' || *j->p == '\r' || *j->p == '\t'))
        j->p++;
    return j->p < j->end ? *j->p : 0;
}

nib_status json_text_expect(json_text *j, char c, nib_error *err) {
    char name[4] = {'\'', c, '\'', 0};
    if (json_text_peek(j) != c || j->p >= j->end)
        return fail(j, name, err);
    j->p++;
    return NIB_OK;
}

static bool hex4(const json_text *j, uint32_t *out) {
    const int64_t value = j->end - j->p < 4 ? -1 : num_hex(j->p, 4);
    *out = (uint32_t)value;
    return value >= 0;
}

/* Reads the digits after "\u". */
static nib_status unicode_escape(json_text *j, text_buffer *out, nib_error *err) {
    uint32_t c, low;
    char utf8[4];
    if (!hex4(j, &c))
        return fail(j, "four hexadecimal digits", err);
    j->p += 4;
    if (c >= 0xD800 && c < 0xE000) {
        bool pair = c < 0xDC00 && j->end - j->p >= 6 && j->p[0] == '\\' && j->p[1] == 'u';
        j->p += pair ? 2 : 0;
        if (!pair || !hex4(j, &low) || low < 0xDC00 || low >= 0xE000)
            return fail(j, "the second half of a surrogate pair", err);
        j->p += 4;
        c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
    }
    return text_append(out, utf8, utf8_put(c, utf8), err);
}

nib_status json_text_string(json_text *j, text_buffer *out, nib_error *err) {
    out->n = 0;
    NIB_TRY(json_text_expect(j, '"', err));
    for (;;) {
        const char *run = j->p;
        while (j->p < j->end && *j->p != '"' && *j->p != '\\' && (unsigned char)*j->p >= 0x20)
            j->p++;
        if ((size_t)(j->p - run) > MAX_STRING - out->n)
            return fail(j, "a string of at most 1 MiB", err);
        NIB_TRY(text_append(out, run, (size_t)(j->p - run), err));
        if (j->p >= j->end || (unsigned char)*j->p < 0x20)
            return fail(j, "the end of a string", err);
        if (*j->p++ == '"')
            break;
        if (out->n > MAX_STRING - 4) /* an escape is up to four bytes */
            return fail(j, "a string of at most 1 MiB", err);
        if (j->p >= j->end)
            return fail(j, "an escape", err);
        static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
        char c = *j->p++;
        const char *known = c ? strchr(from, c) : NULL;
        if (c == 'u')
            NIB_TRY(unicode_escape(j, out, err));
        else if (known)
            NIB_TRY(text_append(out, to + (known - from), 1, err));
        else
            return fail(j, "an escape", err);
    }
    if (utf8_valid_prefix(out->data, out->n) != out->n)
        return fail(j, "valid UTF-8 before this place", err);
    return NIB_OK;
}

nib_status json_text_number(json_text *j, double *out, nib_error *err) {
    char digits[64];
    size_t n = 0;
    json_text_peek(j);
    while (j->p < j->end && n < sizeof digits - 1 && *j->p && strchr("+-.0123456789eE", *j->p))
        digits[n++] = *j->p++;
    digits[n] = 0;
    /* Not strtod alone: it depends on the locale and accepts more than JSON allows. */
    char *stop;
    bool integer = n > 0 && n < 16 && !strpbrk(digits, ".eE+");
    *out = integer ? (double)strtoll(digits, &stop, 10) : strtod(digits, &stop);
    if (!n || *stop)
        return fail(j, "a number", err);
    return NIB_OK;
}

static nib_status skip_scalar(json_text *j, nib_error *err) {
    static const char *const words[] = {"true", "false", "null"};
    char c = json_text_peek(j);
    if (c == '"') {
        for (j->p++; j->p < j->end && *j->p != '"'; j->p++)
            if (*j->p == '\\')
                j->p++;
        if (j->p >= j->end)
            return fail(j, "the end of a string", err);
        j->p++;
        return NIB_OK;
    }
    for (size_t i = 0; i < 3; i++) {
        size_t n = strlen(words[i]);
        if ((size_t)(j->end - j->p) >= n && memcmp(j->p, words[i], n) == 0) {
            j->p += n;
            return NIB_OK;
        }
    }
    double number;
    return json_text_number(j, &number, err);
}

/* Only counts brackets: skipped values are not validated here. */
nib_status json_text_skip(json_text *j, nib_error *err) {
    int depth = 0;
    do {
        char c = json_text_peek(j);
        if (c == '{' || c == '[') {
            if (++depth > DEPTH_MAX)
                return fail(j, "at most 64 levels", err);
            j->p++;
        } else if (c == '}' || c == ']') {
            if (--depth < 0)
                return fail(j, "a value", err);
            j->p++;
        } else if (depth && (c == ',' || c == ':')) {
            j->p++;
        } else {
            NIB_TRY(skip_scalar(j, err));
        }
    } while (depth);
    return NIB_OK;
}

nib_status json_text_next(json_text *j, char close, bool *first, bool *more, nib_error *err) {
    char c = json_text_peek(j);
    *more = c != close;
    if (c == close)
        j->p++;
    else if (!*first)
        NIB_TRY(json_text_expect(j, ',', err));
    *first = false;
    return NIB_OK;
}

/* Finds the member `key` of the object at j. */
static nib_status find_member(json_text j, const char *key, json_text *out, nib_error *err) {
    text_buffer name = {0};
    bool first = true, more = false;
    nib_status status = json_text_expect(&j, '{', err);
    out->begin = NULL;
    while (status == NIB_OK && (status = json_text_next(&j, '}', &first, &more, err)) == NIB_OK && more) {
        status = json_text_string(&j, &name, err);
        if (status == NIB_OK)
            status = json_text_expect(&j, ':', err);
        json_text_peek(&j);
        const char *value = j.p;
        if (status == NIB_OK)
            status = json_text_skip(&j, err);
        if (status != NIB_OK || name.n != strlen(key) || memcmp(name.data, key, name.n) != 0)
            continue;
        if (out->begin)
            status = nib_fail(err, NIB_E_MODEL, "JSON: expected '%s' once, found it twice", key);
        *out = (json_text){value, value, j.p};
    }
    text_buffer_clear(&name);
    return status;
}

nib_status json_text_find(const char *text, size_t n_byte, const char *outer, const char *inner,
                          json_text *out, nib_error *err) {
    json_text middle;
    out->begin = NULL;
    NIB_TRY(find_member((json_text){text, text, text + n_byte}, outer, &middle, err));
    return middle.begin ? find_member(middle, inner, out, err) : NIB_OK;
}
