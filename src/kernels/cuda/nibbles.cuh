/* nibbles.cuh - products of 4-bit codes with groups of one half each, on devices of compute capability 8.0
 * and later: codes are multiplied as signed bytes, 16 (code - 8), by scales over 16. These are the products
 * of linear.cuh, bit by bit, except where those of two scales are below 2^-122, and no sums of the row's
 * codes are needed. */
#ifndef NIB_KERNELS_CUDA_NIBBLES_CUH
#define NIB_KERNELS_CUDA_NIBBLES_CUH

#include "kernels/cuda/linear.cuh"

enum { CODE_TILE = 512 /* bytes of a tile's codes */ };

/* Whether a job's matrices are such. */
static inline bool nibbles_are(const linear_job &j, const pack_format *f) {
    return f->bits == 4 && f->table == PACK_TABLE_NONE && j.scale_kind == SCALE_HALF && j.slice == 32 &&
           !j.tail;
}

/* Constants in registers: opaque, so that a mask and what follows it are one instruction, and the addend of
 * the matrix instruction is not made anew for each. */
struct nibble_base {
    uint32_t flip;
    int magic[4];
};
__device__ __forceinline__ nibble_base nibble_base_make() {
    nibble_base b;
    asm volatile("mov.b32 %0, 0x80808080;" : "=r"(b.flip));
#pragma unroll
    for (int i = 0; i < 4; i++)
        asm volatile("mov.b32 %0, 0x4b400000;" : "=r"(b.magic[i])); /* CODE_MAGIC */
    return b;
}

/* Nibbles in the upper halves of bytes, as signed bytes: 16 (code - 8). */
__device__ __forceinline__ uint32_t nibbles_signed(uint32_t u, const nibble_base &base) {
    uint32_t v;
    asm("lop3.b32 %0, %1, 0xf0f0f0f0, %2, 0x6a;" : "=r"(v) : "r"(u), "r"(base.flip));
    return v;
}

/* d = CODE_MAGIC + a . b in the bits of floats, 16 rows x 32 of K x 8 columns, signed bytes both: whole
 * numbers below 2^22, which take no conversion. */
__device__ __forceinline__ void mma_signed_bits(int d[4], const uint32_t a[4], uint32_t b0, uint32_t b1,
                                                const nibble_base &base) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%10,%11,%12,%13};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(base.magic[0]),
          "r"(base.magic[1]), "r"(base.magic[2]), "r"(base.magic[3]));
#endif
}
/* d = a . b. */
__device__ __forceinline__ void mma_signed(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1,
                                           const nibble_base &base) {
    int sum[4] = {0, 0, 0, 0};
    mma_signed_bits(sum, a, b0, b1, base);
#pragma unroll
    for (int i = 0; i < 4; i++)
        d[i] = __fsub_rn(__int_as_float(sum[i]), CODE_MAGIC);
}

/* Scales of the tile's halves, for rows g and g + 8. of: those of row g in the chunk's first group.
 */
__device__ __forceinline__ void tile_scales(const uint8_t *of, int tile, int group_shift, float scale[2][2]) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint8_t *s = of + ((2 * tile + h) >> group_shift) * 32;
        scale[h][0] = half_at(s);
        scale[h][1] = half_at(s + 16);
    }
}

/* A tile times EIGHTS groups of eight columns whose scales are in pairs (META_PAIRS): four of a lane by one
 * load. weight: of rows g and g + 8, halves of both slices. */
template <int EIGHTS>
__device__ __forceinline__ void tile_times_pairs(const uint4 &w, const uint32_t weight[2], const uint4 *codes,
                                                 const float4 *scales, const nibble_base &base,
                                                 float sum[EIGHTS][4]) {
    const uint32_t u[4] = {w.x, w.y, w.z, w.w};
    const float2 low = floats_of(weight[0]), high = floats_of(weight[1]);
    uint32_t a[2][4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        a[0][i] = nibbles_signed(u[i] << 4, base);
        a[1][i] = nibbles_signed(u[i], base);
    }
#pragma unroll
    for (int e = 0; e < EIGHTS; e++) {
        const uint4 b = codes[e * 32];
        const float4 s = scales[e * 4];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float w0 = h ? low.y : low.x, w1 = h ? high.y : high.x;
            const float s0 = h ? s.z : s.x, s1 = h ? s.w : s.y;
            float d[4];
            mma_signed(d, a[h], h ? b.z : b.x, h ? b.w : b.y, base);
            sum[e][0] = __fmaf_rn(d[0], __fmul_rn(w0, s0), sum[e][0]);
            sum[e][1] = __fmaf_rn(d[1], __fmul_rn(w0, s1), sum[e][1]);
            sum[e][2] = __fmaf_rn(d[2], __fmul_rn(w1, s0), sum[e][2]);
            sum[e][3] = __fmaf_rn(d[3], __fmul_rn(w1, s1), sum[e][3]);
        }
    }
}

/* A tile times MINE groups of eight columns: their sums. codes, scales: the lane's first ones of the tile. */
template <int EIGHTS, int MINE>
__device__ __forceinline__ void tile_times(const uint4 &w, const float scale[2][2], const uint4 *codes,
                                           const float2 *scales, const nibble_base &base,
                                           float sum[MINE][4]) {
    const uint32_t u[4] = {w.x, w.y, w.z, w.w};
    uint32_t a[2][4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        a[0][i] = nibbles_signed(u[i] << 4, base);
        a[1][i] = nibbles_signed(u[i], base);
    }
#pragma unroll
    for (int e = 0; e < MINE; e++) {
        const uint4 b = codes[e * 32];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float2 s = scales[h * 4 * EIGHTS + e * 4];
            float d[4];
            mma_signed(d, a[h], h ? b.z : b.x, h ? b.w : b.y, base);
            sum[e][0] = __fmaf_rn(d[0], __fmul_rn(scale[h][0], s.x), sum[e][0]);
            sum[e][1] = __fmaf_rn(d[1], __fmul_rn(scale[h][0], s.y), sum[e][1]);
            sum[e][2] = __fmaf_rn(d[2], __fmul_rn(scale[h][1], s.x), sum[e][2]);
            sum[e][3] = __fmaf_rn(d[3], __fmul_rn(scale[h][1], s.y), sum[e][3]);
        }
    }
}

/* For matrices_load_four, of a chunk's two pairs of tiles, from its scales on: lane 16i + 8r + l has tile i,
 * rows from 8r on. */
__device__ __forceinline__ void chunk_lane_scales(int group_shift, int lane_scale[2]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int p = 0; p < 2; p++)
        lane_scale[p] = ((4 * p + lane / 16 * 2 + lane % 2) >> group_shift) * 32 + lane / 8 % 2 * 16;
}

/* A chunk times all columns. codes, scales: of the chunk; lane_scale: matrices_load_four's, from its scales
 * on.
 */
template <int EIGHTS, bool FOUR>
__device__ __forceinline__ void chunk_times(const uint8_t *stage, int n_tile, int group_shift,
                                            const uint4 *codes, const float *scales, const int lane_scale[2],
                                            const nibble_base &base, float sum[TILE_CHUNK][EIGHTS][4]) {
    enum { COLUMNS = FOUR ? 4 : 8 * EIGHTS };
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint8_t *const of = stage + n_tile * CODE_TILE;
    uint32_t weight[4];
    codes += lane % (4 * COLUMNS);
#pragma unroll
    for (int i = 0; i < TILE_CHUNK; i++) {
        if (i >= n_tile)
            break;
        const uint4 &w = *(const uint4 *)(stage + i * CODE_TILE + 16 * lane);
        if (EIGHTS > 2) {
            float scale[2][2];
            tile_scales(of + 2 * g, i, group_shift, scale);
            tile_times<EIGHTS, EIGHTS>(w, scale, codes + i * COLUMNS * 4,
                                       (const float2 *)scales + i * COLUMNS + t, base, sum[i]);
            asm volatile("" ::: "memory"); /* registers: loads of the next tile stay behind */
            continue;
        }
        if (i % 2 == 0)
            matrices_load_four(weight, shared_address(of) + lane_scale[i / 2]);
        tile_times_pairs<EIGHTS>(w, weight + i % 2 * 2, codes + i * COLUMNS * 4,
                                 (const float4 *)scales + i * COLUMNS / 2 + t % (COLUMNS / 2), base, sum[i]);
    }
}

#endif
