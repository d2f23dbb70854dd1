/* workspace.h - every register, table and scratch buffer of a pass, laid out before the first token.
 *
 * A pass computes up to n_pass rows. The residual stream and the rotary tables hold all of them; the other
 * registers hold the n_cell rows that go through a block together, and the logits n_head rows. So a streamed
 * block is read once for a long prompt while the scratch stays small. */
#ifndef NIB_EXEC_CPU_WORKSPACE_H
#define NIB_EXEC_CPU_WORKSPACE_H

#include "kernels/kernels.h"
#include "model/layout.h"
#include "memory/region.h"

enum {
    WORKSPACE_MAX_ROPE = 8,
    MIN_PREFETCH_SEQUENCES = 4 /* minimum sequences of a pass for which products prefetch keys and values */
};

/* Quantized rows. A row of 16 bits has a second row of codes with the residual of the first: in `residual`,
 * or, if that is NULL, after the only row in `codes`. A row of 4 or 8 bits may have outliers (product.c). */
typedef struct act_rows {
    uint8_t *codes, *residual;
    uint8_t *has_residual; /* one byte a row: 0 or 1 */
    uint8_t *n_outlier;    /* one byte a row */
    outlier *outliers;     /* ACT_OUTLIERS for each row */
    int32_t *n_salient;    /* [rows]: number of a row's channels that get residuals */
    salient *salient;      /* workspace.n_salient entries for each row */
} act_rows;

/* A thread's memory for the products with experts (experts.c). */
enum {
    EXPERT_ROWS = 32, /* rows and columns at a time */
    EXPERT_COLUMNS = 256,
    EXPERT_APART = 4 /* maximum rows of a cell whose experts' outputs are kept apart until they are added */
};
typedef struct expert_rows {
    int32_t *first; /* [n_expert + 2]: where an expert's pairs begin */
    int32_t *pairs; /* [n_cell * n_used] */
    act_rows act;   /* EXPERT_ROWS gathered rows */
    float *x;       /* the same as floats */
    float *y;       /* [EXPERT_ROWS, EXPERT_COLUMNS] */
} expert_rows;

/* How passes use the workspace, which determines the bytes that become resident. */
typedef struct workspace_use {
    int64_t n_row; /* maximum rows of a pass */
    bool norms; /* normed rows are also stored as floats if products read them quantized, because nothing is
                   fused */
    bool residuals;  /* 16-bit activations: every row has a second row of codes */
    bool sliced;     /* products with float weights may use bf16 tiles, which need scratch */
    int64_t k_chunk; /* channels of each 1,024 that get residuals (exec/residuals.h); 0: none */
    int64_t n_top;   /* positions that attention chooses values from; 0: it reads all */
    bool coded;      /* a layer has keys and values in codes */
} workspace_use;

typedef struct workspace {
    int64_t n_pass, n_cell, n_head;
    float *reg[REG_MAX];
    act_rows act;            /* n_cell rows, quantized from one register */
    act_rows *own;           /* [n_thread]: one row for each thread */
    expert_rows *experts;    /* [n_thread]; NULL: the model has none */
    float *apart;            /* [EXPERT_APART, n_used * n]: outputs of experts before they are added */
    prefetch_list *prefetch; /* [n_thread]: ranges that products prefetch; unused below MIN_PREFETCH_SEQUENCES
                                sequences */
    float *residual_product; /* a thread's buffer for products that are added: residual_width floats for each
                                thread */
    int64_t residual_width;
    int64_t n_salient;                  /* maximum channels that a row chooses */
    int32_t *salient_at;                /* n_salient entries for each thread */
    int64_t salient_k;                  /* inputs of the widest product */
    float *salient_row;                 /* salient_k entries for each thread */
    float *cos_sin[WORKSPACE_MAX_ROPE]; /* [n_pass, n_rot] for each table */
    float *inv_freq;
    int32_t *best_ids;  /* [n_head]: result of read_best */
    float *best_logits; /* [n_head] */
    int32_t *tokens;    /* [n_pass] */
    int64_t *positions; /* [n_pass], in the rows' own sequences */
    uint8_t *scratch;   /* n_thread times scratch_each */
    size_t scratch_each;
    size_t scratch_beside; /* bytes of scratch_each that ops other than products use */
    int n_thread;
    const layout *layout; /* borrowed */

    memory_region memory;
    workspace_use use;
    uint64_t pass_row, cell_row, head_row;   /* used bytes of a row of each kind */
    uint64_t fixed;                          /* used bytes that are neither rows nor scratch */
    int64_t seen_pass, seen_cell, seen_head; /* maximum rows used so far */
} workspace;

/* Charges and maps the memory, of a device that is the host's. n_head: rows of logits, more than one only for
 * evaluation. use.n_row is ignored. NIB_E_NOFIT, NIB_E_NOMEM; NIB_E_MODEL: the model has too many rotary
 * tables. */
nib_status workspace_open(workspace *ws, const layout *lay, device *d, ledger *l, int n_thread,
                          int64_t n_pass, int64_t n_cell, int64_t n_head, workspace_use use, nib_error *err);
void workspace_close(workspace *ws); /* zeroed is fine */
/* Returns the bytes that workspace_open would charge. *touched (may be NULL): the bytes that such use makes
 * resident. */
uint64_t workspace_bytes(const layout *lay, int n_thread, int64_t n_pass, int64_t n_cell, int64_t n_head,
                         const workspace_use *use, uint64_t *touched);
/* Reports to the ledger the memory that becomes resident, before these rows are used. */
void workspace_reach(workspace *ws, int64_t n_pass, int64_t n_cell, int64_t n_head);

/* Sets rows [row, row + n_row) of a pass: tokens [n_row] of a sequence at positions from `first` on, and
 * their cosines and sines. length: of the whole sequence. */
void workspace_rows(workspace *ws, const model *m, int64_t row, int64_t first, int64_t n_row, int64_t length,
                    const int32_t *tokens);

#endif
