/* stack.c - second slices: the rounding residual of a first slice, as a weight and a product of its own.
 * The weight comes after the block's first slices, so these keep their numbers. The op comes after the
 * products that read the same input, so that all first slices are read before the second ones, in the order
 * of their pages. The op adds to the output of the first slice. A block that shares a matrix (a tied head)
 * shares both slices. */
#include "model/layout_parts.h"

#include <string.h>

void stack_counts(const block *b, int *more_weight, int *more_op) {
    *more_weight = *more_op = 0;
    for (int i = 0; i < b->n_weight; i++)
        *more_weight += !b->weights[i].vector;
    for (int i = 0; i < b->program.n_op; i++) {
        const op *o = &b->program.ops[i];
        *more_op += o->w >= 0 && !b->weights[o->w].vector;
    }
}

static bool belongs_to(int index, const weight *w, int owner) {
    return w->shared_block >= 0 ? w->shared_block == owner : index == owner;
}

static int second_of(const block *b, int first) {
    for (int i = 0; i < b->n_weight; i++)
        if (weight_is_second(&b->weights[i]) && b->weights[i].first_slice == first)
            return i;
    return -1;
}

/* Number of consecutive ops from `at` on that read one input; the ops of their second slices follow them
 * together. */
static int run_of(const block *b, int at) {
    const op *o = &b->program.ops[at];
    int n = 1;
    while (op_is_product(o) && at + n < b->program.n_op && op_is_product(&o[n]) && o[n].in == o->in)
        n++;
    return n;
}

static void insert_op(block *b, op *ops, int at, op what) {
    memmove(ops + at + 1, ops + at, (size_t)(b->program.n_op - at) * sizeof *ops);
    ops[at] = what;
    b->program.n_op++;
}

/* Adds the ops of missing second slices after each run of ops. */
static void add_ops(block *b, op *ops, const bool *fresh) {
    for (int i = 0, n; i < b->program.n_op; i += n) {
        int more = 0;
        n = run_of(b, i);
        for (int j = 0; j < n; j++) {
            op o = ops[i + j];
            const int second = o.w >= 0 ? second_of(b, o.w) : -1;
            if (second < 0 || !fresh[second])
                continue;
            o.w = second;
            o.b = -1;
            o.adds = true;
            insert_op(b, ops, i + n + more++, o);
        }
        n += more;
    }
}

static bool is_first_of(int index, const weight *w, int owner) {
    return !w->vector && !w->exact && !weight_is_second(w) && belongs_to(index, w, owner);
}

static weight second_slice(const layout *l, int owner, const weight *first, int at,
                           const pack_format *format) {
    weight s = *first;
    s.format = *format;
    s.over = first->format;
    s.first_slice = at;
    if (s.shared_block >= 0)
        s.shared_index = second_of(&l->blocks[owner], first->shared_index);
    else
        pack_bytes(format, s.n, s.k, &s.bytes); /* was found to fit */
    return s;
}

static nib_status stack_block(layout *l, int which, int owner, const pack_format *format, nib_error *err) {
    block *b = &l->blocks[which];
    bool fresh[2 * BLOCK_MAX_WEIGHT] = {false};
    const int n = b->n_weight;
    for (int i = 0; i < n; i++) {
        if (!is_first_of(which, &b->weights[i], owner))
            continue;
        NIB_TRY(layout_own(l, which, err));
        l->own[which].weights[b->n_weight] = second_slice(l, owner, &b->weights[i], i, format);
        fresh[b->n_weight++] = true;
    }
    if (b->n_weight > n) {
        add_ops(b, l->own[which].ops, fresh);
        layout_fuse(l, which);
    }
    return NIB_OK;
}

nib_status stack_add(layout *l, int owner, const pack_format *second, nib_error *err) {
    NIB_TRY(stack_block(l, owner, owner, second, err));
    for (int i = 0; i < l->m->n_block; i++)
        if (i != owner)
            NIB_TRY(stack_block(l, i, owner, second, err));
    return NIB_OK;
}

void layout_fuse(layout *l, int which) {
    op *ops = l->own[which].ops;
    const int n = l->blocks[which].program.n_op;
    for (int i = 0; i < n; i++)
        memset(&ops[i].fuse, 0, sizeof ops[i].fuse);
    fuse_program(ops, n);
}
