/* trace.c - see trace.h. Ops that do the same with the same kind of weight in every layer share a row. */
#include "run/trace.h"

#include "base/mem.h"

#include <string.h>

enum { MOST_ROWS = 64, PAD_ROWS = 2 /* threads' cells do not share cache lines */ };

struct op_trace {
    const model *m;
    int n_thread, n_row;
    trace_row rows[MOST_ROWS]; /* what an op is; its times stand in cells */
    trace_cell *cells;         /* [n_thread][MOST_ROWS + PAD_ROWS] */
    uint8_t *row_of;           /* [n_block][widest]: the row of each op */
    int widest;
};

static const char *weight_name(const block *b, const op *o) {
    return o->w >= 0 ? b->weights[o->w].name : NULL;
}

static bool same_name(const char *a, const char *b) {
    return a == b || (a && b && !strcmp(a, b));
}

/* The last row takes whatever no longer has one of its own. */
static int row_for(op_trace *t, const block *b, const op *o) {
    const char *name = weight_name(b, o);
    for (int i = 0; i < t->n_row; i++)
        if (t->rows[i].kind == o->kind && same_name(t->rows[i].weight, name))
            return i;
    if (t->n_row == MOST_ROWS)
        return MOST_ROWS - 1;
    t->rows[t->n_row] = (trace_row){.kind = o->kind, .weight = name};
    return t->n_row++;
}

static trace_cell *cells_of(const op_trace *t, int thread) {
    return t->cells + (size_t)thread * (MOST_ROWS + PAD_ROWS);
}

nib_status trace_open(const model *m, int n_thread, op_trace **out, nib_error *err) {
    op_trace *t = mem_calloc(1, sizeof *t);
    if (!t)
        return nib_fail_nomem(err, sizeof *t, "the trace");
    t->m = m;
    t->n_thread = n_thread;
    for (int b = 0; b < model_n_block(m); b++)
        t->widest = model_block(m, b)->program.n_op > t->widest ? model_block(m, b)->program.n_op : t->widest;
    t->cells = mem_calloc((size_t)n_thread * (MOST_ROWS + PAD_ROWS), sizeof *t->cells);
    t->row_of = mem_calloc((size_t)model_n_block(m), (size_t)t->widest + 1);
    if (!t->cells || !t->row_of) {
        trace_close(t);
        return nib_fail_nomem(err, (uint64_t)n_thread * MOST_ROWS * sizeof *t->cells, "the trace");
    }
    for (int b = 0; b < model_n_block(m); b++)
        for (int i = 0; i < model_block(m, b)->program.n_op; i++)
            t->row_of[b * t->widest + i] =
                (uint8_t)row_for(t, model_block(m, b), &model_block(m, b)->program.ops[i]);
    *out = t;
    return NIB_OK;
}

void trace_close(op_trace *t) {
    if (!t)
        return;
    mem_free(t->cells);
    mem_free(t->row_of);
    mem_free(t);
}

void trace_clear(op_trace *t) {
    memset(t->cells, 0, (size_t)t->n_thread * (MOST_ROWS + PAD_ROWS) * sizeof *t->cells);
    for (int i = 0; i < t->n_row; i++)
        t->rows[i].calls = 0, t->rows[i].weight_bytes = t->rows[i].macs = 0;
}

trace_cell *trace_at(op_trace *t, int thread, int block_index, int op_index) {
    return cells_of(t, thread) + t->row_of[block_index * t->widest + op_index];
}

void trace_count(op_trace *t, int block_index, int op_index, const op *o, int64_t n_row) {
    trace_row *r = &t->rows[t->row_of[block_index * t->widest + op_index]];
    r->calls++;
    r->weight_bytes += (double)o->cost.weight_bytes;
    r->macs += (double)o->cost.macs * (double)n_row;
}

int trace_n_row(const op_trace *t) {
    return t->n_row;
}

void trace_read(const op_trace *t, int row, trace_row *out) {
    *out = t->rows[row];
    for (int i = 0; i < t->n_thread; i++) {
        out->busy += cells_of(t, i)[row].busy;
        out->wait += cells_of(t, i)[row].wait;
    }
}
