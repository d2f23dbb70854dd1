/* Ops on whole rows against their formulas. */
#include "kernels/row_op.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { D = 70, N = 3 };

static void fill(float *x, int n, int seed) {
    for (int i = 0; i < n; i++)
        x[i] = sinf((float)(i * 7 + seed));
}

static void run(const op *o, const float *in, const float *in2, const float *w, float *out) {
    row_op(kernels_table(), o, &(row_args){.in = in, .in2 = in2, .out = out, .w = w});
}

/* In place, transposed factors, and added to what is there. */
static void parts_are_mixed(void **state) {
    (void)state;
    float x[N * D], was[N * D], f[2 + N * N];
    fill(f, 2 + N * N, 1);
    for (int adds = 0; adds < 2; adds++) {
        fill(x, N * D, 2);
        fill(was, N * D, 2);
        const op o = {.kind = OP_MIX,
                      .n = N * D,
                      .k = N * D,
                      .adds = adds,
                      .u.mix = {.n_out = N,
                                .n_in = N,
                                .d = D,
                                .at = 2,
                                .step_out = 1,
                                .step_in = N,
                                .width = 2 + N * N,
                                .plus = 0.5f}};
        run(&o, x, f, NULL, x);
        for (int i = 0; i < N; i++)
            for (int c = 0; c < D; c++) {
                double sum = adds ? (double)was[i * D + c] : 0;
                for (int j = 0; j < N; j++)
                    sum += (0.5 + (double)f[2 + j * N + i]) * (double)was[j * D + c];
                assert_true(fabs(sum - (double)x[i * D + c]) < 1e-5);
            }
    }
}

static void a_part_is_added_to_some(void **state) {
    (void)state;
    float x[N * D], was[N * D], y[D];
    fill(x, N * D, 3);
    fill(was, N * D, 3);
    fill(y, D, 4);
    const op o = {.kind = OP_MIX,
                  .n = N * D,
                  .k = D,
                  .adds = true,
                  .u.mix = {.n_out = N - 1, .n_in = 1, .d = D, .first = 1, .plus = 1}};
    run(&o, y, NULL, NULL, x);
    for (int i = 0; i < N * D; i++)
        assert_true(x[i] == (i < D ? was[i] : was[i] + y[i % D]));
}

static double mean_square(const float *x) {
    double sum = 0;
    for (int i = 0; i < D; i++)
        sum += (double)x[i] * (double)x[i];
    return sum / D;
}

static void groups_get_a_magnitude(void **state) {
    (void)state;
    float x[N * D], as[D];
    fill(x, N * D, 5);
    fill(as, D, 6);
    for (int i = 0; i < D; i++)
        x[i] *= 1e-6f; /* below the least magnitude */
    const op o = {
        .kind = OP_LIKE, .n = N * D, .k = N * D, .u.num = {.value = 1e-5f, .every = N, .offset = D}};
    const double small = mean_square(x);
    run(&o, x, as, NULL, x);
    assert_true(fabs(mean_square(x) / (mean_square(as) * small / 1e-5) - 1) < 1e-5);
    for (int g = 1; g < N; g++)
        assert_true(fabs(mean_square(x + g * D) / mean_square(as) - 1) < 1e-5);
}

static void gates_are_shared(void **state) {
    (void)state;
    float x[N * D], g[N], was[N * D];
    fill(x, N * D, 7);
    fill(was, N * D, 7);
    fill(g, N, 8);
    run(&(op){.kind = OP_SHARE, .n = N * D, .k = N}, g, x, NULL, x);
    for (int i = 0; i < N * D; i++)
        assert_true(x[i] == was[i] * g[i / D]);
}

static void few_values_remain(void **state) {
    (void)state;
    float x[D], out[D];
    double mean = 0, squares = 0;
    fill(x, D, 9);
    for (int i = 0; i < D; i++)
        mean += (double)x[i] / D;
    for (int i = 0; i < D; i++)
        squares += ((double)x[i] - mean) * ((double)x[i] - mean) / D;
    run(&(op){.kind = OP_SPARSIFY, .n = D, .k = D, .u.num.value = 0.5f}, x, NULL, NULL, out);
    for (int i = 0; i < D; i++)
        assert_true(fabs(fmax(0, (double)x[i] - mean - 0.5 * sqrt(squares)) - (double)out[i]) < 1e-6);
    const float far[] = {-100, -1, 0, 1, 19, 100};
    run(&(op){.kind = OP_SOFTPLUS, .n = 6, .k = 6}, far, NULL, NULL, out);
    for (int i = 0; i < 6; i++)
        assert_true(fabs((double)out[i] - (double)(far[i] > 30 ? far[i] : log1pf(expf(far[i])))) < 1e-5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_are_mixed),        cmocka_unit_test(a_part_is_added_to_some),
        cmocka_unit_test(groups_get_a_magnitude), cmocka_unit_test(gates_are_shared),
        cmocka_unit_test(few_values_remain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
