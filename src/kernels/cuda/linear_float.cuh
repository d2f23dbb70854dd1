/* linear_float.cuh - splits the rows of products with matrices of floats (linear_float.cu) into parts. */
#ifndef NIB_KERNELS_CUDA_LINEAR_FLOAT_CUH
#define NIB_KERNELS_CUDA_LINEAR_FLOAT_CUH

#include "kernels/cuda/linear_job.cuh"
#include "kernels/cuda/mma_float.cuh"
#include "kernels/cuda/row_math.cuh"

enum { FLOAT_CHUNK = 64, FLOAT_THREADS = 32 * WARPS, SPLIT_THREADS = 1024 };

struct float_job : job_matrices {
    int n_unit; /* units of 16, 32 or 64 outputs; of half as many of each matrix if gated */
    int stride; /* elements from one row to the next */
    int64_t row_bytes;
    int n_chunk, n_row, k, depth, act;
    bool gated, acts, adds;
    /* the rows, and their parts: [32 of K][part][row][4] of 8 elements; [row] factors of the results */
    const float *x, *norm;
    bool centred; /* the norm is a LayerNorm, with the shift */
    const float *shift;
    int64_t ldx;
    float eps;
    uint4 *parts;
    float *factor;
};

/* A row's sum of squares and largest magnitude, by a warp, and by all threads of a block. */
struct split_facts {
    float sum, largest;
};
__device__ __forceinline__ void split_warp(split_facts *f) {
#pragma unroll
    for (int o = 1; o < 32; o *= 2) {
        f->sum = __fadd_rn(f->sum, __shfl_xor_sync(~0u, f->sum, o));
        f->largest = fmaxf(f->largest, __shfl_xor_sync(~0u, f->largest, o));
    }
}
__device__ static split_facts split_join(split_facts f, split_facts *shared) {
    split_warp(&f);
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = f;
    __syncthreads();
    f = shared[threadIdx.x % 32];
    split_warp(&f);
    return f;
}

/* Loads eight values from i on, times the norm's weights. Their common factor is still missing. */
__device__ __forceinline__ void split_load(const float_job &j, const float *x, int i, float v[8]) {
    float w[8];
    eight_load(x + i, j.k - i, v);
    if (!j.norm)
        return;
    eight_load(j.norm + i, j.k - i, w);
#pragma unroll
    for (int c = 0; c < 8; c++)
        v[c] = __fmul_rn(v[c], w[c]);
}

/* Splits eight values into parts. */
template <int TYPE>
__device__ __forceinline__ void split_store(const float_job &j, uint4 *parts, int row, int i, float v[8],
                                            float scale) {
    enum { PARTS = float_parts<TYPE>::X };
    uint4 *const to = parts + ((int64_t)(i / 32 * PARTS) * j.n_row + row) * 4 + i / 8 % 4;
#pragma unroll
    for (int p = 0; p < PARTS; p++)
        to[(int64_t)p * j.n_row * 4] = eight_split<TYPE>(v, p == 0 ? scale : 1.0f);
}

__device__ __forceinline__ void split_look(const float v[8], bool squares, split_facts *f) {
#pragma unroll
    for (int c = 0; c < 8; c++)
        if (squares)
            f->sum = __fmaf_rn(v[c], v[c], f->sum);
        else
            f->largest = fmaxf(f->largest, fabsf(v[c]));
}

/* The factor of a row's results; and of the row itself, before it is split. */
template <int TYPE>
__device__ __forceinline__ float split_factor(const float_job &j, const split_facts &f, float *scale) {
    float factor = j.norm && !j.centred ? norm_factor_of(f.sum, (float)j.k, j.eps) : 1.0f;
    *scale = 1.0f;
    if (TYPE == TYPE_F16) { /* scales the largest magnitude to 2^14 at least; the inverse is finite */
        const uint32_t e = max(__float_as_uint(f.largest) >> 23 & 255, 27);
        *scale = __uint_as_float((2 * 127 + 14 - e) << 23);
        factor = __fmul_rn(factor, __uint_as_float((e - 14) << 23));
    }
    return factor;
}

/* Replaces the thread's eight values of a row, from i on, by those of its LayerNorm, without the shift.
 * shared: [2][SPLIT_THREADS / 32]. */
__device__ static void split_centre(const float_job &j, int i, float v[8], const float weight[8],
                                    split_facts *shared) {
    split_facts f = {0.0f, 0.0f};
#pragma unroll
    for (int c = 0; c < 8; c++)
        f.sum = __fadd_rn(f.sum, v[c]);
    const float mean = __fdiv_rn(split_join(f, shared).sum, (float)j.k);
    f.sum = 0.0f;
#pragma unroll
    for (int c = 0; c < 8; c++) {
        v[c] = i + c < j.k ? __fsub_rn(v[c], mean) : 0.0f;
        f.sum = __fmaf_rn(v[c], v[c], f.sum);
    }
    const float factor = norm_factor_of(split_join(f, shared + SPLIT_THREADS / 32).sum, (float)j.k, j.eps);
#pragma unroll
    for (int c = 0; c < 8; c++)
        v[c] = __fmul_rn(__fmul_rn(v[c], factor), weight[c]);
}

/* A block has a row. A thread keeps the first of its values in registers; all of a row that is centred. */
template <int TYPE>
__global__ void __launch_bounds__(SPLIT_THREADS) split_rows(const __grid_constant__ float_job j) {
    enum { STEP = 8 * SPLIT_THREADS, KEEP = 2 };
    static_assert(CUDA_MAX_CENTRED <= STEP, "the shift takes the place of the second values");
    __shared__ split_facts shared[SPLIT_THREADS / 32], sums[2 * SPLIT_THREADS / 32];
    const int row = blockIdx.x, begin = 8 * threadIdx.x, end = j.n_chunk * FLOAT_CHUNK;
    const float *const x = j.x + row * j.ldx;
    float kept[KEEP][8], weight[KEEP][8];
    split_facts f = {0.0f, 0.0f};
    launch_next();
#pragma unroll
    for (int m = 0; m < KEEP; m++) /* launches do not write norms */
        if (j.norm)
            eight_load(j.norm + begin + m * STEP, j.k - begin - m * STEP, weight[m]);
    if (j.shift)
        eight_load(j.shift + begin, j.k - begin, weight[1]);
    launch_wait();
#pragma unroll
    for (int m = 0; m < KEEP; m++)
        eight_load(x + begin + m * STEP, j.k - begin - m * STEP, kept[m]);
    if (j.centred) {
        split_centre(j, begin, kept[0], weight[0], sums);
#pragma unroll
        for (int c = 0; c < 8; c++) {
            kept[0][c] = j.shift ? __fadd_rn(kept[0][c], weight[1][c]) : kept[0][c];
            weight[0][c] = 1.0f;
        }
    }
#pragma unroll
    for (int m = 0; m < KEEP; m++) {
        split_look(kept[m], true, &f);
#pragma unroll
        for (int c = 0; c < 8; c++)
            kept[m][c] = j.norm ? __fmul_rn(kept[m][c], weight[m][c]) : kept[m][c];
        split_look(kept[m], false, &f);
    }
    for (int i = begin + KEEP * STEP; i < j.k; i += STEP) {
        float v[8];
        eight_load(x + i, j.k - i, v);
        split_look(v, true, &f);
        split_load(j, x, i, v);
        split_look(v, false, &f);
    }
    f = split_join(f, shared);
    float scale;
    const float factor = split_factor<TYPE>(j, f, &scale);
    if (threadIdx.x == 0)
        j.factor[row] = factor;
#pragma unroll
    for (int m = 0; m < KEEP; m++)
        if (begin + m * STEP < end)
            split_store<TYPE>(j, j.parts, row, begin + m * STEP, kept[m], scale);
    for (int i = begin + KEEP * STEP; i < end; i += STEP) {
        float v[8];
        split_load(j, x, i, v);
        split_store<TYPE>(j, j.parts, row, i, v, scale);
    }
}

/* Splits the only row, of at most OWN_SPLIT values, into shared memory, by a block of a product. Returns the
 * factor of its results. Each thread has the values of OWN_EACH threads of split_rows, so all bits are the
 * same. */
enum { OWN_EACH = SPLIT_THREADS / FLOAT_THREADS, OWN_SPLIT = 8 * SPLIT_THREADS };
template <int TYPE> __device__ static float own_split(const float_job &j, uint4 *parts) {
    __shared__ split_facts shared[SPLIT_THREADS / 32];
    const int end = j.n_chunk * FLOAT_CHUNK;
    auto begin = [](int m) { return 8 * (FLOAT_THREADS * m + (int)threadIdx.x); };
    float v[OWN_EACH][8];
    split_facts f;
#pragma unroll
    for (int m = 0; m < OWN_EACH; m++)
        eight_load(j.x + begin(m), j.k - begin(m), v[m]);
#pragma unroll
    for (int m = 0; m < OWN_EACH; m++) {
        float w[8];
        f = split_facts{0.0f, 0.0f};
        split_look(v[m], true, &f);
        if (j.norm) {
            eight_load(j.norm + begin(m), j.k - begin(m), w);
#pragma unroll
            for (int c = 0; c < 8; c++)
                v[m][c] = __fmul_rn(v[m][c], w[c]);
        }
        split_look(v[m], false, &f);
        split_warp(&f);
        if (threadIdx.x % 32 == 0)
            shared[FLOAT_THREADS / 32 * m + threadIdx.x / 32] = f;
    }
    __syncthreads();
    f = shared[threadIdx.x % 32];
    split_warp(&f);
    float scale;
    const float factor = split_factor<TYPE>(j, f, &scale);
#pragma unroll
    for (int m = 0; m < OWN_EACH; m++)
        if (begin(m) < end)
            split_store<TYPE>(j, parts, 0, begin(m), v[m], scale);
    __syncthreads();
    return factor;
}

#endif
