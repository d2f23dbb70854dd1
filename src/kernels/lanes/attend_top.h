/* attend_top.h - sparse attention (attend_args.top). Included by attend.h.
 *
 * The scores of all positions come first, then the choice, then the values of the chosen positions alone. A
 * pair's operations do not depend on the other pairs. */
#ifndef NIB_KERNELS_LANES_ATTEND_TOP_H
#define NIB_KERNELS_LANES_ATTEND_TOP_H

#include "kernels/lanes/attend_block.h"

static kv_kind kind_of(const kv_view *kv) {
    return kv->type == TYPE_F16   ? KV_IN_F16
           : kv->type == TYPE_KV8 ? KV_IN_8
           : kv->type == TYPE_KV4 ? KV_IN_4
                                  : KV_IN_F32;
}

/* Enters the block at p0 of a row whose own block is at `own`. */
static void enter_any_block(attend_group *g, int64_t p0, int64_t own) {
    g->is_recent = kv_is_coded(g->a->kv.type) && p0 >= own;
    g->kv = g->is_recent ? kv_recent(&g->a->kv) : g->a->kv;
    enter_block(g, p0);
}

static void score_any(const attend_group *g, int64_t p0) {
    switch (kind_of(&g->kv)) {
    case KV_IN_F16: score_pairs(g, KV_IN_F16, p0); break;
    case KV_IN_8: score_pairs(g, KV_IN_8, p0); break;
    case KV_IN_4: score_pairs(g, KV_IN_4, p0); break;
    default: score_pairs(g, KV_IN_F32, p0);
    }
}

/* The scores of all pairs, which see [lo, hi), into all[pairs][each]. */
static void score_all(attend_group *g, float *all, int64_t each, int64_t lo, int64_t hi) {
    int from, to;
    for (int i = 0; i < g->n_pair; i++)
        g->pair[i].max = -INFINITY;
    for (int64_t p0 = lo / ATTEND_KV * ATTEND_KV; p0 < hi; p0 += ATTEND_KV) {
        enter_any_block(g, p0, (hi - 1) / KV_BLOCK * KV_BLOCK);
        if (kv_is_coded(g->kv.type))
            scale_queries(g);
        score_any(g, p0);
        score_first(g);
        for (int i = 0; i < g->n_pair; i++) {
            if (!seen_by(g, i, p0, &from, &to))
                continue;
            const float tallest = scale_scores(g, i, p0, from, to);
            if (tallest > g->pair[i].max)
                g->pair[i].max = tallest;
            memcpy(all + i * each + p0 + from - lo, g->scores + i * ATTEND_KV + from,
                   (size_t)(to - from) * sizeof *all);
        }
    }
}

/* Turns n scores into weights, and returns their sum. The memory after them may be written, up to a multiple
 * of a block. */
static float weigh_all(float *x, int64_t n, float max) {
    float sum = 0;
    for (int64_t i = 0; i < n; i += ATTEND_KV)
        sum += weigh(x + i, max, 0, (int)NUM_MIN(n - i, (int64_t)ATTEND_KV));
    return sum;
}

/* As value_load, with codes scaled. */
LANES_INLINE vf value_scaled(const attend_group *g, kv_kind kind, int64_t at, int64_t j, int64_t d0, int v,
                             int part) {
    const vf x = value_load(g, kind, at, j, d0, v, part);
    if (!kv_kind_is_coded(kind))
        return x;
    const uint16_t *scale = g->value_scales + j * (kv_d_pad(g->kv.d_head) / KV_GROUP) + d0 / KV_GROUP + v / 2;
    return v_fma(x, v_set(half_to_float(scale[0])),
                 v_set(half_to_float(scale[kv_scale_count(g->kv.d_head)])));
}

/* Adds the values of n positions of the block, at[] - first, in nv vectors from d0 on. */
LANES_INLINE void value_some(const attend_group *g, kv_kind kind, float *out, const float *p,
                             const int32_t *at, int64_t n, int64_t first, int64_t d0, int nv, int part) {
    vf sum[4];
    LANES_UNROLL
    for (int v = 0; v < nv; v++)
        sum[v] = v_load(out + d0 + v * LANES);
    for (int64_t c = 0; c < n; c++) {
        const int64_t j = at[c] - first, from = kv_value_at(g->kv.d_head, j, d0);
        LANES_UNROLL
        for (int v = 0; v < nv; v++)
            sum[v] = v_fma(v_set(p[c]), value_scaled(g, kind, from, j, d0, v, part), sum[v]);
    }
    LANES_UNROLL
    for (int v = 0; v < nv; v++)
        v_store(out + d0 + v * LANES, sum[v]);
}

LANES_INLINE void value_rows(const attend_group *g, kv_kind kind, float *out, const float *p,
                             const int32_t *at, int64_t n, int64_t first) {
    const int64_t d_head = g->kv.d_head;
    int64_t d = 0;
    for (; d + 4 * LANES <= d_head; d += 4 * LANES)
        value_some(g, kind, out, p, at, n, first, d, 4, LANES);
    for (; d + LANES <= d_head; d += LANES)
        value_some(g, kind, out, p, at, n, first, d, 1, LANES);
    if (d < d_head)
        value_some(g, kind, out, p, at, n, first, d, 1, (int)(d_head - d));
}

/* out = the sum of p[c] * the values of position lo + at[c]. */
static void value_all(attend_group *g, float *out, float *p, const int32_t *at, int64_t n, int64_t lo,
                      int64_t hi) {
    for (int64_t d = 0; d < g->d_pad; d += LANES)
        v_store(out + d, v_zero());
    for (int64_t c = 0, end; c < n; c = end) {
        const int64_t p0 = (lo + at[c]) / ATTEND_KV * ATTEND_KV;
        for (end = c + 1; end < n && lo + at[end] < p0 + ATTEND_KV;)
            end++;
        enter_any_block(g, p0, (hi - 1) / KV_BLOCK * KV_BLOCK);
        if (g->first_value && lo + at[c] == 0)
            add_first(g, out, p + c);
        switch (kind_of(&g->kv)) {
        case KV_IN_F16: value_rows(g, KV_IN_F16, out, p + c, at + c, end - c, p0 - lo); break;
        case KV_IN_8: value_rows(g, KV_IN_8, out, p + c, at + c, end - c, p0 - lo); break;
        case KV_IN_4: value_rows(g, KV_IN_4, out, p + c, at + c, end - c, p0 - lo); break;
        default: value_rows(g, KV_IN_F32, out, p + c, at + c, end - c, p0 - lo);
        }
    }
}

/* The pairs of one row. all: attend_top_bytes. Sets each pair's max and sum, and its g->out. */
static void attend_top(attend_group *g, float *all, int64_t lo, int64_t hi) {
    const attend_args *a = g->a;
    const int64_t n = hi - lo, each = num_round_up(n, KV_BLOCK);
    const int64_t k = NUM_MIN((int64_t)ceilf(a->top * (float)n), n);
    int32_t *at = (int32_t *)(void *)(all + ATTEND_TOP_PAIRS * each);
    g->hi = hi;
    g->lead = 0; /* values are not prefetched */
    g->then = NULL;
    score_all(g, all, each, lo, hi);
    for (int i = 0; i < g->n_pair; i++) {
        float *x = all + i * each, sum = 0;
        if (a->top_raw) { /* e^(s - max) of all, in the place of `at` */
            memcpy(at, x, (size_t)n * sizeof *x);
            sum = weigh_all((float *)(void *)at, n, g->pair[i].max);
        }
        const int64_t n_chosen = attend_choose(x, n, NUM_MAX(k, 1), at);
        const float chosen = weigh_all(x, n_chosen, g->pair[i].max);
        g->pair[i].sum = a->top_raw ? sum : chosen;
        value_all(g, g->out + i * g->d_pad, x, at, n_chosen, lo, hi);
    }
}

#endif
