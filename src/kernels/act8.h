/* act8.h - how a row of 8-bit activations lies in memory. Shared by the quantisers and the tile kernels.
 *
 *     codes  int8  [k_pad]       k_pad = k rounded up to 64; in the order of K, so that a quad is one dword
 *     scale  float [k_pad / 32]
 *     lift   float [k_pad / 16]  scale * (sum of the 16 codes), what a minimum is multiplied with in groups of 16
 *     lift32 float [k_pad / 32]  the same for 32
 *     sum    int32 [k_pad / 16]  sums of codes, what a zero point is multiplied with
 * scale = max |x| / 127 over 32, code = x / scale rounded to nearest even. A group whose max is below ACT8_TINY
 * counts as zeros (its reciprocal would overflow). A group with a NaN or an infinity has scale NaN. */
#ifndef NIB_KERNELS_ACT8_H
#define NIB_KERNELS_ACT8_H

#include "kernels/kernels.h"
#include "quant/tile.h"

enum { ACT8_GROUP = 32, ACT8_SUM = 16 };
#define ACT8_TINY 1e-35f

typedef struct act8_row {
    const int8_t *codes;
    const float *scale, *lift, *lift32;
    const int32_t *sum;
} act8_row;

static inline int64_t act8_pad(int64_t k) {
    return tile_count(k) * TILE_K;
}

static inline act8_row act8_at(const void *row, int64_t k) {
    const int64_t pad = act8_pad(k);
    const char *p = row;
    act8_row r;
    r.codes = (const int8_t *)p;
    r.scale = (const float *)(const void *)(p + pad);
    r.lift = r.scale + pad / ACT8_GROUP;
    r.lift32 = r.lift + pad / ACT8_SUM;
    r.sum = (const int32_t *)(r.lift32 + pad / ACT8_GROUP);
    return r;
}

#endif
