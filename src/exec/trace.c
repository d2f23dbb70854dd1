/* trace.c - see trace.h. Equal ops with the same kind of weight share a row over all layers. */
#include "exec/trace.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

enum { MAX_ROWS = 64, PAD_ROWS = 2 /* keeps the cells of two threads in different cache lines */ };

struct op_trace {
    const layout *layout;
    int n_thread, n_row;
    trace_row rows[MAX_ROWS]; /* the op of each row; the times are in cells */
    trace_cell *cells;        /* [n_thread][MAX_ROWS + PAD_ROWS] */
    uint8_t *row_of;          /* [n_block][widest]: the row of each op */
    int widest;
};

/* Writes "q", or "q+k+v" for joined products. */
static void label(const block *b, const op *o, bool fuse, char *out, size_t size) {
    int n = fuse && o->fuse.n_join > 0 ? o->fuse.n_join : 1;
    size_t at = 0;
    out[0] = '\0';
    for (int i = 0; i < n && at < size && o[i].w >= 0; i++)
        at += (size_t)snprintf(out + at, size - at, "%s%s", i ? "+" : "", b->weights[o[i].w].name);
}

/* The row of an op. When all rows are in use, other ops share the last one. */
static int row_for(op_trace *t, const block *b, const op *o, bool fuse) {
    trace_row row = {.kind = o->kind};
    label(b, o, fuse, row.weight, sizeof row.weight);
    for (int i = 0; i < t->n_row; i++)
        if (t->rows[i].kind == o->kind && !strcmp(t->rows[i].weight, row.weight))
            return i;
    if (t->n_row == MAX_ROWS)
        return MAX_ROWS - 1;
    t->rows[t->n_row] = row;
    return t->n_row++;
}

static trace_cell *cells_of(const op_trace *t, int thread) {
    return t->cells + (size_t)thread * (MAX_ROWS + PAD_ROWS);
}

nib_status trace_open(const layout *lay, int n_thread, bool fuse, op_trace **out, nib_error *err) {
    op_trace *t = mem_calloc(1, sizeof *t);
    if (!t)
        return nib_fail_nomem(err, sizeof *t, "the trace");
    t->layout = lay;
    t->n_thread = n_thread;
    for (int b = 0; b < layout_n_block(lay); b++)
        t->widest =
            layout_block(lay, b)->program.n_op > t->widest ? layout_block(lay, b)->program.n_op : t->widest;
    t->cells = mem_calloc((size_t)n_thread * (MAX_ROWS + PAD_ROWS), sizeof *t->cells);
    t->row_of = mem_calloc((size_t)layout_n_block(lay), (size_t)t->widest + 1);
    if (!t->cells || !t->row_of) {
        trace_close(t);
        return nib_fail_nomem(err, (uint64_t)n_thread * MAX_ROWS * sizeof *t->cells, "the trace");
    }
    for (int b = 0; b < layout_n_block(lay); b++)
        for (int i = 0; i < layout_block(lay, b)->program.n_op; i++)
            t->row_of[b * t->widest + i] =
                (uint8_t)row_for(t, layout_block(lay, b), &layout_block(lay, b)->program.ops[i], fuse);
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
    memset(t->cells, 0, (size_t)t->n_thread * (MAX_ROWS + PAD_ROWS) * sizeof *t->cells);
    for (int i = 0; i < t->n_row; i++)
        t->rows[i].calls = 0, t->rows[i].weight_bytes = t->rows[i].macs = 0;
}

trace_cell *trace_at(op_trace *t, int thread, int block_index, int op_index) {
    return cells_of(t, thread) + t->row_of[block_index * t->widest + op_index];
}

void trace_count(op_trace *t, int block_index, int op_index, int n, int64_t n_row) {
    const op *o = &layout_block(t->layout, block_index)->program.ops[op_index];
    trace_row *r = &t->rows[t->row_of[block_index * t->widest + op_index]];
    for (int i = 0; i < n; i++) {
        r->calls++;
        r->weight_bytes += op_weight_bytes(&o[i], (double)n_row);
        r->macs += (double)o[i].cost.macs * (double)n_row;
    }
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
