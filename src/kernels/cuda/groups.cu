/* groups.cu - products of parts of rows with a matrix each (OP_GROUPS), or with its transpose (OP_SPREAD).
 *
 * The matrices stand one under the other in one ordinary matrix. A block has some outputs of one part of
 * ROWS rows. It converts a piece of 4096 weights to halves in shared memory, as they stand in the matrix:
 * the matrix instruction (m16n8k16) reads them as rows of outputs, or, transposed, as rows of inputs. Each
 * part of a row is multiplied by a power of two before it becomes halves, so that nothing overflows.
 *
 * Generated rows and their weights are two halves each, the rounded value and the rounding error, so that
 * products are as exact as those of floats. Those of prompts are one half each, as in wide.cu, unless the
 * matrix has floats of 32 bits. Warps that share outputs divide the inputs, and their sums are added in a
 * fixed order. So a row's bits depend on its role alone. */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launches.h"
#include "kernels/cuda/mma_float.cuh"
#include "kernels/cuda/tile_value.cuh"

enum { GROUP_WARPS = 4, GROUP_THREADS = 32 * GROUP_WARPS, GROUP_PIECE = 4096 /* weights */ };

struct groups_job {
    cuda_groups a;
    tile_source tiles;
    int type, stride; /* rows of floats: their type, and bytes from one to the next; otherwise TYPE_COUNT */
    float up;         /* weights are multiplied by this power of two before they become halves */
};

/* W_ROWS: rows of a piece of the matrix. */
template <int ROWS_, int PARTS_, bool SPREAD_, int W_ROWS_> struct groups_shape {
    enum {
        ROWS = ROWS_,
        PARTS = PARTS_,
        SPREAD = SPREAD_,
        W_ROWS = W_ROWS_,
        W_COLUMNS = GROUP_PIECE / W_ROWS,
        W_LINE = W_COLUMNS + 8 /* places 16 bytes of eight rows in different banks */,
        OUTS = SPREAD ? W_COLUMNS : W_ROWS,
        DEEP = SPREAD ? W_ROWS : W_COLUMNS /* inputs of a piece */,
        X_LINE = DEEP + 8,
        OUT_WARPS = OUTS / 16,
        DEEP_WARPS = GROUP_WARPS / OUT_WARPS,
        STEPS = DEEP / 16 / DEEP_WARPS /* instructions of a warp for a piece and 8 rows */,
        TILES = ROWS / 8,
        W_BYTES = W_ROWS * W_LINE * PARTS * 2,
        X_BYTES = ROWS * X_LINE * PARTS * 2,
        JOIN_BYTES = DEEP_WARPS > 1 ? GROUP_WARPS * 16 * ROWS * 4 : 0,
        PIECE_BYTES = W_BYTES + X_BYTES,
        BYTES = (PIECE_BYTES > JOIN_BYTES ? PIECE_BYTES : JOIN_BYTES) + ROWS * 4
    };
};

/* Stores two values as halves, and with two parts their rounding errors `apart` halves further. */
template <int PARTS> __device__ __forceinline__ void halves_put(__half *to, int apart, float a, float b) {
    const uint2 u = as_two_halves(a, b);
    *(uint32_t *)to = u.x;
    if (PARTS > 1)
        *(uint32_t *)(to + apart) = u.y;
}

/* Weights `at` to at + 3 of a row of floats; zeros beyond its columns. */
__device__ __forceinline__ float4 float_weights_at(const groups_job &j, const uint8_t *row, int at) {
    const int k = (int)j.a.w.k;
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[i] = 0.0f;
        if (at + i >= k)
            continue;
        switch (j.type) {
        case TYPE_F32: v[i] = ((const float *)row)[at + i]; break;
        case TYPE_F16: v[i] = half_of(row + 2 * (at + i)); break;
        default: v[i] = __uint_as_float((uint32_t)((const uint16_t *)row)[at + i] << 16);
        }
    }
    return make_float4(v[0], v[1], v[2], v[3]);
}

/* Converts a piece of the matrix of group g, from its row row0 and column0 on, with zeros beyond its rows and
 * columns. A thread has 16 successive weights of a row, which belong to one group of the format. */
template <class S>
__device__ __forceinline__ void weights_put(const groups_job &j, int g, int row0, int column0, __half *to) {
    enum { EACH = 16, UNITS = S::W_COLUMNS / EACH, APART = S::W_ROWS * S::W_LINE };
    const int n_row = (int)(S::SPREAD ? j.a.k : j.a.n), k = (int)j.a.w.k;
#pragma unroll
    for (int i = threadIdx.x; i < GROUP_PIECE / EACH; i += GROUP_THREADS) {
        const int r = i / UNITS, c = i % UNITS * EACH, at = column0 + c;
        const bool there = row0 + r < n_row && at < k;
        const int64_t row = (int64_t)g * n_row + row0 + (there ? r : 0);
        tile_run of = {};
        if (there && j.type == TYPE_COUNT)
            of = tile_run_at(j.tiles, row, at);
        __half *const out = to + r * S::W_LINE + c;
#pragma unroll
        for (int q = 0; q < EACH; q += 4) {
            float v[4] = {};
            if (there) {
                const float4 four =
                    j.type == TYPE_COUNT
                        ? tile_run_values(j.tiles, of, at + q)
                        : float_weights_at(j, (const uint8_t *)j.a.w.data + row * j.stride, at + q);
                v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
            }
#pragma unroll
            for (int e = 0; e < 4; e += 2)
                halves_put<S::PARTS>(out + q + e, APART, at + q + e < k ? __fmul_rn(v[e], j.up) : 0.0f,
                                     at + q + e + 1 < k ? __fmul_rn(v[e + 1], j.up) : 0.0f);
        }
    }
}

/* Finds the power of two that raises the largest input of each row's part to at least 2^14. */
template <class S>
__device__ __forceinline__ void rows_scale(const groups_job &j, int g, int row0, float *scale) {
    const int lane = threadIdx.x % 32, k = (int)j.a.k;
    for (int r = threadIdx.x / 32; r < S::ROWS; r += GROUP_WARPS) {
        const float *const x = j.a.x + (row0 + r) * j.a.ldx + g * j.a.step_x;
        uint32_t largest = 0;
        for (int i = lane; i < k && row0 + r < j.a.n_row; i += 32)
            largest = max(largest, __float_as_uint(x[i]) & 0x7fffffffu);
        largest = max_warp(largest);
        if (lane == 0) /* the inverse is finite */
            scale[r] = __uint_as_float((2 * 127 + 14 - max(largest >> 23, 27u)) << 23);
    }
}

/* Converts the rows' inputs [deep0, deep0 + DEEP). */
template <class S>
__device__ __forceinline__ void rows_put(const groups_job &j, int g, int row0, int deep0, const float *scale,
                                         __half *to) {
    enum { PAIRS = S::DEEP / 2 };
    const int k = (int)j.a.k;
#pragma unroll 4
    for (int i = threadIdx.x; i < S::ROWS * PAIRS; i += GROUP_THREADS) {
        const int r = i / PAIRS, c = i % PAIRS * 2, at = deep0 + c;
        const float *const x = j.a.x + (row0 + r) * j.a.ldx + g * j.a.step_x + at;
        const bool is_row = row0 + r < j.a.n_row;
        const float a = is_row && at < k ? __fmul_rn(x[0], scale[r]) : 0.0f,
                    b = is_row && at + 1 < k ? __fmul_rn(x[1], scale[r]) : 0.0f;
        halves_put<S::PARTS>(to + r * S::X_LINE + c, S::ROWS * S::X_LINE, a, b);
    }
}

/* Multiplies a piece: sum[i] has 16 outputs of rows 8 i to 8 i + 7. */
template <class S>
__device__ __forceinline__ void piece_multiply(const __half *w, const __half *x, float (&sum)[S::TILES][4]) {
    enum { W_APART = S::W_ROWS * S::W_LINE, X_APART = S::ROWS * S::X_LINE };
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = lane % 8, odd = lane / 8 % 2,
              upper = lane / 16, out0 = warp % S::OUT_WARPS * 16, deep0 = warp / S::OUT_WARPS * S::STEPS * 16;
    /* Matrices of 8 x 8: of the weights outputs 0-7 and 8-15, then the same of the next 8 inputs; of the rows
     * the inputs 0-7 and 8-15, then their rounding errors or the next 8 rows. */
    const uint32_t w_at =
        shared_address(S::SPREAD ? w + (deep0 + row + upper * 8) * S::W_LINE + out0 + odd * 8
                                 : w + (out0 + row + odd * 8) * S::W_LINE + deep0 + upper * 8);
    const uint32_t x_at = shared_address(x + row * S::X_LINE + deep0 + odd * 8 +
                                         upper * (S::PARTS > 1 ? (int)X_APART : 8 * (int)S::X_LINE));
#pragma unroll
    for (int s = 0; s < S::STEPS; s++) {
        uint32_t a[2][4], b[4];
#pragma unroll
        for (int p = 0; p < S::PARTS; p++) {
            const uint32_t at = w_at + (p * W_APART + s * 16 * (S::SPREAD ? (int)S::W_LINE : 1)) * 2;
            if (S::SPREAD)
                matrices_load_four(a[p], at);
            else
                load_four(a[p], at);
        }
#pragma unroll
        for (int i = 0; i<S::TILES; i += S::PARTS> 1 ? 1 : 2) {
            load_four(b, x_at + (i * 8 * S::X_LINE + s * 16) * 2);
            if (S::PARTS > 1) {
                mma_halves(sum[i], a[1], b[0], b[1]);
                mma_halves(sum[i], a[0], b[2], b[3]);
                mma_halves(sum[i], a[0], b[0], b[1]);
            } else {
                mma_halves(sum[i], a[0], b[0], b[1]);
                mma_halves(sum[i + 1], a[0], b[2], b[3]);
            }
        }
    }
}

__device__ __forceinline__ void groups_store(const groups_job &j, int g, int row, int out, float v) {
    if (row >= j.a.n_row || out >= j.a.n)
        return;
    float *const y = j.a.y + row * j.a.ldy + g * j.a.step_y + out;
    *y = j.a.adds ? __fadd_rn(*y, v) : v;
}

/* Writes the sums. Warps that share outputs add theirs through shared memory. */
template <class S>
__device__ __forceinline__ void sums_put(const groups_job &j, int g, int row0, int first,
                                         const float (&sum)[S::TILES][4], const float *scale, float *join) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int i = 0; i < S::TILES; i++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const int out = lane / 4 + c / 2 * 8, row = 8 * i + lane % 4 * 2 + c % 2;
            if (S::DEEP_WARPS > 1)
                join[(warp * S::ROWS + row) * 16 + out] = sum[i][c];
            else
                groups_store(j, g, row0 + row, first + warp * 16 + out,
                             __fdiv_rn(sum[i][c], __fmul_rn(scale[row], j.up)));
        }
    if (S::DEEP_WARPS == 1)
        return;
    __syncthreads();
    for (int i = threadIdx.x; i < S::ROWS * 16; i += GROUP_THREADS) {
        float v = join[i];
        for (int w = 1; w < S::DEEP_WARPS; w++)
            v = __fadd_rn(v, join[w * S::ROWS * 16 + i]);
        groups_store(j, g, row0 + i / 16, first + i % 16, __fdiv_rn(v, __fmul_rn(scale[i / 16], j.up)));
    }
}

/* A block has OUTS outputs of part blockIdx.y of ROWS rows. */
template <class S>
__global__ void __launch_bounds__(GROUP_THREADS) groups_multiply(const __grid_constant__ groups_job j) {
    extern __shared__ __align__(16) uint8_t memory[];
    __half *const w = (__half *)memory, *const x = (__half *)(memory + S::W_BYTES);
    float *const scale = (float *)(memory + S::BYTES) - S::ROWS;
    const int g = blockIdx.y, first = blockIdx.x * S::OUTS, row0 = blockIdx.z * S::ROWS;
    float sum[S::TILES][4] = {};
    launch_next();
    for (int deep = 0; deep < j.a.k; deep += S::DEEP) {
        weights_put<S>(j, g, S::SPREAD ? deep : first, S::SPREAD ? first : deep, w);
        if (deep == 0) { /* weights are read before the previous launch has finished */
            launch_wait();
            rows_scale<S>(j, g, row0, scale);
            __syncthreads();
        }
        rows_put<S>(j, g, row0, deep, scale, x);
        __syncthreads();
        piece_multiply<S>(w, x, sum);
        __syncthreads();
    }
    sums_put<S>(j, g, row0, first, sum, scale, (float *)memory);
}

template <class S> static int run(const groups_job &j, cuda_stream s) {
    const int64_t outs = (j.a.n + S::OUTS - 1) / S::OUTS, rows = (j.a.n_row + S::ROWS - 1) / S::ROWS;
    const dim3 grid((unsigned)outs, (unsigned)j.a.n_group, (unsigned)rows);
    const int e = prepare(groups_multiply<S>, S::BYTES);
    return e ? e : launch(groups_multiply<S>, grid, dim3(GROUP_THREADS), S::BYTES, s, j);
}
template <bool SPREAD> static int run_few(const groups_job &j, cuda_stream s) {
    enum { W_ROWS = SPREAD ? 64 : 16 };
    return j.a.n_row <= 8 ? run<groups_shape<8, 2, SPREAD, W_ROWS>>(j, s)
                          : run<groups_shape<32, 2, SPREAD, W_ROWS>>(j, s);
}

int groups_launch(const cuda_groups *a, cuda_stream s) {
    const pack_format *f = &a->w.format;
    const bool rows = f->layout == PACK_ROWS;
    groups_job j = {*a};
    if (a->n_row < 1 || a->n_row > CUDA_MAX_WIDE || a->n_group < 1 || a->n_group > 65535 || a->n < 1 ||
        a->k < 1 || a->w.n != a->n_group * (a->spread ? a->k : a->n) || a->w.k != (a->spread ? a->n : a->k) ||
        (rows ? f->type != TYPE_F32 && f->type != TYPE_F16 && f->type != TYPE_BF16
              : f->scale == PACK_SCALE_ZERO || f->sparse || f->packing != PACK_PARTS))
        return CUDA_UNSUPPORTED;
    j.type = rows ? f->type : TYPE_COUNT;
    j.stride = rows ? (int)rows_bytes(f->type, a->w.k) : 0;
    j.up = j.type == TYPE_F16 ? 1.0f : 64.0f;
    if (!rows)
        j.tiles = tile_source_of(&a->w);
    if (!a->many || j.type == TYPE_F32)
        return a->spread ? run_few<true>(j, s) : run_few<false>(j, s);
    return a->spread ? run<groups_shape<128, 1, true, 64>>(j, s) : run<groups_shape<128, 1, false, 64>>(j, s);
}
