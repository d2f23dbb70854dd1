/* backend.h - the contract between the step loop and a back end, which computes.
 *
 * A back end runs the programs of a layout's blocks (model/program.h) on rows of a batch. Its method (threads
 * and micro-kernels, a graph of launches, plain C) and its memory are internal: other modules never see its
 * registers, and calls copy their contents to host memory.
 *
 *     open   reserve   ( begin   run*   end )*   close
 *
 * `begin` gets the rows of a pass: sequences, positions, tokens, and their KV tables, whose pages are memory
 * of the back end's own device. `run` computes a block for some of the rows; the step loop has acquired the
 * block's weights and releases them afterwards (weights/acquire.h). A back end may queue the work and compute
 * later. Then a later call returns the error of a run, and reads wait for the work. Weights that are not
 * `replaced` are the same in every pass, so the back end may keep copies. `end` follows every `begin` that
 * returned NIB_OK, also after an error; when it returns, nothing is queued. Its error is that of queued work:
 * then the pass has failed.
 *
 * One pass at a time, and one calling thread at a time.
 *
 * A new back end is a folder exec/NAME/ with one `const backend_kind`, declared below, and a row of the list
 * in backend.c. If its memory is not the host's, it needs a device (memory/device.h). exec/check/ is the
 * smallest one. tests/test_exec_check.c shows what to compare. */
#ifndef NIB_EXEC_BACKEND_H
#define NIB_EXEC_BACKEND_H

#include "base/cancel.h"
#include "base/log.h"
#include "base/thread.h"
#include "exec/probe.h"
#include "exec/residuals.h"
#include "exec/sums.h"
#include "exec/trace.h"
#include "kernels/logit_change.h"
#include "kernels/kernel_map.h"
#include "plan/planner.h"
#include "weights/acquire.h"

/* Constants of a back end. Everything is borrowed and outlives the back end, except `kernels`. */
typedef struct backend_setup {
    const layout *layout;
    int n_thread;
    pool *threads; /* the host's, used by no other module during a call; NULL: only sizes are computed */
    ledger *ledger;
    const memory_places *places;
    int place; /* of the back end's memory */
    const logger *log;
    const uint8_t *act_bits; /* [n_block]: bits of the activations for a block's packed weights: 4, 8, 16, or
                                NIB_ACT_AX for 4 and 8 (weight.n8) */
    bool a16;                /* some blocks have 16 */
    bool fuse;               /* execute the programs' rewrites (op.fuse); the answers are the same */
    int n_cpu_experts;       /* homes_question.n_cpu_experts */
    int max_layers;          /* maximum number of layers whose weights a device keeps; 0: as many as fit */
    int n_attended;          /* of a plan that is followed (homes_question.n_attended) */
    bool sliced;             /* float weights by slices (linear_args.sliced), if supported */
    kv_formats kv;           /* of keys and values, with which backend_rows.n_kept was computed */
    device *disk;            /* where layers are on the disk (kv.on_disk); NULL: only sizes are computed */
    int64_t k_chunk;         /* channels of each 1,024 that get residuals (exec/residuals.h); 0: none */
    int n_sequence;          /* maximum number of sequences that decode together; 0: one */
    int64_t n_ctx;           /* positions of one; 0: unknown */
    float sparse_v;          /* attend_args.top, and its top_raw */
    bool sparse_v_raw;
    const residual_use *residuals; /* not NULL if k_chunk > 0, unless only sizes are computed */
    rank_sums *sums; /* over the ranks that share the model's layers; NULL: the model is whole */
    bool whole_head; /* all logits are computed, without estimates that find the largest (cpu/best.h) */
    bool sketch;    /* a device makes a sketch of the head whenever it can, not only if it is worth the memory
                       (exec/shortlist.h) */
    int32_t n_best; /* maximum number of the largest logits that sampling reads; 0: all */
    const kernel_map *kernels; /* the kernel map; NULL: none */
} backend_setup;

/* Maximum rows: of a pass, of a cell (one run of a layer), of one run of the head. */
typedef struct backend_rows {
    int64_t n_pass, n_cell, n_head;
    uint64_t n_kept; /* bytes of the device that other modules allocate later: KV pages */
} backend_rows;

/* Changes of logits before the largest ones of a row are selected. */
typedef struct logit_processor {
    /* Writes the changes of a segment's row to `out` and its penalties to `how`, and returns the number of
     * changes. Called once for each row from the segment's head_row on, in order, when the pass begins. */
    int64_t (*changes)(void *user, int segment, int64_t row, logit_change *out, logit_row *how);
    void *user;
    int64_t n_max; /* maximum changes of all rows together, at most backend_kind.max_changes */
} logit_processor;

/* One pass. Valid until its end. */
typedef struct backend_pass {
    const segment *segments; /* [n_segment], one after the other in the pass's rows. Their KV tables have
                                pages of the back end's device for the rows */
    int n_segment;           /* with backend.by_role: those of generated rows come first */
    int64_t n_head;          /* maximum rows of logits in one run */
    float *logits; /* host memory [n_vocab] for the logits, if only one row has any; NULL: read_logits reads
                      them */
    const probe *probe; /* receives the data at points of the layers; NULL: none */
    bool plain; /* the pass runs all blocks in order, and nobody reads or writes the residual stream between
                   them */
    int32_t n_best; /* 0: all logits are needed; otherwise the largest of each row (read_best) */
    const logit_processor *processor; /* with n_best; NULL: no changes */
    const hidden_receiver *hidden;    /* receives hidden states, and no logits are computed; NULL: none */
    bool attends; /* its visits are only parts with attention, whose inputs are put into registers */
    const canceller *cancel; /* polled during the computation; NULL: never */
} backend_pass;

/* What a visit of VISIT_EXPERTS computes: the outputs of pairs of a row and one of its experts, before they
 * are weighted and added up. The inputs are in the registers of the block's first op with experts. */
typedef struct backend_experts {
    const int16_t *here; /* [n_expert]: not negative: the expert is left out; NULL: none is */
    float *to;           /* [n_row * n_used, n]: pair i of all the visit's rows at i * n */
} backend_experts;

/* One visit: rows of the pass and a block. It and its weights are valid during the call. */
typedef struct backend_run {
    visit visit;         /* the head is visited last */
    const visits *rest;  /* the visits after it, for prefetching */
    int segment;         /* segment of the visit's first row */
    int64_t segment_row; /* that row in the segment */
    acquired weights;    /* the block's weights, acquired in backend.store */
    bool replaced;       /* the weights are not the model's and are in host memory (measurements) */
    const backend_experts *experts; /* of a visit of VISIT_EXPERTS */
    pager *pager; /* gives weights that have no data: streamed matrices in host memory, by pager_fetch in the
                     order of the program, and tables that are looked up, by pager_read_row */
    int act_bits; /* overrides backend_setup.act_bits; 0: does not */
} backend_run;

typedef struct backend backend;

typedef enum kernel_map_use {
    KERNEL_MAP_PROCESSOR, /* the processor's, which also decides how matrices are packed */
    KERNEL_MAP_DEVICE,    /* the device's; all matrices are in PACK_PARTS */
    KERNEL_MAP_NONE       /* no map; PACK_PARTS */
} kernel_map_use;

typedef struct backend_kind {
    const char *name;          /* name on the command line */
    int tier;                  /* kind of the place of its memory */
    const device_kind *memory; /* kind of the device that weights are copied to; NULL: host memory */
    bool no_f32_cache;         /* keys and values cannot be in f32 */
    bool one_kv_format;        /* keys and values of all layers have one format */
    bool slides;               /* layers with a window may have their own pages (kv_slide.h) */
    bool has_disk;             /* layers may have their keys and values on a disk (kv_formats.on_disk) */
    bool has_sparse_v;         /* attention to few values (backend_setup.sparse_v) */
    bool no_integer_zeros;     /* matrices with integer zeros are held without them (pack_widen) */
    bool plain_formats;        /* rotated formats, kv8h, kv4h and kv4s are refused */
    kernel_map_use map;        /* whose measured strategies multiply */
    int64_t n_batch;           /* default rows of a prompt in one pass if the memory has room; 0: the engine's
                                  default */
    int64_t row_multiple; /* prompt rows are computed in tiles of so many, and a part of a tile takes as long
                             as a whole one; 0: there are no tiles */
    /* NIB_E_DEVICE: this build or this machine has no such device. */
    nib_status (*open)(const backend_setup *s, backend **out, nib_error *err);
    /* NIB_E_DEVICE: the back end has no kernel for an op of the model's programs, which the message names.
     * Needs no device. NULL: it has kernels for all. */
    nib_status (*check_ops)(const model *m, nib_error *err);
    /* NIB_E_USAGE: the back end cannot add residuals of these bits, chosen by this rule. NULL: all can be. */
    nib_status (*check_residuals)(int bits, salient_rule rule, nib_error *err);
    void (*close)(backend *b);

    /* Returns the bytes that `reserve` promises to the ledger as activations, and for what comes from a disk
     * (setup.kv.on_disk). *touched (may be NULL): the
     * bytes of these that a pass of n_row rows makes resident. It has no side effects. */
    uint64_t (*row_bytes)(const backend_setup *s, const backend_rows *rows, int64_t n_row, uint64_t *touched);
    /* For a device whose memory is shared by weights and the back end: gives the facts for
     * homes_split_make, for these rows and a cap of `cap` bytes (NIB_AUTO: no cap), except those of
     * weights. open: the open back end; NULL: there is none, with this setup; without a device the sizes are
     * guesses. NIB_E_DEVICE: there is neither a device nor a cap, or the device cannot compute the model.
     * NULL: the back end computes in host memory, or its device has room for anything. */
    nib_status (*share)(backend *open, const backend_setup *s, const backend_rows *rows, uint64_t cap,
                        homes_question *out, nib_error *err);
    /* Allocates the memory for rows, and frees that of an earlier call. The engine has set `split` and
     * `store`. */
    nib_status (*reserve)(backend *b, const backend_rows *rows, nib_error *err);

    nib_status (*begin)(backend *b, const backend_pass *p, nib_error *err);
    /* Runs a visit. After NIB_E_CANCELLED or an error of reading weights, the rows' registers and their
     * positions in the KV cache are undefined. */
    nib_status (*run)(backend *b, const backend_run *r, nib_error *err);
    nib_status (*end)(backend *b, nib_error *err);

    /* The memory of a register's rows from `row` on, [rows, its width]: what a part of a visit reads is put
     * there before it, and its results are there after it. NULL: it is not the host's. */
    float *(*register_at)(backend *b, reg r, int64_t row);
    /* Reads or writes the residual stream of n_row rows of the pass, [n_row, the width of REG_X]. *out is
     * host memory of the back end, valid until its next call. The stream persists to the next pass unless the
     * head was run. */
    nib_status (*read_stream)(backend *b, int64_t row, int64_t n_row, const float **out, nib_error *err);
    nib_status (*write_stream)(backend *b, int64_t row, int64_t n_row, const float *x, nib_error *err);
    /* The first n_row rows of logits of the last run, [n_row, n_vocab]; *out is valid as above. */
    nib_status (*read_logits)(backend *b, int64_t n_row, const float **out, nib_error *err);
    /* In a pass with n_best: the n_best largest logits of these rows and their tokens, [n_row, n_best], the
     * largest first, and among equal logits the lowest token first. A NaN is the smallest. */
    nib_status (*read_best)(backend *b, int64_t n_row, const int32_t **ids, const float **logits,
                            nib_error *err);
    int32_t max_best;  /* maximum n_best of a pass; 0: not supported, and read_best is NULL */
    int64_t best_from; /* rows of logits in a pass from which read_best is faster; with fewer, callers request
                          all logits */
    int64_t max_changes; /* maximum changes of logits in a pass */

    /* Starts tracing ops. The back end owns *out. NULL: not supported. */
    nib_status (*trace)(backend *b, op_trace **out, nib_error *err);

    /* The timeline of a device that computes apart from the host (nib_engine_spans_start and _stop). NULL:
     * not supported. */
    nib_status (*spans_start)(backend *b, size_t max, nib_span_scale *scale, nib_error *err);
    nib_status (*spans_stop)(backend *b, nib_span *out, size_t *n, size_t *n_dropped, nib_error *err);

    /* OP_SHORTLIST (exec/shortlist.h). shortlist_bytes is NULL if it is not supported. Then heads are
     * computed as a whole, or by a sketch if the back end decides so (homes_split.has_sketch). */
    bool (*shortlist_bytes)(const layout *lay, int n_thread, int n_best, uint64_t *bytes, uint64_t *staging);
    nib_status (*shortlist_open)(backend *b, int n_best, const canceller *cancel, uint64_t *n_read,
                                 nib_error *err);
    /* Removes the shortlist, so that the head is computed as a whole. The layout `whole` replaces the setup's
     * and differs from it only in the head. Call it before `reserve`. */
    void (*shortlist_close)(backend *b, const layout *whole);
    /* The mean share of the head's rows that were computed exactly, over the rows of logits that had a
     * shortlist or n_best; 1 if none had. NULL: always 1. */
    double (*head_share)(backend *b);
} backend_kind;

/* The first member of every back end's struct. */
struct backend {
    const backend_kind *kind;
    device *device;       /* memory of keys and values */
    const kv_home *homes; /* [layers with keys and values]: where they are; host memory is that of `host`.
                             NULL: all are in the memory of `device` */
    device *host;
    /* Set by the engine before `reserve` (engine/device.h). */
    const homes_question *share; /* how a device's memory is shared; NULL: it is not */
    const homes_split *split;    /* the same, decided */
    uint64_t kept[PLACES];       /* if `split` is set: the bytes of rows.n_kept in each place */
    device_store *store;         /* where weights are acquired; NULL: in host memory */
    /* True: prompt rows and generated rows (segment.generated) have different kernels. The last bits of a row
     * depend on its role, and on no other row. A pass may have rows of both roles, a visit has rows of one.
     * False: all rows have the same bits. It is decided when memory is first reserved, like `split`. */
    bool by_role;
    int64_t max_generated; /* with by_role: maximum generated rows of a pass; 0: those of all rows */
    const bool *cut;       /* with by_role, [n_block]: visits.cut; NULL: no block is cut. Decided likewise */
    int64_t n_cut;         /* visits.n_cut */
    backend_rows rows;     /* the argument of the last `reserve` */
};

/* The back ends, each the folder of its name. The first one is used where none is named. */
#define BACKENDS(X)        X(cpu) X(check) X(cuda)
#define BACKEND_KIND(name) extern const backend_kind backend_##name;
BACKENDS(BACKEND_KIND)
#undef BACKEND_KIND

/* Finds the back end of that name; NULL: the first one. NIB_E_DEVICE: there is none, and the message lists
 * all. */
nib_status backend_find(const char *name, const backend_kind **out, nib_error *err);
/* The first back end whose memory is of that tier; NULL: none. */
const backend_kind *backend_of_tier(int tier);

#endif
