/* residual.h - the rounding residual of a matrix, stored so that single input channels can be read: QDEC's
 * residual (paper 4.2).
 *
 * R = W - Q(W) in symmetric codes of 2, 4 or 8 bits, or in f16, with one scale for each output channel, the
 * best of a grid by squared error. Input channel c is one run of bytes with all outputs, so a channel is one
 * contiguous read. Scales are after all channels.
 *
 * Codes are unsigned: the code `zero` is 0. 16 adjacent bytes have 128 / bits outputs, first those of the
 * lowest bits of each byte, then those of the bits above, so that 16 lanes need no shuffle: with 4 bits byte
 * i has output i in its lower half and output 16 + i in its upper half. */
#ifndef NIB_NUMBERS_RESIDUAL_H
#define NIB_NUMBERS_RESIDUAL_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct residual {
    int bits;      /* 2, 4, 8 or 16 */
    int64_t n, k;  /* output channels, input channels; k 0: there is no residual */
    int64_t step;  /* bytes of a channel: a multiple of 32, from 1,024 on of 128 */
    uint8_t *rows; /* [k, step]: the codes of each input channel; rows and scale are borrowed */
    float *scale;  /* [n]; 1 with 16 bits */
} residual;

enum { RESIDUAL_ALIGN = 128 /* bytes: alignment of a residual in memory; its size is a multiple of it */ };

/* Whether residuals can have this number of bits: 2, 4, 8 or 16. */
bool residual_bits_known(int bits);
/* The code of 0. */
static inline int residual_zero(int bits) {
    return bits == 16 ? 0 : 1 << (bits - 1);
}
/* Bytes of a residual of an [n, k] matrix, scales included. False: n or k is below 1 or above 2^28. */
bool residual_bytes(int bits, int64_t n, int64_t k, uint64_t *bytes);
/* A residual in `memory`: residual_bytes, aligned to RESIDUAL_ALIGN, which the caller owns and keeps. */
residual residual_in(void *memory, int bits, int64_t n, int64_t k);
/* Rounds and stores output channels [i, i + 16), or those up to n; i is a multiple of 16. values: [16, k], R
 * of these outputs. Threads may call it at the same time if their i / 64 differ, since up to 64
 * outputs share bytes. */
void residual_set(residual *r, int64_t i, const float *values);
/* The sum over all outputs of the squared residuals of input channel c, scales included. */
float residual_energy(const residual *r, int64_t c);
/* The code of output i of input channel c minus the zero point, not scaled; for tests and reference code. */
float residual_code(const residual *r, int64_t c, int64_t i);

#endif
