/* schema_pattern.c - converts the `pattern` of a string, a regular expression of ECMA-262, to a grammar over
 * the characters of matching strings in JSON. The regular part of the syntax is supported: characters,
 * classes, groups, alternatives, repetitions (lazy ones match the same texts), and anchors at both ends of
 * the pattern. A pattern without an anchor may match anywhere in the string, as in JSON Schema. Quotation
 * marks, backslashes and control characters are written as JSON escapes; other characters only as themselves.
 */
#include "grammar/schema_class.h"

#include "base/mem.h"
#include "base/num.h"

#include <stdio.h>
#include <string.h>

enum { MAX_DEPTH = 64 /* nested groups */ };

typedef struct pattern {
    schema_maker *m;
    const char *at; /* the rest of the pattern */
    int depth;
    writer *out;
    char_class *class; /* scratch for the current class */
    nib_status status; /* the first error */
} pattern;

static void refuse(pattern *p, const char *what) {
    if (p->status == NIB_OK)
        p->status = schema_refuse(p->m, "'pattern': %s, at '%.20s'", what, p->at);
}

static void put_class(pattern *p) {
    const bool some = char_class_put(p->out, p->class);
    if (p->class->full)
        refuse(p, "expected a class with fewer ranges");
    else if (!some)
        refuse(p, "expected a class with characters, found an empty one");
}

static bool read_hex(pattern *p, int n, uint32_t *out) {
    const int64_t x = num_hex(p->at, n);
    if (x < 0)
        return false;
    p->at += n;
    *out = (uint32_t)x;
    return true;
}

/* Reads the code after \u: {1F600}, D83D\uDE00 or 00e9. */
static bool read_code(pattern *p, uint32_t *out) {
    uint32_t low;
    if (*p->at == '{') {
        const char *end = strchr(p->at, '}');
        const int n = end ? (int)NUM_MIN(end - p->at - 1, 9) : 0;
        p->at++;
        if (n < 1 || n > 6 || !read_hex(p, n, out) || *out > CHAR_LAST)
            return false;
        p->at++;
    } else if (!read_hex(p, 4, out)) {
        return false;
    } else if (*out >= CHAR_FIRST_SURROGATE && *out < 0xdc00 && p->at[0] == '\\' && p->at[1] == 'u') {
        p->at += 2;
        if (!read_hex(p, 4, &low) || low < 0xdc00 || low > CHAR_LAST_SURROGATE)
            return false;
        *out = 0x10000 + ((*out - CHAR_FIRST_SURROGATE) << 10) + (low - 0xdc00);
    }
    return *out < CHAR_FIRST_SURROGATE || *out > CHAR_LAST_SURROGATE;
}

/* Reads after a backslash: one character, or a named class, which is added to the class; false: neither. */
static bool read_escape(pattern *p, bool in_class, uint32_t *out, bool *named) {
    static const char letters[] = "nrtfv0", meant[] = "\n\r\t\f\v";
    const char c = *p->at;
    const char *letter = c ? strchr(letters, c) : NULL;
    *named = char_class_add_named(p->class, c);
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
        refuse(p, "expected the code of a character");
        return false;
    }
    if (letter && !(c == '0' && p->at[1] >= '0' && p->at[1] <= '9')) {
        *out = (uint32_t)meant[letter - letters];
        p->at++;
        return true;
    }
    if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == 0) {
        refuse(p, "this escape is not supported (references, word boundaries, character properties)");
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

/* Reads after "[". */
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
                refuse(p, "expected a range whose first character is not above its last");
        }
        if (!named)
            char_class_add(p->class, lo, hi);
    }
    if (*p->at != ']') {
        refuse(p, "expected ']' at the end of a class");
        return;
    }
    p->at++;
    if (out_of)
        char_class_invert(p->class);
    put_class(p);
}

static void read_alternatives(pattern *p);

/* Reads after "(". */
static void read_group(pattern *p) {
    if (p->at[0] == '?' && p->at[1] == ':') {
        p->at += 2;
    } else if (p->at[0] == '?' && p->at[1] == '<' && p->at[2] != '=' && p->at[2] != '!') {
        p->at += strcspn(p->at, ">");
        p->at += *p->at == '>';
    } else if (p->at[0] == '?') {
        refuse(p, "flags, lookahead and lookbehind are not supported");
    }
    if (++p->depth > MAX_DEPTH)
        refuse(p, "expected fewer nested groups");
    writer_put(p->out, "(");
    read_alternatives(p);
    writer_put(p->out, ")");
    p->depth--;
    if (*p->at != ')')
        refuse(p, "expected ')' at the end of a group");
    else
        p->at++;
}

/* Reads {m}, {m,} or {m,n}; false: it is none of these but plain text. */
static bool read_count(pattern *p, char out[32]) {
    char *end;
    const char *from = p->at + 1;
    if (*from < '0' || *from > '9')
        return false;
    const uint64_t lo = strtoull(from, &end, 10);
    uint64_t hi = lo;
    bool open = false;
    if (*end == ',') {
        from = end + 1;
        open = *from == '}';
        if (!open && (*from < '0' || *from > '9'))
            return false;
        hi = open ? lo : strtoull(from, &end, 10);
        end += open;
    }
    if (*end != '}')
        return false;
    p->at = end + 1;
    if (lo > GRAMMAR_MAX_REPEAT || hi < lo)
        refuse(p, "expected a repetition of at most 4294967294, the smaller number first");
    if (open || hi > GRAMMAR_MAX_REPEAT) /* no answer is longer */
        snprintf(out, 32, "{%lu,}", (unsigned long)lo);
    else
        snprintf(out, 32, "{%lu,%lu}", (unsigned long)lo, (unsigned long)hi);
    return true;
}

static void read_repetition(pattern *p) {
    char count[32] = "";
    if (*p->at == '*' || *p->at == '+' || *p->at == '?')
        snprintf(count, sizeof count, "%c", *p->at++);
    else if (*p->at != '{' || !read_count(p, count))
        return;
    writer_put(p->out, "%s", count);
    p->at += *p->at == '?'; /* a lazy repetition matches the same texts */
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
        char_class_add(p->class, '\n', '\n');
        char_class_add(p->class, '\r', '\r');
        char_class_add(p->class, 0x2028, 0x2029);
        char_class_invert(p->class);
        put_class(p);
        return;
    case '*':
    case '+':
    case '?': refuse(p, "nothing to repeat"); return;
    case '^':
    case '$': refuse(p, "an anchor is supported only at the beginning and the end of the pattern"); return;
    case '\\':
        p->at++;
        p->class->n = 0;
        if (read_escape(p, false, &c, &named) && named)
            put_class(p);
        else if (p->status == NIB_OK)
            char_put(p->out, c);
        return;
    default:
        c = schema_char_at(p->at, &n);
        p->at += n;
        char_put(p->out, c);
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
            refuse(p, "expected '(' before ')'");
        else
            read_atom(p);
        if (p->status == NIB_OK)
            read_repetition(p);
        writer_put(p->out, " ");
    }
    writer_put(p->out, some ? "" : "\"\"");
}

/* Whether another alternative follows. */
static bool next_alternative(pattern *p) {
    if (p->status != NIB_OK || *p->at != '|')
        return false;
    writer_put(p->out, " | ");
    p->at++;
    return true;
}

static void read_alternatives(pattern *p) {
    do
        read_sequence(p);
    while (next_alternative(p));
}

/* Reads the whole pattern. Where it is not anchored, any text may come before or after it. */
static void read_whole(pattern *p) {
    do {
        const bool begins = *p->at == '^';
        p->at += begins;
        if (!begins)
            writer_put(p->out, "%s-char* ", p->m->root);
        read_sequence(p);
        const bool at_end = *p->at == '$';
        p->at += at_end;
        if (!at_end)
            writer_put(p->out, " %s-char*", p->m->root);
    } while (next_alternative(p));
}

nib_status schema_pattern(schema_maker *m, const json_t *value, writer *body) {
    const char *text = json_string_value(value);
    if (!text || strlen(text) != json_string_length(value))
        return schema_refuse(m, "'pattern': expected a regular expression");
    pattern p = {.m = m, .at = text, .out = body, .class = mem_calloc(1, sizeof *p.class)};
    if (!p.class)
        return nib_fail_nomem(m->err, sizeof *p.class, "a schema");
    read_whole(&p);
    if (*p.at)
        refuse(&p, "expected the end");
    mem_free(p.class);
    return p.status;
}
