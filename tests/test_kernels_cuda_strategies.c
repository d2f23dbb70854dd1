/* Every strategy of the device (cuda_kernels.strategies), with activations of 8 and of 4 bits: results are
 * within a bound of the scalar reference and have the bits of the rule. The probes of its units run. Skipped
 * without a device. test_kernels_cuda_strategies [PATTERN] */
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

enum { MAX_ROWS = CUDA_MAX_ROWS };

/* Rows of a test on the device, with memory for the outputs. */
typedef struct rows {
    int64_t n, k;
    float *x, *norm, *bias, *before; /* host: [MAX_ROWS, k], [k], [n], [MAX_ROWS, n] */
    float *x_there, *norm_there, *bias_there, *y;
    void *scratch, *codes;
} rows;

static rows rows_open(int64_t n, int64_t k) {
    rows r = {.n = n, .k = k};
    r.x = case_rows(MAX_ROWS, k, 3);
    r.norm = random_rows(k, 7, 2);
    r.bias = random_rows(n, 4, 1);
    r.before = random_rows(MAX_ROWS * n, 5, 1);
    r.x_there = device_copy(r.x, (size_t)(MAX_ROWS * k) * sizeof(float));
    r.norm_there = device_copy(r.norm, (size_t)k * sizeof(float));
    r.bias_there = device_copy(r.bias, (size_t)n * sizeof(float));
    r.y = device_new((size_t)(3 * MAX_ROWS * n) * sizeof(float));
    r.scratch = device_new(cuda->linear_scratch(MAX_ROWS, k, true));
    r.codes = device_new(cuda->codes_bytes(n));
    return r;
}
static void rows_close(rows *r) {
    drop(r->x_there), drop(r->norm_there), drop(r->bias_there), drop(r->y), drop(r->scratch), drop(r->codes);
    free(r->x), free(r->norm), free(r->bias), free(r->before);
}

/* Outputs of a launch, then the codes that it left; free(). NULL: the strategy does not have this product. */
static float *outputs(const rows *r, const cuda_strategy *by, cuda_linear a, bool leaves) {
    const size_t each = (size_t)(MAX_ROWS * r->n), bytes = 3 * each * sizeof(float);
    const size_t codes = cuda->codes_bytes(r->n);
    float *host = malloc(bytes + codes);
    OK(cuda->fill(r->y, 0xff, bytes, stream));
    OK(cuda->fill(r->codes, 0, codes, stream));
    OK(cuda->to_device(r->y, r->before, each * sizeof(float), stream));
    a.scratch = r->scratch;
    a.eps = 1e-5f;
    a.ldx = r->k;
    a.leaves.data = leaves ? r->codes : NULL;
    for (int i = 0; i < a.n_w; i++) {
        a.y[i] = r->y + (size_t)i * each;
        a.ldy[i] = r->n;
    }
    const int e = by ? by->launch(&a, stream) : cuda->linear(&a, stream);
    if (e == CUDA_UNSUPPORTED && by) {
        free(host);
        return NULL;
    }
    OK(e);
    OK(cuda->stream_sync(stream));
    read_back(host, r->y, bytes);
    read_back((uint8_t *)host + bytes, r->codes, codes);
    return host;
}

static cuda_linear product_of(const rows *r, const view *w, int64_t n_row, int act_bits) {
    return (cuda_linear){
        .w = {w[0]}, .n_w = 1, .n_row = n_row, .x = r->x_there, .act_bits = act_bits, .act = ACT_SILU};
}

/* Row m of a matrix's product, exactly, and the sum of sizes that bounds its rounding. */
static void reference(const matrix *m, const float *x, int act_bits, double *y, double *size) {
    const kernel_table *t = kernels_table_for("ref");
    const act_format f = act_format_for(&m->view.format, act_bits, 0);
    const int64_t k = m->k, group = f.group == PACK_GROUP_ROW ? tile_count(k) * TILE_K : f.group;
    char *row = aligned_alloc(64, act_row_bytes(f, k));
    float *w = malloc((size_t)k * sizeof(float));
    t->act_quantize(f, x, k, row);
    const float *scale = (const float *)(const void *)(row + tile_count(k) * TILE_K);
    for (int64_t n = 0; n < m->n; n++) {
        pack_read_row(&m->view, n, w);
        y[n] = size[n] = 0;
        for (int64_t i = 0; i < k; i++) {
            const double v = (double)scale[i / group] * (int8_t)row[i] * (double)w[i];
            y[n] += v;
            size[n] += fabs(v);
        }
    }
    free(row), free(w);
}

/* Minima cancel against codes and may cost more (test_kernels_cuda.c has the same bounds). */
static void check_reference(const matrix *m, const rows *r, const float *y, int64_t n_row, int act_bits,
                            const char *what) {
    const double off = m->view.format.asym ? 6e-6 : 2e-6;
    double *expected = malloc((size_t)m->n * sizeof(double)), *size = malloc((size_t)m->n * sizeof(double));
    for (int64_t i = 0; i < n_row; i++) {
        reference(m, r->x + i * m->k, act_bits, expected, size);
        for (int64_t n = 0; n < m->n; n++)
            if (!(fabs((double)y[i * m->n + n] - expected[n]) <= off * size[n] + 1e-30))
                fail_msg("%s %dx%d a%d, row %d of %d output %d: %.9g, expected %.9g +- %.2g", what, (int)m->n,
                         (int)m->k, act_bits, (int)i, (int)n_row, (int)n, (double)y[i * m->n + n],
                         expected[n], off * size[n]);
    }
    free(expected), free(size);
}

static int capability(void) {
    static int known;
    cuda_device_info info;
    if (!known) {
        OK(cuda->device_open(0, &info));
        known = 10 * info.major + info.minor;
    }
    return known;
}

/* Strategy i of those for up to 64 rows, or NULL when it is not this device's. */
static const cuda_strategy *few_rows(int i) {
    int n;
    const cuda_strategy *s = &cuda->strategies(&n)[i];
    const bool is_wide = s->row.rule_rows > CUDA_MAX_ROWS, here = capability() >= s->since;
    return !is_wide && here && (!s->before || capability() < s->before) ? s : NULL;
}
static int n_strategy(void) {
    int n;
    cuda->strategies(&n);
    return n;
}

static int n_compared; /* launches */

/* counts: rows of launches; 0 ends. */
static void check_product(matrix *m, const char *format, const int *counts) {
    const view w = matrix_there(m);
    rows r = rows_open(m->n, m->k);
    for (; *counts; counts++)
        for (int act_bits = 4; act_bits <= 8; act_bits += 4) {
            const int64_t n_row = *counts;
            const cuda_linear a = product_of(&r, &w, n_row, act_bits);
            float *rule = outputs(&r, NULL, a, false);
            check_reference(m, &r, rule, n_row, act_bits, format);
            for (int i = 0; i < n_strategy(); i++) {
                const cuda_strategy *s = few_rows(i);
                float *y = s && s->row.can(&m->view.format, n_row) ? outputs(&r, s, a, false) : NULL;
                if (y && memcmp(y, rule, (size_t)(n_row * m->n) * sizeof(float))) {
                    check_reference(m, &r, y, n_row, act_bits, s->row.name);
                    fail_msg("%s %s %dx%d a%d, %d rows: other bits than the rule's", s->row.name, format,
                             (int)m->n, (int)m->k, act_bits, (int)n_row);
                }
                n_compared += y != NULL;
                free(y);
            }
            free(rule);
        }
    rows_close(&r);
    drop(w.data);
    matrix_close(m);
}

static void test_formats(void **state) {
    (void)state;
    static const int64_t shapes[][2] = {{1, 32}, {15, 64}, {17, 576}, {48, 1000}, {33, 4096}};
    static const char *const ends[] = {"g32", "g32a", "g64", "g128", "g128a", "grow", "growa", "g32t"};
    n_compared = 0;
    for (int bits = 2; bits <= 8; bits++)
        for (size_t e = 0; e < sizeof ends / sizeof *ends; e++) {
            const int64_t *s = shapes[(bits + (int)e) % 5];
            char name[PACK_NAME];
            pack_format f;
            snprintf(name, sizeof name, "u%d%s", bits, ends[e]);
            if (!pack_from_name(name, s[1], &f))
                continue;
            matrix m = matrix_open_uniform(name, s[0], s[1], MATRIX_RANDOM, (uint64_t)(bits * 10) + e);
            check_product(&m, name, (const int[]){1, 3, 8, 0});
        }
    printf("%d launches compared\n", n_compared);
    assert_true(n_compared > 500);
}

/* More rows than one launch takes, panels than there are blocks, and rows that fill shared memory. */
static void test_rows(void **state) {
    (void)state;
    static const struct {
        const char *format;
        int64_t n, k;
        int counts[5];
    } cases[] = {{"u4g32", 4500, 1000, {1, 2, 20}}, {"u4g128", 33, 2304, {1, 9, 33, 64}},
                 {"u2g128", 40, 14336, {1, 5, 16}}, {"u8g128", 2500, 576, {1, 4}},
                 {"u3g32", 17, 9000, {1, 7}},       {"u4g64", 40, 28672, {1, 2}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        matrix m = matrix_open_uniform(cases[i].format, cases[i].n, cases[i].k, MATRIX_RANDOM, 60 + i);
        check_product(&m, cases[i].format, cases[i].counts);
    }
}

static void test_file_types(void **state) {
    (void)state;
    static const type_id types[] = {TYPE_Q4_0, TYPE_Q4_1, TYPE_Q5_0, TYPE_Q5_1,
                                    TYPE_Q8_0, TYPE_Q4_K, TYPE_Q5_K};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        matrix m = matrix_open(types[i], 37, 2304, MATRIX_RANDOM, 11 + i);
        check_product(&m, type_get(types[i])->name, (const int[]){1, 6, 0});
    }
}

static void same_outputs(const rows *r, cuda_linear a, bool leaves, const char *what) {
    float *rule = outputs(r, NULL, a, leaves);
    const size_t bytes = 3 * (size_t)(MAX_ROWS * r->n) * sizeof(float) + cuda->codes_bytes(r->n);
    for (int i = 0; i < n_strategy(); i++) {
        const cuda_strategy *s = few_rows(i);
        const int64_t n_col = a.n_row * (a.two ? 2 : 1);
        float *y = s && s->row.can(&a.w[0].format, n_col) ? outputs(r, s, a, leaves) : NULL;
        if (y && memcmp(y, rule, bytes))
            fail_msg("%s, %d rows, by %s: other bits than the rule's", what, (int)a.n_row, s->row.name);
        free(y);
    }
    free(rule);
}

/* Norms, gates, several matrices, 16-bit activations, residuals, codes for the next launch. */
static void test_all_else(void **state) {
    (void)state;
    static const char *const formats[] = {"u4g32", "u6g128a", "u8g32"};
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++) {
        matrix m[3];
        view w[3];
        rows r = rows_open(160, 1100);
        for (int i = 0; i < 3; i++) {
            m[i] = matrix_open_uniform(formats[f], 160, 1100, MATRIX_RANDOM, (uint64_t)(20 + i));
            w[i] = matrix_there(&m[i]);
        }
        for (int64_t n_row = 1; n_row <= 13; n_row += 4) {
            cuda_linear a = product_of(&r, w, n_row, 8);
            a.adds = true;
            a.bias[0] = r.bias_there;
            same_outputs(&r, a, n_row == 1, "adds, bias");
            a.two = true;
            same_outputs(&r, a, false, "two");
            a = product_of(&r, w, n_row, 8);
            a.w[1] = w[1], a.w[2] = w[2];
            a.n_w = 3;
            a.norm = r.norm_there;
            same_outputs(&r, a, false, "three, norm");
            a.n_w = 2;
            a.gated = true;
            same_outputs(&r, a, n_row == 1, "gated, norm");
        }
        for (int i = 0; i < 3; i++) {
            drop(w[i].data);
            matrix_close(&m[i]);
        }
        rows_close(&r);
    }
}

/* A NaN poisons its own row, by every strategy. */
static void test_poison(void **state) {
    (void)state;
    matrix m = matrix_open_uniform("u5g32", 40, 300, MATRIX_RANDOM, 9);
    const view w = matrix_there(&m);
    rows r = rows_open(40, 300);
    const float nan = NAN;
    OK(cuda->to_device(r.x_there + 300 + 17, &nan, sizeof nan, stream));
    for (int i = 0; i < n_strategy(); i++) {
        const cuda_strategy *s = few_rows(i);
        if (!s || !s->row.can(&w.format, 3))
            continue;
        float *y = outputs(&r, s, product_of(&r, &w, 3, 8), false);
        for (int n = 0; y && n < 3 * 40; n++)
            assert_true((n / 40 == 1) == (bool)isnan(y[n]));
        free(y);
    }
    rows_close(&r);
    drop(w.data);
    matrix_close(&m);
}

static void test_refused(void **state) {
    (void)state;
    matrix m = matrix_open_uniform("u2g16", 16, 64, MATRIX_RANDOM, 1);
    const view w = matrix_there(&m);
    rows r = rows_open(16, 64);
    for (int i = 0; i < n_strategy(); i++) {
        const cuda_strategy *s = few_rows(i);
        if (!s || s->row.can(&w.format, 4))
            continue;
        assert_null(outputs(&r, s, product_of(&r, &w, 4, 8), false));
    }
    /* if a launch requests it, the rule decides */
    for (int i = 0; i < n_strategy(); i++) {
        cuda_linear a = product_of(&r, &w, 4, 8);
        float *rule = outputs(&r, NULL, a, false);
        a.by = few_rows(i);
        float *y = outputs(&r, NULL, a, false);
        assert_memory_equal(y, rule, 4 * 16 * sizeof(float));
        free(y), free(rule);
    }
    rows_close(&r);
    drop(w.data);
    matrix_close(&m);
}

static void test_units(void **state) {
    (void)state;
    int n;
    const cuda_unit *u = cuda->units(&n);
    unsigned *sink = device_new(4);
    assert_true(n >= 3);
    for (int i = 0; i < n; i++) {
        if (capability() < u[i].since)
            continue;
        assert_true(u[i].products > 0);
        OK(u[i].run(10, sink, stream));
        OK(cuda->stream_sync(stream));
    }
    drop(sink);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_units),      cmocka_unit_test(test_refused), cmocka_unit_test(test_poison),
        cmocka_unit_test(test_formats),    cmocka_unit_test(test_rows),    cmocka_unit_test(test_all_else),
        cmocka_unit_test(test_file_types),
    };
    if (gpu_open(argc, argv))
        return cmocka_run_group_tests(tests, NULL, NULL);
    return gpu_missing();
}
