/* Float weights on the AMX unit: the kernel over tiles in plain C, bit by bit against the scalar definition
 * of its sums, and the precision of that definition against the reference and double precision. On a
 * processor with AMX the unit itself has to give the same bits. */
#include "support/amx_emulated.h"
#include "support/skip.h"
#include "support/tilecase.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const type_id TYPES[] = {TYPE_BF16, TYPE_F16, TYPE_F32};
enum { N_TYPES = 3, BLOCK = 512 };

static void emulated(const linear_args *a, int64_t n0, int64_t n1) {
    emulated_sliced(a, n0, n1);
}
static bool any(const pack_format *f, int64_t n_row) {
    (void)f;
    (void)n_row;
    return true;
}
static strategy emulation(void) {
    return (strategy){.name = "emulated", .can = any, .run = emulated, .scratch = emulated_sliced_scratch()};
}
static void unit(const linear_args *a, int64_t n0, int64_t n1) {
    kernels_table_for("amx")->linear_sliced(a, n0, n1);
}

/* ---- the definition (kernels/cpu/amx/rows_job.h) ---- */

static float as_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static uint32_t as_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
static float flushed(float x) {
    return fabsf(x) < FLT_MIN ? copysignf(0, x) : x;
}
/* The n slices of each of `count` numbers: slice i of number k is out[i * count + k]. */
static void make_slices(const float *x, int64_t count, int n, float *out) {
    for (int64_t k = 0; k < count; k++) {
        float left = x[k];
        for (int i = 0; i < n; i++) {
            const float part = as_float((as_bits(left) + (i < n - 1 ? 0x8000 : 0)) & 0xffff0000);
            out[i * count + k] = flushed(part);
            left -= part;
        }
    }
}

static const struct {
    int slices, n;
    int pairs[6][2]; /* of x, of w */
} orders[N_TYPES] = {{1, 3, {{2, 0}, {1, 0}, {0, 0}}},
                     {2, 5, {{1, 1}, {2, 0}, {0, 1}, {1, 0}, {0, 0}}},
                     {3, 6, {{0, 2}, {1, 1}, {2, 0}, {0, 1}, {1, 0}, {0, 0}}}};

/* x, w: slices of a row, n apart. */
static float defined(int order, const float *x, const float *w, int64_t n, const float *bias) {
    float y = 0;
    for (int64_t b = 0; b < n; b += BLOCK) {
        float c = 0;
        for (int p = 0; p < orders[order].n; p++) {
            const float *a = x + orders[order].pairs[p][0] * n, *v = w + orders[order].pairs[p][1] * n;
            for (int64_t at = b; at < b + BLOCK && at < n; at += 32) {
                float chains[2] = {0, 0};
                for (int64_t i = at; i < at + 32 && i < n; i++)
                    chains[i & 1] = flushed(fmaf(a[i], v[i], chains[i & 1]));
                c = flushed(c + flushed(chains[0] + chains[1]));
            }
        }
        y = b ? y + c : c;
    }
    return bias ? y + *bias : y;
}

/* ---- bits ---- */

static void assert_bits(const char *what, const matrix *w, int64_t n_row, const float *found,
                        const float *right) {
    for (int64_t i = 0; i < w->n * n_row; i++)
        if (memcmp(found + i, right + i, sizeof *found) && !(isnan(found[i]) && isnan(right[i])))
            fail_msg("%s, %s %dx%d, %d rows: output %d is %a, expected %a", what, type_get(w->type)->name,
                     (int)w->n, (int)w->k, (int)n_row, (int)i, (double)found[i], (double)right[i]);
}

/* The kernel in one piece and in two, single rows, and the tile unit if there is one. Closes w. */
static void check_with(matrix w, int order, const float *x, int64_t n_row) {
    const kernel_table *ref = kernels_table_for("ref");
    const strategy s = emulation(), real = {.name = "unit", .can = any, .run = unit, .scratch = s.scratch};
    float *bias = case_rows(1, w.n, 3), *right = malloc((size_t)(w.n * n_row) * sizeof *right);
    float *row = malloc((size_t)w.k * sizeof *row), *of_w = malloc((size_t)(3 * w.k) * sizeof *of_w);
    float *of_x = malloc((size_t)(n_row * 3 * w.k) * sizeof *of_x);
    const float *b = n_row % 2 ? bias : NULL;
    for (int64_t m = 0; m < n_row; m++)
        make_slices(x + m * w.k, w.k, 3, of_x + m * 3 * w.k);
    for (int64_t n = 0; n < w.n; n++) {
        matrix_row(&w, n, row);
        make_slices(row, w.k, orders[order].slices, of_w);
        for (int64_t m = 0; m < n_row; m++)
            right[m * w.n + n] = defined(order, of_x + m * 3 * w.k, of_w, w.k, b ? b + n : NULL);
    }
    for (int turn = 0; turn < 4; turn++) {
        const strategy *by = turn < 2 ? &s : &real;
        if ((turn >= 2 && !kernels_table_for("amx")) || (turn % 2 && w.n <= 16))
            continue;
        guarded y = case_linear_by(ref, by, &w, x, n_row, b, turn % 2 ? 16 : 0);
        assert_bits(by->name, &w, n_row, y.data, right);
        guard_close(&y);
        for (int64_t m = 0; m < n_row && n_row > 1; m += 7) {
            y = case_linear_by(ref, by, &w, x + m * w.k, 1, b, 0);
            assert_bits("one row", &w, 1, y.data, right + m * w.n);
            guard_close(&y);
        }
    }
    assert_int_equal(amx_emulated_faults, 0);
    free(of_x);
    free(of_w);
    free(row);
    free(right);
    free(bias);
    matrix_close(&w);
}

static void check(int order, int64_t n, int64_t k, int64_t n_row) {
    const uint64_t seed = (uint64_t)(order * 131 + n * 17 + k + n_row);
    float *x = case_rows(n_row, k, seed);
    check_with(matrix_open(TYPES[order], n, k, MATRIX_RANDOM, seed), order, x, n_row);
    free(x);
}

static void test_shapes(void **state) {
    (void)state;
    need_kernels("avx512");
    static const int64_t ns[] = {1, 16, 33, 48, 80, 15, 64}, rows[] = {1, 2, 5, 15, 16, 17, 32, 33, 49};
    static const int64_t ks[] = {1, 16, 31, 32, 40, 64, 200, 512, 528};
    int turn = 0;
    for (int order = 0; order < N_TYPES; order++)
        for (int i = 0; i < 9; i++)
            for (int j = 0; j < 9; j += 3, turn++)
                check(order, ns[turn % 7], ks[i], rows[(j + turn) % 9]);
}

/* Several blocks of K and spans of blocks, more rows than a part has. */
static void test_blocks(void **state) {
    (void)state;
    need_kernels("avx512");
    check(0, 16, 1100, 259);
    check(1, 17, 1040, 130);
    check(2, 33, 1536, 20);
    check(0, 70, 2048, 1);
    check(1, 16, 9000, 3);
    check(2, 16, 8704, 2);
    check(0, 16, 8704, 16);
}

/* Slices, products and sums below the smallest normal float, and sums that cancel. */
static void test_small(void **state) {
    (void)state;
    need_kernels("avx512");
    for (int order = 0; order < N_TYPES; order++)
        for (int e = -149; e < -80; e += 9) {
            float *x = case_rows(5, 576, (uint64_t)(e + 200));
            for (int i = 0; i < 5 * 576; i++)
                x[i] = ldexpf(x[i], i % 3 ? e : e + 20);
            check_with(matrix_open(TYPES[order], 17, 576, MATRIX_RANDOM, 5), order, x, 5);
            for (int i = 0; i < 5 * 576; i++)
                x[i] = (i / 32 % 2 ? -1.0f : 1.0f) * ldexpf(1 + 0x1p-23f * (float)(i % 97), e % 5);
            check_with(matrix_open(TYPES[order], 17, 576, MATRIX_LARGEST, 5), order, x, 5);
            free(x);
        }
}

/* ---- worth ---- */

/* Root mean square of the errors against double precision. */
static double error_of(const matrix *w, const float *x, int64_t n_row, const float *y) {
    float *row = malloc((size_t)w->k * sizeof *row);
    double sum = 0;
    for (int64_t n = 0; n < w->n; n++) {
        matrix_row(w, n, row);
        for (int64_t m = 0; m < n_row; m++) {
            double right = 0;
            for (int64_t k = 0; k < w->k; k++)
                right += (double)row[k] * (double)x[m * w->k + k];
            sum += pow((double)y[m * w->n + n] - right, 2);
        }
    }
    free(row);
    return sqrt(sum / (double)(w->n * n_row));
}

/* With terms of random signs, which cancel, the error against double precision is at most that of the scalar
 * float kernel. With terms of one sign every rounding is proportional to the sum so far: a block's 16 steps
 * are rounded at its whole size, the reference's 16 lanes at a sixteenth. So the error is up to three times
 * as large, and less if a row has many blocks. */
static void test_as_exact_as_floats(void **state) {
    (void)state;
    need_kernels("avx512");
    const kernel_table *ref = kernels_table_for("ref");
    const strategy s = emulation();
    static const int64_t ks[] = {64, 576, 2048, 8192};
    for (int order = 0; order < N_TYPES; order++)
        for (int i = 0; i < 8; i++) {
            const int64_t k = ks[i / 2], n_row = 15;
            const bool adds_up = i % 2;
            matrix w = matrix_open(TYPES[order], adds_up ? 1 : 32, k, MATRIX_RANDOM, 11);
            float *x = case_rows(n_row, k, 12), *row = malloc((size_t)k * sizeof *row);
            matrix_row(&w, 0, row);
            for (int64_t j = 0; j < n_row * k && adds_up; j++)
                x[j] = copysignf(x[j], row[j % k]);
            free(row);
            guarded floats = case_linear(ref, &w, x, n_row, NULL, 0);
            guarded tiles = case_linear_by(ref, &s, &w, x, n_row, NULL, 0);
            const double e = error_of(&w, x, n_row, floats.data), found = error_of(&w, x, n_row, tiles.data);
            if (!(found <= (adds_up ? 3 : 1) * e))
                fail_msg("%s, K %d: %g, floats have %g", type_get(w.type)->name, (int)k, found, e);
            guard_close(&tiles);
            guard_close(&floats);
            free(x);
            matrix_close(&w);
        }
}

/* A row with a NaN, an infinity or a value near the largest float has the reference's bits; other rows are
 * unaffected. */
static void test_wild_rows(void **state) {
    (void)state;
    need_kernels("avx512");
    enum { K = 576, N = 33, M = 20 };
    static const float bad[] = {NAN, INFINITY, -INFINITY, 0x1p127f, -FLT_MAX};
    const kernel_table *ref = kernels_table_for("ref");
    const strategy s = emulation();
    for (int order = 0; order < N_TYPES; order++)
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
            matrix w = matrix_open(TYPES[order], N, K, MATRIX_RANDOM, 3);
            float *x = case_rows(M, K, 8);
            guarded clean = case_linear_by(ref, &s, &w, x, M, NULL, 0);
            x[17 * K + 550] = bad[i];
            guarded y = case_linear_by(ref, &s, &w, x, M, NULL, 0);
            guarded right = case_linear(ref, &w, x + 17 * K, 1, NULL, 0);
            memcpy((float *)clean.data + 17 * N, right.data, N * sizeof(float));
            assert_bits("wild", &w, M, y.data, clean.data);
            guarded alone = case_linear_by(ref, &s, &w, x + 17 * K, 1, NULL, 0);
            assert_bits("wild alone", &w, 1, alone.data, right.data);
            guard_close(&alone);
            guard_close(&right);
            guard_close(&y);
            guard_close(&clean);
            free(x);
            matrix_close(&w);
        }
}

/* Only on request, and with enough rows. */
static void test_asked_for(void **state) {
    (void)state;
    need_kernels("avx512");
    kernel_table t = *kernels_table_for("avx512"), plain = t;
    t.linear_sliced = emulated;
    t.sliced_suits = emulated_sliced_suits;
    plain.linear_sliced = NULL;
    for (int order = 0; order < N_TYPES; order++)
        for (int64_t n_row = 1; n_row <= 64; n_row *= 2)
            for (int asked = 0; asked < 4; asked++) {
                enum { N = 17, K = 96 };
                float y[64 * N], sliced[64 * N], lanes[64 * N];
                matrix w = matrix_open(TYPES[order], N, K, MATRIX_RANDOM, 5);
                float *x = case_rows(n_row, K, 6);
                guarded scratch = guard_open(emulated_sliced_scratch());
                linear_args a = {
                    .w = &w.view, .x = x, .ldx = K, .ldy = N, .n_row = n_row, .scratch = scratch.data};
                a.y = sliced;
                emulated(&a, 0, N);
                a.y = lanes;
                plain.linear_rows(&a, 0, N);
                a.y = y;
                a.sliced = asked & 1;
                linear_run(asked & 2 ? &t : &plain, &a, 0, N);
                const bool is = asked == 3 && n_row >= (TYPES[order] == TYPE_BF16 ? 16 : 64);
                assert_memory_equal(y, is ? sliced : lanes, (size_t)(n_row * N) * sizeof *y);
                assert_memory_not_equal(sliced, lanes, (size_t)(n_row * N) * sizeof *y);
                guard_close(&scratch);
                free(x);
                matrix_close(&w);
            }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),    cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_small),     cmocka_unit_test(test_as_exact_as_floats),
        cmocka_unit_test(test_wild_rows), cmocka_unit_test(test_asked_for)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
