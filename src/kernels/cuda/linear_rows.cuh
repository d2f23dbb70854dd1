/* linear_rows.cuh - codes of rows of x, quantized by a block or left by the previous launch, and the factors
 * of whole rows. */
#ifndef NIB_KERNELS_CUDA_LINEAR_ROWS_CUH
#define NIB_KERNELS_CUDA_LINEAR_ROWS_CUH

#include "kernels/cuda/linear_job.cuh"
#include "kernels/cuda/row_math.cuh"

/* Passed by value, because a reference to the kernel's parameters would be read from memory each time. */
struct row_job {
    const float *x, *norm;
    int k, k_pad, act_group, subgroup_shift;
    float top, eps;
    int begin, end; /* the part that this block quantizes; all of it if the row has a norm or is one group */
};
__device__ __forceinline__ row_job row_of(const linear_job &j, const float *x) {
    return row_job{x,     j.norm, j.k,    j.k_pad, j.act_group, j.subgroup == 16 ? 4 : 5, (float)j.top,
                   j.eps, 0,      j.k_pad};
}

__device__ __forceinline__ void eight_weigh(const row_job &j, int at, float v[8]) {
    float w[8];
    if (!j.norm)
        return;
    eight_load(j.norm + at, j.k - at, w);
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = __fmul_rn(v[i], w[i]);
}
/* The most of sized_bits over eight values. */
__device__ __forceinline__ uint32_t max_eight(const float v[8], float top) {
    uint32_t m = 0;
#pragma unroll
    for (int i = 0; i < 8; i++)
        m = max(m, sized_bits(v[i], top));
    return m;
}
/* Quantizes eight values by the max_eight of their group. Codes are in the lowest bytes; v becomes their
 * residuals. */
__device__ __forceinline__ uint2 eight_encode(uint32_t max_bits, float top, float v[8], float *scale) {
    const float2 scales = scales_by(max_bits, top);
    uint32_t u[8];
    *scale = scales.x;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float code = code_upto(v[i], scales.y, top);
        u[i] = __float_as_uint(code);
        v[i] = __fsub_rn(v[i], __fmul_rn(*scale, __fsub_rn(code, CODE_MAGIC)));
    }
    return make_uint2(__byte_perm(__byte_perm(u[0], u[1], 0x0040), __byte_perm(u[2], u[3], 0x0040), 0x5410),
                      __byte_perm(__byte_perm(u[4], u[5], 0x0040), __byte_perm(u[6], u[7], 0x0040), 0x5410));
}

enum { EIGHT_STEP = 8 * THREADS };

/* The largest magnitude of a whole row, and of the residuals of its codes, by all threads of a block. */
__device__ __noinline__ static void max_row(row_job j, bool two, uint32_t *shared, uint32_t max_bits[2]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    max_bits[0] = max_bits[1] = 0;
    for (int pass = 0; pass < (two ? 2 : 1); pass++) {
        uint32_t m = 0;
        for (int at = 8 * threadIdx.x; at < j.k_pad; at += EIGHT_STEP) {
            float v[8], scale;
            eight_load(j.x + at, j.k - at, v);
            eight_weigh(j, at, v);
            if (pass)
                eight_encode(max_bits[0], j.top, v, &scale);
            m = max(m, max_eight(v, j.top));
        }
        m = max_lanes(m, 16);
        m = max(m, __shfl_xor_sync(~0u, m, 16));
        if (lane == 0)
            shared[warp] = m;
        __syncthreads();
        for (int i = 0; i < ALL_WARPS; i++)
            max_bits[pass] = max(max_bits[pass], shared[i]);
        __syncthreads();
    }
}

/* The sums of a row: each warp's sums of squares, and, if the row is one group, of codes. */
struct row_sums {
    float squares[ALL_WARPS], factor;
    int codes[2][ALL_WARPS];
    uint32_t max_bits[2]; /* largest magnitudes of a group as long as the row */
    uint32_t scratch[ALL_WARPS];
};

/* Sums of squares also have one order. Neighbours are added in pairs up to 32 elements. Then every 128th of
 * these sums is added in turn, eight such sums are added in pairs of neighbours, and the rest in turn. */
enum { SQUARE_SUMS = EIGHT_STEP / 32 };

/* The sum of squares of eight elements of this lane and of its three neighbours. */
__device__ __forceinline__ float eight_square(const float v[8]) {
    float square[8];
#pragma unroll
    for (int c = 0; c < 8; c++)
        square[c] = __fmul_rn(v[c], v[c]);
#pragma unroll
    for (int o = 1; o < 8; o *= 2)
#pragma unroll
        for (int c = 0; c < 8; c += 2 * o)
            square[c] = __fadd_rn(square[c], square[c + o]);
    square[0] = __fadd_rn(square[0], __shfl_xor_sync(~0u, square[0], 1));
    return __fadd_rn(square[0], __shfl_xor_sync(~0u, square[0], 2));
}

/* Quantizes one row of x by all threads of a block. It calls store.codes(row, k, eight) for eight codes and
 * store.subgroup(row, subgroup, meta) for each subgroup. TWO: the residuals of the codes are a second row.
 * All of it is visible when it returns. */
template <bool TWO, class Store>
__device__ __noinline__ void quantize_row(row_job j, Store store, row_sums *sums) {
    enum { AHEAD = TWO ? 2 : 4 };
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int lanes = j.act_group / 8, subgroup_lanes = 1 << (j.subgroup_shift - 3);
    float squares = 0.0f;
    uint32_t whole[2] = {0, 0};
    int total[2] = {0, 0};
    if (!j.act_group)
        max_row(j, TWO, sums->scratch, whole);
    for (int first = j.begin + 8 * threadIdx.x; first < j.end; first += EIGHT_STEP * AHEAD) {
        float ahead[AHEAD][8];
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            eight_load(j.x + first + EIGHT_STEP * i, min(j.k, j.end) - first - EIGHT_STEP * i, ahead[i]);
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int at = first + EIGHT_STEP * i;
            if (at >= j.end)
                break;
            float *v = ahead[i];
            if (j.norm) {
                squares = __fadd_rn(squares, eight_square(v));
                eight_weigh(j, at, v);
            }
#pragma unroll
            for (int row = 0; row < (TWO ? 2 : 1); row++) {
                subgroup_meta m;
                const uint32_t max_bits = j.act_group ? max_lanes(max_eight(v, j.top), lanes) : whole[row];
                const uint2 codes = eight_encode(max_bits, j.top, v, &m.scale);
                m.sum = __dp4a((int)codes.y, 0x01010101, __dp4a((int)codes.x, 0x01010101, 0));
#pragma unroll
                for (int o = 1; o < 4; o *= 2) {
                    const int other = __shfl_xor_sync(~0u, m.sum, o);
                    m.sum += o < subgroup_lanes ? other : 0;
                }
                store.codes(row, at, codes);
                if (lane % subgroup_lanes == 0) {
                    store.subgroup(row, at >> j.subgroup_shift, m);
                    total[row] += m.sum;
                }
            }
        }
    }
#pragma unroll
    for (int o = 4; o < 32; o *= 2)
        squares = __fadd_rn(squares, __shfl_xor_sync(~0u, squares, o));
    if (!j.act_group)
        for (int o = 1; o < 32; o *= 2) {
            total[0] += __shfl_xor_sync(~0u, total[0], o);
            total[1] += __shfl_xor_sync(~0u, total[1], o);
        }
    if (lane == 0) {
        sums->squares[warp] = squares;
        sums->codes[0][warp] = total[0];
        sums->codes[1][warp] = total[1];
        sums->max_bits[0] = whole[0];
        sums->max_bits[1] = whole[1];
    }
    __syncthreads();
}

/* Starts copying a row that the previous launch has quantized, codes and subgroups, to `to`. */
__device__ __forceinline__ void coded_begin(const linear_job &j, uint8_t *to) {
    for (int at = 16 * threadIdx.x; at < j.k_pad + j.k_pad / 4; at += 16 * THREADS)
        copy_ahead<16>(to + at, j.coded + at);
    copies_end_group();
}
/* Adds the sums of squares of each 32, which the previous launch left, to the sums of the warps. */
__device__ __forceinline__ void squares_take(const linear_job &j, const float *squares, row_sums *sums) {
    if (!j.norm || threadIdx.x >= SQUARE_SUMS)
        return;
    float s = 0.0f;
    for (int i = threadIdx.x; i < j.k_pad / 32; i += SQUARE_SUMS)
        s = __fadd_rn(s, __ldcg(squares + i));
#pragma unroll
    for (int o = 1; o < 8; o *= 2)
        s = __fadd_rn(s, __shfl_xor_sync(~0u, s, o));
    if (threadIdx.x % 8 == 0)
        sums->squares[threadIdx.x / 8] = s;
}
/* Waits for the copies of coded_begin; one later group of copies may still be in flight. */
__device__ __forceinline__ void coded_end(const linear_job &j, row_sums *sums) {
    squares_take(j, (const float *)(j.coded + j.k_pad + j.k_pad / 4), sums);
    copies_wait<1>();
    __syncthreads();
}

/* Quantizes a row from the floats and largest magnitudes that the previous launch has left, eight codes a
 * thread at a time. A lane reads the magnitude of its own 32 and gets the others of its group from other
 * lanes. */
__device__ __forceinline__ void quantize_left(const linear_job &j, uint32_t *codes, subgroup_meta *meta) {
    enum { AHEAD = 4 };
    const float *const x = j.norm ? j.left.floats : j.x;
    for (int first = 8 * threadIdx.x; first < j.k_pad; first += EIGHT_STEP * AHEAD) {
        float v[AHEAD][8];
        uint32_t max_bits[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int at = first + EIGHT_STEP * i;
            const bool there = at < j.k; /* k is a multiple of 32 */
            const float4 none = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            max_bits[i] = there ? __ldcg(j.left.max_bits + at / 32) : 0;
            *(float4 *)v[i] = there ? __ldcg((const float4 *)(x + at)) : none;
            *(float4 *)(v[i] + 4) = there ? __ldcg((const float4 *)(x + at) + 1) : none;
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int at = first + EIGHT_STEP * i;
            if (at >= j.k_pad)
                break;
            subgroup_meta m;
            max_bits[i] = max(max_bits[i], __shfl_xor_sync(~0u, max_bits[i], 4));
            const uint32_t other = __shfl_xor_sync(~0u, max_bits[i], 8);
            max_bits[i] = max(max_bits[i], j.act_group > 64 ? other : 0);
            const uint2 u = eight_encode(max_bits[i], 127.0f, v[i], &m.scale);
            m.sum = __dp4a((int)u.y, 0x01010101, __dp4a((int)u.x, 0x01010101, 0));
            m.sum += __shfl_xor_sync(~0u, m.sum, 1);
            m.sum += __shfl_xor_sync(~0u, m.sum, 2);
            codes[code_quad(at / 4)] = u.x;
            codes[code_quad(at / 4 + 1)] = u.y;
            if (threadIdx.x % 4 == 0)
                meta[at / 32] = m;
        }
    }
}

/* The norm's factor, from the row's sum of squares. */
__device__ __forceinline__ float factor_of(const linear_job &j, float sum) {
    return sum < __uint_as_float(0x7f800000u)
               ? __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(sum, (float)j.k), j.eps)))
               : __uint_as_float(0x7fc00000u);
}
__device__ static float row_factor(const linear_job &j, const row_sums *sums) {
    float sum = 0.0f;
    for (int i = 0; i < ALL_WARPS; i++)
        sum = __fadd_rn(sum, sums->squares[i]);
    return factor_of(j, sum);
}
/* The norm's factors of columns whose sums of squares the previous launch has left, one column for each warp.
 * The order of sums is that of squares_take and row_factor. */
__device__ __forceinline__ void factors_take(const linear_job &j, float factors[MAX_LEFT_ROWS]) {
    enum { EACH = SQUARE_SUMS / 32 };
    static_assert((int)ALL_WARPS == (int)MAX_LEFT_ROWS, "a warp has a column");
    const int lane = threadIdx.x % 32, column = threadIdx.x / 32, n = j.k / 32;
    if (column >= j.n_col)
        return;
    float part[EACH], sum = 0.0f;
#pragma unroll
    for (int q = 0; q < EACH; q++) {
        part[q] = 0.0f;
        for (int i = lane + 32 * q; i < n; i += SQUARE_SUMS)
            part[q] = __fadd_rn(part[q], __ldcg(j.squares + column * n + i));
    }
#pragma unroll
    for (int q = 0; q < EACH; q++)
        part[q] = pairs_sum(part[q], 8);
#pragma unroll
    for (int q = 0; q < EACH; q++)
#pragma unroll
        for (int from = 0; from < 32; from += 8)
            sum = __fadd_rn(sum, __shfl_sync(~0u, part[q], from));
    if (lane == 0)
        factors[column] = factor_of(j, sum);
}

/* For a group as long as the row: its scale times the sum of its codes. */
__device__ static float row_lift(const linear_job &j, const row_sums *sums, int row) {
    float none[8] = {}, scale;
    int sum = 0;
    for (int i = 0; i < ALL_WARPS; i++)
        sum += sums->codes[row][i];
    eight_encode(sums->max_bits[row], (float)j.top, none, &scale);
    return __fmul_rn(scale, (float)sum);
}

#endif
