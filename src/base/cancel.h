/* cancel.h - cancellation of long work. A canceller is polled between pieces of work of some milliseconds, on
 * any thread. When it returns true, the work ends with NIB_E_CANCELLED. */
#ifndef NIB_BASE_CANCEL_H
#define NIB_BASE_CANCEL_H

#include "base/status.h"

typedef struct canceller {
    nib_cancel_fn asked; /* NULL: never */
    void *user;
} canceller;

/* c NULL: never. */
static inline bool cancel_asked(const canceller *c) {
    return c && c->asked && c->asked(c->user);
}

static inline nib_status cancel_check(const canceller *c, nib_error *err) {
    return cancel_asked(c) ? nib_fail(err, NIB_E_CANCELLED, "cancelled") : NIB_OK;
}

#endif
