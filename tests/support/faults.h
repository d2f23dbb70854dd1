/* faults.h - fails the n-th allocation or read of an operation, for every n. */
#ifndef NIB_TESTS_FAULTS_H
#define NIB_TESTS_FAULTS_H

#include "base/mem.h"
#include "base/status.h"

/* One whole operation, that also closes what it opened. */
typedef nib_status (*fault_step)(void *user, nib_error *err);

/* Runs step with the 1st, the 2nd, ... call of `kind` failing until a run makes fewer calls than that, which
 * must succeed. A run in which the fault came must return NIB_OK (it found another way) or fail with a
 * message of its own; the sanitizers see leaks. `every`: 1 tries each n; larger ones for slow steps take each
 * `every`-th after the first 50. Returns the calls of a run without faults. */
int64_t fault_sweep(fault_kind kind, int every, fault_step step, void *user);

#endif
