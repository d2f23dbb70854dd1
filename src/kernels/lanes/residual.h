/* residual.h - QDEC's two steps over a row: selection of the largest channels of a chunk, and the
 * contribution of their residuals to a product. Included after a folder's lanes.h. */
#ifndef NIB_KERNELS_LANES_RESIDUAL_H
#define NIB_KERNELS_LANES_RESIDUAL_H

#include "base/num.h"
#include "kernels/kernels.h"
#include "kernels/lanes/elementwise.h"
#include "kernels/salient.h"

#include <math.h>
#include <string.h>

/* ---- selection of channels ---- */

/* How many values of n_vec vectors of bucket numbers are `from` or above. */
static int count_from(const float *bucket, int n_vec, float from) {
    vf sum = v_zero();
    const vf t = v_set(from), one = v_set(1.0f);
    for (int i = 0; i < n_vec; i++)
        sum = v_add(sum, v_select(v_less(v_load(bucket + i * LANES), t), v_zero(), one));
    return (int)v_sum(sum);
}

/* Writes the bucket of each value as a float in 0..31, and zeros after the n-th. 31 has the largest
 * magnitudes. */
static int bucket_values(const float *x, int n, int want, float *bucket) {
    vf sum = v_zero(), peak = v_zero();
    LANES_EACH(n, {
        const vf v = LOAD(x);
        sum = v_fma(v, v, sum);
        peak = v_max(peak, v_abs(v));
    });
    const float max = v_largest(peak);
    float boundary = salient_reach(n, want) * sqrtf(v_sum(sum) / (float)n);
    if (!(boundary < max))
        boundary = 0.5f * max;
    const vf b = v_set(boundary), above = v_set(max > boundary ? 16 / (max - boundary) : 0),
             below = v_set(boundary > 0 ? 16 / boundary : 0), max_bucket = v_set(SALIENT_BUCKETS - 1);
    int n_vec = 0;
    LANES_EACH(n, {
        const vf v = v_abs(LOAD(x));
        const vf at = v_select(v_less(v, b), v_mul(v, below), v_fma(v_sub(v, b), above, v_set(16.0f)));
        v_store(bucket + n_vec++ * LANES, v_select(v_less(v_zero(), at), v_min(at, max_bucket), v_zero()));
    });
    return n_vec;
}

static void op_salient(const float *x, int n, int want, int32_t first, int32_t *out) {
    float bucket[SALIENT_CHUNK + LANES];
    const int n_vec = bucket_values(x, n, want, bucket);
    int last = 0, end = SALIENT_BUCKETS, taken = 0, n_out = 0;
    while (end - last > 1) { /* finds the highest bucket such that it and those above it have enough values */
        const int middle = (last + end) / 2, n_from = count_from(bucket, n_vec, (float)middle);
        if (n_from >= want) {
            last = middle;
        } else {
            end = middle;
            taken = n_from;
        }
    }
    int of_last = want - taken;
    for (int i = 0; i < n && n_out < want; i++)
        if (bucket[i] >= (float)last && (bucket[i] >= (float)end || of_last-- > 0))
            out[n_out++] = first + i;
}

/* ---- contribution to a product ---- */

enum { RESIDUAL_TILE = 512 /* outputs whose sums stay in the first-level cache */ };

/* The codes of outputs [16 g, 16 g + 16) as floats. */
LANES_INLINE vf residual_codes(const uint8_t *row, int bits, int64_t g) {
    if (bits == 16)
        return v_load_f16((const uint16_t *)(const void *)row + g * LANES);
    const vf zero = v_set((float)residual_zero(bits));
    if (bits == 8)
        return v_sub(v_load_u8(row + g * LANES), zero);
    if (bits == 4)
        return v_sub(v_load_u4(row + g / 2 * LANES, g % 2), zero);
    uint64_t two[2];
    memcpy(two, row + g / 4 * LANES, sizeof two);
    two[0] = two[0] >> 2 * (g % 4) & UINT64_C(0x0303030303030303);
    two[1] = two[1] >> 2 * (g % 4) & UINT64_C(0x0303030303030303);
    return v_sub(v_load_u8((const uint8_t *)two), zero);
}

/* Sums of outputs [16 g0, 16 g1), the channels in their order, four at a time. */
LANES_INLINE void add_channels(const residual *r, int bits, const salient *from, int64_t n, int64_t g0,
                               int64_t g1, float *sum) {
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const uint8_t *a = r->rows + from[i].at * r->step, *b = r->rows + from[i + 1].at * r->step,
                      *c = r->rows + from[i + 2].at * r->step, *d = r->rows + from[i + 3].at * r->step;
        const vf xa = v_set(from[i].x), xb = v_set(from[i + 1].x), xc = v_set(from[i + 2].x),
                 xd = v_set(from[i + 3].x);
        for (int64_t ahead = i + 4; ahead < NUM_MIN(i + 8, n); ahead++)
            for (int64_t at = g0 * 2 * bits; at < g1 * 2 * bits; at += 64)
                __builtin_prefetch(r->rows + from[ahead].at * r->step + at);
        for (int64_t g = g0; g < g1; g++) {
            float *to = sum + (g - g0) * LANES;
            vf s = v_fma(xa, residual_codes(a, bits, g), v_load(to));
            s = v_fma(xb, residual_codes(b, bits, g), s);
            s = v_fma(xc, residual_codes(c, bits, g), s);
            v_store(to, v_fma(xd, residual_codes(d, bits, g), s));
        }
    }
    for (; i < n; i++) {
        const uint8_t *a = r->rows + from[i].at * r->step;
        const vf x = v_set(from[i].x);
        for (int64_t g = g0; g < g1; g++) {
            float *to = sum + (g - g0) * LANES;
            v_store(to, v_fma(x, residual_codes(a, bits, g), v_load(to)));
        }
    }
}

static void op_residual(const residual *r, const salient *from, int64_t n_from, int64_t n0, int64_t n1,
                        float *y) {
    for (int64_t n = n0, end; n < n1; n = end) {
        float sum[RESIDUAL_TILE] = {0};
        end = NUM_MIN(n + RESIDUAL_TILE, n1);
        const int64_t g0 = n / LANES, g1 = num_div_up(end, LANES);
        switch (r->bits) {
        case 2: add_channels(r, 2, from, n_from, g0, g1, sum); break;
        case 4: add_channels(r, 4, from, n_from, g0, g1, sum); break;
        case 8: add_channels(r, 8, from, n_from, g0, g1, sum); break;
        default: add_channels(r, 16, from, n_from, g0, g1, sum); break;
        }
        const float *scale = r->scale + n;
        float *to = y + n - n0;
        LANES_EACH(end - n, STORE(to, v_fma(v_load(sum + i), LOAD(scale), LOAD(to))));
    }
}

#endif
