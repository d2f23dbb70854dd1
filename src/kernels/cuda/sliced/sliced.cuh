/* sliced.cuh - products by slices of both operands (ADAngel's Bitwise and Split; kernels/dpr.h): makes the
 * fragments of the matrix instructions from the G-tile and from a row's codes, and has the kernels of one and
 * of several columns.
 *
 * Both strategies read the parts packing, so the weights need no second copy. Split's operands are the 4-bit
 * parts. Bitwise makes planes from the parts in registers: it transposes 4 bits of 4 tiles. Partial products
 * stay in registers. Shifts and additions make one dot of them for each subgroup (32 of K), which is scaled
 * and summed in the order of linear.cuh. So the bits are those of `linear`.
 *
 * Column c of the instruction's 8 columns holds the c-th 32 of a chunk, and zeros elsewhere, as in the kernel
 * of one row (linear_one.cu). So one accumulator has the 8 dots of a chunk, each of which has its own
 * scale. */
#ifndef NIB_KERNELS_CUDA_SLICED_SLICED_CUH
#define NIB_KERNELS_CUDA_SLICED_SLICED_CUH

#include "kernels/cuda/linear.cuh"
#include "kernels/cuda/linear_panels.cuh"
#include "kernels/cuda/linear_rows.cuh"

/* ---- fragments ---- */

/* Bit b of nibble n of x[i] becomes bit i of nibble n of x[b]. */
__device__ __forceinline__ void transpose_nibbles(uint32_t x[4]) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t other = ((x[i] >> 2) ^ x[i + 2]) & 0x33333333u;
        x[i + 2] ^= other;
        x[i] ^= other << 2;
    }
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        const uint32_t other = ((x[i] >> 1) ^ x[i + 1]) & 0x55555555u;
        x[i + 1] ^= other;
        x[i] ^= other << 1;
    }
}

/* Bit b of byte n of x[i] becomes bit i of byte n of x[b]. */
__device__ __forceinline__ void transpose_bytes(uint32_t x[8]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t other = ((x[i] >> 4) ^ x[i + 4]) & 0x0f0f0f0fu;
        x[i + 4] ^= other;
        x[i] ^= other << 4;
    }
    transpose_nibbles(x);
    transpose_nibbles(x + 4);
}

/* The four dwords of a lane (row g, g + 8, and both for the quads t + 4) with a tile's nibbles: bits 0..3 of
 * byte c are K = 4 quad + c, bits 4..7 are 32 further. HIGH: the upper 4 bits of a code; otherwise the bits
 * below them. Codes of up to 4 bits have no upper ones. */
template <int BITS> __device__ __forceinline__ constexpr int low_bits() {
    return BITS <= 4 ? BITS : BITS - 4;
}
template <int BITS, bool HIGH>
__device__ __forceinline__ void tile_nibbles(const tile_lane<BITS> &v, uint32_t a[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int up = i / 2 * 2;
        if (BITS == 8)
            a[i] = HIGH ? ((v.d[i] >> 4) & 0x0f0f0f0fu) | (v.d[4 + i] & 0xf0f0f0f0u)
                        : (v.d[i] & 0x0f0f0f0fu) | ((v.d[4 + i] & 0x0f0f0f0fu) << 4);
        else if (HIGH || BITS == 4)
            a[i] = v.d[i];
        else
            a[i] = (BITS & 2 ? ((v.d2[i % 2] >> up) & 0x33333333u) << (BITS & 1) : 0u) |
                   (BITS & 1 ? (v.d1[i % 2] >> up) & 0x11111111u : 0u);
    }
}

/* Makes the planes of a chunk, the lowest bit first: bit 8c + 4h + i of a lane's dword is K = 4 quad + c of
 * half h of tile i. */
template <int BITS>
__device__ __forceinline__ void chunk_planes(const tile_lane<BITS> v[TILE_CHUNK], uint32_t planes[BITS][4]) {
    enum { LOW = low_bits<BITS>() };
    uint32_t a[TILE_CHUNK][4];
#pragma unroll
    for (int high = 0; high < (BITS > 4 ? 2 : 1); high++) {
#pragma unroll
        for (int i = 0; i < TILE_CHUNK; i++)
            if (high)
                tile_nibbles<BITS, true>(v[i], a[i]);
            else
                tile_nibbles<BITS, false>(v[i], a[i]);
#pragma unroll
        for (int r = 0; r < 4; r++) {
            uint32_t x[4] = {a[0][r], a[1][r], a[2][r], a[3][r]};
            transpose_nibbles(x);
#pragma unroll
            for (int b = 0; b < (high ? 4 : (int)LOW); b++)
                planes[high ? LOW + b : b][r] = x[b];
        }
    }
}

/* The index of a row's quad of codes in Bitwise's order, in dwords. Lane t reads eight quads t, one for each
 * tile i and half h of a chunk, and eight quads t + 4. They are placed such that transposing them in place
 * (bits_arrange) leaves the planes: for both kinds of quads the four lower ones, then the four upper ones. */
__device__ __forceinline__ int bits_quad(int quad) {
    const int tile = quad / 16 % TILE_CHUNK, half = quad / 8 % 2, second = quad / 4 % 2, t = quad % 4;
    return quad / 64 * 64 + half * 32 + t * 8 + tile * 2 + second;
}
/* Transposes the dwords of task i of k_pad / 32 tasks of a row. scaled: 4-bit codes, which become planes
 * 4..7. */
__device__ __forceinline__ void bits_arrange(uint32_t *row, int i, bool scaled) {
    uint32_t x[8], *const at = row + i / 8 * 64 + i % 8 / 2 * 8 + i % 2;
#pragma unroll
    for (int b = 0; b < 8; b++) {
        x[b] = at[b / 4 * 32 + b % 4 * 2];
        x[b] = scaled ? (x[b] << 4) & 0xf0f0f0f0u : x[b];
    }
    transpose_bytes(x);
#pragma unroll
    for (int b = 0; b < 8; b++)
        at[b / 4 * 32 + b % 4 * 2] = x[b];
}
/* The bits of a plane that belong to subgroup g of its chunk. */
__device__ __forceinline__ uint32_t bits_of_subgroup(int g) {
    return 0x01010101u << (g / 2 + g % 2 * 4);
}

/* The lower or the upper 4 bits of four codes, in the position where tile_nibbles has half h. */
__device__ __forceinline__ uint32_t quad_nibbles(uint32_t codes, int h, bool high) {
    const uint32_t at = high ? codes & 0xf0f0f0f0u : (codes & 0x0f0f0f0fu) << 4;
    return h ? at : at >> 4;
}

/* ---- the kernels' rows ---- */

/* The number of columns of one launch, and (column_bytes) bytes from one column to the next in shared memory:
 * codes and subgroup_meta, rounded to an odd multiple of 64 bytes, so that the same element of four columns
 * is in different banks. */
enum { SLICED_COLUMNS = 8 };
static __host__ __device__ __forceinline__ int column_bytes(int k_pad) {
    return (k_pad + k_pad / 32 * (int)sizeof(subgroup_meta) + 127) / 128 * 128 + 64;
}

template <bool BITWISE> struct sliced_store {
    uint32_t *where;
    subgroup_meta *meta;
    size_t step; /* bytes to the second row, with `two` */
    __device__ void codes(int row, int k, uint2 u) {
        uint32_t *to = (uint32_t *)((uint8_t *)where + row * step);
        const int quad = k / 4;
        to[BITWISE ? bits_quad(quad) : code_quad(quad)] = u.x;
        to[BITWISE ? bits_quad(quad + 1) : code_quad(quad + 1)] = u.y;
    }
    __device__ void subgroup(int row, int i, subgroup_meta m) {
        ((subgroup_meta *)((uint8_t *)meta + row * step))[i] = m;
    }
};

struct sliced_facts {
    const float *factors, *lifts;
    float of_norm, of_row;
    bool one;
    __device__ float factor(int column) const {
        return one ? of_norm : factors[column];
    }
    __device__ float lift(int column) const {
        return one ? of_row : lifts[column];
    }
};

/* The scratch has columns as in shared memory, then the norm's factors, then the rows' lifts. */
static __host__ __device__ __forceinline__ size_t sliced_factors_at(int k_pad) {
    return (size_t)column_bytes(k_pad) * SLICED_COLUMNS;
}

/* Quantizes rows to the scratch, one row a block. */
template <bool BITWISE, bool TWO>
__global__ void __launch_bounds__(THREADS)
    sliced_quantize(const __grid_constant__ linear_job j, int64_t ldx, uint8_t *scratch) {
    __shared__ row_sums sums;
    const int each = TWO ? 2 : 1, column = blockIdx.x * each, step = column_bytes(j.k_pad);
    uint8_t *const to = scratch + (size_t)column * step;
    float *const factors = (float *)(scratch + sliced_factors_at(j.k_pad));
    launch_next();
    launch_wait();
    quantize_row<TWO>(row_of(j, j.x + blockIdx.x * ldx),
                      sliced_store<BITWISE>{(uint32_t *)to, (subgroup_meta *)(to + j.k_pad), (size_t)step},
                      &sums);
    if (threadIdx.x < each) {
        factors[column + threadIdx.x] = row_factor(j, &sums);
        factors[SLICED_COLUMNS + column + threadIdx.x] = row_lift(j, &sums, threadIdx.x);
    }
}

/* ---- one chunk ---- */

/* The scales of subgroups 2t and 2t + 1 of rows g and g + 8. One load reads all if a group has one
 * half-precision scale. */
__device__ __forceinline__ void chunk_scales(const linear_job &j, const uint8_t *scales, int n_tile,
                                             float2 w[4]) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int group[4], row[4];
    if (ring_ahead() && j.scale_kind == SCALE_HALF) {
        uint32_t both[2];
        matrices_load(both, shared_address(scales) + (lane % 8 >> j.group_shift) * 32 + lane / 8 % 2 * 16);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float2 of = floats_of(both[r]);
            w[2 * r] = make_float2(of.x, 0.0f);
            w[2 * r + 1] = make_float2(of.y, 0.0f);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        group[i] = (2 * t + i % 2) >> j.group_shift;
        row[i] = i < 2 ? g : g + 8;
        w[i] = make_float2(0.0f, 0.0f);
    }
    if (ring_ahead() || t < n_tile)
        scales_read<4>(j, scales, group, row, w);
}
/* Scales the dots of these subgroups and adds them, like one_chunk in linear_one.cu. d: the two subgroups of
 * row g, then of row g + 8. */
__device__ __forceinline__ void chunk_add(const linear_job &j, const float2 w[4], const int d[4],
                                          const subgroup_meta m[2], int n_tile, float sum[2]) {
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float more = subgroup_add(j, w[r * 2 + i], d[2 * r + i], m[i], sum[r]);
            sum[r] = (int)(threadIdx.x % 4) < n_tile ? more : sum[r];
        }
}
__device__ __forceinline__ void chunk_metas(const subgroup_meta *metas, subgroup_meta m[2]) {
    *(uint4 *)m = *(const uint4 *)(metas + 2 * (threadIdx.x % 4));
}

/* Loads a chunk's tiles. For missing tiles it loads whatever follows the others; it is multiplied with
 * zeros. */
template <int BITS>
__device__ __forceinline__ void chunk_load(const uint8_t *stage, int n_tile, tile_lane<BITS> v[TILE_CHUNK]) {
#pragma unroll
    for (int i = 0; i < TILE_CHUNK; i++) {
        if (!ring_ahead() && i >= n_tile)
            v[i] = tile_lane<BITS>{};
        else
            tile_load(&v[i], stage + i * BITS * 128, threadIdx.x % 32);
    }
}

/* ---- the kernel ----
 *
 * Way<BITS> is Bitwise or Split: prepare() makes the operands of a chunk's tiles, dots() multiplies one
 * column with them, many_sums has the sums of several columns. */

/* panels between two barriers of all warps, with several columns and with one. */
enum { SLICED_PANELS = 4, SLICED_ONE_PANELS = 16 };

/* Bytes of shared memory after the rings, with one column, and (sliced_many_bytes) with several. */
static inline size_t sliced_one_bytes(const linear_job &j) {
    return (size_t)column_bytes(j.k_pad) + outputs_ahead_bytes(j, SLICED_ONE_PANELS);
}

/* With codes of few bits a block of the next launch fits the multiprocessor too, as in linear_one.cu. */
template <int BITS> constexpr int sliced_blocks() {
    return BITS <= 4 ? 2 : 1;
}

template <template <int> class Way, int BITS>
__global__ void __launch_bounds__(THREADS, sliced_blocks<BITS>())
    sliced_one(const __grid_constant__ linear_job j) {
    extern __shared__ __align__(128) uint8_t shared[];
    enum { PANELS = SLICED_ONE_PANELS };
    __shared__ uint64_t bars[ALL_WARPS][MAX_STAGES];
    __shared__ float partial[PANELS][WARPS][PACK_PANEL];
    __shared__ row_sums sums;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % WARPS, team = threadIdx.x / 32 / WARPS;
    const int ring_bytes = j.depth * j.stage_bytes, n_panel = panel_count(j);
    uint8_t *const column = shared + ALL_WARPS * ring_bytes;
    subgroup_meta *const meta = (subgroup_meta *)(column + j.k_pad);
    output_ahead *const ahead = (output_ahead *)(column + column_bytes(j.k_pad));
    ring r;
    chunk_feed feed = feed_begin(j, n_panel);
    ring_init(&r, shared + threadIdx.x / 32 * ring_bytes, bars[threadIdx.x / 32], j.depth, j.stage_bytes);
    for (int i = 0; ring_ahead() && i < j.depth; i++)
        feed_put(j, &feed, &r);
    if (j.leaves.codes)
        launch_next();
    launch_wait();
    outputs_ahead(j, 0, min((int)PANELS, n_panel), ahead);
    quantize_row<false>(row_of(j, j.x), sliced_store<Way<BITS>::BITWISE>{(uint32_t *)column, meta, 0}, &sums);
    if (Way<BITS>::BITWISE) {
        for (int i = threadIdx.x; i < j.k_pad / 32; i += THREADS)
            bits_arrange((uint32_t *)column, i, j.top < 127);
        __syncthreads();
    }
    for (int q0 = 0; q0 < n_panel; q0 += PANELS) {
        const int n_here = min((int)PANELS, n_panel - q0);
        for (int q = team; q < n_here; q += TEAMS) {
            float sum[2] = {0.0f, 0.0f};
            for (int c = warp; c < j.n_chunk; c += WARPS) {
                if (!ring_ahead())
                    feed_put(j, &feed, &r);
                const int n_tile = c == j.n_chunk - 1 ? j.last_tiles : TILE_CHUNK;
                const uint8_t *stage = ring_get(&r);
                Way<BITS> way;
                subgroup_meta m[2];
                float2 w[4];
                int d[4];
                chunk_metas(meta + c * 8, m);
                chunk_scales(j, stage + n_tile * BITS * 128, n_tile, w);
                way.prepare(stage, n_tile);
                __syncwarp();
                if (ring_ahead())
                    feed_put(j, &feed, &r);
                way.dots(column + c * TILE_CHUNK_K, m, j.top < 127, d);
                chunk_add(j, w, d, m, n_tile, sum);
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
        const sliced_facts facts = {nullptr, nullptr, j.norm ? row_factor(j, &sums) : 1.0f,
                                    j.tail && j.asym ? row_lift(j, &sums, 0) : 0.0f, true};
        outputs_write<1>(j, q0, n_here, partial[0][0], facts, ahead);
        outputs_ahead(j, q0 + n_here, min((int)PANELS, n_panel - q0 - n_here), ahead);
        __syncthreads();
    }
}

/* The sums of a warp's columns in shared memory: those of each lane for rows g and g + 8. */
typedef float2 sliced_sums[SLICED_COLUMNS][32];
static inline size_t sliced_many_bytes(const linear_job &j, bool sums) {
    return (size_t)column_bytes(j.k_pad) * j.n_col + (sums ? ALL_WARPS * sizeof(sliced_sums) : 0);
}

/* Multiplies several columns, which sliced_quantize wrote to the scratch. */
template <template <int> class Way, int BITS>
__global__ void __launch_bounds__(THREADS, 1) sliced_many(const __grid_constant__ linear_job j) {
    extern __shared__ __align__(128) uint8_t shared[];
    enum { COLUMNS = SLICED_COLUMNS };
    __shared__ uint64_t bars[ALL_WARPS][MAX_STAGES];
    __shared__ float partial[SLICED_PANELS][WARPS][PACK_PANEL][COLUMNS];
    const int warp = threadIdx.x / 32 % WARPS, team = threadIdx.x / 32 / WARPS;
    const int ring_bytes = j.depth * j.stage_bytes, n_panel = panel_count(j), step = column_bytes(j.k_pad);
    uint8_t *const columns = shared + ALL_WARPS * ring_bytes;
    ring r;
    chunk_feed feed = feed_begin(j, n_panel);
    ring_init(&r, shared + threadIdx.x / 32 * ring_bytes, bars[threadIdx.x / 32], j.depth, j.stage_bytes);
    for (int i = 0; ring_ahead() && i < j.depth; i++)
        feed_put(j, &feed, &r);
    launch_wait();
    for (int i = 16 * threadIdx.x; i < step * j.n_col; i += 16 * THREADS)
        copy_ahead<16>(columns + i, (const uint8_t *)j.codes + i);
    copies_end_group();
    copies_wait<0>();
    __syncthreads();
    if (Way<BITS>::BITWISE) {
        for (int i = threadIdx.x; i < j.k_pad / 32 * j.n_col; i += THREADS)
            bits_arrange((uint32_t *)(columns + i / (j.k_pad / 32) * step), i % (j.k_pad / 32), j.top < 127);
        __syncthreads();
    }
    typename Way<BITS>::many_sums sums;
    sums.place(columns + step * j.n_col);
    for (int q0 = 0; q0 < n_panel; q0 += SLICED_PANELS) {
        const int n_here = min((int)SLICED_PANELS, n_panel - q0);
        for (int q = team; q < n_here; q += TEAMS) {
            sums.clear(j);
            for (int c = warp; c < j.n_chunk; c += WARPS) {
                if (!ring_ahead())
                    feed_put(j, &feed, &r);
                const int n_tile = c == j.n_chunk - 1 ? j.last_tiles : TILE_CHUNK;
                const uint8_t *stage = ring_get(&r);
                sums.chunk(j, stage, n_tile, columns, c);
                __syncwarp();
                if (ring_ahead())
                    feed_put(j, &feed, &r);
            }
            sums.give(j, partial[q][warp]);
        }
        __syncthreads();
        const sliced_facts facts = {j.factor, j.lift, 0.0f, 0.0f, false};
        outputs_write<COLUMNS>(j, q0, n_here, partial[0][0][0], facts, nullptr);
        __syncthreads();
    }
}

/* ---- launching ---- */

typedef void (*sliced_kernel)(const linear_job);
struct sliced_kernels {
    /* By bits of a code. NULL: no such codes, or `many` computes one column too. */
    sliced_kernel one[9], many[9];
    bool bitwise;
    bool sums; /* `many` keeps sums in shared memory */
};
/* Computes a product by the kernels of a strategy. */
int sliced_launch(const sliced_kernels &by, const cuda_linear *a, cuda_stream s);

#endif
