/* attend_rows.cuh - the new keys and values of a launch's rows as halves, eight elements of a head at a time,
 * and whole blocks of them. */
#ifndef NIB_KERNELS_CUDA_ATTEND_ROWS_CUH
#define NIB_KERNELS_CUDA_ATTEND_ROWS_CUH

#include "kernels/cuda/attend.cuh"

/* Element e of a key, rotated. table: its cosines and sines. */
__device__ __forceinline__ float key_element(const cuda_attend &a, const float *key, const float *table,
                                             int e) {
    const int half = (int)a.n_rot / 2;
    if (e >= 2 * half)
        return key[e];
    const bool apart = a.style == ROPE_HALF, second = apart ? e >= half : e % 2;
    const int i = apart ? e % half : e / 2, one = apart ? i : 2 * i, other = apart ? i + half : 2 * i + 1;
    const float2 y = pair_rotate(make_float2(key[one], key[other]), make_float2(table[i], table[half + i]));
    return second ? y.y : y.x;
}

__device__ __forceinline__ void eight_at(const float *p, float (&x)[8]) {
    *(float4 *)x = *(const float4 *)p;
    *(float4 *)(x + 4) = *(const float4 *)(p + 4);
}

/* Rotates elements [8 u, 8 u + 8) of a key, x. */
__device__ __forceinline__ void eight_rotate(const cuda_attend &a, const float *key, const float *table,
                                             int u, float (&x)[8]) {
    const int half = (int)a.n_rot / 2, first = 8 * u;
    const bool apart = a.style == ROPE_HALF;
    if (first >= 2 * half)
        return;
    if (half % (apart ? 8 : 4)) { /* the eight have elements of both kinds, or are not aligned in the table */
#pragma unroll
        for (int i = 0; i < 8; i++)
            x[i] = key_element(a, key, table, first + i);
        return;
    }
    float other[8], c[8], s[8];
    if (apart) {
        const bool second = first >= half;
        const int i = second ? first - half : first;
        eight_at(key + (second ? i : i + half), other);
        eight_at(table + i, c);
        eight_at(table + half + i, s);
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const float2 y = pair_rotate(second ? make_float2(other[n], x[n]) : make_float2(x[n], other[n]),
                                         make_float2(c[n], s[n]));
            x[n] = second ? y.y : y.x;
        }
        return;
    }
    *(float4 *)c = *(const float4 *)(table + first / 2);
    *(float4 *)s = *(const float4 *)(table + half + first / 2);
#pragma unroll
    for (int n = 0; n < 4; n++)
        *(float2 *)(x + 2 * n) = pair_rotate(make_float2(x[2 * n], x[2 * n + 1]), make_float2(c[n], s[n]));
}

/* The new key, before the rotation, or value of a row's head. */
__device__ __forceinline__ const float *new_at(const cuda_attend &a, bool is_value, int row, int head) {
    return (is_value ? a.v + row * a.ldv : a.k + row * a.ldk) + (int64_t)head * a.kv.d_head;
}
/* Rotates eight elements of a key, and rounds those of keys and values to halves. */
__device__ __forceinline__ uint4 eight_finish(const cuda_attend &a, bool is_value, int row, int position,
                                              int head, int u, float (&x)[8]) {
    if (!is_value && a.cos_sin)
        eight_rotate(a, new_at(a, false, row, head),
                     a.cos_sin + (int64_t)(a.cos_sin_by_row ? row : position) * a.n_rot, u, x);
    return make_uint4(as_halves(x[0], x[1]), as_halves(x[2], x[3]), as_halves(x[4], x[5]),
                      as_halves(x[6], x[7]));
}

/* Gathers the keys or values of one head in the block of positions from `position` on, which row `first` of
 * the launch would have (it may be negative): from the launch's rows up to `last`, and older ones from the
 * page of the newest block. Positions after `last` become zeros. Calls put(position in the block, u, halves
 * [8 u, 8 u + 8)), by `n_thread` threads. The loads of UNITS calls are in flight together. D: width of heads;
 * 0: any. ALONE: the launch has rows of one sequence. */
template <int D, int UNITS, bool ALONE, class Put>
__device__ __forceinline__ void block_gather(const cuda_attend &a, bool is_value, int head, int position,
                                             int first, int last, int thread, int n_thread, const Put &put) {
    const int d = D ? D : (int)a.kv.d_head, eights = d / 8, n_unit = CUDA_PAGE * eights,
              of = a.first_page[last];
    const __half *old = recent_at(a, is_value, a.pages + of, position / CUDA_PAGE, head);
    const float *const from = is_value ? a.v + (int64_t)head * d : a.k + (int64_t)head * d;
    const int64_t ld = is_value ? a.ldv : a.ldk;
    for (int begin = thread; begin < n_unit; begin += UNITS * n_thread) {
        float x[UNITS][8];
#pragma unroll
        for (int i = 0; i < UNITS; i++) { /* missing rows load another one */
            const int unit = begin + i * n_thread, row = min(max(first + unit / eights, 0), last);
            eight_at(from + row * ld + unit % eights * 8, x[i]);
        }
#pragma unroll
        for (int i = 0; i < UNITS; i++) {
            const int unit = begin + i * n_thread, p = unit / eights, u = unit % eights, row = first + p;
            if (unit >= n_unit)
                break;
            uint4 h = make_uint4(0, 0, 0, 0);
            if (row >= 0 && row <= last && (ALONE || a.first_page[row] == of))
                h = eight_finish(a, is_value, row, position + p, head, u, x[i]);
            else if (row <= last)
                h = *(const uint4 *)(old + p * d + u * 8);
            put(p, u, h);
        }
    }
}

#endif
