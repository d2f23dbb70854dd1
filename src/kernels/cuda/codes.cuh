/* codes.cuh - 8-bit codes of activations: the rounding of a group, and the codes that a launch leaves of its
 * outputs for the next one, for one row and for several. */
#ifndef NIB_KERNELS_CUDA_CODES_CUH
#define NIB_KERNELS_CUDA_CODES_CUH

#include "kernels/act8.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/device.cuh"

/* A subgroup of activations: its group's scale, and the sum of its codes. */
struct __align__(8) subgroup_meta {
    float scale;
    int sum;
};

/* A group's scale and its reciprocal. max_bits: the bits of the group's largest magnitude. Bits compare like
 * magnitudes, and NaN is the largest. */
__device__ __forceinline__ float2 group_scales(uint32_t max_bits, float top) {
    const float largest = __uint_as_float(max_bits);
    const bool some = max_bits < 0x7f800000u && largest >= ACT8_TINY;
    return make_float2(max_bits >= 0x7f800000u ? __uint_as_float(0x7fc00000u)
                       : some                  ? __fdiv_rn(largest, top)
                                               : 0.0f,
                       some ? __fdiv_rn(top, largest) : 0.0f);
}
/* A code in the lowest byte of a float's bits: adding the magic number rounds to the nearest integer, ties to
 * even. */
#define CODE_MAGIC 12582912.0f
__device__ __forceinline__ float code_float(float v, float inverse) {
    return __fadd_rn(__fmul_rn(v, inverse), CODE_MAGIC);
}
/* The same with codes up to top, 7 or 127 (act8.h). */
__device__ __forceinline__ float code_upto(float v, float inverse, float top) {
    const float code = code_float(v, inverse);
    return top < 8.0f ? fminf(code, CODE_MAGIC + 7.0f) : code;
}
/* What the largest magnitude of a group is found by: the bits of |v|. top 7: with the sign below them, so
 * that of equal magnitudes the negative one is larger. */
__device__ __forceinline__ uint32_t sized_bits(float v, float top) {
    const uint32_t bits = __float_as_uint(v);
    return top < 8.0f ? __funnelshift_l(bits, bits, 1) : bits & 0x7fffffffu;
}
/* group_scales from the group's most of sized_bits. */
__device__ __forceinline__ float2 scales_by(uint32_t most, float top) {
    return top < 8.0f ? group_scales(most >> 1, most & 1 ? 8.0f : -8.0f) : group_scales(most, top);
}

/* The index of a row's quad of codes, in dwords. Quads t and t + 4 of each 32 of K are adjacent, because lane
 * t of the matrix instruction reads both. */
__host__ __device__ __forceinline__ int code_quad(int quad) {
    return quad / 8 * 8 + quad % 4 * 2 + quad / 4 % 2;
}

/* The arrays that a launch leaves (cuda_codes) for one row: the codes; the scale and the sum of each 32; the
 * sum of squares of each 32, before the norm's weights; the largest magnitude of each 32, and the floats
 * times these weights. Groups of 32 use the codes and scales, wider groups the magnitudes and floats. No
 * array shares memory with another, so the padding behind a row stays zero. */
struct codes_row {
    uint8_t *codes;
    subgroup_meta *meta;
    float *squares;
    uint32_t *max_bits; /* bits of floats */
    float *floats;
    const float *norm;
    bool wide;
};
__host__ __device__ __forceinline__ codes_row codes_of(const cuda_codes &c, int64_t k) {
    const int64_t n = (k + TILE_CHUNK_K - 1) / TILE_CHUNK_K * (TILE_CHUNK_K / 32);
    uint8_t *const p = (uint8_t *)c.data;
    return codes_row{p,
                     (subgroup_meta *)(p + 32 * n),
                     (float *)(p + 40 * n),
                     (uint32_t *)(p + 44 * n),
                     (float *)(p + 48 * n),
                     c.norm,
                     c.group > 32};
}

/* The arrays for several rows of k, a multiple of 256, in groups of 32: codes and scales for `columns` rows,
 * in the order in which linear_kept.cu and linear_pair.cu copy them, and each row's sums of squares. */
struct codes_rows {
    uint8_t *codes;
    float *scales, *squares; /* squares: [column][n_32] */
    const float *norm;
    int columns, n_32;
};
enum { MAX_LEFT_ROWS = 16 };
enum {
    LEFT_ONE = 32 + 8 + 4 + 4 + 128 /* bytes for each 32 of one row */,
    LEFT_EACH = 32 + 4 + 4 /* of several */,
    LEFT_BYTES = LEFT_ONE > MAX_LEFT_ROWS *LEFT_EACH ? (int)LEFT_ONE : (int)MAX_LEFT_ROWS *(int)LEFT_EACH
};
__host__ __device__ __forceinline__ int left_columns(int64_t n_row) {
    return n_row <= 4 ? 4 : n_row <= 8 ? 8 : 16;
}
__host__ __device__ __forceinline__ codes_rows codes_rows_of(void *data, const float *norm, int64_t k,
                                                             int64_t n_row) {
    const int columns = left_columns(n_row), n_32 = (int)(k / 32);
    uint8_t *const p = (uint8_t *)data;
    float *const scales = (float *)(p + k * columns);
    return codes_rows{p, scales, scales + (int64_t)n_32 * columns, norm, columns, n_32};
}

/* The position of a column's element, in bytes, and (scale_place) of its subgroup's scale, in floats, in
 * arrays for this many columns. Each tile and eight columns have 16 bytes for each lane; each tile and pair
 * of columns have the scales of both subgroups. Arrays for four columns have half of the lanes and pairs. */
__host__ __device__ __forceinline__ int code_place(int columns, int column, int i) {
    const int eights = columns > 8 ? 2 : 1, lanes = columns < 8 ? 16 : 32, quad = i / 4 % 8;
    return (((i / 64 * eights + column / 8) * lanes + column % 8 * 4 + quad % 4) * 4 + i / 32 % 2 * 2 +
            quad / 4) *
               4 +
           i % 4;
}
__host__ __device__ __forceinline__ int scale_place(int columns, int column, int subgroup) {
    const int eights = columns > 8 ? 2 : 1, pairs = columns < 8 ? 2 : 4;
    return ((subgroup / 2 * eights + column / 8) * pairs + column % 8 / 2) * 4 + subgroup % 2 * 2 +
           column % 2;
}

/* Leaves the codes of 32 elements of a row, from the largest magnitude of their group. A lane has element
 * i. */
__device__ __forceinline__ void codes_leave(const codes_row &to, int i, float v, uint32_t max_bits) {
    const float2 scales = group_scales(max_bits, 127.0f);
    const int code = (int8_t)__float_as_uint(code_float(v, scales.y)), sum = warp_sum(code);
    to.codes[4 * code_quad(i / 4) + i % 4] = (uint8_t)code;
    if (i % 32 == 0)
        to.meta[i / 32] = subgroup_meta{scales.x, sum};
}

/* Leaves the code of element i of one of several rows, from the largest magnitude of its 32. v: the element
 * times the norm's weight. */
__device__ __forceinline__ void code_leave(const codes_rows &to, int row, int i, float v, uint32_t max_bits) {
    const float2 scales = group_scales(max_bits, 127.0f);
    to.codes[code_place(to.columns, row, i)] = (uint8_t)__float_as_uint(code_float(v, scales.y));
    if (i % 32 == 0) /* over 16: nibbles.cuh */
        to.scales[scale_place(to.columns, row, i / 32)] = __fmul_rn(scales.x, 0.0625f);
}
/* Leaves element i of one of several rows. w: the norm's weight. A warp has 32 successive elements. */
__device__ __forceinline__ void group_leave_among(const codes_rows &to, int row, int i, float v, float w) {
    if (to.norm) {
        const float square = pairs_sum(__fmul_rn(v, v), 32);
        if (i % 32 == 0)
            to.squares[row * to.n_32 + i / 32] = square;
        v = __fmul_rn(v, w);
    }
    code_leave(to, row, i, v, max_warp(__float_as_uint(v) & 0x7fffffffu));
}

/* Leaves element i of a row. w: the norm's weight. A warp has 32 successive elements. */
__device__ __forceinline__ void group_leave(const codes_row &to, int i, float v, float w) {
    const int group = i / 32, in = i % 32;
    if (to.norm) {
        const float square = pairs_sum(__fmul_rn(v, v), 32);
        if (in == 0)
            to.squares[group] = square;
        v = __fmul_rn(v, w);
    }
    const uint32_t max_bits = max_warp(__float_as_uint(v) & 0x7fffffffu);
    if (to.wide) {
        if (to.norm)
            to.floats[i] = v;
        if (in == 0)
            to.max_bits[group] = max_bits;
        return;
    }
    codes_leave(to, i, v, max_bits);
}

/* ---- what several rows leave ---- */

/* The sums of 16 outputs of a panel and one column that the neighbouring panel needs. */
struct half_left {
    float square;
    uint32_t max_bits;
};
/* An output whose code needs the sums of the neighbouring panel. n < 0: there is none. */
struct half_output {
    int n, m;
    float v;
    half_left of;
};
/* Prepares the code of output n of column m; each 16 threads have a panel. of: the sums for the neighbouring
 * panel. there: the output exists. w: the norm's weight. */
__device__ __forceinline__ half_output half_leave(const codes_rows &to, int n, int m, float v, float w,
                                                  bool there, half_left *of) {
    float square = 0.0f;
    if (to.norm) {
        square = pairs_sum(__fmul_rn(v, v), 16);
        v = __fmul_rn(v, w);
    }
    const half_left mine = {square, max_lanes(__float_as_uint(v) & 0x7fffffffu, 16)};
    if (there && n % PACK_PANEL == 0)
        *of = mine;
    return half_output{there ? n : -1, m, v, mine};
}
/* Stores the code, when the sums of the other panel are known. */
__device__ __forceinline__ void half_finish(const codes_rows &to, const half_output &out,
                                            const half_left *other) {
    if (out.n < 0)
        return;
    code_leave(to, out.m, out.n, out.v, max(out.of.max_bits, other->max_bits));
    if (to.norm && out.n % 32 == 0)
        to.squares[out.m * to.n_32 + out.n / 32] = __fadd_rn(out.of.square, other->square);
}

#endif
