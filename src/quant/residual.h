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
#ifndef NIB_QUANT_RESIDUAL_H
#define NIB_QUANT_RESIDUAL_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct residual {
    int bits;      /* 2, 4, 8 or 16 */
    int64_t n, k;  /* outputs, input channels; k 0: there is none */
    int64_t step;  /* bytes of a channel: a multiple of 32, from 1,024 on of 128 */
    uint8_t *rows; /* [k, step] */
    float *scale;  /* [n] */
} residual;

enum { RESIDUAL_ALIGN = 128 /* of a residual in memory, and its size is a multiple */ };

bool residual_bits_known(int bits);
static inline int residual_zero(int bits) {
    return bits == 16 ? 0 : 1 << (bits - 1);
}
/* false: too many. */
bool residual_bytes(int bits, int64_t n, int64_t k, uint64_t *bytes);
/* One in `memory`, residual_bytes of it, RESIDUAL_ALIGN aligned, borrowed. */
residual residual_in(void *memory, int bits, int64_t n, int64_t k);
/* Output channels [i, i + 16) or up to the end, i a multiple of 16: values [16, k], what is left over there.
 * Threads may do so side by side where i / 64 differs. */
void residual_set(residual *r, int64_t i, const float *values);
/* The sum of the squares of channel c over all outputs, scales included. */
float residual_energy(const residual *r, int64_t c);
/* Output i of channel c, for tests and references. */
float residual_code(const residual *r, int64_t c, int64_t i);

#endif
