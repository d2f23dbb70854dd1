/* linear_float.cu - products of rows with matrices of floats (PACK_ROWS: f16, bf16, f32), which are row-major
 * as in the file.
 *
 * Products use the matrix instruction (m16n8k16, sums in floats). Its operands are as wide as the weights. So
 * a separate kernel first splits each row into parts whose sum is the row, and each part is multiplied:
 *     f16   two halves of a row that a power of two has scaled to below 2^15: 22 bits of its largest value
 *     bf16  three parts of 8 bits: all 24 bits of a float, over the range of floats
 *     f32   the same, and weights in three parts too; products of parts below 2^-24 are left out
 *     f8g64, f4g64  as f16: e4m3, and e2m1 times the scale of its group, are halves. The sum of each 64 is
 *           multiplied by the block's scale
 * So weights are exact, and a result differs from the sum of exact products by less than FLOAT_ERROR of the
 * sum of their magnitudes.
 *
 * A block has 8 warps, which share K: warp w takes chunks w, w + 8, ... of 64. The sums of a chunk begin at
 * zero, and the sums of chunks are added in the order of K, then those of the warps. A row is a column of the
 * instruction. So a row has the same bits alone and among others. Each lane copies its own operands into
 * shared memory, some chunks ahead, so no warp waits for another before its sums are complete. */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launches.h"
#include "kernels/cuda/linear_float.cuh"
#include "kernels/cuda/ring.cuh"

/* ---- products ---- */

/* The rows of weights that a lane reads of a slab, which is 16 TILES outputs of a unit: g, g + 8, .. of
 * these. In gated products every other eight rows belong to the second matrix. Rows beyond the end are
 * replaced by the last one. */
template <int TILES, int SLABS>
__device__ __forceinline__ void rows_find(const float_job &j, int unit, int slab,
                                          const uint8_t *row[2 * TILES]) {
    const int g = threadIdx.x % 32 / 4, m = j.gated ? 0 : matrix_of(j, unit);
    const int first = ((unit - (j.gated ? 0 : j.first[m])) * SLABS + slab) * (j.gated ? 8 : 16) * TILES + g;
#pragma unroll
    for (int i = 0; i < 2 * TILES; i++) {
        const int matrix = j.gated ? i % 2 : m;
        row[i] = j.w[matrix] + min(first + 8 * (j.gated ? i / 2 : i), j.n[matrix] - 1) * j.row_bytes;
    }
}

/* The order in which a lane multiplies its chunks, each for all slabs of the unit: [32 of K][row][16 bytes].
 */
template <int TYPE, int TILES, int SLABS> struct float_feed {
    enum {
        SCALED = float_parts<TYPE>::SCALED,
        SIZE = float_parts<TYPE>::SIZE,
        STAGE = SCALED ? 2 * TILES * 32 * SCALED_WORDS / 4 : 64 * TILES * SIZE /* uint4 */
    };
    const uint8_t *row[2 * TILES];
    uint4 *to; /* the lane's first slot */
    int unit, chunk, slab, put, get;

    __device__ __forceinline__ void begin(const float_job &j, uint4 *shared) {
        const int warp = threadIdx.x / 32;
        to = shared + warp * j.depth * STAGE;
        unit = warp < j.n_chunk ? (int)blockIdx.x : j.n_unit;
        chunk = warp;
        slab = put = get = 0;
        if (unit < j.n_unit)
            rows_find<TILES, SLABS>(j, unit, slab, row);
    }
    /* Copies of the lane's part of the chunk. */
    __device__ __forceinline__ void copy(const float_job &j, uint4 *stage) {
        if constexpr (SCALED) {
#pragma unroll
            for (int i = 0; i < 2 * TILES; i++)
                block_copy<TYPE>((uint32_t *)stage + i * 32 * SCALED_WORDS + threadIdx.x % 32,
                                 row[i] + (int64_t)chunk * (TYPE == TYPE_F8G64 ? 68 : 40));
        } else {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int k = chunk * FLOAT_CHUNK + 32 * half + 8 * (threadIdx.x % 4);
#pragma unroll
                for (int i = 0; i < 2 * TILES; i++)
#pragma unroll
                    for (int s = 0; s < SIZE / 2; s++)
                        copy_or_zeros(stage + ((half * 2 * TILES + i) * (SIZE / 2) + s) * 32 +
                                          threadIdx.x % 32,
                                      row[i] + (int64_t)(k < j.stride ? k : 0) * SIZE + 16 * s, k < j.stride);
            }
        }
    }
    __device__ __forceinline__ void step(const float_job &j) {
        if (++slab < SLABS)
            return;
        slab = 0;
        chunk += WARPS;
        if (chunk < j.n_chunk)
            return;
        chunk = threadIdx.x / 32;
        unit += gridDim.x;
        if (unit >= j.n_unit)
            launch_next();
    }
    /* Starts copying the next chunk; an empty group of copies if there is none. */
    __device__ __forceinline__ void ask(const float_job &j) {
        if (unit < j.n_unit) {
            uint4 *const stage = to + put * STAGE;
            put = put + 1 == j.depth ? 0 : put + 1;
            copy(j, stage);
            const int before = unit;
            step(j);
            if (unit < j.n_unit && (SLABS > 1 || unit != before))
                rows_find<TILES, SLABS>(j, unit, slab, row);
        }
        copies_end_group();
    }
    /* Waits for the pieces of the oldest chunk and returns them. */
    template <int DEPTH> __device__ __forceinline__ const uint4 *take(const float_job &j) {
        if (j.depth == DEPTH)
            copies_wait<DEPTH - 1>();
        else
            copies_wait<0>();
        const uint4 *const stage = to + get * STAGE;
        get = get + 1 == j.depth ? 0 : get + 1;
        return stage;
    }
};

/* The number of a warp's stages with which two blocks fit a multiprocessor of sm_90. Devices with less memory
 * have fewer. */
template <int TYPE, int EIGHTS, int TILES> __host__ __device__ constexpr int float_depth() {
    return float_parts<TYPE>::SCALED              ? 8
           : float_parts<TYPE>::SIZE * TILES == 2 ? 5
           : TILES == 1 || EIGHTS == 1            ? 3
                                                  : 2;
}

/* Loads a lane's part of eight rows from row 8 e on: [32 of K][part]; zeros for missing rows. own: the parts
 * of the only row, in shared memory; or NULL. */
template <int PARTS>
__device__ __forceinline__ void parts_load(const float_job &j, const uint4 *own, int chunk, int e,
                                           uint4 (&b)[2][PARTS]) {
    const int lane = threadIdx.x % 32, row = 8 * e + lane / 4;
    const int64_t at = ((int64_t)(chunk * 2 * PARTS) * j.n_row + row) * 4 + lane % 4;
#pragma unroll
    for (int i = 0; i < 2 * PARTS; i++) {
        uint4 x = make_uint4(0, 0, 0, 0);
        if (row < j.n_row)
            x = own ? own[at + i * 4] : __ldcg(j.parts + at + (int64_t)i * j.n_row * 4);
        b[i / PARTS][i % PARTS] = x;
    }
}

/* A lane's weights of a stage, and their scales. KEEP: in registers; otherwise each use reads shared memory.
 */
template <int TYPE, int TILES, bool KEEP> struct stage_weights {
    enum { SIZE = float_parts<TYPE>::SIZE, SCALED = float_parts<TYPE>::SCALED, HELD = SCALED || KEEP };
    const uint4 *stage;
    float_weights<TYPE> held[HELD ? 2 : 1][HELD ? 2 * TILES : 1];
    float scale[2 * TILES];

    __device__ __forceinline__ float_weights<TYPE> read(int half, int i) const {
        float_weights<TYPE> w;
        w.set(stage + (half * 2 * TILES + i) * (SIZE / 2) * 32 + threadIdx.x % 32);
        return w;
    }
    __device__ __forceinline__ void begin(const uint4 *from) {
        stage = from;
#pragma unroll
        for (int i = 0; i < 2 * TILES; i++)
            if constexpr (SCALED) {
                float_weights<TYPE> both[2];
                scale[i] = block_unpack<TYPE>(
                    (const uint32_t *)stage + i * 32 * SCALED_WORDS + threadIdx.x % 32, both);
                held[0][i] = both[0];
                held[1][i] = both[1];
            } else if constexpr (KEEP) {
                held[0][i] = read(0, i);
                held[1][i] = read(1, i);
            }
    }
    __device__ __forceinline__ float_weights<TYPE> get(int half, int i) const {
        if constexpr (HELD)
            return held[half][i];
        else
            return read(half, i);
    }
    /* total += the sums of the stage's 64 of K with eight rows. */
    template <int PARTS>
    __device__ __forceinline__ void add(const uint4 (&b)[2][PARTS], float (&total)[TILES][4]) const {
        float d[TILES][4] = {};
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int i = 0; i < TILES; i++)
                float_mma<TYPE>(d[i], get(half, 2 * i), get(half, 2 * i + 1), b[half]);
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
            for (int c = 0; c < 4; c++)
                total[i][c] =
                    __fadd_rn(total[i][c], SCALED ? __fmul_rn(d[i][c], scale[2 * i + c / 2]) : d[i][c]);
    }
};

/* Multiplies the next chunk with many rows: total[slab][eight rows][tile] += its sums. Rows are loaded while
 * the lane waits for the chunk, and while the previous eight are multiplied. */
template <int TYPE, int EIGHTS, int TILES>
__device__ __forceinline__ void chunk_add(const float_job &j, float_feed<TYPE, TILES, 1> *feed, int chunk,
                                          float (&total)[1][EIGHTS][TILES][4]) {
    enum { PARTS = float_parts<TYPE>::X };
    stage_weights<TYPE, TILES, true> a;
    uint4 b[2][2][PARTS];
    parts_load<PARTS>(j, nullptr, chunk, 0, b[0]);
    a.begin(feed->template take<float_depth<TYPE, EIGHTS, TILES>()>(j));
#pragma unroll
    for (int e = 0; e < EIGHTS; e++) {
        if (8 * e >= j.n_row)
            break;
        if (e + 1 < EIGHTS && 8 * e + 8 < j.n_row)
            parts_load<PARTS>(j, nullptr, chunk, e + 1, b[(e + 1) % 2]);
        a.template add<PARTS>(b[e % 2], total[0][e]);
    }
    if (ring_ahead())
        feed->ask(j);
}

/* The same with up to 16 rows, which a lane has loaded: b. They serve all slabs of the unit. */
template <int TYPE, int EIGHTS, int TILES, int SLABS, int PARTS>
__device__ __forceinline__ void chunk_add_few(const float_job &j, float_feed<TYPE, TILES, SLABS> *feed,
                                              const uint4 (&b)[EIGHTS][2][PARTS],
                                              float (&total)[SLABS][EIGHTS][TILES][4]) {
#pragma unroll
    for (int s = 0; s < SLABS; s++) {
        stage_weights<TYPE, TILES, false> a;
        if (s > 0 && !ring_ahead())
            feed->ask(j);
        a.begin(feed->template take<float_depth<TYPE, EIGHTS, TILES>()>(j));
#pragma unroll
        for (int e = 0; e < EIGHTS; e++)
            a.template add<PARTS>(b[e], total[s][e]);
        if (ring_ahead())
            feed->ask(j);
    }
}

/* The warps' sums of 8 or 16 rows: [warp][column][output]. LINE places the lanes' elements in different
 * banks. */
template <int TILES, int COLUMNS> struct float_sums {
    enum { LINE = 16 * TILES + 4 };
    float of[WARPS][COLUMNS][LINE];
};
template <int TILES, int COLUMNS>
__device__ __forceinline__ float sums_join(const float_sums<TILES, COLUMNS> &sums, int column, int output) {
    float v = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; w++)
        v = __fadd_rn(v, sums.of[w][column][output]);
    return v;
}

/* Writes the results of a slab's rows from `row0` on, by all threads of the block. */
template <int TILES, int SLABS, int COLUMNS>
__device__ __forceinline__ void float_write(const float_job &j, bool owns, float own_factor, int unit,
                                            int slab, int row0, const float_sums<TILES, COLUMNS> &sums) {
    const int each = j.gated ? 8 * TILES : 16 * TILES, n = min(COLUMNS, j.n_row - row0);
    const int m = j.gated ? 0 : matrix_of(j, unit);
    const int first = ((unit - (j.gated ? 0 : j.first[m])) * SLABS + slab) * each;
    for (int o = threadIdx.x; o < each * n; o += FLOAT_THREADS) {
        const int output = o % each, column = o / each, row = row0 + column, at = first + output;
        if (at >= j.n[m])
            continue;
        const float factor = owns ? own_factor : __ldcg(j.factor + row);
        auto value = [&](int line, int matrix) {
            const float v = __fmul_rn(sums_join(sums, column, line), factor);
            return j.bias[matrix] ? __fadd_rn(v, j.bias[matrix][at]) : v;
        };
        float v = value(j.gated ? output / 8 * 16 + output % 8 : output, m);
        if (j.gated)
            v = __fmul_rn(act_value(j.act, v), value(output / 8 * 16 + output % 8 + 8, 1));
        else if (j.acts)
            v = act_value(j.act, v);
        float *const y = j.y[m] + row * j.ldy[m] + at;
        *y = j.adds ? __fadd_rn(*y, v) : v;
    }
}

/* The sums of a unit's chunks, by a warp. own: as in parts_load. */
template <int TYPE, int EIGHTS, int TILES, int SLABS>
__device__ __forceinline__ void unit_sum(const float_job &j, const uint4 *own,
                                         float_feed<TYPE, TILES, SLABS> *feed,
                                         float (&total)[SLABS][EIGHTS][TILES][4]) {
    enum { PARTS = float_parts<TYPE>::X };
    const int warp = threadIdx.x / 32;
    if constexpr (EIGHTS > 2) {
        for (int chunk = warp; chunk < j.n_chunk; chunk += WARPS) {
            if (!ring_ahead())
                feed->ask(j);
            chunk_add<TYPE, EIGHTS, TILES>(j, feed, chunk, total);
        }
    } else {
        enum { AHEAD = SLABS == 1 && PARTS == 2 /* there are registers for the next chunk's rows */ };
        uint4 b[EIGHTS][2][PARTS], next[EIGHTS][2][PARTS];
        auto load = [&](int chunk, uint4(&to)[EIGHTS][2][PARTS]) {
#pragma unroll
            for (int e = 0; e < EIGHTS; e++)
                parts_load<PARTS>(j, own, chunk, e, to[e]);
        };
        if (AHEAD && warp < j.n_chunk)
            load(warp, next);
        for (int chunk = warp; chunk < j.n_chunk; chunk += WARPS) {
            if (!ring_ahead())
                feed->ask(j);
            if (AHEAD) {
                memcpy(b, next, sizeof b);
                if (chunk + WARPS < j.n_chunk)
                    load(chunk + WARPS, next);
            } else
                load(chunk, b);
            chunk_add_few<TYPE, EIGHTS, TILES, SLABS, PARTS>(j, feed, b, total);
        }
    }
}

/* OWN: every block splits the only row, which a launch before has not done. */
template <int TYPE, int EIGHTS, int TILES, int SLABS, bool OWN>
__global__ void __launch_bounds__(FLOAT_THREADS, 2) linear_float(const __grid_constant__ float_job j) {
    enum { GROUP = EIGHTS < 2 ? EIGHTS : 2 /* groups of eight rows that are joined at once */ };
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ float_sums<TILES, 8 * GROUP> sums;
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    float_feed<TYPE, TILES, SLABS> feed;
    feed.begin(j, (uint4 *)shared);
    for (int i = 0; i < j.depth && ring_ahead(); i++)
        feed.ask(j);
    launch_wait();
    uint4 *const own =
        OWN ? (uint4 *)shared + WARPS * j.depth * float_feed<TYPE, TILES, SLABS>::STAGE : nullptr;
    const float factor = OWN ? own_split<float_parts<TYPE>::AS>(j, own) : 0.0f;
    for (int unit = blockIdx.x; unit < j.n_unit; unit += gridDim.x) {
        float total[SLABS][EIGHTS][TILES][4];
#pragma unroll
        for (int i = 0; i < SLABS * TILES * EIGHTS * 4; i++)
            ((float *)total)[i] = 0.0f;
        unit_sum<TYPE, EIGHTS, TILES, SLABS>(j, own, &feed, total);
#pragma unroll
        for (int s = 0; s < SLABS; s++)
#pragma unroll
            for (int e0 = 0; e0 < EIGHTS; e0 += GROUP) {
                if (e0 * 8 >= j.n_row)
                    break;
#pragma unroll
                for (int e = e0; e < e0 + GROUP; e++)
#pragma unroll
                    for (int i = 0; i < TILES; i++)
#pragma unroll
                        for (int c = 0; c < 4; c++)
                            sums.of[warp][(e - e0) * 8 + 2 * t + c % 2][16 * i + g + c / 2 * 8] =
                                total[s][e][i][c];
                __syncthreads();
                float_write<TILES, SLABS>(j, OWN, factor, unit, s, 8 * e0, sums);
                __syncthreads();
            }
    }
}

/* ---- launching ---- */

/* Products of one row with so few units split it in every block. With more, the split would take more time
 * than a launch. */
enum { OWN_UNITS = 32 };

static int64_t float_pad(int64_t k) {
    return (k + FLOAT_CHUNK - 1) / FLOAT_CHUNK * FLOAT_CHUNK;
}
size_t float_scratch(int64_t n_row, int64_t k) {
    enum { MAX_PARTS = 3 };
    return (size_t)(n_row < CUDA_MAX_ROWS ? n_row : CUDA_MAX_ROWS) *
           ((size_t)float_pad(k) * MAX_PARTS * sizeof(uint16_t) + sizeof(float));
}

/* The number of blocks that run at once. Two a multiprocessor are faster than one that leaves resources for a
 * block of the next launch. */
static int float_blocks() {
    return 2 * device_sm_count();
}

template <int TYPE, int EIGHTS, int TILES, int SLABS = 1> static int float_run(float_job *j, cuda_stream s) {
    const int max_blocks = float_blocks(), blocks = j->n_unit < max_blocks ? j->n_unit : max_blocks;
    enum {
        STAGE = WARPS * float_feed<TYPE, TILES, SLABS>::STAGE * (int)sizeof(uint4),
        DEPTH = float_depth<TYPE, EIGHTS, TILES>()
    };
    using sums = float_sums<TILES, EIGHTS == 1 ? 8 : 16>;
    const int own = j->n_chunk * FLOAT_CHUNK * float_parts<TYPE>::X * (int)sizeof(uint16_t),
              fit = (device_shared_bytes() - (int)sizeof(sums)) / STAGE;
    j->depth = device_major() < 8 ? 1 : fit < DEPTH ? fit : (int)DEPTH;
    if constexpr (EIGHTS * TILES * SLABS == 1) {
        const size_t bytes = (size_t)j->depth * STAGE + (size_t)own;
        constexpr auto kernel = linear_float<TYPE, 1, 1, 1, true>;
        if (j->n_row == 1 && !j->centred && j->k <= OWN_SPLIT && j->n_unit <= OWN_UNITS &&
            bytes + sizeof(sums) + 1024 <= (size_t)device_shared_bytes()) {
            const int e = prepare(kernel, bytes);
            return e ? e : launch(kernel, dim3((unsigned)blocks), dim3(FLOAT_THREADS), bytes, s, *j);
        }
    }
    constexpr auto split = split_rows<float_parts<TYPE>::AS>;
    constexpr auto kernel = linear_float<TYPE, EIGHTS, TILES, SLABS, false>;
    int e = prepare(split, 0);
    e = e ? e : prepare(kernel, (size_t)j->depth * STAGE);
    e = e ? e : launch(split, dim3((unsigned)j->n_row), dim3(SPLIT_THREADS), 0, s, *j);
    return e ? e
             : launch(kernel, dim3((unsigned)blocks), dim3(FLOAT_THREADS), (size_t)j->depth * STAGE, s, *j);
}

/* Cuts the outputs into units of `tiles` times 16. Returns their number for each multiprocessor. */
static double float_units(const cuda_linear *a, int tiles, float_job *j) {
    j->n_unit = units_set(a, (a->gated ? 8 : 16) * tiles, j);
    return (double)j->n_unit / device_sm_count();
}

template <int TYPE> static int float_rows(const cuda_linear *a, float_job *j, cuda_stream s) {
    /* Larger units read the rows less often. They are faster if most multiprocessors have two: on an H200,
     * with 10 rows of 4,096, 12,288 outputs take 32.9 us in units of 64 and 35.5 in units of 16, 4,096
     * take 20.5 and 15.4. */
    constexpr int TALL = TYPE == TYPE_F32 || float_parts<TYPE>::SCALED ? 1 : 2, SLABS = TALL;
    const double ENOUGH = 1.4;
    int tiles = j->n_row <= 16 ? TALL * SLABS : TALL;
    while (tiles > 1 && float_units(a, tiles, j) < ENOUGH)
        tiles /= 2;
    float_units(a, tiles, j);
    if (j->n_row <= 8)
        return tiles > TALL ? float_run<TYPE, 1, TALL, SLABS>(j, s)
               : tiles > 1  ? float_run<TYPE, 1, TALL>(j, s)
                            : float_run<TYPE, 1, 1>(j, s);
    if (j->n_row <= 16)
        return tiles > TALL ? float_run<TYPE, 2, TALL, SLABS>(j, s)
               : tiles > 1  ? float_run<TYPE, 2, TALL>(j, s)
                            : float_run<TYPE, 2, 1>(j, s);
    return tiles > 1 ? float_run<TYPE, 8, TALL>(j, s) : float_run<TYPE, 8, 1>(j, s);
}

static int float_job_make(const cuda_linear *a, float_job *j) {
    const view *w = &a->w[0];
    *j = float_job{};
    if (!matrices_are(a) || w->format.layout != PACK_ROWS || w->k < 1 || w->k > INT32_MAX / 2 ||
        a->n_row < 1 || a->codes || a->leaves.data || (a->centred && w->k > CUDA_MAX_CENTRED))
        return CUDA_UNSUPPORTED;
    for (int i = 0; i < a->n_w; i++)
        if (a->w[i].format.layout != PACK_ROWS || a->w[i].format.type != w->format.type || a->w[i].k != w->k)
            return CUDA_UNSUPPORTED;
    matrices_set(a, 1, j); /* float_units has the units */
    j->stride = (int)rows_stride(w->k);
    j->row_bytes = rows_bytes(w->format.type, w->k);
    j->k = (int)w->k;
    j->n_chunk = (int)(float_pad(w->k) / FLOAT_CHUNK);
    j->act = a->act;
    j->gated = a->gated;
    j->acts = a->acts;
    j->adds = a->adds;
    j->norm = a->norm;
    j->centred = a->centred;
    j->shift = a->centred ? a->shift : NULL;
    j->eps = a->eps;
    j->ldx = a->ldx;
    return 0;
}

int float_launch(const cuda_linear *a, cuda_stream s) {
    float_job j;
    int e = float_job_make(a, &j);
    for (int64_t first = 0; first < a->n_row && !e; first += CUDA_MAX_ROWS) {
        j.n_row = (int)(a->n_row - first < CUDA_MAX_ROWS ? a->n_row - first : (int64_t)CUDA_MAX_ROWS);
        j.x = a->x + first * a->ldx;
        for (int i = 0; i < a->n_w; i++)
            j.y[i] = a->y[i] + first * a->ldy[i];
        j.parts = (uint4 *)a->scratch;
        j.factor = (float *)((uint8_t *)a->scratch +
                             (size_t)j.n_row * float_pad(j.k) * 3 * sizeof(uint16_t)); /* float_scratch */
        switch (a->w[0].format.type) {
        case TYPE_F16: e = float_rows<TYPE_F16>(a, &j, s); break;
        case TYPE_BF16: e = float_rows<TYPE_BF16>(a, &j, s); break;
        case TYPE_F32: e = float_rows<TYPE_F32>(a, &j, s); break;
        case TYPE_F8G64: e = float_rows<TYPE_F8G64>(a, &j, s); break;
        case TYPE_F4G64: e = float_rows<TYPE_F4G64>(a, &j, s); break;
        default: e = CUDA_UNSUPPORTED;
        }
    }
    return e;
}
