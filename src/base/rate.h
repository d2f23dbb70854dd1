/* rate.h - measures this machine's memory bandwidth. */
#ifndef NIB_BASE_RATE_H
#define NIB_BASE_RATE_H

#include "base/cancel.h"

/* Bytes a second. The best pass is the machine's rate; the others show how much it was disturbed. */
typedef struct rate {
    double best, median, worst;
} rate;

/* *out: bytes a second that n_thread threads together read from memory. Each thread reads its own part of
 * n_byte; the parts are far apart. Several patterns (one, two or four streams, with and without software
 * prefetch) take turns in short passes for about `seconds`, and the fastest one is returned: the ceiling for
 * any kernel. Needs n_byte of memory meanwhile, which should be several times the last cache. cancel NULL:
 * none. */
nib_status rate_memory_read(int n_thread, uint64_t n_byte, double seconds, const canceller *cancel, rate *out,
                            nib_error *err);

/* One pass of one thread over n_byte (a multiple of 4096, 64-byte aligned) in a pattern of
 * [0, RATE_PATTERNS). The sum must be used, or a compiler could drop the loop. Prefetches may pass the end.
 */
enum { RATE_PATTERNS = 5, RATE_SLACK = 1 << 16 /* bytes after the end that prefetches may touch */ };
uint64_t rate_read(const void *data, uint64_t n_byte, int pattern);

/* Returns the pattern that is fastest now: all take turns, and the one with the highest median wins. `pass`
 * runs a short pass in a pattern on the caller's threads and clock, and returns bytes a second. */
typedef double (*rate_pass_fn)(void *arg, int pattern);
int rate_fastest(rate_pass_fn pass, void *arg);

/* A reader that alternates with other work, for comparison. It uses the pattern that was fastest when it was
 * opened, and owns n_thread threads and n_byte of memory until rate_reader_close (NULL is fine). */
typedef struct rate_reader rate_reader;
nib_status rate_reader_open(int n_thread, uint64_t n_byte, rate_reader **out, nib_error *err);
double rate_reader_pass(rate_reader *r,
                        double seconds); /* reads for about `seconds`; returns bytes a second */
void rate_reader_close(rate_reader *r);

/* Best, median and worst of n values, n >= 1, which are sorted in place. */
rate rate_of(double *values, int n);

/* The share of the reader's rate that some work had: each round gives the ratio of the work's rate to the
 * mean of the reader's rates just before and after it. The share is the median of these ratios, with their
 * quartiles. A machine whose memory is slow for a second is slow for both, so the ratio is stable. The ratio
 * of both bests compares two moments, and grows as the reader's passes get shorter. */
typedef struct rate_share {
    double median, low, high;
} rate_share;
/* rates[i], of n >= 1, was measured between reads[i] and reads[i + 1], all above zero; `rates` is used up. */
rate_share rate_share_of(double *rates, const double *reads, int n);

#endif
