/* route_choose.cuh - a row's choice of experts by a warp, and the lists of rows by expert, for route.cu. */
#ifndef NIB_KERNELS_CUDA_ROUTE_CHOOSE_CUH
#define NIB_KERNELS_CUDA_ROUTE_CHOOSE_CUH

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/experts.cuh"

struct route_job {
    cuda_route a;
    cuda_expert_list few, wide;
    bool lists;                 /* the launch has one block, which also makes the lists */
    int64_t stride, codes_step; /* bytes of a row of the router, and of codes */
};

/* ---- choosing ---- */

/* A float's place among all floats; NaN is the lowest. 0 is below all. */
__device__ __forceinline__ uint32_t key_of(float x) {
    const uint32_t u = __float_as_uint(x);
    return x != x ? 1 : u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* The largest of n keys, and its lowest index. */
struct best_key {
    uint32_t key;
    int at;
};

/* The sum of the `want` largest of n scores whose keys are given, by one thread. */
__device__ static float largest_sum(const uint32_t *keys, const float *choice, int n, int want) {
    uint32_t key = UINT32_MAX;
    int at = -1;
    float sum = 0.0f;
    for (int w = 0; w < want; w++) {
        best_key b = {0, -1};
        for (int i = 0; i < n; i++)
            if ((keys[i] < key || (keys[i] == key && i > at)) && keys[i] > b.key)
                b = {keys[i], i};
        if (b.at < 0)
            break;
        key = b.key, at = b.at;
        sum = __fadd_rn(sum, choice[at]);
    }
    return sum;
}

/* Sets the keys of experts outside the best groups to 0. choice: [n_expert], overwritten. */
__device__ __noinline__ static void groups_exclude(const cuda_route &a, uint32_t *keys, float *choice) {
    const int lane = threadIdx.x % 32, n_group = (int)a.n_group;
    const int each = max((int)(a.n_expert / n_group), 1);
    for (int g = lane; g < n_group; g += 32) {
        const float sum = largest_sum(keys + g * each, choice + g * each, each, a.group_best);
        choice[g * each] = __uint_as_float(key_of(sum)); /* only this thread reads the group's choice */
    }
    __syncwarp();
    for (int w = 0; w < a.group_used; w++) {
        best_key b = {0, INT32_MAX};
        for (int g = lane; g < n_group; g += 32)
            if (__float_as_uint(choice[g * each]) > b.key)
                b = {__float_as_uint(choice[g * each]), g};
        const uint32_t best = max_warp(b.key);
        const int at = (int)~max_warp(~(uint32_t)(b.key == best ? b.at : INT32_MAX));
        if (lane == 0 && at < n_group)
            choice[at * each] = 0.0f; /* used */
        __syncwarp();
    }
    for (int i = lane; i < a.n_expert; i += 32)
        if (i / each >= n_group || __float_as_uint(choice[i / each * each]) != 0)
            keys[i] = 0;
    __syncwarp();
}

__device__ __forceinline__ float warp_total(float x) {
    for (int o = 1; o < 32; o *= 2)
        x = __fadd_rn(x, __shfl_xor_sync(~0u, x, o));
    return x;
}
__device__ __forceinline__ float warp_largest(float x) {
    for (int o = 1; o < 32; o *= 2)
        x = fmaxf(x, __shfl_xor_sync(~0u, x, o));
    return x;
}

/* A warp's x, N of each lane, becomes its softmax. -INFINITY: there is none. */
template <int N> __device__ __forceinline__ void softmax(float (&x)[N]) {
    float max = -INFINITY, sum = 0.0f;
#pragma unroll
    for (int i = 0; i < N; i++)
        max = fmaxf(max, x[i]);
    max = warp_largest(max);
#pragma unroll
    for (int i = 0; i < N; i++)
        sum = __fadd_rn(sum, x[i] = expf(x[i] - max));
    sum = warp_total(sum);
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] = __fdiv_rn(x[i], sum);
}

/* Functions that a softmax does not need are apart, because the code of a choice is mostly not in the
 * instruction cache: any multiprocessor may have the last block. */
__device__ __noinline__ static float score_of(int kind, float x) {
    return kind == SCORE_SQRT_SOFTPLUS ? sqrtf(x > 20.0f ? x : log1pf(expf(x))) : sigmoid(x);
}
template <int N> __device__ __forceinline__ void scores_make(const cuda_route &a, float (&x)[N]) {
    if (a.score == SCORE_SOFTMAX)
        softmax(x);
    else if (a.score == SCORE_SIGMOID || a.score == SCORE_SQRT_SOFTPLUS)
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = score_of(a.score, x[i]);
}

/* Normalises and scales a row's weights. A lane has those of choices lane and lane + 32. */
enum { LANE_USED = ROUTE_MAX_USED / 32 };
__device__ __forceinline__ void weigh(const cuda_route &a, float (&x)[LANE_USED]) {
    float sum = 0.0f;
    if (a.score == SCORE_SOFTMAX_LATE)
        softmax(x);
#pragma unroll
    for (int i = 0; i < LANE_USED; i++) {
        if (a.score == SCORE_SIGMOID_LATE)
            x[i] = score_of(SCORE_SIGMOID, x[i]);
        sum = (int)threadIdx.x % 32 + 32 * i < a.n_used ? __fadd_rn(sum, x[i]) : sum;
    }
    sum = __fadd_rn(warp_total(sum), 1e-20f); /* no division by zero */
#pragma unroll
    for (int i = 0; i < LANE_USED; i++)
        x[i] = __fmul_rn(a.normalise ? __fdiv_rn(x[i], sum) : x[i], a.scale);
}

/* Chooses the n_used largest of a warp's keys, EACH successive ones of each lane; among equal ones the first.
 * 0: there is none. Returns the lane's choice, a bit for each. */
template <int EACH> __device__ __forceinline__ uint32_t keys_choose(uint32_t (&key)[EACH], int n_used) {
    uint32_t chosen = 0;
#pragma unroll 1
    for (int u = 0; u < n_used; u++) {
        uint32_t best = 0;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            best = max(best, key[i]);
        const uint32_t all = max_warp(best);
        bool mine = (int)threadIdx.x % 32 == __ffs((int)__ballot_sync(~0u, best == all)) - 1;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (mine && key[i] == all) {
                key[i] = 0;
                chosen |= 1u << i;
                mine = false;
            }
    }
    return chosen;
}

/* The list of one row with these experts, in ascending order, by a warp. */
__device__ static void list_one(const cuda_route &a, const uint32_t *ids, void *list,
                                const cuda_expert_list &l, int align) {
    if (!list)
        return;
    uint8_t *const to = (uint8_t *)list;
    const int lane = threadIdx.x % 32, n_used = (int)a.n_used;
#pragma unroll 1
    for (int u = lane; u < n_used; u += 32)
        ((cuda_expert_tile *)(to + l.tiles))[u] = {(int)ids[u], u * align, 1, 0};
#pragma unroll 1
    for (int i = lane; i < n_used * align; i += 32)
        ((int *)(to + l.pairs))[i] = i % align ? -1 : i / align;
    if (lane < 2)
        ((int *)to)[lane] = lane ? n_used * align : n_used;
}

/* The logits of one row go from the blocks to the one that chooses by marked pairs in a.ended: a float, and 1
 * above it. Who takes a pair makes it zeros again. A pair is stored and loaded as one aligned scalar of 64
 * bits, because a memory operation on such a scalar is whole, while one on a vector is modelled as several
 * scalar ones (PTX ISA, memory consistency model: scalar and vector data types). */
__device__ __forceinline__ void pair_store(const cuda_route &a, int expert, uint32_t bits, uint32_t mark) {
    const uint64_t pair = (uint64_t)mark << 32 | bits;
    asm volatile("st.volatile.global.u64 [%0], %1;" ::"l"(a.ended + 2 * expert), "l"(pair) : "memory");
}
__device__ __forceinline__ void pair_send(const cuda_route &a, int expert, float v) {
    pair_store(a, expert, __float_as_uint(v), 1);
}
/* A lane's EACH pairs from expert `first` on, of n. All lanes of a warp call it. */
template <int EACH>
__device__ __forceinline__ void pairs_take(const cuda_route &a, int first, int n, float (&v)[EACH]) {
    bool there;
    do {
        there = true;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            uint64_t pair = UINT64_C(1) << 32;
            if (first + i < n)
                asm volatile("ld.volatile.global.u64 %0, [%1];"
                             : "=l"(pair)
                             : "l"(a.ended + 2 * (first + i))
                             : "memory");
            v[i] = first + i < n ? __uint_as_float((uint32_t)pair) : -INFINITY;
            there = there && pair >> 32;
        }
    } while (!__all_sync(~0u, there));
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (first + i < n)
            pair_store(a, first + i, 0, 0);
}

/* A row's choice by a warp. A lane has EACH successive experts. memory: [2 * n_expert], shared. real: it is
 * written. sent: the logits come by pairs_take. */
template <int EACH>
__device__ __forceinline__ void row_choose(const route_job &j, int64_t row, uint32_t *memory, bool real,
                                           bool sent) {
    const cuda_route &a = j.a;
    const int lane = threadIdx.x % 32, n = (int)a.n_expert, first = lane * EACH;
    const float *const logits = a.logits + row * a.ldx;
    float *const out = a.out + row * a.ldo;
    float score[EACH], bias[EACH];
    uint32_t key[EACH], *const ids = memory;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        score[i] = !sent && first + i < n ? __ldcg(logits + first + i) : -INFINITY;
        bias[i] = a.bias && first + i < n ? a.bias[first + i] : 0.0f;
    }
    if (sent)
        pairs_take(a, first, n, score);
    scores_make(a, score);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const float choice = a.bias ? __fadd_rn(score[i], bias[i]) : score[i];
        key[i] = key_of(choice);
        if (a.n_group > 1 && first + i < n)
            memory[first + i] = key[i], ((float *)memory)[n + first + i] = choice;
    }
    __syncwarp();
    if (a.n_group > 1)
        groups_exclude(a, memory, (float *)memory + n);
#pragma unroll
    for (int i = 0; i < EACH; i++)
        key[i] = first + i < n ? 1 + (a.n_group > 1 ? memory[first + i] : key[i]) : 0;
    __syncwarp();
    const uint32_t chosen = keys_choose(key, (int)a.n_used);
    int to = 0; /* choices of the lanes before this one */
#pragma unroll
    for (int i = 0; i < EACH; i++)
        to += __popc(__ballot_sync(~0u, chosen >> i & 1) & ((1u << lane) - 1));
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (chosen >> i & 1) {
            ids[to] = (uint32_t)(first + i);
            ((float *)memory)[n + to++] = score[i];
        }
    __syncwarp();
    if (a.n_row == 1 && real) {
        list_one(a, ids, a.few, j.few, 1);
        list_one(a, ids, a.wide, j.wide, CUDA_EXPERT_ALIGN);
    }
    float weight[LANE_USED];
#pragma unroll
    for (int i = 0; i < LANE_USED; i++)
        weight[i] = lane + 32 * i < a.n_used ? ((float *)memory)[n + lane + 32 * i] : -INFINITY;
    weigh(a, weight);
#pragma unroll
    for (int i = 0; i < LANE_USED; i++) {
        const int u = lane + 32 * i;
        if (u >= a.n_used || !real)
            break;
        out[u] = (float)ids[u];
        out[a.n_used + u] = a.times ? __fmul_rn(weight[i], a.times[ids[u]]) : weight[i];
    }
    __syncwarp();
}

/* ---- lists ---- */

struct list_memory {
    int count[ROUTE_MAX_EXPERT];                         /* of the block's pairs */
    int all[ROUTE_MAX_EXPERT], before[ROUTE_MAX_EXPERT]; /* of all blocks; of those before this one */
    int first[ROUTE_MAX_EXPERT], next[ROUTE_MAX_EXPERT]; /* of the expert; of its next pair of this block */
};

__device__ __forceinline__ int cluster_int(const int *at, int rank) {
    int v = 0;
#if __CUDA_ARCH__ >= 900
    asm volatile("ld.shared::cluster.s32 %0, [%1];" : "=r"(v) : "r"(cluster_address(at, rank)));
#endif
    return v;
}

/* Makes a list by all threads of a cluster of n_block blocks. `align`: experts begin at multiples of it. */
__device__ static void list_make(const cuda_route &a, uint8_t *to, const cuda_expert_list &l, int tile,
                                 int align, int block, int n_block, list_memory *m) {
    auto *const tiles = (cuda_expert_tile *)(to + l.tiles);
    int *const pairs = (int *)(to + l.pairs);
    const int n = (int)a.n_expert, n_used = (int)a.n_used, n_pair = (int)a.n_row * n_used,
              lane = threadIdx.x % 32, step = n_block * (int)blockDim.x,
              own = block * (int)blockDim.x + (int)threadIdx.x;
    /* Calls use(pair, its expert) for the thread's pairs. Several are read together. */
    auto each_expert = [&](auto use) {
        enum { TOGETHER = 8 };
        for (int first = own; first < n_pair; first += TOGETHER * step) {
            int e[TOGETHER];
#pragma unroll
            for (int i = 0; i < TOGETHER; i++) {
                const int p = first + i * step, row = p / n_used;
                e[i] = p < n_pair ? (int)__ldcg(a.out + row * a.ldo + (p - row * n_used)) : -1;
            }
#pragma unroll
            for (int i = 0; i < TOGETHER; i++)
                if (e[i] >= 0)
                    use(first + i * step, e[i]);
        }
    };
    __syncthreads();
    for (int e = threadIdx.x; e < n; e += blockDim.x)
        m->count[e] = 0;
    __syncthreads();
    each_expert([&](int, int e) { atomicAdd(&m->count[e], 1); });
    if (n_block > 1)
        cluster_barrier();
    else
        __syncthreads();
    for (int e = threadIdx.x; e < n; e += blockDim.x) {
        m->all[e] = n_block > 1 ? 0 : m->count[e];
        m->before[e] = 0;
        for (int b = 0; n_block > 1 && b < n_block; b++) {
            const int count = cluster_int(&m->count[e], b);
            m->all[e] += count;
            m->before[e] += b < block ? count : 0;
        }
    }
    __syncthreads();
    if (threadIdx.x < 32) { /* a lane has `each` experts */
        const int each = (n + 31) / 32, begin = min(n, lane * each), end = min(n, begin + each);
        int pair = 0, at = 0;
        for (int e = begin; e < end; e++) {
            pair += (m->all[e] + align - 1) / align * align;
            at += (m->all[e] + tile - 1) / tile;
        }
        const int own_pair = pair, own_at = at;
        for (int o = 1; o < 32; o *= 2) {
            const int before = __shfl_up_sync(~0u, pair, o), at_before = __shfl_up_sync(~0u, at, o);
            pair += lane >= o ? before : 0;
            at += lane >= o ? at_before : 0;
        }
        if (lane == 31 && block == 0)
            ((int *)to)[0] = at, ((int *)to)[1] = pair;
        pair -= own_pair, at -= own_at;
        for (int e = begin; e < end; e++) {
            const int count = m->all[e];
            m->first[e] = pair;
            m->next[e] = pair + m->before[e];
            for (int i = 0; i < count && block == 0; i += tile)
                tiles[at++] = {e, pair + i, min(tile, count - i), 0};
            pair += (count + align - 1) / align * align;
        }
    }
    __syncthreads();
    for (int i = own; i < n * align; i += step) { /* padding */
        const int e = i / align, at = m->all[e] / align * align + i % align;
        if (at >= m->all[e] && m->all[e] % align > 0)
            pairs[m->first[e] + at] = -1;
    }
    each_expert([&](int p, int e) { pairs[atomicAdd(&m->next[e], 1)] = p; });
    if (n_block > 1)
        cluster_barrier(); /* other blocks read this block's counts until here */
}

/* The lists of several rows, by a cluster of n_block blocks. */
__device__ __noinline__ static void lists_make(const route_job &j, int block = 0, int n_block = 1) {
    __shared__ list_memory memory;
    const int few = CUDA_EXPERT_FEW / (j.a.two ? 2 : 1);
    if (j.a.few)
        list_make(j.a, (uint8_t *)j.a.few, j.few, few, 1, block, n_block, &memory);
    if (j.a.wide)
        list_make(j.a, (uint8_t *)j.a.wide, j.wide, CUDA_EXPERT_WIDE, CUDA_EXPERT_ALIGN, block, n_block,
                  &memory);
}

#endif
