/* cancel.h - whether what takes long is to end. It is asked between pieces of work of some milliseconds, on
 * any thread; what it answers true to ends with NIB_E_CANCELLED. */
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
