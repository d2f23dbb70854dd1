/* route.cu - the router of a mixture of experts: chooses each row's experts, and lists the rows by expert.
 *
 * A warp has a row. Scores are in registers, and so are choices, as keys whose order is that of the floats.
 * The warp that chooses for a row alone also writes its list. The list of several rows is made by one block:
 * it counts the pairs of each expert, and gives each a place. The order of an expert's pairs is not the same
 * in every run, and no result depends on it. */
#include "kernels/cuda/experts.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launches.h"
#include "kernels/cuda/row_math.cuh"

enum { ROUTE_MAX_WARPS = 16, LIST_THREADS = 1024, ROUTE_SHARED = 48 << 10 };

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

/* A row's choice by a warp. A lane has EACH successive experts. memory: [2 * n_expert], shared. real: it is
 * written. */
template <int EACH>
__device__ __forceinline__ void row_choose(const route_job &j, int64_t row, uint32_t *memory, bool real) {
    const cuda_route &a = j.a;
    const int lane = threadIdx.x % 32, n = (int)a.n_expert, first = lane * EACH;
    const float *const logits = a.logits + row * a.ldx;
    float *const out = a.out + row * a.ldo;
    float score[EACH], bias[EACH];
    uint32_t key[EACH], *const ids = memory;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        score[i] = first + i < n ? __ldcg(logits + first + i) : -INFINITY;
        bias[i] = a.bias && first + i < n ? a.bias[first + i] : 0.0f;
    }
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
    int count[ROUTE_MAX_EXPERT], first[ROUTE_MAX_EXPERT];
    int scan[2][32];
};

/* Makes a list by all threads of a block. `align`: experts begin at multiples of it. */
__device__ static void list_make(const cuda_route &a, uint8_t *to, const cuda_expert_list &l, int tile,
                                 int align, list_memory *m) {
    auto *const tiles = (cuda_expert_tile *)(to + l.tiles);
    int *const pairs = (int *)(to + l.pairs);
    const int n = (int)a.n_expert, n_used = (int)a.n_used, n_pair = (int)a.n_row * n_used,
              lane = threadIdx.x % 32;
    /* Calls use(pair, its expert) for the thread's pairs. Several are read together. */
    auto each_expert = [&](auto use) {
        enum { TOGETHER = 8 };
        for (int first = threadIdx.x; first < n_pair; first += TOGETHER * blockDim.x) {
            int e[TOGETHER];
#pragma unroll
            for (int i = 0; i < TOGETHER; i++) {
                const int p = first + i * blockDim.x, row = p / n_used;
                e[i] = p < n_pair ? (int)__ldcg(a.out + row * a.ldo + (p - row * n_used)) : -1;
            }
#pragma unroll
            for (int i = 0; i < TOGETHER; i++)
                if (e[i] >= 0)
                    use(first + i * (int)blockDim.x, e[i]);
        }
    };
    __syncthreads();
    for (int e = threadIdx.x; e < n; e += blockDim.x)
        m->count[e] = 0;
    __syncthreads();
    each_expert([&](int, int e) { atomicAdd(&m->count[e], 1); });
    __syncthreads();
    if (threadIdx.x < 32) { /* a lane has `each` experts */
        const int each = (n + 31) / 32, begin = min(n, lane * each), end = min(n, begin + each);
        int pair = 0, at = 0;
        for (int e = begin; e < end; e++) {
            pair += (m->count[e] + align - 1) / align * align;
            at += (m->count[e] + tile - 1) / tile;
        }
        const int own_pair = pair, own_at = at;
        for (int o = 1; o < 32; o *= 2) {
            const int before = __shfl_up_sync(~0u, pair, o), at_before = __shfl_up_sync(~0u, at, o);
            pair += lane >= o ? before : 0;
            at += lane >= o ? at_before : 0;
        }
        if (lane == 31)
            ((int *)to)[0] = at, ((int *)to)[1] = pair;
        pair -= own_pair, at -= own_at;
        for (int e = begin; e < end; e++) {
            const int count = m->count[e], all = (count + align - 1) / align * align;
            m->first[e] = pair;
            for (int i = 0; i < count; i += tile)
                tiles[at++] = {e, pair + i, min(tile, count - i), 0};
            for (int i = count; i < all; i++)
                pairs[pair + i] = -1;
            pair += all;
        }
    }
    __syncthreads();
    each_expert([&](int p, int e) { pairs[atomicAdd(&m->first[e], 1)] = p; });
}

/* The lists of several rows. */
__device__ __noinline__ static void lists_make(const route_job &j) {
    __shared__ list_memory memory;
    const int few = CUDA_EXPERT_FEW / (j.a.two ? 2 : 1);
    if (j.a.few)
        list_make(j.a, (uint8_t *)j.a.few, j.few, few, 1, &memory);
    if (j.a.wide)
        list_make(j.a, (uint8_t *)j.a.wide, j.wide, CUDA_EXPERT_WIDE, CUDA_EXPERT_ALIGN, &memory);
}

/* ---- the router's product ---- */

/* Adds one, after all that the thread has seen written, and before all that it reads next. */
__device__ __forceinline__ unsigned atomic_add_ordered(unsigned *p) {
    unsigned before;
#if __CUDA_ARCH__ >= 700
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(p) : "memory");
#else
    before = atomicAdd(p, 1);
#endif
    return before;
}

/* Generated rows. Blocks: x has FEW_EXPERTS experts, y a row. A thread has four elements of each step of K.
 * It reads its weights of the first steps before the launch before has ended, so that after it only the row
 * is read. The norm's weights multiply the router's, and its factor the sums, so the factor need not be known
 * first. The last block of a row chooses, by its first warp; the last one of all makes the lists. */
enum { FEW_EXPERTS = 8, FEW_STEPS = 2, FEW_STEP = 4 * EXPERT_THREADS };

template <int TYPE>
__device__ __forceinline__ void few_weights(const route_job &j, int e, int k, float4 (&v)[FEW_EXPERTS]) {
    const float4 none = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float4 norm = none;
    if (j.a.norm && k < j.a.w.k)
        norm = four_inputs(j.a.norm, k, (int)j.a.w.k);
#pragma unroll
    for (int i = 0; i < FEW_EXPERTS; i++) {
        const int64_t at = min((int64_t)e + i, j.a.n_expert - 1) * j.stride;
        v[i] = k < j.a.w.k ? four_weights<TYPE>((const uint8_t *)j.a.w.data + at, k) : none;
    }
    if (j.a.norm)
#pragma unroll
        for (int i = 0; i < FEW_EXPERTS; i++)
            v[i] = make_float4(__fmul_rn(v[i].x, norm.x), __fmul_rn(v[i].y, norm.y),
                               __fmul_rn(v[i].z, norm.z), __fmul_rn(v[i].w, norm.w));
}

/* Lane 4 e and the next three get the warp's sum of expert e. */
__device__ __forceinline__ float experts_total(float (&sum)[FEW_EXPERTS]) {
#pragma unroll
    for (int o = 16, half = FEW_EXPERTS / 2; half > 0; o /= 2, half /= 2) {
        const bool upper = threadIdx.x & o;
#pragma unroll
        for (int i = 0; i < half; i++) {
            const float other = __shfl_xor_sync(~0u, upper ? sum[i] : sum[i + half], o);
            sum[i] = __fadd_rn(upper ? sum[i + half] : sum[i], other);
        }
    }
    return pairs_sum(sum[0], 32 / FEW_EXPERTS);
}

/* Writes the row's input and its codes. Warps 1 and up of all blocks share it; each has 128 elements. */
__device__ __forceinline__ void input_leave(const route_job &j, int row, float factor) {
    const cuda_route &a = j.a;
    const int k = (int)a.w.k, lane = threadIdx.x % 32, n_block = gridDim.x;
    if (!a.norm && !a.codes)
        return;
    for (int at = (int)(threadIdx.x / 32 - 1) * n_block + (int)blockIdx.x; 128 * at < k;
         at += (EXPERT_WARPS - 1) * n_block) {
        const int i = 128 * at + 4 * lane;
        float4 x = four_inputs(a.x + row * a.ld_row, i, k);
        if (a.norm) {
            const float4 n = four_inputs(a.norm, i, k);
            x = make_float4(__fmul_rn(__fmul_rn(x.x, factor), n.x), __fmul_rn(__fmul_rn(x.y, factor), n.y),
                            __fmul_rn(__fmul_rn(x.z, factor), n.z), __fmul_rn(__fmul_rn(x.w, factor), n.w));
            const float v[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (i + e < k)
                    a.normed[row * a.ld_normed + i + e] = v[e];
        }
        if (a.codes)
            codes_store_four((uint8_t *)a.codes + row * j.codes_step, k, i, x);
    }
}

/* Whether this is the last of n, known to all lanes of a warp; lane 0 has a counter. */
__device__ __forceinline__ bool ends_last(unsigned *ended, unsigned n) {
    unsigned before = 0;
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        before = atomic_add_ordered(ended);
        if (before == n - 1)
            *ended = 0;
    }
    before = __shfl_sync(~0u, before, 0);
    __syncwarp();
    return before == n - 1;
}

template <int TYPE, int EACH>
__global__ void __launch_bounds__(EXPERT_THREADS) route_few(const __grid_constant__ route_job j) {
    extern __shared__ uint32_t memory[]; /* of a choice */
    __shared__ float part[EXPERT_WARPS][FEW_EXPERTS + 1];
    __shared__ bool is_last;
    const cuda_route &a = j.a;
    const int row = blockIdx.y, k = (int)a.w.k, warp = threadIdx.x / 32, lane = threadIdx.x % 32,
              e0 = (int)blockIdx.x * FEW_EXPERTS;
    const float4 none = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    const float *const x = a.x + row * a.ld_row;
    float4 v[FEW_STEPS][FEW_EXPERTS];
    float sum[FEW_EXPERTS] = {}, square = 0.0f;
    launch_next();
#pragma unroll
    for (int s = 0; s < FEW_STEPS; s++)
        few_weights<TYPE>(j, e0, s * FEW_STEP + 4 * (int)threadIdx.x, v[s]);
    /* While the first warp of one row waits, it chooses among old logits: then the code is in the instruction
     * cache. */
    bool last = false;
    int turn = warp == 0 && a.n_row == 1 ? 0 : 1;
    asm volatile("" : "+r"(turn));
#pragma unroll 1
    for (;; turn++) {
        if (turn > 0) {
            launch_wait();
            for (int first = 4 * (int)threadIdx.x; first < k; first += FEW_STEPS * FEW_STEP) {
                float4 u[FEW_STEPS];
#pragma unroll
                for (int s = 0; s < FEW_STEPS; s++)
                    u[s] = first + s * FEW_STEP < k ? four_inputs(x, first + s * FEW_STEP, k) : none;
                if (first >= FEW_STEPS * FEW_STEP)
#pragma unroll
                    for (int s = 0; s < FEW_STEPS; s++)
                        few_weights<TYPE>(j, e0, first + s * FEW_STEP, v[s]);
#pragma unroll
                for (int s = 0; s < FEW_STEPS; s++) {
                    square = four_fma(u[s], u[s], square);
#pragma unroll
                    for (int i = 0; i < FEW_EXPERTS; i++)
                        sum[i] = four_fma(v[s][i], u[s], sum[i]);
                }
            }
            const float total = experts_total(sum);
            square = pairs_sum(square, 32);
            if (lane % (32 / FEW_EXPERTS) == 0)
                part[warp][lane / (32 / FEW_EXPERTS)] = total;
            if (lane == 0)
                part[warp][FEW_EXPERTS] = square;
            __syncthreads();
            auto all_warps = [&](int i) {
                float s = 0.0f;
#pragma unroll
                for (int n = 0; n < EXPERT_WARPS; n++)
                    s = __fadd_rn(s, part[n][i]);
                return s;
            };
            const float factor = a.norm ? norm_factor_of(all_warps(FEW_EXPERTS), (float)k, a.eps) : 1.0f;
            if (warp > 0) {
                input_leave(j, row, factor);
            } else {
                const int e = e0 + lane;
                if (lane < FEW_EXPERTS && e < a.n_expert) {
                    const float y = __fmul_rn(factor, all_warps(lane));
                    a.logits[row * a.ldx + e] = a.w_bias ? __fadd_rn(y, a.w_bias[e]) : y;
                }
                last = ends_last(a.ended + 1 + row, gridDim.x);
            }
            if (!last)
                break;
        }
        row_choose<EACH>(j, row, memory, turn > 0);
        if (turn > 0)
            break;
    }
    if (a.n_row == 1)
        return;
    if (threadIdx.x < 32) {
        last = last && ends_last(a.ended, (unsigned)a.n_row);
        if (lane == 0)
            is_last = last;
    }
    __syncthreads();
    if (is_last)
        lists_make(j);
}

/* Prompt rows: a block has 32 rows and 64 experts, and K in steps of 64. Its threads are four parts, each
 * with a quarter of every step; a thread has 4 x 4 sums. The next step is read while one is added up. */
enum {
    TILE_ROWS = 32,
    TILE_EXPERTS = 64,
    TILE_STEP = 64,
    TILE_STRIDE = TILE_STEP + 4,
    TILE_PARTS = 4,
    TILE_SUMS = 128, /* threads of a part */
    TILE_THREADS = TILE_PARTS * TILE_SUMS,
    LOAD_ROWS = TILE_THREADS / (TILE_STEP / 4), /* rows that the threads read at once */
    LOADS = TILE_EXPERTS / LOAD_ROWS
};
static_assert(TILE_ROWS == LOAD_ROWS, "each thread reads one quad of rows");
struct logit_tile {
    float rows[TILE_ROWS][TILE_STRIDE], experts[TILE_EXPERTS][TILE_STRIDE];
};
template <int TYPE>
__global__ void __launch_bounds__(TILE_THREADS) route_logits(const __grid_constant__ route_job j) {
    __shared__ __align__(16) logit_tile m;
    const cuda_route &a = j.a;
    const int k = (int)a.w.k, t = threadIdx.x, r0 = (int)blockIdx.y * TILE_ROWS,
              e0 = (int)blockIdx.x * TILE_EXPERTS, quad = t % (TILE_STEP / 4) * 4, from = t / (TILE_STEP / 4);
    const int part = t / TILE_SUMS, of = t % TILE_SUMS;
    const int own_row = of / 16, own_expert = of % 16; /* and every 8th row, every 16th expert after it */
    float sum[4][4] = {};
    const float4 none = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    launch_next();
    launch_wait();
    const float *const x = a.x + min((int64_t)r0 + from, a.n_row - 1) * a.ld_row;
    const uint8_t *w[LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; i++)
        w[i] = (const uint8_t *)a.w.data + min((int64_t)e0 + from + i * LOAD_ROWS, a.n_expert - 1) * j.stride;
    float4 next_x = four_inputs(x, quad, k), next_w[LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; i++)
        next_w[i] = quad < k ? four_weights<TYPE>(w[i], quad) : none;
    for (int at = 0; at < k; at += TILE_STEP) {
        const int next = at + TILE_STEP + quad;
        __syncthreads();
        *(float4 *)&m.rows[from][quad] = next_x;
#pragma unroll
        for (int i = 0; i < LOADS; i++)
            *(float4 *)&m.experts[from + i * LOAD_ROWS][quad] = next_w[i];
        __syncthreads();
        if (next < k) {
            next_x = four_inputs(x, next, k);
#pragma unroll
            for (int i = 0; i < LOADS; i++)
                next_w[i] = four_weights<TYPE>(w[i], next);
        } else {
            next_x = none;
#pragma unroll
            for (int i = 0; i < LOADS; i++)
                next_w[i] = none;
        }
#pragma unroll
        for (int i = 0; i < TILE_STEP / TILE_PARTS; i += 4) {
            const int in = part * (TILE_STEP / TILE_PARTS) + i;
            float4 u[4], v[4];
#pragma unroll
            for (int c = 0; c < 4; c++) {
                u[c] = *(const float4 *)&m.rows[own_row + c * 8][in];
                v[c] = *(const float4 *)&m.experts[own_expert + c * 16][in];
            }
#pragma unroll
            for (int r = 0; r < 4; r++)
#pragma unroll
                for (int c = 0; c < 4; c++)
                    sum[r][c] = four_fma(v[c], u[r], sum[r][c]);
        }
    }
    /* The parts' sums, in order; each part finishes a row of each thread. */
    float(*const sums)[TILE_PARTS][TILE_SUMS] = (float(*)[TILE_PARTS][TILE_SUMS]) & m;
    for (int r = 0; r < 4; r++) {
        __syncthreads();
#pragma unroll
        for (int c = 0; c < 4; c++)
            sums[c][part][of] = sum[r][c];
        __syncthreads();
        const int64_t row = r0 + own_row + r * 8, e = e0 + own_expert + part * 16;
        float v = sums[part][0][of];
#pragma unroll
        for (int p = 1; p < TILE_PARTS; p++)
            v = __fadd_rn(v, sums[part][p][of]);
        if (row < a.n_row && e < a.n_expert)
            a.logits[row * a.ldx + e] = a.w_bias ? __fadd_rn(v, a.w_bias[e]) : v;
    }
}

typedef void (*route_kernel)(const route_job);
template <int TYPE> static route_kernel few_of(int64_t n_expert) {
    return n_expert <= 128   ? route_few<TYPE, 4>
           : n_expert <= 256 ? route_few<TYPE, 8>
                             : route_few<TYPE, ROUTE_MAX_EXPERT / 32>;
}
static int few_launch(const route_job *j, cuda_stream s) {
    const int type = j->a.w.format.type;
    const int64_t n = j->a.n_expert;
    const route_kernel kernel = type == TYPE_F32   ? few_of<TYPE_F32>(n)
                                : type == TYPE_F16 ? few_of<TYPE_F16>(n)
                                                   : few_of<TYPE_BF16>(n);
    const size_t bytes = 2 * (size_t)j->a.n_expert * sizeof(uint32_t);
    const int e = j->a.n_row > 65535 ? (int)CUDA_UNSUPPORTED : prepare(kernel, bytes);
    const dim3 grid((unsigned)((j->a.n_expert + FEW_EXPERTS - 1) / FEW_EXPERTS), (unsigned)j->a.n_row);
    return e ? e : launch(kernel, grid, dim3(EXPERT_THREADS), bytes, s, *j);
}

static int logits_launch(const route_job *j, cuda_stream s) {
    const int type = j->a.w.format.type;
    auto *const kernel = type == TYPE_F32   ? route_logits<TYPE_F32>
                         : type == TYPE_F16 ? route_logits<TYPE_F16>
                                            : route_logits<TYPE_BF16>;
    const dim3 grid((unsigned)((j->a.n_expert + TILE_EXPERTS - 1) / TILE_EXPERTS),
                    (unsigned)((j->a.n_row + TILE_ROWS - 1) / TILE_ROWS));
    const int e = j->a.norm || j->a.codes ? (int)CUDA_UNSUPPORTED : prepare(kernel, 0);
    return e ? e : launch(kernel, grid, dim3(TILE_THREADS), 0, s, *j);
}

/* ---- launching ---- */

template <int EACH>
__global__ void __launch_bounds__(32 * ROUTE_MAX_WARPS) route_rows(const __grid_constant__ route_job j) {
    extern __shared__ uint32_t memory[];
    const int warp = threadIdx.x / 32, n_warp = blockDim.x / 32;
    launch_next();
    launch_wait();
    for (int64_t row = (int64_t)blockIdx.x * n_warp + warp; row < j.a.n_row; row += gridDim.x * n_warp)
        row_choose<EACH>(j, row, memory + warp * 2 * (int)j.a.n_expert, true);
    if (j.lists && j.a.n_row > 1)
        lists_make(j);
}

__global__ void __launch_bounds__(LIST_THREADS) route_lists(const __grid_constant__ route_job j) {
    launch_next();
    launch_wait();
    lists_make(j);
}

int route_launch(const cuda_route *a, cuda_stream s) {
    const int64_t n_pair = a->n_row * a->n_used;
    if (a->n_row < 1 || a->n_expert < 1 || a->n_expert > ROUTE_MAX_EXPERT || a->n_used < 1 ||
        a->n_used > a->n_expert || n_pair > INT32_MAX / 2)
        return CUDA_UNSUPPORTED;
    route_job j = {*a, cuda_expert_few_of(n_pair, a->n_expert, a->two),
                   cuda_expert_wide_of(n_pair, a->n_expert), a->n_row <= CUDA_MAX_ROWS};
    if (a->w.data) {
        const int type = a->w.format.type;
        if (a->w.format.layout != PACK_ROWS || (type != TYPE_F32 && type != TYPE_F16 && type != TYPE_BF16))
            return CUDA_UNSUPPORTED;
        j.stride = rows_stride(a->w.k) * (type == TYPE_F32 ? 4 : 2);
        j.codes_step = cuda_expert_row(a->w.k);
        if (!a->many)
            return few_launch(&j, s);
        const int e = logits_launch(&j, s);
        if (e)
            return e;
    }
    int warps = (int)(ROUTE_SHARED / 2 / (a->n_expert * 2 * sizeof(uint32_t)));
    warps = warps > ROUTE_MAX_WARPS ? (int)ROUTE_MAX_WARPS : warps < 1 ? 1 : warps;
    const unsigned blocks = j.lists ? 1 : (unsigned)((a->n_row + warps - 1) / warps);
    const size_t bytes = (size_t)warps * 2 * (size_t)a->n_expert * sizeof(uint32_t);
    auto *const kernel = a->n_expert <= 128   ? route_rows<4>
                         : a->n_expert <= 256 ? route_rows<8>
                                              : route_rows<ROUTE_MAX_EXPERT / 32>;
    int e = prepare(kernel, bytes);
    e = e ? e : launch(kernel, dim3(blocks), dim3(32 * (unsigned)warps), bytes, s, j);
    if (e || j.lists)
        return e;
    e = prepare(route_lists, 0);
    return e ? e : launch(route_lists, dim3(1), dim3(LIST_THREADS), 0, s, j);
}
