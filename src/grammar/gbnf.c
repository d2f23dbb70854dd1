/* gbnf.c - see pda.h: parses the text of a grammar to a tree of expressions, by recursive descent. */
#include "grammar/expression.h"

#include "base/mem.h"
#include "base/num.h"
#include "tokenizer/unicode.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct parser {
    const char *at, *end;
    int line, nesting;
    expression *e;
    uint32_t *slot; /* [n_slot]: rules by name; 0: none, else number + 1 */
    size_t n_slot;
    nib_error *err;
} parser;

static nib_status wrong(parser *p, const char *expected) {
    char found[16];
    if (p->at == p->end)
        snprintf(found, sizeof found, "its end");
    else
        snprintf(found, sizeof found, "'%.*s'", (int)NUM_MIN(p->end - p->at, 8), p->at);
    return nib_fail(p->err, NIB_E_USAGE, "grammar, line %d: expected %s, found %s", p->line, expected, found);
}

static nib_status no_memory(parser *p) {
    return nib_fail_nomem(p->err, sizeof(node), "a grammar");
}

static bool more(const parser *p) {
    return p->at < p->end;
}

static bool next_is(const parser *p, char c) {
    return more(p) && *p->at == c;
}

static bool next_in(const parser *p, const char *set) {
    return more(p) && *p->at && strchr(set, *p->at);
}

/* Skips white space and comments; lines: also ends of lines, where a rule cannot end. */
static void skip(parser *p, bool lines) {
    for (; more(p); p->at++) {
        if (*p->at == '#')
            while (p->at + 1 < p->end && p->at[1] != '\n')
                p->at++;
        else if (*p->at == '\n' && lines)
            p->line++;
        else if (*p->at != ' ' && *p->at != '\t' && *p->at != '\r')
            return;
    }
}

/* ---- the tree ---- */

static nib_status add_node(parser *p, node n, uint32_t *out) {
    expression *e = p->e;
    if (e->n_node == GRAMMAR_MAX_NODES)
        return nib_fail(p->err, NIB_E_USAGE, "grammar, line %d: expected at most %d expressions, found more",
                        p->line, GRAMMAR_MAX_NODES);
    if (mem_grow((void **)&e->nodes, &e->cap_node, e->n_node + 1, sizeof n))
        return no_memory(p);
    *out = (uint32_t)e->n_node;
    e->nodes[e->n_node++] = n;
    return NIB_OK;
}

static nib_status new_node(parser *p, node_kind kind, uint32_t *out) {
    return add_node(p, (node){.kind = kind, .child = NODE_NONE, .before = NODE_NONE}, out);
}

static void add_child(parser *p, uint32_t parent, uint32_t child) {
    p->e->nodes[child].before = p->e->nodes[parent].child;
    p->e->nodes[parent].child = child;
}

static nib_status add_range(parser *p, uint32_t lo, uint32_t hi) {
    expression *e = p->e;
    if (mem_grow((void **)&e->ranges, &e->cap_range, e->n_range + 1, sizeof *e->ranges))
        return no_memory(p);
    e->ranges[e->n_range++] = (char_range){lo, hi};
    return NIB_OK;
}

/* ---- names ---- */

static bool is_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

static size_t name_length(const parser *p) {
    const char *end = p->at;
    while (end < p->end && is_name(*end))
        end++;
    return (size_t)(end - p->at);
}

static size_t hash_name(const char *name, size_t n) {
    uint64_t h = UINT64_C(0xcbf29ce484222325); /* FNV-1a; the table is not more than half full */
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)name[i]) * UINT64_C(0x100000001b3);
    return (size_t)(h ^ (h >> 29));
}

/* The number of the rule with this name, which is added if it is new. */
static nib_status rule_of(parser *p, const char *name, size_t n, uint32_t *out) {
    expression *e = p->e;
    size_t at = hash_name(name, n) & (p->n_slot - 1);
    for (; p->slot[at]; at = (at + 1) & (p->n_slot - 1)) {
        const rule *r = &e->rules[p->slot[at] - 1];
        if (strlen(r->name) == n && memcmp(r->name, name, n) == 0) {
            *out = p->slot[at] - 1;
            return NIB_OK;
        }
    }
    if (e->n_rule == GRAMMAR_MAX_RULES)
        return nib_fail(p->err, NIB_E_USAGE, "grammar, line %d: expected at most %d rules, found more",
                        p->line, GRAMMAR_MAX_RULES);
    if (mem_grow((void **)&e->rules, &e->cap_rule, e->n_rule + 1, sizeof *e->rules))
        return no_memory(p);
    rule *r = &e->rules[e->n_rule];
    *r = (rule){.name = mem_strndup(name, n), .body = NODE_NONE, .line = p->line};
    if (!r->name)
        return no_memory(p);
    *out = (uint32_t)e->n_rule++;
    p->slot[at] = *out + 1;
    return NIB_OK;
}

/* ---- characters ---- */

static nib_status hex_char(parser *p, int n, uint32_t *out) {
    *out = 0;
    for (int i = 0; i < n; i++, p->at++) {
        const int64_t digit = more(p) ? num_hex(p->at, 1) : -1;
        if (digit < 0)
            return wrong(p, "a hexadecimal digit");
        *out = *out << 4 | (uint32_t)digit;
    }
    if (*out > CHAR_LAST || (*out >= 0xd800 && *out <= 0xdfff))
        return nib_fail(p->err, NIB_E_USAGE, "grammar, line %d: expected a character, found U+%04lX", p->line,
                        (unsigned long)*out);
    return NIB_OK;
}

static nib_status escaped_char(parser *p, uint32_t *out) {
    static const char names[] = "trn\\\"[]-^", values[] = "\t\r\n\\\"[]-^";
    const char c = more(p) ? *p->at : 0;
    const char *plain = c ? strchr(names, c) : NULL;
    if (plain) {
        p->at++;
        *out = (unsigned char)values[plain - names];
        return NIB_OK;
    }
    if (c != 'x' && c != 'u' && c != 'U')
        return wrong(p, "\\t, \\r, \\n, \\\\, \\\", \\[, \\], \\xHH, \\uHHHH or \\UHHHHHHHH");
    p->at++;
    return hex_char(p, c == 'x' ? 2 : c == 'u' ? 4 : 8, out);
}

/* Reads one UTF-8 character or an escape. */
static nib_status one_char(parser *p, uint32_t *out) {
    if (*p->at == '\\') {
        p->at++;
        return escaped_char(p, out);
    }
    if (!utf8_check(p->at, (size_t)(p->end - p->at)))
        return nib_fail(p->err, NIB_E_USAGE, "grammar, line %d: expected valid UTF-8", p->line);
    *out = utf8_next(&p->at);
    p->line += *out == '\n';
    return NIB_OK;
}

static nib_status text(parser *p, uint32_t *out) {
    expression *e = p->e;
    const size_t from = e->n_byte;
    NIB_TRY(new_node(p, NODE_TEXT, out));
    p->at++;
    while (more(p) && *p->at != '"') {
        uint32_t c = 0;
        NIB_TRY(one_char(p, &c));
        if (mem_grow((void **)&e->bytes, &e->cap_byte, e->n_byte + 4, 1))
            return no_memory(p);
        e->n_byte += utf8_put(c, e->bytes + e->n_byte);
    }
    if (!more(p))
        return wrong(p, "'\"'");
    p->at++;
    e->nodes[*out].at = (uint32_t)from;
    e->nodes[*out].n = (uint32_t)(e->n_byte - from);
    return NIB_OK;
}

/* ---- classes ---- */

/* Replaces the merged ranges from index `from` on by their complement. */
static nib_status complement(parser *p, size_t from) {
    expression *e = p->e;
    const size_t n = e->n_range - from;
    if (mem_grow((void **)&e->ranges, &e->cap_range, e->n_range + n + 1, sizeof *e->ranges))
        return no_memory(p);
    const size_t n_gap = char_ranges_gaps(e->ranges + from, n, e->ranges + e->n_range);
    memmove(e->ranges + from, e->ranges + e->n_range, n_gap * sizeof *e->ranges);
    e->n_range = from + n_gap;
    return NIB_OK;
}

static nib_status members(parser *p) {
    while (more(p) && *p->at != ']') {
        uint32_t lo, hi;
        NIB_TRY(one_char(p, &lo));
        hi = lo;
        if (p->end - p->at > 1 && *p->at == '-' && p->at[1] != ']') {
            p->at++;
            NIB_TRY(one_char(p, &hi));
        }
        if (hi < lo)
            return nib_fail(p->err, NIB_E_USAGE,
                            "grammar, line %d: expected a range whose first character is not above its last",
                            p->line);
        NIB_TRY(add_range(p, lo, hi));
    }
    if (!more(p))
        return wrong(p, "']'");
    p->at++;
    return NIB_OK;
}

static nib_status class_of(parser *p, uint32_t *out) {
    const size_t from = p->e->n_range;
    const bool any = *p->at == '.';
    p->at++;
    const bool inverted = !any && next_is(p, '^');
    NIB_TRY(new_node(p, NODE_CLASS, out));
    p->at += inverted;
    NIB_TRY(any ? add_range(p, 0, CHAR_LAST) : members(p));
    if (p->e->n_range > from)
        p->e->n_range = from + char_ranges_merge(p->e->ranges + from, p->e->n_range - from);
    if (inverted)
        NIB_TRY(complement(p, from));
    p->e->nodes[*out].at = (uint32_t)from;
    p->e->nodes[*out].n = (uint32_t)(p->e->n_range - from);
    return NIB_OK;
}

/* ---- expressions ---- */

static nib_status alternatives(parser *p, uint32_t *out);

static nib_status group(parser *p, uint32_t *out) {
    if (++p->nesting > GRAMMAR_MAX_NESTING)
        return nib_fail(p->err, NIB_E_USAGE, "grammar, line %d: groups nest deeper than %d", p->line,
                        GRAMMAR_MAX_NESTING);
    p->at++;
    skip(p, true);
    NIB_TRY(alternatives(p, out));
    if (!next_is(p, ')'))
        return wrong(p, "')'");
    p->at++;
    p->nesting--;
    return NIB_OK;
}

static nib_status call(parser *p, uint32_t *out) {
    const size_t n = name_length(p);
    uint32_t number;
    NIB_TRY(rule_of(p, p->at, n, &number));
    NIB_TRY(new_node(p, NODE_RULE, out));
    p->e->nodes[*out].at = number;
    p->at += n;
    return NIB_OK;
}

static nib_status count(parser *p, uint32_t *out) {
    uint64_t n = 0;
    if (!more(p) || *p->at < '0' || *p->at > '9')
        return wrong(p, "a number of times");
    for (; more(p) && *p->at >= '0' && *p->at <= '9'; p->at++)
        if ((n = n * 10 + (uint64_t)(*p->at - '0')) > GRAMMAR_MAX_REPEAT)
            return nib_fail(p->err, NIB_E_USAGE,
                            "grammar, line %d: expected a repetition of at most %lu times, found more",
                            p->line, (unsigned long)GRAMMAR_MAX_REPEAT);
    *out = (uint32_t)n;
    skip(p, p->nesting > 0);
    return NIB_OK;
}

/* {m}, {m,}, {m,n}, {,n} */
static nib_status bounds(parser *p, node *r) {
    p->at++;
    skip(p, p->nesting > 0);
    r->min = 0;
    if (!next_is(p, ','))
        NIB_TRY(count(p, &r->min));
    r->max = r->min;
    if (next_is(p, ',')) {
        p->at++;
        skip(p, p->nesting > 0);
        r->max = NODE_FOREVER;
        if (!next_is(p, '}'))
            NIB_TRY(count(p, &r->max));
    }
    if (!next_is(p, '}'))
        return wrong(p, "'}'");
    if (r->max < r->min)
        return nib_fail(
            p->err, NIB_E_USAGE,
            "grammar, line %d: expected a repetition of min to max times with min <= max, found %lu to %lu",
            p->line, (unsigned long)r->min, (unsigned long)r->max);
    return NIB_OK;
}

/* The repetition after an item. */
static nib_status repeats(parser *p, uint32_t *item) {
    for (int n = 0; next_in(p, "*+?{"); n++) {
        if (n == GRAMMAR_MAX_NESTING)
            return nib_fail(
                p->err, NIB_E_USAGE,
                "grammar, line %d: expected at most %d repetition operators after one item, found more",
                p->line, GRAMMAR_MAX_NESTING);
        node r = {.kind = NODE_REPEAT, .child = *item, .before = NODE_NONE, .max = NODE_FOREVER};
        if (*p->at == '{')
            NIB_TRY(bounds(p, &r));
        r.min = *p->at == '+' ? 1 : r.min;
        r.max = *p->at == '?' ? 1 : r.max;
        p->at++;
        NIB_TRY(add_node(p, r, item));
        skip(p, p->nesting > 0);
    }
    return NIB_OK;
}

static nib_status item(parser *p, uint32_t *out) {
    nib_status status = *p->at == '"'                    ? text(p, out)
                        : *p->at == '[' || *p->at == '.' ? class_of(p, out)
                        : *p->at == '('                  ? group(p, out)
                                                         : call(p, out);
    if (status == NIB_OK) {
        skip(p, p->nesting > 0);
        status = repeats(p, out);
    }
    return status;
}

static bool begins_item(const parser *p) {
    return more(p) && (is_name(*p->at) || next_in(p, "\"[.("));
}

static nib_status sequence(parser *p, uint32_t *out) {
    NIB_TRY(new_node(p, NODE_SEQUENCE, out));
    while (begins_item(p)) {
        uint32_t child = 0;
        NIB_TRY(item(p, &child));
        add_child(p, *out, child);
    }
    return NIB_OK;
}

/* a & b & ! c: (a & b) & ! c */
static nib_status both(parser *p, uint32_t *out) {
    NIB_TRY(sequence(p, out));
    for (int n = 0; next_is(p, '&'); n++) {
        uint32_t left = *out, right = 0;
        if (n == GRAMMAR_MAX_NESTING)
            return nib_fail(p->err, NIB_E_USAGE, "grammar, line %d: expected at most %d '&', found more",
                            p->line, GRAMMAR_MAX_NESTING);
        p->at++;
        skip(p, true);
        const bool without = next_is(p, '!');
        p->at += without;
        skip(p, true);
        NIB_TRY(sequence(p, &right));
        NIB_TRY(new_node(p, NODE_BOTH, out));
        p->e->nodes[*out].max = !without;
        add_child(p, *out, left);
        add_child(p, *out, right);
    }
    return NIB_OK;
}

static nib_status alternatives(parser *p, uint32_t *out) {
    NIB_TRY(new_node(p, NODE_EITHER, out));
    for (bool first = true; first || next_is(p, '|'); first = false) {
        uint32_t child = 0;
        if (!first) {
            p->at++;
            skip(p, true);
        }
        NIB_TRY(both(p, &child));
        add_child(p, *out, child);
    }
    return NIB_OK;
}

static nib_status read_rule(parser *p) {
    const size_t n = name_length(p);
    uint32_t number, body;
    if (n == 0)
        return wrong(p, "the name of a rule");
    NIB_TRY(rule_of(p, p->at, n, &number));
    assert(p->e->rules);
    if (p->e->rules[number].body != NODE_NONE)
        return nib_fail(p->err, NIB_E_USAGE, "grammar, line %d: the rule '%.40s' is defined twice", p->line,
                        p->e->rules[number].name);
    p->at += n;
    skip(p, false);
    if (p->end - p->at < 3 || memcmp(p->at, "::=", 3) != 0)
        return wrong(p, "'::='");
    p->at += 3;
    skip(p, true);
    NIB_TRY(alternatives(p, &body));
    p->e->rules[number].body = body;
    if (more(p) && *p->at != '\n')
        return *p->at == '<' || *p->at == '!'
                   ? nib_fail(p->err, NIB_E_USAGE,
                              "grammar, line %d: tokens in a grammar (<...>) are not supported", p->line)
                   : wrong(p, "an item, '|' or the end of the line");
    skip(p, true);
    return NIB_OK;
}

static nib_status read_all(parser *p) {
    skip(p, true);
    while (more(p))
        NIB_TRY(read_rule(p));
    for (size_t i = 0; i < p->e->n_rule; i++)
        if (p->e->rules[i].body == NODE_NONE)
            return nib_fail(p->err, NIB_E_USAGE,
                            "grammar, line %d: expected the name of a defined rule, found '%.40s'",
                            p->e->rules[i].line, p->e->rules[i].name);
    return NIB_OK;
}

/* Parses a grammar. Rules that are used but not defined are errors. The caller clears *e in any case. */
static nib_status expression_parse(const char *given, size_t n_byte, expression *e, nib_error *err) {
    parser p = {
        .at = given, .end = given + n_byte, .line = 1, .e = e, .n_slot = 2 * GRAMMAR_MAX_RULES, .err = err};
    memset(e, 0, sizeof *e);
    if (n_byte > GRAMMAR_MAX_TEXT)
        return nib_fail(err, NIB_E_USAGE, "a grammar: expected at most %d bytes, found %zu", GRAMMAR_MAX_TEXT,
                        n_byte);
    p.slot = mem_calloc(p.n_slot, sizeof *p.slot);
    const nib_status status = p.slot ? read_all(&p) : no_memory(&p);
    mem_free(p.slot);
    return status;
}

static void expression_clear(expression *e) {
    for (size_t i = 0; i < e->n_rule; i++)
        mem_free(e->rules[i].name);
    mem_free(e->nodes);
    mem_free(e->ranges);
    mem_free(e->bytes);
    mem_free(e->rules);
    memset(e, 0, sizeof *e);
}

nib_status pda_parse(const char *given, size_t n_byte, pda *out, nib_error *err) {
    expression e;
    memset(out, 0, sizeof *out);
    nib_status status = expression_parse(given, n_byte, &e, err);
    if (status == NIB_OK)
        status = expression_compile(&e, out, err);
    if (status == NIB_OK)
        status = pda_check(out, &e, err);
    expression_clear(&e);
    if (status != NIB_OK)
        pda_clear(out);
    return status;
}
