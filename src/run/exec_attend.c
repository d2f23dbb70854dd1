/* exec_attend.c - attention: rows join the cache, then heads and rows are shared out. */
#include "run/worker.h"

#include "base/num.h"

enum { ROW_BLOCK = 32 }; /* rows of attention that one thread takes at a time */

static void store_kv(worker *w, const op *o, const kv_view *kv) {
    const exec_cell *c = w->j->cell;
    int64_t width = o->u.attn.n_kv_head * o->u.attn.d_head, r0, r1;
    worker_enter(
        w, (access[]){{o->in2, SPLIT_ROWS, false}, {o->in3, SPLIT_ROWS, false}, {RES_KV, SPLIT_ROWS, true}},
        3);
    worker_rows(w, &r0, &r1);
    for (int64_t r = r0; r < r1; r++) {
        int64_t position = c->position + r;
        w->j->e->kernels->kv_store(kv, false, position, worker_at(w, o->in2, r, width));
        w->j->e->kernels->kv_store(kv, true, position, worker_at(w, o->in3, r, width));
    }
}

/* Blocks whose last position was just stored become codes; the rows behind them, of this cell too, read
 * those.
 */
static void pack_kv(worker *w, const kv_view *kv) {
    const exec_cell *c = w->j->cell;
    const int64_t first = c->position / KV_BLOCK, end = (c->position + c->n_row) / KV_BLOCK;
    if (!kv_is_coded(kv->type) || first >= end)
        return;
    worker_enter(w, (access[]){{RES_KV, SPLIT_OTHER, true}}, 1);
    for (int64_t i = w->thread; i < (end - first) * kv->n_kv_head * 2; i += w->n_thread)
        w->j->e->kernels->kv_pack(kv, i % 2, i / 2 % kv->n_kv_head, first + i / 2 / kv->n_kv_head);
}

void run_attention(worker *w, const op *o) {
    const exec_cell *c = w->j->cell;
    const kv_view *kv = &c->kv->layers[o->u.attn.layer];
    int64_t n_row = c->n_row, n_head = o->u.attn.n_head, group = n_head / o->u.attn.n_kv_head;
    store_kv(w, o, kv);
    pack_kv(w, kv);
    worker_enter(
        w, (access[]){{RES_KV, SPLIT_OTHER, false}, {o->in, SPLIT_OTHER, false}, {o->out, SPLIT_OTHER, true}},
        3);
    attend_args a = {.kv = *kv,
                     .q = worker_at(w, o->in, 0, n_head * o->u.attn.d_head),
                     .out = worker_at(w, o->out, 0, n_head * o->u.attn.d_head),
                     .n_row = n_row,
                     .first_position = c->position,
                     .n_head = n_head,
                     .window = o->u.attn.window,
                     .scale = o->u.attn.scale,
                     .softcap = o->u.attn.softcap,
                     .alibi_max_bias = o->u.attn.alibi_max_bias,
                     .alibi_scale = o->u.attn.alibi_scale,
                     .scratch = w->scratch};
    if (n_row <=
        2) { /* decoding: heads side by side; whole groups when they divide evenly, they share keys */
        int64_t h0, h1, unit = o->u.attn.n_kv_head % w->n_thread == 0 ? group : 1;
        pool_split(n_head, unit, w->thread, w->n_thread, &h0, &h1);
        if (h0 < h1)
            w->j->e->kernels->attend(&a, h0, h1, 0, n_row);
        return;
    }
    int64_t n_block = num_div_up(n_row, ROW_BLOCK);
    int64_t unit = n_block * (n_head / group) < 4 * w->n_thread ? 1 : group, n_unit = n_head / unit;
    for (int64_t i = w->thread; i < n_block * n_unit; i += w->n_thread) {
        int64_t r0 = i / n_unit * ROW_BLOCK, h0 = i % n_unit * unit;
        w->j->e->kernels->attend(&a, h0, h0 + unit, r0, NUM_MIN(r0 + ROW_BLOCK, n_row));
    }
}
