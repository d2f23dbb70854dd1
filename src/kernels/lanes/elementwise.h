/* elementwise.h - activations, norms, rotations and small arithmetic over rows. Included after a folder's
 * lanes.h. */
#ifndef NIB_KERNELS_LANES_ELEMENTWISE_H
#define NIB_KERNELS_LANES_ELEMENTWISE_H

#include "kernels/kernels.h"
#include "kernels/lanes/math.h"

#include <math.h>

/* Runs a statement for whole vectors, then for the remaining lanes. LOAD and STORE are defined for each
 * case. */
#define LANES_EACH(count, ...)                                                                               \
    do {                                                                                                     \
        int64_t i = 0;                                                                                       \
        int part = LANES;                                                                                    \
        for (; i + LANES <= (count); i += LANES)                                                             \
            __VA_ARGS__;                                                                                     \
        part = (int)((count)-i);                                                                             \
        if (part > 0)                                                                                        \
            __VA_ARGS__;                                                                                     \
    } while (0)
#define LOAD(p)     (part == LANES ? v_load((p) + i) : v_load_part((p) + i, part))
#define STORE(p, v) (part == LANES ? v_store((p) + i, v) : v_store_part((p) + i, v, part))

LANES_INLINE vf act_one(act_kind kind, vf x) {
    switch (kind) {
    case ACT_SILU: return v_div(x, v_add(v_set(1.0f), v_exp(v_sub(v_zero(), x))));
    case ACT_GELU: return v_gelu_erf(x);
    case ACT_GELU_TANH: { /* (1 + tanh u) / 2 is sigmoid(2u) */
        const vf cube = v_mul(v_mul(x, x), x);
        const vf u = v_mul(v_fma(cube, v_set(0.044715f), x), v_set(1.5957691216057308f)); /* 2 sqrt(2/pi) */
        return v_mul(x, v_sigmoid(u));
    }
    case ACT_GELU_QUICK: return v_mul(x, v_sigmoid(v_mul(x, v_set(1.702f))));
    case ACT_RELU: return v_max(v_zero(), x); /* NaN is the second operand, so it is the result */
    case ACT_RELU2: {
        const vf y = v_max(v_zero(), x);
        return v_mul(y, y);
    }
    case ACT_XIELU: break; /* op_xielu */
    case ACT_NONE: return x;
    case ACT_SIGMOID: return v_sigmoid(x);
    case ACT_SWIGLU_CLAMPED: {
        const vf y = v_min(v_set(SWIGLU_LIMIT), x);
        return v_mul(y, v_sigmoid(v_mul(y, v_set(SWIGLU_ALPHA))));
    }
    }
    return x;
}

/* What the gate is multiplied by. */
LANES_INLINE vf gated_one(act_kind kind, vf u) {
    if (kind != ACT_SWIGLU_CLAMPED)
        return u;
    return v_add(v_min(v_set(SWIGLU_LIMIT), v_max(v_set(-SWIGLU_LIMIT), u)), v_set(1));
}

/* Runs a loop with `kind` as a constant, so that the switch is outside the loop. */
#define FOR_ACT(kind, statement)                                                                             \
    switch (kind) {                                                                                          \
    case ACT_SILU: statement(ACT_SILU); break;                                                               \
    case ACT_GELU: statement(ACT_GELU); break;                                                               \
    case ACT_GELU_TANH: statement(ACT_GELU_TANH); break;                                                     \
    case ACT_GELU_QUICK: statement(ACT_GELU_QUICK); break;                                                   \
    case ACT_RELU: statement(ACT_RELU); break;                                                               \
    case ACT_RELU2: statement(ACT_RELU2); break;                                                             \
    case ACT_XIELU: break;                                                                                   \
    case ACT_NONE: statement(ACT_NONE); break;                                                               \
    case ACT_SIGMOID: statement(ACT_SIGMOID); break;                                                         \
    case ACT_SWIGLU_CLAMPED: statement(ACT_SWIGLU_CLAMPED); break;                                           \
    }

static void op_act(act_kind kind, const float *x, float *out, int64_t n) {
#define ACT_LOOP(kind_) LANES_EACH(n, STORE(out, act_one(kind_, LOAD(x))))
    FOR_ACT(kind, ACT_LOOP)
#undef ACT_LOOP
}

static void op_gate(act_kind kind, const float *g, const float *u, float *out, int64_t n) {
#define GATE_LOOP(kind_) LANES_EACH(n, STORE(out, v_mul(act_one(kind_, LOAD(g)), gated_one(kind_, LOAD(u)))))
    FOR_ACT(kind, GATE_LOOP)
#undef GATE_LOOP
}

static void op_add(const float *x, const float *y, float scale, float *out, int64_t n) {
    const vf s = v_set(scale);
    LANES_EACH(n, STORE(out, v_add(LOAD(x), v_mul(LOAD(y), s))));
}

static float op_upper_bounds(const float *y, const float *error, float reach, int64_t n, float *out) {
    const vf times = v_set(reach);
    vf max = v_set(-INFINITY);
    for (int64_t i = 0; i < n; i += LANES) {
        const vf upper = v_fma(v_load(error + i), times, v_load(y + i));
        out[i / LANES] = v_largest(upper);
        max = v_max(max, upper);
    }
    return v_largest(max);
}

static void op_scale(const float *x, float scale, float *out, int64_t n) {
    const vf s = v_set(scale);
    LANES_EACH(n, STORE(out, v_mul(LOAD(x), s)));
}

static void op_clamp(const float *x, float limit, float *out, int64_t n) {
    const vf high = v_set(limit), low = v_set(-limit);
    LANES_EACH(n, STORE(out, v_min(high, v_max(low, LOAD(x)))));
}

static void op_softcap(const float *x, float cap, float *out, int64_t n) {
    const vf c = v_set(cap);
    LANES_EACH(n, STORE(out, v_mul(v_tanh(v_div(LOAD(x), c)), c)));
}

static void op_xielu(const xielu *by, const float *x, float *out, int64_t n) {
    const vf positive = v_set(by->positive), negative = v_set(by->negative), linear = v_set(by->linear);
    const vf limit = v_set(by->limit);
#define XIELU_OF(v)                                                                                          \
    v_fma(linear, v,                                                                                         \
          v_select(v_less(v_zero(), v), v_mul(v_mul(positive, v), v),                                        \
                   v_mul(v_sub(v_expm1(v_min(limit, v)), v), negative)))
    LANES_EACH(n, {
        const vf v = LOAD(x);
        STORE(out, XIELU_OF(v));
    });
#undef XIELU_OF
}

/* The centre (0 for rms) and the factor of one group. If a sum is not finite, the factor is NaN. So one bad
 * element makes the whole group NaN; the group does not become zeros. */
static void norm_stats(norm_kind kind, const float *x, int64_t d, float eps, float *centre, float *factor) {
    vf sum = v_zero();
    float mean = 0;
    if (kind == NORM_LAYER) {
        LANES_EACH(d, sum = v_add(sum, LOAD(x)));
        mean = v_sum(sum) / (float)d;
        sum = v_zero();
    }
    int64_t i = 0;
    const vf c = v_set(mean);
    for (; i + LANES <= d; i += LANES) {
        const vf t = v_sub(v_load(x + i), c);
        sum = v_fma(t, t, sum);
    }
    if (i < d) {
        const int part = (int)(d - i);
        const vf t = v_select(v_between(0, part), v_sub(v_load_part(x + i, part), c), v_zero());
        sum = v_fma(t, t, sum);
    }
    const float total = v_sum(sum);
    *centre = mean;
    *factor = isfinite(total) ? 1.0f / sqrtf(total / (float)d + eps) : NAN;
}

static void op_norm(norm_kind kind, const float *x, const float *w, const float *b, float *out, int64_t k,
                    int64_t n_group, bool w_full, float eps) {
    const int64_t d = k / n_group;
    for (int64_t g = 0; g < n_group; g++, x += d, out += d) {
        float centre, factor;
        norm_stats(kind, x, d, eps, &centre, &factor);
        const vf c = v_set(centre), f = v_set(factor);
        if (w && b)
            LANES_EACH(d, STORE(out, v_add(v_mul(v_mul(v_sub(LOAD(x), c), f), LOAD(w)), LOAD(b))));
        else if (w)
            LANES_EACH(d, STORE(out, v_mul(v_mul(v_sub(LOAD(x), c), f), LOAD(w))));
        else if (b)
            LANES_EACH(d, STORE(out, v_add(v_mul(v_sub(LOAD(x), c), f), LOAD(b))));
        else
            LANES_EACH(d, STORE(out, v_mul(v_sub(LOAD(x), c), f)));
        if (w_full) {
            w = w ? w + d : NULL;
            b = b ? b + d : NULL;
        }
    }
}

/* Compares squares instead of roots. The elements after the last whole vector are added to the first lane,
 * and lanes are added from the first to the last, so every folder decides alike. No comparison with a NaN is
 * true, so a row with a NaN has no outliers. */
static int op_outliers(const float *x, int64_t k, float share, outlier *out) {
    vf max = v_zero(), sum = v_zero();
    int64_t i = 0;
    for (; i + LANES <= k; i += LANES) {
        const vf v = v_load(x + i), square = v_mul(v, v);
        max = v_max(square, max);
        sum = v_add(sum, square);
    }
    float maxima[LANES], sums[LANES];
    v_store(maxima, max);
    v_store(sums, sum);
    for (; i < k; i++) {
        maxima[0] = x[i] * x[i] > maxima[0] ? x[i] * x[i] : maxima[0];
        sums[0] += x[i] * x[i];
    }
    for (int l = 1; l < LANES; l++) {
        maxima[0] = maxima[l] > maxima[0] ? maxima[l] : maxima[0];
        sums[0] += sums[l];
    }
    const float min = share * sums[0];
    int n = 0;
    if (!(maxima[0] > min))
        return 0;
    for (i = 0; i < k && n < ACT_OUTLIERS; i += LANES) {
        const int64_t end = i + LANES < k ? i + LANES : k;
        int above = 0;
        for (int64_t j = i; j < end; j++)
            above |= x[j] * x[j] > min;
        for (int64_t j = i; j < end && above && n < ACT_OUTLIERS; j++)
            if (x[j] * x[j] > min)
                out[n++] = (outlier){(int32_t)j, x[j]};
    }
    return n;
}

static void op_rope(rope_style style, float *x, int64_t n_head, int64_t d_head, int64_t n_rot,
                    const float *cos_sin) {
    const int64_t half = n_rot / 2;
    const float *cosines = cos_sin, *sines = cos_sin + half;
    for (int64_t h = 0; h < n_head; h++, x += d_head) {
        if (style == ROPE_INTERLEAVED) {
            for (int64_t j = 0; j < half; j++) {
                const float a = x[2 * j], b = x[2 * j + 1];
                x[2 * j] = a * cosines[j] - b * sines[j];
                x[2 * j + 1] = a * sines[j] + b * cosines[j];
            }
            continue;
        }
        float *y = x + half;
        LANES_EACH(half, {
            const vf a = LOAD(x), b = LOAD(y), c = LOAD(cosines), s = LOAD(sines);
            STORE(x, v_sub(v_mul(a, c), v_mul(b, s)));
            STORE(y, v_add(v_mul(a, s), v_mul(b, c)));
        });
    }
}

#endif
