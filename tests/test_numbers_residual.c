/* QDEC: salient channels, residuals of a matrix, and the factors between a matrix and its base. */
#include "base/num.h"
#include "engine/residual/fit.h"
#include "formats/gguf_write.h"
#include "kernels/kernels.h"
#include "kernels/salient.h"
#include "numbers/residual.h"
#include "support/guard.h"
#include "support/isas.h"
#include "support/matrix.h"
#include "support/tempdir.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { K = 2600 };

/* Long tails, as activations have them. */
static void fill(float *x, int64_t n, uint64_t seed) {
    for (int64_t i = 0; i < n; i++) {
        const float a = random_float(&seed), b = random_float(&seed), c = random_float(&seed);
        x[i] = a * b * c * (i % 211 ? 1 : 8);
    }
}

static void test_pick(void **state) {
    (void)state;
    static const int64_t chunks[] = {1, 2, 8, 32, 64, 128, 1024};
    float x[K];
    int32_t exact[K], found[K], again[K];
    const kernel_table *t = kernels_table();
    for (size_t i = 0; i < NUM_COUNT(chunks); i++) {
        double hits = 0, all = 0;
        for (uint64_t seed = 1; seed <= 20; seed++) {
            fill(x, K, seed);
            const int64_t n = salient_pick(t, SALIENT_EXACT, x, K, chunks[i], exact);
            /* two whole chunks and one of 552 channels, with its part rounded up */
            assert_int_equal(n, 2 * chunks[i] + (552 * chunks[i] + 1023) / 1024);
            for (salient_rule rule = SALIENT_APPROX; rule <= SALIENT_RANDOM; rule++) {
                assert_int_equal(salient_pick(t, rule, x, K, chunks[i], found), n);
                assert_int_equal(salient_pick(t, rule, x, K, chunks[i], again), n);
                assert_memory_equal(found, again, (size_t)n * sizeof *found);
                for (int64_t j = 0; j < n; j++)
                    assert_true(found[j] >= 0 && found[j] < K && (j == 0 || found[j] > found[j - 1]));
            }
            assert_int_equal(salient_count(K, chunks[i]), n);
            salient_pick(t, SALIENT_APPROX, x, K, chunks[i], found);
            EACH_OPS(other) {
                salient_pick(other, SALIENT_APPROX, x, K, chunks[i], again);
                assert_memory_equal(found, again, (size_t)n * sizeof *found);
            }
            all += (double)n;
            for (int64_t j = 0, e = 0; j < n; j++) {
                while (e < n && exact[e] < found[j])
                    e++;
                hits += e < n && exact[e] == found[j];
            }
        }
        if (!(hits / all >= 0.8))
            fail_msg("k_chunk %d: recall %g", (int)chunks[i], hits / all);
    }
    memset(x, 0, sizeof x);
    assert_int_equal(salient_pick(t, SALIENT_APPROX, x, 100, 8, found), 1);
    x[7] = NAN;
    x[9] = INFINITY;
    assert_int_equal(salient_pick(t, SALIENT_APPROX, x, 1024, 8, found), 8);
}

/* Outputs [n0, n1), summed in plain order. */
static void by_definition(const residual *r, const salient *from, int n_from, int64_t n0, int64_t n1,
                          float *y) {
    for (int64_t n = n0; n < n1; n++) {
        float sum = 0;
        for (int i = 0; i < n_from; i++)
            sum = fmaf(from[i].x, residual_code(r, from[i].at, n), sum);
        y[n - n0] = fmaf(sum, r->scale[n], y[n - n0]);
    }
}

static void check_parts(const residual *r) {
    enum { N_FROM = 7 };
    static const int64_t parts[][2] = {{0, 1037}, {0, 16}, {16, 32}, {48, 560}, {1024, 1037}};
    salient from[N_FROM];
    uint64_t seed = 9;
    for (int i = 0; i < N_FROM; i++)
        from[i] = (salient){(int32_t)(i * r->k / N_FROM), random_float(&seed) - 0.5f};
    for (size_t i = 0; i < NUM_COUNT(parts); i++)
        EACH_OPS(t) {
            const int64_t n0 = parts[i][0], n1 = NUM_MIN(parts[i][1], r->n);
            float expected[1037] = {1, 2, 3};
            if (n0 >= n1)
                continue;
            guarded y = guard_open((size_t)(n1 - n0) * sizeof(float));
            memcpy(y.data, expected, (size_t)(n1 - n0) * sizeof(float));
            by_definition(r, from, N_FROM, n0, n1, expected);
            t->residual_add(r, from, N_FROM, n0, n1, y.data);
            if (memcmp(y.data, expected, (size_t)(n1 - n0) * sizeof(float)))
                fail_msg("%s, %d bits: outputs from %d on", t->isa, r->bits, (int)n0);
            guard_close(&y);
        }
}

static void test_residual(void **state) {
    (void)state;
    enum { COLUMNS = 40 };
    static const struct {
        int bits;
        int64_t rows;
        double far;
    } cases[] = {{2, 37, 0.9}, {4, 37, 0.2}, {8, 37, 0.02}, {16, 37, 0.001}, {2, 1037, 0.9}, {4, 1037, 0.2}};
    static float w[1040 * COLUMNS];
    fill(w, 1037 * COLUMNS, 3);
    for (size_t i = 0; i < NUM_COUNT(cases); i++) {
        uint64_t bytes;
        double all = 0, off = 0;
        assert_true(residual_bytes(cases[i].bits, cases[i].rows, COLUMNS, &bytes));
        guarded memory = guard_open(bytes);
        memset(memory.data, 0, bytes);
        residual r = residual_in(memory.data, cases[i].bits, cases[i].rows, COLUMNS);
        for (int64_t n = 0; n < r.n; n += 16)
            residual_set(&r, n, w + n * COLUMNS);
        for (int c = 0; c < COLUMNS; c++) {
            double energy = 0;
            for (int64_t n = 0; n < r.n; n++) {
                const double is = (double)w[n * COLUMNS + c],
                             has = (double)r.scale[n] * (double)residual_code(&r, c, n), d = is - has;
                all += is * is;
                off += d * d;
                energy += has * has;
            }
            assert_true(fabs((double)residual_energy(&r, c) - energy) <= 1e-5 * energy);
        }
        if (!(sqrt(off / all) < cases[i].far))
            fail_msg("%d bits: %g off", cases[i].bits, sqrt(off / all));
        check_parts(&r);
        guard_close(&memory);
    }
    uint64_t bytes;
    assert_false(residual_bytes(4, INT64_MAX, 2, &bytes));
}

/* Factors of rows and columns, from norms and from matrices only. */
enum { FIT_N = 200, FIT_K = 256 };

/* w and base, written to a file and fitted by n_thread threads: column [FIT_K]; true: rows have factors too.
 * fine: the last row as it was when it was rounded. */
static bool fit(const float *w, const float *base, const float *norms, int n_thread, double *column,
                float *fine) {
    static const char *const names[] = {"w", "base"};
    const float *data[] = {w, base};
    const int64_t dims[] = {FIT_N, FIT_K};
    const size_t bytes = sizeof(float) * FIT_N * FIT_K;
    char path[512];
    gguf_writer *out;
    container *c;
    pool *threads;
    weight weights[2];
    weight_piece pieces[2];
    residual_fit f;
    snprintf(path, sizeof path, "%s", temp_path("pair.gguf"));
    assert_int_equal(gguf_writer_open(path, &out, NULL), NIB_OK);
    for (int i = 0; i < 2; i++)
        assert_int_equal(gguf_writer_tensor(out, names[i], TYPE_F32, 2, dims, NULL), NIB_OK);
    for (int i = 0; i < 2; i++)
        assert_int_equal(gguf_writer_data(out, data[i], bytes, NULL), NIB_OK);
    assert_int_equal(gguf_writer_commit(out, NULL), NIB_OK);
    assert_int_equal(container_open(path, NULL, &c, NULL), NIB_OK);
    for (int i = 0; i < 2; i++) {
        pieces[i] = (weight_piece){container_find(c, names[i]), 0, FIT_N};
        weights[i] = (weight){.name = names[i], .n = FIT_N, .k = FIT_K, .pieces = &pieces[i], .n_piece = 1};
    }
    assert_int_equal(pool_open(n_thread, &threads, NULL), NIB_OK);
    assert_int_equal(residual_fit_open(&f, threads, FIT_K, NULL), NIB_OK);
    const residual_pair pair = {c, c, &weights[0], &weights[1]};
    assert_int_equal(residual_fit_find(&f, &pair, norms, NULL), NIB_OK);
    const bool by_row = f.by_row;
    memcpy(column, f.column, FIT_K * sizeof *column);
    memcpy(fine, w + (FIT_N - 1) * FIT_K, FIT_K * sizeof *fine);
    residual_fit_row(&f, fine, base + (FIT_N - 1) * FIT_K, FIT_K);
    residual_fit_close(&f);
    pool_close(threads);
    container_close(c);
    return by_row;
}

static void test_factors(void **state) {
    (void)state;
    static float w[FIT_N * FIT_K], base[FIT_N * FIT_K];
    float norms[2 * FIT_K], row[FIT_N], fine[FIT_K], again[FIT_K];
    double found[FIT_K], other[FIT_K];
    uint64_t s = 11;
    for (int kind = 0; kind < 3; kind++) { /* columns of a norm; and rows; columns that are not known */
        for (int c = 0; c < FIT_K; c++) {
            norms[c] = 1 + 0.5f * random_float(&s);
            norms[FIT_K + c] = norms[c] / expf(random_float(&s));
        }
        for (int i = 0; i < FIT_N; i++)
            row[i] = kind == 1 ? expf(0.5f * random_float(&s)) : 1;
        for (int i = 0; i < FIT_N * FIT_K; i++) {
            const float column = norms[i % FIT_K] / norms[FIT_K + i % FIT_K];
            w[i] = random_float(&s) + random_float(&s);
            base[i] = rintf(w[i] * column * row[i / FIT_K] * 3) / 3; /* 15 % of noise */
        }
        const float *known = kind < 2 ? norms : NULL, *last = w + (FIT_N - 1) * FIT_K;
        assert_int_equal(fit(w, base, known, 1, found, fine), kind == 1);
        fit(w, base, known, 3, other, again);
        assert_memory_equal(found, other, sizeof found);
        assert_memory_equal(fine, again, sizeof fine);
        double off = 0, all = 0;
        for (int c = 0; c < FIT_K; c++) {
            const double is = (double)(last[c] * (norms[c] / norms[FIT_K + c]) * row[FIT_N - 1]),
                         d = (double)fine[c] - is;
            off += d * d;
            all += is * is;
        }
        if (!(off < (kind ? 4e-4 : 1e-10) * all)) /* 2 % of the row, an eighth of the noise */
            fail_msg("factors %d: %g off", kind, sqrt(off / all));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pick), cmocka_unit_test(test_residual),
                                       cmocka_unit_test(test_factors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
