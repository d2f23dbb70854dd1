/* divergence.h - the KL divergence between two rows of logits. */
#ifndef NIB_PROFILE_DIVERGENCE_H
#define NIB_PROFILE_DIVERGENCE_H

#include <stdint.h>

/* The Kullback-Leibler divergence, in nats, from softmax(base) to softmax(other), n entries each: 0 for equal
 * rows, never negative. Small ones are exact to about 1e-8: the sum is over what differs. The same bits on
 * any instruction set (no library's exp). NaN when a row holds one, or an infinity. */
double divergence(const float *base, const float *other, int64_t n);

#endif
