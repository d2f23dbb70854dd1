/* fuse.c - rewrites of a block's program: marks ops that the interpreter may fuse. Each rewrite is a row of
 * the table below. Its result is written into op.fuse; the ops stay the same, so a program can always be
 * executed op by op too, with the same bits. Also marks the ops that rows need which only fill the KV cache.
 */
#include "model/internal.h"

typedef struct fuser {
    op *ops;
    int n;
} fuser;

static bool reads(const op *o, reg r) {
    return o->in == r || o->in2 == r || o->in3 == r;
}

/* Number of consecutive products that read register r, from op `at` on. */
static int count_products(const fuser *f, int at, reg r) {
    int n = 0;
    while (at + n < f->n && f->ops[at + n].kind == OP_LINEAR && f->ops[at + n].in == r &&
           f->ops[at + n].out != r)
        n++;
    return n;
}

/* A norm whose output is read only by the products right after it: its rows can be quantized while they are
 * in the L1 cache, and the floats are not stored. */
static void norm_to_codes(fuser *f, int at) {
    op *o = &f->ops[at];
    if (o->kind != OP_NORM || o->out == o->in || o->out == REG_X)
        return;
    int n = count_products(f, at + 1, o->out);
    for (int i = at + 1 + n; i < f->n; i++) {
        if (reads(&f->ops[i], o->out))
            return;
        if (f->ops[i].out == o->out)
            break;
    }
    o->fuse.n_codes = n;
}

static bool by_element(const op *o) {
    switch (o->kind) {
    case OP_ACT:
    case OP_GATE:
    case OP_ADD: return o->in3 == REG_NONE;
    case OP_SCALE:
    case OP_CLAMP:
    case OP_SOFTCAP:
    case OP_XIELU: return true;
    default: return false;
    }
}

/* Number of element-wise ops after n products of register `in`, all of the same width, that combine only
 * columns which these products write or which existed before. */
static int count_tail(const fuser *f, int at, int n) {
    const op *o = &f->ops[at];
    int tail = 0;
    for (int i = 1; i < n; i++)
        if (o[i].n != o->n)
            return 0;
    while (at + n + tail < f->n) {
        const op *next = &o[n + tail];
        if (!by_element(next) || next->n != o->n || next->out == o->in)
            break;
        tail++;
    }
    return tail;
}

/* Adjacent products of one input are fused, together with the element-wise ops on their columns: they are
 * divided among the threads once, without a barrier inside. */
static void join_products(fuser *f, int at) {
    op *o = &f->ops[at];
    int n = count_products(f, at, o->in);
    bool begins = at == 0 || f->ops[at - 1].kind != OP_LINEAR || f->ops[at - 1].in != o->in;
    if (n == 0 || !begins)
        return;
    o->fuse.n_join = n > 1 ? n : 0;
    o->fuse.n_tail = count_tail(f, at, n);
}

static void (*const rewrites[])(fuser *f, int at) = {norm_to_codes, join_products};

/* Marks, backwards from attention and from ops with a recurrent state, the ops that produce what they store.
 */
static void find_cache_feeders(op *ops, int n) {
    bool needed[REG_MAX] = {false};
    for (int i = n - 1; i >= 0; i--) {
        op *o = &ops[i];
        const bool attends = op_stores(o);
        o->fuse.feeds_cache = attends || op_is_recurrent(o->kind) || needed[o->out];
        if (!o->fuse.feeds_cache)
            continue;
        if (!attends && op_writes_all(o))
            needed[o->out] = false;
        const reg read[] = {attends ? REG_NONE : o->in, o->in2, o->in3};
        for (int r = 0; r < 3; r++)
            if (read[r] != REG_NONE)
                needed[read[r]] = true;
    }
}

void fuse_program(op *ops, int n) {
    find_cache_feeders(ops, n);
    fuser f = {ops, n};
    for (size_t r = 0; r < sizeof rewrites / sizeof *rewrites; r++)
        for (int i = 0; i < n; i++)
            rewrites[r](&f, i);
}
