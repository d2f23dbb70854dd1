/* attend.h - causal attention with a running softmax. Included after a folder's lanes.h.
 *
 * Work is grouped in up to 8 pairs (row, head) that share a kv head: rows of a prompt, or the heads of a
 * group when there is one row. Each pair goes through the KV blocks that it sees, in order, with the steps s
 * = q . k * scale (softcap, alibi)    lanes are positions, d in order m' = max(m, s), p = e^(s - m'), l = l *
 * e^(m - m') + sum p, o = o * e^(m - m') + p . v   (positions in order) Blocks stand at multiples of 64
 * whatever the row, and a pair's own limits are masked, so the sequence of operations of a pair, hence its
 * bits, does not depend on what it is grouped with. Values outside a pair's limits are never read for it, so
 * a NaN there cannot leak. */
#ifndef NIB_KERNELS_LANES_ATTEND_H
#define NIB_KERNELS_LANES_ATTEND_H

#include "base/num.h"
#include "kernels/kernels.h"
#include "kernels/kv_layout.h"
#include "kernels/lanes/math.h"

#include <math.h>

enum { ATTEND_VECTORS = ATTEND_KV / LANES };

typedef struct attend_group {
    const attend_args *a;
    int64_t kv_head;
    int n_pair;
    int64_t d_pad;
    struct {
        int64_t row, head;
        int64_t lo, hi; /* sees positions lo <= p < hi */
        float slope, most, sum;
    } pair[ATTEND_PAIRS];
    float *q;      /* [d_head][8]: broadcast operands beside each other */
    float *scores; /* [8][64] */
    float *out;    /* [8][d_pad] */
} attend_group;

/* Vectors beside each other for np pairs: each is a chain of dependent additions, and it takes eight or more
 * of them to keep the multipliers busy; np times this many accumulators (and what is loaded) fit the
 * registers. */
LANES_INLINE int attend_width(int np) {
    if (ATTEND_VEC == 1)
        return np == 1 ? 4 : np == 2 ? 2 : 1;
    return np == ATTEND_PAIRS ? ATTEND_VEC : 4;
}

LANES_INLINE vf kv_load(bool half, const void *base, int64_t at) {
    return half ? v_load_f16((const uint16_t *)base + at) : v_load((const float *)base + at);
}
LANES_INLINE vf kv_load_part(bool half, const void *base, int64_t at, int n) {
    return half ? v_load_f16_part((const uint16_t *)base + at, n) : v_load_part((const float *)base + at, n);
}

/* Scores of np pairs for nv vectors of 16 positions from block position p0 + 16 * v0. np and nv are
 * constants. */
LANES_INLINE void score_block(const attend_group *g, bool half, int first, int np, int64_t p0, int v0,
                              int nv) {
    const kv_view *kv = &g->a->kv;
    const int64_t d_head = kv->d_head, base = kv_key_at(kv, g->kv_head, p0 + LANES * v0, 0);
    const float *q = g->q + first;
    vf sum[ATTEND_PAIRS][4];
    LANES_UNROLL
    for (int i = 0; i < np; i++) {
        LANES_UNROLL
        for (int v = 0; v < nv; v++)
            sum[i][v] = v_zero();
    }
    for (int64_t d = 0; d < d_head; d++, q += ATTEND_PAIRS) {
        vf k[4];
        LANES_UNROLL
        for (int v = 0; v < nv; v++)
            k[v] = kv_load(half, kv->k, base + (v * d_head + d) * LANES);
        LANES_UNROLL
        for (int i = 0; i < np; i++) {
            const vf qi = v_set(q[i]);
            LANES_UNROLL
            for (int v = 0; v < nv; v++)
                sum[i][v] = v_fma(qi, k[v], sum[i][v]);
        }
    }
    LANES_UNROLL
    for (int i = 0; i < np; i++) {
        LANES_UNROLL
        for (int v = 0; v < nv; v++)
            v_store(g->scores + (first + i) * ATTEND_KV + (v0 + v) * LANES, sum[i][v]);
    }
}

LANES_INLINE void score_vectors(const attend_group *g, bool half, int first, int np, int64_t p0, int n_vec) {
    const int wide = attend_width(np);
    int v = 0;
    for (; v + wide <= n_vec; v += wide)
        score_block(g, half, first, np, p0, v, wide);
    for (; v < n_vec; v++)
        score_block(g, half, first, np, p0, v, 1);
}

/* out[np pairs][nv vectors from d0] += p[pair][j] * v[j], for positions p0 + [j0, j1); the last vector has
 * `part` lanes. */
LANES_INLINE void value_block(const attend_group *g, bool half, int first, int np, int64_t p0, int64_t j0,
                              int64_t j1, int64_t d0, int nv, int part) {
    const kv_view *kv = &g->a->kv;
    const float *p = g->scores + first * ATTEND_KV;
    float *out = g->out + first * g->d_pad + d0;
    vf sum[ATTEND_PAIRS][4];
    LANES_UNROLL
    for (int i = 0; i < np; i++) {
        LANES_UNROLL
        for (int v = 0; v < nv; v++)
            sum[i][v] = v_load(out + i * g->d_pad + v * LANES);
    }
    int64_t at = kv_value_at(kv, g->kv_head, p0 + j0, d0);
    for (int64_t j = j0; j < j1; j++, at += kv->d_head) {
        vf x[4];
        LANES_UNROLL
        for (int v = 0; v < nv; v++)
            x[v] = part == LANES ? kv_load(half, kv->v, at + v * LANES) : kv_load_part(half, kv->v, at, part);
        LANES_UNROLL
        for (int i = 0; i < np; i++) {
            const vf pi = v_set(p[i * ATTEND_KV + j]);
            LANES_UNROLL
            for (int v = 0; v < nv; v++)
                sum[i][v] = v_fma(pi, x[v], sum[i][v]);
        }
    }
    LANES_UNROLL
    for (int i = 0; i < np; i++) {
        LANES_UNROLL
        for (int v = 0; v < nv; v++)
            v_store(out + i * g->d_pad + v * LANES, sum[i][v]);
    }
}

LANES_INLINE void value_range(const attend_group *g, bool half, int first, int np, int64_t p0, int64_t j0,
                              int64_t j1) {
    const int64_t d_head = g->a->kv.d_head;
    if (j0 >= j1)
        return;
    const int wide = attend_width(np);
    int64_t d = 0;
    for (; d + LANES * wide <= d_head; d += LANES * wide)
        value_block(g, half, first, np, p0, j0, j1, d, wide, LANES);
    for (; d + LANES <= d_head; d += LANES)
        value_block(g, half, first, np, p0, j0, j1, d, 1, LANES);
    if (d < d_head)
        value_block(g, half, first, np, p0, j0, j1, d, 1, (int)(d_head - d));
}

static void value_one_half(const attend_group *g, int i, int64_t p0, int64_t j0, int64_t j1) {
    value_range(g, true, i, 1, p0, j0, j1);
}
static void value_one_full(const attend_group *g, int i, int64_t p0, int64_t j0, int64_t j1) {
    value_range(g, false, i, 1, p0, j0, j1);
}

/* np pairs over one block: what all of them see together, before and after that each on its own. */
LANES_INLINE void value_pairs(const attend_group *g, bool half, int first, int np, int64_t p0) {
    int64_t lo = 0, hi = ATTEND_KV, lows[ATTEND_PAIRS], highs[ATTEND_PAIRS];
    for (int i = 0; i < np; i++) {
        lows[i] = NUM_MAX(g->pair[first + i].lo - p0, 0);
        highs[i] = NUM_MIN(g->pair[first + i].hi - p0, ATTEND_KV);
        lo = NUM_MAX(lo, lows[i]);
        hi = NUM_MIN(hi, highs[i]);
    }
    void (*one)(const attend_group *, int, int64_t, int64_t, int64_t) =
        half ? value_one_half : value_one_full;
    if (lo >= hi) {
        for (int i = 0; i < np; i++)
            one(g, first + i, p0, lows[i], highs[i]);
        return;
    }
    for (int i = 0; i < np; i++)
        if (lows[i] < lo)
            one(g, first + i, p0, lows[i], lo);
    value_range(g, half, first, np, p0, lo, hi);
    for (int i = 0; i < np; i++)
        if (hi < highs[i])
            one(g, first + i, p0, hi, highs[i]);
}

/* Scores to weights for one pair, and what the new maximum does to its sums. */
static void soften(attend_group *g, int i, int64_t p0, int n_vec) {
    const attend_args *a = g->a;
    const float slope = g->pair[i].slope;
    const int64_t lo = NUM_MAX(g->pair[i].lo - p0, 0), hi = NUM_MIN(g->pair[i].hi - p0, ATTEND_KV);
    if (lo >= hi)
        return;
    float *row = g->scores + i * ATTEND_KV;
    const vf low = v_set(-INFINITY), scale = v_set(a->scale);
    static const float ramp[LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    vf s[ATTEND_VECTORS], most = low;
    for (int v = 0; v < ATTEND_VECTORS; v++) {
        const int from = (int)(lo - v * LANES), to = (int)(hi - v * LANES);
        if (v >= n_vec || from >= LANES || to <= 0) {
            s[v] = low;
            continue;
        }
        vf x = v_mul(v_load(row + v * LANES), scale);
        if (a->softcap > 0)
            x = v_mul(v_tanh(v_div(x, v_set(a->softcap))), v_set(a->softcap));
        if (slope != 0) {
            const float distance = (float)(p0 + v * LANES - (g->pair[i].hi - 1));
            x = v_fma(v_add(v_set(distance), v_load(ramp)), v_set(slope), x);
        }
        s[v] = v_select(v_between(from, to), x, low);
        most = v_max(most, s[v]);
    }
    const float before = g->pair[i].most, tallest = v_most(most);
    const float now = tallest > before ? tallest : before;
    const vf top = v_set(now);
    vf sums[ATTEND_VECTORS];
    for (int v = 0; v < ATTEND_VECTORS; v++) {
        sums[v] = v_exp(v_sub(s[v], top));
        v_store(row + v * LANES, sums[v]);
    }
    const float total = v_sum(v_add(v_add(sums[0], sums[1]), v_add(sums[2], sums[3])));
    g->pair[i].most = now;
    if (now == before) {
        g->pair[i].sum += total;
        return;
    }
    const vf shrink = v_exp(v_set(before - now));
    float first[LANES];
    v_store(first, shrink);
    g->pair[i].sum = g->pair[i].sum * first[0] + total;
    float *out = g->out + i * g->d_pad;
    for (int64_t d = 0; d < g->d_pad; d += LANES)
        v_store(out + d, v_mul(v_load(out + d), shrink));
}

/* Pairs by 8, 4, 3, 2, 1: constants for the loops above. */
#define ATTEND_BY_COUNT(n, call)                                                                             \
    do {                                                                                                     \
        int first = 0;                                                                                       \
        for (; first + 8 <= (n); first += 8)                                                                 \
            call(8);                                                                                         \
        for (; first + 4 <= (n); first += 4)                                                                 \
            call(4);                                                                                         \
        for (; first + 3 <= (n); first += 3)                                                                 \
            call(3);                                                                                         \
        for (; first + 2 <= (n); first += 2)                                                                 \
            call(2);                                                                                         \
        for (; first < (n); first++)                                                                         \
            call(1);                                                                                         \
    } while (0)

LANES_INLINE void attend_blocks(attend_group *g, bool half, int64_t lo, int64_t hi) {
    for (int64_t p0 = lo / ATTEND_KV * ATTEND_KV; p0 < hi; p0 += ATTEND_KV) {
        const int n_vec = (int)NUM_MIN(num_div_up(hi - p0, LANES), ATTEND_VECTORS);
#define SCORE(np) score_vectors(g, half, first, np, p0, n_vec)
        ATTEND_BY_COUNT(g->n_pair, SCORE);
#undef SCORE
        for (int i = 0; i < g->n_pair; i++)
            soften(g, i, p0, n_vec);
#define VALUE(np) value_pairs(g, half, first, np, p0)
        ATTEND_BY_COUNT(g->n_pair, VALUE);
#undef VALUE
    }
}

static void attend_blocks_half(attend_group *g, int64_t lo, int64_t hi) {
    attend_blocks(g, true, lo, hi);
}
static void attend_blocks_full(attend_group *g, int64_t lo, int64_t hi) {
    attend_blocks(g, false, lo, hi);
}

/* ALiBi's slope of a head: powers of 2^(-max_bias / n) for the largest power of two n <= n_head, and for the
 * heads beyond it the odd powers of the square root ("Train Short, Test Long", section 3; as published models
 * do it). */
static float attend_slope(const attend_args *a, int64_t head) {
    if (a->alibi_max_bias <= 0)
        return 0;
    const float scale = a->alibi_scale != 0 ? a->alibi_scale : 1;
    int64_t n = 1;
    while (n * 2 <= a->n_head)
        n *= 2;
    if (head < n)
        return scale * exp2f(-a->alibi_max_bias * (float)(head + 1) / (float)n);
    return scale * exp2f(-a->alibi_max_bias / 2 * (float)(2 * (head - n) + 1) / (float)n);
}

static void attend_run(attend_group *g) {
    const attend_args *a = g->a;
    const int64_t d_head = a->kv.d_head;
    int64_t lo = INT64_MAX, hi = 0;
    for (int i = 0; i < g->n_pair; i++) {
        const float *q = a->q + (g->pair[i].row * a->n_head + g->pair[i].head) * d_head;
        for (int64_t d = 0; d < d_head; d++)
            g->q[d * ATTEND_PAIRS + i] = q[d];
        const int64_t position = a->first_position + g->pair[i].row;
        g->pair[i].hi = position + 1;
        g->pair[i].lo = a->window > 0 ? NUM_MAX(0, position + 1 - a->window) : 0;
        g->pair[i].slope = attend_slope(a, g->pair[i].head);
        g->pair[i].most = -INFINITY;
        g->pair[i].sum = 0;
        lo = NUM_MIN(lo, g->pair[i].lo);
        hi = NUM_MAX(hi, g->pair[i].hi);
    }
    for (int64_t d = 0; d < g->n_pair * g->d_pad; d += LANES)
        v_store(g->out + d, v_zero());
    if (a->kv.type == TYPE_F16)
        attend_blocks_half(g, lo, hi);
    else
        attend_blocks_full(g, lo, hi);
    for (int i = 0; i < g->n_pair; i++) {
        float *out = a->out + (g->pair[i].row * a->n_head + g->pair[i].head) * d_head;
        const vf sum = v_set(g->pair[i].sum);
        for (int64_t d = 0; d < d_head; d += LANES) {
            const vf y = v_div(v_load(g->out + i * g->d_pad + d), sum);
            if (d + LANES <= d_head)
                v_store(out + d, y);
            else
                v_store_part(out + d, y, (int)(d_head - d));
        }
    }
}

static void op_attend(const attend_args *a, int64_t h0, int64_t h1, int64_t r0, int64_t r1) {
    const int64_t per_kv = a->n_head / a->kv.n_kv_head;
    attend_group g = {.a = a, .d_pad = num_round_up(a->kv.d_head, LANES)};
    g.scores = a->scratch;
    g.out = g.scores + ATTEND_PAIRS * ATTEND_KV;
    g.q = g.out + ATTEND_PAIRS * g.d_pad;
    for (int64_t h = h0; h < h1;) {
        g.kv_head = h / per_kv;
        const int64_t end = NUM_MIN(h1, (g.kv_head + 1) * per_kv);
        g.n_pair = 0;
        for (int64_t r = r0; r < r1; r++)
            for (int64_t head = h; head < end; head++) {
                g.pair[g.n_pair].row = r;
                g.pair[g.n_pair].head = head;
                if (++g.n_pair == ATTEND_PAIRS) {
                    attend_run(&g);
                    g.n_pair = 0;
                }
            }
        if (g.n_pair)
            attend_run(&g);
        h = end;
    }
}

#endif
