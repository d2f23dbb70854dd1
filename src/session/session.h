/* session.h - shared by session.c, generate.c and speculate.c. */
#ifndef NIB_SESSION_SESSION_H
#define NIB_SESSION_SESSION_H

#include "engine/engine.h"
#include "sequence/draft.h"

#include <stdatomic.h>

struct nib_session {
    nib_engine *engine;
    engine_parts on; /* the engine's parts */
    sequence of;
    float *logits; /* [n_vocab], of the last token if logits_valid */
    bool logits_valid;
    memory_region tables; /* tokens and logits */
    int64_t n_draft;      /* speculation: maximum number of proposed tokens of a pass; 0: none */
    draft_cost cost;      /* of its passes */
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

/* Polls the session's cancel flag. */
canceller session_canceller(nib_session *s);

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
/* Adds a token that the next pass computes. */
nib_status session_add_token(nib_session *s, int32_t token, nib_error *err);

/* ---- speculate.c ---- */
/* Computes the last token, which session_add_token or this function has added, and proposed tokens after it;
 * draws and adds tokens as long as they equal the proposed ones, at least one, until g->done. The session's
 * logits are invalid then. */
nib_status session_speculate(nib_session *s, generation *g, draft *d, nib_error *err);

#endif
