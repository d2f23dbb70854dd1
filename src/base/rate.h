/* rate.h - measures this machine's memory bandwidth. */
#ifndef NIB_BASE_RATE_H
#define NIB_BASE_RATE_H

#include "base/cancel.h"

/* Bytes a second: the best pass is what the machine can do, the others say how much it was disturbed. */
typedef struct rate {
    double best, median, worst;
} rate;

/* Bytes a second that n_thread threads read from memory, each its own part of n_byte that lie far apart.
 * Several patterns (one, two or four streams, with and without software prefetch) take turns in short passes
 * for about `seconds`, and the fastest of them is what counts: the ceiling that any kernel is divided by.
 * Needs n_byte of memory meanwhile, which should be several times the last cache. cancel NULL: none. */
nib_status rate_memory_read(int n_thread, uint64_t n_byte, double seconds, const canceller *cancel, rate *out,
                            nib_error *err);

/* One pass of one thread over n_byte (a multiple of 4096, 64-byte aligned) in a pattern of
 * [0, RATE_PATTERNS). The sum must be used, or a compiler could drop the loop. Prefetches may pass the end.
 */
enum { RATE_PATTERNS = 5, RATE_SLACK = 1 << 16 /* bytes behind the end that prefetches may touch */ };
uint64_t rate_read(const void *data, uint64_t n_byte, int pattern);

/* The pattern that is fastest now: all take turns, and the highest median counts. pass: bytes a second of a
 * short pass in a pattern, by the caller's threads and clock. */
typedef double (*rate_pass_fn)(void *arg, int pattern);
int rate_fastest(rate_pass_fn pass, void *arg);

/* Reads when asked, in the pattern that was the fastest when it was opened: what other work is compared with
 * in turns. n_thread threads and n_byte of memory of its own until rate_reader_close (NULL is fine). */
typedef struct rate_reader rate_reader;
nib_status rate_reader_open(int n_thread, uint64_t n_byte, rate_reader **out, nib_error *err);
double rate_reader_pass(rate_reader *r, double seconds); /* bytes a second over about so long */
void rate_reader_close(rate_reader *r);

/* Best, median and worst of n values, n >= 1, which are sorted in place. */
rate rate_of(double *values, int n);

/* What share of the reader's rate some work had: a ratio for each round, of the work's rate and the mean of
 * the reader's just before and just after it, and of these ratios the median and the quarters. A machine
 * whose memory is slow for a second is slow for both, so the ratio stays; the best of one over the best of
 * the other compares two moments, and is the larger the shorter that other's passes are. */
typedef struct rate_share {
    double median, low, high;
} rate_share;
/* rates[i], of n >= 1, was measured between reads[i] and reads[i + 1], all above zero; `rates` is used up. */
rate_share rate_share_of(double *rates, const double *reads, int n);

#endif
