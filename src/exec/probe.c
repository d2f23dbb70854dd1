/* probe.c - see probe.h. */
#include "exec/probe.h"

#include <stdbool.h>

/* The last op before op i that writes register r; -1: none. */
static int writer_before(const program *p, int i, reg r) {
    do
        i--;
    while (i >= 0 && p->ops[i].out != r);
    return i;
}

/* The gate or activation whose output product i reads, so that the product ends a feed-forward part: it
 * follows another product, not attention or a recurrent op. -1: there is none. */
static int neurons_of(const program *p, int i) {
    const op *o = &p->ops[i];
    const int j = o->kind == OP_LINEAR ? writer_before(p, i, o->in) : -1;
    if (j < 0 || (p->ops[j].kind != OP_GATE && p->ops[j].kind != OP_ACT && p->ops[j].kind != OP_XIELU))
        return -1;
    const int of = p->ops[j].kind == OP_GATE ? writer_before(p, j, p->ops[j].in2) : j;
    return of >= 0 && (of == j || p->ops[of].kind == OP_LINEAR) ? j : -1;
}

/* The op that adds the output of op i, perhaps after a norm, to the residual stream; -1: there is none. */
static int joins_at(const program *p, int i) {
    for (int j = i + 1; j < p->n_op; j++) {
        const op *o = &p->ops[j];
        if (o->kind == OP_ADD && o->out == REG_X && o->in2 == p->ops[i].out)
            return j;
        if (o->out == p->ops[i].out && o->in != o->out)
            return -1;
    }
    return -1;
}

static void found(probe_places *out, probe_point point, int at, reg from) {
    out->at[point] = at;
    out->from[point] = from;
}

void probe_find(const program *p, probe_places *out) {
    bool adds = false;
    for (int i = 0; i < PROBE_N; i++)
        found(out, (probe_point)i, PROBE_NOWHERE, REG_NONE);
    for (int i = 0; i < p->n_op; i++)
        if (p->ops[i].kind == OP_ROUTE)
            found(out, PROBE_CHOSEN, i, p->ops[i].out);
    for (int i = 0; i < p->n_op; i++)
        adds = adds || (p->ops[i].kind == OP_ADD && p->ops[i].out == REG_X);
    if (!adds) /* not a layer */
        return;
    found(out, PROBE_INPUT, PROBE_BEFORE, REG_X);
    found(out, PROBE_OUTPUT, p->n_op - 1, REG_X);
    for (int i = 0; i < p->n_op; i++) {
        const op *o = &p->ops[i];
        const int neurons = neurons_of(p, i), add = neurons >= 0 ? joins_at(p, i) : -1;
        if (o->kind == OP_LINEAR && o->out == REG_Q)
            found(out, PROBE_Q, i, REG_Q);
        if ((o->kind == OP_LINEAR || o->kind == OP_COPY) && o->out == REG_V)
            found(out, PROBE_V, i, REG_V);
        if (add < 0)
            continue;
        found(out, PROBE_HIDDEN, neurons, p->ops[neurons].out);
        found(out, PROBE_FFN, add, p->ops[add].in2);
    }
}

const op *probe_head_product(const program *p) {
    const op *o = p->ops;
    while (o < p->ops + p->n_op && o->out != REG_LOGITS)
        o++;
    return o;
}
