/* reduce.cu - rows added over the GPUs of one host, by stores to each other's memory.
 *
 * A thread has a pair of floats. It stores them, with a mark of the sum beside each, in a line of every
 * other GPU's memory, and then reads the lines that the others have stored in its own until they have that
 * mark (NCCL's LL protocol). So a sum takes the time of one store over the link: no thread waits for
 * another of its own GPU, and neither barriers nor fences are needed.
 *
 * Lines are used in turn for sums with even and odd numbers. Who stores in a line again has read what its
 * owner has sent for the sum in between, which the owner sent after it had read that line: a thread has the
 * same lines in each part of a launch, all of which but the last are full, and launches are in order. Behind a
 * short last part, a line beyond it may be stored again before a GPU that is far behind has read it. Such a GPU
 * finds no mark of its sum, and gives up; it never adds other numbers. */
#include "kernels/cuda/codes.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launches.h"

enum {
    REDUCE_THREADS = 256,
    REDUCE_BLOCKS = 128, /* at most; all must run at the same time */
    SPINS = 4096         /* between two looks at the clock, and at what the host says: a few ms */
};
#define WAIT_NS 4000000000ull /* without a sign of another GPU: then it has failed */

struct reduce_job {
    cuda_reduce a;
    codes_row leaves;
    codes_rows leaves_rows;
    int64_t half; /* pairs of a row */
};

/* A line: two floats, each with a mark. */
struct line {
    uint32_t x, first, y, second;
};

/* What marks the floats of a sum. A half of a line may be seen before the other one, so both marks change
 * with every sum; and both together are those of no other sum. They are not 0, as in lines that were not used
 * yet. */
struct marks {
    uint32_t first, second;
};
__device__ __forceinline__ marks marks_of(uint64_t number) {
    const uint32_t low = (uint32_t)(2 * number + 1), high = (uint32_t)(number >> 31);
    return marks{low, low + high * 0x9e3779b8u};
}

__device__ __forceinline__ void line_store(line *to, float2 v, marks m) {
    asm volatile("st.volatile.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(to), "r"(__float_as_uint(v.x)),
                 "r"(m.first), "r"(__float_as_uint(v.y)), "r"(m.second)
                 : "memory");
}
__device__ __forceinline__ bool line_load(const line *from, float2 *v, marks m) {
    line l;
    asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(l.x), "=r"(l.first), "=r"(l.y), "=r"(l.second)
                 : "l"(from)
                 : "memory");
    *v = make_float2(__uint_as_float(l.x), __uint_as_float(l.y));
    return l.first == m.first && l.second == m.second;
}

__device__ __forceinline__ uint64_t now_ns() {
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

/* Whether to wait no longer: a rank has given the pass up, or this one does. */
__device__ __noinline__ bool gives_up(const cuda_reduce &a, int64_t pass, uint64_t *since) {
    volatile int64_t *const failed = a.failed;
    const uint64_t now = now_ns();
    if (*failed >= pass)
        return true;
    if (*since == 0)
        *since = now;
    if (now - *since < WAIT_NS)
        return false;
    *failed = pass;
    return true;
}

__device__ __forceinline__ line *line_of(const cuda_reduce &a, int of, int from, uint64_t number, int64_t i) {
    return (line *)a.places[of] + ((int64_t)(number & 1) * a.n_rank + from) * a.max_pair + i;
}

__device__ __forceinline__ float2 line_wait(const cuda_reduce &a, int from, uint64_t number, int64_t i,
                                            int64_t pass) {
    const line *const at = line_of(a, a.rank, from, number, i);
    const marks m = marks_of(number);
    uint64_t since = 0;
    float2 v;
    for (unsigned spins = 1; !line_load(at, &v, m); spins++)
        if (spins % SPINS == 0 && gives_up(a, pass, &since))
            break;
    return v;
}

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

__global__ void __launch_bounds__(REDUCE_THREADS) reduce_rows(const __grid_constant__ reduce_job j) {
    const cuda_reduce &a = j.a;
    const int64_t all = a.n_row * j.half, first = (int64_t)blockIdx.x * REDUCE_THREADS + threadIdx.x,
                  step = (int64_t)gridDim.x * REDUCE_THREADS;
    launch_next();
    launch_wait();
    const int64_t pass = *a.pass;
    uint64_t number = ((uint64_t)pass << CUDA_REDUCE_SHIFT) + (uint64_t)a.first;
    for (int64_t begin = 0; begin < all; begin += a.max_pair, number++) {
        const int64_t n = min(all - begin, a.max_pair);
        for (int64_t i = first; i < n; i += step) {
            const int64_t row = (begin + i) / j.half, at = 2 * (begin + i - row * j.half);
            const float2 v = __ldcg((const float2 *)(a.x + row * a.ldx + at));
            for (int r = 0; r < a.n_rank; r++)
                if (r != a.rank)
                    line_store(line_of(a, r, a.rank, number, i), v, marks_of(number));
        }
        for (int64_t i = first; i < n; i += step) {
            const int64_t row = (begin + i) / j.half, at = 2 * (begin + i - row * j.half);
            const float2 own = __ldcg((const float2 *)(a.x + row * a.ldx + at));
            float2 *const out = (float2 *)(a.out + row * a.ldo + at);
            float2 sum = a.rank == 0 ? own : line_wait(a, 0, number, i, pass);
            for (int r = 1; r < a.n_rank; r++) {
                const float2 v = r == a.rank ? own : line_wait(a, r, number, i, pass);
                sum = make_float2(__fadd_rn(sum.x, v.x), __fadd_rn(sum.y, v.y));
            }
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

int reduce_launch(const cuda_reduce *a, cuda_stream s) {
    reduce_job j = {*a};
    j.half = a->n / 2;
    if (a->n < 2 || a->n % 2 || a->ldx % 2 || a->ldo % 2 || a->n_row < 1 || a->n_rank < 2 ||
        a->n_rank > CUDA_MAX_RANK || a->max_pair % 32)
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
    const int64_t pairs = a->n_row * j.half < a->max_pair ? a->n_row * j.half : a->max_pair;
    const int64_t blocks = (pairs + REDUCE_THREADS - 1) / REDUCE_THREADS, most = device_sm_count();
    const int64_t max = most < REDUCE_BLOCKS ? most : REDUCE_BLOCKS;
    const int e = prepare(reduce_rows, 0);
    return e ? e
             : launch(reduce_rows, dim3((unsigned)(blocks < max ? blocks : max)), dim3(REDUCE_THREADS), 0, s,
                      j);
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
