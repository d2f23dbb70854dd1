/* slow.h - where everything takes many times as long: under a sanitizer, and where only the scalar reference
 * computes. A long list of cases is thinned out there. */
#ifndef NIB_TESTS_SLOW_H
#define NIB_TESTS_SLOW_H

#include "kernels/kernels.h"
#include "support/sanitized.h"

/* From one case to the next that is tried: `step` there, else 1. */
static inline int slow_step(int step) {
    return SANITIZED || kernels_table() == kernels_table_for("ref") ? step : 1;
}

#endif
