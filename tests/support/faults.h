/* faults.h - fails the n-th allocation or read of an operation, for every n, and compares the results of runs
 * that survived. */
#ifndef NIB_TESTS_FAULTS_H
#define NIB_TESTS_FAULTS_H

#include "base/mem.h"
#include "base/status.h"

#include <stddef.h>

/* One whole operation, which also closes everything that it opened. */
typedef nib_status (*fault_step)(void *user, nib_error *err);

/* Runs step with the 1st, the 2nd, ... call of `kind` failing until a run makes fewer calls than that, which
 * must succeed. A run with a fault must fail with a message, or return NIB_OK with the results of a run
 * without a fault (it found another way). The sanitizers see leaks. `every`: 1 tries each n; larger values
 * are for slow steps and take each `every`-th n after the first 50 (under a sanitizer 16, and half as many).
 * Returns the calls of a run without faults. */
int64_t fault_sweep(fault_kind kind, int every, fault_step step, void *user);
/* A step reports all of its results here, in the same order each time. So a step is found that does not
 * notice a fault, continues with data that was never read, and returns NIB_OK. */
void fault_made(const void *data, size_t n);

#endif
