/* cost.c - the bytes of a block's weights in their formats, and the bytes that its ops read of them. */
#include "model/internal.h"

#include <math.h>

/* A tied head reads the embedding's bytes. */
static uint64_t read_bytes(const block *blocks, const weight *w) {
    if (w->shared_block >= 0)
        w = &blocks[w->shared_block].weights[w->shared_index];
    return w->bytes;
}

void cost_program(const block *blocks, const weight *weights, op *ops, int n) {
    for (int i = 0; i < n; i++) {
        op *o = &ops[i];
        o->cost.weight_bytes = 0;
        if (o->kind == OP_EMBED_POS || o->kind == OP_SHORTLIST) /* a few rows are read */
            continue;
        if (o->kind == OP_EMBED) { /* one row is read, not the table */
            const weight *w = &weights[o->w];
            o->cost.act_bytes = (uint64_t)w->k * sizeof(float) + w->bytes / (uint64_t)w->n;
            continue;
        }
        if (o->w >= 0)
            o->cost.weight_bytes += read_bytes(blocks, &weights[o->w]);
        if (o->b >= 0)
            o->cost.weight_bytes += weights[o->b].bytes;
        if (o->w2 >= 0)
            o->cost.weight_bytes += weights[o->w2].bytes;
        if (o->kind == OP_EXPERTS)
            o->cost.weight_bytes =
                o->cost.weight_bytes / (uint64_t)o->u.experts.n_expert * (uint64_t)o->u.experts.n_used;
    }
}

double op_weight_bytes(const op *o, double n_row) {
    const double bytes = (double)o->cost.weight_bytes;
    if (o->kind != OP_EXPERTS)
        return bytes;
    const double share = (double)o->u.experts.n_used / (double)o->u.experts.n_expert;
    return bytes / share * (1 - pow(1 - share, n_row));
}

nib_status block_sum(block *b, nib_error *err) {
    b->bytes = 0;
    for (int i = 0; i < b->n_weight; i++) {
        const uint64_t bytes = b->weights[i].bytes;
        if (bytes > UINT64_MAX / 4 || b->bytes > UINT64_MAX / 4)
            return nib_fail(err, NIB_E_MODEL, "%s: the weights are too large", b->name);
        b->bytes += (bytes + 63) / 64 * 64;
    }
    return NIB_OK;
}
