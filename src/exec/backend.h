/* backend.h - what computes: the contract between the step loop and a device.
 *
 * A back end runs the programs of a layout's blocks (model/program.h) on rows of a batch. How it does that
 * (threads and micro-kernels, a graph of launches, plain C) is its own affair, and so is its memory:
 * registers are never seen from outside, and what somebody wants of them is read by a call that gives host
 * memory.
 *
 *     open   reserve   ( begin   run*   end )*   close
 *
 * `begin` is told the rows of a pass: sequences, positions, tokens, and where their keys and values are,
 * which is memory of the back end's own device. `run` goes through a block with some of the rows; the step
 * loop has acquired the block's weights and releases them afterwards (tiers/acquire.h). A back end may queue
 * what it is asked for and compute later: an error of a run may come out of a later call, and reads wait.
 * Weights that are not `replaced` are the same in every pass, so it may keep copies of them. `end` comes
 * after every `begin` that returned NIB_OK, also after an error in between; nothing is queued any more when
 * it returns.
 *
 * One pass at a time, and all calls by one thread at a time.
 *
 * A new back end is a folder exec/NAME/ with one `const backend_kind`, declared below, and a row of the list
 * in backend.c; a device of its own (tiers/device.h) where its memory is not the host's. exec/check/ is the
 * smallest one. tests/test_exec_check.c shows what to compare. */
#ifndef NIB_EXEC_BACKEND_H
#define NIB_EXEC_BACKEND_H

#include "base/cancel.h"
#include "base/log.h"
#include "base/thread.h"
#include "exec/probe.h"
#include "exec/residuals.h"
#include "exec/trace.h"
#include "kernels/logit_change.h"
#include "kernels/policy.h"
#include "plan/planner.h"
#include "tiers/acquire.h"

/* What it computes for. Everything is borrowed and outlives the back end, except `kernels` and `rates`. */
typedef struct backend_setup {
    const layout *layout;
    int n_thread;
    pool *threads; /* n_thread of the host's, which nobody else uses during a call; NULL: only sizes are asked
                      for */
    ledger *ledger;
    const logger *log;
    const uint8_t *act_bits; /* [n_block]: 4, 8 or 16, of what a block's packed weights are multiplied with */
    bool a16;                /* some of them are 16 */
    bool fuse;               /* follow the programs' rewrites (op.fuse); the answers are the same */
    int max_layers;          /* whose weights a device keeps, at most; 0: as many as fit */
    bool sliced;             /* float weights as linear_args.sliced says, where it can */
    type_id kv_type;         /* of keys and values that n_kept was counted with */
    int64_t k_chunk;         /* of residuals; 0: none */
    const residual_use *residuals; /* with k_chunk, when more than sizes are asked for; else NULL */
    const policy *kernels;         /* the kernel map; NULL: none */
    const plan_rates *rates; /* of this machine, for a device that the host computes beside; else NULL */
} backend_setup;

/* Rows that there is room for: of a pass, of one run of a layer, of one run of the head. */
typedef struct backend_rows {
    int64_t n_pass, n_cell, n_head;
    uint64_t n_kept; /* bytes of the device that others take later: keys and values of sequences */
} backend_rows;

/* Changes of logits before the largest of a row are looked for. */
typedef struct logit_changer {
    /* Of a row of a segment, from its head_row on: how many changes there are now at `out`; and the row's
     * penalties. Called once for each such row, in their order, when the pass begins. */
    int64_t (*changes)(void *user, int segment, int64_t row, logit_change *out, logit_row *how);
    void *user;
    int64_t n_max; /* of all rows together, at most the back end's max_changes */
} logit_changer;

/* One pass. Valid until its end. */
typedef struct backend_pass {
    const segment *segments; /* [n_segment], one after the other in the pass's rows. Their kv_tables have
                                pages for the rows, of the back end's device */
    int n_segment;
    int64_t n_head; /* rows of logits of one run, at most */
    float *logits; /* host memory [n_vocab], which gets the logits of the one row that has any; NULL: they are
                      read */
    const probe *probe; /* NULL: none; else it is told of what flows through layers */
    bool plain;         /* all blocks, in their order, and nobody looks or changes anything between them */
    int32_t n_best;     /* 0: all logits; else logits are read by read_best alone, so many of each row */
    const logit_changer *changer; /* with n_best; NULL: logits are as they are */
    const hidden_taker *hidden;   /* NULL: none; else no logits are computed */
    const canceller *cancel;      /* asked while it computes; NULL: never */
} backend_pass;

/* Rows of the pass go through a block. Valid during the call, the weights too. */
typedef struct backend_run {
    visit visit;         /* the head comes after everything else */
    const visits *rest;  /* the visits behind it, for what a back end copies ahead */
    int segment;         /* of the visit's first row */
    int64_t segment_row; /* that row in it */
    acquired weights;    /* the block's, acquired where the back end says (backend.blocks) */
    bool replaced;       /* not what the model says, and in host memory: for measuring */
    pager *pager; /* for weights without data: matrices in host memory that are streamed, by pager_fetch in
                     the order of the program; tables that are looked up, by pager_read_row */
    int act_bits; /* instead of the setup's; 0: those */
} backend_run;

typedef struct backend backend;

typedef struct backend_kind {
    const char *name; /* as people type it */
    int tier; /* of its memory. NIB_TIER_VRAM: keys and values are not in f32, matrices in PACK_PARTS, and
                 the processor's kernel map is not for it */
    int64_t n_batch; /* rows of a prompt in one pass when nobody asked for a number and its memory has no cap;
                        0: the engine's own */
    /* NIB_E_DEVICE: this build or this machine has none. */
    nib_status (*open)(const backend_setup *s, backend **out, nib_error *err);
    void (*close)(backend *b);

    /* Bytes that `reserve` promises to the ledger as activations; *touched (NULL: not asked) what of them a
     * pass of n_row rows makes resident. Pure. */
    uint64_t (*row_bytes)(const backend_setup *s, const backend_rows *rows, int64_t n_row, uint64_t *touched);
    /* Room for so many rows, instead of what there was. */
    nib_status (*reserve)(backend *b, const backend_rows *rows, nib_error *err);

    nib_status (*begin)(backend *b, const backend_pass *p, nib_error *err);
    /* NIB_E_CANCELLED, or an error of reading weights: the rows' registers and their positions in the caches
     * may hold anything. */
    nib_status (*run)(backend *b, const backend_run *r, nib_error *err);
    void (*end)(backend *b);

    /* The residual stream of n_row rows of the pass [n_row, d_model]: host memory, the back end's, valid
     * until its next call. What a pass leaves there is found by the next one, unless the head was run. */
    nib_status (*read_stream)(backend *b, int64_t row, int64_t n_row, const float **out, nib_error *err);
    nib_status (*write_stream)(backend *b, int64_t row, int64_t n_row, const float *x, nib_error *err);
    /* The first n_row rows of logits of the last run [n_row, n_vocab], likewise. */
    nib_status (*read_logits)(backend *b, int64_t n_row, const float **out, nib_error *err);
    /* Of a pass with n_best: the n_best largest logits of these rows and their tokens [n_row, n_best], the
     * largest first, of equal ones the first token first. A NaN is the smallest. */
    nib_status (*read_best)(backend *b, int64_t n_row, const int32_t **ids, const float **logits,
                            nib_error *err);
    int32_t max_best;    /* n_best of a pass, at most; 0: it does not look for them, and read_best is NULL */
    int64_t max_changes; /* of a pass's logits before, at most */

    /* Where its time goes from now on; *out is the back end's. NULL: it does not know. */
    nib_status (*trace)(backend *b, op_trace **out, nib_error *err);

    /* A device that computes apart from the host: what it does from now on, and when, as
     * nib_engine_spans_start and _stop say. NULL: it has no such clock. */
    nib_status (*spans_start)(backend *b, size_t max, nib_span_scale *scale, nib_error *err);
    nib_status (*spans_stop)(backend *b, nib_span *out, size_t *n, size_t *n_dropped, nib_error *err);

    /* OP_SHORTLIST (exec/shortlist.h). shortlist_bytes NULL: it has none, and heads are computed as a whole.
     */
    bool (*shortlist_bytes)(const layout *lay, int n_thread, int n_best, uint64_t *bytes, uint64_t *staging);
    nib_status (*shortlist_open)(backend *b, int n_best, const canceller *cancel, uint64_t *n_read,
                                 nib_error *err);
    /* The head is computed as a whole after all, as in `whole`, which is otherwise the setup's layout and
     * replaces it. Before `reserve`. */
    void (*shortlist_close)(backend *b, const layout *whole);
    double (*shortlist_share)(const backend *b); /* of the head's rows, those that were computed exactly */
} backend_kind;

/* What every kind's own struct begins with. */
struct backend {
    const backend_kind *kind;
    device *device;      /* where keys and values are to be */
    const bool *on_host; /* [layers of keys and values], those that are to be in `host`; NULL: none */
    device *host;
    const bool *keeps;         /* [n_block]: it copies the weights that the block's products read at the first
                                  visit, and reads them from nowhere else afterwards; NULL: of none */
    uint64_t kept[NIB_N_TIER]; /* with on_host: what of rows.n_kept each tier has */
    device_pages *blocks;      /* its memory, where weights are acquired; NULL: in host memory */
    backend_rows rows;         /* as reserved */
};

extern const backend_kind backend_cpu, backend_check, backend_cuda;

/* The kind of that name (NULL: the first one); NIB_E_DEVICE says which there are. */
nib_status backend_find(const char *name, const backend_kind **out, nib_error *err);

#endif
