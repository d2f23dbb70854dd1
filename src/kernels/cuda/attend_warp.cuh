/* attend_warp.cuh - the work of a warp of attend.cu: the pieces of pages, in halves and in codes, and the
 * warp's sums. */
#ifndef NIB_KERNELS_CUDA_ATTEND_WARP_CUH
#define NIB_KERNELS_CUDA_ATTEND_WARP_CUH

#include "kernels/cuda/attend.cuh"

enum { WARPS = 8, HEADS = 8 };
/* A block has WARPS warps, or FEWER. Blocks of FEWER are a cluster of WARPS warps, or, with enough blocks for
 * several on a multiprocessor, a warp does the work of several warps, one after the other. The bits stay the
 * same. */
enum { FEWER = WARPS / 4 };
/* One block reads up to this many pages alone. With more pages a block has at least two, because joining
 * costs more than reading. */
enum { TOGETHER_PAGES = 4, MANY_PAGES = 16 /* cuda_attend.many */ };
/* Positions in a warp's piece of a page: PIECE in halves, CODES in codes. */
enum { PIECE = 16, CODES = 32 };
/* Weights are kept 2^10 times as large, so that halves represent small weights with all their bits. */
#define WEIGHT_UP 10.0f

struct attend_job {
    cuda_attend a;
    int n_group;    /* query heads of a KV head */
    int n_together; /* query heads of a block */
    int n_span;     /* blocks, or clusters of blocks, that share the pages of a sequence */
    int n_block;    /* blocks of a cluster, which share its warps and then its heads */
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
    r.n_span = a.many                       ? min(j.n_span, (r.n_page + MANY_PAGES - 1) / MANY_PAGES)
               : r.n_page <= TOGETHER_PAGES ? 1
                                            : min(j.n_span, (r.n_page + 1) / 2);
    return r;
}
__host__ __device__ __forceinline__ int head_blocks(const attend_job &j) {
    return (j.n_group + j.n_together - 1) / j.n_together;
}

/* Four channels of a query as the instruction's operand: two pairs, each as halves and their rounding
 * errors. */
struct __align__(16) query_four {
    __half2 first, first_error, second, second_error;
    __device__ __forceinline__ void put(int channel, float x) { /* of 0 .. 3 */
        __half *const to = (__half *)(channel / 2 ? &second : &first) + channel % 2;
        to[0] = __float2half_rn(x);
        to[2] = __float2half_rn(__fsub_rn(x, __half2float(to[0])));
    }
};
template <int D> struct attend_shared {
    enum { LINE = D / 4 + 1 /* the lanes of a step read different banks */ };
    query_four query[HEADS][LINE];
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
    int row, rank /* of the block in its cluster */, g, t;
};
/* The work of a block when it joins sums: its share of the cluster's heads. */
template <int D> __device__ __forceinline__ attend_work<D> joined_of(const attend_work<D> &w) {
    const int each = w.n_here / w.j.n_block;
    return {w.j, w.shared, w.range, w.kv_head, w.head0 + w.rank * each, each, w.row, w.rank, w.g, w.t};
}

/* ---- a warp's sums ---- */

/* For head g: the largest score, the lane's part of the sum of weights, and the results. Tile 4 c + j of the
 * results has channel 32 c + 8 t + 4 e + j in column 2 t + e. */
template <int D> struct warp_sums { float max_score, sum, out[D / 8][4]; };

/* Turns the scores of 2 N positions into weights and rescales the earlier sums. */
template <int D, int N> __device__ __forceinline__ void weigh(warp_sums<D> *s, float (&x)[N][2]) {
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
    const uint4 x = *(const uint4 *)&w.shared.query[w.g][8 * c + 2 * w.t + r];
    q[0] = x.x, q[1] = x.y, q[2] = x.z, q[3] = x.w;
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

/* PIECE positions of keys and values in shared memory, in lines of D channels. Eight channels change places
 * by the number of their line, so that the lanes that load together read different banks. */
template <int D> struct __align__(16) half_stage {
    uint4 key[PIECE][D / 8], value[PIECE][D / 8];
    static __device__ __forceinline__ int place(bool is_value, int line, int eight) {
        return eight ^ (is_value ? line & 6 : (line & 1) * 4);
    }
    __device__ __forceinline__ uint4 *at(bool is_value, int line, int eight) {
        return (is_value ? value : key)[line] + place(is_value, line, eight);
    }
};
/* The parts of a piece that a lane multiplies. */
template <int D>
__device__ __forceinline__ uint4 key_part(const attend_work<D> &, const half_piece<D> &p, int i, int c) {
    return p.key[i][c];
}
template <int D>
__device__ __forceinline__ uint2 value_part(const attend_work<D> &, const half_piece<D> &p, int i, int c) {
    return p.value[i][c];
}
template <int D>
__device__ __forceinline__ uint4 key_part(const attend_work<D> &w, const half_stage<D> &p, int i, int c) {
    const int line = 8 * i + w.g;
    return p.key[line][p.place(false, line, 4 * c + w.t)];
}
template <int D>
__device__ __forceinline__ uint2 value_part(const attend_work<D> &w, const half_stage<D> &p, int i, int c) {
    const int line = value_position(i, w.t);
    return ((const uint2 *)&p.value[line][p.place(true, line, 4 * c + w.g / 2)])[w.g % 2];
}

/* Whether pieces in halves pass through shared memory: wide heads, because registers do not hold a piece, and
 * heads of 64, whose pieces are short. Those of 128 are faster through registers. */
template <int D, int BITS> __host__ __device__ constexpr bool staged() {
    return BITS == 16 && D != 128;
}
/* A warp's piece in shared memory. Its copies are two groups, of keys and of values: the keys of the next
 * piece arrive while the values of this one are multiplied. */
template <int D> struct half_copies {
    half_stage<D> *stage;
    int step;
    int warp, next; /* the next piece to copy, of the pieces of warp `warp` of WARPS */
    int base;       /* the next piece's first position; negative: there is none */
    int32_t page;   /* and its page, which is looked up a piece before it is used */

    /* Begins to copy the next piece, or ends an empty group. */
    __device__ __forceinline__ void put(const attend_work<D> &w, bool is_value) {
        const cuda_attend &a = w.j.a;
        const int width = (int)a.kv.d_head, lane = threadIdx.x % 32;
        /* A constant d leaves no arithmetic on addresses. */
        auto copy = [&](int d) {
            const __half *const from =
                (const __half *)pool_at(a, is_value ? a.kv.v : a.kv.k, 16, page, w.kv_head) +
                base % CUDA_PAGE * d;
#pragma unroll
            for (int m = 0; m < PIECE * D / 256; m++) {
                const int line = (32 * m + lane) / (D / 8), eight = (32 * m + lane) % (D / 8);
                if (8 * eight < d)
                    copy_ahead<16>(stage->at(is_value, line, eight), from + line * d + 8 * eight);
                else
                    *stage->at(is_value, line, eight) = make_uint4(0, 0, 0, 0);
            }
        };
        __syncwarp(); /* all lanes have read the piece before */
        if (base >= 0 && width == D)
            copy(D);
        else if (base >= 0)
            copy(width);
        copies_end_group();
    }
    template <class Pieces> __device__ __forceinline__ void look(const attend_work<D> &w, const Pieces &of) {
        base = next < of.n ? of.at(next) : -1;
        page = base >= 0 ? w.range.pages[base / CUDA_PAGE] : 0;
    }
    /* Goes on to the next piece, also that of the next warp whose role this one has. */
    template <class Pieces> __device__ __forceinline__ void turn(const attend_work<D> &w, const Pieces &of) {
        next += WARPS;
        if (next >= of.n) {
            warp += step;
            next = warp < WARPS && warp < of.n ? warp : of.n;
        }
        look(w, of);
    }
    template <class Pieces> __device__ __forceinline__ void begin(const attend_work<D> &w, const Pieces &of) {
        next = warp < of.n ? warp : of.n;
        look(w, of);
        put(w, false);
        put(w, true);
        turn(w, of);
    }
    /* Waits for the keys or the values of the piece at at_base. Positions that the cache does not have
     * become the new one, or zeros. */
    __device__ __forceinline__ void take(const attend_work<D> &w, bool is_value, int at_base) {
        copies_wait<1>();
        __syncwarp();
        if (at_base >= w.range.low && at_base + PIECE <= w.range.n_stored)
            return;
        for (int line = 0; line < PIECE; line++) {
            const int at = at_base + line;
            const bool is_new = at == w.range.position && w.j.a.k;
            if (at < w.range.low || at >= w.range.n_stored)
                for (int i = threadIdx.x % 32; i < D / 8; i += 32)
                    *stage->at(is_value, line, i) =
                        is_new ? *(const uint4 *)(w.shared.fresh[is_value] + 8 * i) : make_uint4(0, 0, 0, 0);
        }
        __syncwarp();
    }
};

/* Computes the scores, then the weights, of positions 8 i + 2 t + e. Piece: half_piece or half_stage. */
template <int D, template <int> class Piece>
__device__ __forceinline__ void keys_score(const attend_work<D> &w, int base, const Piece<D> &p,
                                           warp_sums<D> *s, float (&x)[2][2]) {
    float score[2][4] = {};
#pragma unroll
    for (int c = 0; c < D / 32; c++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            uint32_t q[4];
            query_operand(w, c, r, q);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint4 k = key_part(w, p, i, c);
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
template <int D, template <int> class Piece>
__device__ __forceinline__ void values_sum(const attend_work<D> &w, const Piece<D> &p, const float (&x)[2][2],
                                           warp_sums<D> *s) {
    const uint2 one = as_two_halves(x[0][0], x[0][1]), two = as_two_halves(x[1][0], x[1][1]);
    const uint32_t weight[4] = {one.x, one.y, two.x, two.y};
#pragma unroll
    for (int c = 0; c < D / 32; c++) {
        const uint2 v[4] = {value_part(w, p, 0, c), value_part(w, p, 1, c), value_part(w, p, 2, c),
                            value_part(w, p, 3, c)};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            auto two_of = [&](int i) {
                return __byte_perm(j / 2 ? v[i].y : v[i].x, j / 2 ? v[i + 1].y : v[i + 1].x,
                                   j % 2 ? 0x7632 : 0x5410);
            };
            mma_halves(s->out[4 * c + j], weight, two_of(0), two_of(2));
        }
    }
}

/* ---- codes ---- */

/* CODES positions in shared memory, for one warp: keys of positions 8 (g / 2) + 2 i + g % 2, channels
 * 32 c + 8 t .., and values of positions 8 t .., channels 32 c + 4 g + j, as lane 4 g + t reads them. Scales
 * and minima: of each channel's keys; of each position's values, for 32 channels. */
template <int D, int BITS> struct __align__(16) code_piece {
    eight_codes<BITS> key[4][D / 32][32], value[D / 32][4][32];
    __half key_scale[2][D], value_scale[2][D / 32][CODES];
};

/* A piece's bytes in memory, and its groups of 32 channels. */
struct code_source {
    const uint8_t *codes, *scales;
    int n_32, side;
};
__device__ __forceinline__ code_source code_source_of(const cuda_attend &a, const uint8_t *page, int bits,
                                                      int base) {
    const int n_32 = ((int)a.kv.d_head + 31) / 32;
    return code_source{page, page + n_32 * (CUDA_PAGE * 4 * bits), n_32, base % CUDA_PAGE / CODES};
}
/* Copies of 16 bytes. A constant n_32 leaves no arithmetic on addresses. */
template <int D, int BITS>
__device__ __forceinline__ void keys_copy(const code_source &from, int n_32, code_piece<D, BITS> *to) {
    enum { EACH = BITS / 4 /* copies of 32 codes */, LINE = D / 32 * EACH };
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < LINE; m++) {
        const int n = 32 * m + lane, at = n / LINE, c = n % LINE / EACH, i = at / 2 % 4,
                  g = at / 8 * 2 + at % 2;
        if (c < n_32)
            copy_ahead<16>((uint4 *)to->key[i][c] + g * EACH + n % EACH,
                           from.codes + ((from.side * CODES + at) * n_32 * EACH + n % LINE) * 16);
    }
#pragma unroll
    for (int m = 0; m < 2; m++)
        if (lane < 4 * n_32)
            copy_ahead<16>(&to->key_scale[m][lane * 8],
                           from.scales + ((2 * m + from.side) * n_32 * 4 + lane) * 16);
}
template <int D, int BITS>
__device__ __forceinline__ void values_copy(const code_source &from, int n_32, code_piece<D, BITS> *to) {
    enum { EACH = BITS / 4 };
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < D * EACH / 32; m++) {
        const int n = 32 * m + lane, channel = n / EACH, c = channel / 32;
        if (c < n_32)
            copy_ahead<16>((uint4 *)to->value[c][channel % 4] + channel % 32 / 4 * EACH + n % EACH,
                           from.codes + (from.side * n_32 * 32 * EACH + n) * 16);
    }
#pragma unroll
    for (int m = 0; m < 2; m++)
        if (lane < 4 * n_32)
            copy_ahead<16>(&to->value_scale[m][lane / 4][lane % 4 * 8],
                           from.scales + (((m * n_32 + lane / 4) * 2 + from.side) * 4 + lane % 4) * 16);
}
/* Queues the copies of a piece's keys or values. */
template <int D, int BITS>
__device__ __forceinline__ void codes_copy(const attend_work<D> &w, bool is_value, int base,
                                           code_piece<D, BITS> *to) {
    const cuda_attend &a = w.j.a;
    const uint8_t *const page =
        page_at(a, is_value ? a.kv.v : a.kv.k, BITS, w.range.pages, base / CUDA_PAGE, w.kv_head);
    const code_source from = code_source_of(a, page, BITS, base);
    auto copy = [&](int n_32) {
        if (is_value)
            values_copy(from, n_32, to);
        else
            keys_copy(from, n_32, to);
    };
    if (from.n_32 == D / 32)
        copy(D / 32);
    else
        copy(from.n_32);
}

/* Computes the scores, then the weights, of positions 8 t + 2 i + e. */
template <int D, int BITS>
__device__ __forceinline__ void keys_score(const attend_work<D> &w, int base, const code_piece<D, BITS> &p,
                                           warp_sums<D> *s, float (&x)[4][2]) {
    const int last = ((int)w.j.a.kv.d_head - 1) / 32;
    float score[4][4] = {};
#pragma unroll
    for (int c = 0; c < D / 32; c++) {
        const int at = min(c, last); /* queries of missing channels are zeros */
        const uint4 scale = *(const uint4 *)&p.key_scale[0][32 * at + 8 * w.t],
                    low = *(const uint4 *)&p.key_scale[1][32 * at + 8 * w.t];
        uint32_t q[2][4];
        query_operand(w, c, 0, q[0]);
        query_operand(w, c, 1, q[1]);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const eight_codes<BITS> code = p.key[i][at][4 * w.g + w.t];
#pragma unroll
            for (int r = 0; r < 2; r++)
                mma_halves(score[i], q[r], code.halves(2 * r, scale, low),
                           code.halves(2 * r + 1, scale, low));
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int e = 0; e < 2; e++)
            x[i][e] = score_of(w, __fadd_rn(score[i][e], score[i][e + 2]), base + 8 * w.t + 2 * i + e);
    weigh(s, x);
}
template <int D, int BITS>
__device__ __forceinline__ void values_sum(const attend_work<D> &w, const code_piece<D, BITS> &p,
                                           const float (&x)[4][2], warp_sums<D> *s) {
    const int last = ((int)w.j.a.kv.d_head - 1) / 32;
    uint32_t weight[2][4];
#pragma unroll
    for (int u = 0; u < 4; u++) {
        const uint2 two = as_two_halves(x[u][0], x[u][1]);
        weight[u / 2][u % 2 * 2] = two.x, weight[u / 2][u % 2 * 2 + 1] = two.y;
    }
#pragma unroll
    for (int c = 0; c < D / 32; c++) {
        const int at = min(c, last); /* nobody reads the sums of missing channels */
        const uint4 scale = *(const uint4 *)&p.value_scale[0][at][8 * w.t],
                    low = *(const uint4 *)&p.value_scale[1][at][8 * w.t];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const eight_codes<BITS> code = p.value[at][j][4 * w.g + w.t];
#pragma unroll
            for (int u = 0; u < 2; u++)
                mma_halves(s->out[4 * c + j], weight[u], code.halves(2 * u, scale, low),
                           code.halves(2 * u + 1, scale, low));
        }
    }
}

#endif
