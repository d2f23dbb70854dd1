/* The CUDA products with activations of 4 and 8 bits by block of channels, against the scalar kernels of the
 * processor; skipped without a device.
 *   test_kernels_cuda_mixed [PATTERN]: the tests with such names
 *
 * Codes and outliers must be the processor's: one code that differs is far outside of the bound, which is for
 * sums in another order. */
#include "support/gpu.h"

#include "kernels/act8.h"
#include "kernels/kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_N = 300, MAX_K = 4096, MAX_ROWS = 300 };

/* Rows with a few channels far larger than the others, in other places in each row. */
static float *rows_with_outliers(int64_t n_row, int64_t k, uint64_t seed) {
    float *x = random_rows(n_row * k, seed, 1);
    uint64_t s = seed;
    for (int64_t r = 0; r < n_row; r++)
        for (int i = 0; i < (int)(r % 20); i++)
            x[r * k + (int64_t)(random_next(&s) % (uint64_t)k)] *= (float)(4 + 40 * (r % 3));
    return x;
}

/* ---- the processor ---- */

/* Sums of rows with matrix m, their sizes (the sum of magnitudes), and the number of outliers. */
static int expected(const matrix *m, int n8, const float *x, int64_t n_row, double *sum, double *size) {
    const kernel_table *t = kernels_table_for("ref");
    const int64_t n = m->n, k = m->k;
    const bool mixed = n8 * ACT_BLOCK < k;
    const act_format f = act_format_for(&m->view.format, mixed ? 4 : 8, mixed ? n8 : 0);
    const act8_layout l = act_layout_of(f, k);
    float *w = malloc((size_t)(n * k) * sizeof *w), *left = malloc((size_t)k * sizeof *left);
    char *codes = aligned_alloc(64, act_row_bytes(f, k));
    int n_outlier = 0;
    for (int64_t o = 0; o < n; o++)
        pack_read_row(&m->view, o, w + o * k);
    for (int64_t r = 0; r < n_row; r++) {
        outlier of[ACT_OUTLIERS];
        memcpy(left, x + r * k, (size_t)k * sizeof *left);
        const int some = act_extract_outliers(t, f.bits, x + r * k, k, left, of);
        t->act_quantize(f, left, k, codes);
        for (int64_t i = 0; i < k; i++)
            left[i] = ((const float *)(const void *)(codes + l.scale))[i / act_group(f, k)] *
                      (float)(int8_t)codes[i];
        for (int i = 0; i < some; i++)
            left[of[i].at] = of[i].value;
        n_outlier += some;
        for (int64_t o = 0; o < n; o++) {
            double s = 0, all = 0;
            for (int64_t i = 0; i < k; i++) {
                const double p = (double)w[o * k + i] * (double)left[i];
                s += p;
                all += fabs(p);
            }
            sum[r * n + o] = s;
            size[r * n + o] = all;
        }
    }
    free(w), free(left), free(codes);
    return n_outlier;
}

/* ---- the device ---- */

/* One launch; its outputs, NaN before or as `before` has them: [n_w][n_row, n]. */
static float *multiply(cuda_linear a, const view *w, int n_w, const float *x, const float *norm,
                       const float *bias, const float *before) {
    const int64_t n = w[0].n, k = w[0].k, ldx = (k + 3) / 4 * 4;
    const size_t bytes = (size_t)(a.n_row * n) * sizeof(float);
    const size_t scratch_bytes = cuda->mixed_scratch(a.n_row, k);
    float *rows = calloc((size_t)(a.n_row * ldx), sizeof *rows), *host = malloc((size_t)n_w * bytes);
    for (int64_t r = 0; r < a.n_row; r++)
        memcpy(rows + r * ldx, x + r * k, (size_t)k * sizeof *rows);
    float *y = device_new((size_t)n_w * bytes);
    void *scratch = device_new(scratch_bytes);
    OK(cuda->fill(y, 0xff, (size_t)n_w * bytes, stream));
    OK(cuda->fill(scratch, 0xff, scratch_bytes, stream));
    if (before)
        OK(cuda->to_device(y, before, bytes, stream));
    a.n_w = n_w;
    a.x = device_copy(rows, (size_t)(a.n_row * ldx) * sizeof *rows);
    a.ldx = ldx;
    a.norm = norm ? device_copy(norm, (size_t)k * sizeof *norm) : NULL;
    a.shift = a.centred ? a.norm : NULL;
    a.eps = 1e-5f;
    a.scratch = scratch;
    for (int i = 0; i < n_w; i++) {
        a.w[i] = w[i];
        a.bias[i] = bias && !i ? device_copy(bias, (size_t)n * sizeof *bias) : NULL;
        a.y[i] = y + i * a.n_row * n;
        a.ldy[i] = n;
    }
    OK(cuda->mixed(&a, stream));
    OK(cuda->stream_sync(stream));
    read_back(host, y, (size_t)n_w * bytes);
    drop(a.x), drop(y), drop(scratch);
    if (norm)
        drop(a.norm);
    if (bias)
        drop(a.bias[0]);
    free(rows);
    return host;
}

/* ---- tests ---- */

static void near(const char *what, int64_t i, double found, double should, double size) {
    if (!(fabs(found - should) <= 2e-6 * size + 1e-6))
        fail_msg("%s, output %d: %.9g, expected %.9g +- %g", what, (int)i, found, should, 2e-6 * size + 1e-6);
}

/* Products of one matrix with every number of blocks in 8 bits, also more than there are. */
static void sums(void **state) {
    (void)state;
    static const struct {
        int64_t n, k, n_row;
    } shapes[] = {{16, 64, 1},    {17, 576, 3},    {300, 1100, 16},  {140, 1000, 17},
                  {33, 2300, 64}, {130, 2048, 65}, {300, 4096, 130}, {130, 3000, 300}};
    double *sum = malloc(sizeof *sum * MAX_ROWS * MAX_N), *size = malloc(sizeof *size * MAX_ROWS * MAX_N);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int by = 0; by < 9; by++) {
            const int64_t n = shapes[i].n, k = shapes[i].k, n_row = shapes[i].n_row;
            const int n8 = (int)((k + 127) / 128 * (by / 3) + 1) / 2;
            char what[64];
            matrix m = matrix_open_uniform(by % 3 == 0   ? "u4g32"
                                           : by % 3 == 1 ? "u4g64"
                                                         : "u4g128",
                                           n, k, MATRIX_RANDOM, i + 1);
            const view w = matrix_there(&m);
            float *x = rows_with_outliers(n_row, k, 7 + i);
            float *y = multiply((cuda_linear){.n_row = n_row, .n8 = n8}, &w, 1, x, NULL, NULL, NULL);
            const int n_outlier = expected(&m, n8, x, n_row, sum, size);
            snprintf(what, sizeof what, "%d x %d, %d rows, %d blocks, %d", (int)n, (int)k, (int)n_row, n8,
                     32 << by % 3);
            assert_true(n_row < 16 || n_outlier > 0);
            for (int64_t o = 0; o < n_row * n; o++)
                near(what, o, (double)y[o], sum[o], size[o]);
            drop(w.data);
            matrix_close(&m);
            free(x), free(y);
        }
    free(sum), free(size);
}

/* A row has the same bits alone, in the first rows, and among others in the last place. */
static void alone(void **state) {
    (void)state;
    static const int counts[] = {1, 2, 16, 17, 64, 65, 128, 129, MAX_ROWS};
    for (int i = 0; i < 3; i++) {
        const int64_t n = i == 2 ? 9000 : 200, k = i == 2 ? 576 : MAX_K;
        matrix m = matrix_open_uniform(i == 0   ? "u4g128"
                                       : i == 1 ? "u4g64"
                                                : "u4g32",
                                       n, k, MATRIX_RANDOM, 3);
        const view w = matrix_there(&m);
        float *x = rows_with_outliers(MAX_ROWS, k, 5);
        float *all = multiply((cuda_linear){.n_row = MAX_ROWS, .n8 = 2}, &w, 1, x, NULL, NULL, NULL);
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            const int64_t first = MAX_ROWS - counts[c];
            float *some =
                multiply((cuda_linear){.n_row = counts[c], .n8 = 2}, &w, 1, x + first * k, NULL, NULL, NULL);
            assert_memory_equal(some, all + first * n, (size_t)(counts[c] * n) * sizeof *some);
            free(some);
        }
        drop(w.data);
        matrix_close(&m);
        free(x), free(all);
    }
}

/* What surrounds the sums: norms, biases, three matrices, gate, activation, addition. */
static void around(void **state) {
    (void)state;
    enum { N = 200, K = 1152, ROWS = 70 };
    const kernel_table *t = kernels_table_for("ref");
    matrix m[3];
    view w[3];
    double *sum[3], *size[3];
    float *x = rows_with_outliers(ROWS, K, 3), *norm = random_rows(K, 7, 2), *bias = random_rows(N, 8, 1),
          *before = random_rows(ROWS * N, 9, 1), *normed = malloc(sizeof *normed * ROWS * K);
    for (int i = 0; i < 3; i++) {
        m[i] = matrix_open_uniform("u4g64", N, K, MATRIX_RANDOM, (uint64_t)(20 + i));
        w[i] = matrix_there(&m[i]);
        sum[i] = malloc(sizeof **sum * ROWS * N);
        size[i] = malloc(sizeof **size * ROWS * N);
    }
    for (int centred = 0; centred < 2; centred++) {
        const cuda_linear a = {.n_row = ROWS, .n8 = 2, .centred = centred};
        cuda_linear gates = a, acts = a, adds = a;
        gates.gated = acts.acts = adds.adds = true;
        gates.act = acts.act = ACT_GELU_TANH;
        for (int r = 0; r < ROWS; r++)
            t->norm(centred ? NORM_LAYER : NORM_RMS, x + r * K, norm, centred ? norm : NULL, normed + r * K,
                    K, 1, false, 1e-5f);
        for (int i = 0; i < 3; i++)
            expected(&m[i], 2, normed, ROWS, sum[i], size[i]);
        float *three = multiply(a, w, 3, x, norm, bias, NULL),
              *gated = multiply(gates, w, 2, x, norm, bias, NULL),
              *acted = multiply(acts, w, 1, x, norm, bias, NULL),
              *added = multiply(adds, w, 1, x, norm, bias, before);
        for (int o = 0; o < ROWS * N; o++) {
            const double b = (double)bias[o % N];
            for (int i = 0; i < 3; i++)
                near("three", o, (double)three[i * ROWS * N + o], sum[i][o] + (i ? 0 : b), size[i][o]);
            float g = three[o];
            t->act(ACT_GELU_TANH, &g, &g, 1);
            const double up = (double)three[ROWS * N + o];
            near("acted", o, (double)acted[o], (double)g, size[0][o]);
            near("gated", o, (double)gated[o], (double)g * up, size[0][o] * fabs(up) + 1);
            near("added", o, (double)added[o], sum[0][o] + b + (double)before[o], size[0][o] + 1);
        }
        free(three), free(gated), free(acted), free(added);
    }
    for (int i = 0; i < 3; i++) {
        drop(w[i].data);
        matrix_close(&m[i]);
        free(sum[i]), free(size[i]);
    }
    free(x), free(norm), free(bias), free(before), free(normed);
}

/* Zeros, tiny values, and a value that is not a number. */
static void special(void **state) {
    (void)state;
    enum { N = 40, K = 640, ROWS = 5 };
    matrix m = matrix_open_uniform("u4g64", N, K, MATRIX_RANDOM, 4);
    const view w = matrix_there(&m);
    float *x = random_rows(ROWS * K, 6, 1);
    for (int i = 0; i < K; i++) {
        x[K + i] = 0;
        x[2 * K + i] *= 1e-38f;
        x[3 * K + i] = i % 128 < 64 ? x[3 * K + i] : 0;
    }
    x[4 * K + 200] = NAN;
    float *y = multiply((cuda_linear){.n_row = ROWS, .n8 = 1}, &w, 1, x, NULL, NULL, NULL);
    for (int o = 0; o < N; o++) {
        assert_true(y[N + o] == 0 && y[2 * N + o] == 0);
        assert_true(isfinite(y[o]) && isfinite(y[3 * N + o]));
        assert_true(isnan(y[4 * N + o]));
    }
    drop(w.data);
    matrix_close(&m);
    free(x), free(y);
}

/* Products of other formats are refused. */
static void refused(void **state) {
    (void)state;
    static const char *const names[] = {"u3g64", "u8g64", "u4g64a", "u4g64t"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        matrix m = matrix_open_uniform(names[i], 16, 256, MATRIX_RANDOM, 1);
        assert_false(cuda_mixes(&m.view.format));
        assert_int_equal(cuda->mixed(&(cuda_linear){.w = {m.view}, .n_w = 1, .n_row = 1}, stream),
                         CUDA_UNSUPPORTED);
        matrix_close(&m);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(sums), cmocka_unit_test(alone),
                                       cmocka_unit_test(around), cmocka_unit_test(special),
                                       cmocka_unit_test(refused)};
    if (gpu_open(argc, argv))
        return cmocka_run_group_tests(tests, NULL, NULL);
    return gpu_missing();
}
