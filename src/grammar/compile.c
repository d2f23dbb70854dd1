/* compile.c - compiles a tree of expressions to a program. An expression is compiled with a known
 * continuation, so the last one is compiled first, and only loops need their jumps patched. An expression
 * that is repeated several times becomes a rule of its own, so that n repetitions cost n instructions. */
#include "grammar/expression.h"

#include "base/mem.h"
#include "base/num.h"

#include <string.h>

typedef struct compiler {
    expression *e;
    pda *p;
    size_t cap_op;
    nib_error *err;
} compiler;

static nib_status add(compiler *c, pda_op o, uint32_t *out) {
    pda *p = c->p;
    if (p->n_op == GRAMMAR_MAX_OPS)
        return nib_fail(
            c->err, NIB_E_USAGE,
            "the grammar is too large: it takes more than %d instructions; smaller repetitions take "
            "fewer",
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

static nib_status text(compiler *c, const node *n, uint32_t next, uint32_t *out) {
    *out = next;
    for (uint32_t i = n->n; i-- > 0;) {
        const uint8_t b = (uint8_t)c->e->bytes[n->at + i];
        NIB_TRY(byte(c, b, b, *out, out));
    }
    return NIB_OK;
}

static nib_status sequence(compiler *c, uint32_t child, uint32_t next, uint32_t *out) {
    *out = next;
    for (; child != NODE_NONE; child = c->e->nodes[child].before)
        NIB_TRY(compile(c, child, *out, out));
    return NIB_OK;
}

static nib_status alternatives(compiler *c, uint32_t child, uint32_t next, uint32_t *out) {
    uint32_t chain = NODE_NONE;
    for (; child != NODE_NONE; child = c->e->nodes[child].before) {
        uint32_t at;
        NIB_TRY(compile(c, child, next, &at));
        NIB_TRY(either(c, at, &chain));
    }
    *out = chain;
    return NIB_OK;
}

/* Makes a rule of a repeated expression; *index becomes a call of it. */
static nib_status outline(compiler *c, uint32_t *index) {
    expression *e = c->e;
    if (e->n_rule == GRAMMAR_MAX_RULES)
        return nib_fail(c->err, NIB_E_USAGE, "expected a grammar of at most %d rules, found more",
                        GRAMMAR_MAX_RULES);
    if (mem_grow((void **)&e->rules, &e->cap_rule, e->n_rule + 1, sizeof *e->rules) ||
        mem_grow((void **)&e->nodes, &e->cap_node, e->n_node + 1, sizeof *e->nodes))
        return nib_fail_nomem(c->err, sizeof *e->rules, "a grammar");
    e->rules[e->n_rule] = (rule){.body = *index};
    e->nodes[e->n_node] =
        (node){.kind = NODE_RULE, .child = NODE_NONE, .before = NODE_NONE, .at = (uint32_t)e->n_rule++};
    *index = (uint32_t)e->n_node++;
    return NIB_OK;
}

static bool is_small(const expression *e, uint32_t index) {
    const node *n = &e->nodes[index];
    return n->kind == NODE_RULE || (n->kind == NODE_TEXT && n->n <= 1) ||
           (n->kind == NODE_CLASS && n->n <= 1 && (n->n == 0 || e->ranges[n->at].hi < 0x80));
}

static nib_status repeat(compiler *c, node n, uint32_t next, uint32_t *out) {
    uint32_t item = n.child, at;
    const bool forever = n.max == NODE_FOREVER;
    const uint32_t times = forever ? n.min + 1 : n.max;
    if (times > 1 && !is_small(c->e, item))
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

/* The recursion depth is the nesting of groups, which the parser bounds, plus the number of operators after
 * them. */
static nib_status compile(compiler *c, uint32_t index, uint32_t next, uint32_t *out) {
    const node n = c->e->nodes[index];
    switch (n.kind) {
    case NODE_SEQUENCE: return sequence(c, n.child, next, out);
    case NODE_EITHER: return alternatives(c, n.child, next, out);
    case NODE_REPEAT: return repeat(c, n, next, out);
    case NODE_CLASS: return class_of(c, &n, next, out);
    case NODE_TEXT: return text(c, &n, next, out);
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
    compiler c = {e, out, 0, err};
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
    memset(p, 0, sizeof *p);
}

uint64_t pda_bytes(const pda *p) {
    return (uint64_t)p->n_op * sizeof *p->ops + (uint64_t)p->n_rule * sizeof *p->entry;
}
