/* faults.h - fails the n-th allocation or read of an operation, for every n, and compares what came out of
 * those that survived. */
#ifndef NIB_TESTS_FAULTS_H
#define NIB_TESTS_FAULTS_H

#include "base/mem.h"
#include "base/status.h"

#include <stddef.h>

/* One whole operation, that also closes what it opened. */
typedef nib_status (*fault_step)(void *user, nib_error *err);

/* Runs step with the 1st, the 2nd, ... call of `kind` failing until a run makes fewer calls than that, which
 * must succeed. A run in which the fault came must fail with a message of its own, or return NIB_OK having
 * made what the run without a fault makes (it found another way); the sanitizers see leaks. `every`: 1 tries
 * each n; larger ones for slow steps take each `every`-th after the first 50 (16, and half as many, under a
 * sanitizer). Returns the calls of a run without faults. */
int64_t fault_sweep(fault_kind kind, int every, fault_step step, void *user);
/* What a step made: it tells all of it, in the same order each time. A step that returns NIB_OK after a fault
 * that it did not notice, and goes on with what was never read, is found by this. */
void fault_made(const void *data, size_t n);

#endif
