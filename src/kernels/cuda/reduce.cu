/* reduce.cu - rows added over the GPUs of one host, in a launch of its own (ranks.cuh), and memory that
 * several processes share. */
#include "kernels/cuda/codes.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launches.h"
#include "kernels/cuda/ranks.cuh"

enum {
    REDUCE_THREADS = 256,
    REDUCE_BLOCKS = 128, /* at most; all must run at the same time */
};

struct reduce_job {
    cuda_reduce a;
    codes_row leaves;
    codes_rows leaves_rows;
    int64_t half; /* pairs of a row */
    int64_t part; /* pairs of a part */
};

/* Leaves codes of the warp's 64 successive elements from i on, of which the thread has two. */
__device__ __forceinline__ void pair_leave(const reduce_job &j, int row, int i, float2 v) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float x = __shfl_sync(~0u, v.x, 16 * h + lane / 2),
                    y = __shfl_sync(~0u, v.y, 16 * h + lane / 2);
        const float one = lane % 2 ? y : x;
        const int at = i + 32 * h + lane;
        if (j.leaves_rows.codes)
            group_leave_among(j.leaves_rows, row, at, one,
                              j.leaves_rows.norm ? j.leaves_rows.norm[at] : 1.0f);
        else
            group_leave(j.leaves, at, one, j.leaves.norm ? j.leaves.norm[at] : 1.0f);
    }
}

/* Pair i of all rows; beyond them a pair of zeros, because all parts of a launch have the same lines. */
__device__ __forceinline__ float2 pair_of(const reduce_job &j, int64_t i, int64_t *row, int64_t *at) {
    *row = i / j.half;
    *at = 2 * (i - *row * j.half);
    return *row < j.a.n_row ? __ldcg((const float2 *)(j.a.x + *row * j.a.ldx + *at))
                            : make_float2(0.0f, 0.0f);
}

__global__ void __launch_bounds__(REDUCE_THREADS) reduce_rows(const __grid_constant__ reduce_job j) {
    const cuda_reduce &a = j.a;
    const int64_t all = a.n_row * j.half, first = (int64_t)blockIdx.x * REDUCE_THREADS + threadIdx.x,
                  step = (int64_t)gridDim.x * REDUCE_THREADS;
    int64_t row, at;
    launch_next();
    launch_wait();
    const int64_t pass = *a.of.pass;
    uint64_t number = number_of(a.of, pass);
    for (int64_t begin = 0; begin < all; begin += j.part, number++) {
        for (int64_t i = first; i < j.part; i += step)
            pair_send(a.of, number, i, pair_of(j, begin + i, &row, &at));
        for (int64_t i = first; i < j.part; i += step) {
            const float2 own = pair_of(j, begin + i, &row, &at);
            float2 sum = pair_add(a.of, pass, number, i, own);
            if (row >= a.n_row)
                continue;
            float2 *const out = (float2 *)(a.out + row * a.ldo + at);
            if (a.adds) {
                const float2 v = __ldcg(out);
                sum = make_float2(__fadd_rn(v.x, sum.x), __fadd_rn(v.y, sum.y));
            }
            *out = sum;
            if (a.leaves.data)
                pair_leave(j, (int)row, (int)(at - 2 * (threadIdx.x % 32)), sum);
        }
    }
}

/* The number of blocks for so many pairs. */
static int64_t blocks_of(int64_t part) {
    const int64_t blocks = (part + REDUCE_THREADS - 1) / REDUCE_THREADS, most = device_sm_count();
    const int64_t max = most < REDUCE_BLOCKS ? most : REDUCE_BLOCKS;
    return blocks < max ? blocks : max;
}

int reduce_launch(const cuda_reduce *a, cuda_stream s) {
    reduce_job j = {*a};
    if (a->n < 2 || a->n % 2 || a->ldx % 2 || a->ldo % 2 || a->n_row < 1 || a->of.n_rank < 2 ||
        a->of.n_rank > CUDA_MAX_RANK || a->of.max_pair % 32)
        return CUDA_UNSUPPORTED;
    if (a->leaves.data) {
        if (a->n % 64 ||
            (a->n_row > 1 && (a->n_row > MAX_LEFT_ROWS || a->n % TILE_CHUNK_K || a->leaves.group != 32)))
            return CUDA_UNSUPPORTED;
        if (a->n_row > 1)
            j.leaves_rows = codes_rows_of(a->leaves.data, a->leaves.norm, a->n, a->n_row);
        else
            j.leaves = codes_of(a->leaves, a->n);
    }
    j.half = a->n / 2;
    j.part = cuda_ranks_part(a->n_row, a->n, a->of.max_pair);
    const int many = reduce_many_launch(a, s);
    if (many != CUDA_UNSUPPORTED)
        return many;
    const int e = prepare(reduce_rows, 0);
    return e ? e : launch(reduce_rows, dim3((unsigned)blocks_of(j.part)), dim3(REDUCE_THREADS), 0, s, j);
}

/* ---- rows of which each rank has a part ---- */

struct gather_job {
    cuda_gather a;
    int64_t half, part; /* pairs of a row, at most; of a part */
};

/* The columns of pair i of a rank's part; *n: how many of the two there are. */
__device__ __forceinline__ float *columns_of(const gather_job &j, int rank, int64_t i, int *n) {
    const int64_t row = i / j.half, at = j.a.first[rank] + 2 * (i - row * j.half),
                  left = j.a.first[rank + 1] - at;
    *n = row >= j.a.n_row || left < 1 ? 0 : left > 1 ? 2 : 1;
    return j.a.x + row * j.a.ld + at;
}

__global__ void __launch_bounds__(REDUCE_THREADS) gather_rows(const __grid_constant__ gather_job j) {
    const cuda_ranks &of = j.a.of;
    const int64_t all = j.a.n_row * j.half, first = (int64_t)blockIdx.x * REDUCE_THREADS + threadIdx.x,
                  step = (int64_t)gridDim.x * REDUCE_THREADS;
    int n;
    launch_next();
    launch_wait();
    const int64_t pass = *of.pass;
    uint64_t number = number_of(of, pass);
    for (int64_t begin = 0; begin < all; begin += j.part, number++) {
        for (int64_t i = first; i < j.part; i += step) {
            const float *const own = columns_of(j, of.rank, begin + i, &n);
            pair_send(of, number, i, make_float2(n > 0 ? __ldcg(own) : 0.0f, n > 1 ? __ldcg(own + 1) : 0.0f));
        }
        for (int64_t i = first; i < j.part; i += step)
            for (int r = 0; r < of.n_rank; r++) {
                if (r == of.rank)
                    continue;
                const float2 v = pair_wait(of, pass, number, i, r);
                float *const to = columns_of(j, r, begin + i, &n);
                if (n > 0)
                    to[0] = v.x;
                if (n > 1)
                    to[1] = v.y;
            }
    }
}

int gather_launch(const cuda_gather *a, cuda_stream s) {
    gather_job j = {*a};
    if (a->n_row < 1 || a->of.n_rank < 2 || a->of.n_rank > CUDA_MAX_RANK || a->of.max_pair % 32)
        return CUDA_UNSUPPORTED;
    j.half = cuda_gather_width(a) / 2;
    j.part = cuda_ranks_part(a->n_row, 2 * j.half, a->of.max_pair);
    const int e = prepare(gather_rows, 0);
    return e ? e : launch(gather_rows, dim3((unsigned)blocks_of(j.part)), dim3(REDUCE_THREADS), 0, s, j);
}

/* ---- memory of several processes ---- */

int share_new(void **p, size_t bytes, cuda_handle *handle) {
    static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(cuda_handle), "a handle has 64 bytes");
    cudaError_t e = cudaMalloc(p, bytes);
    if (e == cudaSuccess)
        e = cudaMemset(*p, 0, bytes);
    if (e == cudaSuccess)
        e = cudaDeviceSynchronize();
    if (e == cudaSuccess)
        e = cudaIpcGetMemHandle((cudaIpcMemHandle_t *)handle, *p);
    return (int)e;
}
int share_open(void **p, const cuda_handle *handle) {
    return (int)cudaIpcOpenMemHandle(p, *(const cudaIpcMemHandle_t *)handle, cudaIpcMemLazyEnablePeerAccess);
}
int share_close(void *p) {
    return (int)cudaIpcCloseMemHandle(p);
}
