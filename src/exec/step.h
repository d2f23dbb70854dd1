/* step.h - one pass of the step loop: rows of one or several sequences through the blocks, in the order of a
 * list of visits (schedule/visits.h), on a back end. Sessions, evaluation and measurement all use it.
 *
 * There is one pass at a time: step_pass holds the lock, and no other call may use the back end meanwhile. */
#ifndef NIB_EXEC_STEP_H
#define NIB_EXEC_STEP_H

#include "exec/backend.h"

#include <pthread.h>

struct pass;

/* The other ranks of a model, as one of them sees them: the stages of a pipeline, or ranks that share every
 * layer and compute each pass at the same time. The first two functions are called inside a pass of the back
 * end, and may read and write the residual stream of all its rows. */
typedef struct step_links {
    int first, end; /* this stage's blocks (model/stage.h) */
    int64_t n_part; /* rows after which a pass goes on to the next stage: these compute at the same time.
                       0: all of them */
    int n_pass;     /* passes that may have begun at the same time; 0: one */
    bool shares;    /* the ranks share every layer, and nothing of the stream is passed on */
    bool repeats;   /* this is not the first rank: it repeats the calls of page tables, and prepares none */
    bool whole;     /* of ranks that share layers: visits as if weights were streamed, because a rank's are */
    int64_t n_cell, n_head; /* likewise: rows of a cell, of a visit of the head, the same on all ranks; 0: the
                               back end's */
    /* Before the first block: writes the stream that the stages before have left. Of ranks that share layers:
     * before the pass of the back end, sends it to the others. NULL: nothing. */
    nib_status (*receive)(void *user, const struct pass *p, backend *by, nib_error *err);
    /* After the last block: passes the stream on. NULL: no stage follows. */
    nib_status (*send)(void *user, const struct pass *p, backend *by, nib_error *err);
    /* The first of ranks that share layers has failed in part `number`, which perhaps it has sent: ends it on
     * the others. *err has this rank's error, or becomes that of the rank because of which it failed. Returns
     * the status. NULL: a part that has failed was not sent. */
    nib_status (*abandon)(void *user, int64_t number, nib_status status, nib_error *err);
    /* After a part of a pass, of the first stage: waits for the results of the last one, and gives them to
     * the pass's receivers. number: the part's; row: its first row in the pass; p NULL: they are dropped.
     * NULL: this is not the first stage. */
    nib_status (*results)(void *user, const struct pass *p, int64_t number, int64_t row, nib_error *err);
    void *user;
} step_links;

/* The objects that passes use. */
typedef struct stepper {
    const model *m;
    backend *backend;
    pager *pager;
    canceller cancel;        /* polled together with that of the pass */
    pthread_mutex_t lock;    /* one pass at a time: the threads, the back end and the pager's pins */
    const step_links *links; /* NULL: this process has all blocks */
    op_trace *trace;         /* owned by the back end; NULL: times are not measured */
    double pass_s;           /* seconds of all passes since the trace began */
    uint64_t n_pass;         /* passes so far */
    int64_t n_sent;          /* parts of passes so far, with links */
    segment *part;           /* [cap_part]: segments of a part; freed with step_clear */
    size_t cap_part;
} stepper;

/* The parts of a pass whose results are with the other stages. */
typedef struct step_parts {
    int64_t first;    /* number of the first one */
    int64_t n, n_row; /* of them, and rows of each but the last */
} step_parts;

/* Deviations of one pass from the model, to measure the cost of a change. Each array has n_block entries, or
 * is NULL: no change of that kind. */
typedef struct pass_change {
    const view *const *views; /* a block's weights, all of them resident; NULL entry: the pager's */
    const uint8_t *act_bits;  /* 4, 8 or 16; 0: no change */
    const bool *left_out;     /* the layer is skipped and its weights are not read */
} pass_change;

typedef struct pass {
    int64_t number;          /* of the part, when it is sent (step_links) */
    const segment *segments; /* [n_segment], one after the other in the pass's rows; at most the back end's
                                n_pass rows together, and with backend.by_role the generated ones first */
    int n_segment;
    bool apart; /* no visit has rows of two segments, because they share one KV cache */
    /* A slot for a layer's weights in host memory (device_store_open_layer), so that each layer is read once
     * for all its visits; NULL: none. It is only for back ends that compute in host memory. */
    device_store *layer;
    /* A stage of the model: blocks [first_block, end_block). The input of the first block is the residual
     * stream that enter() wrote or that the previous stage left. end_block 0: up to the head. */
    int first_block, end_block;
    float *logits; /* [n_vocab]: the logits, if only one row of all segments needs them; NULL: `rows` receives
                      them */
    int64_t n_head; /* rows of logits that are computed together, at most backend_rows.n_head */
    nib_status (*rows)(void *user, int segment, int64_t row, int64_t n_row, const float *logits,
                       nib_error *err); /* receives rows [row, row + n_row) of a segment, [n_row, n_vocab] */
    /* Replaces both if 0 < n_best <= backend_kind.max_best: receives the n_best largest logits of each of
     * those rows, like backend_kind.read_best. */
    int32_t n_best;
    nib_status (*best)(void *user, int segment, int64_t row, int64_t n_row, const int32_t *ids,
                       const float *logits, nib_error *err);
    const logit_processor *processor; /* with n_best: changes the logits before the selection; NULL: none */
    /* Called before a block's first visit; it may read and write the residual stream of all rows. NULL:
     * none. */
    nib_status (*enter)(void *user, int block, backend *by, nib_error *err);
    /* The residual stream before the first block: rows [n_row, width of REG_X] of a segment, valid until the
     * next call. NULL: the first block makes it. */
    const float *(*input)(void *user, int segment);
    /* Receives it after the last layer, rows of a segment as above; all of them go through all layers then.
     * NULL: none. */
    void (*output)(void *user, int segment, const float *x);
    void *user;         /* argument of rows, best, enter, input and output */
    const probe *probe; /* NULL: none */
    /* Receives the hidden states of the head's rows, and no logits are computed; NULL: none. The caller has
     * checked that the back end supports it. */
    const hidden_receiver *hidden;
    const pass_change *change; /* NULL: none */
    const canceller *cancel;   /* polled together with the stepper's; NULL: none */
} pass;

/* Runs a pass; blocks until it is finished. After NIB_E_CANCELLED the KV caches are undefined at the pass's
 * positions. Other errors are those of the pager and of the back end. */
nib_status step_pass(stepper *s, const pass *p, nib_error *err);
/* Its two halves. step_begin computes the blocks of this stage, and step_end gives the results of the other
 * stages to the pass's receivers; without other stages there is nothing left to do. Up to step_links.n_pass
 * passes of different sequences may have begun, and end in this order. p NULL: the results are dropped. After
 * an error of step_begin no step_end follows. */
nib_status step_begin(stepper *s, const pass *p, step_parts *out, nib_error *err);
nib_status step_end(stepper *s, const pass *p, const step_parts *parts, nib_error *err);
void step_clear(stepper *s);
/* kv_pool_settle between two passes; any thread. */
nib_status step_settle(stepper *s, kv_pool *pages, nib_error *err);

#endif
