/* residual.c - products with rounding residuals: the thread that quantizes a row chooses the row's channels.
 * Every thread adds the residuals' contribution to the columns that it has just computed. */
#include "exec/cpu/worker.h"

#include "base/num.h"

/* Columns at a time, so that the residuals of a channel that several rows have chosen stay in the cache. */
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

static const act_rows *rows_of(const worker *w) {
    return w->acts.own ? &w->j->e->ws->own[w->thread] : &w->j->e->ws->act;
}

static residual_rows chosen_rows(const worker *w, const op *o, const residual *of) {
    const executor *e = w->j->e;
    const act_rows *rows = rows_of(w);
    return (residual_rows){of,
                           e->residuals->at[e->residuals->first[w->j->cell->block] + o->w],
                           rows->salient,
                           rows->n_salient,
                           e->ws->n_salient,
                           w->j->cell->n_row};
}

void residual_request(worker *w, const op *o, int64_t n0, int64_t n1) {
    const residual_use *use = w->j->e->residuals;
    const residual *of = residuals_of(use, w->j->cell->block, o->w);
    if (!of || !use->readers)
        return;
    const residual_rows rows = chosen_rows(w, o, of);
    residual_reader_request(use->readers[w->thread], &rows, 0, n0, n1);
}

/* residual_columns for residuals in a file, piece by piece. The first piece is already requested. */
static void columns_of_file(worker *w, const op *o, const residual *of, int64_t n0, int64_t n1, float *y) {
    const executor *e = w->j->e;
    const residual_rows rows = chosen_rows(w, o, of);
    residual_reader *reader = e->residuals->readers[w->thread];
    nib_error why;
    for (residual_piece p = {.end = n0}; p.end < n1 || p.end_row < rows.n_row;) {
        if (p.end_row == rows.n_row)
            residual_reader_request(reader, &rows, 0, p.end, n1);
        else if (p.end_row > 0)
            residual_reader_request(reader, &rows, p.end_row, p.n0, p.end);
        const nib_status status = residual_reader_wait(reader, &p, &why);
        if (status != NIB_OK)
            fail(w->j, &why);
        if (status != NIB_OK || job_is_dropped(w->j))
            return;
        for (int64_t r = p.row; r < p.end_row; r++) {
            const int32_t n = rows.n_chosen[r];
            const salient *local = residual_reader_local(reader, rows.chosen + r * rows.max_chosen, n);
            e->kernels->residual_add(&p.part, local, n, p.n0 - p.base, p.end - p.base,
                                     y + r * o->n + p.n0 - n0);
        }
    }
}

void residual_columns(worker *w, const op *o, int64_t n0, int64_t n1, float *y) {
    const executor *e = w->j->e;
    const residual *of = residuals_of(e->residuals, w->j->cell->block, o->w);
    const act_rows *rows = rows_of(w);
    if (of && e->residuals->readers) {
        columns_of_file(w, o, of, n0, n1, y);
        return;
    }
    for (int64_t n = n0, end; of && n < n1; n = end) {
        end = NUM_MIN(n + SOME, n1);
        for (int64_t r = 0; r < w->j->cell->n_row; r++)
            e->kernels->residual_add(of, rows->salient + r * e->ws->n_salient, rows->n_salient[r], n, end,
                                     y + r * o->n + n - n0);
    }
}
