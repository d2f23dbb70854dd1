/* salient.h - selects the largest input channels of a row (QDEC, paper 4.3).
 *
 * A row is cut into chunks of 1,024 channels. Each chunk selects k_chunk of its own channels, so chunks are
 * independent; a shorter last chunk selects proportionally fewer. The approximate rule sorts magnitudes into
 * 32 buckets of even width, 16 above a boundary near the k-th largest and 16 below it. It takes buckets from
 * the top. From the last bucket it takes the first channels, so the same row always selects the same channels
 * (the paper selects them at random). The paper calibrates the boundary and the upper end; here both follow
 * from the row itself, its largest magnitude and its root mean square, and no profile is needed. */
#ifndef NIB_KERNELS_SALIENT_H
#define NIB_KERNELS_SALIENT_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

enum { SALIENT_CHUNK = 1024, SALIENT_BUCKETS = 32 };

/* A salient channel: its number and the row's value in it. */
typedef struct salient {
    int32_t at;
    float x;
} salient;

typedef enum salient_rule {
    SALIENT_APPROX,
    SALIENT_EXACT,   /* the largest; among equals the first */
    SALIENT_RANDOM,  /* a fixed pseudo-random choice by the row's content: for comparison */
    SALIENT_STATIC,  /* the same channels for every row, the largest in the calibration: for comparison */
    SALIENT_WEIGHTED /* approximate, by magnitude times the norm of the channel's residual over all outputs */
} salient_rule;
/* The names above in lower case; false: no such rule. */
bool salient_rule_from_name(const char *name, salient_rule *out);

/* Number of channels that a chunk of n channels selects, and (salient_count) that a row of k selects. */
static inline int salient_of_chunk(int n, int64_t k_chunk) {
    const int64_t want = (k_chunk * n + SALIENT_CHUNK - 1) / SALIENT_CHUNK;
    return (int)(want < n ? want : n);
}
static inline int64_t salient_count(int64_t k, int64_t k_chunk) {
    return k / SALIENT_CHUNK * salient_of_chunk(SALIENT_CHUNK, k_chunk) +
           salient_of_chunk((int)(k % SALIENT_CHUNK), k_chunk);
}
/* An estimate of the want-th largest of n magnitudes with a root mean square of 1, if they are normally
 * distributed: the upper tail's quantile, by Hastings' approximation (Abramowitz and Stegun 26.2.23). */
static inline float salient_reach(int n, int want) {
    const double p = fmin(0.5 * want / n, 0.4999), t = sqrt(-2 * log(p));
    const double top = 2.515517 + t * (0.802853 + t * 0.010328);
    const double bottom = 1 + t * (1.432788 + t * (0.189269 + t * 0.001308));
    return (float)fmax(0, t - top / bottom);
}

struct kernel_table;
/* Writes the selected channels of x [k], in ascending order, to out [salient_count] and returns their number.
 * The approximate rule puts values that are not finite into the lowest bucket. */
int64_t salient_pick(const struct kernel_table *t, salient_rule rule, const float *x, int64_t k,
                     int64_t k_chunk, int32_t *out);

#endif
