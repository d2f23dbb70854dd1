/* act8.h - the memory layout of a row of quantized activations. Shared by the quantizers and the tile
 * kernels.
 *
 *     codes   int8  [k_pad]      k_pad = k rounded up to 64; in the order of K, so that a quad is one dword
 *     scale   float [n]          n groups; one scale for each
 *     lift    float [n]          scale * (sum of the group's codes): the factor of the weights' minimum
 *     minus   int32 [n]          - (sum of the group's codes): the factor of the weights' zero point
 * In groups of 32 there are two more arrays, for weights in groups of 16:
 *     lift16  float [k_pad / 16] lift of each half of a group
 *     minus16 int32 [k_pad / 16] minus of each half of a group
 *
 * With 8 bits, and in the first n8 blocks of 128, scale = max |x| over the group / 127. With 4 bits the value
 * of max |x| becomes -8, the code that has no opposite: scale = -max / 8 if it is positive, max / 8 if it is
 * negative or if both signs reach max. code = x / scale rounded to nearest even, at most the largest code
 * (max_act). Codes are bytes with 4 bits too. A group whose max |x| is below ACT8_TINY counts as zeros,
 * because its reciprocal would overflow. A group with a NaN or an infinity has scale NaN. */
#ifndef NIB_KERNELS_ACT8_H
#define NIB_KERNELS_ACT8_H

#include "base/num.h"
#include "kernels/kernels.h"
#include "numbers/hadamard.h"
#include "numbers/tile.h"

#include <string.h>

#ifdef __CUDACC__
#define ACT_EVERYWHERE __host__ __device__
#else
#define ACT_EVERYWHERE
#endif

enum { ACT8_GROUP = 32, ACT8_SUM = 16 };
#define ACT8_TINY 1e-35f

/* The largest code: 127 with 8 bits, 7 with 4. */
static inline int max_act(act_format f) {
    return (1 << (f.bits - 1)) - 1;
}
/* The largest code of channel `at`. */
static inline float max_act_at(act_format f, int64_t at) {
    return (float)(at < f.n8 * ACT_BLOCK ? 127 : max_act(f));
}
/* max |x| / scale in a group whose codes are `top` at most. negative: the value -max |x| is in the group. */
static inline float act_steps(float top, bool negative) {
    return top > 7 ? top : negative ? 8.0f : -8.0f;
}
/* Elements of a group. The last group counts in full, also where the row ends inside it. */
static inline int64_t act_group(act_format f, int64_t k) {
    return f.group == PACK_GROUP_ROW ? tile_count(k) * TILE_K : f.group;
}

/* Which values of a row of k are outliers (act_extract_outliers): those whose square is above this share of
 * the sum of squares, and how many at most. With 4 bits they are beyond 4 times the root mean square. */
static inline ACT_EVERYWHERE float act_outlier_share(int bits, int64_t k) {
    return bits == 4 ? 16.0f / (float)k : 0.3f;
}
static inline ACT_EVERYWHERE int act_max_outliers(int bits) {
    return bits == 4 ? ACT_OUTLIERS : 8;
}

/* Transforms a row as the rows of the weights were (act_format.rotated). */
static inline void act_rotate(act_format f, const float *x, int64_t k, float *out) {
    memcpy(out, x, (size_t)k * sizeof *x);
    hadamard(out, k, hadamard_block(k, INT64_C(1) << f.rotated));
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

/* Writes a group's scale and the values derived from it and from the sum of the codes. All quantizers use
 * it. */
static inline void act_put(char *row, const act8_layout *l, int64_t group, float scale, int32_t sum) {
    ((float *)(void *)(row + l->scale))[group] = scale;
    ((float *)(void *)(row + l->lift))[group] = scale * (float)sum;
    ((int32_t *)(void *)(row + l->minus))[group] = -sum;
}
/* act_put for a group of 32, from the sums of its two halves. */
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

/* Quantizes one group: `size` codes from element `at` of the row on. The row has n of these elements (0 or
 * less: none). */
typedef void act_group_fn(const float *x, int64_t n, int64_t size, float top, char *row, const act8_layout *l,
                          int64_t at, int64_t group);
static inline void act_each_group(act_format f, const float *x, int64_t k, void *out, act_group_fn *each) {
    const act8_layout l = act_layout_of(f, k);
    const int64_t pad = l.scale, group = act_group(f, k);
    for (int64_t at = 0; at < pad; at += group)
        each(x + at, NUM_MIN(k - at, group), NUM_MIN(group, pad - at), max_act_at(f, at), (char *)out, &l, at,
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
