/* trace.h - where the time of the steps goes: seconds by kind of op, and by weight for products.
 *
 * Off by default; then an op costs one comparison. When on, every thread reads its clocks at the end of an op
 * and around every barrier, into rows of its own; they are summed on request. Work is processor time, so that
 * other load disturbs it little. Waiting at a barrier is wall-clock time and is charged, separately, to the
 * op that needed the barrier. The clocks cost about 0.2 us an op. */
#ifndef NIB_EXEC_TRACE_H
#define NIB_EXEC_TRACE_H

#include "model/layout.h"

typedef struct trace_cell {
    double busy, wait; /* seconds: of processor time; of the wall clock */
    uint64_t calls;
} trace_cell;

/* One line of the report. */
typedef struct trace_row {
    op_kind kind;
    char weight[32];   /* "": the op has none; "q+k+v": joined products */
    uint64_t calls;    /* of one thread: how often the op was executed */
    double busy, wait; /* the same, all threads together */
    double weight_bytes, macs;
} trace_row;

typedef struct op_trace op_trace;

/* fuse: joined products share a row. */
nib_status trace_open(const layout *lay, int n_thread, bool fuse, op_trace **out, nib_error *err);
void trace_close(op_trace *t); /* NULL is fine */
void trace_clear(op_trace *t);

/* The cell in which `thread` adds up the cost of op op_index of a block; never moves. */
trace_cell *trace_at(op_trace *t, int thread, int block_index, int op_index);
/* n ops from op_index on were executed together for n_row rows (called by one thread): all count for the
 * first. */
void trace_count(op_trace *t, int block_index, int op_index, int n, int64_t n_row);

int trace_n_row(const op_trace *t);
void trace_read(const op_trace *t, int row, trace_row *out);

#endif
