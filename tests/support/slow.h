/* slow.h - for runs that take many times as long: under a sanitizer, and with the scalar reference only. Long
 * lists of cases are shortened there. */
#ifndef NIB_TESTS_SLOW_H
#define NIB_TESTS_SLOW_H

#include "kernels/kernels.h"
#include "support/sanitized.h"

#include <stdlib.h>

/* The distance between cases that are tried: `step` in slow runs, else 1. */
static inline int slow_step(int step) {
    return SANITIZED || kernels_table() == kernels_table_for("ref") ? step : 1;
}

/* Whether the run is to be short (`make check`): the largest documents are then smaller. */
static inline bool slow_is_quick(void) {
    return getenv("NIBBLE_QUICK") != NULL;
}

/* Whether a list of combinations is thinned out: every value still has its turn, not every pair of values. */
static inline bool slow_is_thinned(void) {
    return SANITIZED || slow_is_quick();
}

#endif
