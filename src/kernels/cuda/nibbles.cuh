/* nibbles.cuh - products of 4-bit codes with one half-precision scale a group, on devices of compute
 * capability 8.0 and later. Codes are multiplied as signed bytes, 16 (code - 8), and scales are divided by
 * 16. The bits are those of linear.cuh, except if a scale of the row is below 2^-122. The sums of the row's
 * codes are not needed. */
#ifndef NIB_KERNELS_CUDA_NIBBLES_CUH
#define NIB_KERNELS_CUDA_NIBBLES_CUH

#include "kernels/cuda/linear_ring.cuh"

enum { CODE_TILE = 512 /* bytes of the codes of a tile */ };

/* Whether these products can compute a job's matrices. */
static inline bool nibbles_are(const linear_job &j, const pack_format *f) {
    return f->bits == 4 && f->table == PACK_TABLE_NONE && j.scale_kind == SCALE_HALF && j.subgroup == 32 &&
           !j.tail;
}

/* Constants in registers, hidden from the compiler. So a mask and the next operation are one instruction, and
 * the addend of the matrix instruction is not recreated each time. */
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

/* Converts codes in the upper 4 bits of bytes to signed bytes, 16 (code - 8). */
__device__ __forceinline__ uint32_t nibbles_signed(uint32_t u, const nibble_base &base) {
    uint32_t v;
    asm("lop3.b32 %0, %1, 0xf0f0f0f0, %2, 0x6a;" : "=r"(v) : "r"(u), "r"(base.flip));
    return v;
}

/* Converts a lane's codes of a tile to operands of its halves. */
__device__ __forceinline__ void nibbles_unpack(const uint4 &w, const nibble_base &base, uint32_t a[2][4]) {
    const uint32_t u[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        a[0][i] = nibbles_signed(u[i] << 4, base);
        a[1][i] = nibbles_signed(u[i], base);
    }
}

/* d = CODE_MAGIC + a . b for signed bytes, 16 rows x 32 of K x 8 columns. The result has the bits of floats:
 * sums are integers below 2^22, so they need no conversion. */
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
/* Adds the number that such bits stand for, times the scales of the weights (w) and of the column (s), to a
 * sum. The multiplication by w is one instruction, because scale_magic(w) is exact for a half. */
__device__ __forceinline__ float scale_magic(float w) {
    return __fmul_rn(w, -CODE_MAGIC);
}
__device__ __forceinline__ float scaled_add(int bits, float w, float magic, float s, float sum) {
    return __fmaf_rn(__fmaf_rn(__int_as_float(bits), w, magic), s, sum);
}

/* Loads from shared memory that does not change while the kernel uses it, so the compiler may move the load.
 * `at` comes from address_kept(), called after the wait for the data. */
__device__ __forceinline__ uint4 kept_four(uint32_t at) {
    uint4 v;
    asm("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
    return v;
}

/* The scales of both halves of a tile for rows g and g + 8. of: the scales of row g in the chunk's first
 * group. */
__device__ __forceinline__ void tile_scales(const uint8_t *of, int tile, int group_shift, float scale[2][2]) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint8_t *s = of + ((2 * tile + h) >> group_shift) * 32;
        scale[h][0] = half_at(s);
        scale[h][1] = half_at(s + 16);
    }
}

/* Multiplies half h of a tile with eight columns b and adds to their sums, with the scales of rows g and g +
 * 8 and of columns 2t and 2t + 1. */
__device__ __forceinline__ void half_times(const uint32_t a[4], int h, const uint4 &b, float w0, float w1,
                                           float s0, float s1, const nibble_base &base, float sum[4]) {
    const float c0 = scale_magic(w0), c1 = scale_magic(w1);
    int d[4];
    mma_signed_bits(d, a, h ? b.z : b.x, h ? b.w : b.y, base);
    sum[0] = scaled_add(d[0], w0, c0, s0, sum[0]);
    sum[1] = scaled_add(d[1], w0, c0, s1, sum[1]);
    sum[2] = scaled_add(d[2], w1, c1, s0, sum[2]);
    sum[3] = scaled_add(d[3], w1, c1, s1, sum[3]);
}

/* Multiplies a tile with EIGHTS groups of eight columns whose scales are in pairs (META_PAIRS), so one load
 * reads four of a lane's scales. weight: the scales of both subgroups, as halves, of rows g and g + 8. codes,
 * scales: addresses of the lane's first ones. */
template <int EIGHTS>
__device__ __forceinline__ void tile_times_pairs(const uint4 &w, const uint32_t weight[2], uint32_t codes,
                                                 uint32_t scales, const nibble_base &base,
                                                 float sum[EIGHTS][4]) {
    const float2 low = floats_of(weight[0]), high = floats_of(weight[1]);
    uint32_t a[2][4];
    nibbles_unpack(w, base, a);
#pragma unroll
    for (int e = 0; e < EIGHTS; e++) {
        const uint4 b = kept_four(codes + e * 512), m = kept_four(scales + e * 64);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float w0 = h ? low.y : low.x, w1 = h ? high.y : high.x;
            const float s0 = __uint_as_float(h ? m.z : m.x), s1 = __uint_as_float(h ? m.w : m.y);
            half_times(a[h], h, b, w0, w1, s0, s1, base, sum[e]);
        }
    }
}

/* Adds a tile times MINE groups of eight columns to their sums. codes, scales: the lane's first ones of the
 * tile. */
template <int EIGHTS, int MINE>
__device__ __forceinline__ void tile_times(const uint4 &w, const float scale[2][2], const uint4 *codes,
                                           const float2 *scales, const nibble_base &base,
                                           float sum[MINE][4]) {
    uint32_t a[2][4];
    nibbles_unpack(w, base, a);
#pragma unroll
    for (int e = 0; e < MINE; e++) {
        const uint4 b = codes[e * 32];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float2 s = scales[h * 4 * EIGHTS + e * 4];
            half_times(a[h], h, b, scale[h][0], scale[h][1], s.x, s.y, base, sum[e]);
        }
    }
}

/* The offsets that matrices_load_four needs for the scales of a chunk's two pairs of tiles: lane 16i + 8r + l
 * has tile i, rows from 8r on. */
__device__ __forceinline__ void chunk_lane_scales(int group_shift, int lane_scale[2]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int p = 0; p < 2; p++)
        lane_scale[p] = ((4 * p + lane / 16 * 2 + lane % 2) >> group_shift) * 32 + lane / 8 % 2 * 16;
}

/* Multiplies a chunk with all columns, 8 or 16. stage: the chunk's address; codes, scales: the lane's first
 * ones of the chunk's first tile; lane_scale: the result of chunk_lane_scales. */
template <int EIGHTS, bool FOUR>
__device__ __forceinline__ void chunk_times(uint32_t stage, int n_tile, uint32_t codes, uint32_t scales,
                                            const int lane_scale[2], const nibble_base &base,
                                            float sum[TILE_CHUNK][EIGHTS][4]) {
    enum { COLUMNS = FOUR ? 4 : 8 * EIGHTS };
    const uint32_t of = stage + n_tile * CODE_TILE;
    uint32_t weight[TILE_CHUNK / 2][4];
#pragma unroll
    for (int p = 0; p < TILE_CHUNK / 2; p++)
        matrices_load_four(weight[p], of + lane_scale[p]);
    /* All tiles of a short last chunk are multiplied too: the codes and scales for missing ones are 0. */
    if (n_tile < TILE_CHUNK)
#pragma unroll
        for (int i = 1; i < TILE_CHUNK; i++)
            if (i >= n_tile)
                weight[i / 2][i % 2 * 2] = weight[i / 2][i % 2 * 2 + 1] = 0;
#pragma unroll
    for (int i = 0; i < TILE_CHUNK; i++)
        tile_times_pairs<EIGHTS>(shared_four(stage + i * CODE_TILE + 16 * (threadIdx.x % 32)),
                                 weight[i / 2] + i % 2 * 2, codes + i * COLUMNS * 64,
                                 scales + i * COLUMNS * 8, base, sum[i]);
}

/* chunk_times with 32 columns, whose scales are not in pairs (META_PLAIN). */
template <int EIGHTS>
__device__ __forceinline__ void chunk_times_plain(const uint8_t *stage, int n_tile, int group_shift,
                                                  const uint4 *codes, const float *scales,
                                                  const nibble_base &base, float sum[TILE_CHUNK][EIGHTS][4]) {
    enum { COLUMNS = 8 * EIGHTS };
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < TILE_CHUNK; i++) {
        float scale[2][2];
        if (i >= n_tile)
            break;
        tile_scales(stage + n_tile * CODE_TILE + 2 * g, i, group_shift, scale);
        tile_times<EIGHTS, EIGHTS>(*(const uint4 *)(stage + i * CODE_TILE + 16 * lane), scale,
                                   codes + i * COLUMNS * 4 + lane, (const float2 *)scales + i * COLUMNS + t,
                                   base, sum[i]);
        /* Keeps the loads of the next tile after this one, to save registers. */
        asm volatile("" ::: "memory");
    }
}

#endif
