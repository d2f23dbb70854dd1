/* candidates.c - see candidates.h. */
#include "sequence/candidates.h"

#include "base/num.h"

#include <math.h>

static float logit_of(float x) {
    return isnan(x) ? -INFINITY : x;
}

/* The logarithm of the sum of all exp(logit). */
static double log_sum(const float *logits, int64_t n) {
    float max = -INFINITY;
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        max = NUM_MAX(max, logit_of(logits[i]));
    if (isinf(max))
        return max;
    for (int64_t i = 0; i < n; i++)
        sum += exp((double)logit_of(logits[i]) - (double)max);
    return (double)max + log(sum);
}

/* Inserts c into top[0..*n), which is ordered by logit. `logprob` holds the logit until the end. */
static void offer(nib_candidate *top, int32_t *n, int32_t max, nib_candidate c) {
    if (*n == max && (max == 0 || c.logprob <= top[max - 1].logprob))
        return;
    int32_t at = *n < max ? (*n)++ : max - 1;
    for (; at > 0 && top[at - 1].logprob < c.logprob; at--)
        top[at] = top[at - 1];
    top[at] = c;
}

void candidates_find(const float *logits, int64_t n_vocab, int32_t token, nib_candidate *drawn,
                     nib_candidate *top, int32_t n_top) {
    const double sum = log_sum(logits, n_vocab);
    int32_t n = 0;
    for (int32_t i = 0; i < n_vocab; i++)
        offer(top, &n, n_top, (nib_candidate){i, logit_of(logits[i])});
    for (int32_t i = 0; i < n; i++)
        top[i].logprob = (float)((double)top[i].logprob - sum);
    *drawn = (nib_candidate){token, (float)((double)logit_of(logits[token]) - sum)};
}
