/* schema_pattern.c - the `pattern` of a string, a regular expression of ECMA-262, as a grammar over the JSON
 * of such strings.
 *
 * What is regular is taken: characters and classes of them, groups, alternatives, repetitions (lazy or not:
 * they have the same texts), and anchors at the ends of the whole. A pattern without an anchor is found
 * anywhere, as JSON Schema has it. Quotation marks, backslashes and control characters of a match are written
 * as JSON escapes them; of all ways to write a character that needs no escape only the plain one is allowed.
 */
#include "grammar/schema_parts.h"

#include "base/mem.h"
#include "base/num.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_DEPTH = 64,   /* groups in groups */
    MAX_RANGES = 512, /* of one class */
    LAST_CHAR = 0x10ffff,
    FIRST_SURROGATE = 0xd800,
    LAST_SURROGATE = 0xdfff
};

typedef struct range {
    uint32_t lo, hi;
} range;

typedef struct char_class {
    range of[MAX_RANGES];
    size_t n;
    bool full;
} char_class;

typedef struct pattern {
    schema_maker *m;
    const char *at; /* what is left */
    int depth;
    writer *out;
    char_class *class; /* the one that is read */
    nib_status status; /* the first error */
} pattern;

static void refuse(pattern *p, const char *what) {
    if (p->status == NIB_OK)
        p->status = schema_refuse(p->m, "'pattern': %s, at '%.20s'", what, p->at);
}

/* ---- classes ---- */

static void add(char_class *c, uint32_t lo, uint32_t hi) {
    if (c->n == MAX_RANGES)
        c->full = true;
    else if (lo <= hi)
        c->of[c->n++] = (range){lo, hi};
}

static int by_first(const void *a, const void *b) {
    const range *x = a, *y = b;
    return x->lo < y->lo ? -1 : x->lo > y->lo;
}

/* Sorted, without what overlaps. */
static void tidy(char_class *c) {
    size_t n = 0;
    qsort(c->of, c->n, sizeof *c->of, by_first);
    for (size_t i = 0; i < c->n; i++)
        if (n > 0 && c->of[i].lo <= c->of[n - 1].hi + 1)
            c->of[n - 1].hi = NUM_MAX(c->of[n - 1].hi, c->of[i].hi);
        else
            c->of[n++] = c->of[i];
    c->n = n;
}

static void complement(char_class *c) {
    uint32_t next = 0;
    size_t n = 0;
    range out[MAX_RANGES + 1];
    tidy(c);
    for (size_t i = 0; i < c->n; i++) {
        if (c->of[i].lo > next)
            out[n++] = (range){next, c->of[i].lo - 1};
        next = c->of[i].hi + 1;
    }
    if (next <= LAST_CHAR)
        out[n++] = (range){next, LAST_CHAR};
    c->n = 0;
    for (size_t i = 0; i < n; i++)
        add(c, out[i].lo, out[i].hi);
}

static bool has(const char_class *c, uint32_t x) {
    for (size_t i = 0; i < c->n; i++)
        if (x >= c->of[i].lo && x <= c->of[i].hi)
            return true;
    return false;
}

/* \d \w \s and what they leave out. False: it is none of them. */
static bool add_named(char_class *to, char name) {
    static const range digits[] = {{'0', '9'}}, words[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
                       spaces[] = {{9, 13},          {' ', ' '},       {0xa0, 0xa0},     {0x1680, 0x1680},
                                   {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f},
                                   {0x3000, 0x3000}, {0xfeff, 0xfeff}};
    const char kind = (char)(name | 0x20);
    const range *from = kind == 'd' ? digits : kind == 'w' ? words : spaces;
    const size_t n = kind == 'd' ? NUM_COUNT(digits) : kind == 'w' ? NUM_COUNT(words) : NUM_COUNT(spaces);
    if (kind != 'd' && kind != 'w' && kind != 's')
        return false;
    if (name == kind) {
        for (size_t i = 0; i < n; i++)
            add(to, from[i].lo, from[i].hi);
        return true;
    }
    uint32_t next = 0;
    for (size_t i = 0; i < n; next = from[i++].hi + 1)
        add(to, next, from[i].lo - 1);
    add(to, next, LAST_CHAR);
    return true;
}

/* ---- writing ---- */

static bool is_plain(uint32_t c) {
    return c >= 0x20 && c != '"' && c != '\\' && c != 0x7f;
}

/* One that JSON escapes. */
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

/* Ranges without what JSON escapes, and without halves of characters. */
static bool put_plain(writer *w, const char_class *c) {
    static const range not_plain[] = {
        {0, 0x1f}, {'"', '"'}, {'\\', '\\'}, {0x7f, 0x7f}, {FIRST_SURROGATE, LAST_SURROGATE}};
    bool some = false;
    for (size_t i = 0; i < c->n; i++) {
        uint32_t lo = c->of[i].lo;
        const uint32_t hi = NUM_MIN(c->of[i].hi, (uint32_t)LAST_CHAR);
        for (size_t k = 0; k <= NUM_COUNT(not_plain) && lo <= hi; k++) {
            const range gap = k < NUM_COUNT(not_plain) ? not_plain[k] : (range){LAST_CHAR + 1, LAST_CHAR + 1};
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

/* The class that was read, as one expression in brackets. Of control characters without a name of their own
 * those alone are written that a class without plain ones has. */
static void put_class(pattern *p) {
    char_class *c = p->class;
    writer_put(p->out, "(");
    tidy(c);
    bool some = put_plain(p->out, c);
    const bool all = !some;
    for (uint32_t x = 0; x <= 0x7f; x++) {
        if (is_plain(x) || !has(c, x) || (!all && !strchr("\"\\\n\r\t", (int)x)) || (!all && x == 0))
            continue;
        writer_put(p->out, some ? " | " : "");
        put_escaped(p->out, x);
        some = true;
    }
    writer_put(p->out, ")");
    if (c->full)
        refuse(p, "a class has too many ranges");
    else if (!some)
        refuse(p, "a class has no characters");
}

/* ---- reading ---- */

static bool read_hex(pattern *p, int n, uint32_t *out) {
    uint32_t x = 0;
    for (int i = 0; i < n; i++) {
        const char c = p->at[i];
        const int digit = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : -1;
        if (digit < 0)
            return false;
        x = x << 4 | (uint32_t)digit;
    }
    p->at += n;
    *out = x;
    return true;
}

/* \u{1F600}, \uD83D\uDE00, \u00e9 behind the u. */
static bool read_code(pattern *p, uint32_t *out) {
    uint32_t low;
    if (*p->at == '{') {
        const char *end = strchr(p->at, '}');
        const int n = end ? (int)NUM_MIN(end - p->at - 1, 9) : 0;
        p->at++;
        if (n < 1 || n > 6 || !read_hex(p, n, out) || *out > LAST_CHAR)
            return false;
        p->at++;
        return true;
    }
    if (!read_hex(p, 4, out))
        return false;
    if (*out >= FIRST_SURROGATE && *out < 0xdc00 && p->at[0] == '\\' && p->at[1] == 'u') {
        p->at += 2;
        if (!read_hex(p, 4, &low) || low < 0xdc00 || low > LAST_SURROGATE)
            return false;
        *out = 0x10000 + ((*out - FIRST_SURROGATE) << 10) + (low - 0xdc00);
    }
    return *out < FIRST_SURROGATE || *out > LAST_SURROGATE;
}

/* Behind a backslash: one character, or what the class gets; false: neither. */
static bool read_escape(pattern *p, bool in_class, uint32_t *out, bool *named) {
    static const char letters[] = "nrtfv0", meant[] = "\n\r\t\f\v";
    const char c = *p->at;
    const char *letter = c ? strchr(letters, c) : NULL;
    *named = add_named(p->class, c);
    if (*named) {
        p->at++;
        return true;
    }
    if (c == 'b' && in_class) {
        *out = '\b';
        p->at++;
        return true;
    }
    if (c == 'u' || c == 'x') {
        p->at++;
        if (c == 'u' ? read_code(p, out) : read_hex(p, 2, out))
            return true;
        refuse(p, "expected the number of a character");
        return false;
    }
    if (letter && !(c == '0' && p->at[1] >= '0' && p->at[1] <= '9')) {
        *out = (uint32_t)meant[letter - letters];
        p->at++;
        return true;
    }
    if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == 0) {
        refuse(p, "this escape is not supported (references, borders of words, properties of characters)");
        return false;
    }
    size_t n;
    *out = schema_char_at(p->at, &n);
    p->at += n;
    return true;
}

static bool read_member(pattern *p, uint32_t *out, bool *named) {
    size_t n;
    *named = false;
    if (*p->at == '\\') {
        p->at++;
        return read_escape(p, true, out, named);
    }
    *out = schema_char_at(p->at, &n);
    p->at += n;
    return true;
}

/* Behind "[". */
static void read_class(pattern *p) {
    const bool out_of = *p->at == '^';
    p->class->n = 0;
    p->at += out_of;
    while (*p->at && *p->at != ']' && p->status == NIB_OK) {
        uint32_t lo = 0, hi = 0;
        bool named, other;
        if (!read_member(p, &lo, &named))
            return;
        hi = lo;
        if (p->at[0] == '-' && p->at[1] && p->at[1] != ']') {
            p->at++;
            if (!read_member(p, &hi, &other))
                return;
            if (named || other || hi < lo)
                refuse(p, "a range of a class has no order");
        }
        if (!named)
            add(p->class, lo, hi);
    }
    if (*p->at != ']') {
        refuse(p, "a class has no end");
        return;
    }
    p->at++;
    if (out_of)
        complement(p->class);
    put_class(p);
}

static void put_char(pattern *p, uint32_t c) {
    if (!is_plain(c)) {
        put_escaped(p->out, c);
        return;
    }
    writer_put(p->out, "[");
    writer_class_char(p->out, c);
    writer_put(p->out, "]");
}

static void read_alternatives(pattern *p);

/* Behind "(". */
static void read_group(pattern *p) {
    if (p->at[0] == '?' && p->at[1] == ':') {
        p->at += 2;
    } else if (p->at[0] == '?' && p->at[1] == '<' && p->at[2] != '=' && p->at[2] != '!') {
        p->at += strcspn(p->at, ">");
        p->at += *p->at == '>';
    } else if (p->at[0] == '?') {
        refuse(p, "flags, and what looks ahead or behind, are not supported");
    }
    if (++p->depth > MAX_DEPTH)
        refuse(p, "groups are too deep");
    writer_put(p->out, "(");
    read_alternatives(p);
    writer_put(p->out, ")");
    p->depth--;
    if (*p->at != ')')
        refuse(p, "a group has no end");
    else
        p->at++;
}

/* {m}, {m,} or {m,n}; false: it is no such thing, and stands for itself. */
static bool read_count(pattern *p, char out[32]) {
    char *end;
    const char *from = p->at + 1;
    if (*from < '0' || *from > '9')
        return false;
    const unsigned long lo = strtoul(from, &end, 10);
    unsigned long hi = lo;
    bool open = false;
    if (*end == ',') {
        from = end + 1;
        open = *from == '}';
        if (!open && (*from < '0' || *from > '9'))
            return false;
        hi = open ? lo : strtoul(from, &end, 10);
        end += open;
    }
    if (*end != '}')
        return false;
    p->at = end + 1;
    if (lo > 65535 || hi > 65535 || hi < lo)
        refuse(p, "expected a repetition of at most 65535, the smaller number first");
    if (open)
        snprintf(out, 32, "{%lu,}", lo);
    else
        snprintf(out, 32, "{%lu,%lu}", lo, hi);
    return true;
}

static void read_repetition(pattern *p) {
    char count[32] = "";
    if (*p->at == '*' || *p->at == '+' || *p->at == '?')
        snprintf(count, sizeof count, "%c", *p->at++);
    else if (*p->at != '{' || !read_count(p, count))
        return;
    writer_put(p->out, "%s", count);
    p->at += *p->at == '?'; /* the same texts, another order of trying */
    if (*p->at == '*' || *p->at == '+' || *p->at == '?')
        refuse(p, "nothing to repeat");
}

static void read_atom(pattern *p) {
    uint32_t c = 0;
    size_t n;
    bool named = false;
    switch (*p->at) {
    case '(':
        p->at++;
        read_group(p);
        return;
    case '[':
        p->at++;
        read_class(p);
        return;
    case '.':
        p->at++;
        p->class->n = 0;
        add(p->class, '\n', '\n');
        add(p->class, '\r', '\r');
        add(p->class, 0x2028, 0x2029);
        complement(p->class);
        put_class(p);
        return;
    case '*':
    case '+':
    case '?': refuse(p, "nothing to repeat"); return;
    case '^':
    case '$': refuse(p, "an anchor is supported at the ends of the pattern only"); return;
    case '\\':
        p->at++;
        p->class->n = 0;
        if (read_escape(p, false, &c, &named) && named)
            put_class(p);
        else if (p->status == NIB_OK)
            put_char(p, c);
        return;
    default:
        c = schema_char_at(p->at, &n);
        p->at += n;
        put_char(p, c);
    }
}

static bool ends(const pattern *p) {
    return p->status != NIB_OK || !*p->at || *p->at == '|' || (*p->at == ')' && p->depth > 0) ||
           (*p->at == '$' && p->depth == 0 && (!p->at[1] || p->at[1] == '|'));
}

static void read_sequence(pattern *p) {
    bool some = false;
    for (; !ends(p); some = true) {
        if (*p->at == ')')
            refuse(p, "a group has no beginning");
        else
            read_atom(p);
        if (p->status == NIB_OK)
            read_repetition(p);
        writer_put(p->out, " ");
    }
    writer_put(p->out, some ? "" : "\"\"");
}

static void read_alternatives(pattern *p) {
    for (;;) {
        read_sequence(p);
        if (p->status != NIB_OK || *p->at != '|')
            return;
        writer_put(p->out, " | ");
        p->at++;
    }
}

/* The whole: what is not anchored may have anything before it, or behind. */
static void read_whole(pattern *p) {
    for (;;) {
        const bool begins = *p->at == '^';
        p->at += begins;
        if (!begins)
            writer_put(p->out, "%s-char* ", p->m->root);
        read_sequence(p);
        const bool at_end = *p->at == '$';
        p->at += at_end;
        if (!at_end)
            writer_put(p->out, " %s-char*", p->m->root);
        if (p->status != NIB_OK || *p->at != '|')
            return;
        writer_put(p->out, " | ");
        p->at++;
    }
}

nib_status schema_pattern(schema_maker *m, const json_t *value, writer *body) {
    const char *text = json_string_value(value);
    if (!text || strlen(text) != json_string_length(value))
        return schema_refuse(m, "'pattern': expected a regular expression");
    pattern p = {.m = m, .at = text, .out = body, .class = mem_calloc(1, sizeof *p.class)};
    if (!p.class)
        return nib_fail_nomem(m->err, sizeof *p.class, "a schema");
    writer_put(body, "\"\\\"\" (");
    read_whole(&p);
    writer_put(body, ") \"\\\"\"");
    if (*p.at)
        refuse(&p, "expected the end");
    mem_free(p.class);
    return p.status;
}
