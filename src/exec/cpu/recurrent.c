/* recurrent.c - ops with a recurrent state: threads split channels or heads, and go through the rows of each
 * sequence in order. */
#include "exec/recurrent.h"

#include "base/num.h"
#include "exec/cpu/worker.h"

static const float *rows_at(const worker *w, reg r, int64_t row, int64_t width) {
    return r == REG_NONE ? NULL : worker_at(w, r, row, width);
}

/* Rows [row, row + n) of the cell, which are a segment's from its row `from` on. */
static void run_rows(const worker *w, const op *o, const segment *s, int64_t row, int64_t from, int64_t n,
                     int64_t p0, int64_t p1) {
    const recurrent_rows rows = {.x = rows_at(w, o->in, row, o->k),
                                 .x2 = rows_at(w, o->in2, row, op_width2(o)),
                                 .x3 = rows_at(w, o->in3, row, op_width3(o)),
                                 .out = worker_at(w, o->out, row, o->n),
                                 .n_row = n,
                                 .position = s->position + from,
                                 .begins = s->position + from == 0,
                                 .state = s->kv->state.at,
                                 .w = worker_vector(w, o->w),
                                 .b = worker_vector(w, o->b),
                                 .skip = worker_vector(w, o->w2)};
    recurrent_run(w->j->e->kernels, o, &rows, p0, p1);
    if (s->kv->save_to && s->kv->save_at == s->position + from + n)
        recurrent_copy(o, s->kv->state.at, s->kv->save_to, p0, p1);
}

/* A convolution is split like the products and element-wise ops beside it, so that no barrier is needed. A
 * sequence's rows are cut where its checkpoint is. */
void run_recurrent(worker *w, const op *o) {
    const exec_cell *c = w->j->cell;
    const bool columns = o->kind == OP_CONV;
    const int64_t split = columns ? SPLIT_COLUMNS + o->n : SPLIT_OTHER;
    int64_t p0, p1;
    worker_enter(
        w,
        (access[]){
            {o->in, split, false}, {o->in2, split, false}, {o->in3, split, false}, {o->out, split, true}},
        4);
    pool_split(recurrent_n_part(o), columns ? PACK_PANEL : 1, w->thread, w->n_thread, &p0, &p1);
    for (int i = 0; i < c->n_segment && p0 < p1 && !job_is_dropped(w->j); i++) {
        const segment *s = &c->segments[i];
        const int64_t end = NUM_MIN(s->row + s->n_row, c->row + c->n_row);
        for (int64_t row = NUM_MAX(s->row, c->row), n; row < end; row += n) {
            const int64_t left = s->kv->save_at - s->position - (row - s->row);
            n = left > 0 ? NUM_MIN(left, end - row) : end - row;
            run_rows(w, o, s, row - c->row, row - s->row, n, p0, p1);
        }
    }
}
