/* act8.h - the memory layout of a row of quantized activations. Shared by the quantizers and the tile
 * kernels.
 *
 *     codes   int8  [k_pad]      k_pad = k rounded up to 64; in the order of K, so that a quad is one dword
 *     scale   float [n]          n groups; one scale for each
 *     lift    float [n]          scale * (sum of the group's codes): what a minimum is multiplied with
 *     minus   int32 [n]          - (sum of the group's codes): what a zero point is multiplied with
 * and in groups of 32 only, for weights in groups of 16:
 *     lift16  float [k_pad / 16] the same two for each half of a group
 *     minus16 int32 [k_pad / 16]
 * scale = max |x| / most over the group, code = x / scale rounded to nearest even, with most = 127 for 8 bits
 * and 7 for 4 (codes are bytes in both). A group whose max is below ACT8_TINY counts as zeros (its reciprocal
 * would overflow). A group with a NaN or an infinity has scale NaN. */
#ifndef NIB_KERNELS_ACT8_H
#define NIB_KERNELS_ACT8_H

#include "base/num.h"
#include "kernels/kernels.h"
#include "quant/tile.h"

enum { ACT8_GROUP = 32, ACT8_SUM = 16 };
#define ACT8_TINY 1e-35f

/* The largest code. */
static inline int max_act(act_format f) {
    return (1 << (f.bits - 1)) - 1;
}
/* Elements of a group, those beyond the end of a row included. */
static inline int64_t act_group(act_format f, int64_t k) {
    return f.group == PACK_GROUP_ROW ? tile_count(k) * TILE_K : f.group;
}

/* Byte offsets in a row; the codes are first. */
typedef struct act8_layout {
    int64_t scale, lift, minus, lift16, minus16, bytes;
} act8_layout;

static inline act8_layout act_layout_of(act_format f, int64_t k) {
    const int64_t pad = tile_count(k) * TILE_K, group = act_group(f, k), each = (pad + group - 1) / group * 4;
    const int64_t halves = f.group == ACT8_GROUP ? 2 * each : 0;
    act8_layout l = {.scale = pad};
    l.lift = l.scale + each;
    l.minus = l.lift + each;
    l.lift16 = l.minus + each;
    l.minus16 = l.lift16 + halves;
    l.bytes = (l.minus16 + halves + 63) / 64 * 64;
    return l;
}

/* A group's scale and everything derived from its sum, in the one way that all quantizers share. */
static inline void act_put(char *row, const act8_layout *l, int64_t group, float scale, int32_t sum) {
    ((float *)(void *)(row + l->scale))[group] = scale;
    ((float *)(void *)(row + l->lift))[group] = scale * (float)sum;
    ((int32_t *)(void *)(row + l->minus))[group] = -sum;
}
/* The same in groups of 32, from the sums of both halves. */
static inline void act8_put(char *row, const act8_layout *l, int64_t group, float scale, int32_t sum0,
                            int32_t sum1) {
    float *lift16 = (float *)(void *)(row + l->lift16) + 2 * group;
    int32_t *minus16 = (int32_t *)(void *)(row + l->minus16) + 2 * group;
    act_put(row, l, group, scale, sum0 + sum1);
    lift16[0] = scale * (float)sum0;
    lift16[1] = scale * (float)sum1;
    minus16[0] = -sum0;
    minus16[1] = -sum1;
}

/* Quantizes a row group by group: `each` does one group of `size` codes that begins at `at` of the
 * row, of which n exist (0 or less: none). */
typedef void act_group_fn(const float *x, int64_t n, int64_t size, float top, char *row, const act8_layout *l,
                          int64_t at, int64_t group);
static inline void act_each_group(act_format f, const float *x, int64_t k, void *out, act_group_fn *each) {
    const act8_layout l = act_layout_of(f, k);
    const int64_t pad = l.scale, group = act_group(f, k);
    for (int64_t at = 0; at < pad; at += group)
        each(x + at, NUM_MIN(k - at, group), NUM_MIN(group, pad - at), (float)max_act(f), (char *)out, &l, at,
             at / group);
}

/* out[i] = x[i] minus the value of its code: the residual of the quantization. */
static inline void act_residual(act_format f, const char *row, const float *x, int64_t k, float *out) {
    const act8_layout l = act_layout_of(f, k);
    const float *scale = (const float *)(const void *)(row + l.scale);
    const int64_t group = act_group(f, k);
    for (int64_t i = 0; i < k; i++)
        out[i] = x[i] - scale[i / group] * (float)(int8_t)row[i];
}

#endif
