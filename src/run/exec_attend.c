/* exec_attend.c - attention: rows join the cache, then heads and rows are shared out. */
#include "run/worker.h"

#include "base/num.h"

enum { MOST_PAIRS = 32 }; /* rows times heads of a group that one thread takes at a time */

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

/* ---- one row, its positions shared out ---- */

/* A row's spans times its kv heads are items that threads take in turn, in rounds of as many as fit what
 * attention leaves of the threads' scratch; a head's thread joins its parts in order. */
typedef struct parts_plan {
    int64_t first, end;   /* spans */
    int64_t group, n_kv;  /* heads that share a kv head; kv heads */
    int64_t each, offset; /* floats of one part; where they begin in a scratch */
    int64_t per_round;    /* spans */
} parts_plan;

static bool plan_parts(const worker *w, const attend_args *a, int64_t row, parts_plan *out) {
    const int64_t position = a->first_position + row, seen = a->window > 0 ? a->window : position + 1;
    parts_plan p = {.first = NUM_MAX(0, position + 1 - seen) / ATTEND_SPAN,
                    .end = position / ATTEND_SPAN + 1,
                    .n_kv = a->kv.n_kv_head,
                    .group = a->n_head / a->kv.n_kv_head,
                    .each = attend_part_floats(a->kv.d_head),
                    .offset = (int64_t)(attend_scratch_bytes(a->kv.d_head) / sizeof(float))};
    const int64_t totals = num_div_up(a->n_head, w->n_thread);
    const int64_t room = (int64_t)(w->j->e->ws->scratch_each / sizeof(float)) - p.offset - totals * p.each;
    const int64_t items = room > 0 ? room / (p.each * p.group) * w->n_thread : 0;
    p.per_round = items / p.n_kv;
    *out = p;
    return w->n_thread > 1 && p.n_kv % w->n_thread && p.end - p.first > 1 && p.per_round > 0;
}

/* The part of a head in span `first + span` of a round. */
static float *part_at(const worker *w, const parts_plan *p, int64_t span, int64_t head) {
    const int64_t item = span * p->n_kv + head / p->group;
    float *scratch =
        (float *)(void *)(w->j->e->ws->scratch + (size_t)(item % w->n_thread) * w->j->e->ws->scratch_each);
    return scratch + p->offset + (item / w->n_thread * p->group + head % p->group) * p->each;
}

static void join_parts(worker *w, const attend_args *a, const parts_plan *p, int64_t row, int64_t first,
                       int64_t n) {
    int64_t h0, h1;
    pool_split(a->n_head, 1, w->thread, w->n_thread, &h0, &h1);
    float *total = (float *)w->scratch + w->j->e->ws->scratch_each / sizeof(float) - (h1 - h0) * p->each;
    for (int64_t h = h0; h < h1; h++, total += p->each)
        for (int64_t s = 0; s < n; s++)
            w->j->e->kernels->attend_join(a, h, row, part_at(w, p, s, h), first + s == p->first,
                                          first + s == p->end - 1, total);
}

/* False: this row is not worth it, and nothing was done. All threads come to the same. */
static bool attend_in_parts(worker *w, const attend_args *a, int64_t row) {
    parts_plan p;
    if (!plan_parts(w, a, row, &p))
        return false;
    for (int64_t first = p.first; first < p.end; first += p.per_round) {
        const int64_t n = NUM_MIN(p.per_round, p.end - first);
        worker_enter(w, (access[]){{RES_PARTS, SPLIT_OTHER, true}}, 1);
        for (int64_t i = w->thread; i < n * p.n_kv; i += w->n_thread) {
            const int64_t h0 = i % p.n_kv * p.group;
            w->j->e->kernels->attend_part(a, h0, h0 + p.group, row, first + i / p.n_kv,
                                          part_at(w, &p, i / p.n_kv, h0));
        }
        worker_enter(w, (access[]){{RES_PARTS, SPLIT_OTHER, false}}, 1);
        join_parts(w, a, &p, row, first, n);
    }
    worker_enter(w, (access[]){{RES_PARTS, SPLIT_OTHER, true}}, 1); /* the scratch is anybody's again */
    return true;
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
    if (n == 1 && attend_in_parts(w, &a, first))
        return;
    if (n <= 2) { /* decoding: heads side by side; whole groups when they divide evenly, they share keys */
        int64_t h0, h1, unit = o->u.attn.n_kv_head % w->n_thread == 0 ? group : 1;
        pool_split(n_head, unit, w->thread, w->n_thread, &h0, &h1);
        if (h0 < h1)
            w->j->e->kernels->attend(&a, h0, h1, first, end);
        return;
    }
    int64_t rows = MOST_PAIRS;
    while (rows > 2 && rows * group > MOST_PAIRS)
        rows /= 2;
    const int64_t n_block = num_div_up(n, rows);
    const int64_t unit = n_block * (n_head / group) < 4 * w->n_thread ? 1 : group, n_unit = n_head / unit;
    for (int64_t i = w->thread; i < n_block * n_unit; i += w->n_thread) {
        int64_t r0 = first + i / n_unit * rows, h0 = i % n_unit * unit;
        w->j->e->kernels->attend(&a, h0, h0 + unit, r0, NUM_MIN(r0 + rows, end));
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
        if (!c->cache_only)
            attend_rows(w, o, kv, first, n);
    }
}
