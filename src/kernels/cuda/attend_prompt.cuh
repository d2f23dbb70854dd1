/* attend_prompt.cuh - shared by both kernels for the attention of prompts: rotated queries, and the weights
 * of a page. */
#ifndef NIB_KERNELS_CUDA_ATTEND_PROMPT_CUH
#define NIB_KERNELS_CUDA_ATTEND_PROMPT_CUH

#include "kernels/cuda/attend.cuh"

/* Loads the rotated queries of one head for a warp's 16 rows from row0 on, of which n exist: [16][D + 8]
 * halves. */
template <int D>
__device__ __forceinline__ void queries_load(const cuda_attend &a, __half *to, int row0, int n, int head) {
    enum { LINE = D + 8, ROWS = 16 };
    const int d = (int)a.kv.d_head, n_turn = a.cos_sin ? (int)a.n_rot / 2 : 0, lane = threadIdx.x % 32;
#pragma unroll
    for (int p = lane; p < D / 2; p += 32) {
        if (p >= d / 2)
            break;
        const bool turned = p < n_turn, apart = a.style == ROPE_HALF && turned;
        const int one = apart ? p : 2 * p, other = apart ? p + n_turn : 2 * p + 1;
        /* All loads are in flight together. Missing rows load the last row again. */
        float2 x[ROWS];
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
            const float *q = a.q + (row0 + min(row, n - 1)) * a.ldq + (int64_t)head * d;
            x[row] = make_float2(q[one], q[other]);
        }
        if (turned)
#pragma unroll
            for (int row = 0; row < ROWS; row++) {
                const int from = row0 + min(row, n - 1);
                const float *table =
                    a.cos_sin + (int64_t)(a.cos_sin_by_row ? from : a.position[from]) * a.n_rot;
                const float c = table[p], s = table[n_turn + p];
                x[row] = make_float2(__fsub_rn(__fmul_rn(x[row].x, c), __fmul_rn(x[row].y, s)),
                                     __fadd_rn(__fmul_rn(x[row].x, s), __fmul_rn(x[row].y, c)));
            }
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
            to[row * LINE + one] = __float2half_rn(x[row].x);
            to[row * LINE + other] = __float2half_rn(x[row].y);
        }
    }
}

/* 2^x; results below the smallest normal float are 0. */
__device__ __forceinline__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* For a lane's two rows (g and g + 8 of its warp): the largest score so far, and the lane's part of the sum
 * of weights. */
struct row_sums {
    float max_score[2], sum[2];
};

/* The factor that converts scores of any kind to units of log 2. */
__device__ __forceinline__ float score_scale(const cuda_attend &a) {
    return a.softcap > 0 || a.alibi_max_bias > 0 ? LOG2_E : __fmul_rn(a.scale, LOG2_E);
}

/* Turns a page's scores into weights. score[4 i + c] belongs to position 8 i + 2 t + c % 2 of the page and to
 * row c / 2. first: the position of the warp's first row. slope: alibi_slope. old: the factor of the earlier
 * sums. */
__device__ __forceinline__ void page_weigh(const cuda_attend &a, int page, int first, float slope,
                                           float (&score)[32], row_sums *f, float (&old)[2]) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, base = page * CUDA_PAGE + 2 * t;
    const float scale = score_scale(a);
    const bool cut = page * CUDA_PAGE + CUDA_PAGE - 1 > first || page * CUDA_PAGE < low_of(a, first + 15);
    if (a.softcap > 0)
#pragma unroll
        for (int i = 0; i < 32; i++)
            score[i] = a.softcap * tanhf(score[i] * a.scale / a.softcap);
    if (a.alibi_max_bias > 0)
#pragma unroll
        for (int i = 0; i < 32; i++) {
            const int behind = base + i / 4 * 8 + i % 2 - (first + g + i % 4 / 2 * 8);
            score[i] = __fmaf_rn((float)behind, slope, a.softcap > 0 ? score[i] : score[i] * a.scale);
        }
    if (cut)
#pragma unroll
        for (int i = 0; i < 32; i++) {
            const int at = base + i / 4 * 8 + i % 2, row = first + g + i % 4 / 2 * 8;
            if (at > row || at < low_of(a, row))
                score[i] = -INFINITY;
        }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float top = f->max_score[r];
#pragma unroll
        for (int i = 2 * r; i < 32; i += 4)
            top = fmaxf(top, fmaxf(score[i], score[i + 1]));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        const float from = top == -INFINITY ? 0.0f : -top * scale;
        /* exactly 1 if the maximum stays: a page in which the row sees nothing changes no sum */
        old[r] = f->max_score[r] == -INFINITY ? 0.0f
                 : f->max_score[r] == top     ? 1.0f
                                              : power_of_two(__fmaf_rn(f->max_score[r], scale, from));
        float more = 0.0f;
        f->max_score[r] = top;
#pragma unroll
        for (int i = 2 * r; i < 32; i += 4) {
            score[i] = power_of_two(__fmaf_rn(score[i], scale, from));
            score[i + 1] = power_of_two(__fmaf_rn(score[i + 1], scale, from));
            more = __fadd_rn(__fadd_rn(more, score[i]), score[i + 1]);
        }
        f->sum[r] = __fmaf_rn(f->sum[r], old[r], more);
    }
}

/* Writes a warp's results of one head to the n rows from row0 on. out[4 i + c] is element 8 i + 2 t + c % 2
 * of row c / 2. SINKS: a.sinks is not NULL. */
template <int D, bool SINKS>
__device__ __forceinline__ void rows_write(const cuda_attend &a, const row_sums &f, const float (&out)[D / 2],
                                           int row0, int n, int head) {
    const int d = (int)a.kv.d_head, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = __fadd_rn(f.sum[r], __shfl_xor_sync(~0u, f.sum[r], 1));
        sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 2));
        const int row = g + 8 * r;
        float *to = a.out + (row0 + row) * a.ldo + (int64_t)head * d + 2 * t;
        const float factor = inverse_with(SINKS, SINKS ? __fmul_rn(f.max_score[r], score_scale(a)) : 0.0f,
                                          sum, SINKS ? sink_of(a, head) : 0.0f, 0.0f);
#pragma unroll
        for (int i = 0; i < D / 8; i++)
            if (row < n && 8 * i < d)
                *(float2 *)(to + 8 * i) = make_float2(__fmul_rn(out[4 * i + 2 * r], factor),
                                                      __fmul_rn(out[4 * i + 2 * r + 1], factor));
    }
}

#endif
