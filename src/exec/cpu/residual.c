/* residual.c - products with rounding residuals: the channels of a row are chosen when it is quantized, by
 * the thread that quantizes it, and every thread adds the residuals' part to the columns that it has just
 * computed. */
#include "exec/cpu/worker.h"

#include "base/num.h"

/* Columns at a time, so that rows which have chosen the same channels find them in the cache. */
static const int64_t SOME = 512;

void residual_choose(worker *w, const float *x, int64_t k, int64_t r, bool own, int matrix) {
    const executor *e = w->j->e;
    const act_rows *rows = own ? &e->ws->own[w->thread] : &e->ws->act;
    const int64_t row = own ? 0 : r;
    salient *to = rows->salient + row * e->ws->n_salient;
    int32_t *at = e->ws->salient_at + w->thread * e->ws->n_salient;
    const residual_use *use = e->residuals;
    const int b = w->j->cell->block;
    if (!residuals_of(use, b, matrix)) {
        rows->n_salient[row] = 0;
        return;
    }
    const int i_w = use->first[b] + matrix;
    const float *by = use->by ? use->by[i_w] : NULL, *from = x;
    float *product = e->ws->salient_row + w->thread * e->ws->salient_k;
    for (int64_t c = 0; by && use->rule == SALIENT_WEIGHTED && c < k; c++)
        product[c] = x[c] * by[c];
    if (by)
        from = use->rule == SALIENT_WEIGHTED ? product : by;
    const int64_t n = salient_pick(e->kernels, use->rule, from, k, use->k_chunk[i_w], at);
    for (int64_t i = 0; i < n; i++)
        to[i] = (salient){at[i], x[at[i]]};
    rows->n_salient[row] = (int32_t)n;
}

static void fail(const job *j, const nib_error *why) {
    if (!atomic_exchange(&j->failure->taken, true))
        j->failure->why = *why;
    atomic_store_explicit(j->dropped, true, memory_order_relaxed);
}

/* Of weight i of all, those bytes of the row's channels, into the thread's memory. */
static bool read_channels(const worker *w, int i, const salient *from, int32_t n, int64_t first,
                          int64_t n_byte, uint8_t *to) {
    const residual_use *use = w->j->e->residuals;
    nib_error why;
    for (int32_t c = 0; c < n; c++) {
        const uint64_t at = use->at[i] + (uint64_t)(from[c].at * use->of[i].step + first);
        if (file_read_at(use->file, to + (int64_t)c * RESIDUAL_GATHER, at, (uint64_t)n_byte, &why) !=
            NIB_OK) {
            fail(w->j, &why);
            return false;
        }
    }
    return true;
}

/* As residual_columns, with codes in a file: so many outputs at a time as RESIDUAL_GATHER bytes have, from a
 * multiple of BLOCK on, which are whole bytes and groups of any width. */
static void columns_of_file(worker *w, const op *o, const residual *of, const act_rows *rows, int64_t n0,
                            int64_t n1, float *y) {
    enum { BLOCK = 64 };
    const executor *e = w->j->e;
    const residual_use *use = e->residuals;
    const int i = use->first[w->j->cell->block] + o->w;
    uint8_t *codes = use->gather + (uint64_t)w->thread * use->gather_each;
    salient *near = (salient *)(void *)(codes + e->ws->n_salient * RESIDUAL_GATHER);
    for (int64_t n = n0, end; n < n1; n = end) {
        const int64_t base = n - n % BLOCK, first = base * of->bits / 8;
        end = NUM_MIN(base + RESIDUAL_GATHER * 8 / of->bits, n1);
        const int64_t n_byte = NUM_MIN(num_round_up(end - base, BLOCK) * of->bits / 8, of->step - first);
        for (int64_t r = 0; r < w->j->cell->n_row; r++) {
            const salient *from = rows->salient + r * e->ws->n_salient;
            const int32_t n_from = rows->n_salient[r];
            const residual part = {.bits = of->bits,
                                   .n = end - base,
                                   .k = n_from,
                                   .step = RESIDUAL_GATHER,
                                   .rows = codes,
                                   .scale = of->scale + base};
            if (job_is_dropped(w->j) || !read_channels(w, i, from, n_from, first, n_byte, codes))
                return;
            for (int32_t c = 0; c < n_from; c++)
                near[c] = (salient){c, from[c].x};
            e->kernels->residual_add(&part, near, n_from, n - base, end - base, y + r * o->n + n - n0);
        }
    }
}

void residual_columns(worker *w, const op *o, int64_t n0, int64_t n1, float *y) {
    const executor *e = w->j->e;
    const residual *of = residuals_of(e->residuals, w->j->cell->block, o->w);
    const act_rows *rows = w->acts.own ? &e->ws->own[w->thread] : &e->ws->act;
    if (of && e->residuals->file) {
        columns_of_file(w, o, of, rows, n0, n1, y);
        return;
    }
    for (int64_t n = n0, end; of && n < n1; n = end) {
        end = NUM_MIN(n + SOME, n1);
        for (int64_t r = 0; r < w->j->cell->n_row; r++)
            e->kernels->residual_add(of, rows->salient + r * e->ws->n_salient, rows->n_salient[r], n, end,
                                     y + r * o->n + n - n0);
    }
}
