/* left_chunk.cuh - multiplies a chunk of a panel with the row, for linear_left.cu, with as few instructions
 * as each number of bits needs. */
#ifndef NIB_KERNELS_CUDA_LEFT_CHUNK_CUH
#define NIB_KERNELS_CUDA_LEFT_CHUNK_CUH

#include "kernels/cuda/linear_ring.cuh"

/* tile_load from an address. */
template <int BITS> __device__ __forceinline__ void left_tile(tile_lane<BITS> *v, uint32_t tile, int lane) {
    if (BITS & 4) {
        *(uint4 *)v->d = shared_four(tile + 16 * lane);
        tile += 512;
    }
    if (BITS & 2) {
        *(uint2 *)v->d2 = shared_two(tile + 8 * lane);
        tile += 256;
    }
    if (BITS & 1) {
        const uint2 u = shared_two(tile + 8 * (lane / 4 * 2 + lane % 2));
        v->d1[0] = u.x >> (lane % 4 / 2);
        v->d1[1] = u.y >> (lane % 4 / 2);
    }
}

/* d = c + a . b, 16 rows x 32 of K x 8 columns, unsigned times signed bytes. */
__device__ __forceinline__ void mma_from(int d[4], const uint32_t a[4], uint32_t b0, uint32_t b1,
                                         const int c[4]) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%10,%11,%12,%13};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c[0]), "r"(c[1]), "r"(c[2]),
          "r"(c[3]));
#endif
}

/* log2 of the factor by which left_mma's sums of half h are too large: fields are shifted as little as
 * possible. */
template <int BITS> __device__ __forceinline__ constexpr int left_excess(int h) {
    return BITS == 3 ? 1 + 4 * h : BITS <= 4 ? 4 * h : 0;
}

/* The two upper bits of each four from a, the two lower ones from b, in one instruction; the compiler would
 * make two. */
__device__ __forceinline__ uint32_t upper_of(uint32_t a, uint32_t b) {
    uint32_t v;
    asm("lop3.b32 %0, %1, %2, 0xcccccccc, 0xe4;" : "=r"(v) : "r"(a), "r"(b));
    return v;
}
/* Joins both parts of a tile's 3-bit codes, from bits 1 (half 0) and 5 (half 1) of each byte on, so that they
 * are multiplied once. Other bits of a byte are masked later. */
__device__ __forceinline__ void three_join(const tile_lane<3> &v, uint32_t joined[4]) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        joined[i] = upper_of(v.d2[i] << 2, v.d1[i] << 1);
        joined[2 + i] = upper_of(v.d2[i], v.d1[i] >> 1);
    }
}

/* d = c + half h of the tile times b, by the parts of a code one by one. joined: the result of three_join. */
template <int BITS>
__device__ __forceinline__ void left_mma(const tile_lane<BITS> &v, const uint32_t joined[4], int h, int d[4],
                                         uint32_t b0, uint32_t b1, const int *c) {
    uint32_t a[4];
    if (BITS == 3) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[i] = joined[i] & (h ? 0xe0e0e0e0u : 0x0e0e0e0eu);
        mma_from(d, a, b0, b1, c);
        return;
    }
    if (BITS & 4) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[i] = field(v.d[i], 4 * h, 4, (BITS & 3) + left_excess<BITS>(h));
        mma_from(d, a, b0, b1, c);
        c = d;
    }
    if (BITS & 2) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[i] = field(v.d2[i % 2], 4 * h + i / 2 * 2, 2, (BITS & 1) + left_excess<BITS>(h));
        mma_from(d, a, b0, b1, c);
        c = d;
    }
    if (BITS & 1) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[i] = field(v.d1[i % 2], 4 * h + i / 2 * 2, 1, left_excess<BITS>(h));
        mma_from(d, a, b0, b1, c);
    }
}

/* The integer of a sum, exactly. The sum has the bits of the float CODE_MAGIC + 2^excess * integer. */
template <int EXCESS> __device__ __forceinline__ float left_whole(int bits) {
    const float up = (float)(1 << EXCESS);
    return EXCESS ? __fmaf_rn(__int_as_float(bits), 1.0f / up, -CODE_MAGIC / up)
                  : __fsub_rn(__int_as_float(bits), CODE_MAGIC);
}

/* A lane's part of a chunk. */
template <int BITS> struct left_chunk {
    tile_lane<BITS> v[TILE_CHUNK];
    uint32_t w[2]; /* scales of rows g and g + 8, subgroups 2t and 2t + 1 */
    uint4 m;       /* their subgroup_meta */
    uint2 mine;    /* codes of subgroup g, column g of the instruction */
};
template <int BITS>
__device__ __forceinline__ void chunk_multiply(const left_chunk<BITS> &c, int n_tile, float sum[2]) {
    enum { ZERO = 1 << BITS >> 1, MAGIC = 0x4b400000 /* CODE_MAGIC */ };
    enum { EXCESS0 = left_excess<BITS>(0), EXCESS1 = left_excess<BITS>(1) };
    const int lane = threadIdx.x % 32, t = lane % 4;
    const int off0 = MAGIC - (ZERO << EXCESS0) * (int)c.m.y, off1 = MAGIC - (ZERO << EXCESS1) * (int)c.m.w;
    const int off[4] = {off0, off1, off0, off1};
    /* A tile is multiplied with the codes of its own two columns and with zeros in the others, so all tiles
     * share two sums. In the sum of half h, column 2t + h is a subgroup. */
    int d[2][4];
#pragma unroll
    for (int i = 0; i < TILE_CHUNK; i++) {
        const bool here = lane / 8 == i;
        const uint32_t b0 = here ? c.mine.x : 0, b1 = here ? c.mine.y : 0;
        uint32_t joined[4];
        if constexpr (BITS == 3)
            three_join(c.v[i], joined);
#pragma unroll
        for (int h = 0; h < 2; h++)
            left_mma(c.v[i], joined, h, d[h], b0, b1, i ? d[h] : off);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float2 s = floats_of(c.w[r]);
        const float x0 = left_whole<EXCESS0>(d[0][2 * r]), x1 = left_whole<EXCESS1>(d[1][2 * r + 1]);
        const float one = __fmaf_rn(__fmul_rn(x0, s.x), __uint_as_float(c.m.x), sum[r]);
        const float more = __fmaf_rn(__fmul_rn(x1, s.y), __uint_as_float(c.m.z), one);
        sum[r] = t < n_tile ? more : sum[r];
    }
}

#endif
