/* sample.cu - finds the largest logits.
 *
 * SHARES blocks each find the largest logits of their share. The last block to finish finds the largest of
 * those. A logit and its index are one 64-bit key, so no two keys are equal, and any order of comparisons
 * gives the same result. */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launches.h"

enum {
    SHARES = 64,
    SAMPLE_THREADS = 512,
    MAX_KEYS = 8192 /* keys of a block's share: 64 KiB of shared memory */
};

struct sample_job {
    cuda_sample a;
    unsigned long long *keys; /* [n_row, SHARES, top] */
    unsigned *arrived;        /* [n_row] */
};

typedef unsigned long long sample_key;

/* A key that is larger for a larger logit, and among equal logits (also zeros of both signs) for the first
 * one. NaN is the smallest. */
__device__ static sample_key key_of(float logit, uint32_t i) {
    const uint32_t u = __float_as_uint(logit + 0.0f);
    const uint32_t ordered = isnan(logit) ? 0 : u >> 31 ? ~u : u | 0x80000000u;
    return (sample_key)ordered << 32 | (uint32_t)~i;
}
__device__ static float key_logit(sample_key k) {
    const uint32_t u = (uint32_t)(k >> 32);
    return u ? __uint_as_float(u >> 31 ? u & 0x7fffffffu : ~u) : __uint_as_float(0x7fc00000u);
}
__device__ static uint32_t key_index(sample_key k) {
    return ~(uint32_t)k;
}

/* Moves the largest of n keys to the front (top = 1), or sorts all of them, the largest first. */
__device__ static void sort_keys(sample_key *keys, int n, int top) {
    if (top == 1) {
        sample_key max_key = 0;
        for (int i = threadIdx.x; i < n; i += SAMPLE_THREADS)
            max_key = keys[i] > max_key ? keys[i] : max_key;
        for (int o = 1; o < 32; o *= 2) {
            const sample_key other = __shfl_xor_sync(~0u, max_key, o);
            max_key = other > max_key ? other : max_key;
        }
        __syncthreads();
        if (threadIdx.x % 32 == 0)
            keys[threadIdx.x / 32] = max_key;
        __syncthreads();
        if (threadIdx.x == 0)
            for (int i = 1; i < SAMPLE_THREADS / 32; i++)
                keys[0] = keys[i] > keys[0] ? keys[i] : keys[0];
        __syncthreads();
        return;
    }
    int size = 2;
    while (size < n)
        size *= 2;
    for (int i = n + threadIdx.x; i < size; i += SAMPLE_THREADS)
        keys[i] = 0;
    for (int run = 2; run <= size; run *= 2)
        for (int apart = run / 2; apart > 0; apart /= 2) {
            __syncthreads();
            for (int i = threadIdx.x; i < size / 2; i += SAMPLE_THREADS) {
                const int low = i / apart * 2 * apart + i % apart, high = low + apart;
                const bool rising = low & run;
                const sample_key u = keys[low], v = keys[high];
                if ((u > v) == rising) {
                    keys[low] = v;
                    keys[high] = u;
                }
            }
        }
    __syncthreads();
}

/* Applies the row's changes to the keys of n logits from `from` on. */
__device__ static void change(const cuda_sample &a, int row, sample_key *keys, int from, int n) {
    const logit_row r = a.rows[row];
    for (int i = threadIdx.x; i < r.n; i += SAMPLE_THREADS) {
        const logit_change c = a.changes[r.first + i];
        const int at = c.token - from;
        if (at >= 0 && at < n)
            keys[at] = key_of(logit_changed(a.logits[row * a.ld + c.token], &c, &r), c.token);
    }
    __syncthreads();
}

__global__ void __launch_bounds__(SAMPLE_THREADS) sample_rows(const __grid_constant__ sample_job j) {
    extern __shared__ __align__(16) uint8_t shared[]; /* keys_bytes() */
    __shared__ bool is_last;
    sample_key *const keys = (sample_key *)shared;
    const cuda_sample &a = j.a;
    const int row = blockIdx.y, each = (int)((a.n_vocab + SHARES - 1) / SHARES), from = blockIdx.x * each;
    const int n = min(each, (int)a.n_vocab - from);
    sample_key *const found = j.keys + (int64_t)row * SHARES * a.top;
    launch_next();
    launch_wait();
    for (int i = threadIdx.x; i < n; i += SAMPLE_THREADS)
        keys[i] = key_of(a.logits[row * a.ld + from + i], from + i);
    __syncthreads();
    if (a.rows)
        change(a, row, keys, from, n);
    sort_keys(keys, n, a.top);
    for (int i = threadIdx.x; i < a.top; i += SAMPLE_THREADS)
        found[blockIdx.x * a.top + i] = i < n ? keys[i] : 0;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        is_last = atomicAdd(j.arrived + row, 1) == SHARES - 1;
        if (is_last)
            j.arrived[row] = 0;
        __threadfence();
    }
    __syncthreads();
    if (!is_last)
        return;
    for (int i = threadIdx.x; i < SHARES * a.top; i += SAMPLE_THREADS)
        keys[i] = __ldcg(found + i);
    __syncthreads();
    sort_keys(keys, SHARES * a.top, a.top);
    const int n_top = min((int64_t)a.top, a.n_vocab);
    for (int i = threadIdx.x; i < n_top; i += SAMPLE_THREADS) {
        a.top_ids[row * a.top + i] = (int32_t)key_index(keys[i]);
        a.top_logits[row * a.top + i] = key_logit(keys[i]);
    }
}

/* Counters are at the start of the scratch for any number of rows, because they must be zero when a launch
 * begins. */
enum { MAX_ROWS = 1 << 16, ARRIVED_BYTES = MAX_ROWS * (int)sizeof(unsigned) };
size_t sample_scratch(int64_t n_row) {
    return ARRIVED_BYTES + (size_t)n_row * SHARES * CUDA_MAX_TOP * sizeof(sample_key);
}

/* Bytes of the keys of a share, or of those that all blocks found; sorting needs a power of two. */
static size_t keys_bytes(const cuda_sample *a) {
    const int64_t each = (a->n_vocab + SHARES - 1) / SHARES, found = (int64_t)SHARES * a->top;
    size_t n = SAMPLE_THREADS;
    while ((int64_t)n < (each > found ? each : found))
        n *= 2;
    return n * sizeof(sample_key);
}

int sample_launch(const cuda_sample *a, cuda_stream s) {
    if (a->top < 1 || a->top > CUDA_MAX_TOP || a->n_vocab < 1 || a->n_vocab > SHARES * MAX_KEYS ||
        a->n_row < 1 || a->n_row >= MAX_ROWS)
        return CUDA_UNSUPPORTED;
    sample_job j = {*a, (sample_key *)((uint8_t *)a->scratch + ARRIVED_BYTES), (unsigned *)a->scratch};
    const size_t bytes = keys_bytes(a);
    const int e = prepare(sample_rows, bytes);
    return e ? e : launch(sample_rows, dim3(SHARES, (unsigned)a->n_row), dim3(SAMPLE_THREADS), bytes, s, j);
}
