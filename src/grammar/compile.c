/* compile.c - compiles a tree of expressions to a program. An expression is compiled with a known
 * continuation, so the last one is compiled first, and only loops need their jumps patched. Alternatives that
 * begin with text become a prefix tree, so that ten thousand of them are one place of a state. An expression
 * that is repeated more than a few times becomes a rule, which the automaton calls and counts. */
#include "grammar/expression.h"

#include "base/mem.h"
#include "base/num.h"

#include <stdlib.h>
#include <string.h>

typedef struct compiler {
    expression *e;
    pda *p;
    size_t cap_op, cap_loop, cap_both;
    nib_error *err;
} compiler;

static nib_status add(compiler *c, pda_op o, uint32_t *out) {
    pda *p = c->p;
    if (p->n_op == GRAMMAR_MAX_OPS)
        return nib_fail(c->err, NIB_E_USAGE,
                        "the grammar is too large: expected at most %d instructions, found more",
                        GRAMMAR_MAX_OPS);
    if (mem_grow((void **)&p->ops, &c->cap_op, (size_t)p->n_op + 1, sizeof o))
        return nib_fail_nomem(c->err, sizeof o, "a grammar");
    *out = p->n_op;
    p->ops[p->n_op++] = o;
    return NIB_OK;
}

static nib_status byte(compiler *c, uint32_t lo, uint32_t hi, uint32_t next, uint32_t *out) {
    return add(c, (pda_op){.kind = PDA_BYTE, .lo = (uint8_t)lo, .hi = (uint8_t)hi, .next = next}, out);
}

/* Extends *chain by the alternative `at`; NODE_NONE: the chain is empty. */
static nib_status either(compiler *c, uint32_t at, uint32_t *chain) {
    if (*chain == NODE_NONE) {
        *chain = at;
        return NIB_OK;
    }
    return add(c, (pda_op){.kind = PDA_SPLIT, .next = at, .other = *chain}, chain);
}

/* ---- characters as bytes ---- */

/* Adds the code points lo...hi, whose UTF-8 has n bytes, as one sequence of byte ranges. */
static nib_status sequence_of(compiler *c, uint32_t lo, uint32_t hi, int n, uint32_t next, uint32_t *chain) {
    static const uint8_t mark[] = {0, 0, 0xc0, 0xe0, 0xf0};
    uint32_t at = next;
    for (int i = 0; i < n - 1; i++)
        NIB_TRY(byte(c, 0x80 | (lo >> 6 * i & 0x3f), 0x80 | (hi >> 6 * i & 0x3f), at, &at));
    const int shift = 6 * (n - 1);
    NIB_TRY(byte(c, mark[n] | lo >> shift, mark[n] | hi >> shift, at, &at));
    return either(c, at, chain);
}

/* Splits a range of code points until each part is a sequence of byte ranges: at values whose leading bytes
 * change while the trailing ones are not at the ends of their ranges. */
static nib_status split_range(compiler *c, uint32_t lo, uint32_t hi, int n, uint32_t next, uint32_t *chain) {
    for (int i = 1; i < n; i++) {
        const uint32_t low = (1u << 6 * i) - 1;
        if ((lo & ~low) == (hi & ~low))
            continue;
        if (lo & low) {
            NIB_TRY(split_range(c, lo, lo | low, n, next, chain));
            return split_range(c, (lo | low) + 1, hi, n, next, chain);
        }
        if ((hi & low) != low) {
            NIB_TRY(split_range(c, lo, (hi & ~low) - 1, n, next, chain));
            return split_range(c, hi & ~low, hi, n, next, chain);
        }
    }
    return sequence_of(c, lo, hi, n, next, chain);
}

static nib_status range_of(compiler *c, char_range r, uint32_t next, uint32_t *chain) {
    /* the code points of 1 to 4 bytes, without the surrogates, which UTF-8 cannot write */
    static const struct {
        uint32_t lo, hi;
        int n;
    } parts[] = {
        {0, 0x7f, 1}, {0x80, 0x7ff, 2}, {0x800, 0xd7ff, 3}, {0xe000, 0xffff, 3}, {0x10000, 0x10ffff, 4}};
    for (size_t i = 0; i < NUM_COUNT(parts); i++) {
        const uint32_t lo = NUM_MAX(r.lo, parts[i].lo), hi = NUM_MIN(r.hi, parts[i].hi);
        if (lo <= hi)
            NIB_TRY(split_range(c, lo, hi, parts[i].n, next, chain));
    }
    return NIB_OK;
}

static nib_status class_of(compiler *c, const node *n, uint32_t next, uint32_t *out) {
    uint32_t chain = NODE_NONE;
    for (uint32_t i = 0; i < n->n; i++)
        NIB_TRY(range_of(c, c->e->ranges[n->at + i], next, &chain));
    if (chain == NODE_NONE) /* the class is empty: a byte range that matches nothing */
        NIB_TRY(byte(c, 1, 0, next, &chain));
    *out = chain;
    return NIB_OK;
}

/* ---- expressions ---- */

static nib_status compile(compiler *c, uint32_t index, uint32_t next, uint32_t *out);

static nib_status text(compiler *c, uint32_t at, uint32_t n, uint32_t next, uint32_t *out) {
    *out = next;
    for (uint32_t i = n; i-- > 0;) {
        const uint8_t b = (uint8_t)c->e->bytes[at + i];
        NIB_TRY(byte(c, b, b, *out, out));
    }
    return NIB_OK;
}

/* The children from the last one back to the one after `until`. */
static nib_status sequence(compiler *c, uint32_t child, uint32_t until, uint32_t next, uint32_t *out) {
    *out = next;
    for (; child != until; child = c->e->nodes[child].before)
        NIB_TRY(compile(c, child, *out, out));
    return NIB_OK;
}

/* ---- alternatives: those that begin with text become a prefix tree ---- */

typedef struct choice {
    uint32_t at, n; /* its leading bytes */
    uint32_t last;  /* the children after them: from the last one */
    uint32_t until; /* back to the one after this; NODE_NONE and equal to `last`: there are none */
} choice;

/* The text that is all of an expression; NODE_NONE: it is not only a text. */
static uint32_t only_text(const expression *e, uint32_t index) {
    for (int depth = 0; depth < GRAMMAR_MAX_NESTING && index != NODE_NONE; depth++) {
        const node *n = &e->nodes[index];
        if (n->kind == NODE_TEXT)
            return index;
        if (n->kind == NODE_RULE)
            index = e->rules[n->at].body;
        else if ((n->kind == NODE_SEQUENCE || n->kind == NODE_EITHER) && n->child != NODE_NONE &&
                 e->nodes[n->child].before == NODE_NONE)
            index = n->child;
        else
            break;
    }
    return NODE_NONE;
}

/* Splits an alternative after its leading text; false: it does not begin with text. */
static bool split_choice(const expression *e, uint32_t index, choice *out) {
    const uint32_t all = only_text(e, index);
    uint32_t first = all;
    *out = (choice){.last = NODE_NONE, .until = NODE_NONE};
    if (all == NODE_NONE && e->nodes[index].kind == NODE_SEQUENCE) {
        out->last = first = e->nodes[index].child;
        while (first != NODE_NONE && e->nodes[first].before != NODE_NONE)
            first = e->nodes[first].before;
        out->until = first;
    }
    if (first == NODE_NONE || e->nodes[first].kind != NODE_TEXT)
        return false;
    out->at = e->nodes[first].at;
    out->n = e->nodes[first].n;
    return true;
}

static int by_bytes(const void *a, const void *b, void *bytes) {
    const choice *x = a, *y = b;
    const char *text = bytes;
    const int order = memcmp(text + x->at, text + y->at, NUM_MIN(x->n, y->n));
    return order ? order : x->n < y->n ? -1 : x->n > y->n;
}

/* Compiles n sorted alternatives that share their first `depth` bytes, without these bytes. */
static nib_status prefix_tree(compiler *c, const choice *of, size_t n, uint32_t depth, uint32_t next,
                              uint32_t *out) {
    const char *bytes = c->e->bytes;
    bool ended = false;
    size_t i = 0, end;
    *out = NODE_NONE;
    for (; i < n && of[i].n == depth; i++) {
        uint32_t at = next;
        if (of[i].last == of[i].until && ended)
            continue; /* the same text again */
        ended = ended || of[i].last == of[i].until;
        NIB_TRY(sequence(c, of[i].last, of[i].until, next, &at));
        NIB_TRY(either(c, at, out));
    }
    for (; i < n; i = end) {
        uint32_t at, same = depth + 1;
        for (end = i + 1; end < n && bytes[of[end].at + depth] == bytes[of[i].at + depth]; end++) {
        }
        const choice *first = &of[i], *last = &of[end - 1];
        while (same < first->n && same < last->n && bytes[first->at + same] == bytes[last->at + same])
            same++;
        NIB_TRY(prefix_tree(c, of + i, end - i, same, next, &at));
        NIB_TRY(text(c, first->at + depth, same - depth, at, &at));
        NIB_TRY(either(c, at, out));
    }
    return NIB_OK;
}

static nib_status alternatives(compiler *c, uint32_t child, uint32_t next, uint32_t *out) {
    choice *choices = NULL, one;
    size_t n = 0, cap = 0;
    nib_status status = NIB_OK;
    uint32_t at, chain = NODE_NONE;
    for (; child != NODE_NONE && status == NIB_OK; child = c->e->nodes[child].before) {
        if (!split_choice(c->e, child, &one)) {
            status = compile(c, child, next, &at);
            if (status == NIB_OK)
                status = either(c, at, &chain);
        } else if (mem_grow((void **)&choices, &cap, n + 1, sizeof *choices)) {
            status = nib_fail_nomem(c->err, sizeof *choices, "a grammar");
        } else {
            choices[n++] = one;
        }
    }
    if (n > 1)
        qsort_r(choices, n, sizeof *choices, by_bytes, c->e->bytes);
    if (n > 0 && status == NIB_OK) {
        status = prefix_tree(c, choices, n, 0, next, &at);
        if (status == NIB_OK)
            status = either(c, at, &chain);
    }
    mem_free(choices);
    *out = chain;
    return status;
}

/* ---- rules of the compiler: what is repeated, and the operands of & ---- */

static nib_status rule_for(compiler *c, uint32_t index, uint32_t *out) {
    expression *e = c->e;
    if (e->nodes[index].kind == NODE_RULE) {
        *out = e->nodes[index].at;
        return NIB_OK;
    }
    if (e->n_rule == GRAMMAR_MAX_RULES)
        return nib_fail(c->err, NIB_E_USAGE, "expected a grammar of at most %d rules, found more",
                        GRAMMAR_MAX_RULES);
    if (mem_grow((void **)&e->rules, &e->cap_rule, e->n_rule + 1, sizeof *e->rules))
        return nib_fail_nomem(c->err, sizeof *e->rules, "a grammar");
    *out = (uint32_t)e->n_rule;
    e->rules[e->n_rule++] = (rule){.body = index};
    return NIB_OK;
}

/* Replaces a larger expression by a call of its rule. */
static nib_status outline(compiler *c, uint32_t *index) {
    expression *e = c->e;
    const node *n = &e->nodes[*index];
    uint32_t called;
    if ((n->kind == NODE_TEXT && n->n <= 1) ||
        (n->kind == NODE_CLASS && n->n <= 1 && (n->n == 0 || e->ranges[n->at].hi < 0x80)))
        return NIB_OK;
    NIB_TRY(rule_for(c, *index, &called));
    if (mem_grow((void **)&e->nodes, &e->cap_node, e->n_node + 1, sizeof *e->nodes))
        return nib_fail_nomem(c->err, sizeof *e->nodes, "a grammar");
    e->nodes[e->n_node] = (node){.kind = NODE_RULE, .child = NODE_NONE, .before = NODE_NONE, .at = called};
    *index = (uint32_t)e->n_node++;
    return NIB_OK;
}

/* Whether an expression may match the empty text; also true if *work, the visits to find out, runs out. */
static bool may_be_empty(const expression *e, uint32_t index, int *work) {
    const node *n = &e->nodes[index];
    bool one = n->kind != NODE_EITHER;
    if (--*work < 0)
        return true;
    switch (n->kind) {
    case NODE_TEXT: return n->n == 0;
    case NODE_CLASS: return false;
    case NODE_RULE: return may_be_empty(e, e->rules[n->at].body, work);
    case NODE_REPEAT: return n->min == 0 || may_be_empty(e, n->child, work);
    case NODE_SEQUENCE:
    case NODE_EITHER:
        for (uint32_t i = n->child; i != NODE_NONE && one == (n->kind == NODE_SEQUENCE);
             i = e->nodes[i].before)
            one = may_be_empty(e, i, work);
        return one;
    case NODE_BOTH: return may_be_empty(e, e->nodes[n->child].before, work);
    }
    return true;
}

enum { UNROLLED = 8 /* times that need no counter */, EMPTY_WORK = 1000 /* also bounds the recursion */ };

static nib_status unroll(compiler *c, node n, uint32_t next, uint32_t *out) {
    uint32_t item = n.child, at;
    const bool forever = n.max == NODE_FOREVER;
    if ((forever ? n.min + 1 : n.max) > 1)
        NIB_TRY(outline(c, &item));
    *out = next;
    if (forever) {
        NIB_TRY(add(c, (pda_op){.kind = PDA_SPLIT, .next = next, .other = next}, out));
        NIB_TRY(compile(c, item, *out, &at));
        c->p->ops[*out].next = at;
    }
    for (uint32_t i = n.min; i < n.max && !forever; i++) {
        NIB_TRY(compile(c, item, *out, &at));
        NIB_TRY(add(c, (pda_op){.kind = PDA_SPLIT, .next = at, .other = next}, out));
    }
    for (uint32_t i = 0; i < n.min; i++)
        NIB_TRY(compile(c, item, *out, out));
    return NIB_OK;
}

static nib_status repeat(compiler *c, node n, uint32_t next, uint32_t *out) {
    pda *p = c->p;
    pda_loop loop = {.min = n.min, .max = n.max};
    int work = EMPTY_WORK;
    if ((n.max == NODE_FOREVER ? n.min : n.max) <= UNROLLED || may_be_empty(c->e, n.child, &work))
        return unroll(c, n, next, out);
    NIB_TRY(rule_for(c, n.child, &loop.rule));
    if (mem_grow((void **)&p->loops, &c->cap_loop, (size_t)p->n_loop + 1, sizeof loop))
        return nib_fail_nomem(c->err, sizeof loop, "a grammar");
    p->loops[p->n_loop] = loop;
    return add(c, (pda_op){.kind = PDA_REPEAT, .next = next, .other = p->n_loop++}, out);
}

static nib_status both(compiler *c, node n, uint32_t next, uint32_t *out) {
    pda *p = c->p;
    pda_both pair = {.without = n.max == 0};
    uint32_t second;
    NIB_TRY(rule_for(c, c->e->nodes[n.child].before, &pair.rule[0]));
    NIB_TRY(rule_for(c, n.child, &pair.rule[1]));
    if (mem_grow((void **)&p->boths, &c->cap_both, (size_t)p->n_both + 1, sizeof pair))
        return nib_fail_nomem(c->err, sizeof pair, "a grammar");
    p->boths[p->n_both] = pair;
    NIB_TRY(add(c, (pda_op){.kind = PDA_BOTH, .next = next, .other = p->n_both++}, out));
    return add(c, (pda_op){.kind = PDA_CALL, .next = next, .other = pair.rule[1]}, &second);
}

/* The recursion depth is the nesting of groups, which the parser bounds, plus the number of operators after
 * them. */
static nib_status compile(compiler *c, uint32_t index, uint32_t next, uint32_t *out) {
    const node n = c->e->nodes[index];
    switch (n.kind) {
    case NODE_SEQUENCE: return sequence(c, n.child, NODE_NONE, next, out);
    case NODE_EITHER: return alternatives(c, n.child, next, out);
    case NODE_BOTH: return both(c, n, next, out);
    case NODE_REPEAT: return repeat(c, n, next, out);
    case NODE_CLASS: return class_of(c, &n, next, out);
    case NODE_TEXT: return text(c, n.at, n.n, next, out);
    case NODE_RULE: return add(c, (pda_op){.kind = PDA_CALL, .next = next, .other = n.at}, out);
    }
    return NIB_OK;
}

/* Compiling a rule may append further rules. */
static nib_status compile_rules(compiler *c) {
    pda *p = c->p;
    size_t cap = 0;
    for (uint32_t i = 0; i < c->e->n_rule; i++) {
        uint32_t end = 0;
        if (mem_grow((void **)&p->entry, &cap, (size_t)i + 1, sizeof *p->entry))
            return nib_fail_nomem(c->err, sizeof *p->entry, "a grammar");
        NIB_TRY(add(c, (pda_op){.kind = PDA_RETURN}, &end));
        NIB_TRY(compile(c, c->e->rules[i].body, end, &p->entry[i]));
        p->n_rule = i + 1;
    }
    return NIB_OK;
}

static void classify_bytes(pda *p) {
    bool begins[257] = {true};
    for (uint32_t i = 0; i < p->n_op; i++)
        if (p->ops[i].kind == PDA_BYTE && p->ops[i].lo <= p->ops[i].hi)
            begins[p->ops[i].lo] = begins[p->ops[i].hi + 1] = true;
    for (int b = 0; b < 256; b++) {
        if (begins[b])
            p->byte_of[p->n_class++] = (uint8_t)b;
        p->class_of[b] = (uint8_t)(p->n_class - 1);
    }
}

nib_status expression_compile(expression *e, pda *out, nib_error *err) {
    compiler c = {.e = e, .p = out, .err = err};
    uint32_t root = 0;
    while (root < e->n_rule && strcmp(e->rules[root].name, "root") != 0)
        root++;
    if (root == e->n_rule)
        return nib_fail(err, NIB_E_USAGE, "expected a rule 'root' in the grammar, found none");
    out->root = root;
    NIB_TRY(compile_rules(&c));
    classify_bytes(out);
    return NIB_OK;
}

void pda_clear(pda *p) {
    mem_free(p->ops);
    mem_free(p->entry);
    mem_free(p->loops);
    mem_free(p->boths);
    memset(p, 0, sizeof *p);
}

uint64_t pda_bytes(const pda *p) {
    return (uint64_t)p->n_op * sizeof *p->ops + (uint64_t)p->n_rule * sizeof *p->entry +
           (uint64_t)p->n_loop * sizeof *p->loops + (uint64_t)p->n_both * sizeof *p->boths;
}
