/* sparse.cu - adds the products of the outliers of weights (pack_format.sparse) to the result of the product
 * before.
 *
 * A block keeps up to eight rows of floats in shared memory, column after column, and goes through panels of
 * outputs. A warp has a panel, two lanes an output. With eight rows each lane has four of them and both
 * strands of the output's outliers, the even and the odd ones; with fewer rows each lane has one strand. So a
 * sum has one order for any number of rows and blocks: each strand from the first outlier on, then the two
 * strands. A row that is too long for shared memory is read from memory. */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launches.h"
#include "kernels/cuda/row_math.cuh"
#include "numbers/tile.h"

enum {
    SPARSE_THREADS = 512,
    WARPS = SPARSE_THREADS / 32,
    MAX_ROWS = 8,      /* rows of a block */
    STRETCHES = WARPS, /* parts of a row, each of whose squares one warp sums */
    LINE = TILE_LINE / (int)sizeof(uint16_t)
};

struct sparse_job {
    cuda_sparse a;
    int64_t panel_bytes, lines_at; /* bytes of a panel; offset of its outliers */
    int first[3], n_panel;         /* the matrices' first panels */
    int k, n_outlier;
};

__device__ __forceinline__ const uint16_t *lines_of(const sparse_job &j, int matrix, int panel) {
    return (const uint16_t *)((const uint8_t *)j.a.w[matrix].data + panel * j.panel_bytes + j.lines_at);
}

struct panel_at {
    int matrix, panel;
};
__device__ __forceinline__ panel_at find_panel(const sparse_job &j, int p) {
    const int matrix = (j.a.n_w > 1 && p >= j.first[1]) + (j.a.n_w > 2 && p >= j.first[2]);
    return panel_at{matrix, p - j.first[matrix]};
}

/* ---- the rows of a block ---- */

__device__ __forceinline__ float4 weighted(const cuda_sparse &a, float4 v, int at) {
    if (!a.norm)
        return v;
    const float4 w = ((const float4 *)a.norm)[at];
    return make_float4(__fmul_rn(v.x, w.x), __fmul_rn(v.y, w.y), __fmul_rn(v.z, w.z), __fmul_rn(v.w, w.w));
}

/* The sum of squares of one stretch of a row. A single row is also copied to `tile`. */
__device__ static float stretch_squares(const sparse_job &j, int64_t row, int stretch, float4 *tile) {
    const int quads = j.k / 4, each = ((quads + STRETCHES - 1) / STRETCHES + 31) / 32 * 32;
    const int end = min((stretch + 1) * each, quads);
    const float4 *x = (const float4 *)(j.a.x + row * j.a.ldx);
    float sum = 0.0f;
#pragma unroll 4
    for (int i = stretch * each + (int)threadIdx.x % 32; i < end; i += 32) {
        const float4 v = x[i];
        sum = __fmaf_rn(v.x, v.x, sum);
        sum = __fmaf_rn(v.y, v.y, sum);
        sum = __fmaf_rn(v.z, v.z, sum);
        sum = __fmaf_rn(v.w, v.w, sum);
        if (tile)
            tile[i] = weighted(j.a, v, i);
    }
    for (int o = 1; o < 32; o *= 2)
        sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, o));
    return sum;
}

/* The factor of a row's RMSNorm. */
__device__ static float factor_of(const sparse_job &j, const float *squares) {
    float sum = 0.0f;
#pragma unroll
    for (int s = 0; s < STRETCHES; s++)
        sum = __fadd_rn(sum, squares[s]);
    return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(sum, (float)j.k), j.a.eps)));
}

/* Copies four neighbours of a row to four columns of the tile. Lanes begin with different ones of the four,
 * so that a warp writes to different banks. */
template <int ROWS> __device__ static void stage_rows(const sparse_job &j, int64_t row, float *tile) {
    const int r = threadIdx.x % ROWS;
    const bool there = row + r < j.a.n_row;
    const float4 *x = (const float4 *)(j.a.x + (row + r) * j.a.ldx);
#pragma unroll 4
    for (int i = threadIdx.x / ROWS; i < j.k / 4; i += SPARSE_THREADS / ROWS) {
        const float4 v = there ? weighted(j.a, x[i], i) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int turn = 0; turn < 4; turn++) {
            const int c = (turn + i * ROWS / MAX_ROWS) % 4;
            tile[(4 * i + c) * ROWS + r] = c == 0 ? v.x : c == 1 ? v.y : c == 2 ? v.z : v.w;
        }
    }
}

/* Copies the rows from `row` on, times the norm's weights, to the tile, and computes their factors. */
template <int ROWS, bool STAGED>
__device__ static void take_rows(const sparse_job &j, int64_t row, float *tile, float *squares,
                                 float *factor) {
    constexpr bool alone = STAGED && ROWS == 1;
    const int warp = threadIdx.x / 32;
    for (int i = warp; (alone || j.a.norm) && i < ROWS * STRETCHES; i += WARPS) {
        const int64_t own = row + i / STRETCHES;
        const float sum =
            own < j.a.n_row ? stretch_squares(j, own, i % STRETCHES, alone ? (float4 *)tile : nullptr) : 0.0f;
        if (threadIdx.x % 32 == 0)
            squares[i] = sum;
    }
    if constexpr (STAGED && !alone)
        stage_rows<ROWS>(j, row, tile);
    __syncthreads();
    if (threadIdx.x < ROWS)
        factor[threadIdx.x] = j.a.norm ? factor_of(j, squares + threadIdx.x * STRETCHES) : 1.0f;
    __syncthreads();
}

/* ---- sums ---- */

/* The work of a lane: EACH rows, with both strands of an output's outliers or with one. */
template <int ROWS> struct lane_of {
    static constexpr int EACH = ROWS < 4 ? ROWS : 4;
    static constexpr bool BOTH = ROWS == MAX_ROWS;
};

/* An outlier of a lane's output: the column in the lower half, the value in the upper one. */
__device__ __forceinline__ uint32_t outlier_of(const uint16_t *lines, int i) {
    const uint16_t *line = lines + i * LINE + (int)threadIdx.x % 32 / 2;
    return (uint32_t)__ldg(line + PACK_PANEL) << 16 | __ldg(line);
}

template <int ROWS, bool STAGED>
__device__ __forceinline__ void add_outlier(float *sum, const sparse_job &j, int64_t row, const float *tile,
                                            uint32_t outlier) {
    constexpr int EACH = lane_of<ROWS>::EACH;
    const int column = outlier & 0xffff;
    const float value = __uint_as_float(outlier & 0xffff0000u);
    float x[EACH];
    if constexpr (!STAGED) {
        const float v = j.a.x[row * j.a.ldx + column];
        x[0] = j.a.norm ? __fmul_rn(v, j.a.norm[column]) : v;
    } else if constexpr (EACH == 4) {
        const int half = lane_of<ROWS>::BOTH ? 4 * ((int)threadIdx.x % 2) : 0;
        *(float4 *)x = *(const float4 *)(tile + column * ROWS + half);
    } else if constexpr (EACH == 2) {
        *(float2 *)x = *(const float2 *)(tile + column * ROWS);
    } else {
        x[0] = tile[column];
    }
#pragma unroll
    for (int r = 0; r < EACH; r++)
        sum[r] = __fmaf_rn(value, x[r], sum[r]);
}

/* With eight rows, reads of the tile take most of the time, so a batch of outliers is loaded while the
 * previous one is added. `first` is a batch that was loaded before. After the last batch comes the first one
 * of the panel whose lines are at `next`. */
struct batch {
    uint32_t of[8];
};

/* Loads the outliers from the i-th on; beyond the end, the last one again. */
__device__ __forceinline__ void ask(batch *to, const uint16_t *lines, int i, int n) {
#pragma unroll
    for (int b = 0; b < 8; b++)
        to->of[b] = outlier_of(lines, min(i + b, n - 1));
}

/* The sums of a lane's four rows for its output of a panel. */
__device__ __forceinline__ void sum_eight(const sparse_job &j, const float *tile, const uint16_t *lines,
                                          const uint16_t *next, batch *first, float *out) {
    const int n = j.n_outlier;
    float sum[2][4] = {};
    for (int i = 0; i < n; i += 8) {
        const batch now = *first;
        const bool last = i + 8 >= n;
        ask(first, last ? next : lines, last ? 0 : i + 8, n);
#pragma unroll
        for (int b = 0; b < 8; b++)
            if (i + b < n)
                add_outlier<MAX_ROWS, true>(sum[b % 2], j, 0, tile, now.of[b]);
    }
#pragma unroll
    for (int r = 0; r < 4; r++)
        out[r] = __fadd_rn(sum[0][r], sum[1][r]);
}

/* The sums of fewer rows; both lanes of an output get them. */
template <int ROWS, bool STAGED>
__device__ __forceinline__ void sum_few(const sparse_job &j, int64_t row, const float *tile,
                                        const uint16_t *lines, float *out) {
    constexpr int EACH = lane_of<ROWS>::EACH;
    float sum[EACH] = {};
#pragma unroll 8
    for (int i = threadIdx.x % 2; i < j.n_outlier; i += 2)
        add_outlier<ROWS, STAGED>(sum, j, row, tile, outlier_of(lines, i));
#pragma unroll
    for (int r = 0; r < EACH; r++)
        out[r] = __fadd_rn(sum[r], __shfl_xor_sync(~0u, sum[r], 1));
}

template <int ROWS, bool STAGED>
__device__ __forceinline__ void panel_sums(const sparse_job &j, int64_t row, const float *tile,
                                           const uint16_t *lines, const uint16_t *next, batch *first,
                                           float *out) {
    if constexpr (lane_of<ROWS>::BOTH)
        sum_eight(j, tile, lines, next, first, out);
    else
        sum_few<ROWS, STAGED>(j, row, tile, lines, out);
}

/* A lane's output of a panel, for its rows. */
template <int ROWS> struct lane_outputs {
    static constexpr int EACH = lane_of<ROWS>::EACH;
    float y[EACH], up[EACH];
    int64_t row; /* the lane's first row */
    int matrix, n;

    /* Whether the lane writes row i. */
    __device__ __forceinline__ bool has(const cuda_sparse &a, int i) const {
        return n < a.w[matrix].n && row + i < a.n_row &&
               (lane_of<ROWS>::BOTH || i % 2 == (int)threadIdx.x % 2);
    }
    __device__ __forceinline__ void ask(const cuda_sparse &a) {
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (has(a, i)) {
                y[i] = a.y[matrix][(row + i) * a.ldy[matrix] + n];
                up[i] = a.gated ? a.y[1][(row + i) * a.ldy[1] + n] : 0.0f;
            }
    }
    __device__ __forceinline__ void write(const cuda_sparse &a, int i, float v, float v_up) const {
        v = __fadd_rn(y[i], v);
        if (a.gated)
            a.out[(row + i) * a.ldo + n] = __fmul_rn(act_value(a.act, v), __fadd_rn(up[i], v_up));
        else
            a.y[matrix][(row + i) * a.ldy[matrix] + n] = v;
    }
};

/* Adds panel p; `next` is the lines of the warp's next one. */
template <int ROWS, bool STAGED>
__device__ static void add_panel(const sparse_job &j, int64_t row, const float *tile, const float *factor,
                                 int p, const uint16_t *next, batch *first) {
    constexpr int EACH = lane_of<ROWS>::EACH;
    const int lane = threadIdx.x % 32, begin = lane_of<ROWS>::BOTH ? 4 * (lane % 2) : 0;
    const panel_at at = find_panel(j, p);
    const uint16_t *lines = lines_of(j, at.matrix, at.panel);
    lane_outputs<ROWS> to;
    float v[EACH], up[EACH] = {};
    to.row = row + begin;
    to.matrix = at.matrix;
    to.n = at.panel * PACK_PANEL + lane / 2;
    to.ask(j.a);
    if (j.a.gated) {
        const uint16_t *second = lines_of(j, 1, at.panel);
        panel_sums<ROWS, STAGED>(j, row, tile, lines, second, first, v);
        panel_sums<ROWS, STAGED>(j, row, tile, second, next, first, up);
    } else
        panel_sums<ROWS, STAGED>(j, row, tile, lines, next, first, v);
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (to.has(j.a, i))
            to.write(j.a, i, __fmul_rn(v[i], factor[begin + i]), __fmul_rn(up[i], factor[begin + i]));
}

/* The outlier lines of panel p, or of the last panel if p is beyond it. */
__device__ __forceinline__ const uint16_t *lines_at(const sparse_job &j, int p) {
    const panel_at at = find_panel(j, min(p, j.n_panel - 1));
    return lines_of(j, at.matrix, at.panel);
}

/* Prefetches panel p's outliers into the second-level cache. */
__device__ static void ask_panel(const sparse_job &j, int p) {
    const uint8_t *lines = (const uint8_t *)lines_at(j, p);
    for (int i = threadIdx.x % 32 * 128; i < j.n_outlier * TILE_LINE; i += 32 * 128)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(lines + i));
}

template <int ROWS, bool STAGED>
__global__ void __launch_bounds__(SPARSE_THREADS) sparse_add(const __grid_constant__ sparse_job j) {
    extern __shared__ __align__(16) float tile[];
    __shared__ float squares[ROWS * STRETCHES], factor[ROWS];
    const int64_t row = (int64_t)blockIdx.y * ROWS;
    const int step = (int)gridDim.x * WARPS;
    int p = (int)blockIdx.x + (int)(threadIdx.x / 32 * gridDim.x);
    batch first;
    if constexpr (lane_of<ROWS>::BOTH)
        ask(&first, lines_at(j, p), 0, j.n_outlier);
    else
        ask_panel(j, p);
    launch_next();
    launch_wait();
    take_rows<ROWS, STAGED>(j, row, tile, squares, factor);
    for (; p < j.n_panel; p += step)
        add_panel<ROWS, STAGED>(j, row, tile, factor, p, lines_at(j, p + step), &first);
}

/* ---- launches ---- */

typedef void (*sparse_kernel)(sparse_job);

/* The kernel for blocks of this many rows. 0: one row, which is read from memory. */
static sparse_kernel kernel_of(int rows) {
    return rows == 8   ? sparse_add<8, true>
           : rows == 4 ? sparse_add<4, true>
           : rows == 2 ? sparse_add<2, true>
           : rows == 1 ? sparse_add<1, true>
                       : sparse_add<1, false>;
}

/* The number of rows of a block: at most all rows, and those that fit shared memory. */
static int rows_of_block(const sparse_job *j) {
    enum { OWN = 4096 /* bytes of static arrays and of the driver */ };
    const int64_t shared_bytes = device_shared_bytes() - OWN, each = (int64_t)j->k * (int64_t)sizeof(float);
    int rows = MAX_ROWS;
    while (rows > 0 && (rows * each > shared_bytes || rows / 2 >= j->a.n_row))
        rows /= 2;
    return rows;
}

/* The number of blocks that share the outputs of the same rows: the one with the least total time of rounds.
 * A round's time is that of copying the rows to shared memory and of the lanes' reads there. No bit depends
 * on it. */
static int share_of(const sparse_job *j, int64_t tiles, int rows) {
    const double rows_way = 2000 + (double)rows * j->k / 64,
                 sums = (double)j->n_panel * j->n_outlier * (j->a.gated ? 2 : 1) * (rows > 1 ? rows : 2);
    const int n_sm = device_sm_count();
    int best = 1;
    double min_cost = 0;
    for (int p = 1; p <= n_sm && p <= j->n_panel; p++) {
        const double rounds = (double)((tiles * p + n_sm - 1) / n_sm), cost = rounds * (rows_way + sums / p);
        if (p == 1 || cost < min_cost) {
            min_cost = cost;
            best = p;
        }
    }
    return best;
}

static int job_make(const cuda_sparse *a, sparse_job *j) {
    const view *w = &a->w[0];
    *j = sparse_job{};
    if (a->n_w < 1 || a->n_w > 3 || (a->gated && a->n_w != 2) || a->n_row < 1 || a->n_row > CUDA_MAX_WIDE ||
        w->format.layout != PACK_TILE || !w->format.sparse || w->k < 1 || w->k > MAX_PACK_ROW || w->k % 4)
        return CUDA_UNSUPPORTED;
    j->a = *a;
    j->k = (int)w->k;
    j->n_outlier = (int)tile_outliers(&w->format, w->k);
    j->panel_bytes = tile_panel_bytes(&w->format, w->k);
    j->lines_at = j->panel_bytes - (int64_t)j->n_outlier * TILE_LINE;
    for (int i = 0; i < a->n_w; i++) {
        j->first[i] = j->n_panel;
        if (!a->gated || i == 0)
            j->n_panel += (int)((a->w[i].n + PACK_PANEL - 1) / PACK_PANEL);
    }
    if (a->gated)
        j->first[1] = j->first[2] = INT32_MAX;
    return 0;
}

int sparse_launch(const cuda_sparse *a, cuda_stream s) {
    sparse_job j;
    int e = job_make(a, &j);
    if (e)
        return e;
    const int rows = rows_of_block(&j), each = rows > 0 ? rows : 1;
    const int64_t tiles = (a->n_row + each - 1) / each;
    const size_t shared_bytes = (size_t)rows * (size_t)j.k * sizeof(float);
    const sparse_kernel kernel = kernel_of(rows);
    e = prepare(kernel, shared_bytes);
    return e ? e
             : launch(kernel, dim3((unsigned)share_of(&j, tiles, each), (unsigned)tiles),
                      dim3(SPARSE_THREADS), shared_bytes, s, j);
}
