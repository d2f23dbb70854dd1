/* reduce.c - OP_REDUCE on the processor (exec/sums.h). */
#include "exec/cpu/worker.h"

#include "base/num.h"

#include <string.h>

/* The rows of a sum: block and op, row and number of rows. */
static uint64_t tag_of(const worker *w, const op *o, int64_t r) {
    const exec_cell *c = w->j->cell;
    const program *p = &layout_block(w->j->e->layout, c->block)->program;
    return (uint64_t)c->block << 48 | (uint64_t)(o - p->ops) << 40 | (uint64_t)(c->row + r) << 12 |
           (uint64_t)(c->n_row & 0xfff);
}

static void fail(worker *w, const nib_error *why) {
    const job *j = w->j;
    if (!atomic_exchange(&j->failure->taken, true))
        j->failure->why = *why;
    atomic_store_explicit(j->dropped, true, memory_order_relaxed);
}

/* Adds rows [r, r + n) of the cell, this thread's columns [c0, c1) of each. */
static void add_rows(worker *w, const op *o, int64_t r, int64_t n, int64_t c0, int64_t c1) {
    rank_sums *s = w->j->e->sums;
    const uint64_t now = sums_now(s), tag = tag_of(w, o, r);
    const size_t n_byte = (size_t)(c1 - c0) * sizeof(float);
    nib_error why;
    for (int64_t i = 0; i < n; i++)
        memcpy(sums_own(s, now) + i * o->n + c0, worker_at(w, o->in, r + i, o->n) + c0, n_byte);
    worker_barrier(w);
    if (job_is_dropped(w->j))
        return;
    if (w->thread == 0)
        sums_publish(s, now, tag);
    if (sums_wait(s, now, tag, &why) != NIB_OK) {
        fail(w, &why);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        float *out = worker_at(w, o->out, r + i, o->n) + c0;
        memcpy(out, sums_of(s, now, 0) + i * o->n + c0, n_byte);
        for (int rank = 1; rank < sums_n_rank(s); rank++)
            w->j->e->kernels->add(out, sums_of(s, now, rank) + i * o->n + c0, 1, out, c1 - c0);
    }
}

void run_reduce(worker *w, const op *o) {
    const int64_t n_row = w->j->cell->n_row, some = sums_max_rows(w->j->e->sums),
                  split = SPLIT_COLUMNS + o->n;
    int64_t c0, c1;
    worker_enter(w, (access[]){{o->in, split, false}, {o->out, split, true}}, 2);
    pool_split(o->n, PACK_PANEL, w->thread, w->n_thread, &c0, &c1);
    for (int64_t r = 0; r < n_row; r += some)
        add_rows(w, o, r, NUM_MIN(some, n_row - r), c0, c1);
    worker_enter(w, (access[]){{o->out, split, true}}, 1);
}
