/* recurrent.c - ops with a recurrent state: threads split channels or heads, and go through the rows of each
 * sequence in order. */
#include "exec/recurrent.h"

#include "base/num.h"
#include "exec/cpu/worker.h"

static const float *rows_at(const worker *w, reg r, int64_t row, int64_t width) {
    return r == REG_NONE ? NULL : worker_at(w, r, row, width);
}

/* A convolution is split like the products and element-wise ops beside it, so that no barrier is needed. */
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
        const int64_t first = NUM_MAX(s->row, c->row);
        const int64_t n = NUM_MIN(s->row + s->n_row, c->row + c->n_row) - first, row = first - c->row;
        if (n <= 0)
            continue;
        const recurrent_rows rows = {.x = rows_at(w, o->in, row, o->k),
                                     .x2 = rows_at(w, o->in2, row, op_width2(o)),
                                     .x3 = rows_at(w, o->in3, row, op_width3(o)),
                                     .out = worker_at(w, o->out, row, o->n),
                                     .n_row = n,
                                     .begins = s->position + first == s->row,
                                     .state = s->kv->state.at,
                                     .w = worker_vector(w, o->w),
                                     .b = worker_vector(w, o->b),
                                     .skip = worker_vector(w, o->w2)};
        recurrent_run(w->j->e->kernels, o, &rows, p0, p1);
    }
}
