/* trace.h - measures the time of passes: seconds for each kind of op, and for products by weight.
 *
 * It is off by default; then an op costs one comparison. When it is on, every thread reads its clocks at the
 * end of an op and around every barrier, and adds to its own cells, which are summed on request. Work is
 * processor time, so that other load has little effect. Waiting at a barrier is wall-clock time. It is
 * counted separately, for the op that needed the barrier. The clocks cost about 0.2 us an op. */
#ifndef NIB_EXEC_TRACE_H
#define NIB_EXEC_TRACE_H

#include "model/layout.h"

typedef struct trace_cell {
    double busy, wait; /* seconds: busy is processor time, wait is wall-clock time */
} trace_cell;

/* One line of the report. */
typedef struct trace_row {
    op_kind kind;
    char weight[32];   /* "": the op has no weight; "q+k+v": joined products */
    uint64_t calls;    /* how often a thread executed the op */
    double busy, wait; /* seconds of all threads together */
    double weight_bytes, macs;
} trace_row;

typedef struct op_trace op_trace;

/* Allocates a trace. fuse: joined products share a row. NIB_E_NOMEM. */
nib_status trace_open(const layout *lay, int n_thread, bool fuse, op_trace **out, nib_error *err);
void trace_close(op_trace *t); /* NULL is fine */
void trace_clear(op_trace *t);

/* The cell to which `thread` adds the cost of op op_index of a block. Its address never changes. */
trace_cell *trace_at(op_trace *t, int thread, int block_index, int op_index);
/* Counts n ops from op_index on that were executed together for n_row rows; all count as the first. One
 * thread calls it. */
void trace_count(op_trace *t, int block_index, int op_index, int n, int64_t n_row);

int trace_n_row(const op_trace *t);
void trace_read(const op_trace *t, int row, trace_row *out);

#endif
