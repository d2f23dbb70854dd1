/* divergence.h - the KL divergence between two rows of logits. */
#ifndef NIB_MEASURE_DIVERGENCE_H
#define NIB_MEASURE_DIVERGENCE_H

#include <stdint.h>

/* The Kullback-Leibler divergence, in nats, from softmax(base) to softmax(other), n entries each: 0 for equal
 * rows, never negative. Small divergences are exact to about 1e-8. The bits are the same on any instruction
 * set (no library's exp). NaN: a row contains a NaN or an infinity. */
double divergence(const float *base, const float *other, int64_t n);

#endif
