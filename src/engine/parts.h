/* parts.h - the options and parts of engines that both the modules above and the files below engine.h see. */
#ifndef NIB_ENGINE_PARTS_H
#define NIB_ENGINE_PARTS_H

#include "exec/step.h"
#include "plan/plan.h"

/* The parts that compute. Borrowed from an engine, until it is closed. */
typedef struct engine_parts {
    const model *m;
    const layout *layout;
    ledger *ledger;
    pool *threads;            /* idle between passes */
    stepper *step;            /* with its back end and pager */
    kv_formats kv;            /* default of sessions */
    int64_t n_ctx;            /* likewise */
    int64_t n_draft;          /* proposed tokens of speculation; 0: none */
    nib_progress_fn progress; /* the options': NULL: none */
    void *user;               /* of progress */
} engine_parts;

/* Options of an engine besides the public ones. */
typedef struct engine_internal {
    const plan *plan;           /* a plan to follow; NULL: none. Not needed after opening */
    int64_t n_row;              /* rows of a pass, for any context; 0: the options' n_batch */
    int stage_first, stage_end; /* of a pipeline (model/stage.h); end 0: all blocks */
    model_share share;          /* of a rank that shares every layer with others */
    rank_sums *sums;            /* over those ranks; NULL: there are none */
    int gpu;                    /* number of the GPU among those that CUDA shows */
    bool keep_nothing;          /* every page of the weights is streamed, even if it would fit */
    /* RAM that will be charged later, instead of a session's; NULL: a session's. `parts` has no `step`
     * yet. */
    nib_status (*keep_free)(const engine_parts *parts, const void *user, uint64_t *bytes, nib_error *err);
    const void *user;      /* of keep_free */
    const char *kv_layers; /* formats of some layers, as in "0-3=f16,7=kv8" (kv_formats_parse); NULL: all have
                              that of the options or of the plan */
} engine_internal;

/* What an engine that is the first rank of a pipeline has of the others. */
typedef struct engine_pipeline {
    const step_links *links;                         /* for its passes */
    struct kv_log *calls;                            /* of its sequences (state/kv_calls.h) */
    nib_status (*check)(void *user, nib_error *err); /* NIB_E_IO: a rank has ended; any thread */
    void (*close)(void *user);                       /* called when the engine has closed its own parts */
    void *user;
} engine_pipeline;

/* Rows that go through a block together. More rows need fewer barriers, but more memory for registers; under
 * a cap the memory is better used for weights. */
enum { ENGINE_CELL_ROWS = 64, ENGINE_CELL_ROWS_FREE = 128 /* without a cap */ };
enum { ENGINE_MAX_SESSION = 4096 };

#endif
