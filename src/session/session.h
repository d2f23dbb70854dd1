/* session.h - shared by session.c and generate.c. */
#ifndef NIB_SESSION_SESSION_H
#define NIB_SESSION_SESSION_H

#include "engine/engine.h"

#include <stdatomic.h>

struct nib_session {
    nib_engine *engine;
    engine_parts on; /* the engine's parts */
    sequence of;
    float *logits; /* [n_vocab], of the last token if logits_valid */
    bool logits_valid;
    tier_region tables; /* tokens and logits */
    atomic_bool cancelled;
};

enum { SESSION_MAX_BEST = 64 };

typedef struct sync_options {
    int64_t first_row;        /* logits of every position from here on; -1: of the last only */
    nib_row_fn row_fn;        /* with first_row >= 0 */
    nib_progress_fn progress; /* may be NULL */
    void *user;               /* of row_fn and progress */
    int64_t *n_computed;      /* may be NULL: tokens that were not reused */
} sync_options;

/* The status of a public call; NIB_E_CANCELLED clears a pending cancel. */
nib_status session_answer(nib_session *s, nib_status status);

/* nib_session_sync and nib_session_forward; leaves the cancel flag as it is. */
nib_status session_sync(nib_session *s, const int32_t *tokens, size_t n_token, const sync_options *o,
                        nib_error *err);

/* Appends the next token, like sync with one more token, without comparing the others. */
nib_status session_append(nib_session *s, int32_t token, nib_error *err);

/* The same with only the n largest logits, at most the back end's max_best; the session's own logits are
 * invalid then. */
typedef struct session_best {
    int32_t n;
    const logit_processor *processor; /* NULL: none */
    int32_t ids[SESSION_MAX_BEST];
    float logits[SESSION_MAX_BEST];
} session_best;
nib_status session_append_best(nib_session *s, int32_t token, session_best *best, nib_error *err);

#endif
