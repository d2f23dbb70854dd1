/* residual.c - products that get back what rounding took: the channels of a row are chosen when it becomes
 * integers, by the thread that does that, and every thread adds their part to the columns that it has just
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

void residual_columns(worker *w, const op *o, int64_t n0, int64_t n1, float *y) {
    const executor *e = w->j->e;
    const residual *of = residuals_of(e->residuals, w->j->cell->block, o->w);
    const act_rows *rows = w->acts.own ? &e->ws->own[w->thread] : &e->ws->act;
    for (int64_t n = n0, end; of && n < n1; n = end) {
        end = NUM_MIN(n + SOME, n1);
        for (int64_t r = 0; r < w->j->cell->n_row; r++)
            e->kernels->residual_add(of, rows->salient + r * e->ws->n_salient, rows->n_salient[r], n, end,
                                     y + r * o->n + n - n0);
    }
}
