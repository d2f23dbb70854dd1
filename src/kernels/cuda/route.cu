/* route.cu - the router of a mixture of experts: chooses each row's experts, and lists the rows by expert.
 *
 * A warp has a row. Scores are in registers, and so are choices, as keys whose order is that of the floats.
 * The warp that chooses for a row alone also writes its list. The list of several rows is made by one block:
 * it counts the pairs of each expert, and gives each a place. The order of an expert's pairs is not the same
 * in every run, and no result depends on it. */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launches.h"
#include "kernels/cuda/mma_float.cuh"
#include "kernels/cuda/route_choose.cuh"

enum { ROUTE_MAX_WARPS = 16, LIST_THREADS = 1024, LIST_BLOCKS = 8, ROUTE_SHARED = 48 << 10 };

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

/* Generated rows. Blocks: x has FEW_EXPERTS experts, y a row, or FEW_ROWS of many. A thread has four elements
 * of each step of K. It reads its weights of the first steps before the launch before has ended, so that
 * after it only the rows are read. The norm's weights multiply the router's, and its factor the sums, so the
 * factor need not be known first. The first block chooses for one row, and writes its list. Otherwise the
 * last block of its rows chooses, a warp for each; the last one of all makes the lists. */
enum { FEW_EXPERTS = 8, FEW_STEPS = 2, FEW_STEP = 4 * EXPERT_THREADS, FEW_ROWS = 4 };

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

template <int TYPE, int EACH, int ROWS>
__global__ void __launch_bounds__(EXPERT_THREADS, EACH > 8 ? 1 : 2)
    route_few(const __grid_constant__ route_job j) {
    enum { STEPS = ROWS > 1 ? 1 : (int)FEW_STEPS };
    extern __shared__ uint32_t memory[]; /* of choices */
    __shared__ float part[ROWS][EXPERT_WARPS][FEW_EXPERTS + 1];
    __shared__ bool is_last;
    const cuda_route &a = j.a;
    const int row = ROWS * blockIdx.y, n_row = ROWS > 1 ? min((int)a.n_row - row, ROWS) : 1, k = (int)a.w.k,
              warp = threadIdx.x / 32, lane = threadIdx.x % 32, e0 = (int)blockIdx.x * FEW_EXPERTS;
    const float4 none = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    const float *const x = a.x + row * a.ld_row;
    float4 v[STEPS][FEW_EXPERTS];
    float sum[ROWS][FEW_EXPERTS] = {}, square[ROWS] = {};
    launch_next();
#pragma unroll
    for (int s = 0; s < STEPS; s++)
        few_weights<TYPE>(j, e0, s * FEW_STEP + 4 * (int)threadIdx.x, v[s]);
    /* While the first warp of one row waits, it chooses among old logits: then the code is in the instruction
     * cache. */
    bool last = false;
    int turn = warp == 0 && a.n_row == 1 && blockIdx.x == 0 ? 0 : 1;
    asm volatile("" : "+r"(turn));
#pragma unroll 1
    for (;; turn++) {
        if (turn > 0) {
            launch_wait();
            for (int first = 4 * (int)threadIdx.x; first < k; first += STEPS * FEW_STEP) {
                float4 u[ROWS][STEPS];
#pragma unroll
                for (int r = 0; r < ROWS; r++)
#pragma unroll
                    for (int s = 0; s < STEPS; s++)
                        u[r][s] = first + s * FEW_STEP < k && r < n_row
                                      ? four_inputs(x + r * a.ld_row, first + s * FEW_STEP, k)
                                      : none;
                if (first >= STEPS * FEW_STEP)
#pragma unroll
                    for (int s = 0; s < STEPS; s++)
                        few_weights<TYPE>(j, e0, first + s * FEW_STEP, v[s]);
#pragma unroll
                for (int r = 0; r < ROWS; r++)
#pragma unroll
                    for (int s = 0; s < STEPS; s++) {
                        square[r] = four_fma(u[r][s], u[r][s], square[r]);
#pragma unroll
                        for (int i = 0; i < FEW_EXPERTS; i++)
                            sum[r][i] = four_fma(v[s][i], u[r][s], sum[r][i]);
                    }
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const float total = experts_total(sum[r]), squares = pairs_sum(square[r], 32);
                if (lane % (32 / FEW_EXPERTS) == 0)
                    part[r][warp][lane / (32 / FEW_EXPERTS)] = total;
                if (lane == 0)
                    part[r][warp][FEW_EXPERTS] = squares;
            }
            __syncthreads();
            auto all_warps = [&](int r, int i) {
                float s = 0.0f;
#pragma unroll
                for (int n = 0; n < EXPERT_WARPS; n++)
                    s = __fadd_rn(s, part[r][n][i]);
                return s;
            };
            auto factor_at = [&](int r) {
                return a.norm ? norm_factor_of(all_warps(r, FEW_EXPERTS), (float)k, a.eps) : 1.0f;
            };
            const int own = ROWS > 1 ? lane / FEW_EXPERTS : 0, e = e0 + lane - own * FEW_EXPERTS;
            const float factor = factor_at(own);
            if (warp > 0) {
                for (int r = 0; r < n_row; r++)
                    input_leave(j, row + r, ROWS > 1 ? __shfl_sync(~0u, factor, r * FEW_EXPERTS) : factor);
            } else {
                if (e < e0 + FEW_EXPERTS && own < n_row && e < a.n_expert) {
                    const float y = __fmul_rn(factor, all_warps(own, e - e0));
                    const float v = a.w_bias ? __fadd_rn(y, a.w_bias[e]) : y;
                    if (a.n_row == 1)
                        pair_send(a, e, v);
                    a.logits[(row + own) * a.ldx + e] = v;
                }
                last = a.n_row == 1 ? blockIdx.x == 0 : ends_last(a.ended + 1 + blockIdx.y, gridDim.x);
            }
            if (ROWS > 1) { /* a warp chooses for each row */
                if (threadIdx.x == 0)
                    is_last = last;
                __syncthreads();
                last = is_last && warp < n_row;
            }
            if (!last)
                break;
        }
        row_choose<EACH>(j, row + (ROWS > 1 ? warp : 0), memory + 2 * (ROWS > 1 ? warp : 0) * a.n_expert,
                         turn > 0, turn > 0 && a.n_row == 1);
        if (turn > 0)
            break;
    }
    if (a.n_row == 1)
        return;
    __syncthreads(); /* all choices are written */
    if (threadIdx.x < 32) {
        last = last && ends_last(a.ended, gridDim.y);
        if (lane == 0)
            is_last = last;
    }
    __syncthreads();
    if (is_last)
        lists_make(j);
}

/* Prompt rows: a block has 32 rows and 64 experts, and K in steps of 64. Floats are split into three bf16 parts
 * whose sum they are (mma_float.cuh), once for the block; products of parts below 2^-24 are left out. The warps
 * are four parts, each with a quarter of every step; a warp has 16 experts and all rows. The sums of a step
 * begin at zero. The next step is read while one is multiplied. */
enum {
    TILE_ROWS = 32,
    TILE_EXPERTS = 64,
    TILE_STEP = 64,
    LOGIT_LINE = 2 * TILE_STEP + 16, /* bytes; ldmatrix reads eight lines from different banks */
    TILE_PARTS = 4,
    TILE_THREADS = 512,
    LOAD_ROWS = TILE_THREADS / (TILE_STEP / 4), /* rows that the threads read at once */
    LOADS = TILE_EXPERTS / LOAD_ROWS,
    SPLITS = 3
};
static_assert(TILE_ROWS == LOAD_ROWS, "each thread reads one quad of rows");
static_assert(TILE_THREADS == 32 * TILE_PARTS * TILE_EXPERTS / 16, "a warp has 16 experts");
struct logit_tile {
    uint8_t rows[SPLITS][TILE_ROWS][LOGIT_LINE], experts[SPLITS][TILE_EXPERTS][LOGIT_LINE];
};
typedef float logit_sums[TILE_PARTS][TILE_EXPERTS][TILE_ROWS + 1];
static_assert(sizeof(logit_sums) <= sizeof(logit_tile), "sums replace the last step");

/* Stores the parts of four floats, which are `step` bytes apart. */
__device__ __forceinline__ void parts_store(uint8_t *to, int step, float4 v) {
#pragma unroll
    for (int p = 0; p < SPLITS; p++) {
        const uint32_t low = two_split<TYPE_BF16>(&v.x, &v.y), high = two_split<TYPE_BF16>(&v.z, &v.w);
        *(uint2 *)(to + p * step) = make_uint2(low, high);
    }
}

template <int TYPE>
__global__ void __launch_bounds__(TILE_THREADS) route_logits(const __grid_constant__ route_job j) {
    __shared__ __align__(16) logit_tile m;
    const cuda_route &a = j.a;
    const int k = (int)a.w.k, t = threadIdx.x, r0 = (int)blockIdx.y * TILE_ROWS,
              e0 = (int)blockIdx.x * TILE_EXPERTS, quad = t % (TILE_STEP / 4) * 4, from = t / (TILE_STEP / 4);
    const int warp = t / 32, lane = t % 32, part = warp / 4, own_expert = warp % 4 * 16;
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
    const uint32_t weights = shared_address(&m.experts[0][own_expert + lane % 16][part * 32 + lane / 16 * 16]),
                   rows = shared_address(&m.rows[0][lane / 16 * 8 + lane % 8][part * 32 + lane / 8 % 2 * 16]);
    for (int at = 0; at < k; at += TILE_STEP) {
        const int next = at + TILE_STEP + quad;
        __syncthreads();
        parts_store(&m.rows[0][from][2 * quad], (int)sizeof m.rows[0], next_x);
#pragma unroll
        for (int i = 0; i < LOADS; i++)
            parts_store(&m.experts[0][from + i * LOAD_ROWS][2 * quad], (int)sizeof m.experts[0], next_w[i]);
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
        uint32_t v[SPLITS][4];
        float step[4][4] = {};
#pragma unroll
        for (int p = 0; p < SPLITS; p++)
            load_four(v[p], weights + p * (uint32_t)sizeof m.experts[0]);
#pragma unroll
        for (int two = 0; two < TILE_ROWS / 16; two++)
#pragma unroll
            for (int p = SPLITS - 1; p >= 0; p--) {
                uint32_t u[4];
                load_four(u, rows + p * (uint32_t)sizeof m.rows[0] + two * 16 * LOGIT_LINE);
#pragma unroll
                for (int i = 0; i < SPLITS - p; i++) {
                    mma_bf16(step[2 * two], v[i], u[0], u[1]);
                    mma_bf16(step[2 * two + 1], v[i], u[2], u[3]);
                }
            }
#pragma unroll
        for (int r = 0; r < 4; r++)
#pragma unroll
            for (int c = 0; c < 4; c++)
                sum[r][c] = __fadd_rn(sum[r][c], step[r][c]);
    }
    /* The parts' sums, in order. */
    logit_sums &sums = *(logit_sums *)&m;
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 4; r++)
#pragma unroll
        for (int c = 0; c < 4; c++)
            sums[part][own_expert + lane / 4 + c / 2 * 8][8 * r + lane % 4 * 2 + c % 2] = sum[r][c];
    __syncthreads();
    const int64_t e = e0 + t % TILE_EXPERTS;
    for (int r = t / TILE_EXPERTS; r < TILE_ROWS; r += TILE_THREADS / TILE_EXPERTS) {
        float v = sums[0][t % TILE_EXPERTS][r];
#pragma unroll
        for (int p = 1; p < TILE_PARTS; p++)
            v = __fadd_rn(v, sums[p][t % TILE_EXPERTS][r]);
        if (r0 + r < a.n_row && e < a.n_expert)
            a.logits[(r0 + r) * a.ldx + e] = a.w_bias ? __fadd_rn(v, a.w_bias[e]) : v;
    }
}

typedef void (*route_kernel)(const route_job);
template <int TYPE, int ROWS> static route_kernel few_of(int64_t n_expert) {
    return n_expert <= 128   ? route_few<TYPE, 4, ROWS>
           : n_expert <= 256 ? route_few<TYPE, 8, ROWS>
                             : route_few<TYPE, ROUTE_MAX_EXPERT / 32, ROWS>;
}
template <int ROWS> static int few_launch(const route_job *j, cuda_stream s) {
    const int type = j->a.w.format.type;
    const int64_t n = j->a.n_expert;
    const route_kernel kernel = type == TYPE_F32   ? few_of<TYPE_F32, ROWS>(n)
                                : type == TYPE_F16 ? few_of<TYPE_F16, ROWS>(n)
                                                   : few_of<TYPE_BF16, ROWS>(n);
    const size_t bytes = ROWS * 2 * (size_t)j->a.n_expert * sizeof(uint32_t);
    const dim3 grid((unsigned)((j->a.n_expert + FEW_EXPERTS - 1) / FEW_EXPERTS),
                    (unsigned)((j->a.n_row + ROWS - 1) / ROWS));
    const int e = grid.y > 65535 ? (int)CUDA_UNSUPPORTED : prepare(kernel, bytes);
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
        row_choose<EACH>(j, row, memory + warp * 2 * (int)j.a.n_expert, true, false);
    if (j.lists && j.a.n_row > 1)
        lists_make(j);
}

__global__ void __launch_bounds__(LIST_THREADS) route_lists(const __grid_constant__ route_job j) {
    launch_next();
    launch_wait();
    lists_make(j, (int)blockIdx.z, (int)gridDim.z);
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
            return a->n_row > 2 * FEW_ROWS ? few_launch<FEW_ROWS>(&j, s) : few_launch<1>(&j, s);
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
    const unsigned together = device_major() >= 9 ? LIST_BLOCKS : 1;
    return e ? e : launch_cluster(route_lists, dim3(1, 1, together), dim3(LIST_THREADS), together, 0, s, j);
}
