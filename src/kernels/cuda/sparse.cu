/* sparse.cu - the outliers of weights (pack_format.sparse), added to what the product before left.
 *
 * A block keeps up to eight rows of floats in shared memory, column after column, and goes through panels of
 * outputs. A warp has a panel: two lanes have an output. With eight rows each lane has four of them and both
 * strands of the output's outliers, the even and the odd ones; with fewer rows each lane has one strand. So a
 * sum has one order for any number of rows and blocks: each strand from the first outlier on, then the two
 * strands. A row that is too long for shared memory is read where it lies. */
#include "kernels/cuda/device.cuh"
#include "quant/tile.h"

enum {
    SPARSE_THREADS = 512,
    WARPS = SPARSE_THREADS / 32,
    MAX_ROWS = 8,      /* of a block */
    STRETCHES = WARPS, /* of a row: its squares are summed by so many warps */
    LINE = TILE_LINE / (int)sizeof(uint16_t)
};

struct sparse_job {
    cuda_sparse a;
    int64_t panel_bytes, lines_at; /* of a panel's outliers */
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

/* The sum of squares of a row's stretch; a single row is put into `tile` meanwhile. */
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

/* What RMSNorm multiplies a row with. */
__device__ static float factor_of(const sparse_job &j, const float *squares) {
    float sum = 0.0f;
#pragma unroll
    for (int s = 0; s < STRETCHES; s++)
        sum = __fadd_rn(sum, squares[s]);
    return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(sum, (float)j.k), j.a.eps)));
}

/* Four neighbours of a row go to four columns of the tile. They take turns, so that the lanes of a warp write
 * to different banks. */
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

/* The rows from `row` on, times the norm's weights, and their factors. */
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

/* Of a lane: rows with all of an output's outliers, or with every other one. */
template <int ROWS> struct lane_of {
    static constexpr int EACH = ROWS < 4 ? ROWS : 4;
    static constexpr bool BOTH = ROWS == MAX_ROWS;
};

template <int ROWS, bool STAGED>
__device__ __forceinline__ void add_outlier(float *sum, const sparse_job &j, int64_t row, const float *tile,
                                            const uint16_t *line) {
    constexpr int EACH = lane_of<ROWS>::EACH;
    const int column = __ldg(line);
    const float value = __uint_as_float((uint32_t)__ldg(line + PACK_PANEL) << 16);
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

/* The sums of a lane's rows for its output of a panel. Both lanes of an output have the same rows, unless
 * each has all outliers. */
template <int ROWS, bool STAGED>
__device__ static void panel_sums(const sparse_job &j, int64_t row, const float *tile, const uint16_t *lines,
                                  float *out) {
    constexpr int EACH = lane_of<ROWS>::EACH;
    constexpr bool BOTH = lane_of<ROWS>::BOTH;
    const int lane = threadIdx.x % 32, n = j.n_outlier;
    const uint16_t *line = lines + lane / 2;
    float sum[2][EACH] = {};
    if constexpr (BOTH) {
        int i = 0;
#pragma unroll 4
        for (; i + 1 < n; i += 2) {
            add_outlier<ROWS, STAGED>(sum[0], j, row, tile, line + i * LINE);
            add_outlier<ROWS, STAGED>(sum[1], j, row, tile, line + (i + 1) * LINE);
        }
        if (i < n)
            add_outlier<ROWS, STAGED>(sum[0], j, row, tile, line + i * LINE);
    } else {
#pragma unroll 8
        for (int i = lane % 2; i < n; i += 2)
            add_outlier<ROWS, STAGED>(sum[0], j, row, tile, line + i * LINE);
#pragma unroll
        for (int r = 0; r < EACH; r++)
            sum[1][r] = __shfl_xor_sync(~0u, sum[0][r], 1);
    }
#pragma unroll
    for (int r = 0; r < EACH; r++)
        out[r] = __fadd_rn(sum[0][r], sum[1][r]);
}

/* What a lane adds to an output of its r-th row. */
__device__ __forceinline__ void put(const cuda_sparse &a, int matrix, int64_t row, int n, float v, float up) {
    float *y = a.y[matrix] + row * a.ldy[matrix] + n;
    v = __fadd_rn(*y, v);
    if (a.gated)
        a.out[row * a.ldo + n] = __fmul_rn(act_value(a.act, v), __fadd_rn(a.y[1][row * a.ldy[1] + n], up));
    else
        *y = v;
}

template <int ROWS, bool STAGED>
__device__ static void add_panel(const sparse_job &j, int64_t row, const float *tile, const float *factor,
                                 int p) {
    constexpr int EACH = lane_of<ROWS>::EACH;
    constexpr bool BOTH = lane_of<ROWS>::BOTH;
    const int lane = threadIdx.x % 32, half = lane % 2;
    const panel_at at = find_panel(j, p);
    float v[EACH], up[EACH] = {};
    panel_sums<ROWS, STAGED>(j, row, tile, lines_of(j, at.matrix, at.panel), v);
    if (j.a.gated)
        panel_sums<ROWS, STAGED>(j, row, tile, lines_of(j, 1, at.panel), up);
    const int n = at.panel * PACK_PANEL + lane / 2;
    if (n >= j.a.w[at.matrix].n)
        return;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int r = BOTH ? 4 * half + i : i;
        if ((BOTH || i % 2 == half) && row + r < j.a.n_row)
            put(j.a, at.matrix, row + r, n, __fmul_rn(v[i], factor[r]), __fmul_rn(up[i], factor[r]));
    }
}

/* Asks for the outliers of a warp's first panel. */
__device__ static void ask_first(const sparse_job &j, int p) {
    if (p >= j.n_panel)
        return;
    const panel_at at = find_panel(j, p);
    for (int i = threadIdx.x % 32 * 128; i < j.n_outlier * TILE_LINE; i += 32 * 128)
        asm volatile("prefetch.global.L2 [%0];" ::"l"((const uint8_t *)lines_of(j, at.matrix, at.panel) + i));
}

template <int ROWS, bool STAGED>
__global__ void __launch_bounds__(SPARSE_THREADS) sparse_add(const __grid_constant__ sparse_job j) {
    extern __shared__ __align__(16) float tile[];
    __shared__ float squares[ROWS * STRETCHES], factor[ROWS];
    const int64_t row = (int64_t)blockIdx.y * ROWS;
    const int begin = (int)blockIdx.x + (int)(threadIdx.x / 32 * gridDim.x);
    ask_first(j, begin);
    launch_next();
    launch_wait();
    take_rows<ROWS, STAGED>(j, row, tile, squares, factor);
    for (int p = begin; p < j.n_panel; p += (int)gridDim.x * WARPS)
        add_panel<ROWS, STAGED>(j, row, tile, factor, p);
}

/* ---- launches ---- */

typedef void (*sparse_kernel)(sparse_job);

/* The kernel for blocks of so many rows; of none: for one row that is read where it lies. */
static sparse_kernel kernel_of(int rows) {
    return rows == 8   ? sparse_add<8, true>
           : rows == 4 ? sparse_add<4, true>
           : rows == 2 ? sparse_add<2, true>
           : rows == 1 ? sparse_add<1, true>
                       : sparse_add<1, false>;
}

/* Rows of a block: no more than there are, and than shared memory has room for. */
static int rows_of_block(const sparse_job *j) {
    enum { OWN = 4096 /* static arrays, and what the driver takes */ };
    const int64_t room = device_shared_bytes() - OWN, each = (int64_t)j->k * (int64_t)sizeof(float);
    int rows = MAX_ROWS;
    while (rows > 0 && (rows * each > room || rows / 2 >= j->a.n_row))
        rows /= 2;
    return rows;
}

/* Blocks that share the outputs of the same rows: fewest rounds of their time, which is that of the rows'
 * way to shared memory and of the lanes' reads there. No bit depends on it. */
static int share_of(const sparse_job *j, int64_t tiles, int rows) {
    const double rows_way = 2000 + (double)rows * j->k / 64,
                 sums = (double)j->n_panel * j->n_outlier * (j->a.gated ? 2 : 1) * (rows > 1 ? rows : 2);
    const int n_sm = device_sm_count();
    int best = 1;
    double least = 0;
    for (int p = 1; p <= n_sm && p <= j->n_panel; p++) {
        const double rounds = (double)((tiles * p + n_sm - 1) / n_sm), cost = rounds * (rows_way + sums / p);
        if (p == 1 || cost < least) {
            least = cost;
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
    const size_t room = (size_t)rows * (size_t)j.k * sizeof(float);
    const sparse_kernel kernel = kernel_of(rows);
    e = prepare(kernel, room);
    return e ? e
             : launch(kernel, dim3((unsigned)share_of(&j, tiles, each), (unsigned)tiles),
                      dim3(SPARSE_THREADS), room, s, j);
}
