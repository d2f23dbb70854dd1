/* rows.c - row-wise and element-wise ops. */
#include "exec/cpu/worker.h"

#include "kernels/kernels.h"
#include "kernels/route.h"
#include "kernels/row_op.h"

#include <string.h>

void embed_row(const kernel_table *k, const op *o, const float *row, float *out) {
    row += o->u.num.offset;
    if (o->adds)
        k->add(out, row, o->u.num.value, out, o->n);
    else if (row != out || o->u.num.value != 1)
        k->scale(row, o->u.num.value, out, o->n);
}

void run_embed(worker *w, const op *o) {
    const exec_cell *c = w->j->cell;
    const kernel_table *k = w->j->e->kernels;
    const view *table = &c->views[o->w];
    int64_t r0, r1;
    worker_enter(w, (access[]){{o->out, SPLIT_ROWS, true}}, 1);
    worker_rows(w, &r0, &r1);
    for (int64_t r = r0; r < r1; r++) {
        float *out = worker_at(w, o->out, r, o->n), *row = embed_is_direct(o) ? out : w->scratch;
        pack_read_row(table, embed_index(w->j->e->ws->tokens[c->row + r], table), row);
        embed_row(k, o, row, out);
    }
}

void run_embed_pos(worker *w, const op *o) {
    const exec_cell *c = w->j->cell;
    int64_t r0, r1;
    float *row = w->scratch;
    worker_enter(w, (access[]){{o->out, SPLIT_ROWS, true}}, 1);
    worker_rows(w, &r0, &r1);
    for (int64_t r = r0; r < r1; r++) {
        float *out = worker_at(w, o->out, r, o->n);
        pack_read_row(&c->views[o->w], w->j->e->ws->positions[c->row + r] + o->u.num.offset, row);
        w->j->e->kernels->add(out, row, 1, out, o->n);
    }
}

static void norm_row(const worker *w, const op *o, const float *x, float *out) {
    w->j->e->kernels->norm(o->u.norm.kind, x, worker_vector(w, o->w), worker_vector(w, o->b), out, o->k,
                           o->u.norm.n_group, o->u.norm.w_full, o->u.norm.eps);
}

/* Whether all products after a norm read its rows quantized in one format. */
static bool reads_codes(const worker *w, const op *o, act_format *f) {
    const view *views = w->j->cell->views;
    if (!w->j->fuse || !o->fuse.n_codes)
        return false;
    *f = product_format(w, o[1].w, &views[o[1].w].format);
    for (int i = 1; i <= o->fuse.n_codes; i++) {
        const pack_format *p = &views[o[i].w].format;
        if (p->layout != PACK_TILE || !act_format_equal(product_format(w, o[i].w, p), *f))
            return false;
    }
    return true;
}

/* A norm whose output is quantized at once. The floats are in this thread's scratch only. A single row is
 * quantized by every thread for itself, which takes less time than a barrier, unless a thread has just
 * written the row, so that a barrier is needed anyway. */
static void norm_to_codes(worker *w, const op *o, act_format f) {
    act_state to = {o->out, f, w->j->cell->n_row == 1 && w->seen.written[o->in] != SPLIT_ROWS};
    float *row = w->scratch;
    int64_t r0 = 0, r1 = 1;
    if (to.own) {
        worker_enter(w, (access[]){{o->in, SPLIT_OTHER, false}}, 1);
    } else {
        worker_enter(w, (access[]){{o->in, SPLIT_ROWS, false}, {RES_ACT8, SPLIT_ROWS, true}}, 2);
        worker_rows(w, &r0, &r1);
    }
    for (int64_t r = r0; r < r1; r++) {
        norm_row(w, o, worker_at(w, o->in, r, o->k), row);
        product_quantize_row(w, row, o->k, r, to, o[1].w);
    }
    w->acts = to;
}

void run_norm(worker *w, const op *o) {
    int64_t r0, r1;
    act_format f;
    if (reads_codes(w, o, &f)) {
        norm_to_codes(w, o, f);
        return;
    }
    worker_enter(w, (access[]){{o->in, SPLIT_ROWS, false}, {o->out, SPLIT_ROWS, true}}, 2);
    worker_rows(w, &r0, &r1);
    for (int64_t r = r0; r < r1; r++)
        norm_row(w, o, worker_at(w, o->in, r, o->k), worker_at(w, o->out, r, o->n));
}

void run_rope(worker *w, const op *o) {
    const exec_cell *c = w->j->cell;
    const float *table = w->j->e->ws->cos_sin[o->u.rope.table];
    int64_t r0, r1;
    worker_enter(w, (access[]){{o->in, SPLIT_ROWS, false}, {o->out, SPLIT_ROWS, true}}, 2);
    worker_rows(w, &r0, &r1);
    for (int64_t r = r0; r < r1; r++) {
        float *out = worker_at(w, o->out, r, o->n);
        if (o->in != o->out)
            memcpy(out, worker_at(w, o->in, r, o->k), (size_t)o->n * sizeof *out);
        rope_row(w->j->e->kernels, o, table + (c->row + r) * o->u.rope.n_rot, out);
    }
}

void run_whole_rows(worker *w, const op *o) {
    const exec_cell *c = w->j->cell;
    int64_t r0, r1;
    worker_enter(
        w, (access[]){{o->in, SPLIT_ROWS, false}, {o->in2, SPLIT_ROWS, false}, {o->out, SPLIT_ROWS, true}},
        3);
    worker_rows(w, &r0, &r1);
    for (int64_t r = r0; r < r1; r++) {
        const row_args a = {.in = worker_at(w, o->in, r, o->k),
                            .in2 = o->in2 == REG_NONE ? NULL : worker_at(w, o->in2, r, op_width2(o)),
                            .out = worker_at(w, o->out, r, o->n),
                            .w = worker_vector(w, o->w),
                            .b = worker_vector(w, o->b),
                            .w2 = worker_vector(w, o->w2),
                            .position = w->j->e->ws->positions[c->row + r],
                            .token = w->j->e->ws->tokens[c->row + r]};
        row_op(w->j->e->kernels, o, &a);
    }
}

void elements_row(const worker *w, const op *o, int64_t r, int64_t c0, int64_t c1) {
    const kernel_table *k = w->j->e->kernels;
    const float *x = worker_at(w, o->in, r, o->n) + c0;
    const float *y = o->in2 == REG_NONE ? NULL : worker_at(w, o->in2, r, o->n) + c0;
    const float gate = o->kind == OP_ADD && o->in3 != REG_NONE ? add_gate(worker_at(w, o->in3, r, 1)) : 1;
    float *out = worker_at(w, o->out, r, o->n) + c0;
    switch (o->kind) {
    case OP_ACT: k->act(o->u.act.kind, x, out, c1 - c0); break;
    case OP_GATE: k->gate(o->u.act.kind, x, y, out, c1 - c0); break;
    case OP_ADD: k->add(x, y, o->u.num.value * gate, out, c1 - c0); break;
    case OP_SCALE: k->scale(x, o->u.num.value, out, c1 - c0); break;
    case OP_CLAMP: k->clamp(x, o->u.num.value, out, c1 - c0); break;
    case OP_SOFTCAP: k->softcap(x, o->u.num.value, out, c1 - c0); break;
    case OP_XIELU: k->xielu(&o->u.xielu, x, out, c1 - c0); break;
    default: break;
    }
}

/* Element-wise ops. They are split like the op that wrote their input, so that no barrier is needed: by
 * columns after a product, by rows after a norm. */
void run_elements(worker *w, const op *o) {
    bool by_rows = w->j->fuse && (w->seen.written[o->in] == SPLIT_ROWS ||
                                  (o->in2 != REG_NONE && w->seen.written[o->in2] == SPLIT_ROWS));
    int64_t split = by_rows ? SPLIT_ROWS : SPLIT_COLUMNS + o->n;
    int64_t r0 = 0, r1 = w->j->cell->n_row, c0 = 0, c1 = o->n;
    worker_enter(w,
                 (access[]){{o->in, split, false},
                            {o->in2, split, false},
                            {o->in3, by_rows ? SPLIT_ROWS : SPLIT_OTHER, false},
                            {o->out, split, true}},
                 4);
    if (by_rows)
        worker_rows(w, &r0, &r1);
    else
        pool_split(o->n, PACK_PANEL, w->thread, w->n_thread, &c0, &c1);
    for (int64_t r = r0; r < r1 && c0 < c1; r++)
        elements_row(w, o, r, c0, c1);
}
