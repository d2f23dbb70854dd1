/* exec_attend.c - attention: rows join the cache, then heads and rows are shared out. */
#include "run/worker.h"

#include "base/num.h"

enum { ROW_BLOCK = 32 }; /* rows of attention that one thread takes at a time */

/* Rows [first, first + n) of the cell. */
static void store_kv(worker *w, const op *o, const kv_view *kv, int64_t first, int64_t n) {
    const exec_cell *c = w->j->cell;
    const int64_t width = o->u.attn.n_kv_head * o->u.attn.d_head;
    const int64_t split =
        n == c->n_row ? SPLIT_ROWS : SPLIT_OTHER; /* others may have written some rows' parts */
    int64_t r0, r1;
    worker_enter(w, (access[]){{o->in2, split, false}, {o->in3, split, false}, {RES_KV, split, true}}, 3);
    pool_split(n, 1, w->thread, w->n_thread, &r0, &r1);
    for (int64_t r = first + r0; r < first + r1; r++) {
        w->j->e->kernels->kv_store(kv, false, c->position + r, worker_at(w, o->in2, r, width));
        w->j->e->kernels->kv_store(kv, true, c->position + r, worker_at(w, o->in3, r, width));
    }
}

/* Blocks whose last position is one of these become codes; the rows behind them, of this cell too, read
 * those.
 */
static void pack_kv(worker *w, const kv_view *kv, int64_t position, int64_t n) {
    const int64_t first = position / KV_BLOCK, end = (position + n) / KV_BLOCK;
    if (!kv_is_coded(kv->type) || first >= end)
        return;
    worker_enter(w, (access[]){{RES_KV, SPLIT_OTHER, true}}, 1);
    for (int64_t i = w->thread; i < (end - first) * kv->n_kv_head * 2; i += w->n_thread)
        w->j->e->kernels->kv_pack(kv, i % 2, i / 2 % kv->n_kv_head, first + i / 2 / kv->n_kv_head);
}

static void attend_rows(worker *w, const op *o, const kv_view *kv, int64_t first, int64_t n) {
    const exec_cell *c = w->j->cell;
    const int64_t n_head = o->u.attn.n_head, group = n_head / o->u.attn.n_kv_head, end = first + n;
    worker_enter(
        w, (access[]){{RES_KV, SPLIT_OTHER, false}, {o->in, SPLIT_OTHER, false}, {o->out, SPLIT_OTHER, true}},
        3);
    attend_args a = {.kv = *kv,
                     .q = worker_at(w, o->in, 0, n_head * o->u.attn.d_head),
                     .out = worker_at(w, o->out, 0, n_head * o->u.attn.d_head),
                     .n_row = c->n_row,
                     .first_position = c->position,
                     .n_head = n_head,
                     .window = o->u.attn.window,
                     .scale = o->u.attn.scale,
                     .softcap = o->u.attn.softcap,
                     .alibi_max_bias = o->u.attn.alibi_max_bias,
                     .alibi_scale = o->u.attn.alibi_scale,
                     .scratch = w->scratch};
    if (n <= 2) { /* decoding: heads side by side; whole groups when they divide evenly, they share keys */
        int64_t h0, h1, unit = o->u.attn.n_kv_head % w->n_thread == 0 ? group : 1;
        pool_split(n_head, unit, w->thread, w->n_thread, &h0, &h1);
        if (h0 < h1)
            w->j->e->kernels->attend(&a, h0, h1, first, end);
        return;
    }
    int64_t n_block = num_div_up(n, ROW_BLOCK);
    int64_t unit = n_block * (n_head / group) < 4 * w->n_thread ? 1 : group, n_unit = n_head / unit;
    for (int64_t i = w->thread; i < n_block * n_unit; i += w->n_thread) {
        int64_t r0 = first + i / n_unit * ROW_BLOCK, h0 = i % n_unit * unit;
        w->j->e->kernels->attend(&a, h0, h0 + unit, r0, NUM_MIN(r0 + ROW_BLOCK, end));
    }
}

/* A cache in codes holds two blocks in f16, so rows join it a block's worth at a time (kernels.h). */
void run_attention(worker *w, const op *o) {
    const exec_cell *c = w->j->cell;
    const kv_view *kv = &c->kv->layers[o->u.attn.layer];
    const int64_t step = kv_is_coded(kv->type) ? KV_BLOCK : c->n_row;
    for (int64_t first = 0; first < c->n_row; first += step) {
        const int64_t n = NUM_MIN(step, c->n_row - first);
        store_kv(w, o, kv, first, n);
        pack_kv(w, kv, c->position + first, n);
        attend_rows(w, o, kv, first, n);
    }
}
