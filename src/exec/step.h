/* step.h - one pass of the step loop: rows of one or several sequences through the blocks, in the order of
 * a list of visits (tiers/visits.h), on a back end. Sessions, evaluation and measurement all compute
 * through here.
 *
 * One pass at a time: step_pass holds the lock, and the back end belongs to it. */
#ifndef NIB_EXEC_STEP_H
#define NIB_EXEC_STEP_H

#include "exec/backend.h"

#include <pthread.h>

/* The objects that passes use. */
typedef struct stepper {
    const model *m;
    backend *backend;
    pager *pager;
    canceller cancel;     /* polled together with a pass's own */
    pthread_mutex_t lock; /* one pass at a time: the threads, the back end and the pager's pins */
    op_trace *trace;      /* the back end's; NULL: times are not taken */
    double pass_s;        /* seconds of all passes since the trace began */
    uint64_t n_pass;      /* passes so far */
} stepper;

/* Deviations of one pass from the model, to measure the cost of a change. Each array has n_block entries, or
 * is NULL: no change of that kind. */
typedef struct pass_change {
    const view *const *views; /* a block's weights, all of them resident; an entry NULL: the pager's */
    const uint8_t *act_bits;  /* 4, 8 or 16; 0: as usual */
    const bool *left_out;     /* the layer is skipped and its weights are not read */
} pass_change;

typedef struct pass {
    const segment *segments; /* [n_segment], one after the other in the pass's rows; at most the back end's
                                n_pass rows together */
    int n_segment;
    bool generated; /* its rows are generated (backend.by_role); else prompt rows, also in measurements */
    bool apart;     /* no visit has rows of two segments, because they share one KV cache */
    /* A slot for a layer's weights in host memory (device_pages_open_layer), so that each layer is read once
     * for all its visits; NULL: none. Only for back ends that compute in host memory. */
    device_pages *layer;
    /* A stage of the model: blocks [first_block, end_block). The input of the first is the residual stream
     * written by enter(), or left by the stage before. end_block 0: to the head. */
    int first_block, end_block;
    visit_next_fn order; /* NULL: visits_by_block */
    float *logits;       /* [n_vocab]: of the only row of all segments that needs logits; or NULL: */
    int64_t n_head;      /* rows of logits computed together, at most the back end's */
    nib_status (*rows)(void *user, int segment, int64_t row, int64_t n_row, const float *logits,
                       nib_error *err); /* rows [row, row + n_row) of a segment: [n_row, n_vocab] */
    /* Instead of both, if 0 < n_best <= the back end's max_best: the n_best largest logits of each of those
     * rows, as in backend_kind.read_best. */
    int32_t n_best;
    nib_status (*best)(void *user, int segment, int64_t row, int64_t n_row, const int32_t *ids,
                       const float *logits, nib_error *err);
    const logit_processor *processor; /* with n_best: changes before the selection; NULL: none */
    /* NULL, or called before a block's first visit: it may read and write the residual stream of all rows. */
    nib_status (*enter)(void *user, int block, backend *by, nib_error *err);
    void *user;         /* of rows, best and enter */
    const probe *probe; /* NULL: none */
    /* NULL, or it gets the hidden states of the head's rows, and no logits are computed. The caller has
     * checked that the back end supports it. */
    const hidden_receiver *hidden;
    const pass_change *change; /* NULL: none */
    const canceller *cancel;   /* polled beside the stepper's; NULL: none */
} pass;

/* After NIB_E_CANCELLED the KV caches are undefined at the pass's positions. */
nib_status step_pass(stepper *s, const pass *p, nib_error *err);

#endif
