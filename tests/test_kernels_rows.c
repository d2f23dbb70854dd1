/* Activations, norms, rotations and small arithmetic on every instruction set, against double precision under
 * stated bounds, bit by bit against the reference, at odd lengths, in place, with NaN and infinity. */
#include "support/guard.h"
#include "support/isas.h"
#include "support/matrix.h"

#include "kernels/kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static double act_exact(act_kind kind, double x) {
    switch (kind) {
    case ACT_SILU: return x / (1 + exp(-x));
    case ACT_GELU: return x * 0.5 * erfc(-x * M_SQRT1_2);
    case ACT_GELU_TANH: return x / (1 + exp(-2 * sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case ACT_GELU_QUICK: return x / (1 + exp(-1.702 * x));
    case ACT_RELU: return x > 0 ? x : 0;
    case ACT_RELU2: return x > 0 ? x * x : 0;
    case ACT_SIGMOID: return 1 / (1 + exp(-x));
    case ACT_NONE: return x;
    case ACT_XIELU:
    case ACT_SWIGLU_CLAMPED: break; /* not of one value alone */
    }
    return 0;
}

/* Relative to the result. An exponent u in e^u carries an error of |u| / 2 ulp of its own before e^ is taken.
 */
static double act_bound(act_kind kind, double x) {
    const double ulp = 0x1p-23;
    switch (kind) {
    case ACT_SILU: return 3 * ulp;
    case ACT_GELU: return 8 * ulp;
    case ACT_GELU_TANH: return (4 + 4 * fabs(1.6 * x + 0.072 * x * x * x)) * ulp;
    case ACT_GELU_QUICK: return (4 + 2 * fabs(1.702 * x)) * ulp;
    default: return ulp;
    }
}

static void test_act(void **state) {
    (void)state;
    enum { N = 40000 };
    float *x = malloc(N * sizeof *x), *y = malloc(N * sizeof *y), *expected = malloc(N * sizeof *y);
    for (int i = 0; i < N; i++)
        x[i] = i < N / 2 ? (float)(i - N / 4) * (30.0f / N * 4) / 4
                         : (i & 1 ? 1.0f : -1.0f) * exp2f((float)(i % 200) / 2 - 60);
    for (int kind = ACT_SILU; kind <= ACT_RELU2; kind++) {
        kernels_table_for("ref")->act((act_kind)kind, x, expected, N);
        EACH_OPS(t) {
            t->act((act_kind)kind, x, y, N);
            assert_memory_equal(y, expected, N * sizeof *y);
            for (int i = 0; i < N; i++) {
                const double exact = act_exact((act_kind)kind, (double)x[i]);
                if (fabs(exact) > 3e38)
                    continue;
                const double bound = act_bound((act_kind)kind, (double)x[i]) * fabs(exact) + 1e-37;
                if (!(fabs((double)y[i] - exact) <= bound))
                    fail_msg("%s act %d at %.9g: %.9g, expected %.9g (%.2f of the bound)", t->isa, kind,
                             (double)x[i], (double)y[i], exact, fabs((double)y[i] - exact) / bound);
            }
        }
    }
    free(x);
    free(y);
    free(expected);
}

static void test_softcap(void **state) {
    (void)state;
    enum { N = 20000 };
    float *x = malloc(N * sizeof *x), *y = malloc(N * sizeof *y), *expected = malloc(N * sizeof *y);
    for (int i = 0; i < N; i++)
        x[i] = (i & 1 ? 1.0f : -1.0f) * exp2f((float)i * 60 / N - 40);
    kernels_table_for("ref")->softcap(x, 30, expected, N);
    EACH_OPS(t) {
        t->softcap(x, 30, y, N);
        assert_memory_equal(y, expected, N * sizeof *y);
        for (int i = 0; i < N; i++) {
            const double exact = 30 * tanh((double)x[i] / 30);
            assert_true(fabs((double)y[i] - exact) <= 5 * 0x1p-23 * fabs(exact));
        }
    }
    free(x);
    free(y);
    free(expected);
}

static void test_xielu(void **state) {
    (void)state;
    enum { N = 20000 };
    const xielu by = {0.9f, 1.3f, 0.5f, -1e-6f};
    float *x = malloc(N * sizeof *x), *y = malloc(N * sizeof *y), *expected = malloc(N * sizeof *y);
    for (int i = 0; i < N; i++)
        x[i] = (i & 1 ? 1.0f : -1.0f) * exp2f((float)i * 40 / N - 35);
    kernels_table_for("ref")->xielu(&by, x, expected, N);
    EACH_OPS(t) {
        t->xielu(&by, x, y, N);
        assert_memory_equal(y, expected, N * sizeof *y);
        for (int i = 0; i < N; i++) {
            const double v = (double)x[i], low = fmin(v, (double)by.limit);
            const double exact = v > 0 ? (double)by.positive * v * v + (double)by.linear * v
                                       : (double)by.negative * (expm1(low) - v) + (double)by.linear * v;
            assert_true(fabs((double)y[i] - exact) <= 16 * 0x1p-23 * (fabs(exact) + fabs(v)));
        }
    }
    free(x);
    free(y);
    free(expected);
}

/* Lengths that are no multiple of a vector, buffers that end at a forbidden page, in place and not. */
static void test_lengths(void **state) {
    (void)state;
    uint64_t seed = 7;
    for (int n = 1; n < 70; n += n < 35 ? 1 : 5) {
        const size_t bytes = (size_t)n * sizeof(float);
        guarded x = guard_open(bytes), u = guard_open(bytes), y = guard_open(bytes);
        float *xs = x.data, *us = u.data, *ys = y.data;
        for (int i = 0; i < n; i++) {
            xs[i] = random_float(&seed) * 4;
            us[i] = random_float(&seed);
        }
        EACH_OPS(t) {
            t->add(xs, us, 0.5f, ys, n);
            for (int i = 0; i < n; i++)
                assert_true(ys[i] == xs[i] + us[i] * 0.5f);
            t->scale(xs, 3, ys, n);
            for (int i = 0; i < n; i++)
                assert_true(ys[i] == xs[i] * 3);
            t->clamp(xs, 1.5f, ys, n);
            for (int i = 0; i < n; i++)
                assert_true(ys[i] == fminf(1.5f, fmaxf(-1.5f, xs[i])));
            float act[70];
            t->act(ACT_SILU, xs, act, n);
            t->gate(ACT_SILU, xs, us, ys, n);
            for (int i = 0; i < n; i++)
                assert_true(ys[i] == act[i] * us[i]);
            memcpy(ys, xs, bytes);
            t->gate(ACT_SILU, ys, us, ys, n);
            for (int i = 0; i < n; i++)
                assert_true(ys[i] == act[i] * us[i]);
        }
        guard_close(&x);
        guard_close(&u);
        guard_close(&y);
    }
}

static void check_norm(norm_kind kind, int64_t k, int64_t n_group, bool w_full, bool affine, bool bias) {
    uint64_t seed = (uint64_t)(k * 8 + n_group);
    const int64_t d = k / n_group, n_w = w_full ? k : d;
    guarded x = guard_open((size_t)k * 4), w = guard_open((size_t)n_w * 4), b = guard_open((size_t)n_w * 4);
    guarded y = guard_open((size_t)k * 4), expected = guard_open((size_t)k * 4);
    for (int64_t i = 0; i < k; i++)
        ((float *)x.data)[i] = random_float(&seed) * 3 + 0.5f;
    for (int64_t i = 0; i < n_w; i++) {
        ((float *)w.data)[i] = random_float(&seed);
        ((float *)b.data)[i] = random_float(&seed);
    }
    const float *ws = affine ? w.data : NULL, *bs = bias ? b.data : NULL, *xs = x.data, *ys = y.data;
    kernels_table_for("ref")->norm(kind, xs, ws, bs, expected.data, k, n_group, w_full, 1e-5f);
    EACH_OPS(t) {
        t->norm(kind, xs, ws, bs, y.data, k, n_group, w_full, 1e-5f);
        assert_memory_equal(y.data, expected.data, (size_t)k * 4);
        for (int64_t g = 0; g < n_group; g++) {
            double mean = 0, square = 0, max = 0;
            for (int64_t i = 0; i < d && kind == NORM_LAYER; i++)
                mean += (double)xs[g * d + i] / (double)d;
            for (int64_t i = 0; i < d; i++)
                square += pow((double)xs[g * d + i] - mean, 2) / (double)d;
            for (int64_t i = 0; i < d; i++)
                max = fmax(max, fabs((double)xs[g * d + i]));
            /* The mean is rounded to a float; differences of elements that are close together have that
             * error.
             */
            const double mean_error = kind == NORM_LAYER ? 0x1p-22 * max / sqrt(square + 1e-5) : 0;
            for (int64_t i = 0; i < d; i++) {
                const int64_t at = w_full ? g * d + i : i;
                double exact = ((double)xs[g * d + i] - mean) / sqrt(square + 1e-5);
                exact = exact * (ws ? (double)ws[at] : 1) + (bs ? (double)bs[at] : 0);
                assert_true(fabs((double)ys[g * d + i] - exact) <=
                            3e-6 * (1 + fabs(exact)) + mean_error * (ws ? fabs((double)ws[at]) : 1));
            }
        }
        memcpy(y.data, x.data, (size_t)k * 4); /* in place */
        t->norm(kind, ys, ws, bs, y.data, k, n_group, w_full, 1e-5f);
        assert_memory_equal(y.data, expected.data, (size_t)k * 4);
    }
    guard_close(&x);
    guard_close(&w);
    guard_close(&b);
    guard_close(&y);
    guard_close(&expected);
}

static void test_norm(void **state) {
    (void)state;
    for (int kind = NORM_RMS; kind <= NORM_LAYER; kind++)
        for (int mode = 0; mode < 8; mode++) {
            check_norm((norm_kind)kind, 576, 1, false, mode & 1, mode & 2);
            check_norm((norm_kind)kind, 35, 1, false, mode & 1, mode & 2);
            check_norm((norm_kind)kind, 3 * 20, 3, mode & 4, mode & 1, mode & 2);
            check_norm((norm_kind)kind, 4 * 64, 4, mode & 4, mode & 1, mode & 2);
            for (int64_t d = 1; d < 20; d++) /* groups shorter than a vector, and no multiple of one */
                check_norm((norm_kind)kind, 5 * d, 5, mode & 4, mode & 1, mode & 2);
        }
}

static void test_rope(void **state) {
    (void)state;
    static const struct {
        int64_t n_head, d_head, n_rot;
    } shapes[] = {{3, 64, 64}, {2, 20, 20}, {2, 80, 32}, {1, 6, 2}, {4, 33, 26}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int style = ROPE_HALF; style <= ROPE_INTERLEAVED; style++) {
            const int64_t n = shapes[s].n_head * shapes[s].d_head, half = shapes[s].n_rot / 2;
            uint64_t seed = 11;
            guarded x = guard_open((size_t)n * 4), turn = guard_open((size_t)half * 8);
            float *start = malloc((size_t)n * 4), *cs = turn.data;
            for (int64_t i = 0; i < half; i++) {
                cs[i] = cosf((float)i * 0.7f);
                cs[half + i] = sinf((float)i * 0.7f);
            }
            for (int64_t i = 0; i < n; i++)
                start[i] = random_float(&seed);
            EACH_OPS(t) {
                float *xs = memcpy(x.data, start, (size_t)n * 4);
                t->rope((rope_style)style, xs, shapes[s].n_head, shapes[s].d_head, shapes[s].n_rot, cs);
                for (int64_t h = 0; h < shapes[s].n_head; h++)
                    for (int64_t i = 0; i < shapes[s].d_head; i++) {
                        const float *a = start + h * shapes[s].d_head;
                        float y = a[i];
                        if (i < 2 * half && style == ROPE_HALF)
                            y = i < half ? a[i] * cs[i] - a[i + half] * cs[half + i]
                                         : a[i - half] * cs[i] + a[i] * cs[i - half];
                        else if (i < 2 * half)
                            y = i % 2 ? a[i - 1] * cs[half + i / 2] + a[i] * cs[i / 2]
                                      : a[i] * cs[i / 2] - a[i + 1] * cs[half + i / 2];
                        assert_true(xs[h * shapes[s].d_head + i] == y);
                    }
            }
            guard_close(&x);
            guard_close(&turn);
            free(start);
        }
}

static void test_nan(void **state) {
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    EACH_OPS(t)
    for (int i = 0; i < 3; i++)
        for (int at = 0; at < 37; at += 6) {
            float x[37], y[37];
            for (int j = 0; j < 37; j++)
                x[j] = 1;
            x[at] = bad[i];
            t->norm(NORM_RMS, x, NULL, NULL, y, 37, 1, false, 1e-5f);
            for (int j = 0; j < 37; j++)
                assert_true(isnan(y[j])); /* the whole row, not a row of zeros */
            t->norm(NORM_LAYER, x, NULL, NULL, y, 37, 1, false, 1e-5f);
            for (int j = 0; j < 37; j++)
                assert_true(isnan(y[j]));
            for (int kind = ACT_SILU; kind <= ACT_RELU2 && i == 0; kind++) {
                t->act((act_kind)kind, x, y, 37);
                for (int j = 0; j < 37; j++)
                    assert_true((j == at) == isnan(y[j]));
            }
            if (i == 0) {
                t->clamp(x, 2, y, 37);
                assert_true(isnan(y[at]));
                t->softcap(x, 2, y, 37);
                assert_true(isnan(y[at]));
            }
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_act),     cmocka_unit_test(test_softcap), cmocka_unit_test(test_xielu),
        cmocka_unit_test(test_lengths), cmocka_unit_test(test_norm),    cmocka_unit_test(test_rope),
        cmocka_unit_test(test_nan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
