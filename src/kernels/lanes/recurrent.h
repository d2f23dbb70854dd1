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

/* Vectors of a head that are computed beside each other, so that their sums overlap. */
enum { HEAD_VECTORS = 2 };

/* One head of one row. */
typedef struct ssd_row {
    const float *x, *b, *c;
    float decay, dt, skip;
    bool begins;
} ssd_row;

/* n_vector vectors of channels from p on; n: lanes of each. The state's rows are d_head apart. */
LANES_INLINE void ssd_lanes(const ssd_args *a, const ssd_row *row, float *state, int64_t p, float *out,
                            const int n_vector, const int n) {
    const vf keep = v_set(row->decay);
    vf step[HEAD_VECTORS], y[HEAD_VECTORS];
    for (int v = 0; v < n_vector; v++) {
        step[v] = v_mul(load_n(row->x + p + v * LANES, n), v_set(row->dt));
        y[v] = v_zero();
    }
    for (int64_t i = 0; i < a->n_state; i++) {
        const vf b = v_set(row->b[i]), c = v_set(row->c[i]);
        float *at = state + i * a->d_head + p;
        for (int v = 0; v < n_vector; v++, at += LANES) {
            vf s = row->begins ? v_zero() : load_n(at, n);
            s = v_fma(step[v], b, v_mul(s, keep));
            y[v] = v_fma(s, c, y[v]);
            store_n(at, s, n);
        }
    }
    for (int v = 0; v < n_vector; v++)
        store_n(out + p + v * LANES, v_fma(load_n(row->x + p + v * LANES, n), v_set(row->skip), y[v]), n);
}

static void op_ssd(const ssd_args *a, int64_t h0, int64_t h1) {
    const int64_t d = a->d_head, wide = HEAD_VECTORS * LANES;
    for (int64_t h = h0; h < h1; h++) {
        float *state = a->state + h * a->n_state * d;
        const int64_t group = h / (a->n_head / a->n_group) * a->n_state;
        for (int64_t r = 0; r < a->n_row; r++) {
            const float *in = a->x + r * a->ldx, *b = in + a->n_head * d + group;
            float dt = soft_plus(a->dt[r * a->ld_dt + h] + a->dt_bias[h]), *out = a->out + r * a->ldo + h * d;
            dt = dt < a->dt_min ? a->dt_min : dt > a->dt_max ? a->dt_max : dt;
            const ssd_row row = {.x = in + h * d,
                                 .b = b,
                                 .c = b + a->n_group * a->n_state,
                                 .decay = expf(dt * a->a[h]),
                                 .dt = dt,
                                 .skip = a->d[h],
                                 .begins = a->begins && r == 0};
            int64_t p = 0;
            for (; p + wide <= d; p += wide)
                ssd_lanes(a, &row, state, p, out, HEAD_VECTORS, LANES);
            for (; p < d; p += LANES)
                ssd_lanes(a, &row, state, p, out, 1, d - p < LANES ? (int)(d - p) : LANES);
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
    float q[DELTA_MAX], k[DELTA_MAX], keep[DELTA_MAX], kept_k[DELTA_MAX]; /* [d_k]; the last is keep * k */
    const float *v;
    float beta;
    bool begins;
} delta_row;

static void prepare_delta(const delta_args *a, int64_t h, int64_t r, delta_row *out) {
    const int64_t d = a->d_k, from = a->tiled ? h % a->n_k_head : h / (a->n_head / a->n_k_head);
    const float *x = a->x + r * a->ldx, *g = a->decay + r * a->ld_decay;
    unit_vector(x + from * d, d, 1 / sqrtf((float)d), out->q);
    unit_vector(x + (a->n_k_head + from) * d, d, 1, out->k);
    out->v = x + 2 * a->n_k_head * d + h * a->d_v;
    out->beta = sigmoid(a->beta[r * a->ld_beta + h]);
    out->begins = a->begins && r == 0;
    for (int64_t i = 0; i < d; i++) {
        const int64_t at = a->by_channel ? h * d + i : h;
        out->keep[i] =
            i > 0 && !a->by_channel ? out->keep[0] : expf(a->a[h] * soft_plus(g[at] + a->dt_bias[at]));
        out->kept_k[i] = out->keep[i] * out->k[i];
    }
}

/* n_vector vectors of values from p on; n: lanes of each. The state's rows are d_v apart. */
LANES_INLINE void delta_lanes(const delta_args *a, const delta_row *row, float *state, int64_t p, float *out,
                              const int n_vector, const int n) {
    vf known[HEAD_VECTORS], y[HEAD_VECTORS];
    for (int v = 0; v < n_vector; v++)
        known[v] = y[v] = v_zero();
    for (int64_t i = 0; i < a->d_k && !row->begins; i++)
        for (int v = 0; v < n_vector; v++)
            known[v] = v_fma(load_n(state + i * a->d_v + p + v * LANES, n), v_set(row->kept_k[i]), known[v]);
    for (int v = 0; v < n_vector; v++) /* what k and the state change by */
        known[v] = v_mul(v_sub(load_n(row->v + p + v * LANES, n), known[v]), v_set(row->beta));
    for (int64_t i = 0; i < a->d_k; i++) {
        float *at = state + i * a->d_v + p;
        for (int v = 0; v < n_vector; v++, at += LANES) {
            vf s = row->begins ? v_zero() : v_mul(load_n(at, n), v_set(row->keep[i]));
            s = v_fma(known[v], v_set(row->k[i]), s);
            y[v] = v_fma(s, v_set(row->q[i]), y[v]);
            store_n(at, s, n);
        }
    }
    for (int v = 0; v < n_vector; v++)
        store_n(out + p + v * LANES, y[v], n);
}

static void op_delta(const delta_args *a, int64_t h0, int64_t h1) {
    const int64_t d = a->d_v, wide = HEAD_VECTORS * LANES;
    delta_row row;
    for (int64_t h = h0; h < h1; h++)
        for (int64_t r = 0; r < a->n_row; r++) {
            float *state = a->state + h * a->d_k * d, *out = a->out + r * a->ldo + h * d;
            int64_t p = 0;
            prepare_delta(a, h, r, &row);
            for (; p + wide <= d; p += wide)
                delta_lanes(a, &row, state, p, out, HEAD_VECTORS, LANES);
            for (; p < d; p += LANES)
                delta_lanes(a, &row, state, p, out, 1, d - p < LANES ? (int)(d - p) : LANES);
        }
}

#endif
