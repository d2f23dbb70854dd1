/* recurrent.h - ops that carry a state from row to row: the short convolution, the state space of Mamba-2
 * (SSD) and of Mamba-1, the gated delta rule. Included after a folder's lanes.h.
 *
 * Lanes are channels that share a step, so no sum crosses lanes, and a row's bits depend neither on the other
 * rows of a call nor on how the channels or heads are split. */
#ifndef NIB_KERNELS_LANES_RECURRENT_H
#define NIB_KERNELS_LANES_RECURRENT_H

#include "kernels/kernels.h"
#include "kernels/lanes/math.h"

#include <math.h>

LANES_INLINE vf load_n(const float *p, int n) {
    return n == LANES ? v_load(p) : v_load_part(p, n);
}

LANES_INLINE void store_n(float *p, vf v, int n) {
    if (n == LANES)
        v_store(p, v);
    else
        v_store_part(p, v, n);
}

/* Column j of rows [0, n) of a matrix with k columns. */
LANES_INLINE vf load_column(const float *at, int64_t k, int64_t j, int n) {
    float column[LANES] = {0};
    for (int l = 0; l < n; l++)
        column[l] = at[l * k + j];
    return v_load(column);
}

static inline float soft_plus(float x) {
    return x > 20 ? x : log1pf(expf(x));
}

static inline float sigmoid(float x) {
    return 1 / (1 + expf(-x));
}

/* Channels [c, c + n), all rows. */
LANES_INLINE void conv_lanes(const conv_args *a, int64_t c, int n) {
    const int k = a->k;
    const vf bias = a->bias ? load_n(a->bias + c, n) : v_zero();
    vf w[CONV_MAX], seen[CONV_MAX]; /* seen: the last k inputs, the newest last */
    for (int j = 0; j < k; j++)
        w[j] = load_column(a->w + c * k, k, j, n);
    for (int j = 0; j + 1 < k; j++)
        seen[j + 1] = a->begins ? v_zero() : load_n(a->state + j * a->n + c, n);
    for (int64_t r = 0; r < a->n_row; r++) {
        vf sum = bias;
        for (int j = 0; j + 1 < k; j++)
            seen[j] = seen[j + 1];
        seen[k - 1] = load_n(a->x + r * a->ldx + c, n);
        for (int j = 0; j < k; j++)
            sum = v_fma(seen[j], w[j], sum);
        if (a->silu)
            sum = v_mul(sum, v_sigmoid(sum));
        store_n(a->out + r * a->ldo + c, sum, n);
    }
    for (int j = 0; j + 1 < k; j++)
        store_n(a->state + j * a->n + c, seen[j + 1], n);
}

static void op_conv(const conv_args *a, int64_t c0, int64_t c1) {
    for (int64_t c = c0; c < c1; c += LANES)
        conv_lanes(a, c, c1 - c < LANES ? (int)(c1 - c) : LANES);
}

/* Channels [p, p + n) of one head in one row. The state's rows are d_head apart. */
LANES_INLINE void ssd_lanes(const ssd_args *a, float *state, const float *b, const float *c, float decay,
                            float dt, const float *x, float skip, float *out, int n, bool begins) {
    const vf keep = v_set(decay), in = load_n(x, n), step = v_mul(in, v_set(dt));
    vf y = v_zero();
    for (int64_t i = 0; i < a->n_state; i++, state += a->d_head) {
        vf s = begins ? v_zero() : load_n(state, n);
        s = v_fma(step, v_set(b[i]), v_mul(s, keep));
        y = v_fma(s, v_set(c[i]), y);
        store_n(state, s, n);
    }
    store_n(out, v_fma(in, v_set(skip), y), n);
}

static void op_ssd(const ssd_args *a, int64_t h0, int64_t h1) {
    const int64_t d = a->d_head;
    for (int64_t h = h0; h < h1; h++) {
        float *state = a->state + h * a->n_state * d;
        const int64_t group = h / (a->n_head / a->n_group) * a->n_state;
        for (int64_t r = 0; r < a->n_row; r++) {
            const float *row = a->x + r * a->ldx, *b = row + a->n_head * d + group;
            const float *c = b + a->n_group * a->n_state;
            float dt = soft_plus(a->dt[r * a->ld_dt + h] + a->dt_bias[h]);
            dt = dt < a->dt_min ? a->dt_min : dt > a->dt_max ? a->dt_max : dt;
            const float decay = expf(dt * a->a[h]);
            for (int64_t p = 0; p < d; p += LANES)
                ssd_lanes(a, state + p, b, c, decay, dt, row + h * d + p, a->d[h],
                          a->out + r * a->ldo + h * d + p, d - p < LANES ? (int)(d - p) : LANES,
                          a->begins && r == 0);
        }
    }
}

/* Channels [c, c + n), all rows. */
LANES_INLINE void scan_lanes(const scan_args *a, int64_t c, int n) {
    const vf skip = load_n(a->d + c, n);
    float decay[SCAN_MAX_STATE * LANES];
    for (int64_t i = 0; i < a->n_state; i++)
        v_store(decay + i * LANES, load_column(a->a + c * a->n_state, a->n_state, i, n));
    for (int64_t r = 0; r < a->n_row; r++) {
        const float *rates = a->dt + r * a->ld_dt + c, *b = a->b + r * a->ld_b, *with = a->c + r * a->ld_c;
        float each[LANES] = {0};
        for (int l = 0; l < n; l++)
            each[l] = soft_plus(rates[l]);
        const vf dt = v_load(each), in = load_n(a->x + r * a->ldx + c, n), step = v_mul(in, dt);
        vf y = v_zero();
        for (int64_t i = 0; i < a->n_state; i++) {
            float *at = a->state + i * a->n + c;
            const vf keep = v_exp(v_mul(dt, v_load(decay + i * LANES)));
            vf s = a->begins && r == 0 ? v_zero() : load_n(at, n);
            s = v_fma(step, v_set(b[i]), v_mul(s, keep));
            y = v_fma(s, v_set(with[i]), y);
            store_n(at, s, n);
        }
        store_n(a->out + r * a->ldo + c, v_fma(in, skip, y), n);
    }
}

static void op_scan(const scan_args *a, int64_t c0, int64_t c1) {
    for (int64_t c = c0; c < c1; c += LANES)
        scan_lanes(a, c, c1 - c < LANES ? (int)(c1 - c) : LANES);
}

/* out = x / sqrt(sum of squares + eps) * scale. */
static void unit_vector(const float *x, int64_t n, float scale, float *out) {
    vf sum = v_zero();
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        sum = v_fma(v_load(x + i), v_load(x + i), sum);
    if (i < n) {
        const vf last = v_load_part(x + i, (int)(n - i));
        sum = v_fma(last, last, sum);
    }
    const vf factor = v_set(scale / sqrtf(v_sum(sum) + 1e-6f));
    for (i = 0; i < n; i += LANES) {
        const int part = n - i < LANES ? (int)(n - i) : LANES;
        store_n(out + i, v_mul(load_n(x + i, part), factor), part);
    }
}

/* One head of one row, as the delta rule reads it. */
typedef struct delta_row {
    float q[DELTA_MAX], k[DELTA_MAX], keep[DELTA_MAX]; /* [d_k] */
    float beta;
} delta_row;

static void prepare_delta(const delta_args *a, int64_t h, int64_t r, delta_row *out) {
    const int64_t d = a->d_k, from = a->tiled ? h % a->n_k_head : h / (a->n_head / a->n_k_head);
    const float *x = a->x + r * a->ldx, *g = a->decay + r * a->ld_decay;
    unit_vector(x + from * d, d, 1 / sqrtf((float)d), out->q);
    unit_vector(x + (a->n_k_head + from) * d, d, 1, out->k);
    out->beta = sigmoid(a->beta[r * a->ld_beta + h]);
    for (int64_t i = 0; i < d; i++) {
        const int64_t at = a->by_channel ? h * d + i : h;
        out->keep[i] =
            i > 0 && !a->by_channel ? out->keep[0] : expf(a->a[h] * soft_plus(g[at] + a->dt_bias[at]));
    }
}

/* Values [p, p + n) of a head. The state's rows are d_v apart. */
LANES_INLINE void delta_lanes(const delta_args *a, const delta_row *row, float *state, const float *v,
                              float *out, int n, bool begins) {
    vf known = v_zero(), y = v_zero();
    for (int64_t i = 0; i < a->d_k && !begins; i++) {
        const vf s = v_mul(load_n(state + i * a->d_v, n), v_set(row->keep[i]));
        known = v_fma(s, v_set(row->k[i]), known);
    }
    const vf change = v_mul(v_sub(load_n(v, n), known), v_set(row->beta));
    for (int64_t i = 0; i < a->d_k; i++, state += a->d_v) {
        vf s = begins ? v_zero() : v_mul(load_n(state, n), v_set(row->keep[i]));
        s = v_fma(change, v_set(row->k[i]), s);
        y = v_fma(s, v_set(row->q[i]), y);
        store_n(state, s, n);
    }
    store_n(out, y, n);
}

static void op_delta(const delta_args *a, int64_t h0, int64_t h1) {
    const int64_t d = a->d_v, values = 2 * a->n_k_head * a->d_k;
    delta_row row;
    for (int64_t h = h0; h < h1; h++)
        for (int64_t r = 0; r < a->n_row; r++) {
            prepare_delta(a, h, r, &row);
            for (int64_t p = 0; p < d; p += LANES)
                delta_lanes(a, &row, a->state + h * a->d_k * d + p, a->x + r * a->ldx + values + h * d + p,
                            a->out + r * a->ldo + h * d + p, d - p < LANES ? (int)(d - p) : LANES,
                            a->begins && r == 0);
        }
}

#endif
