/* interpreter.h - the interpreter of op programs: one cell (a block, some rows) at a time, on all threads of
 * a pool.
 *
 * Row-wise ops are split by rows, products by panels of columns, attention by heads and blocks of rows.
 * Threads wait at a barrier only where an op uses data that another thread wrote, which is derived from the
 * ops' registers. With one row each thread quantizes it for itself instead. The split never changes a bit of
 * the answer (kernels.h guarantees it). */
#ifndef NIB_EXEC_CPU_INTERPRETER_H
#define NIB_EXEC_CPU_INTERPRETER_H

#include "base/cancel.h"
#include "exec/probe.h"
#include "exec/cpu/choices.h"
#include "exec/cpu/shortlist.h"
#include "exec/residuals.h"
#include "exec/trace.h"
#include "exec/cpu/workspace.h"
#include "tiers/pager.h"
#include "tiers/visits.h"

typedef struct executor {
    const layout *layout;
    pager *pager; /* of the weights that are being used */
    pool *threads;
    const kernel_table *kernels;
    workspace *ws;
    const choices *choices;  /* which strategy computes which product */
    const uint8_t *act_bits; /* [n_block]: 4, 8 or 16, of what a block's packed weights are multiplied with */
    bool fuse;               /* follow the programs' rewrites (op.fuse); the answers are the same */
    bool sliced;             /* float weights as linear_args.sliced says */
    const residual_use *residuals; /* NULL: none */
    shortlist *best;               /* for OP_SHORTLIST; NULL: the model has none */
    op_trace *trace;               /* NULL: times are not taken */
} executor;

typedef struct exec_cell {
    int block;
    const view *views;       /* the block's, pinned */
    bool other_views;        /* they are not what the model says: products go by the rule, not by choices */
    int act_bits;            /* instead of the executor's; 0: those */
    int64_t row, n_row;      /* rows of the pass */
    const segment *segments; /* [n_segment], of the pass; a layer's cell has rows of one or several */
    int n_segment;
    float *logits;                 /* [n_row, n_vocab] for the head; NULL: the workspace's */
    const hidden_receiver *hidden; /* of the head, NULL: none; instead of logits */
    int64_t hidden_row;            /* the cell's first row among those it is told of */
    const probe *probe;            /* NULL: none; told about these rows: */
    bool best;           /* of logits only the largest one of each row (best.h), which must be possible */
    bool cache_only;     /* only ops that the cache needs (op.fuse.feeds_cache); all matrices are resident */
    int segment;         /* of the cell's first row */
    int64_t segment_row; /* that row in it */
    const canceller *cancel; /* asked between pieces of products; NULL: never */
} exec_cell;

/* Fails only where weights must be read from disk for it, or with NIB_E_CANCELLED: then registers and the
 * caches' positions of this cell may hold anything. */
nib_status exec_cell_run(const executor *e, const exec_cell *now, nib_error *err);

#endif
