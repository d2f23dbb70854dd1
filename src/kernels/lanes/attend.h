/* attend.h - causal attention with a running softmax. Included after a folder's lanes.h.
 *
 * Work is grouped in up to 32 pairs (row, head) that share a KV head: rows of a prompt, or the heads of a
 * group when there is one row. The positions of a pair are cut into spans of 256, and each span processes its
 * KV blocks in order (attend_block.h), with the steps
 *
 *     s = q . k * scale (softcap, alibi)    lanes are positions, d in order
 *     m' = max(m, s), p = e^(s - m'), l = l * e^(m - m') + sum p
 *     o = o * e^(m - m') + p . v            positions in order
 *
 * Spans are joined in order: both states are scaled to the larger maximum and added. A head's sink, if there
 * is one, is joined in the same way after the last span. Any thread may compute a span (attend_part), and the
 * spans are joined later (attend_join). So a row of a long context can use more threads than it has heads.
 *
 * Spans and blocks are at multiples of 256 and 64 for every row, and positions outside a pair's limits are
 * masked. So the operations of a pair, and its bits, do not depend on its group or its thread. Values outside
 * a pair's limits are never read for it, so a NaN there has no effect. With a quantized cache, the pairs of a
 * group are in the same block. */
#ifndef NIB_KERNELS_LANES_ATTEND_H
#define NIB_KERNELS_LANES_ATTEND_H

#include "kernels/lanes/attend_block.h"
#include "kernels/lanes/attend_top.h"

/* Computes positions [lo, hi) of one span. own: the first position of the pairs' own block. In a quantized
 * cache the pairs' own block is read in f16, and the blocks before it as codes. */
static void attend_span(attend_group *g, int64_t lo, int64_t hi, int64_t own) {
    const kv_view recent = kv_recent(&g->a->kv);
    g->kv = g->a->kv;
    g->is_recent = false;
    g->then = g->next;
    for (int i = 0; i < g->n_pair; i++) {
        g->pair[i].max = -INFINITY;
        g->pair[i].sum = 0;
    }
    for (int64_t d = 0; d < g->n_pair * g->d_pad; d += LANES)
        v_store(g->out + d, v_zero());
    if (kv_is_coded(g->kv.type) && hi > own)
        g->then = kv_block_at(&recent, false, g->kv_head, 0);
    switch (g->kv.type) {
    case TYPE_F16: attend_blocks_f16(g, lo, hi); return;
    case TYPE_KV8: attend_blocks_8(g, lo, NUM_MIN(hi, own)); break;
    case TYPE_KV4: attend_blocks_4(g, lo, NUM_MIN(hi, own)); break;
    default: attend_blocks_f32(g, lo, hi); return;
    }
    g->kv = recent;
    g->is_recent = true;
    g->then = g->next;
    attend_blocks_f16(g, NUM_MAX(lo, own), hi);
}

/* Joins the result of one span, `out`, to `total`; each has d_pad floats. is_first: total is still empty. */
static void join_span(bool is_first, float *max_total, float *total_sum, float *total, float max, float sum,
                      const float *out, int64_t d_pad) {
    if (is_first) {
        *max_total = max;
        *total_sum = sum;
        for (int64_t d = 0; d < d_pad; d += LANES)
            v_store(total + d, v_load(out + d));
        return;
    }
    const float top = max > *max_total ? max : *max_total;
    const vf before = v_exp(v_sub(v_set(*max_total), v_set(top))), now = v_exp(v_sub(v_set(max), v_set(top)));
    float sums[LANES];
    v_store(sums, v_fma(v_set(sum), now, v_mul(v_set(*total_sum), before)));
    *max_total = top;
    *total_sum = sums[0];
    for (int64_t d = 0; d < d_pad; d += LANES)
        v_store(total + d, v_fma(v_load(out + d), now, v_mul(v_load(total + d), before)));
}

/* out[d_head] = total / sum of a head; max is the largest score. A sink counts as one more span, whose sum is
 * 1 and whose values are zeros. */
static void finish(const attend_args *a, int64_t head, float max, float sum, const float *total, float *out) {
    const int64_t d_head = a->kv.d_head;
    vf by = v_set(sum), times = v_set(1);
    if (a->sinks) {
        const float sink = a->sinks[head], top = sink > max ? sink : max;
        times = v_exp(v_set(max - top));
        by = v_fma(by, times, v_exp(v_set(sink - top)));
    }
    for (int64_t d = 0; d < d_head; d += LANES) {
        vf y = v_load(total + d);
        if (a->sinks)
            y = v_mul(y, times);
        y = v_div(y, by);
        if (d + LANES <= d_head)
            v_store(out + d, y);
        else
            v_store_part(out + d, y, (int)(d_head - d));
    }
    hadamard(out, d_head, kv_rotation(&a->kv)); /* back, if values are rotated */
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

/* Sets the group's queries and limits. [*lo, *hi) are the positions that at least one of its pairs sees. */
static void begin_group(attend_group *g, int64_t *lo, int64_t *hi) {
    const attend_args *a = g->a;
    const int64_t d_head = a->kv.d_head;
    *lo = INT64_MAX;
    *hi = 0;
    for (int i = 0; i < g->n_pair; i++) {
        const float *q = a->q + (g->pair[i].row * a->n_head + g->pair[i].head) * d_head;
        float *to = query_at(g, i);
        for (int64_t d = 0; d < d_head; d++)
            to[d * ATTEND_STRIDE] = q[d];
        const int64_t position = a->first_position + g->pair[i].row;
        g->pair[i].hi = position + 1;
        g->pair[i].lo = attend_first(a, position);
        g->pair[i].slope = attend_slope(a, g->pair[i].head);
        g->pair[i].is_first = true;
        *lo = NUM_MIN(*lo, g->pair[i].lo);
        *hi = NUM_MAX(*hi, g->pair[i].hi);
    }
}

static void attend_run(attend_group *g) {
    const attend_args *a = g->a;
    int64_t lo, hi;
    begin_group(g, &lo, &hi);
    for (int64_t s0 = lo / ATTEND_SPAN * ATTEND_SPAN; s0 < hi; s0 += ATTEND_SPAN) {
        attend_span(g, NUM_MAX(lo, s0), NUM_MIN(hi, s0 + ATTEND_SPAN), (hi - 1) / KV_BLOCK * KV_BLOCK);
        for (int i = 0; i < g->n_pair; i++) {
            if (g->pair[i].hi <= s0 || g->pair[i].lo >= s0 + ATTEND_SPAN)
                continue;
            join_span(g->pair[i].is_first, &g->pair[i].max_total, &g->pair[i].total_sum,
                      g->total + i * g->d_pad, g->pair[i].max, g->pair[i].sum, g->out + i * g->d_pad,
                      g->d_pad);
            g->pair[i].is_first = false;
        }
    }
    for (int i = 0; i < g->n_pair; i++)
        finish(a, g->pair[i].head, g->pair[i].max_total, g->pair[i].total_sum, g->total + i * g->d_pad,
               a->out + (g->pair[i].row * a->n_head + g->pair[i].head) * a->kv.d_head);
}

/* Sets what does not depend on the pairs. Pairs are not cleared: they are many, and each is set before it is
 * used. */
static void open_group(attend_group *g, const attend_args *a) {
    const int64_t n_group = kv_d_pad(a->kv.d_head) / KV_GROUP;
    g->a = a;
    g->d_pad = num_round_up(a->kv.d_head, LANES);
    g->next = NULL;
    g->scores = a->scratch;
    g->out = g->scores + ATTEND_PAIRS * ATTEND_KV;
    g->total = g->out + ATTEND_PAIRS * g->d_pad;
    g->q = g->total + ATTEND_PAIRS * g->d_pad;
    g->wide = g->q + ATTEND_QUERIES * a->kv.d_head;
    if (!kv_is_coded(a->kv.type))
        return;
    g->factors = g->wide + ATTEND_KV * a->kv.d_head + KV_LANES;
    g->minima = g->factors + 2 * ATTEND_PAIRS * kv_d_pad(a->kv.d_head);
    g->spread = (int32_t *)(void *)(g->minima + n_group);
    for (int64_t i = 0; i < n_group * LANES; i++)
        g->spread[i] = (int32_t)(i / n_group);
}

/* With attend_args.top. */
static void attend_some(const attend_args *a, int64_t h0, int64_t h1, int64_t r0, int64_t r1) {
    const int64_t per_kv = a->n_head / a->kv.n_kv_head, d_head = a->kv.d_head;
    float *all =
        (float *)(void *)((uint8_t *)a->scratch + attend_scratch_bytes(d_head, kv_is_coded(a->kv.type)));
    attend_group g;
    int64_t lo, hi;
    open_group(&g, a);
    for (int64_t r = r0; r < r1; r++)
        for (int64_t h = h0; h < h1; h += g.n_pair) {
            g.kv_head = h / per_kv;
            g.n_pair = (int)NUM_MIN(NUM_MIN(h1, (g.kv_head + 1) * per_kv) - h, (int64_t)ATTEND_TOP_PAIRS);
            for (int i = 0; i < g.n_pair; i++) {
                g.pair[i].row = r;
                g.pair[i].head = h + i;
            }
            begin_group(&g, &lo, &hi);
            attend_top(&g, all, lo, hi);
            for (int i = 0; i < g.n_pair; i++)
                finish(a, h + i, g.pair[i].max, g.pair[i].sum, g.out + i * g.d_pad,
                       a->out + (r * a->n_head + h + i) * d_head);
        }
}

static void op_attend(const attend_args *a, int64_t h0, int64_t h1, int64_t r0, int64_t r1) {
    const int64_t per_kv = a->n_head / a->kv.n_kv_head;
    const bool coded = kv_is_coded(a->kv.type);
    attend_group g;
    if (a->top > 0) {
        attend_some(a, h0, h1, r0, r1);
        return;
    }
    open_group(&g, a);
    for (int64_t h = h0; h < h1;) {
        g.kv_head = h / per_kv;
        const int64_t end = NUM_MIN(h1, (g.kv_head + 1) * per_kv);
        g.next = end < h1 ? kv_first_keys(&a->kv, a->window, g.kv_head + 1, a->first_position + r0) : a->next;
        g.n_pair = 0;
        for (int64_t r = r0; r < r1; r++) {
            if (coded && g.n_pair && (a->first_position + r) % KV_BLOCK == 0) {
                attend_run(&g);
                g.n_pair = 0;
            }
            for (int64_t head = h; head < end; head++) {
                g.pair[g.n_pair].row = r;
                g.pair[g.n_pair].head = head;
                if (++g.n_pair == ATTEND_PAIRS) {
                    attend_run(&g);
                    g.n_pair = 0;
                }
            }
        }
        if (g.n_pair)
            attend_run(&g);
        h = end;
    }
}

/* A part is {largest score, sum, 14 unused floats, d_pad floats}. */
static void op_attend_part(const attend_args *a, int64_t h0, int64_t h1, int64_t row, int64_t span,
                           float *parts) {
    attend_group g;
    open_group(&g, a);
    const int64_t s0 = span * ATTEND_SPAN, each = attend_part_floats(a->kv.d_head);
    int64_t lo, hi;
    g.kv_head = h0 / (a->n_head / a->kv.n_kv_head);
    for (int64_t h = h0; h < h1; h += g.n_pair) {
        g.n_pair = (int)NUM_MIN(h1 - h, ATTEND_PAIRS);
        for (int i = 0; i < g.n_pair; i++) {
            g.pair[i].row = row;
            g.pair[i].head = h + i;
        }
        begin_group(&g, &lo, &hi);
        attend_span(&g, NUM_MAX(lo, s0), NUM_MIN(hi, s0 + ATTEND_SPAN), (hi - 1) / KV_BLOCK * KV_BLOCK);
        for (int i = 0; i < g.n_pair; i++, parts += each) {
            parts[0] = g.pair[i].max;
            parts[1] = g.pair[i].sum;
            for (int64_t d = 0; d < g.d_pad; d += LANES)
                v_store(parts + LANES + d, v_load(g.out + i * g.d_pad + d));
        }
    }
}

static void op_attend_join(const attend_args *a, int64_t head, int64_t row, const float *part, bool is_first,
                           bool is_last, float *total) {
    const int64_t d_head = a->kv.d_head, d_pad = num_round_up(d_head, LANES);
    join_span(is_first, &total[0], &total[1], total + LANES, part[0], part[1], part + LANES, d_pad);
    if (is_last)
        finish(a, head, total[0], total[1], total + LANES, a->out + (row * a->n_head + head) * d_head);
}

#endif
