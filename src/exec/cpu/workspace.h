/* workspace.h - every register, table and scratch buffer of a pass, laid out before the first token.
 *
 * A pass computes up to n_pass rows. The residual stream and the rotary tables hold all of them; the other
 * registers hold the n_cell rows that go through a block together, and the logits n_head rows. So a streamed
 * block is read once for a long prompt while the scratch stays small. */
#ifndef NIB_EXEC_CPU_WORKSPACE_H
#define NIB_EXEC_CPU_WORKSPACE_H

#include "kernels/kernels.h"
#include "model/layout.h"
#include "tiers/region.h"

enum {
    WORKSPACE_ROPE_MAX = 8,
    MIN_SOON = 4 /* sequences of a pass whose keys and values are prefetched during products */
};

/* Rows as integers. With 16 bits a row has a second one for what the first left over: in `residual`, or
 * behind the only row in `codes` where `residual` is NULL; with fewer it may have outliers (product.c). */
typedef struct act_rows {
    uint8_t *codes, *residual;
    uint8_t *has_residual; /* one byte a row: 0 or 1 */
    uint8_t *n_outlier;    /* likewise */
    outlier *outliers;     /* ACT_OUTLIERS for each row */
    int32_t *n_salient;    /* of each row's channels that residuals are added for */
    salient *salient;      /* workspace.n_salient for each row */
} act_rows;

/* How passes use it: what of it becomes resident depends on that. */
typedef struct workspace_use {
    int64_t n_row;  /* rows of the longest pass */
    bool norms;     /* normed rows are stored as floats even where products read integers: nothing is fused */
    bool residuals; /* every row has a second one: 16-bit activations. Else none has */
    bool sliced;    /* float weights may be computed with bf16 tiles, which takes scratch */
    int64_t k_chunk; /* of residuals (exec/residuals.h); 0: there are none */
} workspace_use;

typedef struct workspace {
    int64_t n_pass, n_cell, n_head;
    float *reg[REG_COUNT];
    act_rows act;            /* n_cell rows of one register */
    act_rows *own;           /* [n_thread]: one row for each thread */
    soon_list *soon;         /* [n_thread]: what products prefetch; unused below MIN_SOON sequences */
    float *residual_product; /* a thread's buffer for products that are added: residual_width floats for each
                                thread */
    int64_t residual_width;
    int64_t n_salient;                  /* a row's, of the widest product */
    int32_t *salient_at;                /* n_salient for each thread */
    int64_t salient_k;                  /* the widest product's inputs, of which channels are chosen */
    float *salient_row;                 /* salient_k for each thread */
    float *cos_sin[WORKSPACE_ROPE_MAX]; /* [n_pass, n_rot] for each table */
    float *inv_freq;
    int32_t *best_ids;  /* [n_head]: read_best's */
    float *best_logits; /* [n_head] */
    int32_t *tokens;    /* [n_pass] */
    int64_t *positions; /* [n_pass], in the rows' own sequences */
    uint8_t *scratch;   /* n_thread times scratch_each */
    size_t scratch_each;
    size_t scratch_beside; /* of that, what others than products use */
    int n_thread;
    const layout *layout; /* borrowed */

    tier_region memory;
    workspace_use use;
    uint64_t pass_row, cell_row, head_row;   /* bytes that are used of a row of each kind */
    uint64_t fixed;                          /* and beside rows and scratch */
    int64_t seen_pass, seen_cell, seen_head; /* the most rows used */
} workspace;

/* Charges and maps. n_head rows of logits are kept only for evaluation; one row is the session's own. n_row
 * of `use` is not asked for. */
nib_status workspace_open(workspace *ws, const layout *lay, ledger *l, int n_thread, int64_t n_pass,
                          int64_t n_cell, int64_t n_head, workspace_use use, nib_error *err);
void workspace_close(workspace *ws); /* zeroed is fine */
/* What workspace_open would promise, and in *touched (NULL: not asked) what of it such use makes resident. */
uint64_t workspace_bytes(const layout *lay, int n_thread, int64_t n_pass, int64_t n_cell, int64_t n_head,
                         const workspace_use *use, uint64_t *touched);
/* Rows are about to be used: tells the ledger what becomes resident. */
void workspace_reach(workspace *ws, int64_t n_pass, int64_t n_cell, int64_t n_head);

/* Rows [row, row + n_row) of a pass are these tokens [n_row] of a sequence, at positions first...: also their
 * cosines and sines. length is the whole sequence's. */
void workspace_rows(workspace *ws, const model *m, int64_t row, int64_t first, int64_t n_row, int64_t length,
                    const int32_t *tokens);

#endif
