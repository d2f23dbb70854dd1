/* rate.h - what this machine really moves, measured now. */
#ifndef NIB_PROFILE_RATE_H
#define NIB_PROFILE_RATE_H

#include "base/status.h"

/* Bytes a second: the best pass is what the machine can do, the others say how much it was disturbed. */
typedef struct rate {
    double best, median, worst;
} rate;

/* Bytes a second that n_thread threads read from memory, each its own part of n_byte that lie far apart.
 * Several patterns (one, two or four streams, with and without software prefetch) take turns in short passes
 * for about `seconds`, and the fastest of them is what counts: the ceiling that any kernel is divided by.
 * Needs n_byte of memory meanwhile, which should be several times the last cache. */
nib_status rate_memory_read(int n_thread, uint64_t n_byte, double seconds, rate *out, nib_error *err);

/* One pass of one thread over n_byte (a multiple of 4096, 64-byte aligned) in a pattern of
 * [0, RATE_PATTERNS). The sum must be used, or a compiler could drop the loop. Prefetches may pass the end.
 */
enum { RATE_PATTERNS = 5 };
uint64_t rate_read(const void *data, uint64_t n_byte, int pattern);

/* Best, median and worst of n values, n >= 1, which are sorted in place. */
rate rate_of(double *values, int n);

#endif
