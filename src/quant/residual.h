/* residual.h - what rounding took from a matrix, kept so that the part of a few input channels can be
 * fetched: QDEC's residual (paper 4.2).
 *
 * R = W - Q(W) in symmetric codes of 2, 4 or 8 bits, or in halves, with one scale for each output channel,
 * the best of a grid by squared error. Input channel c is one run of bytes, all outputs side by side, so a
 * channel is one contiguous read; scales stand apart. */
#ifndef NIB_QUANT_RESIDUAL_H
#define NIB_QUANT_RESIDUAL_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct residual {
    int bits;      /* 2, 4, 8 or 16 */
    int64_t n, k;  /* outputs, input channels */
    int64_t step;  /* bytes of a channel */
    uint8_t *rows; /* [k, step] */
    float *scale;  /* [n] */
} residual;

bool residual_bits_known(int bits);
uint64_t residual_bytes(int bits, int64_t n, int64_t k);
/* All zeros. */
nib_status residual_open(residual *r, int bits, int64_t n, int64_t k, nib_error *err);
void residual_close(residual *r); /* zeroed is fine */
/* Output channel i: values [k], what is left over there. */
void residual_set(residual *r, int64_t i, const float *values);
/* acc [n] += x * codes of channel c, not yet scaled; y [n] += acc * scale. */
void residual_add(const residual *r, int64_t c, float x, float *acc);
void residual_finish(const residual *r, const float *acc, float *y);

#endif
