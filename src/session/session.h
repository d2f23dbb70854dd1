/* session.h - shared by session.c, generate.c and logits_file.c. */
#ifndef NIB_SESSION_SESSION_H
#define NIB_SESSION_SESSION_H

#include "session/driver.h"

#include <stdatomic.h>

/* A driver with one slot. */
struct nib_session {
    nib_engine *engine;
    driver driver; /* driver.logits: of the last token if logits_valid */
    driver_slot slot;
    bool logits_valid;
    memory_region tables; /* tokens and logits */
    atomic_bool cancelled;
};

/* The status of a public call; NIB_E_CANCELLED clears a pending cancel. */
nib_status session_answer(nib_session *s, nib_status status);

/* Polls the session's cancel flag. */
canceller session_canceller(nib_session *s);

/* Sets the session's tokens, of which at most the first n_reuse count as computed, and all of them only with
 * the last one's logits. NIB_E_USAGE, NIB_E_CANCELLED: nothing has changed. */
nib_status session_set(nib_session *s, const int32_t *tokens, size_t n_token, int64_t n_reuse,
                       nib_error *err);

#endif
