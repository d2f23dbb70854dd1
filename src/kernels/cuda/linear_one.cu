/* linear_one.cu - products of one row.
 *
 * If the previous launch has not left the row's codes, every block quantizes the row itself, after it has
 * started the copies of its first weights: a separate kernel would take longer. Column c of the instruction's
 * 8 columns holds the c-th 32 of a chunk, and zeros elsewhere. So one accumulator can take all products of a
 * chunk, and its columns are the 8 sums that groups need separately. There are two accumulators, for the
 * halves of tiles, because an instruction waits for the one before it. */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear.cuh"
#include "kernels/cuda/linear_one.cuh"

/* Panels whose sums are in shared memory until all threads finish them. No warp waits for another in
 * between. */
enum { ONE_PANELS = 16 };

/* one_chunk for one half-precision scale a group and no minimum, as most formats have, in a third of the
 * instructions: one load reads the scales of all subgroups and rows, and differences have the bits of floats.
 */
template <int BITS> struct plain_chunk {
    tile_lane<BITS> v[TILE_CHUNK];
    uint32_t w[2]; /* scales of rows g and g + 8, subgroups 2t and 2t + 1 */
    uint4 m;       /* their subgroup_meta */
    uint2 mine;
};
/* Loads a lane's part of a chunk except the tiles. scales: the lane's address for matrices_load. */
template <int BITS>
__device__ __forceinline__ void plain_begin(plain_chunk<BITS> *c, uint32_t scales, uint2 mine,
                                            const subgroup_meta *metas) {
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

/* Multiplies a warp's chunks of a panel. Codes of up to 4 bits are loaded into registers before they are
 * multiplied, so their stage is refilled at once. */
template <int BITS>
__device__ __forceinline__ void plain_panel(const linear_job &j, chunk_feed *feed, ring *r,
                                            const uint2 *codes, const subgroup_meta *meta, int lane_scale,
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

/* plain_panel for chunks of 8 bits in two pieces. */
__device__ __forceinline__ void plain_panel_pieces(const linear_job &j, chunk_feed *feed, ring *r,
                                                   const uint2 *codes, const subgroup_meta *meta,
                                                   int lane_scale, float sum[2]) {
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

/* Bytes after the rings: the row, and output_ahead of the outputs. */
static size_t one_bytes(const linear_job &j) {
    return (size_t)j.k_pad + (size_t)(j.k_pad / j.subgroup) * sizeof(subgroup_meta) +
           outputs_ahead_bytes(j, ONE_PANELS);
}

template <int BITS, bool HALVES, int TABLE = TABLE_NONE>
__global__ void __launch_bounds__(THREADS, 2) linear_one(const __grid_constant__ linear_job j) {
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ uint64_t bars[ALL_WARPS][MAX_STAGES];
    __shared__ float partial[ONE_PANELS][WARPS][PACK_PANEL];
    __shared__ row_sums sums;
    enum { SUBGROUPS = HALVES ? 16 : 8 /* of a chunk */ };
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % WARPS, team = threadIdx.x / 32 / WARPS;
    const int ring_bytes = j.depth * j.stage_bytes, n_panel = panel_count(j);
    uint32_t *const codes = (uint32_t *)(shared + ALL_WARPS * ring_bytes);
    subgroup_meta *const meta = (subgroup_meta *)(codes + j.k_pad / 4);
    output_ahead *const ahead = (output_ahead *)(meta + j.k_pad / j.subgroup);
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
    /* A product that is next may start copying its weights now; attention should not. */
    if (j.leaves.codes)
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
                one_chunk<BITS, HALVES>(j, stage, ((const uint2 *)codes)[c * 32 + lane], meta + c * SUBGROUPS,
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

/* The kernel for a format; NULL: there is none. Q2_K, Q3_K and Q6_K have groups of 16. */
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
        return bits == 4 && !halves && tile_table_unit(f->table) == 1 ? linear_one<4, false, TABLE_SHARED>
                                                                      : nullptr;
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

bool one_has(const pack_format *f) {
    return one_kernel(f) != nullptr;
}

int one_launch(linear_job *j, const pack_format *f, cuda_stream s) {
    j->pieces =
        f->bits == 8 && j->scale_kind == SCALE_HALF && j->last_tiles == TILE_CHUNK && device_major() >= 8;
    return linear_run(one_kernel(f), j, one_bytes(*j), s);
}
