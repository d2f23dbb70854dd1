/* attend_warp.cuh - the work of a warp of attend.cu: the pieces of pages, in halves and in codes, and the
 * warp's sums. */
#ifndef NIB_KERNELS_CUDA_ATTEND_WARP_CUH
#define NIB_KERNELS_CUDA_ATTEND_WARP_CUH

#include "kernels/cuda/attend.cuh"

enum { WARPS = 8, HEADS = 8 };
/* A block has WARPS warps. It has FEWER (or twice as many for heads of more than 128 channels) if there are
 * enough blocks for several on a multiprocessor. Then a warp does the work of several warps, one after the
 * other, so the bits stay the same. */
enum { FEWER = WARPS / 4 };
/* One block reads up to this many pages alone. With more pages a block has at least two, because joining
 * costs more than reading. */
enum { TOGETHER_PAGES = 4 };
/* Positions in a warp's piece of a page: PIECE in halves, CODES in codes. */
enum { PIECE = 16, CODES = 32 };
/* Weights are kept 2^10 times as large, so that halves represent small weights with all their bits. */
#define WEIGHT_UP 10.0f
/* Queries times scales are kept 2^8 times as large, for the same reason. */
#define QUERY_UP 8.0f

struct attend_job {
    cuda_attend a;
    int n_group;    /* query heads of a KV head */
    int n_together; /* query heads of a block */
    int n_span;     /* blocks that share the pages of a sequence */
    float *parts;
    unsigned *arrived;
    codes_row leaves;
    codes_rows leaves_rows; /* leaves_rows: for several rows */
};

/* The positions that a row attends to, and the number of blocks that share them. */
struct attend_range {
    const int32_t *pages;
    int position, low, page0, n_page, n_span;
    int n_stored; /* positions that the cache has: all, or all but the row's own */
};
__device__ __forceinline__ attend_range range_of(const attend_job &j, int position, int first_page) {
    const cuda_attend &a = j.a;
    attend_range r;
    r.pages = a.pages + first_page;
    r.position = position;
    r.low = low_of(a, position);
    r.n_stored = a.k ? position : position + 1;
    r.page0 = r.low / CUDA_PAGE;
    r.n_page = r.position / CUDA_PAGE + 1 - r.page0;
    r.n_span = r.n_page <= TOGETHER_PAGES ? 1 : min(j.n_span, (r.n_page + 1) / 2);
    return r;
}
__host__ __device__ __forceinline__ int head_blocks(const attend_job &j) {
    return (j.n_group + j.n_together - 1) / j.n_together;
}

template <int D> struct attend_shared {
    enum { LINE = D + 4 /* the lanes of a step read different banks */ };
    __align__(16) float query[HEADS][LINE];
    __align__(16) __half fresh[2][D];
    float max_of[HEADS][WARPS], sum_of[HEADS][WARPS]; /* later the factors of the warps */
    float max_score[HEADS], sum[HEADS], inverse[HEADS] /* 1 / sum */;
    float slope[HEADS]; /* ALiBi's; set if it is used */
    float sink[HEADS];  /* set if there are sinks */
    bool is_last;
};

/* The work of a block, and a lane's position in its warp: g = lane / 4, t = lane % 4. */
template <int D> struct attend_work {
    const attend_job &j;
    attend_shared<D> &shared;
    attend_range range;
    int kv_head, head0, n_here; /* n_here query heads from head0 on */
    int row, g, t;
};

/* ---- a warp's sums ---- */

/* For head g: the largest score, the lane's part of the sum of weights, and the results. Tile 4 c + j of the
 * results has channel 32 c + 8 t + 4 e + j in column 2 t + e. */
template <int D, int BITS> struct warp_sums {
    float max_score, sum, out[D / 8][4];
    float minima[BITS == 16 ? 1 : D / 32]; /* the lane's part of the sums of minima, for each 32 channels */
};

/* Turns the scores of 2 N positions into weights and rescales the earlier sums. */
template <int D, int BITS, int N>
__device__ __forceinline__ void weigh(warp_sums<D, BITS> *s, float (&x)[N][2]) {
    float max_score = s->max_score;
#pragma unroll
    for (int i = 0; i < N; i++)
        max_score = fmaxf(max_score, fmaxf(x[i][0], x[i][1]));
    max_score = fmaxf(max_score, __shfl_xor_sync(~0u, max_score, 1));
    max_score = fmaxf(max_score, __shfl_xor_sync(~0u, max_score, 2));
    const float old = s->max_score == -INFINITY ? 0.0f : exp2f(__fsub_rn(s->max_score, max_score));
    s->max_score = max_score;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            x[i][e] =
                x[i][e] == -INFINITY ? 0.0f : exp2f(__fadd_rn(__fsub_rn(x[i][e], max_score), WEIGHT_UP));
            sum = __fadd_rn(sum, x[i][e]);
        }
    s->sum = __fmaf_rn(s->sum, old, sum);
    if (!__any_sync(~0u, old != 1.0f))
        return;
#pragma unroll
    for (int i = 0; i < D / 8; i++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            s->out[i][e] = __fmul_rn(s->out[i][e], old);
    if (BITS != 16)
#pragma unroll
        for (int c = 0; c < D / 32; c++)
            s->minima[BITS == 16 ? 0 : c] = __fmul_rn(s->minima[BITS == 16 ? 0 : c], old);
}

/* A score in units of log 2; -INFINITY outside the row's range. */
template <int D> __device__ __forceinline__ float score_of(const attend_work<D> &w, float x, int position) {
    const cuda_attend &a = w.j.a;
    x = __fmul_rn(x, a.scale);
    if (a.softcap > 0)
        x = a.softcap * tanhf(x / a.softcap);
    if (a.alibi_max_bias > 0)
        x = __fmaf_rn((float)(position - w.range.position), w.shared.slope[w.g], x);
    return position >= w.range.low && position <= w.range.position ? __fmul_rn(x, LOG2_E) : -INFINITY;
}

/* The queries of head g as the instruction's operand: channels 32 c + 8 t + 4 r + (0 1, 2 3). */
template <int D>
__device__ __forceinline__ void query_operand(const attend_work<D> &w, int c, int r, uint32_t (&q)[4]) {
    const float4 x = *(const float4 *)&w.shared.query[w.g][32 * c + 8 * w.t + 4 * r];
    const uint2 one = as_two_halves(x.x, x.y), two = as_two_halves(x.z, x.w);
    q[0] = one.x, q[1] = one.y, q[2] = two.x, q[3] = two.y;
}

/* ---- halves ---- */

/* PIECE positions of keys and values: keys 8 i + g, channels 32 c + 8 t ..; values of positions 2 t, 2 t + 1,
 * 2 t + 8, 2 t + 9, channels 32 c + 4 g .. */
template <int D> struct half_piece {
    uint4 key[2][D / 32];
    uint2 value[4][D / 32];
};
__device__ __forceinline__ int value_position(int i, int t) {
    return i / 2 * 8 + 2 * t + i % 2;
}

template <int D>
__device__ __forceinline__ void keys_load(const attend_work<D> &w, int base, half_piece<D> *p) {
    const cuda_attend &a = w.j.a;
    const int d = (int)a.kv.d_head;
    const __half *from = recent_at(a, false, w.range.pages, base / CUDA_PAGE, w.kv_head) + 8 * w.t;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int at = base + 8 * i + w.g;
        const bool there = at >= w.range.low && at < w.range.n_stored;
#pragma unroll
        for (int c = 0; c < D / 32; c++) {
            p->key[i][c] = make_uint4(0, 0, 0, 0);
            if (there && 32 * c + 8 * w.t < d)
                p->key[i][c] = *(const uint4 *)(from + at % CUDA_PAGE * d + 32 * c);
        }
    }
}
template <int D>
__device__ __forceinline__ void values_load(const attend_work<D> &w, int base, half_piece<D> *p) {
    const cuda_attend &a = w.j.a;
    const int d = (int)a.kv.d_head;
    const __half *from = recent_at(a, true, w.range.pages, base / CUDA_PAGE, w.kv_head) + 4 * w.g;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int at = base + value_position(i, w.t);
        const bool there = at >= w.range.low && at < w.range.n_stored;
#pragma unroll
        for (int c = 0; c < D / 32; c++) {
            p->value[i][c] = make_uint2(0, 0);
            if (there && 32 * c + 4 * w.g < d)
                p->value[i][c] = *(const uint2 *)(from + at % CUDA_PAGE * d + 32 * c);
        }
    }
}
/* Inserts the new key and value if the piece has their position. */
template <int D>
__device__ __forceinline__ void fresh_take(const attend_work<D> &w, int base, half_piece<D> *p) {
    if (w.range.position < base || w.range.position >= base + PIECE || !w.j.a.k)
        return;
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (base + 8 * i + w.g == w.range.position)
#pragma unroll
            for (int c = 0; c < D / 32; c++)
                p->key[i][c] = *(const uint4 *)(w.shared.fresh[0] + 32 * c + 8 * w.t);
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (base + value_position(i, w.t) == w.range.position)
#pragma unroll
            for (int c = 0; c < D / 32; c++)
                p->value[i][c] = *(const uint2 *)(w.shared.fresh[1] + 32 * c + 4 * w.g);
}

/* Computes the scores, then the weights, of positions 8 i + 2 t + e. */
template <int D, int BITS>
__device__ __forceinline__ void keys_score(const attend_work<D> &w, int base, const half_piece<D> &p,
                                           warp_sums<D, BITS> *s, float (&x)[2][2]) {
    float score[2][4] = {};
#pragma unroll
    for (int c = 0; c < D / 32; c++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            uint32_t q[4];
            query_operand(w, c, r, q);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint4 k = p.key[i][c];
                mma_halves(score[i], q, r ? k.z : k.x, r ? k.w : k.y);
            }
        }
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int e = 0; e < 2; e++)
            x[i][e] = score_of(w, __fadd_rn(score[i][e], score[i][e + 2]), base + 8 * i + 2 * w.t + e);
    weigh(s, x);
}
template <int D, int BITS>
__device__ __forceinline__ void values_sum(const half_piece<D> &p, const float (&x)[2][2],
                                           warp_sums<D, BITS> *s) {
    const uint2 one = as_two_halves(x[0][0], x[0][1]), two = as_two_halves(x[1][0], x[1][1]);
    const uint32_t weight[4] = {one.x, one.y, two.x, two.y};
#pragma unroll
    for (int c = 0; c < D / 32; c++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            auto two_of = [&](int i) {
                const uint32_t a = j / 2 ? p.value[i][c].y : p.value[i][c].x,
                               b = j / 2 ? p.value[i + 1][c].y : p.value[i + 1][c].x;
                return __byte_perm(a, b, j % 2 ? 0x7632 : 0x5410);
            };
            mma_halves(s->out[4 * c + j], weight, two_of(0), two_of(2));
        }
}

/* ---- codes ---- */

/* CODES positions: keys of positions 8 (g / 2) + 2 i + g % 2, channels 32 c + 8 t ..; values of positions 8 t
 * .., channels 32 c + 4 g + j. Scales and minima are eight halves. */
template <int D, int BITS> struct code_keys {
    eight_codes<BITS> code[4][D / 32];
    uint4 scale[D / 32], min[D / 32]; /* of the channels */
};
template <int D, int BITS> struct code_values {
    eight_codes<BITS> code[D / 8];
    uint4 scale[D / 32], min[D / 32]; /* of the positions, for 32 channels */
};

/* Instead of 32 missing channels it loads the last ones again: queries are zeros there, and nobody reads the
 * results. */
template <int D, int BITS>
__device__ __forceinline__ void keys_load(const attend_work<D> &w, int base, code_keys<D, BITS> *p) {
    const cuda_attend &a = w.j.a;
    const int d_pad = ((int)a.kv.d_head + 31) / 32 * 32, side = base % CUDA_PAGE / CODES;
    const uint8_t *codes = page_at(a, a.kv.k, BITS, w.range.pages, base / CUDA_PAGE, w.kv_head);
    const __half *scales = (const __half *)(codes + d_pad * CUDA_PAGE * BITS / 8) + side * d_pad + 8 * w.t;
#pragma unroll
    for (int c = 0; c < D / 32; c++) {
        const int at = min(32 * c, d_pad - 32);
#pragma unroll
        for (int i = 0; i < 4; i++)
            p->code[i][c].load(codes,
                               (side * CODES + 8 * (w.g / 2) + 2 * i + w.g % 2) * d_pad + at + 8 * w.t);
        p->scale[c] = load_now(scales + at);
        p->min[c] = load_now(scales + 2 * d_pad + at);
    }
}
template <int D, int BITS>
__device__ __forceinline__ void values_load(const attend_work<D> &w, int base, code_values<D, BITS> *p) {
    const cuda_attend &a = w.j.a;
    const int d_pad = ((int)a.kv.d_head + 31) / 32 * 32, side = base % CUDA_PAGE / CODES;
    const uint8_t *codes = page_at(a, a.kv.v, BITS, w.range.pages, base / CUDA_PAGE, w.kv_head);
#pragma unroll
    for (int c = 0; c < D / 32; c++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            p->code[4 * c + j].load(codes,
                                    (side * d_pad + min(32 * c, d_pad - 32) + 4 * w.g + j) * CODES + 8 * w.t);
}
/* A function of its own: registers for these are free only after the scores are computed. */
template <int D, int BITS>
__device__ __forceinline__ void value_scales_load(const attend_work<D> &w, int base,
                                                  code_values<D, BITS> *p) {
    const cuda_attend &a = w.j.a;
    const int d_pad = ((int)a.kv.d_head + 31) / 32 * 32, side = base % CUDA_PAGE / CODES;
    const uint8_t *codes = page_at(a, a.kv.v, BITS, w.range.pages, base / CUDA_PAGE, w.kv_head);
    const __half *scales = (const __half *)(codes + d_pad * CUDA_PAGE * BITS / 8) + side * CODES + 8 * w.t;
#pragma unroll
    for (int c = 0; c < D / 32; c++) {
        const int at = min(c, d_pad / 32 - 1) * CUDA_PAGE;
        p->scale[c] = load_now(scales + at);
        p->min[c] = load_now(scales + 2 * d_pad + at);
    }
}
__device__ __forceinline__ float2 two_floats(const uint4 &x, int i) {
    const uint32_t u = i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
    return __half22float2(*(const __half2 *)&u);
}

/* Computes the scores, then the weights, of positions 8 t + 2 i + e. */
template <int D, int BITS>
__device__ __forceinline__ void keys_score(const attend_work<D> &w, int base, const code_keys<D, BITS> &p,
                                           warp_sums<D, BITS> *s, float (&x)[4][2]) {
    float score[4][4] = {}, minima = 0.0f;
#pragma unroll
    for (int c = 0; c < D / 32; c++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float4 q = *(const float4 *)&w.shared.query[w.g][32 * c + 8 * w.t + 4 * r];
            const float2 a = two_floats(p.scale[c], 2 * r), b = two_floats(p.scale[c], 2 * r + 1);
            const float2 m = two_floats(p.min[c], 2 * r), n = two_floats(p.min[c], 2 * r + 1);
            minima = __fmaf_rn(q.y, m.y, __fmaf_rn(q.x, m.x, minima));
            minima = __fmaf_rn(q.w, n.y, __fmaf_rn(q.z, n.x, minima));
            const uint2 one = as_two_halves(q.x * QUERY_UP * a.x, q.y * QUERY_UP * a.y),
                        two = as_two_halves(q.z * QUERY_UP * b.x, q.w * QUERY_UP * b.y);
            const uint32_t query[4] = {one.x, one.y, two.x, two.y};
#pragma unroll
            for (int i = 0; i < 4; i++)
                mma_halves(score[i], query, p.code[i][c].pair(2 * r), p.code[i][c].pair(2 * r + 1));
        }
    minima = __fadd_rn(minima, __shfl_xor_sync(~0u, minima, 1));
    minima = __fadd_rn(minima, __shfl_xor_sync(~0u, minima, 2));
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int e = 0; e < 2; e++)
            x[i][e] = score_of(w, __fmaf_rn(__fadd_rn(score[i][e], score[i][e + 2]), 1.0f / QUERY_UP, minima),
                               base + 8 * w.t + 2 * i + e);
    weigh(s, x);
}
template <int D, int BITS>
__device__ __forceinline__ void values_sum(const code_values<D, BITS> &p, const float (&x)[4][2],
                                           warp_sums<D, BITS> *s) {
#pragma unroll
    for (int c = 0; c < D / 32; c++)
#pragma unroll
        for (int u = 0; u < 2; u++) {
            uint32_t weight[4];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float *const y = x[2 * u + i];
                const float2 a = two_floats(p.scale[c], 2 * u + i), m = two_floats(p.min[c], 2 * u + i);
                const uint2 two = as_two_halves(__fmul_rn(y[0], a.x), __fmul_rn(y[1], a.y));
                weight[2 * i] = two.x, weight[2 * i + 1] = two.y;
                s->minima[c] = __fmaf_rn(y[1], m.y, __fmaf_rn(y[0], m.x, s->minima[c]));
            }
#pragma unroll
            for (int j = 0; j < 4; j++)
                mma_halves(s->out[4 * c + j], weight, p.code[4 * c + j].pair(2 * u),
                           p.code[4 * c + j].pair(2 * u + 1));
        }
}

#endif
