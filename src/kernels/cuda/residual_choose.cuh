/* residual_choose.cuh - the choice of a chunk's channels on the GPU, with the bits of
 * kernels/lanes/residual.h. All threads of a block choose, or half of them (residual.cu). */
#ifndef NIB_KERNELS_CUDA_RESIDUAL_CHOOSE_CUH
#define NIB_KERNELS_CUDA_RESIDUAL_CHOOSE_CUH

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/salient.h"

enum { RESIDUAL_THREADS = 512, RESIDUAL_WARPS = RESIDUAL_THREADS / 32, CHUNK = SALIENT_CHUNK };

struct choice {
    float x[CHUNK];
    int count[SALIENT_BUCKETS];
    unsigned above[CHUNK / 32], last[CHUNK / 32]; /* a bit a channel */
    unsigned peak[RESIDUAL_WARPS]; /* the largest magnitude of each warp's channels, as bits of a float */
    float boundary, times_above, times_below;
};

/* Computes the boundary and scales of the buckets. A block gets few resources beside a block of a product, so
 * a choice takes as long as its longest chain of dependent instructions. One warp sums the squares, in the
 * processor's order. Every warp computes the other shared values for itself, which saves a barrier. */
template <int T> __device__ static void scales_of(choice *c, int n, float reach) {
    const int lane = threadIdx.x % 32;
    float sum = 0.0f;
#pragma unroll 16
    for (int i = lane % 16; i < CHUNK; i += 16)
        sum = __fmaf_rn(c->x[i], c->x[i], sum);
    for (int o = 8; o > 0; o /= 2)
        sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, o));
    const float peak = __uint_as_float(max_warp(c->peak[lane % (T / 32)]));
    float b = __fmul_rn(reach, __fsqrt_rn(__fdiv_rn(sum, (float)n)));
    if (!(b < peak))
        b = 0.5f * peak;
    if (lane == 0) {
        c->boundary = b;
        c->times_above = peak > b ? __fdiv_rn(16.0f, __fsub_rn(peak, b)) : 0.0f;
        c->times_below = b > 0.0f ? __fdiv_rn(16.0f, b) : 0.0f;
    }
}

__device__ static int bucket_of(const choice *c, float x) {
    const float v = fabsf(x), b = c->boundary;
    const float at = v < b ? __fmul_rn(v, c->times_below) : __fmaf_rn(__fsub_rn(v, b), c->times_above, 16.0f);
    const float max_n = SALIENT_BUCKETS - 1;
    return 0.0f < at ? (int)(at < max_n ? at : max_n) : 0;
}

/* Counts a channel in its bucket, by one addition for all lanes with the same bucket, because most channels
 * are in a few. -1: no bucket. */
__device__ static void count_bucket(choice *c, int bucket) {
#if __CUDA_ARCH__ >= 700
    const unsigned same = __match_any_sync(~0u, bucket);
    if (bucket >= 0 && (int)threadIdx.x % 32 == __ffs(same) - 1)
        atomicAdd(&c->count[bucket], __popc(same));
#endif
}

/* The sum over the lanes up to this one. */
__device__ static int sum_up_to(int own) {
    const int lane = threadIdx.x % 32;
    for (int o = 1; o < 32; o *= 2) {
        const int up = __shfl_up_sync(~0u, own, o);
        own += lane >= o ? up : 0;
    }
    return own;
}

/* The last bucket that channels are taken from, counted from the largest magnitudes on. *n: how many are
 * taken from it. */
__device__ static int last_bucket(const choice *c, int k_chosen, int *n) {
    const int own = c->count[SALIENT_BUCKETS - 1 - threadIdx.x % 32], sum = sum_up_to(own);
    const unsigned enough = __ballot_sync(~0u, sum >= k_chosen);
    const int at = enough ? __ffs(enough) - 1 : 31;
    *n = k_chosen - __shfl_sync(~0u, sum - own, at);
    return SALIENT_BUCKETS - 1 - at;
}

/* A barrier of the T threads that choose from one chunk. */
template <int T> __device__ __forceinline__ void choosers_barrier() {
    if (T == RESIDUAL_THREADS)
        __syncthreads();
    else if (threadIdx.x < T)
        warps_barrier(1, T / 32);
    else
        warps_barrier(2, T / 32);
}

/* Chooses `k_chosen` of the channels [first, first + n) of x and passes them to `put` in ascending order, by
 * one group of threads. `meanwhile` is called when the row has been read, because earlier reads of host
 * memory would delay that. */
template <int T, class Put, class Meanwhile>
__device__ static void choose(choice *c, const float *x, const float *norm, int first, int n, int k_chosen,
                              float reach, const Put &put, const Meanwhile &meanwhile) {
    enum { EACH = CHUNK / T };
    const int t = threadIdx.x % T, lane = t % 32;
    float v[EACH];
    unsigned max_size = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int at = i * T + t;
        v[i] = at < n ? x[first + at] : 0.0f;
        if (norm && at < n)
            v[i] = __fmul_rn(v[i], norm[first + at]);
        c->x[at] = v[i];
        const unsigned size = __float_as_uint(fabsf(v[i]));
        max_size = size <= 0x7f800000u && size > max_size ? size : max_size; /* ignores NaN */
    }
    max_size = max_warp(max_size);
    if (lane == 0)
        c->peak[t / 32] = max_size;
    if (t < SALIENT_BUCKETS)
        c->count[t] = 0;
    choosers_barrier<T>();
    meanwhile();
    if (t < 32)
        scales_of<T>(c, n, reach);
    choosers_barrier<T>();
    int bucket[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        bucket[i] = i * T + t < n ? bucket_of(c, v[i]) : -1;
        count_bucket(c, bucket[i]);
    }
    choosers_barrier<T>();
    int n_last;
    const int bound = last_bucket(c, k_chosen, &n_last);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const unsigned above = __ballot_sync(~0u, bucket[i] > bound),
                       last = __ballot_sync(~0u, bucket[i] == bound);
        if (lane == 0) {
            c->above[(i * T + t) / 32] = above;
            c->last[(i * T + t) / 32] = last;
        }
    }
    choosers_barrier<T>();
    const unsigned below = (1u << lane) - 1, own_above = c->above[lane], own_last = c->last[lane];
    const int up_to_above = sum_up_to(__popc(own_above)), up_to_last = sum_up_to(__popc(own_last));
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int word = (i * T + t) / 32;
        const unsigned in_above = __shfl_sync(~0u, own_above, word),
                       in_last = __shfl_sync(~0u, own_last, word);
        const int above = __shfl_sync(~0u, up_to_above, word) - __popc(in_above & ~below),
                  last = __shfl_sync(~0u, up_to_last, word) - __popc(in_last & ~below);
        if (bucket[i] > bound || (bucket[i] == bound && last < n_last))
            put(above + min(last, n_last), salient{first + i * T + t, v[i]});
    }
}

#endif
