/* value.c - functions of value.h that need no render: names of types, UTF-8. */
#include "jinja/value.h"

#include <string.h>

const char *tpl_type_name(tpl_type t) {
    static const char *const names[] = {
#define TPL_X(id, name) name,
        TPL_TYPES(TPL_X)
#undef TPL_X
    };
    return names[t];
}

uint32_t tpl_utf8_next(const char **p, const char *end) {
    const unsigned char *s = (const unsigned char *)*p;
    size_t left = (size_t)(end - *p);
    unsigned char c = s[0];
    *p += 1;
    if (c < 0x80)
        return c;
    int more = c >= 0xc2 && c < 0xe0 ? 1 : c >= 0xe0 && c < 0xf0 ? 2 : c >= 0xf0 && c < 0xf5 ? 3 : 0;
    if (!more || left <= (size_t)more)
        return 0xfffd;
    uint32_t code = c & (0x3fu >> more);
    for (int i = 1; i <= more; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 0xfffd;
        code = code << 6 | (s[i] & 0x3f);
    }
    if ((more == 2 && (code < 0x800 || (code >= 0xd800 && code < 0xe000))) ||
        (more == 3 && (code < 0x10000 || code > 0x10ffff)))
        return 0xfffd;
    *p += more;
    return code;
}

size_t tpl_utf8_put(char *out, uint32_t code) {
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (char)(0xc0 | code >> 6);
        out[1] = (char)(0x80 | (code & 0x3f));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (char)(0xe0 | code >> 12);
        out[1] = (char)(0x80 | (code >> 6 & 0x3f));
        out[2] = (char)(0x80 | (code & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | code >> 18);
    out[1] = (char)(0x80 | (code >> 12 & 0x3f));
    out[2] = (char)(0x80 | (code >> 6 & 0x3f));
    out[3] = (char)(0x80 | (code & 0x3f));
    return 4;
}

size_t tpl_utf8_count(const char *s, size_t n) {
    size_t count = 0;
    if (n == 0) /* s may be NULL */
        return 0;
    for (const char *p = s, *end = s + n; p < end; count++) {
        if ((unsigned char)*p < 0x80)
            p++;
        else
            tpl_utf8_next(&p, end);
    }
    return count;
}

size_t tpl_utf8_offset(const tpl_str *s, size_t index) {
    if (s->n == s->n_char)
        return index;
    const char *p = s->data, *end = s->data + s->n;
    while (index-- && p < end)
        tpl_utf8_next(&p, end);
    return (size_t)(p - s->data);
}

bool tpl_is_space(uint32_t c) {
    return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
           c == 0x3000;
}

bool tpl_str_is(const tpl_str *s, const char *text) {
    size_t n = strlen(text);
    return s->n == n && memcmp(s->data, text, n) == 0;
}

bool tpl_str_same(const tpl_str *a, const tpl_str *b) {
    return a->n == b->n && (a->data == b->data || memcmp(a->data, b->data, a->n) == 0);
}
