/* schema_class.c - see schema_class.h. */
#include "grammar/schema_class.h"

#include "base/num.h"

#include <stdio.h>
#include <string.h>

void char_class_add(char_class *c, uint32_t lo, uint32_t hi) {
    if (c->n == CLASS_MAX_RANGES)
        c->full = true;
    else if (lo <= hi)
        c->of[c->n++] = (char_range){lo, hi};
}

void char_class_invert(char_class *c) {
    char_range gaps[CLASS_MAX_RANGES + 1];
    c->n = char_ranges_merge(c->of, c->n);
    const size_t n = char_ranges_gaps(c->of, c->n, gaps);
    c->n = 0;
    for (size_t i = 0; i < n; i++)
        char_class_add(c, gaps[i].lo, gaps[i].hi);
}

static bool has(const char_class *c, uint32_t x) {
    for (size_t i = 0; i < c->n; i++)
        if (x >= c->of[i].lo && x <= c->of[i].hi)
            return true;
    return false;
}

bool char_class_add_named(char_class *c, char name) {
    static const char_range digits[] = {{'0', '9'}},
                            words[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
                            spaces[] = {{9, 13},          {' ', ' '},       {0xa0, 0xa0},
                                        {0x1680, 0x1680}, {0x2000, 0x200a}, {0x2028, 0x2029},
                                        {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000},
                                        {0xfeff, 0xfeff}};
    const char kind = (char)(name | 0x20);
    const char_range *from = kind == 'd' ? digits : kind == 'w' ? words : spaces;
    const size_t n = kind == 'd' ? NUM_COUNT(digits) : kind == 'w' ? NUM_COUNT(words) : NUM_COUNT(spaces);
    if (kind != 'd' && kind != 'w' && kind != 's')
        return false;
    if (name == kind) {
        for (size_t i = 0; i < n; i++)
            char_class_add(c, from[i].lo, from[i].hi);
        return true;
    }
    uint32_t next = 0;
    for (size_t i = 0; i < n; next = from[i++].hi + 1)
        char_class_add(c, next, from[i].lo - 1);
    char_class_add(c, next, CHAR_LAST);
    return true;
}

/* Whether the character is written as it is: no control character, quotation mark or backslash. */
static bool char_is_plain(uint32_t c) {
    return c >= 0x20 && c != '"' && c != '\\' && c != 0x7f;
}

/* Writes a character that JSON escapes. */
static void put_escaped(writer *w, uint32_t c) {
    static const char named[][2] = {{'"', '"'},  {'\\', '\\'}, {'\b', 'b'}, {'\f', 'f'},
                                    {'\n', 'n'}, {'\r', 'r'},  {'\t', 't'}};
    char text[8];
    snprintf(text, sizeof text, "\\u%04x", (unsigned)c);
    for (size_t i = 0; i < NUM_COUNT(named); i++)
        if ((uint32_t)named[i][0] == c)
            snprintf(text, sizeof text, "\\%c", named[i][1]);
    writer_literal(w, text, strlen(text));
}

/* Writes the ranges without characters that JSON escapes and without surrogates. */
static bool put_plain(writer *w, const char_class *c) {
    static const char_range not_plain[] = {
        {0, 0x1f}, {'"', '"'}, {'\\', '\\'}, {0x7f, 0x7f}, {CHAR_FIRST_SURROGATE, CHAR_LAST_SURROGATE}};
    bool some = false;
    for (size_t i = 0; i < c->n; i++) {
        uint32_t lo = c->of[i].lo;
        const uint32_t hi = NUM_MIN(c->of[i].hi, (uint32_t)CHAR_LAST);
        for (size_t k = 0; k <= NUM_COUNT(not_plain) && lo <= hi; k++) {
            const char_range gap =
                k < NUM_COUNT(not_plain) ? not_plain[k] : (char_range){CHAR_LAST + 1, CHAR_LAST + 1};
            const uint32_t end = NUM_MIN(hi, gap.lo ? gap.lo - 1 : 0);
            if (gap.lo > lo) {
                writer_put(w, some ? "" : "[");
                writer_class_char(w, lo);
                writer_put(w, "-");
                writer_class_char(w, end);
                some = true;
            }
            lo = gap.lo <= hi ? NUM_MAX(lo, gap.hi + 1) : lo;
            if (gap.lo > hi)
                break;
        }
    }
    writer_put(w, some ? "]" : "");
    return some;
}

bool char_class_put(writer *w, char_class *c) {
    c->n = char_ranges_merge(c->of, c->n);
    writer_put(w, "(");
    bool some = put_plain(w, c);
    const bool all = !some;
    for (uint32_t x = 0; x <= 0x7f; x++) {
        if (char_is_plain(x) || !has(c, x) || (!all && !strchr("\"\\\n\r\t", (int)x)) || (!all && x == 0))
            continue;
        writer_put(w, some ? " | " : "");
        put_escaped(w, x);
        some = true;
    }
    writer_put(w, ")");
    return some;
}

void char_put(writer *w, uint32_t c) {
    if (!char_is_plain(c)) {
        put_escaped(w, c);
        return;
    }
    writer_put(w, "[");
    writer_class_char(w, c);
    writer_put(w, "]");
}
