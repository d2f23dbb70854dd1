/* fuse.c - rewrites of a block's program: which ops the interpreter may do as one. Each is a row of the table
 * below; what it finds is written into op.fuse, and the program stays what it was, so that it can always be
 * executed op by op as well, with the same bits. */
#include "model/internal.h"

typedef struct fuser {
    op *ops;
    int n;
} fuser;

static bool reads(const op *o, reg r) {
    return o->in == r || o->in2 == r || o->in3 == r;
}

/* Products that read register r, from op `at` on. */
static int count_products(const fuser *f, int at, reg r) {
    int n = 0;
    while (at + n < f->n && f->ops[at + n].kind == OP_LINEAR && f->ops[at + n].in == r &&
           f->ops[at + n].out != r)
        n++;
    return n;
}

/* A norm whose output is read by the products that follow at once, and by nothing else: its rows can become
 * integers while they are in the first-level cache, and the floats are not stored. */
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

/* Neighbouring products of one input are one region with one split over all their rows. Not where the next op
 * puts two outputs together column by column: that needs both in the same thread, which splits them alike. */
static void join_products(fuser *f, int at) {
    op *o = &f->ops[at];
    int n = count_products(f, at, o->in);
    bool begins = at == 0 || f->ops[at - 1].kind != OP_LINEAR || f->ops[at - 1].in != o->in;
    if (n > 1 && begins && (at + n == f->n || f->ops[at + n].kind != OP_GATE))
        o->fuse.n_join = n;
}

static void (*const rewrites[])(fuser *f, int at) = {norm_to_codes, join_products};

void fuse_program(op *ops, int n) {
    fuser f = {ops, n};
    for (size_t r = 0; r < sizeof rewrites / sizeof *rewrites; r++)
        for (int i = 0; i < n; i++)
            rewrites[r](&f, i);
}
