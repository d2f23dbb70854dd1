/* check.c - finds grammars that never end, before the first byte and in linear time. A walk starts at each
 * rule and follows the instructions that read nothing (or, to find rules that cannot end, all instructions).
 * At a call it waits until the called rule is known to reach its end, and then continues after the call. When
 * a rule reaches its end, the calls that wait for it continue. */
#include "grammar/expression.h"

#include "base/mem.h"

#include <string.h>

typedef struct walk {
    const pda *p;
    bool reads;      /* the walk also passes instructions that read bytes */
    bool *seen;      /* [n_op] */
    bool *ends;      /* [n_rule]: its end can be reached */
    uint32_t *of;    /* [n_op]: the rule of each visited instruction */
    uint32_t *stack; /* [n_op + 1]: instructions to be visited */
    uint32_t n_stack;
    uint32_t *waits;      /* [n_rule]: list of waiting calls of the rule; NODE_NONE: empty */
    uint32_t *waits_next; /* [n_op] */
} walk;

static void push(walk *w, uint32_t at, uint32_t of) {
    if (w->seen[at])
        return;
    w->seen[at] = true;
    w->of[at] = of;
    w->stack[w->n_stack++] = at;
}

static void end_rule(walk *w, uint32_t r) {
    if (w->ends[r])
        return;
    w->ends[r] = true;
    for (uint32_t at = w->waits[r]; at != NODE_NONE; at = w->waits_next[at])
        push(w, w->p->ops[at].next, w->of[at]);
}

/* The instruction `at` calls a rule and continues when the rule has ended. */
static void wait_for(walk *w, uint32_t at, uint32_t called) {
    if (w->ends[called])
        push(w, w->p->ops[at].next, w->of[at]);
    w->waits_next[at] = w->waits[called];
    w->waits[called] = at;
}

static void look(walk *w, uint32_t at) {
    const pda_op *o = &w->p->ops[at];
    const uint32_t of = w->of[at];
    switch ((pda_kind)o->kind) {
    case PDA_BYTE:
        if (w->reads && o->lo <= o->hi)
            push(w, o->next, of);
        break;
    case PDA_SPLIT:
        push(w, o->next, of);
        push(w, o->other, of);
        break;
    case PDA_CALL: wait_for(w, at, o->other); break;
    case PDA_REPEAT:
        if (w->p->loops[o->other].min == 0)
            push(w, o->next, of);
        wait_for(w, at, w->p->loops[o->other].rule);
        break;
    case PDA_BOTH: /* as if one of the two were enough: what no text completes, the automaton finds */
        wait_for(w, at, w->p->boths[o->other].rule[0]);
        push(w, at + 1, of);
        break;
    case PDA_RETURN: end_rule(w, of); break;
    }
}

static void walk_all(walk *w, bool reads) {
    const pda *p = w->p;
    w->reads = reads;
    memset(w->seen, 0, p->n_op * sizeof *w->seen);
    memset(w->ends, 0, p->n_rule * sizeof *w->ends);
    memset(w->waits, 0xff, p->n_rule * sizeof *w->waits);
    for (uint32_t r = 0; r < p->n_rule; r++)
        push(w, p->entry[r], r);
    while (w->n_stack)
        look(w, w->stack[--w->n_stack]);
}

static bool walk_open(walk *w, const pda *p) {
    const size_t n = p->n_op, r = p->n_rule;
    memset(w, 0, sizeof *w);
    w->p = p;
    w->seen = mem_alloc(n * sizeof *w->seen);
    w->ends = mem_alloc(r * sizeof *w->ends);
    w->of = mem_array(n, sizeof *w->of);
    w->stack = mem_array(n + 1, sizeof *w->stack);
    w->waits = mem_array(r, sizeof *w->waits);
    w->waits_next = mem_array(n, sizeof *w->waits_next);
    return w->seen && w->ends && w->of && w->stack && w->waits && w->waits_next;
}

static void walk_close(walk *w) {
    mem_free(w->seen);
    mem_free(w->ends);
    mem_free(w->of);
    mem_free(w->stack);
    mem_free(w->waits);
    mem_free(w->waits_next);
}

/* After a walk that reads nothing, `waits` has the edges r -> ops[..].of: the rules that can begin with r.
 * Kahn's algorithm removes rules without such edges; the rules that are left contain a cycle. */
static uint32_t find_cycle(const walk *w, uint32_t *left) {
    const pda *p = w->p;
    uint32_t *ready = w->stack, n = 0; /* at most n_rule, each once */
    memset(left, 0, p->n_rule * sizeof *left);
    for (uint32_t r = 0; r < p->n_rule; r++)
        for (uint32_t at = w->waits[r]; at != NODE_NONE; at = w->waits_next[at])
            left[w->of[at]]++;
    for (uint32_t r = 0; r < p->n_rule; r++)
        if (left[r] == 0)
            ready[n++] = r;
    while (n) {
        const uint32_t r = ready[--n];
        for (uint32_t at = w->waits[r]; at != NODE_NONE; at = w->waits_next[at])
            if (--left[w->of[at]] == 0)
                ready[n++] = w->of[at];
    }
    for (uint32_t r = 0; r < p->n_rule; r++)
        if (left[r])
            return r;
    return NODE_NONE;
}

/* Every rule that is left begins with another one that is left, so following these edges reaches a cycle, and
 * on it a rule with a name. */
static uint32_t named_on_cycle(const walk *w, const uint32_t *left, uint32_t r, const expression *names) {
    const pda *p = w->p;
    uint32_t *leads = w->stack; /* [n_rule]: a rule that each one begins with */
    for (uint32_t i = 0; i < p->n_rule; i++)
        for (uint32_t at = left[i] ? w->waits[i] : NODE_NONE; at != NODE_NONE; at = w->waits_next[at])
            leads[w->of[at]] = i;
    for (uint32_t i = 0; i < p->n_rule; i++)
        r = leads[r];
    while (!names->rules[r].name)
        r = leads[r];
    return r;
}

nib_status pda_check(const pda *p, const expression *names, nib_error *err) {
    walk w;
    nib_status status = NIB_OK;
    uint32_t *left = mem_array(p->n_rule, sizeof *left);
    if (!walk_open(&w, p) || !left) {
        status = nib_fail_nomem(err, p->n_op, "a grammar");
    } else {
        walk_all(&w, false);
        const uint32_t r = find_cycle(&w, left);
        if (r != NODE_NONE) {
            const rule *named = &names->rules[named_on_cycle(&w, left, r, names)];
            status =
                nib_fail(err, NIB_E_USAGE,
                         "grammar, line %d: the rule '%.40s' begins with itself (left recursion); let it end "
                         "with itself instead",
                         named->line, named->name);
        }
        if (status == NIB_OK) {
            walk_all(&w, true);
            if (!w.ends[p->root])
                status = nib_fail(err, NIB_E_USAGE, "no text can complete the grammar: 'root' never ends");
        }
    }
    walk_close(&w);
    mem_free(left);
    return status;
}
