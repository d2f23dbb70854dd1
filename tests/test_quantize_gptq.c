/* GPTQ and the products it needs: the factor of a matrix, sums of squares, the rounding of the paper (by the
 * factor of the inverse, in doubles), and the same bits for any number of threads. */
#include "quantize/gptq.h"
#include "quantize/lapack.h"
#include "support/matrix.h"
#include "support/skip.h"

#include "base/mem.h"
#include "base/num.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const int n_threads[] = {1, 2, 5};

static pool *must_open_pool(int n) {
    pool *p;
    assert_int_equal(pool_open(n, &p, NULL), NIB_OK);
    return p;
}

static void need_lapack(void) {
    if (lapack_check(NULL) != NIB_OK)
        skip_because("OpenBLAS or LAPACK is not installed");
}

/* Inputs with correlated channels, some of them strong. */
static float *new_inputs(int64_t n_row, int64_t k, uint64_t seed) {
    uint64_t s = seed | 1;
    float *x = mem_array((size_t)(n_row * k), sizeof *x);
    assert_non_null(x);
    for (int64_t r = 0; r < n_row; r++) {
        const float common = random_float(&s);
        for (int64_t i = 0; i < k; i++)
            x[r * k + i] = (random_float(&s) + 0.5f * common) * (i % 37 == 3 ? 8.0f : 1.0f);
    }
    return x;
}

static gram_site new_sum(const float *x, int64_t n_row, int64_t k, pool *threads) {
    gram_site s = {.k = k, .n_row = n_row, .sum = mem_calloc((size_t)(k * k), sizeof *s.sum)};
    assert_non_null(s.sum);
    lapack_add_squares(s.sum, x, k, n_row, threads);
    gram g = {.of = {s}, .n = 1, .threads = threads};
    gram_complete(&g);
    return s;
}

static void test_sums(void **state) {
    (void)state;
    enum { ROWS = 70 };
    static const int64_t widths[] = {1, 33, 256, 257, 600};
    need_lapack();
    for (size_t w = 0; w < NUM_COUNT(widths); w++) {
        const int64_t k = widths[w];
        float *x = new_inputs(ROWS, k, 3 + w), *first = NULL;
        for (size_t t = 0; t < NUM_COUNT(n_threads); t++) {
            pool *threads = must_open_pool(n_threads[t]);
            gram_site s = new_sum(x, ROWS, k, threads);
            for (int64_t i = 0; i < k && !first; i++)
                for (int64_t j = 0; j < k; j++) {
                    double sum = 0, all = 0;
                    for (int64_t r = 0; r < ROWS; r++) {
                        sum += (double)x[r * k + i] * (double)x[r * k + j];
                        all += fabs((double)x[r * k + i] * (double)x[r * k + j]);
                    }
                    assert_true(fabs(sum - (double)s.sum[i * k + j]) <= 1e-5 * all);
                }
            if (first)
                assert_memory_equal(first, s.sum, (size_t)(k * k) * sizeof *first);
            if (first)
                mem_free(s.sum);
            else
                first = s.sum;
            pool_close(threads);
        }
        mem_free(first);
        mem_free(x);
    }
}

/* L L^T is the matrix that L was made of. */
static void test_factor(void **state) {
    (void)state;
    static const int64_t sizes[] = {1, 31, 256, 257, 700};
    need_lapack();
    for (size_t w = 0; w < NUM_COUNT(sizes); w++) {
        const int64_t n = sizes[w];
        const size_t bytes = (size_t)(n * n) * sizeof(double);
        double *a = mem_alloc(bytes), *l = mem_alloc(bytes), *first = mem_alloc(bytes);
        uint64_t seed = 11;
        assert_true(a && l && first);
        for (int64_t j = 0; j < n; j++)
            for (int64_t i = j; i < n; i++)
                a[j * n + i] = a[i * n + j] =
                    i == j ? (double)n : (double)random_float(&seed); /* the diagonal is the largest */
        for (size_t t = 0; t < NUM_COUNT(n_threads); t++) {
            pool *threads = must_open_pool(n_threads[t]);
            memcpy(l, a, bytes);
            assert_true(lapack_cholesky(l, n, threads));
            for (int64_t j = 0; j < n; j++)
                memset(l + j * n, 0, (size_t)j * sizeof *l);
            if (t)
                assert_memory_equal(first, l, bytes);
            memcpy(first, l, bytes);
            a[n * n - 1] = -a[n * n - 1];
            memcpy(l, a, bytes);
            assert_false(lapack_cholesky(l, n, threads));
            a[n * n - 1] = -a[n * n - 1];
            pool_close(threads);
        }
        for (int64_t j = 0; j < n; j++)
            for (int64_t i = j; i < n; i += 1 + i % 7) {
                double sum = 0;
                for (int64_t c = 0; c <= j; c++)
                    sum += first[c * n + i] * first[c * n + j];
                assert_true(fabs(sum - a[j * n + i]) <= 1e-12 * (double)n);
            }
        mem_free(a);
        mem_free(l);
        mem_free(first);
    }
}

/* ---- the paper's rounding ---- */

enum { K = 320, ROWS = 75, TOKENS = 500 };

/* The inverse of the raised X^T X in the order of rounding, by Gauss and Jordan. */
static double *new_inverse(const gptq *g, const gram_site *s) {
    double *a = mem_calloc((size_t)K * 2 * K, sizeof *a), mean = 0;
    assert_non_null(a);
    for (int i = 0; i < K; i++)
        mean += (double)s->sum[i * K + i] / K;
    for (int i = 0; i < K; i++) {
        for (int j = 0; j < K; j++)
            a[i * 2 * K + j] = (double)s->sum[g->order[K - 1 - i] * K + g->order[K - 1 - j]];
        a[i * 2 * K + i] += 0.01 * mean;
        a[i * 2 * K + K + i] = 1;
    }
    for (int i = 0; i < K; i++) {
        const double pivot = a[i * 2 * K + i];
        for (int j = 0; j < 2 * K; j++)
            a[i * 2 * K + j] /= pivot;
        for (int r = 0; r < K; r++) {
            const double f = a[r * 2 * K + i];
            for (int j = 0; j < 2 * K && r != i; j++)
                a[r * 2 * K + j] -= f * a[i * 2 * K + j];
        }
    }
    return a;
}

/* Optimal brain quantization, one column after the other: the remaining columns compensate for the error of a
 * column, by its row of the inverse, from which the column is then eliminated. */
static void round_as_paper(const gptq *g, const encode_shape *s, const gram_site *in, const float *x,
                           float *out) {
    double *inverse = new_inverse(g, in);
    static encode_block blocks[ROWS][K / 32];
    static double row[ROWS][K];
    for (int r = 0; r < ROWS; r++) {
        for (int b = 0; b < K / s->elems; b++)
            encode_scales(s, x + r * K + b * s->elems, g->imatrix + b * s->elems, &blocks[r][b]);
        for (int i = 0; i < K; i++)
            row[r][i] = (double)x[r * K + g->order[K - 1 - i]];
    }
    for (int i = 0; i < K; i++) {
        const double *own = inverse + i * 2 * K + K;
        const int column = g->order[K - 1 - i], group = column % s->elems / s->group;
        for (int r = 0; r < ROWS; r++) {
            const encode_block *b = &blocks[r][column / s->elems];
            const float q = encode_value(s, b, group, encode_nearest(s, b, group, (float)row[r][i]));
            const double error = (row[r][i] - (double)q) / own[i];
            out[r * K + column] = q;
            for (int j = i + 1; j < K; j++)
                row[r][j] -= error * own[j];
        }
        for (int r = i + 1; r < K; r++) {
            double *other = inverse + r * 2 * K + K;
            const double f = other[i] / own[i];
            for (int j = i; j < K; j++)
                other[j] -= f * own[j];
        }
    }
    mem_free(inverse);
}

/* The sum of squares of the change in a rounded matrix's outputs. */
static double loss(const gram_site *s, const float *x, const float *y) {
    double sum = 0;
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < K; i++) {
            double of = 0;
            for (int j = 0; j < K; j++)
                of += (double)s->sum[i * K + j] * (double)(x[r * K + j] - y[r * K + j]);
            sum += of * (double)(x[r * K + i] - y[r * K + i]);
        }
    return sum;
}

static void round_rows(gptq *g, const float *x, uint8_t *out, uint64_t row_bytes) {
    for (int r = 0; r < ROWS; r += GPTQ_ROWS)
        gptq_round(g, 0, x + r * K, NUM_MIN(GPTQ_ROWS, ROWS - r), out + (uint64_t)r * row_bytes);
}

static void test_rounding(void **state) {
    (void)state;
    static const type_id types[] = {TYPE_Q4_0, TYPE_N3G64};
    static float found[ROWS * K], expected[ROWS * K], plain[ROWS * K];
    static uint8_t out[ROWS * K], first[ROWS * K];
    need_lapack();
    float *inputs = new_inputs(TOKENS, K, 21), *x = new_inputs(ROWS, K, 22);
    for (size_t t = 0; t < NUM_COUNT(types); t++) {
        const encode_shape *s = encode_shape_of(types[t]);
        uint64_t bytes = 0;
        type_row_bytes(types[t], K, &bytes);
        for (size_t p = 0; p < NUM_COUNT(n_threads); p++) {
            pool *threads = must_open_pool(n_threads[p]);
            gram_site in = new_sum(inputs, TOKENS, K, threads);
            gptq g;
            int n_other = 0;
            assert_int_equal(gptq_open(&g, &in, threads, NULL, NULL), NIB_OK);
            gptq_set_shape(&g, s);
            round_rows(&g, x, out, bytes);
            if (p)
                assert_memory_equal(first, out, ROWS * bytes);
            memcpy(first, out, ROWS * bytes);
            for (int r = 0; r < ROWS && p == 0; r++) {
                type_get(types[t])->dequantize(out + (uint64_t)r * bytes, found + r * K, K);
                encode_row(types[t], x + r * K, g.imatrix, K, first);
                type_get(types[t])->dequantize(first, plain + r * K, K);
            }
            if (p == 0) {
                memcpy(first, out, ROWS * bytes);
                round_as_paper(&g, s, &in, x, expected);
                for (int i = 0; i < ROWS * K; i++)
                    n_other += fabsf(found[i] - expected[i]) > 1e-6f * fabsf(expected[i]);
                /* A value in the middle of two levels may fall to either, and then moves later ones. */
                assert_true(n_other <= ROWS * K / 100);
                const double of = loss(&in, x, found), as = loss(&in, x, expected);
                assert_true(fabs(of - as) < 0.01 * as);
                assert_true(of < 0.8 * loss(&in, x, plain));
            }
            gptq_close(&g);
            mem_free(in.sum);
            pool_close(threads);
        }
    }
    mem_free(inputs);
    mem_free(x);
}

/* Channels that are always zero, or equal: X^T X is singular, and rounding still works. */
static void test_singular(void **state) {
    (void)state;
    static uint8_t out[GPTQ_ROWS * K];
    static float back[K];
    uint64_t bytes = 0;
    need_lapack();
    pool *threads = must_open_pool(2);
    float *x = new_inputs(GPTQ_ROWS, K, 5);
    type_row_bytes(TYPE_Q4_0, K, &bytes);
    for (int of = 0; of < 2; of++) {
        float *inputs = new_inputs(3, K, 6);
        for (int i = 0; i < 3 * K; i++)
            inputs[i] = of ? 0 : i % 2 ? 0 : inputs[i - i % K];
        gram_site in = new_sum(inputs, 3, K, threads);
        gptq g;
        assert_int_equal(gptq_open(&g, &in, threads, NULL, NULL), NIB_OK);
        gptq_set_shape(&g, encode_shape_of(TYPE_Q4_0));
        gptq_round(&g, 1, x, GPTQ_ROWS, out);
        for (int r = 0; r < GPTQ_ROWS; r++) {
            type_get(TYPE_Q4_0)->dequantize(out + (uint64_t)r * bytes, back, K);
            for (int i = 0; i < K; i++)
                assert_true(isfinite(back[i]));
        }
        gptq_close(&g);
        mem_free(in.sum);
        mem_free(inputs);
    }
    mem_free(x);
    pool_close(threads);
}

/* A cap that is too small is refused before memory is allocated; charges are returned. */
static void test_cap(void **state) {
    (void)state;
    const uint64_t caps[NIB_N_TIER] = {UINT64_C(1) << 40, NIB_AUTO, NIB_AUTO};
    ledger *l;
    need_lapack();
    pool *threads = must_open_pool(2);
    float *inputs = new_inputs(TOKENS, K, 7);
    gram_site in = new_sum(inputs, TOKENS, K, threads), huge = {.k = INT64_C(1) << 20, .sum = in.sum};
    gptq g;
    assert_int_equal(ledger_open(places_of(caps), &l, NULL), NIB_OK);
    const uint64_t before = ledger_promised(l, PLACE_RAM);
    assert_int_equal(gptq_open(&g, &huge, threads, l, NULL), NIB_E_NOFIT);
    gptq_close(&g);
    assert_int_equal(ledger_promised(l, PLACE_RAM), before);
    assert_int_equal(gptq_open(&g, &in, threads, l, NULL), NIB_OK);
    assert_int_equal(ledger_promised(l, PLACE_RAM), before + gptq_bytes(K, 2));
    gptq_close(&g);
    assert_int_equal(ledger_promised(l, PLACE_RAM), before);
    ledger_close(l);
    mem_free(in.sum);
    mem_free(inputs);
    pool_close(threads);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sums), cmocka_unit_test(test_factor),
                                       cmocka_unit_test(test_rounding), cmocka_unit_test(test_singular),
                                       cmocka_unit_test(test_cap)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
