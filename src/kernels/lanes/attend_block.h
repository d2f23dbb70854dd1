/* attend_block.h - attention over one block of 64 positions: scores, weights, values. Included by attend.h.
 *
 * In a quantized cache the blocks before a pair's own are codes, x = scale * code + min; its own block is
 * read from the recent positions, in f16. A group shares its scale and min among 32 positions of a key's
 * channel, or 32 channels of a value, so with queries q and weights p
 *
 *     score of j  = sum_d q_d min_d + sum_d (q_d scale_d) code_jd
 *     output of d = sum_j p_j min_j + sum_j (p_j scale_j) code_jd
 *
 * where the factors in brackets are computed once for 32 codes of a pair. So a code takes its conversion to
 * a float and one multiplication. With few pairs, codes are converted in registers. With many pairs, the
 * block's keys, and then its values, are converted once, because that uses the execution ports of the
 * multiplications. The pairs then pass over them in tiles whose accumulators fill the registers.
 *
 * When many sequences decode, each has its own cache, so a group has few pairs, reads its cache once and
 * waits for memory. So loops over halves and codes prefetch what is read after a block's keys from then on:
 * its values, the next block's keys, and after the last block the next group's keys. They prefetch as many
 * bytes as they read. */
#ifndef NIB_KERNELS_LANES_ATTEND_BLOCK_H
#define NIB_KERNELS_LANES_ATTEND_BLOCK_H

#include "base/num.h"
#include "kernels/kernels.h"
#include "kernels/kv_layout.h"
#include "kernels/lanes/math.h"

#include <math.h>

enum { ATTEND_VECTORS = ATTEND_KV / LANES };

/* What a loop reads. KV_IN_WIDE: codes that have been converted to floats. */
typedef enum kv_kind { KV_IN_F32, KV_IN_F16, KV_IN_8, KV_IN_4, KV_IN_WIDE } kv_kind;

typedef struct attend_group {
    const attend_args *a;
    kv_view kv; /* where blocks are read from: the cache, or its recent positions */
    bool is_recent;
    int64_t kv_head;
    int n_pair;
    int64_t d_pad;
    struct {
        int64_t row, head;
        int64_t lo, hi; /* sees positions lo <= p < hi */
        float slope;
        float max, sum;             /* of the current span: the largest score, the sum of weights */
        float max_total, total_sum; /* of the earlier spans */
        bool is_first;              /* there is no earlier span */
    } pair[ATTEND_PAIRS];
    float *q;        /* [tiles][d_head][8]: the queries of a tile, interleaved, as broadcast operands */
    float *scores;   /* [pairs][64] */
    float *out;      /* [pairs][d_pad], of the current span */
    float *total;    /* [pairs][d_pad], of the earlier spans */
    float *wide;     /* the block's keys or values as floats, for ATTEND_MANY pairs and more */
    float *factors;  /* codes: [2][pairs][kv_d_pad] q * scale of both halves of the block's positions, later
                        [pairs][64][groups] p * scale; groups: of 32 channels */
    float *minima;   /* [groups] the sums of p * min of a pair */
    int32_t *spread; /* [groups][16]: vector t of [16 positions][groups] has these of 16 weights */
    float offsets[2][ATTEND_PAIRS]; /* codes: the sums of q * min, likewise */

    int64_t p0;                /* first position of the current block */
    const void *keys, *values; /* of the current block, if it is in f16 or f32 */
    int64_t lead;              /* bytes from what is read to what is prefetched */
    int64_t hi;                /* blocks end here */
    const void *then;          /* keys that are read after the last of these blocks; NULL: unknown */
    const void *next;          /* likewise after the group's last block */
    /* of the current block, if it is in codes */
    const uint8_t *key_codes, *value_codes;
    const uint16_t *first_key, *first_value;   /* of position 0 in f16; NULL: not in this block */
    const uint16_t *key_scales, *value_scales; /* halves: scales, then minima, in the block's order */
} attend_group;

/* Number of vectors that are computed at once for np pairs. Each vector of a pair is a chain of dependent
 * additions (two chains, if it takes two registers), and eight or more chains keep the multipliers busy. All
 * np times this many accumulators, and the loaded operands, fit the registers. */
LANES_INLINE int attend_width(int np) {
    if (ATTEND_VEC == 1)
        return np == 1 ? 4 : np <= 3 ? 2 : 1;
    return np == ATTEND_TILE ? ATTEND_VEC : 4;
}

/* The first component of pair i's query; the next one is ATTEND_STRIDE floats further. Only pairs of the same
 * tile are computed together. */
LANES_INLINE float *query_at(const attend_group *g, int i) {
    return g->q + i / ATTEND_TILE * g->a->kv.d_head * ATTEND_STRIDE + i % ATTEND_TILE;
}

LANES_INLINE vf kv_load(kv_kind kind, const void *base, int64_t at) {
    return kind == KV_IN_F16 ? v_load_f16((const uint16_t *)base + at) : v_load((const float *)base + at);
}
LANES_INLINE vf kv_load_part(kv_kind kind, const void *base, int64_t at, int n) {
    return kind == KV_IN_F16 ? v_load_f16_part((const uint16_t *)base + at, n)
                             : v_load_part((const float *)base + at, n);
}

LANES_INLINE bool kv_kind_is_coded(kv_kind kind) {
    return kind == KV_IN_8 || kind == KV_IN_4 || kind == KV_IN_WIDE;
}

/* Component d of the keys of 16 positions: vector v0 + v of the block; of codes, the codes. Vector v0 begins
 * at element `base` of the block's keys. v0 is even or v is 0. */
LANES_INLINE vf key_load(const attend_group *g, kv_kind kind, int64_t base, int64_t d, int v0, int v) {
    if (kind == KV_IN_8)
        return v_load_u8(g->key_codes + d * KV_BLOCK + (v0 + v) * LANES);
    if (kind == KV_IN_4)
        return v_load_u4(g->key_codes + d * (KV_BLOCK / 2) + (v0 + v) % 2 * LANES, v0 + v > 1);
    return kv_load(kind, g->keys, base + (v * g->kv.d_head + d) * LANES);
}

/* 16 components of the values of position j of the block, from d0 + 16 * v on; of codes, the codes. Component
 * d0 is element `at` of the block's values. d0 is a multiple of 32 or v is 0. */
LANES_INLINE vf value_load(const attend_group *g, kv_kind kind, int64_t at, int64_t j, int64_t d0, int v,
                           int part) {
    const int64_t d_pad = kv_d_pad(g->kv.d_head);
    if (kind == KV_IN_8)
        return v_load_u8(g->value_codes + j * d_pad + d0 + v * LANES);
    if (kind == KV_IN_4)
        return v_load_u4(g->value_codes + j * (d_pad / 2) + (d0 / KV_GROUP + v / 2) * LANES,
                         v > 0 ? v % 2 == 1 : d0 % KV_GROUP >= LANES);
    return part == LANES ? kv_load(kind, g->values, at + v * LANES) : kv_load_part(kind, g->values, at, part);
}

/* Of codes: pair i's q * scale for a half of the block's positions, and its p * scale. */
LANES_INLINE float *key_factors(const attend_group *g, int half, int i) {
    return g->factors + (half * ATTEND_PAIRS + i) * kv_d_pad(g->kv.d_head);
}
LANES_INLINE float *value_factors(const attend_group *g, int i) {
    return g->factors + i * 2 * kv_d_pad(g->kv.d_head);
}

/* The accumulators leave so few registers that the operands of two pairs must not be loaded at once. */
LANES_INLINE bool attend_is_tight(int np, int nv) {
    return ATTEND_VEC == 1 && np == 3 && nv == 2;
}

/* A head's keys or values of the block at p0. */
static const void *block_at(const attend_group *g, bool is_value, int64_t p0) {
    const int64_t page = p0 / KV_BLOCK;
    return kv_block_at(&g->kv, is_value, g->kv_head, g->is_recent ? 0 : page);
}

/* Bytes of halves or codes, with their scales, that a vector of 16 has in the mean. */
LANES_INLINE int vector_bytes(kv_kind kind) {
    return kind == KV_IN_F16 ? 32 : kind == KV_IN_8 ? 18 : kind == KV_IN_4 ? 10 : 0;
}

/* The bytes of them that are read. Of halves, keys are read in whole vectors. */
static int64_t block_bytes(const attend_group *g, bool is_value, int64_t p0) {
    if (kv_is_coded(g->kv.type))
        return kv_block_bytes(g->kv.type, g->kv.d_head);
    const int64_t n = NUM_MIN(g->hi - p0, ATTEND_KV);
    return (is_value ? n : num_round_up(n, LANES)) * g->kv.d_head * (int64_t)sizeof(uint16_t);
}

/* What is read g->lead bytes after byte `at` of the current block's keys or values. After the last block,
 * these are the keys that come then; if they are unknown, values that were read already. */
static const char *ahead_of(const attend_group *g, bool is_value, int64_t at) {
    int64_t p0 = g->p0, n;
    at += g->lead;
    while (at >= (n = block_bytes(g, is_value, p0))) {
        at -= n;
        if (is_value && (p0 += ATTEND_KV) >= g->hi)
            return (const char *)(g->then ? g->then : block_at(g, true, g->p0)) + at;
        is_value = !is_value;
    }
    return (const char *)block_at(g, is_value, p0) + at;
}

/* Step i of a loop that reads nv vectors in each step prefetches as many bytes. */
LANES_INLINE void prefetch_ahead(kv_kind kind, const char *ahead, int64_t i, int nv) {
    const int each = nv * vector_bytes(kind);
    LANES_UNROLL
    for (int at = 0; at < each; at += 64)
        __builtin_prefetch(ahead + i * each + at);
}

/* Scores of np pairs for nv vectors of 16 positions from position 16 * v0 of the block. np and nv are
 * constants. */
LANES_INLINE void score_block(const attend_group *g, kv_kind kind, int first, int np, int v0, int nv) {
    const bool coded = kv_kind_is_coded(kind);
    const int64_t d_head = g->kv.d_head, base = kv_key_at(d_head, LANES * v0, 0);
    const float *q = coded ? key_factors(g, 0, first) : query_at(g, first);
    const int64_t each = coded ? kv_d_pad(d_head) : 1, step = coded ? 1 : ATTEND_STRIDE;
    const char *ahead = vector_bytes(kind) ? ahead_of(g, false, v0 * d_head * vector_bytes(kind)) : NULL;
    vf sum[ATTEND_TILE][4];
    LANES_UNROLL
    for (int i = 0; i < np; i++) {
        LANES_UNROLL
        for (int v = 0; v < nv; v++)
            sum[i][v] = coded ? v_set(g->offsets[(v0 + v) / 2][first + i]) : v_zero();
    }
    for (int64_t d = 0; d < d_head; d++, q += step) {
        prefetch_ahead(kind, ahead, d, nv);
        LANES_UNROLL
        for (int v = 0; v < nv; v++) {
            const vf k = key_load(g, kind, base, d, v0, v);
            const float *from = coded ? q + (v0 + v) / 2 * ATTEND_PAIRS * each : q;
            LANES_UNROLL
            for (int i = 0; i < np; i++) {
                sum[i][v] = v_fma(v_set(from[i * each]), k, sum[i][v]);
                if (attend_is_tight(np, nv))
                    from = v_before(&sum[i][v], from);
            }
        }
    }
    LANES_UNROLL
    for (int i = 0; i < np; i++) {
        LANES_UNROLL
        for (int v = 0; v < nv; v++)
            v_store(g->scores + (first + i) * ATTEND_KV + (v0 + v) * LANES, sum[i][v]);
    }
}

LANES_INLINE void score_vectors(const attend_group *g, kv_kind kind, int first, int np, int64_t p0) {
    const int wide = attend_width(np);
    int64_t hi = p0;
    for (int i = first; i < first + np; i++)
        hi = NUM_MAX(hi, g->pair[i].hi);
    const int n_vec = (int)NUM_MIN(num_div_up(hi - p0, LANES), ATTEND_VECTORS);
    int v = 0;
    for (; v + wide <= n_vec; v += wide)
        score_block(g, kind, first, np, v, wide);
    for (; v < n_vec; v++)
        score_block(g, kind, first, np, v, 1);
}

/* out[np pairs][nv vectors from d0] += p[pair][j] * v[j], for positions [j0, j1) of the block; the last
 * vector has `part` lanes. */
LANES_INLINE void value_block(const attend_group *g, kv_kind kind, int first, int np, int64_t j0, int64_t j1,
                              int64_t d0, int nv, int part) {
    const int64_t d_head = g->kv.d_head;
    const bool coded = kv_kind_is_coded(kind);
    const int64_t n_group = kv_d_pad(d_head) / KV_GROUP, each = coded ? n_group * ATTEND_KV : ATTEND_KV;
    const float *p = coded ? value_factors(g, first) + d0 / KV_GROUP : g->scores + first * ATTEND_KV;
    float *out = g->out + first * g->d_pad + d0;
    const char *ahead =
        vector_bytes(kind) ? ahead_of(g, true, d0 / LANES * (j1 - j0) * vector_bytes(kind)) : NULL;
    vf sum[ATTEND_TILE][4];
    LANES_UNROLL
    for (int i = 0; i < np; i++) {
        LANES_UNROLL
        for (int v = 0; v < nv; v++)
            sum[i][v] = v_load(out + i * g->d_pad + v * LANES);
    }
    int64_t at = kv_value_at(d_head, j0, d0);
    for (int64_t j = j0; j < j1; j++, at += d_head) {
        prefetch_ahead(kind, ahead, j - j0, nv);
        LANES_UNROLL
        for (int v = 0; v < nv; v++) {
            const vf x = value_load(g, kind, at, j, d0, v, part);
            const float *from = coded ? p + j * n_group + v / 2 : p + j;
            LANES_UNROLL
            for (int i = 0; i < np; i++) {
                sum[i][v] = v_fma(v_set(from[i * each]), x, sum[i][v]);
                if (attend_is_tight(np, nv))
                    from = v_before(&sum[i][v], from);
            }
        }
    }
    LANES_UNROLL
    for (int i = 0; i < np; i++) {
        LANES_UNROLL
        for (int v = 0; v < nv; v++)
            v_store(out + i * g->d_pad + v * LANES, sum[i][v]);
    }
}

LANES_INLINE void value_range(const attend_group *g, kv_kind kind, int first, int np, int64_t j0,
                              int64_t j1) {
    const int64_t d_head = g->a->kv.d_head;
    if (j0 >= j1)
        return;
    const int wide = attend_width(np);
    int64_t d = 0;
    for (; d + LANES * wide <= d_head; d += LANES * wide)
        value_block(g, kind, first, np, j0, j1, d, wide, LANES);
    for (; d + LANES <= d_head; d += LANES)
        value_block(g, kind, first, np, j0, j1, d, 1, LANES);
    if (d < d_head)
        value_block(g, kind, first, np, j0, j1, d, 1, (int)(d_head - d));
}

typedef void value_one_fn(const attend_group *g, int i, int64_t j0, int64_t j1);
#define VALUE_ONE(name, kind)                                                                                \
    static void name(const attend_group *g, int i, int64_t j0, int64_t j1) {                                 \
        value_range(g, kind, i, 1, j0, j1);                                                                  \
    }
VALUE_ONE(value_one_f32, KV_IN_F32)
VALUE_ONE(value_one_f16, KV_IN_F16)
VALUE_ONE(value_one_8, KV_IN_8)
VALUE_ONE(value_one_4, KV_IN_4)
VALUE_ONE(value_one_wide, KV_IN_WIDE)

/* np pairs over one block. The positions that all of them see are computed together; the others for each pair
 * on its own. */
LANES_INLINE void value_pairs(const attend_group *g, kv_kind kind, int first, int np, int64_t p0) {
    int64_t lo = 0, hi = ATTEND_KV, lows[ATTEND_TILE], highs[ATTEND_TILE];
    for (int i = 0; i < np; i++) {
        lows[i] = NUM_MAX(g->pair[first + i].lo - p0, 0);
        highs[i] = NUM_MIN(g->pair[first + i].hi - p0, ATTEND_KV);
        lo = NUM_MAX(lo, lows[i]);
        hi = NUM_MIN(hi, highs[i]);
    }
    value_one_fn *one =
        (value_one_fn *const[]){value_one_f32, value_one_f16, value_one_8, value_one_4, value_one_wide}[kind];
    if (lo >= hi) {
        for (int i = 0; i < np; i++)
            one(g, first + i, lows[i], highs[i]);
        return;
    }
    for (int i = 0; i < np; i++)
        if (lows[i] < lo)
            one(g, first + i, lows[i], lo);
    value_range(g, kind, first, np, lo, hi);
    for (int i = 0; i < np; i++)
        if (hi < highs[i])
            one(g, first + i, hi, highs[i]);
}

/* Gives the positions of the block that pair i sees, [*lo, *hi), counted from the block's first; false:
 * none. */
static inline bool seen_by(const attend_group *g, int i, int64_t p0, int *lo, int *hi) {
    *lo = (int)NUM_MAX(g->pair[i].lo - p0, 0);
    *hi = (int)NUM_MIN(g->pair[i].hi - p0, ATTEND_KV);
    return *lo < *hi;
}

/* Whether a position of vector v is in [lo, hi). */
LANES_INLINE bool vector_is_seen(int v, int lo, int hi) {
    return lo < (v + 1) * LANES && hi > v * LANES;
}

/* Scales a pair's scores, sets those outside [lo, hi), which it does not see, to -inf, and returns the
 * largest. Vectors without a position that it sees stay as they are. plain: no soft cap and no slope. whole:
 * the pair sees all of the block. Both are constants. */
LANES_INLINE float scale_vectors(const attend_group *g, int i, int64_t p0, bool plain, bool whole, int lo,
                                 int hi) {
    static const float ramp[LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const attend_args *a = g->a;
    const float slope = g->pair[i].slope;
    float *row = g->scores + i * ATTEND_KV;
    const vf low = v_set(-INFINITY), scale = v_set(a->scale);
    vf max = low;
    LANES_UNROLL
    for (int v = 0; v < ATTEND_VECTORS; v++, row += LANES) {
        if (!whole && !vector_is_seen(v, lo, hi))
            continue;
        vf x = v_mul(v_load(row), scale);
        if (!plain && a->softcap > 0)
            x = v_mul(v_tanh(v_div(x, v_set(a->softcap))), v_set(a->softcap));
        if (!plain && slope != 0) {
            const float distance = (float)(p0 + v * LANES - (g->pair[i].hi - 1));
            x = v_fma(v_add(v_set(distance), v_load(ramp)), v_set(slope), x);
        }
        if (!whole)
            x = v_select(v_between(lo - v * LANES, hi - v * LANES), x, low);
        max = v_max(max, x);
        v_store(row, x);
    }
    return v_largest(max);
}

static float scale_scores(const attend_group *g, int i, int64_t p0, int lo, int hi) {
    if (g->a->softcap > 0 || g->pair[i].slope != 0)
        return scale_vectors(g, i, p0, false, false, lo, hi);
    return hi - lo == ATTEND_KV ? scale_vectors(g, i, p0, true, true, lo, hi)
                                : scale_vectors(g, i, p0, true, false, lo, hi);
}

/* Turns the scores of one pair into weights, 0 where it does not see, and returns their sum. Vectors without
 * a position that it sees are not written. whole is a constant: the pair sees all of the block. Positions
 * that are not seen bypass v_exp: e^-inf would underflow, which takes a processor several times as long. */
LANES_INLINE float weigh_vectors(float *row, float max, bool whole, int lo, int hi) {
    const vf top = v_set(max);
    vf p[ATTEND_VECTORS];
    LANES_UNROLL
    for (int v = 0; v < ATTEND_VECTORS; v++) {
        p[v] = v_zero();
        if (!whole && !vector_is_seen(v, lo, hi))
            continue;
        const vf x = v_sub(v_load(row + v * LANES), top);
        if (whole) {
            p[v] = v_exp(x);
        } else {
            const vm seen = v_between(lo - v * LANES, hi - v * LANES);
            p[v] = v_select(seen, v_exp(v_select(seen, x, v_zero())), v_zero());
        }
        v_store(row + v * LANES, p[v]);
    }
    return v_sum(v_add(v_add(p[0], p[1]), v_add(p[2], p[3])));
}

static float weigh(float *row, float max, int lo, int hi) {
    return hi - lo == ATTEND_KV ? weigh_vectors(row, max, true, lo, hi)
                                : weigh_vectors(row, max, false, lo, hi);
}

/* Turns scores into weights and rescales the sums to the new maxima. All maxima are computed first, then all
 * weights, so that the dependent operations of several pairs overlap. */
static void soften(attend_group *g, int64_t p0) {
    float shrink[ATTEND_PAIRS]; /* e^(old maximum - new maximum) */
    int lo, hi;
    for (int i = 0; i < g->n_pair; i++) {
        shrink[i] = 0;
        if (!seen_by(g, i, p0, &lo, &hi))
            continue;
        const float before = g->pair[i].max, tallest = scale_scores(g, i, p0, lo, hi);
        const float now = tallest > before ? tallest : before;
        shrink[i] = tallest > before ? before - now : 0;
        g->pair[i].max = now;
    }
    for (int i = g->n_pair; i % LANES; i++)
        shrink[i] = 0;
    for (int i = 0; i < g->n_pair; i += LANES)
        v_store(shrink + i, v_exp(v_load(shrink + i)));
    for (int i = 0; i < g->n_pair; i++) {
        if (!seen_by(g, i, p0, &lo, &hi))
            continue;
        const float total = weigh(g->scores + i * ATTEND_KV, g->pair[i].max, lo, hi);
        g->pair[i].sum = g->pair[i].sum * shrink[i] + total;
        float *out = g->out + i * g->d_pad;
        for (int64_t d = 0; d < g->d_pad && shrink[i] != 1; d += LANES)
            v_store(out + d, v_mul(v_load(out + d), v_set(shrink[i])));
    }
}

/* ---- the first position ---- */

/* Scores of position 0, where it is in f16: d in order of vectors, then across lanes. */
static void score_first(const attend_group *g) {
    const attend_args *a = g->a;
    const int64_t d_head = g->kv.d_head;
    for (int i = 0; i < g->n_pair && g->first_key; i++) {
        const float *q = a->q + (g->pair[i].row * a->n_head + g->pair[i].head) * d_head;
        vf sum = v_zero();
        int64_t d = 0;
        for (; d + LANES <= d_head; d += LANES)
            sum = v_fma(v_load(q + d), v_load_f16(g->first_key + d), sum);
        if (d < d_head)
            sum = v_fma(v_load_part(q + d, (int)(d_head - d)),
                        v_load_f16_part(g->first_key + d, (int)(d_head - d)), sum);
        g->scores[i * ATTEND_KV] = v_sum(sum);
    }
}

/* Adds the value of position 0 to out, if it is in f16, and takes the weight *p from its codes. */
static void add_first(const attend_group *g, float *out, float *p) {
    for (int64_t d = 0; d < g->kv.d_head; d += LANES) {
        const int n = (int)NUM_MIN(g->kv.d_head - d, (int64_t)LANES);
        v_store(out + d, v_fma(v_set(*p), v_load_f16_part(g->first_value + d, n), v_load(out + d)));
    }
    *p = 0;
}

/* ---- factors of codes ---- */

/* Multiplies the pairs' queries by the scales and the minima of the block's keys. */
static void scale_queries(attend_group *g) {
    const attend_args *a = g->a;
    const int64_t d_head = g->kv.d_head, d_pad = kv_d_pad(d_head), n_scale = kv_scale_count(d_head);
    for (int i = 0; i < g->n_pair; i++) {
        const float *q = a->q + (g->pair[i].row * a->n_head + g->pair[i].head) * d_head;
        for (int half = 0; half < 2; half++) {
            const uint16_t *scale = g->key_scales + (g->first_key ? 0 : half * d_pad), *min = scale + n_scale;
            float *to = key_factors(g, half, i);
            vf offset = v_zero();
            int64_t d = 0;
            for (; d + LANES <= d_head; d += LANES) {
                const vf x = v_load(q + d);
                v_store(to + d, v_mul(x, v_load_f16(scale + d)));
                offset = v_fma(x, v_load_f16(min + d), offset);
            }
            if (d < d_head) {
                const int part = (int)(d_head - d);
                const vf x = v_load_part(q + d, part);
                v_store(to + d, v_mul(x, v_load_f16_part(scale + d, part)));
                offset = v_fma(x, v_load_f16_part(min + d, part), offset);
            }
            g->offsets[half][i] = v_sum(offset);
        }
    }
}

/* Multiplies the weights of pair i, which sees positions [lo, hi), by the scales and the minima of the
 * block's values, and adds the products with the minima to its outputs. whole is a constant: it sees all of
 * the block. A vector is a part of [16 positions][groups], so its lanes need some of 16 weights. */
LANES_INLINE void scale_weights_of(attend_group *g, int i, bool whole, int lo, int hi) {
    const int n_group = (int)(kv_d_pad(g->kv.d_head) / KV_GROUP);
    const bool alike = LANES % n_group == 0; /* a lane has the same group in all vectors */
    const uint16_t *scale = g->value_scales, *min = scale + kv_scale_count(g->kv.d_head);
    const float *p = g->scores + i * ATTEND_KV;
    float *to = value_factors(g, i), *out = g->out + i * g->d_pad, *of = g->minima, lanes[LANES];
    vf sum = v_zero();
    memset(of, 0, (size_t)n_group * sizeof *of);
    for (int t = 0, group = 0; t < n_group; t++) {
        for (int k = 0; k < ATTEND_VECTORS; k++) {
            const int at = (k * n_group + t) * LANES;
            const vf x = v_permute(v_load(p + k * LANES), g->spread + t * LANES);
            vf factor = v_mul(x, v_load_f16(scale + at)), more = v_fma(x, v_load_f16(min + at), sum);
            if (!whole) {
                const vm seen = v_between(lo * n_group - at, hi * n_group - at);
                factor = v_select(seen, factor, v_zero());
                more = v_select(seen, more, sum);
            }
            v_store(to + at, factor);
            sum = more;
        }
        if (alike && t + 1 < n_group)
            continue;
        v_store(lanes, sum);
        sum = v_zero();
        for (int l = 0; l < LANES; l++, group = group + 1 == n_group ? 0 : group + 1)
            of[group] += lanes[l];
    }
    for (int64_t d = 0; d < g->d_pad; d += LANES)
        v_store(out + d, v_add(v_load(out + d), v_set(of[d / KV_GROUP])));
}

static void scale_weights(attend_group *g, int64_t p0) {
    int lo, hi;
    for (int i = 0; i < g->n_pair; i++) {
        if (!seen_by(g, i, p0, &lo, &hi))
            continue;
        if (g->first_key && lo == 0)
            add_first(g, g->out + i * g->d_pad, g->scores + i * ATTEND_KV);
        if (hi - lo == ATTEND_KV)
            scale_weights_of(g, i, true, lo, hi);
        else
            scale_weights_of(g, i, false, lo, hi);
    }
}

static void enter_block(attend_group *g, int64_t p0) {
    const uint8_t *keys = block_at(g, false, p0), *values = block_at(g, true, p0);
    g->p0 = p0;
    g->keys = keys;
    g->values = values;
    g->first_key = g->first_value = NULL;
    if (!kv_is_coded(g->kv.type))
        return;
    const int64_t codes = kv_code_bytes(g->kv.type, g->kv.d_head);
    if (g->kv.first && p0 == 0) {
        g->first_key = kv_first_at(&g->kv, false, keys);
        g->first_value = kv_first_at(&g->kv, true, keys);
    }
    g->key_codes = keys;
    g->value_codes = values;
    g->key_scales = (const uint16_t *)(const void *)(keys + codes);
    g->value_scales = (const uint16_t *)(const void *)(values + codes);
}

/* Calls a loop above with n as a constant: a tile, or 4, 3, 2 or 1 pairs. */
#define ATTEND_BY_COUNT(n, call)                                                                             \
    do {                                                                                                     \
        int first = 0;                                                                                       \
        for (; first + ATTEND_TILE <= (n); first += ATTEND_TILE)                                             \
            call(ATTEND_TILE);                                                                               \
        for (; first + 4 <= (n); first += 4)                                                                 \
            call(4);                                                                                         \
        for (; first + 3 <= (n); first += 3)                                                                 \
            call(3);                                                                                         \
        for (; first + 2 <= (n); first += 2)                                                                 \
            call(2);                                                                                         \
        for (; first < (n); first++)                                                                         \
            call(1);                                                                                         \
    } while (0)

LANES_INLINE void score_pairs(const attend_group *g, kv_kind kind, int64_t p0) {
#define SCORE(np) score_vectors(g, kind, first, np, p0)
    ATTEND_BY_COUNT(g->n_pair, SCORE);
#undef SCORE
}
LANES_INLINE void add_values(const attend_group *g, kv_kind kind, int64_t p0) {
#define VALUE(np) value_pairs(g, kind, first, np, p0)
    ATTEND_BY_COUNT(g->n_pair, VALUE);
#undef VALUE
}

/* ---- many pairs ---- */

static void score_wide(const attend_group *g, int64_t p0) {
    score_pairs(g, KV_IN_F32, p0);
}
static void values_wide(const attend_group *g, int64_t p0) {
    add_values(g, KV_IN_F32, p0);
}
static void score_wide_codes(const attend_group *g, int64_t p0) {
    score_pairs(g, KV_IN_WIDE, p0);
}
static void values_wide_codes(const attend_group *g, int64_t p0) {
    add_values(g, KV_IN_WIDE, p0);
}

/* Widens the first n positions of the block, halves or codes, to the layout of an f32 page. A row of values
 * may be written beyond its end, where the next row follows; the buffer has padding after the last one. */
LANES_INLINE void widen_keys(const attend_group *g, kv_kind kind, int64_t n) {
    const int64_t d_head = g->kv.d_head;
    float *to = g->wide;
    for (int v = 0; v * LANES < n; v++)
        for (int64_t d = 0; d < d_head; d++, to += LANES)
            v_store(to, key_load(g, kind, v * d_head * LANES, d, v, 0));
}
LANES_INLINE void widen_values(const attend_group *g, kv_kind kind, int64_t n) {
    const int64_t d_head = g->kv.d_head;
    int64_t at = 0;
    float *to = g->wide;
    for (int64_t j = 0; j < n; j++, at += d_head, to += d_head) {
        int64_t d = 0;
        for (; d + LANES <= d_head; d += LANES)
            v_store(to + d, value_load(g, kind, at + d, j, d, 0, LANES));
        if (d < d_head)
            v_store(to + d, value_load(g, kind, at + d, j, d, 0, (int)(d_head - d)));
    }
}

/* The same of values that are the keys, with codes scaled: tiles of 16 positions and channels are
 * transposed. */
LANES_INLINE void widen_shared(const attend_group *g, kv_kind kind, int64_t n) {
    const int64_t d_head = g->kv.d_head;
    float tile[LANES][LANES], scale[LANES], min[LANES];
    for (int v = 0; v * LANES < n; v++)
        for (int64_t d0 = 0; d0 < d_head; d0 += LANES) {
            const int64_t some = NUM_MIN(d_head - d0, (int64_t)LANES);
            float *to = g->wide + v * LANES * d_head + d0;
            if (kv_kind_is_coded(kind)) {
                const uint16_t *scales = g->key_scales + v / 2 * kv_d_pad(d_head) + d0;
                v_store(scale, v_load_f16(scales));
                v_store(min, v_load_f16(scales + kv_scale_count(d_head)));
            }
            for (int64_t d = 0; d < some; d++) {
                const vf x = key_load(g, kind, v * d_head * LANES, d0 + d, v, 0);
                v_store(tile[d], kv_kind_is_coded(kind) ? v_fma(x, v_set(scale[d]), v_set(min[d])) : x);
            }
            for (int64_t j = 0; j < LANES; j++, to += d_head)
                for (int64_t d = 0; d < some; d++)
                    to[d] = tile[d][j];
        }
}

LANES_INLINE void attend_many(attend_group *g, kv_kind kind, int64_t p0, int64_t n) {
    const bool coded = kv_kind_is_coded(kind);
    attend_group wide = *g;
    wide.keys = wide.values = g->wide;
    widen_keys(g, kind, n);
    if (coded)
        score_wide_codes(&wide, p0);
    else
        score_wide(&wide, p0);
    score_first(g);
    soften(g, p0);
    if (g->kv.shared) {
        widen_shared(g, kind, n);
        values_wide(&wide, p0);
        return;
    }
    widen_values(g, kind, n);
    if (coded) {
        scale_weights(g, p0);
        values_wide_codes(&wide, p0);
    } else {
        values_wide(&wide, p0);
    }
}

LANES_INLINE void attend_blocks(attend_group *g, kv_kind kind, int64_t lo, int64_t hi) {
    const int64_t first = lo / ATTEND_KV * ATTEND_KV;
    g->hi = hi;
    g->lead = vector_bytes(kind) ? block_bytes(g, false, first) : 0;
    for (int64_t p0 = first; p0 < hi; p0 += ATTEND_KV) {
        enter_block(g, p0);
        if (kv_kind_is_coded(kind))
            scale_queries(g);
        if (g->kv.shared || (kind != KV_IN_F32 && g->n_pair >= ATTEND_MANY)) {
            attend_many(g, kind, p0, NUM_MIN(hi - p0, ATTEND_KV));
            continue;
        }
        score_pairs(g, kind, p0);
        score_first(g);
        soften(g, p0);
        if (kv_kind_is_coded(kind))
            scale_weights(g, p0);
        add_values(g, kind, p0);
    }
}

static void attend_blocks_f32(attend_group *g, int64_t lo, int64_t hi) {
    attend_blocks(g, KV_IN_F32, lo, hi);
}
static void attend_blocks_f16(attend_group *g, int64_t lo, int64_t hi) {
    attend_blocks(g, KV_IN_F16, lo, hi);
}
static void attend_blocks_8(attend_group *g, int64_t lo, int64_t hi) {
    attend_blocks(g, KV_IN_8, lo, hi);
}
static void attend_blocks_4(attend_group *g, int64_t lo, int64_t hi) {
    attend_blocks(g, KV_IN_4, lo, hi);
}

#endif
