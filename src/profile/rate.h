/* rate.h - what this machine really moves, measured now. */
#ifndef NIB_PROFILE_RATE_H
#define NIB_PROFILE_RATE_H

#include "base/status.h"

/* Bytes a second that n_thread threads read from memory (each its own part of a buffer far larger than the
 * caches), the best of `repeats` passes. Takes about 40 ms a pass and needs n_byte of memory meanwhile. */
nib_status rate_memory_read(int n_thread, uint64_t n_byte, int repeats, double *bytes_per_s, nib_error *err);

#endif
