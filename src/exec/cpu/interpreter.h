/* interpreter.h - the interpreter of op programs: one cell (the block and the rows of a visit) at a time, on
 * all threads of a pool.
 *
 * Row-wise ops are split by rows, products by panels of columns, attention by heads and blocks of rows.
 * Threads wait at a barrier only where an op uses data that another thread wrote, which is derived from the
 * ops' registers. A single row is quantized by each thread for itself, which saves a barrier. The split never
 * changes a bit of the answer (kernels.h guarantees it). */
#ifndef NIB_EXEC_CPU_INTERPRETER_H
#define NIB_EXEC_CPU_INTERPRETER_H

#include "base/cancel.h"
#include "exec/sums.h"
#include "exec/probe.h"
#include "exec/cpu/ahead.h"
#include "exec/cpu/choices.h"
#include "exec/cpu/shortlist.h"
#include "exec/residuals.h"
#include "exec/trace.h"
#include "exec/cpu/workspace.h"
#include "weights/pager.h"
#include "schedule/visits.h"

struct from_disk;

typedef struct executor {
    const layout *layout;
    pager *pager; /* the pager of the weights */
    pool *threads;
    const kernel_table *kernels;
    workspace *ws;
    const choices *choices;  /* the strategy of each product */
    ahead *ahead;            /* distances of prefetches */
    const uint8_t *act_bits; /* [n_block]: 4, 8 or 16, bits of the activations for a block's packed weights */
    bool fuse;               /* execute the programs' rewrites (op.fuse); the answers are the same */
    bool sliced;             /* float weights by slices (linear_args.sliced) */
    float sparse_v;          /* attend_args.top */
    bool sparse_v_raw;
    const residual_use *residuals; /* NULL: none */
    shortlist *best;               /* state of OP_SHORTLIST; NULL: the model has no such op */
    struct from_disk *on_disk;     /* layers whose keys and values are on a disk */
    rank_sums *sums;               /* of OP_REDUCE; NULL: the model has no such op */
    op_trace *trace;               /* NULL: times are not measured */
} executor;

typedef struct exec_cell {
    int block;
    visit_part part;
    int64_t bank;            /* visit.bank */
    const view *views;       /* the block's weights, pinned */
    bool other_views;        /* the views are not the model's, so the rule decides, not `choices` */
    int act_bits;            /* overrides the executor's; 0: does not */
    int64_t row, n_row;      /* rows of the pass */
    const segment *segments; /* [n_segment] of the pass; the cell of a layer may have rows of several */
    int n_segment;
    float *logits;                 /* [n_row, n_vocab] for the head; NULL: those of the workspace */
    const hidden_receiver *hidden; /* for the head: receives hidden states instead of logits; NULL: none */
    int64_t hidden_row;            /* number of the cell's first row among those that `hidden` receives */
    const probe *probe;            /* receives data of these rows; NULL: none */
    bool best;       /* only the largest logit of each row is computed (best.h); best_can() must be true */
    bool cache_only; /* only ops that the KV cache needs are run (op.fuse.feeds_cache); all matrices are
                        resident */
    int segment;     /* segment of the cell's first row */
    int64_t segment_row;                   /* number of that row in the segment */
    const struct backend_experts *experts; /* with part VISIT_EXPERTS */
    const canceller *cancel;               /* polled between pieces of products; NULL: never */
} exec_cell;

/* Runs a cell; blocks until it is computed. Fails with NIB_E_CANCELLED, or if weights must be read from disk
 * and a read fails. Then registers and this cell's positions in the KV caches are undefined. */
nib_status exec_cell_run(const executor *e, const exec_cell *now, nib_error *err);

#endif
