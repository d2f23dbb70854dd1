/* linear.cu - products of 1 to 16 columns at a time with G-tile matrices, and the choice of the kernel; see
 * linear.cuh. */
#include "kernels/cuda/linear_one.cuh"

/* ---- one row ----
 *
 * The launch before has left the row's codes, or every block quantizes the row itself, after its first
 * weights are on their way: a kernel of its own for it would cost more. Of the instruction's 8 columns,
 * column c holds the chunk's c-th 32 of K and zeros elsewhere: so all products of a chunk may go to one
 * accumulator, and its columns are the 8 sums that groups need apart. There are two, for the halves of tiles,
 * because an instruction waits for the one before it. */

/* Panels whose sums wait in shared memory until all threads finish them: no warp waits for another between.
 */
enum { ONE_PANELS = 16 };

/* Panel q's code books. */
template <int TABLE> __device__ __forceinline__ const uint8_t *book_at(const linear_job &j, int q) {
    return TABLE == TABLE_BOOK ? panel_at(j, q) + j.tail_at + TILE_LINE : nullptr;
}

/* The same where groups have a half each and no minimum, as most formats do, in a third of the instructions:
 * scales of all slices and rows by one load, differences as the bits of floats. */
template <int BITS> struct plain_chunk {
    tile_lane<BITS> v[TILE_CHUNK];
    uint32_t w[2]; /* of rows g and g + 8: slices 2t and 2t + 1 */
    uint4 m;       /* their slice_meta */
    uint2 mine;
};
/* What a lane needs of a chunk but its tiles; scales: the lane's address for matrices_load. */
template <int BITS>
__device__ __forceinline__ void plain_begin(plain_chunk<BITS> *c, uint32_t scales, uint2 mine,
                                            const slice_meta *metas) {
    c->m = *(const uint4 *)(metas + 2 * (threadIdx.x % 4));
    c->mine = mine;
    matrices_load(c->w, scales);
}
template <int BITS>
__device__ __forceinline__ void plain_tile(plain_chunk<BITS> *c, const uint8_t *stage, int i) {
    tile_load(&c->v[i], stage + i * BITS * 128, threadIdx.x % 32);
}
template <int BITS>
__device__ __forceinline__ void plain_mma(const plain_chunk<BITS> &c, int i, int d[2][4]) {
    const int g = threadIdx.x % 32 / 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const bool here = g == 2 * i + h;
        tile_mma(c.v[i], h, d[h], here ? c.mine.x : 0, here ? c.mine.y : 0);
    }
}
template <int BITS>
__device__ __forceinline__ void plain_add(const plain_chunk<BITS> &c, const int d[2][4], int n_tile,
                                          float sum[2]) {
    enum { ZERO = 1 << BITS >> 1, MAGIC = 0x4b400000 /* CODE_MAGIC */ };
    const int off[2] = {MAGIC - ZERO * (int)c.m.y, MAGIC - ZERO * (int)c.m.w};
    const bool there = (int)threadIdx.x % 4 < n_tile;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float2 s = floats_of(c.w[r]);
        const int d0 = d[0][2 * r], d1 = d[1][2 * r + 1] >> tile_excess<BITS>(1);
        const float x0 = __fsub_rn(__int_as_float(d0 + off[0]), CODE_MAGIC);
        const float x1 = __fsub_rn(__int_as_float(d1 + off[1]), CODE_MAGIC);
        const float one = __fmaf_rn(__fmul_rn(x0, s.x), __uint_as_float(c.m.x), sum[r]);
        const float more = __fmaf_rn(__fmul_rn(x1, s.y), __uint_as_float(c.m.z), one);
        sum[r] = there ? more : sum[r];
    }
}

/* A warp's chunks of a panel. Codes of up to 4 bits are in registers before they are multiplied, so their
 * stage is filled again at once. */
template <int BITS>
__device__ __forceinline__ void plain_panel(const linear_job &j, chunk_feed *feed, ring *r,
                                            const uint2 *codes, const slice_meta *meta, int lane_scale,
                                            float sum[2]) {
    for (int n = threadIdx.x / 32 % WARPS; n < j.n_chunk; n += WARPS) {
        const int n_tile = n == j.n_chunk - 1 ? j.last_tiles : TILE_CHUNK;
        const uint2 mine = codes[n * 32 + threadIdx.x % 32];
        plain_chunk<BITS> c;
        int d[2][4] = {};
        const uint8_t *stage = ring_get(r);
        plain_begin(&c, shared_address(stage) + n_tile * BITS * 128 + lane_scale, mine, meta + n * 8);
#pragma unroll
        for (int i = 0; i < TILE_CHUNK; i++) {
            plain_tile(&c, stage, i);
            if (BITS > 4)
                plain_mma(c, i, d);
        }
        __syncwarp();
        feed_put(j, feed, r);
#pragma unroll
        for (int i = 0; BITS <= 4 && i < TILE_CHUNK; i++)
            plain_mma(c, i, d);
        plain_add(c, d, n_tile, sum);
    }
}

/* The same of chunks of 8 bits in two pieces. */
__device__ __forceinline__ void plain_panel_pieces(const linear_job &j, chunk_feed *feed, ring *r,
                                                   const uint2 *codes, const slice_meta *meta, int lane_scale,
                                                   float sum[2]) {
    for (int n = threadIdx.x / 32 % WARPS; n < j.n_chunk; n += WARPS) {
        const uint2 mine = codes[n * 32 + threadIdx.x % 32];
        plain_chunk<8> c;
        int d[2][4] = {};
#pragma unroll
        for (int piece = 0; piece < 2; piece++) {
            const uint8_t *stage = ring_get(r);
            if (piece)
                plain_begin(&c, shared_address(stage) + CHUNK_PIECE + lane_scale, mine, meta + n * 8);
            c.mine = mine;
#pragma unroll
            for (int i = 0; i < 2; i++)
                tile_load(&c.v[2 * piece + i], stage + i * 1024, threadIdx.x % 32);
            __syncwarp();
            feed_put<true>(j, feed, r);
#pragma unroll
            for (int i = 0; i < 2; i++)
                plain_mma(c, 2 * piece + i, d);
        }
        plain_add(c, d, TILE_CHUNK, sum);
    }
}

/* What stands behind the rings: the row, and what outputs want. */
static size_t one_bytes(const linear_job &j) {
    const int blocks = j.n_unit < device_sm_count() ? j.n_unit : device_sm_count();
    const bool ahead = j.adds || j.leaves.norm;
    const int panels = ahead ? (j.n_unit + blocks - 1) / blocks << j.paired : 0; /* of outputs */
    return (size_t)j.k_pad + (size_t)(j.k_pad / j.slice) * sizeof(slice_meta) +
           (size_t)(panels < ONE_PANELS ? panels : ONE_PANELS) * PACK_PANEL * sizeof(output_ahead);
}

template <int BITS, bool HALVES, int TABLE = TABLE_NONE>
__global__ void __launch_bounds__(THREADS, 2) linear_one(const __grid_constant__ linear_job j) {
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ uint64_t bars[ALL_WARPS][MAX_STAGES];
    __shared__ float partial[ONE_PANELS][WARPS][PACK_PANEL];
    __shared__ row_sums sums;
    enum { SLICES = HALVES ? 16 : 8 /* of a chunk */ };
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % WARPS, team = threadIdx.x / 32 / WARPS;
    const int ring_bytes = j.depth * j.stage_bytes, n_panel = panel_count(j);
    uint32_t *const codes = (uint32_t *)(shared + ALL_WARPS * ring_bytes);
    slice_meta *const meta = (slice_meta *)(codes + j.k_pad / 4);
    output_ahead *const ahead = (output_ahead *)(meta + j.k_pad / j.slice);
    const bool plain = ring_ahead() && !HALVES && TABLE == TABLE_NONE && j.scale_kind == SCALE_HALF;
    const int lane_scale = (lane % 8 >> j.group_shift) * 32 + lane / 8 % 2 * 16; /* matrices_load */
    ring r;
    chunk_feed feed = feed_begin(j, n_panel);
    ring_init(&r, shared + threadIdx.x / 32 * ring_bytes, bars[threadIdx.x / 32], j.depth, j.stage_bytes);
    for (int i = 0; ring_ahead() && i < j.depth; i++)
        if (BITS == 8 && j.pieces)
            feed_put<true>(j, &feed, &r);
        else
            feed_put(j, &feed, &r);
    if (j.leaves
            .codes) /* a product comes next: it may ask for its weights at once; attention had better not */
        launch_next();
    for (int i = 32 * threadIdx.x; j.norm && !j.coded && !j.left.floats && i < j.k; i += 32 * THREADS)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(j.norm + i));
    launch_wait();
    if (j.coded)
        coded_begin(j, (uint8_t *)codes);
    outputs_ahead(j, 0, min(ONE_PANELS, n_panel), ahead);
    if (j.coded)
        coded_end(j, &sums);
    else if (j.left.floats) {
        quantize_left(j, codes, meta);
        squares_take(j, j.left.squares, &sums);
        __syncthreads();
    } else
        quantize_row<false>(row_of(j, j.x), one_store{codes, meta}, &sums);
    for (int q0 = 0; q0 < n_panel; q0 += ONE_PANELS) {
        const int n_here = min(ONE_PANELS, n_panel - q0);
        for (int q = team; q < n_here; q += TEAMS) {
            float sum[2] = {0.0f, 0.0f};
            lane_tables<TABLE> tables;
            tables_load<BITS>(&tables, j.table, book_at<TABLE>(j, q0 + q));
            if (BITS == 8 && j.pieces)
                plain_panel_pieces(j, &feed, &r, (const uint2 *)codes, meta, lane_scale, sum);
            else if (plain)
                plain_panel<BITS>(j, &feed, &r, (const uint2 *)codes, meta, lane_scale, sum);
            for (int c = warp; !plain && c < j.n_chunk; c += WARPS) {
                if (!ring_ahead())
                    feed_put(j, &feed, &r);
                const uint8_t *stage = ring_get(&r);
                one_chunk<BITS, HALVES>(j, stage, ((const uint2 *)codes)[c * 32 + lane], meta + c * SLICES,
                                        c == j.n_chunk - 1 ? j.last_tiles : TILE_CHUNK, tables, sum,
                                        ring_ahead());
                __syncwarp();
                if (ring_ahead())
                    feed_put(j, &feed, &r);
            }
#pragma unroll
            for (int i = 0; i < 2; i++) {
                sum[i] = __fadd_rn(sum[i], __shfl_xor_sync(~0u, sum[i], 1));
                sum[i] = __fadd_rn(sum[i], __shfl_xor_sync(~0u, sum[i], 2));
                if (lane % 4 == 0)
                    partial[q][warp][lane / 4 + 8 * i] = sum[i];
            }
        }
        __syncthreads();
        const one_facts facts = {j.norm ? row_factor(j, &sums) : 1.0f,
                                 j.tail && j.asym ? row_lift(j, &sums, 0) : 0.0f};
        outputs_write<1>(j, q0, n_here, partial[0][0], facts, ahead);
        outputs_ahead(j, q0 + n_here, min(ONE_PANELS, n_panel - q0 - n_here), ahead);
        __syncthreads();
    }
}

/* ---- several columns ----
 *
 * A column is a row of x, or one of the two rows of codes that stand for it. They are quantized by a kernel
 * before, in the order in which lanes want them: for each tile and each 8 columns, 16 bytes a lane. */

struct many_store {
    uint32_t *where;
    void *meta; /* a float2 each, or a float */
    int n_eight, column;
    meta_order order;
    __device__ void codes(int row, int k, uint2 u) {
        const int quad = k / 4 % 8, col = column + row, lanes = order == META_FOUR ? 16 : 32;
        const int apart = order == META_RECORDS ? k / TILE_CHUNK_K * 64 * n_eight : 0;
        uint32_t *to = where + apart + ((k / 64 * n_eight + col / 8) * lanes + col % 8 * 4) * 4 +
                       k / 32 % 2 * 2 + quad / 4;
        to[quad % 4 * 4] = u.x;
        to[quad % 4 * 4 + 4] = u.y;
    }
    __device__ void slice(int row, int i, slice_meta m) {
        const int col = column + row, at = i * 8 * n_eight + col, pairs = order == META_FOUR ? 2 : 4;
        if (order == META_SUMS)
            ((float2 *)meta)[at] = make_float2(m.scale, __int_as_float(m.sum));
        else {                                                                   /* over 16: nibbles.cuh */
            const int apart = order == META_RECORDS ? i / 8 * 512 * n_eight : 0; /* codes of the chunks */
            ((float *)
                 meta)[order == META_PLAIN ? at
                                           : apart + ((i / 2 * n_eight + col / 8) * pairs + col % 8 / 2) * 4 +
                                                 i % 2 * 2 + col % 2] = __fmul_rn(m.scale, 0.0625f);
        }
    }
};

struct many_facts {
    const float *factors, *lifts;
    __device__ float factor(int column) const {
        return factors[column];
    }
    __device__ float lift(int column) const {
        return lifts[column];
    }
};

/* What block y of a row's quantizes. */
__device__ __forceinline__ row_job row_piece(const linear_job &j, const float *x) {
    row_job row = row_of(j, x);
    if (gridDim.y > 1) {
        row.begin = blockIdx.y * EIGHT_STEP;
        row.end = min(row.begin + EIGHT_STEP, j.k_pad);
    }
    return row;
}
static int row_pieces(const linear_job &j) {
    return j.norm || !j.act_group ? 1 : (j.k_pad + EIGHT_STEP - 1) / EIGHT_STEP;
}

/* What the scratch of a product holds. */
struct many_scratch {
    size_t meta, factor, lift, bytes;
};
static __host__ __device__ many_scratch many_layout(int64_t k_pad, int n_eight) {
    many_scratch s;
    s.meta = (size_t)(k_pad * 8 * n_eight);
    s.factor = s.meta + (size_t)(k_pad / 16 * 8 * n_eight) * sizeof(float2);
    s.lift = s.factor + 8 * n_eight * sizeof(float);
    s.bytes = s.lift + 8 * n_eight * sizeof(float);
    return s;
}

template <bool TWO>
__global__ void __launch_bounds__(THREADS) quantize_many(const __grid_constant__ linear_job j, int n_eight,
                                                         meta_order order, int64_t ldx, uint8_t *scratch) {
    __shared__ row_sums sums;
    const many_scratch at = many_layout(j.k_pad, n_eight);
    const int each = TWO ? 2 : 1, column = blockIdx.x * each;
    launch_next();
    launch_wait();
    quantize_row<TWO>(row_piece(j, j.x + blockIdx.x * ldx),
                      many_store{(uint32_t *)scratch,
                                 scratch + (order == META_RECORDS ? TILE_CHUNK_K * 8 * n_eight : at.meta),
                                 n_eight, column, order},
                      &sums);
    if (gridDim.y == 1 && threadIdx.x < each) {
        ((float *)(scratch + at.factor))[column + threadIdx.x] = row_factor(j, &sums);
        ((float *)(scratch + at.lift))[column + threadIdx.x] = row_lift(j, &sums, threadIdx.x);
    }
}

/* A slice's dots of 2 rows x 2 columns into their sums. */
__device__ __forceinline__ void four_add(const linear_job &j, float2 w0, float2 w1, const int d[4],
                                         int excess, float4 m, float sum[4]) {
    const slice_meta a = {m.x, __float_as_int(m.y)}, b = {m.z, __float_as_int(m.w)};
    sum[0] = slice_add(j, w0, d[0] >> excess, a, sum[0]);
    sum[1] = slice_add(j, w0, d[1] >> excess, b, sum[1]);
    sum[2] = slice_add(j, w1, d[2] >> excess, a, sum[2]);
    sum[3] = slice_add(j, w1, d[3] >> excess, b, sum[3]);
}

/* Panels between two waits of all warps, times groups of eight columns. */
enum { MANY_PANELS = 2 * TEAMS };
/* Scale and minimum of each slice of every warp's chunk; the warps' sums. Behind the rings. */
static constexpr size_t many_bytes(bool halves) {
    return ALL_WARPS * (halves ? 16 : 8) * PACK_PANEL * sizeof(float2) +
           MANY_PANELS * WARPS * PACK_PANEL * 8 * sizeof(float);
}

template <int BITS, int EIGHTS, bool HALVES, int TABLE = TABLE_NONE>
__global__ void __launch_bounds__(THREADS, 1) linear_many(const __grid_constant__ linear_job j) {
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ uint64_t bars[ALL_WARPS][MAX_STAGES];
    enum { COLUMNS = 8 * EIGHTS, SLICES = HALVES ? 16 : 8 /* of a chunk */, PANELS = MANY_PANELS / EIGHTS };
    enum { CODE = code_bits<BITS, TABLE>() };
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % WARPS, team = threadIdx.x / 32 / WARPS;
    const int g = lane / 4, t = lane % 4, ring_bytes = j.depth * j.stage_bytes, n_panel = panel_count(j);
    auto *const weights =
        (float2(*)[PACK_PANEL])(shared + ALL_WARPS * ring_bytes) + threadIdx.x / 32 * SLICES;
    auto *const partial = (float(*)[WARPS][PACK_PANEL][COLUMNS])(
        shared + ALL_WARPS * ring_bytes + ALL_WARPS * SLICES * PACK_PANEL * sizeof(float2));
    ring r;
    chunk_feed feed = feed_begin(j, n_panel);
    ring_init(&r, shared + threadIdx.x / 32 * ring_bytes, bars[threadIdx.x / 32], j.depth, j.stage_bytes);
    for (int i = 0; ring_ahead() && i < j.depth; i++)
        feed_put(j, &feed, &r);
    launch_wait();
    for (int q0 = 0; q0 < n_panel; q0 += PANELS) {
        const int n_here = min((int)PANELS, n_panel - q0);
        for (int q = team; q < n_here; q += TEAMS) {
            float sum[TILE_CHUNK][EIGHTS][4];
            lane_tables<TABLE> tables;
            tables_load<BITS>(&tables, j.table, book_at<TABLE>(j, q0 + q));
#pragma unroll
            for (int i = 0; i < TILE_CHUNK * EIGHTS * 4; i++)
                ((float *)sum)[i] = 0.0f;
            for (int c = warp; c < j.n_chunk; c += WARPS) {
                if (!ring_ahead())
                    feed_put(j, &feed, &r);
                const int n_tile = c == j.n_chunk - 1 ? j.last_tiles : TILE_CHUNK;
                const uint4 *codes = j.codes + (int64_t)c * TILE_CHUNK * EIGHTS * 32 + lane;
                const float4 *meta = j.meta + (int64_t)c * SLICES * (COLUMNS / 2) + t;
                uint4 b[TILE_CHUNK][EIGHTS];
#pragma unroll
                for (int i = 0; i < TILE_CHUNK * EIGHTS; i++)
                    ((uint4 *)b)[i] = codes[i * 32];
                const uint8_t *stage = ring_get(&r), *scales = stage + n_tile * BITS * 128;
                int group[SLICES / 2], row[SLICES / 2];
                float2 w[SLICES / 2];
#pragma unroll
                for (int s = 0; s < SLICES / 2; s++) {
                    group[s] = min(2 * s + lane / 16, n_tile * SLICES / TILE_CHUNK - 1) >> j.group_shift;
                    row[s] = lane % 16;
                }
                scales_read<SLICES / 2>(j, scales, group, row, w);
#pragma unroll
                for (int s = 0; s < SLICES / 2; s++)
                    weights[2 * s + lane / 16][lane % 16] = w[s];
                __syncwarp();
#pragma unroll
                for (int i = 0; i < TILE_CHUNK; i++) {
                    if (!ring_ahead() && i >= n_tile)
                        break;
                    tile_lane<CODE> v;
                    tile_take<BITS, TABLE>(&v, stage + i * BITS * 128, lane, tables);
#pragma unroll
                    for (int h = 0; h < 2; h++)
#pragma unroll
                        for (int half = 0; half < (HALVES ? 2 : 1); half++) {
                            const int s = HALVES ? 4 * i + 2 * h + half : 2 * i + h;
                            const float2 w0 = weights[s][g], w1 = weights[s][g + 8];
#pragma unroll
                            for (int e = 0; e < EIGHTS; e++) {
                                const uint32_t b0 = h ? b[i][e].z : b[i][e].x, b1 = h ? b[i][e].w : b[i][e].y;
                                int d[4] = {0, 0, 0, 0};
                                tile_mma(v, h, d, HALVES && half ? 0 : b0, HALVES && !half ? 0 : b1);
                                four_add(j, w0, w1, d, tile_excess<CODE>(h), meta[s * (COLUMNS / 2) + e * 4],
                                         sum[i][e]);
                            }
                        }
                }
                __syncwarp();
                if (ring_ahead())
                    feed_put(j, &feed, &r);
            }
#pragma unroll
            for (int e = 0; e < EIGHTS; e++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    partial[q][warp][g + i / 2 * 8][e * 8 + 2 * t + i % 2] = __fadd_rn(
                        __fadd_rn(sum[0][e][i], sum[1][e][i]), __fadd_rn(sum[2][e][i], sum[3][e][i]));
        }
        __syncthreads();
        outputs_write<COLUMNS>(j, q0, n_here, partial[0][0][0], many_facts{j.factor, j.lift}, nullptr);
        __syncthreads();
    }
}

/* ---- launching ---- */

typedef void (*linear_kernel)(const linear_job);

/* Groups of 16 are what Q2_K, Q3_K and Q6_K have. NULL: there is no such kernel. */
static linear_kernel one_kernel(const pack_format *f) {
    const int bits = f->bits;
    const bool halves = f->group == 16;
    static const linear_kernel all[9] = {nullptr,
                                         nullptr,
                                         linear_one<2, false>,
                                         linear_one<3, false>,
                                         linear_one<4, false>,
                                         linear_one<5, false>,
                                         linear_one<6, false>,
                                         linear_one<7, false>,
                                         linear_one<8, false>};
    if (table_kind_of(f) == TABLE_SHARED)
        return bits == 4 && !halves ? linear_one<4, false, TABLE_SHARED> : nullptr;
    if (table_kind_of(f) == TABLE_BOOK)
        return bits == 4   ? linear_one<4, false, TABLE_BOOK>
               : bits == 3 ? linear_one<3, false, TABLE_BOOK>
                           : nullptr;
    if (!halves)
        return all[bits];
    return bits == 2   ? linear_one<2, true>
           : bits == 3 ? linear_one<3, true>
           : bits == 6 ? linear_one<6, true>
                       : nullptr;
}
template <int EIGHTS> static linear_kernel many_kernel(const pack_format *f) {
    const int bits = f->bits;
    const bool halves = f->group == 16;
    static const linear_kernel all[9] = {nullptr,
                                         nullptr,
                                         linear_many<2, EIGHTS, false>,
                                         linear_many<3, EIGHTS, false>,
                                         linear_many<4, EIGHTS, false>,
                                         linear_many<5, EIGHTS, false>,
                                         linear_many<6, EIGHTS, false>,
                                         linear_many<7, EIGHTS, false>,
                                         linear_many<8, EIGHTS, false>};
    if (table_kind_of(f) == TABLE_SHARED)
        return linear_many<4, EIGHTS, false, TABLE_SHARED>;
    if (table_kind_of(f) == TABLE_BOOK)
        return bits == 4 ? linear_many<4, EIGHTS, false, TABLE_BOOK>
                         : linear_many<3, EIGHTS, false, TABLE_BOOK>;
    if (!halves)
        return all[bits];
    return bits == 2   ? linear_many<2, EIGHTS, true>
           : bits == 3 ? linear_many<3, EIGHTS, true>
           : bits == 6 ? linear_many<6, EIGHTS, true>
                       : nullptr;
}

static int job_blocks(const linear_job &j) {
    return j.n_unit < device_sm_count() ? j.n_unit : device_sm_count();
}

/* The launch leaves codes of its outputs: two panels are a unit then. */
static bool job_leaves(const cuda_linear *a, linear_job *j) {
    if ((a->n_w > 1 && !a->gated) || a->w[0].n % 32 || a->two)
        return false;
    if (a->n_row > 1 && (a->n_row > MAX_LEFT_ROWS || a->w[0].n % TILE_CHUNK_K || a->leaves.group != 32))
        return false;
    if (a->n_row > 1)
        j->leaves_rows = codes_rows_of(a->leaves.data, a->leaves.norm, a->w[0].n, a->n_row);
    else
        j->leaves = codes_of(a->leaves, a->w[0].n);
    j->leaves_group = (int)a->leaves.group;
    j->paired = 1;
    j->n_unit /= 2;
    return true;
}

int linear_job_make(const cuda_linear *a, linear_job *j) {
    const view *w = &a->w[0];
    const pack_format *f = &w->format;
    *j = linear_job{};
    if (a->n_w < 1 || a->n_w > 3 || (a->gated && a->n_w != 2) || f->layout != PACK_TILE ||
        f->packing != PACK_PARTS || w->k < 1 || w->k > MAX_PACK_ROW)
        return CUDA_UNSUPPORTED;
    const int64_t tiles = tile_count(w->k);
    j->n_col = (int)(a->n_row * (a->two ? 2 : 1));
    j->gated = a->gated;
    j->first[1] = j->first[2] = INT32_MAX;
    for (int i = 0; i < a->n_w; i++) {
        j->w[i] = (const uint8_t *)a->w[i].data;
        j->n[i] = (int)a->w[i].n;
        j->bias[i] = a->bias[i];
        j->y[i] = a->y[i];
        j->ldy[i] = a->ldy[i];
        j->first[i] = j->n_unit;
        if (!a->gated || i == 0)
            j->n_unit += (int)((a->w[i].n + PACK_PANEL - 1) / PACK_PANEL);
    }
    if (a->leaves.data && !job_leaves(a, j))
        return CUDA_UNSUPPORTED;
    j->act = a->act;
    j->adds = a->adds;
    j->k = (int)w->k;
    j->n_chunk = (int)((tiles + TILE_CHUNK - 1) / TILE_CHUNK);
    j->k_pad = j->n_chunk * TILE_CHUNK_K;
    j->last_tiles = (int)(tiles - (int64_t)(j->n_chunk - 1) * TILE_CHUNK);
    j->chunk_bytes = (int)tile_chunk_bytes(f, TILE_CHUNK);
    j->last_bytes = (int)tile_chunk_bytes(f, j->last_tiles);
    j->panel_bytes = tile_panel_bytes(f, w->k);
    j->tail_at = tile_tail_at(f, w->k);
    j->tail = j->panel_bytes > j->tail_at;
    if (f->group == PACK_GROUP_ROW)
        j->scale_kind = SCALE_NONE;
    else if (f->scale == PACK_SCALE_F16)
        j->scale_kind = f->asym ? SCALE_HALF_MIN : SCALE_HALF;
    else if (f->scale == PACK_SCALE_SUPER)
        j->scale_kind = f->asym ? SCALE_SUPER_MIN : SCALE_SUPER;
    else
        j->scale_kind = f->scale == PACK_SCALE_E8M0 ? SCALE_E8M0 : SCALE_BYTE;
    j->table = table_shared(f);
    j->asym = f->asym;
    j->zero = tile_zero(f);
    j->scale_start = (int)tile_scale_start(f);
    j->scale_step = (int)tile_scale_step(f);
    j->group = f->group == PACK_GROUP_ROW ? 0 : f->group;
    j->act_group = f->scale == PACK_SCALE_TWO ? 0 : j->group == 16 ? ACT8_GROUP : j->group;
    j->slice = j->group == 16 ? 16 : 32;
    for (int g = j->group; g > j->slice; g /= 2)
        j->group_shift++;
    if (f->scale == PACK_SCALE_ZERO || !one_kernel(f))
        return CUDA_UNSUPPORTED;
    j->top = a->act_bits == 4 ? 7 : 127;
    j->x = a->x;
    j->norm = a->norm;
    j->eps = a->eps;
    j->two = a->two;
    const int blocks = job_blocks(*j);
    j->most = (j->n_unit + blocks - 1) / blocks * (j->gated ? 2 : 1) << j->paired;
    int n_strategy;
    j->by_rule = !a->by || a->by == device_strategies(&n_strategy);
    if (a->n_row > 1 && a->codes && !a->two && j->top == 127)
        j->coded = (const uint8_t *)a->codes;
    const bool takes = j->n_col == 1 && j->slice == 32 && j->top == 127 && a->codes;
    if (takes && (j->act_group == 32 || (j->act_group > 32 && a->codes_whole)))
        j->coded = (const uint8_t *)a->codes;
    else if (takes && j->act_group > 32 && f->bits < 8) /* 8 bits: each block makes them of the row as fast */
        j->left = codes_of({(void *)a->codes, nullptr, j->act_group}, j->k);
    return 0;
}

/* Shared memory and the rings' depth; `others` bytes stand behind the rings.
 *
 * A launch's block and the next launch's should be together on a multiprocessor, but never two of one launch,
 * which would leave another multiprocessor without work. So a launch of many panels takes 11/20 of the memory
 * and one of few, which follows it in a model, 9/20: beside a block of the first fits one of the second, and
 * no other. No warp has more stages than chunks to read. */
size_t linear_shared_bytes(linear_job *j, size_t others, int blocks) {
    enum { OWN = 11776 /* what the driver and static arrays take of a block */, RESERVED = 1024 };
    const int64_t panels = (int64_t)(j->n_unit + blocks - 1) / blocks * (j->gated ? 2 : 1) << j->paired;
    const int64_t most =
        (panels + TEAMS - 1) / TEAMS * ((j->n_chunk + WARPS - 1) / WARPS) * (j->pieces ? 2 : 1);
    const int64_t share = (device_shared_bytes() + RESERVED) * (int64_t)(panels > 2 ? 11 : 9) / 20;
    j->stage_bytes = (j->chunk_bytes - (j->pieces ? CHUNK_PIECE : 0) + 127) / 128 * 128;
    int64_t depth = (share - OWN - (int64_t)others) / (ALL_WARPS * j->stage_bytes);
    depth = depth > MAX_STAGES ? MAX_STAGES : depth < 1 ? 1 : depth;
    j->depth = (int)(depth < most ? depth : most);
    return (size_t)(ALL_WARPS * j->depth * j->stage_bytes) + others;
}

/* Columns that one launch takes: here, with rows in shared memory, and on clusters. */
enum { MAX_COLUMNS = 16, MAX_KEPT_COLUMNS = 32, MAX_CLUSTER_COLUMNS = 64 };

static int n_eight(int n_col) {
    return n_col <= 8 ? 1 : n_col <= 16 ? 2 : n_col <= 32 ? 4 : 8;
}

size_t codes_bytes(int64_t k) {
    return (size_t)((k + TILE_CHUNK_K - 1) / TILE_CHUNK_K * (TILE_CHUNK_K / 32)) * LEFT_BYTES;
}

size_t linear_scratch(int64_t n_row, int64_t k, bool two) {
    const int64_t k_pad = (k + TILE_CHUNK_K - 1) / TILE_CHUNK_K * TILE_CHUNK_K, n_col = n_row * (two ? 2 : 1);
    const int eights = n_eight((int)(n_col < MAX_CLUSTER_COLUMNS ? n_col : MAX_CLUSTER_COLUMNS));
    const size_t own = many_layout(k_pad, two && eights < 4 ? 4 : eights).bytes, sliced = sliced_scratch(k);
    const size_t integers = own > sliced ? own : sliced, floats = float_scratch(n_row, k);
    return integers > floats ? integers : floats;
}

static int run(linear_kernel kernel, linear_job *j, size_t others, cuda_stream s) {
    const int blocks = j->n_unit < device_sm_count() ? j->n_unit : device_sm_count();
    const size_t room = linear_shared_bytes(j, others, blocks);
    const int e = prepare(kernel, room);
    return e ? e : launch(kernel, dim3(blocks), dim3(THREADS), room, s, *j);
}

/* The kernel that multiplies several columns, and groups of eight columns that a launch of it takes; 0: it
 * cannot. */
struct way {
    linear_kind kernel;
    int eights;
};
static way way_by_rule(linear_job *j, const pack_format *f) {
    int eights =
        j->n_col <= MAX_KEPT_COLUMNS ? kept_eights(j, f, j->n_col) : 0; /* more: clusters are faster */
    if (eights)
        return {LINEAR_KEPT, eights};
    if (j->n_col <= MAX_COLUMNS && (eights = pair_eights(j, f, j->n_col)) > 0)
        return {LINEAR_PAIR, eights};
    if ((eights = stream_eights(j, f, j->n_col)) > 0)
        return {LINEAR_STREAM, eights};
    eights = cluster_eights(j, f, j->n_col);
    return eights ? way{LINEAR_CLUSTER, eights}
                  : way{LINEAR_MANY, n_eight(j->n_col < MAX_COLUMNS ? j->n_col : MAX_COLUMNS)};
}
static way way_find(linear_job *j, const pack_format *f, linear_kind kind) {
    const int most = kind == LINEAR_KEPT ? (int)MAX_KEPT_COLUMNS : (int)MAX_COLUMNS;
    const int n_col = j->n_col < most ? j->n_col : most;
    switch (kind) {
    case LINEAR_KEPT: return {kind, kept_eights(j, f, n_col)};
    case LINEAR_PAIR: return {kind, pair_eights(j, f, n_col)};
    case LINEAR_STREAM: return {kind, stream_eights(j, f, j->n_col)};
    case LINEAR_CLUSTER: return {kind, cluster_eights(j, f, j->n_col)};
    case LINEAR_MANY: return {kind, n_eight(n_col)};
    default: return way_by_rule(j, f);
    }
}

/* Whether the launch before can have left the columns, or this one can leave its own, by such a way. */
static bool way_takes(const linear_job &j, way by) {
    return j.n_col <= MAX_LEFT_ROWS && j.act_group == 32 && j.k % TILE_CHUNK_K == 0 && !j.two &&
           (by.kernel == LINEAR_KEPT || (by.kernel == LINEAR_PAIR && kept_order(j.n_col) == META_PAIRS));
}

/* Columns as the launch before has left them. */
static int run_left(linear_job *j, way by, cuda_stream s) {
    const codes_rows at = codes_rows_of((void *)j->coded, nullptr, j->k, j->n_col);
    j->codes = (const uint4 *)at.codes;
    j->meta = (const float4 *)at.scales;
    j->squares = at.squares;
    return by.kernel == LINEAR_KEPT ? kept_launch(j, by.eights, s) : pair_launch(j, by.eights, s);
}

int64_t linear_left_rows(const view *w) {
    int64_t rows = 1;
    for (int64_t n = 2; n <= MAX_LEFT_ROWS; n = n < 4 ? 4 : 2 * n) {
        cuda_linear a = {};
        linear_job j;
        a.n_w = 1;
        a.w[0] = *w;
        a.n_row = n;
        if (linear_job_make(&a, &j) || !way_takes(j, way_by_rule(&j, &w->format)))
            break;
        rows = n;
    }
    return rows;
}

static int run_many(const cuda_linear *a, linear_job *j, way by, cuda_stream s) {
    const int eights = by.eights;
    if ((j->coded || j->leaves_rows.codes) && !way_takes(*j, by))
        return CUDA_UNSUPPORTED;
    if (j->coded)
        return run_left(j, by, s);
    uint8_t *scratch = (uint8_t *)a->scratch;
    const many_scratch at = many_layout(j->k_pad, eights);
    auto *const quantize = a->two ? quantize_many<true> : quantize_many<false>;
    j->codes = (const uint4 *)scratch;
    j->meta = (const float4 *)(scratch + at.meta);
    j->factor = (const float *)(scratch + at.factor);
    j->lift = (const float *)(scratch + at.lift);
    const meta_order order = by.kernel == LINEAR_MANY      ? META_SUMS
                             : by.kernel == LINEAR_STREAM  ? META_RECORDS
                             : by.kernel == LINEAR_CLUSTER ? META_PLAIN
                             : by.kernel == LINEAR_PAIR    ? META_PAIRS
                                                           : kept_order(j->n_col);
    int e = prepare(quantize, 0);
    if (!e)
        e = launch(quantize, dim3((unsigned)a->n_row, (unsigned)row_pieces(*j)), dim3(THREADS), 0, s, *j,
                   eights, order, a->ldx, scratch);
    if (e || by.kernel != LINEAR_MANY)
        return e                            ? e
               : by.kernel == LINEAR_KEPT   ? kept_launch(j, eights, s)
               : by.kernel == LINEAR_PAIR   ? pair_launch(j, eights, s)
               : by.kernel == LINEAR_STREAM ? stream_launch(j, eights, s)
                                            : cluster_launch(j, eights, s);
    const bool halves = j->slice == 16;
    return run((eights == 1 ? many_kernel<1> : many_kernel<2>)(&a->w[0].format), j, many_bytes(halves), s);
}

static int run_one(const cuda_linear *a, linear_job *j, cuda_stream s) {
    const pack_format *f = &a->w[0].format;
    const int e = left_launch(j, f, s);
    if (e != CUDA_UNSUPPORTED)
        return e;
    j->pieces =
        f->bits == 8 && j->scale_kind == SCALE_HALF && j->last_tiles == TILE_CHUNK && device_major() >= 8;
    return run(one_kernel(f), j, one_bytes(*j), s);
}

bool linear_leaves_whole(const cuda_linear *a) {
    linear_job j;
    return a->n_row == 1 && linear_job_make(a, &j) == 0 && j.n_col == 1 &&
           left_leaves_whole(&j, &a->w[0].format);
}

/* Rows [first, first + n). One that is left over goes alone. */
static int run_rows(const cuda_linear *a, linear_kind kind, int64_t first, int64_t n, cuda_stream s) {
    cuda_linear part = *a;
    linear_job j;
    part.n_row = n;
    part.x += first * a->ldx;
    for (int i = 0; i < a->n_w; i++)
        part.y[i] += first * a->ldy[i];
    const int e = linear_job_make(&part, &j);
    if (e)
        return e;
    if (j.n_col == 1)
        return run_one(&part, &j, s);
    const way by = way_find(&j, &a->w[0].format, kind);
    return by.eights ? run_many(&part, &j, by, s) : run_many(&part, &j, way_by_rule(&j, &a->w[0].format), s);
}

int linear_launch_as(const cuda_linear *a, linear_kind kind, cuda_stream s) {
    linear_job j;
    if (a->n_row < 1 || a->n_row > CUDA_MAX_ROWS)
        return CUDA_UNSUPPORTED;
    const int each = a->two ? 2 : 1;
    int e = linear_job_make(a, &j);
    if (e)
        return e;
    if ((kind == LINEAR_ONE && j.n_col > 1) || (kind > LINEAR_ONE && j.n_col == 1))
        return CUDA_UNSUPPORTED;
    const int64_t most = 8 * way_find(&j, &a->w[0].format, kind).eights / each;
    if (most < 1)
        return CUDA_UNSUPPORTED;
    for (int64_t first = 0; first < a->n_row && !e; first += most)
        e = run_rows(a, kind, first, a->n_row - first < most ? a->n_row - first : most, s);
    return e;
}
