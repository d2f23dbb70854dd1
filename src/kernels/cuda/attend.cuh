/* attend.cuh - shared by the attention kernels: rotated pairs, the positions of codes in a page, and
 * conversion between codes and halves. */
#ifndef NIB_KERNELS_CUDA_ATTEND_CUH
#define NIB_KERNELS_CUDA_ATTEND_CUH

#include "kernels/cuda/codes.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/mma.cuh"

#define LOG2_E 1.4426950408889634f

/* The two elements of pair `i` of a head's d / 2 pairs: those that are rotated together, or two beyond
 * n_rot. */
__device__ __forceinline__ int2 pair_elements(const cuda_attend &a, int i) {
    const int half = a.cos_sin ? (int)a.n_rot / 2 : 0;
    return a.style == ROPE_HALF && i < half ? make_int2(i, i + half) : make_int2(2 * i, 2 * i + 1);
}
__device__ __forceinline__ float2 pair_table(const cuda_attend &a, int row, int position, int i) {
    const int half = a.cos_sin ? (int)a.n_rot / 2 : 0;
    const float *table = a.cos_sin + (int64_t)(a.cos_sin_by_row ? row : position) * a.n_rot;
    return i < half ? make_float2(table[i], table[half + i]) : make_float2(1.0f, 0.0f);
}
__device__ __forceinline__ float2 pair_rotate(float2 x, float2 cos_sin) {
    return make_float2(__fsub_rn(__fmul_rn(x.x, cos_sin.x), __fmul_rn(x.y, cos_sin.y)),
                       __fadd_rn(__fmul_rn(x.x, cos_sin.y), __fmul_rn(x.y, cos_sin.x)));
}
/* The first position that a row at `position` sees. It grows with the position. */
__device__ __forceinline__ int low_of(const cuda_attend &a, int position) {
    const int window = (int)a.window;
    if (window <= 0)
        return 0;
    return a.chunked ? position - position % window : max(0, position - window + 1);
}

/* ALiBi's slope of a head, as on the processor (kernels/lanes/attend.h); 0: no ALiBi. */
__device__ __forceinline__ float alibi_slope(const cuda_attend &a, int head) {
    if (!(a.alibi_max_bias > 0))
        return 0.0f;
    const int n = 1 << (31 - __clz((int)a.n_head)); /* the largest power of two that is at most n_head */
    const float scale = a.alibi_scale != 0 ? a.alibi_scale : 1.0f;
    const float steps = head < n ? (float)(head + 1) : (float)(2 * (head - n) + 1) * 0.5f;
    return __fmul_rn(scale, exp2f(-a.alibi_max_bias * steps / (float)n));
}

/* The sink of a head in units of log 2, like scores. */
__device__ __forceinline__ float sink_of(const cuda_attend &a, int head) {
    return __fmul_rn(a.sinks[head], LOG2_E);
}
/* The factor of a row's results: 1 / sum, with the sink in the sum if the head has one. The sum is relative
 * to the maximum `max_score`, and its weights are 2^up times as large. Both are rescaled to the larger of
 * `max_score` and the sink, so nothing overflows. One division for both cases keeps the code short. */
__device__ __forceinline__ float inverse_with(bool has_sink, float max_score, float sum, float sink,
                                              float up) {
    float old = 1.0f;
    if (has_sink) {
        const float top = fmaxf(max_score, sink);
        old = exp2f(__fsub_rn(max_score, top));
        sum = __fmaf_rn(sum, old, exp2f(__fadd_rn(__fsub_rn(sink, top), up)));
    }
    return __fdiv_rn(old, sum);
}

__device__ __forceinline__ uint32_t as_halves(float a, float b) {
    const __half2 h = __floats2half2_rn(a, b);
    return *(const uint32_t *)&h;
}
/* Two floats as two pairs of halves: the rounded values, and the rounding errors. */
__device__ __forceinline__ uint2 as_two_halves(float a, float b) {
    const __half2 h = __floats2half2_rn(a, b);
    const float2 f = __half22float2(h);
    return make_uint2(*(const uint32_t *)&h, as_halves(__fsub_rn(a, f.x), __fsub_rn(b, f.y)));
}

/* ---- pages ---- */

/* Bytes of a head's keys, or values, in a page (cuda_kv). */
__host__ __device__ __forceinline__ int head_bytes(int bits, int d) {
    const int d_pad = (d + 31) / 32 * 32;
    return bits == 16 ? CUDA_PAGE * d * 2 : d_pad * CUDA_PAGE * bits / 8 + 8 * d_pad;
}
/* The address of a head in a page of the pool; in a page of the row's sequence; and (recent_at) in the page
 * of its newest block, if the cache has codes. */
__device__ __forceinline__ const uint8_t *pool_at(const cuda_attend &a, const void *base, int bits,
                                                  int32_t page, int head) {
    return (const uint8_t *)base + (int64_t)page * a.kv.page * 2 +
           (int64_t)head * head_bytes(bits, (int)a.kv.d_head);
}
__device__ __forceinline__ const uint8_t *page_at(const cuda_attend &a, const void *base, int bits,
                                                  const int32_t *pages, int page, int head) {
    return pool_at(a, base, bits, pages[page], head);
}
__device__ __forceinline__ const __half *recent_at(const cuda_attend &a, bool is_value, const int32_t *pages,
                                                   int page, int head) {
    if (a.kv.code_bits == 0)
        return (const __half *)page_at(a, is_value ? a.kv.v : a.kv.k, 16, pages, page, head);
    return (const __half *)page_at(a, is_value ? a.kv.recent_v : a.kv.recent_k, 16, pages, -1, head);
}

/* Halves scale * code + min, for two successive codes and word n of eight scales and minima. */
__device__ __forceinline__ uint32_t word_of(const uint4 &x, int n) {
    return n == 0 ? x.x : n == 1 ? x.y : n == 2 ? x.z : x.w;
}
__device__ __forceinline__ uint32_t halves_of(__half2 codes, int n, const uint4 &scale, const uint4 &min) {
    const uint32_t s = word_of(scale, n), m = word_of(min, n);
    const __half2 y = __hfma2(codes, *(const __half2 *)&s, *(const __half2 *)&m);
    return *(const uint32_t *)&y;
}

/* Eight successive codes. halves(n, ...) gives two of them, 2 n and 2 n + 1. */
template <int BITS> struct eight_codes {
    uint2 x;
    __device__ __forceinline__ uint32_t halves(int n, const uint4 &scale, const uint4 &min) const {
        uint32_t h = __byte_perm(n / 2 ? x.y : x.x, 0x64646464u, n % 2 ? 0x4342 : 0x4140); /* 1024 + code */
        return halves_of(__hsub2(*(const __half2 *)&h, __float2half2_rn(1024.0f)), n, scale, min);
    }
    __device__ __forceinline__ void load(const uint8_t *codes, int i) {
        asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "l"(codes + i));
    }
};
template <> struct eight_codes<4> {
    uint32_t x;
    __device__ __forceinline__ uint32_t halves(int n, const uint4 &scale, const uint4 &min) const {
        const uint32_t y = n / 2 ? x >> 8 : x;
        uint32_t h; /* by one instruction: the compiler takes two, because both operands are constants */
        if (n % 2)
            asm("lop3.b32 %0, %1, 0x00f000f0, %2, 0xea;" : "=r"(h) : "r"(y), "r"(0x54005400u));
        else
            asm("lop3.b32 %0, %1, 0x000f000f, %2, 0xea;" : "=r"(h) : "r"(y), "r"(0x64006400u));
        return halves_of(__hsub2(*(const __half2 *)&h, __float2half2_rn(n % 2 ? 64.0f : 1024.0f)), n, scale,
                         min);
    }
    __device__ __forceinline__ void load(const uint8_t *codes, int i) {
        asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(x) : "l"(codes + i / 2));
    }
};
/* Eight halves scale * code + min, from code i on. */
template <int BITS>
__device__ __forceinline__ void eight_halves_of(const uint8_t *codes, int i, const uint4 &scale,
                                                const uint4 &min, uint32_t x[4]) {
    eight_codes<BITS> code;
    code.load(codes, i);
#pragma unroll
    for (int n = 0; n < 4; n++)
        x[n] = code.halves(n, scale, min);
}
__device__ __forceinline__ void eight_halves(int bits, const uint8_t *codes, int i, const uint4 &scale,
                                             const uint4 &min, uint32_t x[4]) {
    if (bits == 8)
        eight_halves_of<8>(codes, i, scale, min, x);
    else
        eight_halves_of<4>(codes, i, scale, min, x);
}

/* Stores one code of each lane of a warp. The codes are successive, from a multiple of 32 on. */
__device__ __forceinline__ void codes_store(int bits, uint8_t *codes, int i, uint32_t code) {
    if (bits == 8) {
        codes[i] = (uint8_t)code;
        return;
    }
    code <<= i % 8 / 2 * 4 + i % 2 * 16;
#pragma unroll
    for (int o = 1; o < 8; o *= 2)
        code |= __shfl_xor_sync(~0u, code, o);
    if (i % 8 == 0)
        *(uint32_t *)(codes + i / 2) = code;
}

/* Quantizes a group of values to the range of its first n, with the bits of the processor
 * (kernels/lanes/kv_pack.h). */
struct code_group {
    __half scale, min;
    float low, inverse, top;
    __device__ __forceinline__ uint32_t code(float x) const { /* the code of a NaN is 0 */
        const float q = __fmul_rn(__fsub_rn(x, low), inverse);
        return q >= 0 ? (uint32_t)__fadd_rn(q < top ? q : top, 0.5f) : 0u;
    }
};
__device__ __forceinline__ code_group group_of(const float (&x)[32], int n, int bits) {
    float low = x[0], high = x[0], bad = 0;
#pragma unroll
    for (int i = 0; i < 32; i++) {
        if (i >= n)
            continue;
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
        bad = __fadd_rn(bad, __fsub_rn(x[i], x[i])); /* NaN, unless all are finite */
    }
    code_group g;
    g.top = bits == 8 ? 255.0f : 15.0f;
    g.low = low;
    g.scale = __float2half_rn(__fdiv_rn(__fsub_rn(high, low), g.top));
    g.min = __float2half_rn(low);
    const float scale = __half2float(g.scale);
    g.inverse = scale > 0 ? __fdiv_rn(1.0f, scale) : 0.0f;
    if (bad != 0) {
        g.scale = __ushort_as_half((unsigned short)0x7e00);
        g.min = __float2half_rn(0.0f);
        g.inverse = __int_as_float(0x7fc00000);
    }
    return g;
}

/* Quantizes a whole block of one head's keys, [CUDA_PAGE][line] halves of which d exist, by all threads of a
 * block. A thread has 32 positions of a channel. */
__device__ __forceinline__ void pack_keys(int bits, int d, const __half *from, int line, uint8_t *to) {
    const int d_pad = (d + 31) / 32 * 32;
    __half *const scales = (__half *)(to + d_pad * CUDA_PAGE * bits / 8);
    for (int item = threadIdx.x; item < 2 * d_pad; item += blockDim.x) {
        const int side = item / d_pad, c = item % d_pad;
        float x[32];
#pragma unroll
        for (int p = 0; p < 32; p++)
            x[p] = c < d ? __half2float(from[(side * 32 + p) * line + c]) : 0.0f;
        const code_group g = group_of(x, 32, bits);
        scales[item] = g.scale;
        scales[2 * d_pad + item] = g.min;
#pragma unroll
        for (int p = 0; p < 32; p++)
            codes_store(bits, to, (side * 32 + p) * d_pad + c, g.code(x[p]));
    }
}
/* Quantizes the values of such a block, whose lines are 16-byte aligned. A thread has 32 channels of a
 * position. */
__device__ __forceinline__ void pack_values(int bits, int d, const __half *from, int line, uint8_t *to) {
    const int d_pad = (d + 31) / 32 * 32;
    __half *const scales = (__half *)(to + d_pad * CUDA_PAGE * bits / 8);
    for (int item = threadIdx.x; item < d_pad / 32 * CUDA_PAGE; item += blockDim.x) {
        const int group = item / CUDA_PAGE, p = item % CUDA_PAGE, n = min(32, d - group * 32);
        float x[32];
#pragma unroll
        for (int c = 0; c < 32; c += 8) { /* n is a multiple of 8 */
            const uint4 none = make_uint4(0, 0, 0, 0),
                        eight = c < n ? *(const uint4 *)(from + p * line + group * 32 + c) : none;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t two = word_of(eight, i);
                *(float2 *)(x + c + 2 * i) = __half22float2(*(const __half2 *)&two);
            }
        }
        const code_group g = group_of(x, n, bits);
        scales[item] = g.scale;
        scales[2 * d_pad + item] = g.min;
#pragma unroll
        for (int c = 0; c < 32; c++)
            codes_store(bits, to, (p / 32 * d_pad + group * 32 + c) * 32 + p % 32, c < n ? g.code(x[c]) : 0u);
    }
}

#endif
