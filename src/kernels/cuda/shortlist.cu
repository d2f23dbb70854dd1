/* shortlist.cu - an output head in two steps: makes its sketch, and computes the exact logits that may be
 * among the largest.
 *
 * Each of the n blocks of a row has every n-th panel. Every warp finds the largest lower bound of its logits.
 * After a barrier of all blocks, each block computes a limit that at least `top` logits reach: the top-th
 * largest of the warps' bounds. A warp contributes one bound only, so the limit can be lower than the best
 * one, and then a few more panels are computed. Each block computes those of its panels that may reach the
 * limit, with the sums of linear_one.cu in their order. Which panels these are depends on the number of
 * multiprocessors; the largest logits and their bits do not. */
#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launches.h"
#include "kernels/cuda/linear.cuh"
#include "kernels/cuda/linear_one.cuh"
#include "kernels/cuda/tile_value.cuh"

/* The reach of exec/shortlist.h, with 2 % for the rounding of sums. */
#define BOUND_REACH (1.02f * 6.0f)

static bool is_sketch(const pack_format *f) {
    return f->layout == PACK_TILE && f->packing == PACK_PARTS && f->bits == 4 && f->group == 32 && !f->asym &&
           f->scale == PACK_SCALE_F16 && f->table == PACK_TABLE_NONE && !f->sparse;
}

/* ---- the sketch ---- */

enum { SKETCH_THREADS = 256 /* 16 threads for each row */ };

struct sketch_job {
    tile_source from;
    uint8_t *to;
    float *step;
    int64_t n, panel_bytes, chunk_bytes;
    int n_tile, n_group;
};

/* The maximum over the 16 threads of a row. */
__device__ __forceinline__ float row_max(float v) {
    for (int o = 1; o < 16; o *= 2)
        v = fmaxf(v, __shfl_xor_sync(~0u, v, o));
    return v;
}

/* A block has a panel; a thread has elements 2c and 2c + 1 of both groups of a tile. A scale is rounded up,
 * so that no error is larger than half of it. */
__global__ void __launch_bounds__(SKETCH_THREADS) sketch_panel(const __grid_constant__ sketch_job j) {
    const int row = threadIdx.x / 16, c = threadIdx.x % 16;
    const int64_t n = (int64_t)blockIdx.x * PACK_PANEL + row;
    uint8_t *const panel = j.to + blockIdx.x * j.panel_bytes;
    float squares = 0.0f;
    launch_wait();
    for (int tile = 0; tile < j.n_tile; tile++) {
        const int chunk = tile / TILE_CHUNK, in = tile % TILE_CHUNK;
        const int n_here = min(j.n_tile - chunk * TILE_CHUNK, (int)TILE_CHUNK);
        uint8_t *const codes = panel + chunk * j.chunk_bytes;
        __half *const scales = (__half *)(codes + n_here * 512) + 2 * in * PACK_PANEL;
        uint32_t both = 0;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int at = tile * TILE_K + h * 32 + 2 * c;
            float4 four = {};
            if (n < j.n && at < j.from.k)
                four = tile_values(j.from, n, at & ~3);
            const float v[2] = {c % 2 ? four.z : four.x, at + 1 < j.from.k ? c % 2 ? four.w : four.y : 0.0f};
            const float max_abs = row_max(fmaxf(fabsf(v[0]), fabsf(v[1])));
            const __half scale = __float2half_ru(max_abs / 7.5f);
            const float s = __half2float(scale);
            for (int i = 0; i < 2; i++) {
                const float code = s > 0.0f ? rintf(v[i] / s) : 0.0f;
                both |= (uint32_t)(8 + (int)fminf(fmaxf(code, -8.0f), 7.0f)) << (8 * i + 4 * h);
            }
            squares += s * s;
            if (c == 0)
                scales[h * PACK_PANEL + row] = scale;
        }
        *(uint16_t *)(codes + in * 512 + 4 * gtile_dword(8, c / 2, row) + c % 2 * 2) = (uint16_t)both;
    }
    if (c == 0)
        j.step[n] = sqrtf(squares / (float)j.n_group / 12.0f);
}

bool sketch_takes(const view *head) {
    const pack_format *f = &head->format;
    return f->layout == PACK_TILE && f->packing == PACK_PARTS && f->table == PACK_TABLE_NONE && !f->sparse &&
           f->scale != PACK_SCALE_ZERO && head->k <= MAX_PACK_ROW &&
           (f->group == 16 ? f->bits == 6 : f->bits >= 6 && f->bits <= 8);
}

int sketch_launch(const view *head, const view *sketch, float *step, cuda_stream s) {
    const int64_t panels = (head->n + PACK_PANEL - 1) / PACK_PANEL;
    if (!sketch_takes(head) || !is_sketch(&sketch->format) || sketch->n != head->n || sketch->k != head->k ||
        panels < 1 || panels > INT32_MAX)
        return CUDA_UNSUPPORTED;
    sketch_job j = {tile_source_of(head), (uint8_t *)sketch->data, step, head->n};
    j.panel_bytes = tile_panel_bytes(&sketch->format, head->k);
    j.chunk_bytes = tile_chunk_bytes(&sketch->format, TILE_CHUNK);
    j.n_tile = (int)tile_count(head->k);
    j.n_group = (int)((head->k + 31) / 32);
    const int e = prepare(sketch_panel, 0);
    return e ? e : launch(sketch_panel, dim3((unsigned)panels), dim3(SKETCH_THREADS), 0, s, j);
}

/* ---- the second step ---- */

struct short_job {
    linear_job j; /* the product of one row */
    int64_t ldx;
    const float *step;
    const logit_row *rows;
    const logit_change *changes;
    int top, n_row, each /* number of blocks of a row */, n_panel, n_own /* maximal panels of a block */;
    uint8_t *state; /* the first CUDA_SHORT_HEAD bytes of the scratch */
    float *bounds;  /* [n_row, each, ALL_WARPS] */
};

/* Arrays in a block's shared memory, after the row. */
struct short_memory {
    uint32_t *keys;    /* [each, ALL_WARPS]: the row's lower bounds */
    uint32_t *changed; /* [n_own]: a bit for each logit of a panel */
    int *list;         /* [n_own]: panels to compute */
};
static size_t memory_bytes(const short_job &s) {
    return (size_t)s.j.k_pad + (size_t)(s.j.k_pad / s.j.subgroup) * sizeof(subgroup_meta) +
           ((size_t)s.each * ALL_WARPS + 2 * (size_t)s.n_own) * sizeof(uint32_t);
}

/* A key with the order of floats; NaN does not occur. */
__device__ __forceinline__ uint32_t bound_key(float v) {
    const uint32_t u = __float_as_uint(v);
    return u >> 31 ? ~u : u | 0x80000000u;
}
__device__ __forceinline__ float key_bound(uint32_t k) {
    const float none = __uint_as_float(0xff800000u);
    return k <= bound_key(none) ? none : __uint_as_float(k >> 31 ? k & 0x7fffffffu : ~k);
}

/* The length of the row that is multiplied, before the norm's factor. */
__device__ static float row_length(const linear_job &j, const uint32_t *codes, const subgroup_meta *meta,
                                   float *shared) {
    float sum = 0.0f;
    for (int i = threadIdx.x; i < j.k_pad / 32; i += THREADS) {
        const float scale = meta[i * 32 / j.subgroup].scale;
        int dot = 0;
#pragma unroll
        for (int c = 0; c < 8; c++)
            dot = __dp4a((int)codes[8 * i + c], (int)codes[8 * i + c], dot);
        sum += scale * scale * (float)dot;
    }
    sum = pairs_sum(sum, 32);
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0.0f;
    for (int i = 0; i < ALL_WARPS; i++)
        sum += shared[i];
    return sqrtf(sum);
}

/* Marks the logits of the block's panels that are changed later. */
__device__ static void mark_changed(const short_job &s, int row, int part, uint32_t *changed) {
    const logit_row r = s.rows[row];
    for (int i = threadIdx.x; i < r.n; i += THREADS) {
        const int token = s.changes[r.first + i].token, panel = token / PACK_PANEL;
        if (panel % s.each == part)
            atomicOr(changed + panel / s.each, 1u << token % PACK_PANEL);
    }
}

/* The number of keys that are at least `least`. counts: turn t uses counts[t % 2]. */
__device__ static int count_keys(const uint32_t *keys, int n, uint32_t min_key, int *counts) {
    int own = 0, all = 0;
    for (int i = threadIdx.x; i < n; i += THREADS)
        own += keys[i] >= min_key;
    own = warp_sum(own);
    if (threadIdx.x % 32 == 0)
        counts[threadIdx.x / 32] = own;
    __syncthreads();
    for (int i = 0; i < ALL_WARPS; i++)
        all += counts[i];
    return all;
}

/* A limit that at least `top` of the keys reach: the top-th largest, rounded down if it is not the first. */
__device__ static float limit_of(const uint32_t *keys, int n, int top, int counts[2][ALL_WARPS]) {
    enum { LAST_BIT = 12 /* a 2048th of the float is precise enough */ };
    uint32_t limit = 0;
    if (top == 1) {
        for (int i = threadIdx.x; i < n; i += THREADS)
            limit = max(limit, keys[i]);
        limit = max_warp(limit);
        if (threadIdx.x % 32 == 0)
            counts[0][threadIdx.x / 32] = (int)limit;
        __syncthreads();
        for (int i = 0; i < ALL_WARPS; i++)
            limit = max(limit, (uint32_t)counts[0][i]);
        return key_bound(limit);
    }
    for (int bit = 31; bit >= LAST_BIT; bit--) {
        const uint32_t min_key = limit | 1u << bit;
        if (count_keys(keys, n, min_key, counts[bit % 2]) >= top)
            limit = min_key;
    }
    return key_bound(limit);
}

/* Computes a panel's sums by the warps of a team. */
template <int BITS, bool HALVES>
__device__ __forceinline__ void multiply_panel(const linear_job &j, int panel, const uint32_t *codes,
                                               const subgroup_meta *meta, float (*partial)[PACK_PANEL]) {
    enum { SUBGROUPS = HALVES ? 16 : 8 };
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % WARPS;
    const uint8_t *const data = j.w[0] + panel * j.panel_bytes;
    const lane_tables<TABLE_NONE> tables = {};
    float sum[2] = {0.0f, 0.0f};
    for (int c = warp; c < j.n_chunk; c += WARPS)
        one_chunk<BITS, HALVES, TABLE_NONE>(
            j, data + (int64_t)c * j.chunk_bytes, ((const uint2 *)codes)[c * 32 + lane], meta + c * SUBGROUPS,
            c == j.n_chunk - 1 ? j.last_tiles : TILE_CHUNK, tables, sum, false);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        sum[i] = __fadd_rn(sum[i], __shfl_xor_sync(~0u, sum[i], 1));
        sum[i] = __fadd_rn(sum[i], __shfl_xor_sync(~0u, sum[i], 2));
        if (lane % 4 == 0)
            partial[warp][lane / 4 + 8 * i] = sum[i];
    }
}

/* output_value of one row of a panel. */
__device__ __forceinline__ float panel_value(const linear_job &j, int panel, int r,
                                             const float (*partial)[PACK_PANEL], const one_facts &facts) {
    const int n = panel * PACK_PANEL + r;
    float u = 0.0f;
#pragma unroll
    for (int i = 0; i < WARPS; i++)
        u = __fadd_rn(u, partial[i][r]);
    if (j.tail) {
        const uint8_t *tail = j.w[0] + panel * j.panel_bytes + j.tail_at;
        u = __fmul_rn(half_at(tail + 2 * r), u);
        if (j.asym)
            u = __fmaf_rn(half_at(tail + 32 + 2 * r), facts.of_row, u);
    }
    if (j.norm)
        u = __fmul_rn(u, facts.of_norm);
    return j.bias[0] && n < j.n[0] ? __fadd_rn(u, j.bias[0][n]) : u;
}

/* Finds the largest lower bound of each warp's logits, except those that are changed. */
__device__ static void bounds_find(const short_job &s, int part, int n_own, const float *y, float reach,
                                   const uint32_t *changed, float *bounds) {
    float max_bound = __uint_as_float(0xff800000u);
    for (int e = threadIdx.x; e < n_own * PACK_PANEL; e += THREADS) {
        const int i = e / PACK_PANEL, r = e % PACK_PANEL, n = (i * s.each + part) * PACK_PANEL + r;
        if (n < s.j.n[0] && !(changed[i] >> r & 1))
            max_bound = fmaxf(max_bound, y[n] - reach * s.step[n]);
    }
    for (int o = 1; o < 32; o *= 2)
        max_bound = fmaxf(max_bound, __shfl_xor_sync(~0u, max_bound, o));
    if (threadIdx.x % 32 == 0)
        bounds[threadIdx.x / 32] = max_bound;
}

/* Lists the block's panels that may reach the limit, which includes bounds of NaN. Sets all logits of the
 * other panels to -infinity. */
__device__ static void panels_list(const short_job &s, int part, int n_own, float *y, float reach,
                                   float limit, const uint32_t *changed, int *list, int *n_list) {
    for (int first = 0; first < n_own * PACK_PANEL; first += THREADS) {
        const int e = first + threadIdx.x, i = e / PACK_PANEL, r = e % PACK_PANEL;
        const int panel = i * s.each + part, n = panel * PACK_PANEL + r;
        const bool there = i < n_own && n < s.j.n[0];
        const bool may = there && (changed[i] >> r & 1 || !(y[n] + reach * s.step[n] < limit));
        const uint32_t of_panel = __ballot_sync(~0u, may) >> threadIdx.x % 32 / 16 * 16 & 0xffff;
        if (of_panel && r == 0)
            list[atomicAdd(n_list, 1)] = panel;
        else if (!of_panel && there)
            y[n] = __uint_as_float(0xff800000u);
    }
}

template <int BITS, bool HALVES>
__global__ void __launch_bounds__(THREADS, 2) shortlist_row(const __grid_constant__ short_job s) {
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ row_sums sums;
    __shared__ float partial[TEAMS][WARPS][PACK_PANEL], lengths[ALL_WARPS];
    __shared__ int counts[2][ALL_WARPS], n_list;
    const linear_job &j = s.j;
    const int row = blockIdx.x % s.n_row, part = blockIdx.x / s.n_row, team = threadIdx.x / 32 / WARPS;
    const int n_own = part < s.n_panel ? (s.n_panel - part + s.each - 1) / s.each : 0;
    uint32_t *const codes = (uint32_t *)shared;
    subgroup_meta *const meta = (subgroup_meta *)(codes + j.k_pad / 4);
    short_memory memory;
    memory.keys = (uint32_t *)(meta + j.k_pad / j.subgroup);
    memory.changed = memory.keys + s.each * ALL_WARPS;
    memory.list = (int *)(memory.changed + s.n_own);
    float *const y = j.y[0] + row * j.ldy[0], *const bounds = s.bounds + row * s.each * ALL_WARPS;
    for (int i = threadIdx.x; i < n_own; i += THREADS)
        memory.changed[i] = 0;
    if (threadIdx.x == 0)
        n_list = 0;
    launch_wait();
    if (j.coded) {
        coded_begin(j, (uint8_t *)codes);
        copies_end_group();
        coded_end(j, &sums);
    } else
        quantize_row<false>(row_of(j, j.x + row * s.ldx), one_store{codes, meta}, &sums);
    if (s.rows) {
        mark_changed(s, row, part, memory.changed);
        __syncthreads();
    }
    const one_facts facts = {j.norm ? row_factor(j, &sums) : 1.0f,
                             j.tail && j.asym ? row_lift(j, &sums, 0) : 0.0f};
    const float reach = BOUND_REACH * facts.of_norm * row_length(j, codes, meta, lengths);
    bounds_find(s, part, n_own, y, reach, memory.changed, bounds + part * ALL_WARPS);
    grid_barrier((grid_state *)s.state, gridDim.x);
    launch_next();
    for (int i = threadIdx.x; i < s.each * ALL_WARPS; i += THREADS)
        memory.keys[i] = bound_key(__ldcg(bounds + i));
    __syncthreads();
    const float limit = limit_of(memory.keys, s.each * ALL_WARPS, s.top, counts);
    panels_list(s, part, n_own, y, reach, limit, memory.changed, memory.list, &n_list);
    __syncthreads();
    for (int q0 = 0; q0 < n_list; q0 += TEAMS) {
        const int q = q0 + team, r = threadIdx.x % (32 * WARPS), panel = q < n_list ? memory.list[q] : 0;
        if (q < n_list)
            multiply_panel<BITS, HALVES>(j, panel, codes, meta, partial[team]);
        __syncthreads();
        if (q < n_list && r < PACK_PANEL && panel * PACK_PANEL + r < j.n[0])
            y[panel * PACK_PANEL + r] = panel_value(j, panel, r, partial[team], facts);
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        unsigned long long *const counted = (unsigned long long *)(s.state + 8);
        if (part == 0)
            atomicAdd(counted, 1ull);
        if (n_list)
            atomicAdd(counted + 1, (unsigned long long)n_list);
    }
}

size_t shortlist_scratch(void) {
    return CUDA_SHORT_HEAD + (size_t)device_sm_count() * ALL_WARPS * sizeof(float);
}

static void (*short_kernel(const pack_format *f))(const short_job) {
    return f->group == 16 ? shortlist_row<6, true>
           : f->bits == 6 ? shortlist_row<6, false>
           : f->bits == 7 ? shortlist_row<7, false>
                          : shortlist_row<8, false>;
}

int shortlist_launch(const cuda_shortlist *a, cuda_stream s) {
    short_job job = {};
    cuda_linear one = a->head;
    if (one.n_w != 1 || one.n_row < 1 || one.n_row > CUDA_MAX_SHORT || one.n_row > device_sm_count() ||
        one.two || one.gated || one.adds || one.leaves.data || !sketch_takes(&one.w[0]) || a->top < 1 ||
        a->top > CUDA_MAX_TOP || one.w[0].n > INT32_MAX - PACK_PANEL * 4096)
        return CUDA_UNSUPPORTED;
    if (one.n_row > 1 || one.w[0].format.group != 32)
        one.codes = nullptr; /* the codes of several rows have another order */
    one.n_row = 1;
    int e = linear_job_make(&one, &job.j);
    if (e)
        return e;
    job.ldx = a->head.ldx;
    job.step = a->step;
    job.rows = a->rows;
    job.changes = a->changes;
    job.top = a->top;
    job.n_row = (int)a->head.n_row;
    job.each = device_sm_count() / job.n_row;
    job.n_panel = (int)((one.w[0].n + PACK_PANEL - 1) / PACK_PANEL);
    job.n_own = (job.n_panel + job.each - 1) / job.each;
    job.state = (uint8_t *)a->scratch;
    job.bounds = (float *)(job.state + CUDA_SHORT_HEAD);
    const size_t shared_bytes = memory_bytes(job);
    if (shared_bytes > (size_t)device_shared_bytes() - (16 << 10))
        return CUDA_UNSUPPORTED;
    auto *const kernel = short_kernel(&one.w[0].format);
    const unsigned n_block = (unsigned)(job.each * job.n_row);
    e = prepare(kernel, shared_bytes);
    return e ? e : launch_by({true, true, 1}, kernel, n_block, THREADS, shared_bytes, s, job);
}
