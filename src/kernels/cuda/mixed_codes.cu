/* mixed_codes.cu - codes of 4 and 8 bits of rows (mixed.cuh), those of the processor, in the order of the
 * lanes that multiply them. Values far from the others stay floats (act_extract_outliers). */
#include "kernels/cuda/codes.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mixed.cuh"
#include "kernels/cuda/row_math.cuh"

/* The factor and the mean of a row's norm. */
struct row_norm {
    float factor, mean;
};

__device__ __forceinline__ void four_load(const float *x, int i, int k, float v[4]) {
    *(float4 *)v = i + 4 <= k ? __ldcg((const float4 *)(x + i)) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int e = 0; i + e < k && i + 4 > k; e++)
        v[e] = x[i + e];
}

/* Four values of a row from i on, after the norm; zeros behind its end. */
__device__ __forceinline__ float4 four_normed(const mixed_job &j, const float *x, int i, row_norm by) {
    float v[4];
    four_load(x, i, j.k, v);
#pragma unroll
    for (int e = 0; e < 4; e++) {
        if (j.norm && i + e < j.k)
            v[e] = __fmul_rn(__fmul_rn(__fsub_rn(v[e], by.mean), by.factor), j.norm[i + e]);
        if (j.shift && i + e < j.k)
            v[e] = __fadd_rn(v[e], j.shift[i + e]);
    }
    return make_float4(v[0], v[1], v[2], v[3]);
}
/* `of` is a function of four values; its sum over the row, by a warp. */
template <class F> __device__ __forceinline__ float row_sum(const mixed_job &j, F of) {
    float sum = 0.0f;
    for (int i = 4 * (threadIdx.x % 32); i < j.k; i += 128)
        sum = __fadd_rn(sum, of(i));
    return pairs_sum(sum, 32);
}
__device__ __forceinline__ float four_squares(float4 v) {
    return __fmaf_rn(v.w, v.w, __fmaf_rn(v.z, v.z, __fmaf_rn(v.y, v.y, __fmul_rn(v.x, v.x))));
}
__device__ __forceinline__ row_norm norm_of(const mixed_job &j, const float *x) {
    row_norm by = {1.0f, 0.0f};
    if (!j.norm)
        return by;
    if (j.centred)
        by.mean = __fdiv_rn(row_sum(j,
                                    [&](int i) {
                                        float sum = 0.0f;
                                        for (int e = i; e < min(i + 4, j.k); e++)
                                            sum = __fadd_rn(sum, __ldcg(x + e));
                                        return sum;
                                    }),
                            (float)j.k);
    const float squares = row_sum(j, [&](int i) {
        float sum = 0.0f;
        for (int e = i; e < min(i + 4, j.k); e++) {
            const float v = __fsub_rn(__ldcg(x + e), by.mean);
            sum = __fmaf_rn(v, v, sum);
        }
        return sum;
    });
    by.factor = norm_factor_of(squares, (float)j.k, j.eps);
    return by;
}

/* Zeros in the place of the values that are floats. */
__device__ __forceinline__ float4 four_kept(const mixed_floats &f, int i, float4 v) {
    for (int n = 0; n < f.n; n++) {
        const int e = f.at[n] - i;
        v.x = e == 0 ? 0.0f : v.x;
        v.y = e == 1 ? 0.0f : v.y;
        v.z = e == 2 ? 0.0f : v.z;
        v.w = e == 3 ? 0.0f : v.w;
    }
    return v;
}

/* Finds a row's outliers, as act_extract_outliers does, by a warp. */
__device__ static void floats_find(const mixed_job &j, const float *x, row_norm by, mixed_floats *f) {
    const int lane = threadIdx.x % 32, bits = j.n8 < mixed_blocks(&j.shape) ? 4 : 8;
    const int max = act_max_outliers(bits);
    const float share = act_outlier_share(bits, j.k);
    for (int before = -1; before < f->n && f->n < max;) {
        const float least = __fmul_rn(share, row_sum(j, [&](int i) {
                                          return four_squares(four_kept(*f, i, four_normed(j, x, i, by)));
                                      }));
        int n = before = f->n;
        for (int first = 0; first < j.k && n < max; first += 128) {
            const float4 u = four_kept(*f, first + 4 * lane, four_normed(j, x, first + 4 * lane, by));
            const float v[4] = {u.x, u.y, u.z, u.w};
            unsigned above = 0;
#pragma unroll
            for (int e = 0; e < 4; e++)
                above |= (unsigned)(__fmul_rn(v[e], v[e]) > least) << e;
            unsigned lanes = __ballot_sync(~0u, above != 0);
            for (; lanes && n < max; lanes &= lanes - 1) {
                const int from = __ffs(lanes) - 1;
                const unsigned its = __shfl_sync(~0u, above, from);
#pragma unroll
                for (int e = 0; e < 4; e++)
                    if ((its >> e & 1) && n < max) {
                        if (lane == from) {
                            f->at[n] = first + 4 * lane + e;
                            f->value[n] = v[e];
                        }
                        n++;
                    }
            }
        }
        __syncwarp();
        if (lane == 0)
            f->n = n;
        __syncwarp();
    }
}
/* Stores the outliers in ascending order. */
__device__ __forceinline__ void floats_put(const mixed_floats &f, mixed_floats *to) {
    const int lane = threadIdx.x % 32;
    int place = 0;
    for (int i = 0; i < f.n && lane < f.n; i++)
        place += f.at[i] < f.at[lane];
    if (lane == 0)
        to->n = f.n;
    if (lane < f.n) {
        to->at[place] = f.at[lane];
        to->value[place] = f.value[lane];
    }
}

__device__ __forceinline__ uint32_t four_codes(float4 v, float inverse, float top) {
    const uint32_t u[4] = {
        __float_as_uint(code_upto(v.x, inverse, top)), __float_as_uint(code_upto(v.y, inverse, top)),
        __float_as_uint(code_upto(v.z, inverse, top)), __float_as_uint(code_upto(v.w, inverse, top))};
    return __byte_perm(__byte_perm(u[0], u[1], 0x0040), __byte_perm(u[2], u[3], 0x0040), 0x5410);
}

/* A block of threads has eight rows, a warp one of them, and a lane four channels of 128. */
__global__ void __launch_bounds__(256) mixed_quantize(const __grid_constant__ mixed_job j) {
    __shared__ mixed_floats shared[8];
    const int lane = threadIdx.x % 32, g = threadIdx.x / 32, row = blockIdx.x * 8 + g;
    const int n_block = (int)mixed_blocks(&j.shape), groups = MIXED_BLOCK / j.group, each = 32 / groups;
    launch_next();
    launch_wait();
    for (int i = threadIdx.x; blockIdx.x == 0 && i < j.n_part; i += 256)
        j.arrived[i] = 0;
    if (row >= j.n_row)
        return;
    const float *const x = j.x + row * j.ldx;
    const row_norm by = norm_of(j, x);
    mixed_floats &f = shared[g];
    if (lane == 0)
        f.n = 0;
    __syncwarp();
    floats_find(j, x, by, &f);
    floats_put(f, &j.floats[row]);
    uint8_t *to = j.codes + blockIdx.x * eight_bytes(n_block, j.n8);
    float *const scales = j.scales + (int64_t)blockIdx.x * n_block * groups * 8 + g;
    /* of a tile: lane % 16 is the quad, and its first 32 of K are half 0. A dword of codes of 4 bits has two
     * quads, of both halves, or in groups of 32 of one half (mixed_operand). */
    const int tile = lane / 16, half = lane / 8 % 2, second = lane / 4 % 2, reader = 4 * g + lane % 4;
    for (int b = 0; b < n_block; b++) {
        const bool eight = b < j.n8;
        const float top = eight ? 127.0f : 7.0f;
        const int i = b * MIXED_BLOCK + 4 * lane;
        const float4 v = four_kept(f, i, four_normed(j, x, i, by));
        const uint32_t most = max(max(sized_bits(v.x, top), sized_bits(v.y, top)),
                                  max(sized_bits(v.z, top), sized_bits(v.w, top)));
        const uint32_t some = max_lanes(most, each), other = __shfl_xor_sync(~0u, some, 16);
        const float2 scale = scales_by(each == 32 ? max(some, other) : some, top);
        const uint32_t own = four_codes(v, scale.y, top),
                       upper = __shfl_xor_sync(~0u, own, each == 8 ? 4 : 8);
        if (lane % each == 0)
            scales[(b * groups + lane / each) * 8] = scale.x;
        if (eight)
            *(uint32_t *)(to + tile * (EIGHT_BYTES / 2) + reader * 16 + half * 8 + second * 4) = own;
        else if ((each == 8 ? second : half) == 0)
            *(uint32_t *)(to + tile * (EIGHT_BYTES / 4) + reader * 8 + (each == 8 ? half : second) * 4) =
                (own & 0x0f0f0f0fu) | (upper & 0x0f0f0f0fu) << 4;
        to += eight ? EIGHT_BYTES : EIGHT_BYTES / 2;
    }
}

int mixed_codes_launch(const mixed_job &j, cuda_stream s) {
    const int e = prepare(mixed_quantize, 0);
    return e ? e : launch(mixed_quantize, dim3((unsigned)mixed_up(j.n_row, 8)), dim3(256), 0, s, j);
}
