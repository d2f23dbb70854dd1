/* logit_change.h - applies penalties and a bias to one logit, written once for the processor and for CUDA:
 * the same operations in the same order, so a sampler draws the same token on either device.
 *
 * The compilers may not contract a product and a sum (-ffp-contract=off, -fmad=false). */
#ifndef NIB_KERNELS_LOGIT_CHANGE_H
#define NIB_KERNELS_LOGIT_CHANGE_H

#include <float.h>
#include <math.h>
#include <stdint.h>

#ifdef __CUDACC__
#define LOGIT_FN __device__ static inline
#else
#define LOGIT_FN static inline
#endif

/* A change of one token's logit. A row has at most one change for each token. */
typedef struct logit_change {
    int32_t token;
    int32_t count; /* its number of occurrences among the tokens that the penalties consider */
    float bias;    /* added before anything else */
} logit_change;

/* The changes of a row: entries [first, first + n) of a list. */
typedef struct logit_row {
    int32_t first, n;
    float repeat, frequency, presence; /* penalties of tokens with a count above 0 */
} logit_row;

/* Applies the penalties to a logit, whose bias is added already. NaN counts as minus infinity, and infinity
 * as FLT_MAX. */
LOGIT_FN float logit_penalised(float x, int32_t count, float repeat, float frequency, float presence) {
    x = isnan(x) ? -INFINITY : fminf(x, FLT_MAX);
    if (count == 0)
        return x;
    x = x > 0 ? x / repeat : x * repeat;
    return x - (float)count * frequency - presence;
}

LOGIT_FN float logit_changed(float x, const logit_change *c, const logit_row *r) {
    return logit_penalised(x + c->bias, c->count, r->repeat, r->frequency, r->presence);
}

#endif
