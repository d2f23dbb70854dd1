/* stack.c - second slices: what the first one leaves over, as a weight and a product of its own.
 *
 * The weight stands behind the block's plain ones, so these keep their numbers. The op stands behind the
 * products that read the same input, so that first slices come together, in the order of their pages, and
 * then second ones; it adds to what they made. Whoever shares a matrix (a tied head) shares both slices. */
#include "model/internal.h"

#include <string.h>

/* What a block may have besides its plain weights and ops: keep_block leaves this room. */
void stack_room(const weight *weights, int n_weight, const op *ops, int n_op, int *more_weight,
                int *more_op) {
    *more_weight = *more_op = 0;
    for (int i = 0; i < n_weight; i++)
        *more_weight += !weights[i].vector;
    for (int i = 0; i < n_op; i++)
        *more_op += ops[i].w >= 0 && !weights[ops[i].w].vector;
}

static weight *weights_of(const block *b) {
    return (weight *)b->weights;
}
static op *ops_of(const block *b) {
    return (op *)b->program.ops;
}

static bool belongs_to(int index, const weight *w, int owner) {
    return w->shared_block >= 0 ? w->shared_block == owner : index == owner;
}

/* ---- away ---- */

static bool is_second_of(const model *m, int b, const op *o, int owner) {
    const weight *w = o->w >= 0 ? &m->blocks[b].weights[o->w] : NULL;
    return w && weight_is_second(w) && belongs_to(b, w, owner);
}

/* Out of the program, then out of the list: those behind move up. */
static void unstack_block(model *m, int which, int owner) {
    block *b = &m->blocks[which];
    weight *w = weights_of(b);
    op *ops = ops_of(b);
    int n = 0, at[2 * BLOCK_MAX_WEIGHT];
    for (int i = 0; i < b->program.n_op; i++)
        if (!is_second_of(m, which, &ops[i], owner))
            ops[n++] = ops[i];
    b->program.n_op = n;
    n = 0;
    for (int i = 0; i < b->n_weight; i++) {
        at[i] = n;
        if (!weight_is_second(&w[i]) || !belongs_to(which, &w[i], owner))
            w[n++] = w[i];
    }
    b->n_weight = n;
    for (int i = 0; i < b->program.n_op; i++)
        if (ops[i].w >= 0)
            ops[i].w = at[ops[i].w];
}

/* ---- there ---- */

static int second_of(const block *b, int first) {
    for (int i = 0; i < b->n_weight; i++)
        if (weight_is_second(&b->weights[i]) && b->weights[i].first_slice == first)
            return i;
    return -1;
}

/* Ops that read one input, from `at` on, and are followed together by their second slices. */
static int run_of(const block *b, int at) {
    const op *o = &b->program.ops[at];
    int n = 1;
    while (o->kind == OP_LINEAR && at + n < b->program.n_op && o[n].kind == OP_LINEAR && o[n].in == o->in)
        n++;
    return n;
}

static void insert_op(block *b, int at, op what) {
    op *ops = ops_of(b);
    memmove(ops + at + 1, ops + at, (size_t)(b->program.n_op - at) * sizeof *ops);
    ops[at] = what;
    b->program.n_op++;
}

/* Behind every run of ops, those of the second slices that are not there yet. */
static void add_ops(block *b, const bool *fresh) {
    for (int i = 0, n; i < b->program.n_op; i += n) {
        int more = 0;
        n = run_of(b, i);
        for (int j = 0; j < n; j++) {
            op o = b->program.ops[i + j];
            const int second = o.w >= 0 ? second_of(b, o.w) : -1;
            if (second < 0 || !fresh[second])
                continue;
            o.w = second;
            o.b = -1;
            o.adds = true;
            insert_op(b, i + n + more++, o);
        }
        n += more;
    }
}

static void stack_block(model *m, int which, int owner, const pack_format *format) {
    block *b = &m->blocks[which];
    weight *w = weights_of(b);
    bool fresh[2 * BLOCK_MAX_WEIGHT] = {false};
    const int n = b->n_weight;
    for (int i = 0; i < n; i++) {
        if (w[i].vector || weight_is_second(&w[i]) || !belongs_to(which, &w[i], owner))
            continue;
        weight *s = &w[b->n_weight];
        *s = w[i];
        s->format = *format;
        s->over = w[i].format;
        s->first_slice = i;
        if (s->shared_block >= 0)
            s->shared_index = second_of(&m->blocks[owner], w[i].shared_index);
        else
            pack_bytes(format, s->n, s->k, &s->bytes); /* was found to fit */
        fresh[b->n_weight++] = true;
    }
    add_ops(b, fresh);
}

void fuse_again(block *b) {
    for (int i = 0; i < b->program.n_op; i++)
        memset(&ops_of(b)[i].fuse, 0, sizeof ops_of(b)[i].fuse);
    fuse_program(ops_of(b), b->program.n_op);
}

void stack_set(model *m, int owner, const pack_format *second) {
    for (int i = 0; i < m->n_block; i++)
        unstack_block(m, i, owner);
    if (second)
        stack_block(m, owner, owner, second);
    for (int i = 0; i < m->n_block && second; i++)
        if (i != owner)
            stack_block(m, i, owner, second);
    for (int i = 0; i < m->n_block; i++)
        fuse_again(&m->blocks[i]);
}
