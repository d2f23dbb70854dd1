/* The CUDA kernels' products and the order of their matrices against the scalar reference, on whatever device
 * is there; skipped without one. test_kernels_cuda [PATTERN]: the tests with such names */
#include "support/gpu.h"
#include "support/tilecase.h"

#include "kernels/kernels.h"
#include "numbers/tile.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- products ---- */

typedef struct product {
    int n_row;
    bool two, adds, gated, norm;
    bool centred, acts; /* matrices of floats only */
    act_kind act;
} product;

/* One launch; y is [n_row, ldy], with `before` in it. Poisoned otherwise. */
static float *run_linear(const matrix *m, int n_w, const view *w, const float *x, int64_t ldx,
                         const float *norm, const float *bias, product p, const float *before) {
    const int64_t n = m->n, k = m->k;
    const size_t y_bytes = (size_t)(p.n_row * n) * sizeof(float);
    float *host = malloc(n_w * y_bytes), *x_there = device_copy(x, (size_t)(p.n_row * ldx) * sizeof(float));
    float *y = device_new(n_w * y_bytes),
          *norm_there = norm ? device_copy(norm, (size_t)k * sizeof(float)) : NULL;
    float *bias_there = bias ? device_copy(bias, (size_t)n * sizeof(float)) : NULL;
    void *scratch = device_new(cuda->linear_scratch(p.n_row, k, p.two));
    OK(cuda->fill(y, 0xff, n_w * y_bytes, stream));
    if (before)
        OK(cuda->to_device(y, before, y_bytes, stream));
    cuda_linear a = {.n_w = n_w,
                     .n_row = p.n_row,
                     .x = x_there,
                     .ldx = ldx,
                     .norm = norm_there,
                     .eps = 1e-5f,
                     .centred = p.centred,
                     .shift = p.centred ? norm_there : NULL,
                     .two = p.two,
                     .gated = p.gated,
                     .acts = p.acts,
                     .act = p.act,
                     .adds = p.adds,
                     .scratch = scratch};
    for (int i = 0; i < n_w; i++) {
        a.w[i] = w[i];
        a.bias[i] = i == 0 ? bias_there : NULL;
        a.y[i] = y + i * p.n_row * n;
        a.ldy[i] = n;
    }
    OK(cuda->linear(&a, stream));
    OK(cuda->stream_sync(stream));
    read_back(host, y, n_w * y_bytes);
    drop(x_there), drop(y), drop(scratch);
    if (norm_there)
        drop(norm_there);
    if (bias_there)
        drop(bias_there);
    return host;
}

/* y in double from the multiplied values, and the sum of magnitudes that bounds its rounding. a: the row, as:
 * magnitudes. */
static void multiply_exactly(const matrix *m, const double *a, const double *as, double *y, double *size) {
    float *w = malloc((size_t)m->k * sizeof *w);
    for (int64_t n = 0; n < m->n; n++) {
        pack_read_row(&m->view, n, w);
        y[n] = size[n] = 0;
        for (int64_t i = 0; i < m->k; i++) {
            y[n] += a[i] * (double)w[i];
            size[n] += as[i] * fabs((double)w[i]);
        }
    }
    free(w);
}

/* The row as it is, for matrices of floats. */
static void reference_floats(const matrix *m, const float *x, double *y, double *size) {
    double *a = calloc((size_t)m->k, sizeof *a), *as = calloc((size_t)m->k, sizeof *as);
    for (int64_t i = 0; i < m->k; i++) {
        a[i] = (double)x[i];
        as[i] = fabs(a[i]);
    }
    multiply_exactly(m, a, as, y, size);
    free(a), free(as);
}

/* Exact products of the codes. */
static void reference(const matrix *m, const float *x, bool two, double *y, double *size) {
    if (m->view.format.layout == PACK_ROWS) {
        reference_floats(m, x, y, size);
        return;
    }
    const kernel_table *t = kernels_table_for("ref");
    const act_format f = act_format_for(&m->view.format, 8, 0);
    const int64_t k = m->k, group = f.group == PACK_GROUP_ROW ? tile_count(k) * TILE_K : f.group;
    char *row = aligned_alloc(64, act_row_bytes(f, k));
    float *left = malloc((size_t)k * sizeof(float));
    double *a = calloc((size_t)k, sizeof(double)), *as = calloc((size_t)k, sizeof(double));
    memcpy(left, x, (size_t)k * sizeof(float));
    for (int turn = 0; turn < (two ? 2 : 1); turn++) {
        t->act_quantize(f, left, k, row);
        const float *scale = (const float *)(const void *)(row + tile_count(k) * TILE_K);
        for (int64_t i = 0; i < k; i++) {
            const double v = (double)scale[i / group] * (int8_t)row[i];
            a[i] += v;
            as[i] += fabs(v);
            left[i] -= scale[i / group] * (float)(int8_t)row[i];
        }
    }
    multiply_exactly(m, a, as, y, size);
    free(row), free(left), free(a), free(as);
}

/* A wrong code or sum is one unit of the smallest scale: far above 2e-6 of the terms of the rows here, which
 * is the error that the order of float sums may cause. Minima cancel against codes and may cause more. */
static double bound_of(const matrix *m, double size) {
    return (m->view.format.asym ? 6e-6 : 2e-6) * size + 1e-30;
}

static void check_rows(const matrix *m, const float *x, const float *y, product p, const float *bias,
                       const float *before, const char *what) {
    double *expected = malloc((size_t)m->n * sizeof(double)), *size = malloc((size_t)m->n * sizeof(double));
    for (int r = 0; r < p.n_row; r++) {
        reference(m, x + r * m->k, p.two, expected, size);
        for (int64_t n = 0; n < m->n; n++) {
            const double more = (bias ? (double)bias[n] : 0) + (before ? (double)before[r * m->n + n] : 0);
            const double found = (double)y[r * m->n + n], bound = bound_of(m, size[n] + fabs(more));
            if (!(fabs(found - expected[n] - more) <= bound))
                fail_msg("%s %dx%d, %d rows%s: row %d output %d: %.9g, expected %.9g +- %.2g", what,
                         (int)m->n, (int)m->k, p.n_row, p.two ? " of two" : "", r, (int)n, found,
                         expected[n] + more, bound);
        }
    }
    free(expected), free(size);
}

/* counts: rows of launches, 0 at the end. */
static void check_counts(matrix *m, const char *what, const int *counts) {
    enum { MAX_ROWS = CUDA_MAX_ROWS };
    const view w = matrix_there(m);
    float *x = case_rows(MAX_ROWS, m->k, 3), *bias = random_rows(m->n, 4, 1),
          *before = random_rows(MAX_ROWS * m->n, 5, 1);
    float *alone[MAX_ROWS] = {NULL};
    for (; *counts; counts++) {
        const product p = {.n_row = *counts}, one = {.n_row = 1};
        float *y = run_linear(m, 1, &w, x, m->k, NULL, NULL, p, NULL);
        for (int r = 0; r < p.n_row; r++) {
            if (!alone[r]) {
                alone[r] = run_linear(m, 1, &w, x + r * m->k, m->k, NULL, NULL, one, NULL);
                if (r < 2)
                    check_rows(m, x + r * m->k, alone[r], one, NULL, NULL, what);
            }
            if (memcmp(y + r * m->n, alone[r], (size_t)m->n * sizeof(float)))
                fail_msg("%s %dx%d: row %d of %d has other bits than alone", what, (int)m->n, (int)m->k, r,
                         p.n_row);
        }
        free(y);
    }
    for (int n_row = 1; n_row <= 9; n_row += 4) {
        const product p = {.n_row = n_row, .two = true, .adds = true};
        float *y = run_linear(m, 1, &w, x, m->k, NULL, bias, p, before);
        check_rows(m, x, y, p, bias, before, what);
        free(y);
    }
    for (int r = 0; r < MAX_ROWS; r++)
        free(alone[r]);
    drop(w.data);
    free(x), free(bias), free(before);
    matrix_close(m);
}

static void check_matrix(matrix *m, const char *what) {
    check_counts(m, what, (const int[]){2, 5, 8, 9, 16, 0});
}

static const int64_t shapes[][2] = {{1, 32}, {15, 64}, {17, 576}, {48, 1000}, {33, 4096}};

static void test_uniform(void **state) {
    (void)state;
    static const char *const ends[] = {"g32",  "g32a",  "g64",  "g128",  "g128a",
                                       "grow", "growa", "g32t", "g128t", "g16"};
    int n_checked = 0;
    for (int bits = 2; bits <= 8; bits++)
        for (size_t e = 0; e < sizeof ends / sizeof *ends; e++) {
            const int64_t *s = shapes[(bits + (int)e) % 5];
            char name[PACK_NAME];
            pack_format f;
            snprintf(name, sizeof name, "u%d%s", bits, ends[e]);
            if (!pack_from_name(name, s[1], &f) || (f.group == 16 && bits != 2 && bits != 3 && bits != 6))
                continue;
            matrix m = matrix_open_uniform(name, s[0], s[1], MATRIX_RANDOM, (uint64_t)n_checked + 1);
            check_matrix(&m, name);
            n_checked++;
        }
    assert_true(n_checked > 50);
}

/* Up to 64 rows, on every kernel for them: sizes with and without a chunk for every block of eight,
 * with more panels than there are teams, with a short last chunk. */
static void test_many_rows(void **state) {
    (void)state;
    static const struct {
        const char *format;
        int64_t n, k;
        int counts[8];
    } cases[] = {{"u4g32", 40, 96, {3, 33, 64}},
                 {"u4g32", 4500, 1000, {2, 24}},
                 {"u4g32", 17, 4160, {8, 16, 17, 32, 48, 64}},
                 {"u4g32", 28500, 700, {40}}, /* pairs of panels: 4, 2 and 1 at once */
                 {"u4g64", 9000, 2560, {64}}, /* 2 and 1 */
                 {"u4g64", 100, 2048, {4, 64}},
                 {"u4g128", 33, 2304, {12, 31, 50}},
                 {"u4g32", 33, 14336, {5, 9, 16, 64}},
                 {"u4g64", 4300, 9000, {11}},
                 {"u8g128", 300, 2304, {2}},
                 {"u8g32", 33, 14336, {3}},
                 {"u2g128", 40, 14336, {2}},
                 {"u3g32", 17, 9000, {2}},
                 {"u4g32a", 20, 576, {17, 64}},
                 {"u6g16", 20, 512, {40}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        matrix m = matrix_open_uniform(cases[i].format, cases[i].n, cases[i].k, MATRIX_RANDOM, 60 + i);
        check_counts(&m, cases[i].format, cases[i].counts);
    }
}

static void test_file_types(void **state) {
    (void)state;
    static const type_id types[] = {TYPE_Q4_0, TYPE_Q4_1, TYPE_Q5_0, TYPE_Q5_1, TYPE_Q8_0,
                                    TYPE_Q2_K, TYPE_Q3_K, TYPE_Q4_K, TYPE_Q5_K, TYPE_Q6_K};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        for (int big = 0; big < 2; big++) {
            matrix m = matrix_open(types[i], big ? 37 : 16, big ? 2304 : 256, MATRIX_RANDOM, 11 + i);
            check_matrix(&m, type_get(types[i])->name);
        }
}

/* Codes of table entries, with all codes and scales of their types. */
static void test_tables(void **state) {
    (void)state;
    static const type_id types[] = {TYPE_IQ4_NL, TYPE_IQ4_XS, TYPE_MXFP4, TYPE_C4, TYPE_C3};
    static const int64_t sizes[][2] = {{16, 256}, {37, 2304}, {300, 4352}};
    for (size_t i = 0; i < 3 * sizeof types / sizeof *types; i++) {
        matrix m = matrix_open(types[i / 3], sizes[i % 3][0], sizes[i % 3][1], MATRIX_RANDOM, 31 + i);
        check_matrix(&m, type_get(types[i / 3])->name);
    }
    static const int64_t short_rows[][2] = {{17, 32}, {48, 96}, {15, 1056}};
    for (size_t i = 0; i < 6; i++) {
        matrix m = matrix_open(i % 2 ? TYPE_IQ4_NL : TYPE_MXFP4, short_rows[i / 2][0], short_rows[i / 2][1],
                               MATRIX_RANDOM, 51 + i);
        check_matrix(&m, i % 2 ? "iq4_nl" : "mxfp4");
    }
}

/* Matrices of floats: rows of any length, of less than a chunk and than a warp's share, and so many outputs
 * that units of 32 are used. */
static void test_floats(void **state) {
    (void)state;
    static const type_id types[] = {TYPE_F16, TYPE_BF16, TYPE_F32};
    static const int64_t sizes[][2] = {{1, 4},    {15, 36},    {17, 64},  {33, 100},
                                       {40, 576}, {100, 4500}, {8500, 72}};
    for (size_t i = 0; i < 7 * sizeof types / sizeof *types; i++) {
        matrix m = matrix_open(types[i / 7], sizes[i % 7][0], sizes[i % 7][1], MATRIX_RANDOM, 71 + i);
        check_counts(&m, type_get(types[i / 7])->name, (const int[]){2, 3, 8, 9, 16, 17, 33, 64, 0});
    }
}

/* Floats of 8 and 4 bits, whose rows are a multiple of 64 long. */
static void test_scaled(void **state) {
    (void)state;
    static const type_id types[] = {TYPE_F8G64, TYPE_F4G64};
    static const int64_t sizes[][2] = {{1, 64}, {15, 128}, {33, 192}, {40, 576}, {100, 4480}, {8500, 64}};
    for (size_t i = 0; i < 12; i++) {
        matrix m = matrix_open(types[i / 6], sizes[i % 6][0], sizes[i % 6][1], MATRIX_RANDOM, 91 + i);
        check_counts(&m, type_get(types[i / 6])->name, (const int[]){1, 2, 3, 8, 9, 16, 17, 33, 64, 0});
    }
}

static void test_refused(void **state) {
    (void)state;
    matrix m = matrix_open_planes(TYPE_Q4_0, 16, 64, MATRIX_RANDOM, 1);
    cuda_linear a = {.w = {m.view}, .n_w = 1, .n_row = 1};
    assert_int_equal(cuda->linear(&a, stream), CUDA_UNSUPPORTED);
    a.n_row = CUDA_MAX_ROWS + 1;
    assert_int_equal(cuda->linear(&a, stream), CUDA_UNSUPPORTED);
    matrix_close(&m);
}

/* Gate and up of one launch against two plain ones; three matrices of one launch; a norm in front. type:
 * TYPE_COUNT: u4g32. counts: of rows, up to 40; 0 ends. */
static void check_together(type_id type, int64_t n, int64_t k, const int *counts) {
    matrix m[3];
    view w[3];
    for (int i = 0; i < 3; i++) {
        m[i] = type == TYPE_COUNT ? matrix_open_uniform("u4g32", n, k, MATRIX_RANDOM, (uint64_t)(20 + i))
                                  : matrix_open(type, n, k, MATRIX_RANDOM, (uint64_t)(20 + i));
        w[i] = matrix_there(&m[i]);
    }
    float *x = random_rows(40 * k, 6, 3), *norm = random_rows(k, 7, 2),
          *plain = malloc((size_t)(40 * k) * sizeof(float));
    const kernel_table *t = kernels_table_for("ref");
    for (int r = 0; r < 40; r++)
        t->norm(NORM_RMS, x + r * k, norm, NULL, plain + r * k, k, 1, true, 1e-5f);
    for (; *counts; counts++) {
        const int rows = *counts;
        float *three = run_linear(m, 3, w, x, k, norm, NULL, (product){.n_row = rows}, NULL);
        for (int i = 0; i < 3; i++) {
            float *one = run_linear(&m[i], 1, &w[i], x, k, norm, NULL, (product){.n_row = rows}, NULL);
            assert_memory_equal(one, three + i * rows * n, (size_t)(rows * n) * sizeof(float));
            free(one);
        }
        double *expected = malloc((size_t)n * sizeof(double)), *size = malloc((size_t)n * sizeof(double));
        for (int act = ACT_SILU; act <= ACT_RELU2; act++) {
            float *gated = run_linear(m, 2, w, x, k, norm, NULL,
                                      (product){.n_row = rows, .gated = true, .act = (act_kind)act}, NULL);
            for (int i = 0; i < rows * n; i++) {
                float g;
                t->act((act_kind)act, three + i, &g, 1);
                const float u = g * three[rows * n + i];
                if (!(fabsf(gated[i] - u) <= 1e-5f * fabsf(u) + 1e-6f))
                    fail_msg("activation %d, element %d: %g, expected %g", act, i, (double)gated[i],
                             (double)u);
            }
            free(gated);
        }
        /* Codes of x * norm may differ from those of the normed row if a value is between two codes. */
        for (int r = 0; r < rows; r++) {
            reference(&m[0], plain + r * k, false, expected, size);
            for (int64_t i = 0; i < n; i++)
                if (!(fabs((double)three[r * n + i] - expected[i]) <= 2e-4 * size[i]))
                    fail_msg("normed row %d output %d: %g, expected %g", r, (int)i, (double)three[r * n + i],
                             expected[i]);
        }
        free(expected), free(size), free(three);
    }
    for (int i = 0; i < 3; i++) {
        drop(w[i].data);
        matrix_close(&m[i]);
    }
    free(x), free(norm), free(plain);
}

static void test_together(void **state) {
    (void)state;
    check_together(TYPE_COUNT, 100, 1100, (const int[]){1, 3, 16, 20, 40, 0});
    check_together(TYPE_COUNT, 40, 9000, (const int[]){10, 0}); /* does not fit one block */
    check_together(TYPE_IQ4_NL, 60, 1088, (const int[]){1, 3, 20, 0});
    check_together(TYPE_F16, 100, 1100, (const int[]){1, 3, 16, 20, 40, 0});
    check_together(TYPE_F16, 4600, 160, (const int[]){1, 9, 40, 0}); /* units of 32 */
    check_together(TYPE_BF16, 40, 1100, (const int[]){1, 20, 0});
    check_together(TYPE_F32, 40, 1100, (const int[]){1, 20, 0});
    check_together(TYPE_F8G64, 40, 1088, (const int[]){1, 20, 0});
    check_together(TYPE_F4G64, 40, 1088, (const int[]){1, 9, 20, 0});
}

/* Matrices of floats after a LayerNorm whose shift is its weights, and before an activation without a gate.
 */
static void check_layer(type_id type, int64_t n, int64_t k, int n_row) {
    const kernel_table *t = kernels_table_for("ref");
    matrix m = matrix_open(type, n, k, MATRIX_RANDOM, 31);
    const view w = matrix_there(&m);
    float *x = random_rows(n_row * k, 6, 3), *norm = random_rows(k, 7, 2), *bias = random_rows(n, 8, 1),
          *row = malloc((size_t)k * sizeof *row);
    double *expected = malloc((size_t)n * sizeof(double)), *size = malloc((size_t)n * sizeof(double));
    const product p = {.n_row = n_row, .centred = true},
                  acts = {.n_row = n_row, .acts = true, .act = ACT_GELU};
    float *found = run_linear(&m, 1, &w, x, k, norm, bias, p, NULL),
          *plain = run_linear(&m, 1, &w, x, k, NULL, bias, (product){.n_row = n_row}, NULL),
          *activated = run_linear(&m, 1, &w, x, k, NULL, bias, acts, NULL);
    for (int r = 0; r < n_row; r++) {
        t->norm(NORM_LAYER, x + r * k, norm, norm, row, k, 1, true, 1e-5f);
        reference(&m, row, false, expected, size);
        for (int64_t i = 0; i < n; i++)
            if (!(fabs((double)found[r * n + i] - expected[i] - (double)bias[i]) <= 1e-5 * size[i]))
                fail_msg("row %d of %d output %d: %g, expected %g", r, n_row, (int)i,
                         (double)found[r * n + i], expected[i] + (double)bias[i]);
        t->act(ACT_GELU, plain + r * n, plain + r * n, n);
        for (int64_t i = r * n; i < (r + 1) * n; i++)
            assert_true(fabsf(activated[i] - plain[i]) <= 1e-5f * fabsf(plain[i]) + 1e-6f);
    }
    free(x), free(norm), free(bias), free(row), free(expected), free(size);
    free(found), free(plain), free(activated);
    drop(w.data);
    matrix_close(&m);
}
static void test_layer(void **state) {
    (void)state;
    static const type_id types[] = {TYPE_F16, TYPE_BF16, TYPE_F32};
    for (int i = 0; i < 3; i++) {
        check_layer(types[i], 33, 36, 1);
        check_layer(types[i], 33, 1100, 9);
        check_layer(types[i], 8500, 72, 10);
        check_layer(types[i], 20, CUDA_MAX_CENTRED, 17);
    }
}

/* A NaN or an infinity poisons its own row. */
static void check_poison(matrix m) {
    const view w = matrix_there(&m);
    float *x = random_rows(4 * 300, 8, 1);
    x[300 + 17] = NAN;
    x[600 + 299] = INFINITY;
    float *y = run_linear(&m, 1, &w, x, 300, NULL, NULL, (product){.n_row = 4}, NULL);
    for (int i = 0; i < 4 * 40; i++)
        assert_true((i / 40 == 1 || i / 40 == 2) == (bool)isnan(y[i]));
    float *one = run_linear(&m, 1, &w, x + 300, 300, NULL, NULL, (product){.n_row = 1}, NULL);
    for (int i = 0; i < 40; i++)
        assert_true(isnan(one[i]));
    free(x), free(y), free(one);
    drop(w.data);
    matrix_close(&m);
}
static void test_poison(void **state) {
    (void)state;
    check_poison(matrix_open_uniform("u4g32", 40, 300, MATRIX_RANDOM, 9));
    check_poison(matrix_open(TYPE_F16, 40, 300, MATRIX_RANDOM, 9));
    check_poison(matrix_open(TYPE_BF16, 40, 300, MATRIX_RANDOM, 9));
}

/* A power of two that multiplies a row multiplies its sums. */
static void test_sizes(void **state) {
    (void)state;
    enum { N = 40, K = 300, ROWS = 60 };
    static const type_id types[] = {TYPE_F16, TYPE_BF16, TYPE_F32};
    for (int t = 0; t < 3; t++) {
        matrix m = matrix_open(types[t], N, K, MATRIX_RANDOM, 30);
        const view w = matrix_there(&m);
        float *x = random_rows(ROWS * K, 6, 3), *scaled = malloc(ROWS * K * sizeof *scaled);
        float *is = run_linear(&m, 1, &w, x, K, NULL, NULL, (product){.n_row = ROWS}, NULL);
        for (int i = 0; i < ROWS * K; i++)
            scaled[i] = i < K ? 0 : ldexpf(x[i], i / K * 3 / 2 - 40);
        float *found = run_linear(&m, 1, &w, scaled, K, NULL, NULL, (product){.n_row = ROWS}, NULL);
        for (int i = 0; i < ROWS * N; i++)
            if (found[i] != (i < N ? 0 : ldexpf(is[i], i / N * 3 / 2 - 40)))
                fail_msg("row %d: %g instead of %g * 2^%d", i / N, (double)found[i], (double)is[i],
                         i / N * 3 / 2 - 40);
        drop(w.data);
        matrix_close(&m);
        free(x), free(scaled), free(is), free(found);
    }
}

/* ---- the order of matrices ---- */

static void test_gtile(void **state) {
    (void)state;
    static const char *const names[] = {"u2g32",  "u3g128a", "u4g32",  "u5grow",
                                        "u6g32t", "u7g64",   "u8g128", "u5g32p"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        matrix m = matrix_open_uniform(names[i], 35, 700, MATRIX_RANDOM, i + 1);
        view w = matrix_there(&m);
        uint64_t bytes;
        assert_true(pack_bytes(&w.format, w.n, w.k, &bytes));
        uint8_t *host = malloc(bytes);
        OK(cuda->gtile(&w, false, stream));
        read_back(host, w.data, bytes);
        assert_memory_equal(host, m.view.data, bytes);
        free(host);
        drop(w.data);
        matrix_close(&m);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gtile),     cmocka_unit_test(test_uniform), cmocka_unit_test(test_file_types),
        cmocka_unit_test(test_many_rows), cmocka_unit_test(test_refused), cmocka_unit_test(test_together),
        cmocka_unit_test(test_poison),    cmocka_unit_test(test_tables),  cmocka_unit_test(test_floats),
        cmocka_unit_test(test_scaled),    cmocka_unit_test(test_sizes),   cmocka_unit_test(test_layer),
    };
    if (gpu_open(argc, argv))
        return cmocka_run_group_tests(tests, NULL, NULL);
    return gpu_missing();
}
