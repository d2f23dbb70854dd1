/* hadamard.h - the Walsh-Hadamard transform of blocks of a row.
 *
 * The matrix of 2^i rows is symmetric and, with the factor 2^(-i/2), orthogonal. So it is its own inverse, it
 * keeps products of two rows that are both transformed, and it spreads a large value evenly over its block:
 * what is rounded afterwards has fewer outliers (QuaRot, arXiv 2404.00456). Each of the i steps adds and
 * subtracts pairs, in the same order everywhere, so the bits are the same on every instruction set. */
#ifndef NIB_NUMBERS_HADAMARD_H
#define NIB_NUMBERS_HADAMARD_H

#include <math.h>
#include <stdint.h>

/* The size of the blocks of a row of k: the largest power of two that divides k, at most `most`, a power of
 * two. */
static inline int64_t hadamard_block(int64_t k, int64_t most) {
    const int64_t fits = k & -k;
    return fits < most ? fits : most;
}

/* Transforms each block of n values of x [k]; n is a power of two that divides k. */
static inline void hadamard(float *x, int64_t k, int64_t n) {
    for (int64_t half = 1; half < n; half *= 2)
        for (int64_t i = 0; i < k; i += 2 * half)
            for (int64_t j = i; j < i + half; j++) {
                const float a = x[j], b = x[j + half];
                x[j] = a + b;
                x[j + half] = a - b;
            }
    const float scale = 1 / sqrtf((float)n);
    for (int64_t i = 0; i < k && n > 1; i++)
        x[i] *= scale;
}

#endif
