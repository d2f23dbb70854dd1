/* jsonx_parse.c - text to jansson's values. jansson 2.14's own parser ignores failed allocations: it omits a
 * character, or reads past its buffer. This one makes values by calls that report failures. It also reads
 * integers beyond 64 bits as floats, because real files have them ("model_max_length":
 * 1000000000000000019884624838656). */
#include "base/jsonx.h"
#include "base/mem.h"
#include "base/num.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

typedef struct parser {
    const char *begin, *p, *end;
    char *copy; /* as long as the text; a string with escapes is decoded into its own place. NULL: not needed
                   yet */
    int depth;
    nib_status status; /* of the first fault */
    nib_error *err;
} parser;

/* ---- faults; all return false ---- */

static bool fail_at(parser *s, const char *at, const char *expected) {
    int line = 1, column = 1;
    char found[32] = "the end";
    for (const char *c = s->begin; c < at; c++) {
        line += *c == '\n';
        column = *c == '\n' ? 1 : column + 1;
    }
    if (at < s->end)
        snprintf(found, sizeof found, (unsigned char)*at < 0x7f ? "'%c'" : "byte 0x%02X", (unsigned char)*at);
    s->status = nib_fail(s->err, NIB_E_MODEL, "JSON: line %d, column %d: expected %s, found %s", line, column,
                         expected, found);
    return false;
}

static bool fail(parser *s, const char *expected) {
    return fail_at(s, s->p, expected);
}

static bool no_memory(parser *s, size_t n_byte) {
    s->status = nib_fail_nomem(s->err, n_byte, "JSON values");
    return false;
}

/* ---- scalars ---- */

static bool is_space(char c) {
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static char peek(parser *s) {
    while (s->p < s->end && is_space(*s->p))
        s->p++;
    return s->p < s->end ? *s->p : 0;
}

static bool take(parser *s, char c) {
    const bool here = peek(s) == c && s->p < s->end;
    s->p += here;
    return here;
}

/* The part of `copy` that belongs to a place in the text. */
static char *copy_at(parser *s, const char *at) {
    const size_t n_byte = (size_t)(s->end - s->begin) + 1;
    if (!s->copy && !(s->copy = mem_alloc(n_byte)))
        no_memory(s, n_byte);
    return s->copy ? s->copy + (at - s->begin) : NULL;
}

/* Four hexadecimal digits at `at`; -1: they are something else. */
static int32_t hex4(const parser *s, const char *at) {
    return s->end - at < 4 ? -1 : (int32_t)num_hex(at, 4);
}

/* Decodes the digits after "\u", with those of the second half of a pair. */
static bool read_code(parser *s, char **out) {
    const char *at = s->p - 2;
    int32_t code = hex4(s, s->p);
    s->p += 4;
    if (code >= 0xD800 && code < 0xE000) {
        const bool pair = code < 0xDC00 && s->end - s->p >= 6 && s->p[0] == '\\' && s->p[1] == 'u';
        const int32_t low = pair ? hex4(s, s->p + 2) : -1;
        s->p += 6;
        code = low >= 0xDC00 && low < 0xE000 ? 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00) : -1;
    }
    if (code < 0)
        return fail_at(s, at, "an escape of a Unicode character");
    *out += utf8proc_encode_char(code, (utf8proc_uint8_t *)*out);
    return true;
}

static bool read_escape(parser *s, char **out) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char c = s->p + 1 < s->end ? s->p[1] : 0;
    const char *known = c ? strchr(from, c) : NULL;
    if (!known && c != 'u')
        return fail(s, "an escape");
    s->p += 2;
    if (!known)
        return read_code(s, out);
    *(*out)++ = to[known - from];
    return true;
}

static bool is_plain(const parser *s) {
    return s->p < s->end && *s->p != '"' && *s->p != '\\' && (unsigned char)*s->p >= 0x20;
}

/* Reads to the end of a string that has escapes. */
static bool read_escaped(parser *s, const char *begin, const char **text, size_t *n) {
    char *out = copy_at(s, begin);
    if (!out)
        return false;
    *text = out;
    memcpy(out, begin, (size_t)(s->p - begin));
    out += s->p - begin;
    while (s->p < s->end && (unsigned char)*s->p >= 0x20 && *s->p != '"') {
        if (*s->p != '\\')
            *out++ = *s->p++;
        else if (!read_escape(s, &out))
            return false;
    }
    *n = (size_t)(out - *text);
    return true;
}

static bool is_utf8(const char *text, size_t n) {
    for (size_t i = 0; i < n;) {
        utf8proc_int32_t code;
        const utf8proc_ssize_t wide =
            (unsigned char)text[i] < 0x80
                ? 1
                : utf8proc_iterate((const uint8_t *)text + i, (utf8proc_ssize_t)(n - i), &code);
        if (wide <= 0)
            return false;
        i += (size_t)wide;
    }
    return true;
}

/* A string's content, in the text or in the copy. */
static bool read_string(parser *s, const char **text, size_t *n) {
    if (!take(s, '"'))
        return fail(s, "a string");
    const char *begin = *text = s->p;
    while (is_plain(s))
        s->p++;
    *n = (size_t)(s->p - begin);
    if (s->p < s->end && *s->p == '\\' && !read_escaped(s, begin, text, n))
        return false;
    if (s->p == s->end || *s->p != '"')
        return fail(s, "the end of a string");
    s->p++;
    return is_utf8(*text, *n) || fail_at(s, begin, "UTF-8 in a string that begins here");
}

/* Skips digits; false: there are none. */
static bool skip_digits(parser *s) {
    const char *begin = s->p;
    while (s->p < s->end && *s->p >= '0' && *s->p <= '9')
        s->p++;
    return s->p > begin;
}

/* Skips a number by JSON's grammar. */
static bool skip_number(parser *s, bool *integer) {
    s->p += *s->p == '-';
    const char *begin = s->p;
    if (!skip_digits(s) || (*begin == '0' && s->p > begin + 1))
        return fail_at(s, begin, "a number");
    *integer = true;
    if (s->p < s->end && *s->p == '.') {
        *integer = false;
        s->p++;
        if (!skip_digits(s))
            return fail(s, "a digit");
    }
    if (s->p < s->end && (*s->p == 'e' || *s->p == 'E')) {
        *integer = false;
        s->p++;
        s->p += s->p < s->end && (*s->p == '+' || *s->p == '-');
        if (!skip_digits(s))
            return fail(s, "a digit");
    }
    return true;
}

static json_t *read_number(parser *s) {
    const char *begin = s->p;
    char small[64], *digits = small;
    bool integer = false;
    if (!skip_number(s, &integer))
        return NULL;
    const size_t n = (size_t)(s->p - begin);
    if (n >= sizeof small && !(digits = copy_at(s, begin)))
        return NULL;
    memcpy(digits, begin, n);
    digits[n] = 0;
    errno = 0;
    if (integer) {
        const long long value = strtoll(digits, NULL, 10);
        if (errno == 0)
            return json_integer(value);
        errno = 0;
    }
    char *point = strchr(digits, '.');
    if (point) /* strtod depends on the locale */
        *point = *localeconv()->decimal_point;
    const double value = strtod(digits, NULL);
    if (isinf(value))
        fail_at(s, begin, "a number within the range of a double");
    return json_real(value);
}

static json_t *read_word(parser *s) {
    const struct {
        const char *word;
        json_t *value;
    } words[] = {{"true", json_true()}, {"false", json_false()}, {"null", json_null()}};
    for (size_t i = 0; i < NUM_COUNT(words); i++) {
        const size_t n = strlen(words[i].word);
        if ((size_t)(s->end - s->p) >= n && !memcmp(s->p, words[i].word, n)) {
            s->p += n;
            return words[i].value;
        }
    }
    fail(s, "a value");
    return NULL;
}

/* ---- values; NULL: s->status has the fault, or memory ran out ---- */

static json_t *read_value(parser *s);

static bool read_element(parser *s, json_t *list) {
    return jsonx_add(list, read_value(s));
}

static bool read_member(parser *s, json_t *object) {
    const char *begin = s->p, *key = "";
    size_t n = 0;
    if (!read_string(s, &key, &n))
        return false;
    if (memchr(key, 0, n))
        return fail_at(s, begin, "a key without NUL");
    if (json_object_getn(object, key, n))
        return fail_at(s, begin, "no duplicate key");
    if (!take(s, ':'))
        return fail(s, "':'");
    return json_object_setn_new_nocheck(object, key, n, read_value(s)) == 0;
}

/* Reads an object or a list, after its first bracket. */
static json_t *read_members(parser *s, json_t *owner, char close,
                            bool (*read_one)(parser *s, json_t *owner)) {
    bool good = owner != NULL;
    if (++s->depth > JSONX_MAX_DEPTH) {
        s->status =
            nib_fail(s->err, NIB_E_MODEL, "JSON: expected at most %d levels, found more", JSONX_MAX_DEPTH);
        good = false;
    }
    if (good && !take(s, close))
        do {
            peek(s);
            good = read_one(s, owner);
        } while (good && take(s, ','));
    else
        close = 0;
    if (good && close && !take(s, close))
        good = fail(s, close == '}' ? "',' or '}'" : "',' or ']'");
    s->depth--;
    return jsonx_whole(owner, good);
}

static json_t *read_value(parser *s) {
    const char *text = "";
    size_t n = 0;
    const char c = peek(s);
    if (c == '{' || c == '[')
        s->p++;
    if (c == '{')
        return read_members(s, json_object(), '}', read_member);
    if (c == '[')
        return read_members(s, json_array(), ']', read_element);
    if (c == '"')
        return read_string(s, &text, &n) ? json_stringn_nocheck(text, n) : NULL;
    return c == '-' || (c >= '0' && c <= '9') ? read_number(s) : read_word(s);
}

/* ---- the cost ---- */

static size_t string_end(const char *text, size_t n, size_t i) {
    for (i++; i < n && text[i] != '"'; i++)
        if (text[i] == '\\')
            i++;
    return i < n ? i + 1 : n;
}

enum { COPY_HEAD = 32 }; /* of the allocator */

uint64_t jsonx_cost(const char *text, size_t n) {
    uint64_t heap = n && memchr(text, '\\', n) ? n + COPY_HEAD : 0;
    for (size_t i = 0; i < n;) {
        const size_t start = i;
        const char c = text[i++];
        if (c == '"') {
            i = string_end(text, n, start);
            heap += JSONX_COST_STRING + (i - start);
        } else if (c >= '0' && c <= '9') {
            while (i < n && text[i] >= '0' && text[i] <= '9')
                i++;
            heap += JSONX_COST_NUMBER;
        } else if (c == '{' || c == '[') {
            heap += c == '{' ? JSONX_COST_OBJECT : JSONX_COST_ARRAY;
        } else if (c == ',') {
            heap += JSONX_COST_PLACE;
        }
    }
    return heap;
}

static nib_status check_cost(const char *text, size_t n, nib_error *err) {
    char need[32], max[32];
    if (n > JSONX_MAX_TEXT)
        return nib_fail(err, NIB_E_MODEL, "JSON: expected at most %d bytes, found %zu", JSONX_MAX_TEXT, n);
    const uint64_t heap = jsonx_cost(text, n);
    if (heap > JSONX_MAX_HEAP)
        return nib_fail(err, NIB_E_MODEL, "JSON: expected values that take at most %s of memory, found %s",
                        num_format_size(JSONX_MAX_HEAP, max), num_format_size(heap, need));
    if (!mem_bound_take(heap))
        return nib_fail_nomem(err, heap, "JSON values");
    mem_bound_except((int64_t)heap); /* the values are counted as they are made */
    return NIB_OK;
}

nib_status jsonx_parse_first(const char *text, size_t n_byte, json_t **out, size_t *n_read, nib_error *err) {
    parser s = {.begin = text, .p = text, .end = text + n_byte, .err = err};
    NIB_TRY(check_cost(text, n_byte, err));
    json_t *value = read_value(&s);
    if (value && !n_read && (peek(&s), s.p < s.end))
        fail(&s, "the end");
    if (!value && s.status == NIB_OK)
        no_memory(&s, n_byte);
    mem_free(s.copy);
    if (s.status != NIB_OK) {
        json_decref(value);
        return s.status;
    }
    if (n_read)
        *n_read = (size_t)(s.p - text);
    *out = value;
    return NIB_OK;
}

nib_status jsonx_parse(const char *text, size_t n_byte, json_t **out, nib_error *err) {
    return jsonx_parse_first(text, n_byte, out, NULL, err);
}

/* ---- sources ---- */

/* Whether `value` is `at` or inside it. *n: grows by the values before it, in the text's order. */
static bool count_before(const json_t *at, const json_t *value, size_t *n) {
    const char *key;
    json_t *member;
    size_t i;
    if (at == value)
        return true;
    ++*n;
    json_object_foreach(jsonx_counted(at), key, member) {
        if (count_before(member, value, n))
            return true;
    }
    json_array_foreach(at, i, member) {
        if (count_before(member, value, n))
            return true;
    }
    return false;
}

static bool ends_value(char c) {
    return is_space(c) || c == ',' || c == ']' || c == '}';
}

/* The end of the token at text[i]: a bracket, a scalar, a key with its colon, or a character between them. */
static size_t token_end(const char *text, size_t n, size_t i, bool *is_value) {
    *is_value = !ends_value(text[i]);
    if (text[i] == '"') {
        size_t colon = i = string_end(text, n, i);
        while (colon < n && is_space(text[colon]))
            colon++;
        *is_value = colon == n || text[colon] != ':';
        return *is_value ? i : colon + 1;
    }
    const bool scalar = *is_value && text[i] != '{' && text[i] != '[';
    i++;
    while (scalar && i < n && !ends_value(text[i]))
        i++;
    return i;
}

static size_t brackets_end(const char *text, size_t n, size_t i) {
    size_t depth = 0;
    do {
        const char c = text[i];
        depth += c == '{' || c == '[';
        depth -= c == '}' || c == ']';
        i = c == '"' ? string_end(text, n, i) : i + 1;
    } while (i < n && depth);
    return i;
}

const char *jsonx_source(const char *text, size_t n_byte, const json_t *root, const json_t *value,
                         size_t *n_source) {
    size_t before = 0;
    bool is_value;
    if (!count_before(root, value, &before))
        return NULL;
    for (size_t i = 0, end; i < n_byte; i = end) {
        end = token_end(text, n_byte, i, &is_value);
        if (is_value && before-- == 0) {
            *n_source = brackets_end(text, n_byte, i) - i;
            return text + i;
        }
    }
    return NULL;
}
