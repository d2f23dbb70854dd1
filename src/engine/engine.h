/* engine.h - an engine for the modules above: opening one with more than nib.h offers, and the parts of it
 * that sessions and measurements work with. Its fields are seen inside engine/ alone. */
#ifndef NIB_ENGINE_ENGINE_H
#define NIB_ENGINE_ENGINE_H

#include "exec/step.h"
#include "plan/plan.h"
#include "sequence/generation.h"
#include "sequence/sequence.h"
#include "text/tokenizer.h"

/* What computes. Borrowed from an engine, until it is closed. */
typedef struct engine_parts {
    const model *m;
    const layout *layout;
    ledger *ledger;
    pool *threads;            /* idle between passes */
    stepper *step;            /* with its back end and pager */
    type_id kv_type;          /* of sessions that ask for none */
    int64_t n_ctx;            /* likewise */
    nib_progress_fn progress; /* the options': NULL: none */
    void *user;               /* of progress */
} engine_parts;

/* What is asked of an engine beside the public options. */
typedef struct engine_want {
    const plan *plan;  /* to be obeyed; NULL: none. Not needed afterwards */
    int64_t n_row;     /* rows of a pass, however long the context; 0: the options' n_batch */
    bool keep_nothing; /* every page of the weights is streamed, whatever there is room for */
    /* RAM that will be charged later, instead of a session's; NULL: a session's. `parts` has no `step`
     * yet. */
    nib_status (*keep_free)(const engine_parts *parts, const void *user, uint64_t *bytes, nib_error *err);
    const void *user; /* of keep_free */
} engine_want;

/* Rows that go through a block together. More meet less often, and their registers take more memory: where
 * there is a cap, weights are worth more. */
enum { ENGINE_CELL_ROWS = 64, ENGINE_CELL_ROWS_FREE = 128 /* without a cap */ };

/* nib_engine_open; want NULL: nothing. */
nib_status engine_open(const char *name, const nib_engine_options *options, const engine_want *want,
                       nib_engine **out, nib_error *err);

/* False: it was opened for its vocabulary only, and has no parts. */
bool engine_has_weights(const nib_engine *e);
engine_parts engine_parts_of(nib_engine *e);
/* The text side. */
const char *engine_path(const nib_engine *e);
const container *engine_container(const nib_engine *e);
const tokenizer *engine_tokenizer(const nib_engine *e); /* NULL: the checkpoint has none */

/* ---- for sequences ---- */

/* A nib_kv_type as a number format; false: there is none, or 0. */
bool engine_kv_type(int kv, type_id *out);
/* What sequences with that type and answers are made with. The pool of a type is made when it is first asked
 * for. Any thread. */
nib_status engine_sequence_memory(nib_engine *e, type_id kv_type, sequence_memory *out, nib_error *err);
generation_setup engine_generation_setup(const nib_engine *e);
enum { ENGINE_MAX_SESSION = 4096 };
/* Bytes of a session's tokens and logits. */
uint64_t engine_session_tables(const nib_engine *e, int64_t n_ctx);
/* Whether a sequence can have so many positions: NIB_E_USAGE where the model has learned fewer, NIB_E_NOFIT
 * where the machine's memory could never hold them. */
nib_status engine_check_positions(const nib_engine *e, type_id kv_type, int64_t n_ctx, nib_error *err);
/* Puts before a NIB_E_NOFIT of a session or a batch what the engine keeps room for; returns status. */
nib_status engine_name_sessions(const nib_engine *e, nib_status status, nib_error *err);

#endif
