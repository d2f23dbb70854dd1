/* Ops with a recurrent state on every instruction set: against double precision, bit by bit against the
 * reference, at odd sizes, and however rows, channels and heads are cut. A state that begins is not read. */
#include "base/num.h"
#include "support/isas.h"

#include "kernels/kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 9, MAX = 4096 };

static float x[ROWS * MAX], dt[ROWS * MAX], decay[ROWS * MAX], w[MAX], bias[MAX], skip[MAX];
static float state[MAX * 8], wanted_state[MAX * 8], out[ROWS * MAX], wanted[ROWS * MAX];

static float next(uint32_t *seed) {
    *seed = *seed * 1664525 + 1013904223;
    return (float)(*seed >> 8) / (1 << 23) - 1;
}

static void fill(float *to, size_t n, uint32_t seed, float scale, float add) {
    for (size_t i = 0; i < n; i++)
        to[i] = next(&seed) * scale + add;
}

static void fill_all(void) {
    fill(x, NUM_COUNT(x), 1, 1, 0);
    fill(dt, NUM_COUNT(dt), 2, 2, 0);
    fill(decay, NUM_COUNT(decay), 3, 2, 0);
    fill(w, NUM_COUNT(w), 4, 0.5F, -1);
    fill(bias, NUM_COUNT(bias), 5, 0.3F, 0);
    fill(skip, NUM_COUNT(skip), 6, 1, 0);
}

/* A kind of op at one size: runs rows [r, r + n) with parts [p0, p1). */
typedef struct shape {
    int64_t n, n_head, n_group, d_head, d_state;
    bool flag;
} shape;
typedef void (*run_fn)(const kernel_table *t, const shape *s, int64_t r, int64_t n, int64_t p0, int64_t p1);

static void run_conv(const kernel_table *t, const shape *s, int64_t r, int64_t n, int64_t p0, int64_t p1) {
    const conv_args a = {.x = x + r * MAX,
                         .out = out + r * MAX,
                         .ldx = MAX,
                         .ldo = MAX,
                         .n_row = n,
                         .n = s->n,
                         .k = (int)s->d_state,
                         .w = w,
                         .bias = s->flag ? bias : NULL,
                         .silu = s->flag,
                         .begins = r == 0,
                         .state = state};
    t->conv(&a, p0, p1);
}

static void run_ssd(const kernel_table *t, const shape *s, int64_t r, int64_t n, int64_t p0, int64_t p1) {
    const ssd_args a = {.x = x + r * MAX,
                        .dt = dt + r * MAX,
                        .out = out + r * MAX,
                        .ldx = MAX,
                        .ld_dt = MAX,
                        .ldo = MAX,
                        .n_row = n,
                        .n_head = s->n_head,
                        .n_group = s->n_group,
                        .d_head = s->d_head,
                        .n_state = s->d_state,
                        .a = w,
                        .dt_bias = bias,
                        .d = skip,
                        .dt_min = 0.1F,
                        .dt_max = 1,
                        .begins = r == 0,
                        .state = state};
    t->ssd(&a, p0, p1);
}

static void run_scan(const kernel_table *t, const shape *s, int64_t r, int64_t n, int64_t p0, int64_t p1) {
    const scan_args a = {.x = x + r * MAX,
                         .dt = dt + r * MAX,
                         .b = decay + r * MAX,
                         .c = decay + r * MAX + s->d_state,
                         .out = out + r * MAX,
                         .ldx = MAX,
                         .ld_dt = MAX,
                         .ld_b = MAX,
                         .ld_c = MAX,
                         .ldo = MAX,
                         .n_row = n,
                         .n = s->n,
                         .n_state = s->d_state,
                         .a = w,
                         .d = skip,
                         .begins = r == 0,
                         .state = state};
    t->scan(&a, p0, p1);
}

static void run_delta(const kernel_table *t, const shape *s, int64_t r, int64_t n, int64_t p0, int64_t p1) {
    const delta_args a = {.x = x + r * MAX,
                          .beta = dt + r * MAX,
                          .decay = decay + r * MAX,
                          .out = out + r * MAX,
                          .ldx = MAX,
                          .ld_beta = MAX,
                          .ld_decay = MAX,
                          .ldo = MAX,
                          .n_row = n,
                          .n_head = s->n_head,
                          .n_k_head = s->n_group,
                          .d_k = s->d_state,
                          .d_v = s->d_head,
                          .a = w,
                          .dt_bias = bias,
                          .by_channel = s->flag,
                          .tiled = s->n_group == 2,
                          .begins = r == 0,
                          .state = state};
    t->delta(&a, p0, p1);
}

/* ---- in double precision, by the formulas ---- */

static double soft_plus(double v) {
    return log1p(exp(v));
}

static void exact_conv(const shape *s, double *y) {
    for (int64_t r = 0; r < ROWS; r++)
        for (int64_t c = 0; c < s->n; c++) {
            double sum = s->flag ? (double)bias[c] : 0;
            for (int64_t j = 0; j < s->d_state; j++) {
                const int64_t from = r + j + 1 - s->d_state;
                sum += from < 0 ? 0 : (double)x[from * MAX + c] * (double)w[c * s->d_state + j];
            }
            y[r * MAX + c] = s->flag ? sum / (1 + exp(-sum)) : sum;
        }
}

static void exact_ssd(const shape *s, double *y) {
    static double h[64][64];
    for (int64_t head = 0; head < s->n_head; head++) {
        memset(h, 0, sizeof h);
        for (int64_t r = 0; r < ROWS; r++) {
            const float *in = x + r * MAX + head * s->d_head;
            const float *b =
                x + r * MAX + s->n_head * s->d_head + head / (s->n_head / s->n_group) * s->d_state;
            const float *c = b + s->n_group * s->d_state;
            double step = soft_plus((double)dt[r * MAX + head] + (double)bias[head]);
            step = fmin(fmax(step, 0.1), 1);
            for (int64_t p = 0; p < s->d_head; p++) {
                double sum = (double)skip[head] * (double)in[p];
                for (int64_t n = 0; n < s->d_state; n++) {
                    h[p][n] = h[p][n] * exp(step * (double)w[head]) + step * (double)in[p] * (double)b[n];
                    sum += h[p][n] * (double)c[n];
                }
                y[r * MAX + head * s->d_head + p] = sum;
            }
        }
    }
}

static void exact_scan(const shape *s, double *y) {
    for (int64_t c = 0; c < s->n; c++) {
        double h[64] = {0};
        for (int64_t r = 0; r < ROWS; r++) {
            const double step = soft_plus((double)dt[r * MAX + c]), in = (double)x[r * MAX + c];
            double sum = (double)skip[c] * in;
            for (int64_t n = 0; n < s->d_state; n++) {
                h[n] =
                    h[n] * exp(step * (double)w[c * s->d_state + n]) + step * in * (double)decay[r * MAX + n];
                sum += h[n] * (double)decay[r * MAX + s->d_state + n];
            }
            y[r * MAX + c] = sum;
        }
    }
}

static void unit(const float *from, int64_t n, double scale, double *to) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)from[i] * (double)from[i];
    for (int64_t i = 0; i < n; i++)
        to[i] = (double)from[i] * scale / sqrt(sum + 1e-6);
}

static void exact_delta(const shape *s, double *y) {
    static double h[64][64];
    for (int64_t head = 0; head < s->n_head; head++) {
        const int64_t from = s->n_group == 2 ? head % 2 : head / (s->n_head / s->n_group);
        memset(h, 0, sizeof h);
        for (int64_t r = 0; r < ROWS; r++) {
            const float *in = x + r * MAX, *v = in + 2 * s->n_group * s->d_state + head * s->d_head;
            double q[64], k[64], known[64] = {0};
            unit(in + from * s->d_state, s->d_state, 1 / sqrt((double)s->d_state), q);
            unit(in + (s->n_group + from) * s->d_state, s->d_state, 1, k);
            const double beta = 1 / (1 + exp(-(double)dt[r * MAX + head]));
            for (int64_t i = 0; i < s->d_state; i++) {
                const int64_t at = s->flag ? head * s->d_state + i : head;
                const double keep =
                    exp((double)w[head] * soft_plus((double)decay[r * MAX + at] + (double)bias[at]));
                for (int64_t p = 0; p < s->d_head; p++) {
                    h[i][p] *= keep;
                    known[p] += h[i][p] * k[i];
                }
            }
            for (int64_t p = 0; p < s->d_head; p++) {
                double sum = 0;
                for (int64_t i = 0; i < s->d_state; i++) {
                    h[i][p] += k[i] * beta * ((double)v[p] - known[p]);
                    sum += h[i][p] * q[i];
                }
                y[r * MAX + head * s->d_head + p] = sum;
            }
        }
    }
}

/* ---- every cut ---- */

static void forget(void) {
    memset(out, 0x7f, sizeof out);
    memset(state, 0xff, sizeof state); /* NaN */
}

static void check(run_fn run, void (*exact)(const shape *s, double *y), const shape *s, bool heads) {
    static double y[ROWS * MAX];
    const int64_t n_part = heads ? s->n_head : s->n, n_out = heads ? s->n_head * s->d_head : s->n;
    fill_all();
    exact(s, y);
    forget();
    run(kernels_table_for("ref"), s, 0, ROWS, 0, n_part);
    memcpy(wanted, out, sizeof out);
    memcpy(wanted_state, state, sizeof state);
    for (int64_t r = 0; r < ROWS; r++)
        for (int64_t i = 0; i < n_out; i++)
            if (!(fabs((double)out[r * MAX + i] - y[r * MAX + i]) < 4e-6 * (1 + fabs(y[r * MAX + i]))))
                fail_msg("row %lld, %lld: %g, expected %g", (long long)r, (long long)i,
                         (double)out[r * MAX + i], y[r * MAX + i]);
    EACH_OPS(t)
    for (int64_t rows = 1; rows <= ROWS; rows += 4)
        for (int64_t parts = heads ? 1 : 16; parts < n_part + 16; parts += heads ? 2 : 48) {
            forget();
            for (int64_t p = 0; p < n_part; p += parts)
                for (int64_t r = 0; r < ROWS; r += rows)
                    run(t, s, r, NUM_MIN(rows, ROWS - r), p, NUM_MIN(p + parts, n_part));
            assert_memory_equal(out, wanted, sizeof out);
            assert_memory_equal(state, wanted_state, sizeof state);
        }
}

static void convolution(void **unused) {
    (void)unused;
    static const shape shapes[] = {
        {.n = 80, .d_state = 3}, {.n = 37, .d_state = 4, .flag = true}, {.n = 5, .d_state = 8}};
    for (size_t i = 0; i < NUM_COUNT(shapes); i++)
        check(run_conv, exact_conv, &shapes[i], false);
}

static void mamba_2(void **unused) {
    (void)unused;
    static const shape shapes[] = {{.n_head = 4, .n_group = 1, .d_head = 64, .d_state = 32},
                                   {.n_head = 6, .n_group = 3, .d_head = 20, .d_state = 7}};
    for (size_t i = 0; i < NUM_COUNT(shapes); i++)
        check(run_ssd, exact_ssd, &shapes[i], true);
}

static void mamba_1(void **unused) {
    (void)unused;
    static const shape shapes[] = {{.n = 64, .d_state = 16}, {.n = 27, .d_state = 5}};
    for (size_t i = 0; i < NUM_COUNT(shapes); i++)
        check(run_scan, exact_scan, &shapes[i], false);
}

static void gated_delta(void **unused) {
    (void)unused;
    static const shape shapes[] = {{.n_head = 4, .n_group = 4, .d_head = 64, .d_state = 32},
                                   {.n_head = 4, .n_group = 2, .d_head = 24, .d_state = 17},
                                   {.n_head = 6, .n_group = 3, .d_head = 9, .d_state = 16, .flag = true}};
    for (size_t i = 0; i < NUM_COUNT(shapes); i++)
        check(run_delta, exact_delta, &shapes[i], true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(convolution),
        cmocka_unit_test(mamba_2),
        cmocka_unit_test(mamba_1),
        cmocka_unit_test(gated_delta),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
