/* attend_block.h - attention over one block of 64 positions: scores, weights, values. Included by attend.h.
 *
 * In a quantized cache the blocks before a pair's own are widened, x = scale * code + min; its own block is
 * read from the recent positions, in f16. With few pairs, widening is done in registers. With many pairs, the
 * block's keys, and then its values, are converted to floats once, because widening uses the execution ports
 * of the multiplications. The pairs then pass over them in tiles whose accumulators fill the registers.
 *
 * When many sequences decode, each has its own cache, so a group has few pairs, reads f16 once and waits for
 * memory. So loops over f16 prefetch what is read after a block's keys from then on: its values, the next
 * block's keys, and after the last block the next group's keys. They prefetch as many bytes as they read. */
#ifndef NIB_KERNELS_LANES_ATTEND_BLOCK_H
#define NIB_KERNELS_LANES_ATTEND_BLOCK_H

#include "base/num.h"
#include "kernels/kernels.h"
#include "kernels/kv_layout.h"
#include "kernels/lanes/math.h"

#include <math.h>

enum { ATTEND_VECTORS = ATTEND_KV / LANES };

typedef enum kv_kind { KV_IN_F32, KV_IN_F16, KV_IN_8, KV_IN_4 } kv_kind;

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
    float *q;      /* [tiles][d_head][8]: the queries of a tile, interleaved, as broadcast operands */
    float *scores; /* [pairs][64] */
    float *out;    /* [pairs][d_pad], of the current span */
    float *total;  /* [pairs][d_pad], of the earlier spans */
    float *wide;   /* the block's keys or values as floats, for ATTEND_MANY pairs and more */

    int64_t p0;                /* first position of the current block */
    const void *keys, *values; /* of the current block, if it is in f16 or f32 */
    int64_t lead;              /* f16: bytes from what is read to what is prefetched */
    const void *next;          /* keys that are read after the group's last block; NULL: unknown */
    /* of the current block, if it is in codes */
    const uint8_t *key_codes, *value_codes;
    float *key_scales, *value_scales; /* scales, then minima, in the block's order */
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

/* Component d of the keys of 16 positions: vector v0 + v of the block. Vector v0 begins at element `base` of
 * the block's keys. v0 is even or v is 0. */
LANES_INLINE vf key_load(const attend_group *g, kv_kind kind, int64_t base, int64_t d, int v0, int v) {
    const int64_t d_head = g->kv.d_head;
    if (kind == KV_IN_F16 || kind == KV_IN_F32)
        return kv_load(kind, g->keys, base + (v * d_head + d) * LANES);
    const float *scale = g->key_scales + (v0 / 2 + v / 2) * kv_d_pad(d_head) + d;
    const vf code = kind == KV_IN_8
                        ? v_load_u8(g->key_codes + d * KV_BLOCK + (v0 + v) * LANES)
                        : v_load_u4(g->key_codes + d * (KV_BLOCK / 2) + (v0 + v) % 2 * LANES, v0 + v > 1);
    return v_fma(code, v_set(scale[0]), v_set(scale[kv_scale_count(d_head)]));
}

/* 16 components of the values of position j of the block, from d0 + 16 * v on. Component d0 is element `at`
 * of the block's values. d0 is a multiple of 32 or v is 0. */
LANES_INLINE vf value_load(const attend_group *g, kv_kind kind, int64_t at, int64_t j, int64_t d0, int v,
                           int part) {
    const int64_t d_head = g->kv.d_head, d_pad = kv_d_pad(d_head), d = d0 + v * LANES;
    if (kind == KV_IN_F16 || kind == KV_IN_F32)
        return part == LANES ? kv_load(kind, g->values, at + v * LANES)
                             : kv_load_part(kind, g->values, at, part);
    const float *scale = g->value_scales + j * (d_pad / KV_GROUP) + d0 / KV_GROUP + v / 2;
    const vf code = kind == KV_IN_8 ? v_load_u8(g->value_codes + j * d_pad + d)
                                    : v_load_u4(g->value_codes + j * (d_pad / 2) + d / KV_GROUP * LANES,
                                                d % KV_GROUP >= LANES);
    return v_fma(code, v_set(scale[0]), v_set(scale[kv_scale_count(d_head)]));
}

/* The accumulators leave so few registers that the operands of two pairs must not be loaded at once. */
LANES_INLINE bool attend_is_tight(int np, int nv) {
    return ATTEND_VEC == 1 && np == 3 && nv == 2;
}

/* A head's keys or values of the block at p0. */
static const void *block_at(const attend_group *g, bool is_value, int64_t p0) {
    const int64_t page = p0 / KV_BLOCK;
    return kv_block_at(&g->kv, is_value, g->kv_head, g->is_recent ? kv_recent_block(page) : page);
}

/* f16: the bytes of them that are read. Keys are read in whole vectors. */
static int64_t block_bytes(const attend_group *g, bool is_value, int64_t p0) {
    const int64_t n = NUM_MIN(g->pair[g->n_pair - 1].hi - p0, ATTEND_KV);
    return (is_value ? n : num_round_up(n, LANES)) * g->kv.d_head * (int64_t)sizeof(uint16_t);
}

/* f16: what is read g->lead bytes after byte `at` of the current block's keys or values. After the group's
 * last block, these are the next group's keys; if they are unknown, values that were read already. */
static const char *ahead_of(const attend_group *g, bool is_value, int64_t at) {
    int64_t p0 = g->p0, n;
    at += g->lead;
    while (at >= (n = block_bytes(g, is_value, p0))) {
        at -= n;
        if (is_value && (p0 += ATTEND_KV) >= g->pair[g->n_pair - 1].hi)
            return g->next ? (const char *)g->next + at : g->values;
        is_value = !is_value;
    }
    return (const char *)block_at(g, is_value, p0) + at;
}

/* Step i of a loop that reads nv vectors of halves in each step prefetches as many bytes. */
LANES_INLINE void prefetch_ahead(kv_kind kind, const char *ahead, int64_t i, int nv) {
    if (kind != KV_IN_F16)
        return;
    LANES_UNROLL
    for (int v = 0; v < nv; v += 2)
        __builtin_prefetch(ahead + 2 * (i * nv + v) * LANES);
}

/* Scores of np pairs for nv vectors of 16 positions from position 16 * v0 of the block. np and nv are
 * constants. */
LANES_INLINE void score_block(const attend_group *g, kv_kind kind, int first, int np, int v0, int nv) {
    const int64_t d_head = g->kv.d_head, base = kv_key_at(d_head, LANES * v0, 0);
    const float *q = query_at(g, first);
    const char *ahead = kind == KV_IN_F16 ? ahead_of(g, false, 2 * base) : NULL;
    vf sum[ATTEND_TILE][4];
    LANES_UNROLL
    for (int i = 0; i < np; i++) {
        LANES_UNROLL
        for (int v = 0; v < nv; v++)
            sum[i][v] = v_zero();
    }
    for (int64_t d = 0; d < d_head; d++, q += ATTEND_STRIDE) {
        prefetch_ahead(kind, ahead, d, nv);
        LANES_UNROLL
        for (int v = 0; v < nv; v++) {
            const vf k = key_load(g, kind, base, d, v0, v);
            const float *from = q;
            LANES_UNROLL
            for (int i = 0; i < np; i++) {
                sum[i][v] = v_fma(v_set(from[i]), k, sum[i][v]);
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
    const float *p = g->scores + first * ATTEND_KV;
    float *out = g->out + first * g->d_pad + d0;
    const char *ahead = kind == KV_IN_F16 ? ahead_of(g, true, 2 * d0 * (j1 - j0)) : NULL;
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
            const float *from = p;
            LANES_UNROLL
            for (int i = 0; i < np; i++) {
                sum[i][v] = v_fma(v_set(from[i * ATTEND_KV + j]), x, sum[i][v]);
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
    value_one_fn *one = (value_one_fn *const[]){value_one_f32, value_one_f16, value_one_8, value_one_4}[kind];
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

static void widen_scales(float *to, const uint8_t *from, int64_t n) {
    for (int64_t i = 0; i < n; i += LANES) /* a multiple of 64 */
        v_store(to + i, v_load_f16((const uint16_t *)(const void *)from + i));
}

static void enter_block(attend_group *g, int64_t p0) {
    const uint8_t *keys = block_at(g, false, p0), *values = block_at(g, true, p0);
    g->p0 = p0;
    g->keys = keys;
    g->values = values;
    if (!kv_is_coded(g->kv.type))
        return;
    const int64_t codes = kv_code_bytes(g->kv.type, g->kv.d_head), n = 2 * kv_scale_count(g->kv.d_head);
    g->key_codes = keys;
    g->value_codes = values;
    widen_scales(g->key_scales, g->key_codes + codes, n);
    widen_scales(g->value_scales, g->value_codes + codes, n);
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

/* Widens the first n positions of the block to the layout of an f32 page. A row of values may be written
 * beyond its end, where the next row follows; the buffer has padding after the last one. */
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

/* The same of values that are the keys: tiles of 16 positions and channels are transposed. */
LANES_INLINE void widen_shared(const attend_group *g, kv_kind kind, int64_t n) {
    const int64_t d_head = g->kv.d_head;
    float tile[LANES][LANES];
    for (int v = 0; v * LANES < n; v++)
        for (int64_t d0 = 0; d0 < d_head; d0 += LANES) {
            const int64_t some = NUM_MIN(d_head - d0, (int64_t)LANES);
            float *to = g->wide + v * LANES * d_head + d0;
            for (int64_t d = 0; d < some; d++)
                v_store(tile[d], key_load(g, kind, v * d_head * LANES, d0 + d, v, 0));
            for (int64_t j = 0; j < LANES; j++, to += d_head)
                for (int64_t d = 0; d < some; d++)
                    to[d] = tile[d][j];
        }
}

LANES_INLINE void attend_many(attend_group *g, kv_kind kind, int64_t p0, int64_t n) {
    attend_group wide = *g;
    wide.keys = wide.values = g->wide;
    widen_keys(g, kind, n);
    score_wide(&wide, p0);
    soften(g, p0);
    if (g->kv.shared)
        widen_shared(g, kind, n);
    else
        widen_values(g, kind, n);
    values_wide(&wide, p0);
}

LANES_INLINE void attend_blocks(attend_group *g, kv_kind kind, int64_t lo, int64_t hi) {
    const int64_t first = lo / ATTEND_KV * ATTEND_KV;
    if (kind == KV_IN_F16)
        g->lead = block_bytes(g, false, first);
    for (int64_t p0 = first; p0 < hi; p0 += ATTEND_KV) {
        enter_block(g, p0);
        if (g->kv.shared || (kind != KV_IN_F32 && g->n_pair >= ATTEND_MANY)) {
            attend_many(g, kind, p0, NUM_MIN(hi - p0, ATTEND_KV));
            continue;
        }
        score_pairs(g, kind, p0);
        soften(g, p0);
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
