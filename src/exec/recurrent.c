/* recurrent.c - see recurrent.h. */
#include "exec/recurrent.h"

#include "kernels/entries.h"

#include <string.h>

int64_t recurrent_n_part(const op *o) {
    return o->kind == OP_SSD || o->kind == OP_DELTA ? o->u.rec.n_head : o->n;
}

static void run_conv(const kernel_table *k, const op *o, const recurrent_rows *r, int64_t c0, int64_t c1) {
    const conv_args a = {.x = r->x,
                         .out = r->out,
                         .ldx = o->k,
                         .ldo = o->n,
                         .n_row = r->n_row,
                         .n = o->n,
                         .k = (int)o->u.rec.n_tap,
                         .w = r->w,
                         .bias = r->b,
                         .silu = o->u.rec.silu,
                         .begins = r->begins,
                         .state = r->state + o->u.rec.at};
    k->conv(&a, c0, c1);
}

static void run_ssd(const kernel_table *k, const op *o, const recurrent_rows *r, int64_t h0, int64_t h1) {
    const ssd_args a = {.x = r->x,
                        .dt = r->x2,
                        .out = r->out,
                        .ldx = o->k,
                        .ld_dt = op_width2(o),
                        .ldo = o->n,
                        .n_row = r->n_row,
                        .n_head = o->u.rec.n_head,
                        .n_group = o->u.rec.n_group,
                        .d_head = o->u.rec.d_head,
                        .n_state = o->u.rec.d_state,
                        .a = r->w,
                        .dt_bias = r->b,
                        .d = r->skip,
                        .dt_min = o->u.rec.dt_min,
                        .dt_max = o->u.rec.dt_max,
                        .begins = r->begins,
                        .state = r->state + o->u.rec.at};
    k->ssd(&a, h0, h1);
}

static void run_scan(const kernel_table *k, const op *o, const recurrent_rows *r, int64_t c0, int64_t c1) {
    const scan_args a = {.x = r->x,
                         .dt = r->x2,
                         .b = r->x3,
                         .c = r->x3 + o->u.rec.d_state,
                         .out = r->out,
                         .ldx = o->k,
                         .ld_dt = op_width2(o),
                         .ld_b = op_width3(o),
                         .ld_c = op_width3(o),
                         .ldo = o->n,
                         .n_row = r->n_row,
                         .n = o->n,
                         .n_state = o->u.rec.d_state,
                         .a = r->w,
                         .d = r->skip,
                         .begins = r->begins,
                         .state = r->state + o->u.rec.at};
    k->scan(&a, c0, c1);
}

static void run_delta(const kernel_table *k, const op *o, const recurrent_rows *r, int64_t h0, int64_t h1) {
    const delta_args a = {.x = r->x,
                          .beta = r->x2,
                          .decay = r->x3,
                          .out = r->out,
                          .ldx = o->k,
                          .ld_beta = op_width2(o),
                          .ld_decay = op_width3(o),
                          .ldo = o->n,
                          .n_row = r->n_row,
                          .n_head = o->u.rec.n_head,
                          .n_k_head = o->u.rec.n_group,
                          .d_k = o->u.rec.d_state,
                          .d_v = o->u.rec.d_head,
                          .a = r->w,
                          .dt_bias = r->b,
                          .by_channel = o->u.rec.by_channel,
                          .tiled = o->u.rec.tiled,
                          .begins = r->begins,
                          .state = r->state + o->u.rec.at};
    k->delta(&a, h0, h1);
}

static void run_pool(const op *o, const recurrent_rows *r, int64_t c0, int64_t c1) {
    const pool_args a = {.x = r->x,
                         .gate = r->x2,
                         .bias = r->w,
                         .out = r->out,
                         .n_row = r->n_row,
                         .n = o->n,
                         .k = o->k,
                         .every = o->u.rec.n_tap,
                         .position = r->position,
                         .state = r->state + o->u.rec.at};
    entries_pool(&a, c0, c1);
}

void recurrent_copy(const op *o, const float *from, float *to, int64_t p0, int64_t p1) {
    const bool heads = o->kind == OP_SSD || o->kind == OP_DELTA;
    const int64_t width = heads ? o->u.rec.d_head * o->u.rec.d_state : 1; /* of a part in a row */
    const int64_t row = recurrent_n_part(o) * width, n_row = op_state(o) / row;
    for (int64_t r = 0; r < n_row; r++) {
        const int64_t at = o->u.rec.at + r * row + p0 * width;
        memcpy(to + at, from + at, (size_t)((p1 - p0) * width) * sizeof *to);
    }
}

void recurrent_run(const kernel_table *k, const op *o, const recurrent_rows *r, int64_t p0, int64_t p1) {
    switch (o->kind) {
    case OP_CONV: run_conv(k, o, r, p0, p1); break;
    case OP_SSD: run_ssd(k, o, r, p0, p1); break;
    case OP_SCAN: run_scan(k, o, r, p0, p1); break;
    case OP_DELTA: run_delta(k, o, r, p0, p1); break;
    case OP_POOL: run_pool(o, r, p0, p1); break;
    default: break;
    }
}
