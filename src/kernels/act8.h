/* act8.h - how a row of 8-bit activations lies in memory. Shared by the quantisers and the tile kernels.
 *
 *     codes   int8  [k_pad]       k_pad = k rounded up to 64; in the order of K, so that a quad is one dword
 *     scale   float [k_pad / 32]
 *     lift32  float [k_pad / 32]  scale * (sum of the 32 codes): what a minimum is multiplied with
 *     minus32 int32 [k_pad / 32]  - (sum of the 32 codes): what a zero point is multiplied with
 *     lift16  float [k_pad / 16]  the same two for weights in groups of 16
 *     minus16 int32 [k_pad / 16]
 * scale = max |x| / 127 over 32, code = x / scale rounded to nearest even. A group whose max is below
 * ACT8_TINY counts as zeros (its reciprocal would overflow). A group with a NaN or an infinity has scale NaN.
 */
#ifndef NIB_KERNELS_ACT8_H
#define NIB_KERNELS_ACT8_H

#include "kernels/kernels.h"
#include "quant/tile.h"

enum { ACT8_GROUP = 32, ACT8_SUM = 16 };
#define ACT8_TINY 1e-35f

/* Byte offsets in a row; the codes stand first. */
typedef struct act8_layout {
    int64_t scale, lift32, minus32, lift16, minus16, bytes;
} act8_layout;

static inline act8_layout act8_layout_of(int64_t k) {
    const int64_t pad = tile_count(k) * TILE_K, n32 = pad / ACT8_GROUP * 4, n16 = pad / ACT8_SUM * 4;
    act8_layout l = {.scale = pad};
    l.lift32 = l.scale + n32;
    l.minus32 = l.lift32 + n32;
    l.lift16 = l.minus32 + n32;
    l.minus16 = l.lift16 + n16;
    l.bytes = (l.minus16 + n16 + 63) / 64 * 64;
    return l;
}

/* A group's scale and everything derived from its two sums, in the one way that all quantisers share. */
static inline void act8_put(char *row, const act8_layout *l, int64_t group, float scale, int32_t sum0,
                            int32_t sum1) {
    float *lift16 = (float *)(void *)(row + l->lift16) + 2 * group;
    int32_t *minus16 = (int32_t *)(void *)(row + l->minus16) + 2 * group;
    ((float *)(void *)(row + l->scale))[group] = scale;
    ((float *)(void *)(row + l->lift32))[group] = scale * (float)(sum0 + sum1);
    ((int32_t *)(void *)(row + l->minus32))[group] = -(sum0 + sum1);
    lift16[0] = scale * (float)sum0;
    lift16[1] = scale * (float)sum1;
    minus16[0] = -sum0;
    minus16[1] = -sum1;
}

/* out[i] = x[i] - what the row's codes stand for: the part that 8 bits left over. */
static inline void act8_rest(const char *row, const float *x, int64_t k, float *out) {
    const act8_layout l = act8_layout_of(k);
    const float *scale = (const float *)(const void *)(row + l.scale);
    for (int64_t i = 0; i < k; i++)
        out[i] = x[i] - scale[i / ACT8_GROUP] * (float)(int8_t)row[i];
}

#endif
