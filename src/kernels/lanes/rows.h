/* rows.h - products with float weights kept row by row. Included after a folder's lanes.h.
 *
 * Lanes run along K: output (m, n) is the sum over 16 lanes of fused multiply-adds in the order of K, reduced
 * by v_sum at the end. A block of rows only shares loads: each output has this order in every block. */
#ifndef NIB_KERNELS_LANES_ROWS_H
#define NIB_KERNELS_LANES_ROWS_H

#include "base/num.h"
#include "kernels/kernels.h"
#include "kernels/lanes/lanes.h"
#include "numbers/tile.h"

enum { ROWS_BLOCK = 32 }; /* activation rows that stay in the second-level cache while weights pass */

LANES_INLINE vf rows_load(int type, const void *row, int64_t i) {
    if (type == TYPE_F8G64) {
        const block_f8g64 *b = (const block_f8g64 *)row + i / 64;
        return v_mul(v_load_e4m3(b->codes + i % 64), v_set(block_float(b->scale)));
    }
    if (type == TYPE_F4G64) {
        const block_f4g64 *b = (const block_f4g64 *)row + i / 64;
        const int64_t g = i % 64 / 16;
        const float scale = block_float(b->whole) * block_e4m3(b->scale[g]);
        return v_mul(v_load_e2m1(b->qs[g / 2], g % 2), v_set(scale));
    }
    if (type == TYPE_F32)
        return v_load((const float *)row + i);
    if (type == TYPE_F16)
        return v_load_f16((const uint16_t *)row + i);
    return v_load_bf16((const uint16_t *)row + i);
}

/* A block of rn x rm outputs; all of rn, rm and type are constants where it is inlined. Weights are padded
 * with zeros to 16, activations are not. */
LANES_INLINE void rows_block(const linear_args *a, int type, int rn, int rm, int64_t n, int64_t m) {
    const int64_t k = a->w->k, stride = rows_bytes(type, k);
    const char *w = (const char *)a->w->data + n * stride;
    const float *x = a->x + m * a->ldx;
    vf sum[8][4];
    LANES_UNROLL
    for (int i = 0; i < rn; i++) {
        LANES_UNROLL
        for (int j = 0; j < rm; j++)
            sum[i][j] = v_zero();
    }
    int64_t at = 0;
    for (; at + LANES <= k; at += LANES) {
        vf xs[4];
        LANES_UNROLL
        for (int j = 0; j < rm; j++)
            xs[j] = v_load(x + j * a->ldx + at);
        LANES_UNROLL
        for (int i = 0; i < rn; i++) {
            const vf ws = rows_load(type, w + i * stride, at);
            LANES_UNROLL
            for (int j = 0; j < rm; j++)
                sum[i][j] = v_fma(ws, xs[j], sum[i][j]);
        }
    }
    if (at < k) {
        LANES_UNROLL
        for (int j = 0; j < rm; j++) {
            const vf xs = v_load_part(x + j * a->ldx + at, (int)(k - at));
            LANES_UNROLL
            for (int i = 0; i < rn; i++)
                sum[i][j] = v_fma(rows_load(type, w + i * stride, at), xs, sum[i][j]);
        }
    }
    LANES_UNROLL
    for (int i = 0; i < rn; i++) {
        LANES_UNROLL
        for (int j = 0; j < rm; j++) {
            const float y = v_sum(sum[i][j]);
            a->y[(m + j) * a->ldy + n + i] = a->bias ? y + a->bias[n + i] : y;
        }
    }
}

/* rn rows of weights with all rows of a block, so that weights are read from memory once. rn and type are
 * constants. */
LANES_INLINE void rows_columns(const linear_args *a, int type, int rn, int64_t n, int64_t m0, int64_t m1) {
    int64_t m = m0;
    for (; m + ROWS_M <= m1; m += ROWS_M)
        rows_block(a, type, rn, ROWS_M, n, m);
    if (ROWS_M > 3 && m1 - m == 3)
        rows_block(a, type, rn, 3, n, m);
    else if (ROWS_M > 2 && m1 - m == 2)
        rows_block(a, type, rn, 2, n, m);
    else if (m1 - m == 1)
        rows_block(a, type, rn, 1, n, m);
}

LANES_INLINE void rows_all(const linear_args *a, int type, int64_t n0, int64_t n1) {
    for (int64_t m0 = 0; m0 < a->n_row; m0 += ROWS_BLOCK) {
        const int64_t m1 = NUM_MIN(a->n_row, m0 + ROWS_BLOCK);
        int64_t n = n0;
        for (; n + ROWS_N1 <= n1 && m1 - m0 <= 2; n += ROWS_N1) {
            /* After the first row, the weights are in the first-level cache. */
            for (int64_t m = m0; m < m1; m++)
                rows_block(a, type, ROWS_N1, 1, n, m);
        }
        for (; n + ROWS_N <= n1 && m1 - m0 > 1; n += ROWS_N)
            rows_columns(a, type, ROWS_N, n, m0, m1);
        for (; n < n1; n++)
            for (int64_t m = m0; m < m1; m++)
                rows_block(a, type, 1, 1, n, m);
    }
}

static void op_linear_rows(const linear_args *a, int64_t n0, int64_t n1) {
    switch (a->w->format.type) {
    case TYPE_F32: rows_all(a, TYPE_F32, n0, n1); break;
    case TYPE_F16: rows_all(a, TYPE_F16, n0, n1); break;
    case TYPE_F8G64: rows_all(a, TYPE_F8G64, n0, n1); break;
    case TYPE_F4G64: rows_all(a, TYPE_F4G64, n0, n1); break;
    default: rows_all(a, TYPE_BF16, n0, n1); break;
    }
}

#endif
