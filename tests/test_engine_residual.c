/* QDEC: channels that are met most strongly, residuals of a matrix, and a model that gets them back. */
#include "base/num.h"
#include "kernels/salient.h"
#include "quant/residual.h"
#include "quantize/quantize.h"
#include "support/engine.h"
#include "support/logits.h"
#include "support/matrix.h"
#include "support/tempdir.h"
#include "support/tinymodel.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
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
    for (size_t i = 0; i < NUM_COUNT(chunks); i++) {
        double hits = 0, all = 0;
        for (uint64_t seed = 1; seed <= 20; seed++) {
            fill(x, K, seed);
            const int64_t n = salient_pick(SALIENT_EXACT, x, K, chunks[i], exact);
            /* two whole chunks and one of 552 channels, with its part rounded up */
            assert_int_equal(n, 2 * chunks[i] + (552 * chunks[i] + 1023) / 1024);
            for (salient_rule rule = SALIENT_APPROX; rule <= SALIENT_RANDOM; rule++) {
                assert_int_equal(salient_pick(rule, x, K, chunks[i], found), n);
                assert_int_equal(salient_pick(rule, x, K, chunks[i], again), n);
                assert_memory_equal(found, again, (size_t)n * sizeof *found);
                for (int64_t j = 0; j < n; j++)
                    assert_true(found[j] >= 0 && found[j] < K && (j == 0 || found[j] > found[j - 1]));
            }
            salient_pick(SALIENT_APPROX, x, K, chunks[i], found);
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
    assert_int_equal(salient_pick(SALIENT_APPROX, x, 100, 8, found), 1);
    x[7] = NAN;
    x[9] = INFINITY;
    assert_int_equal(salient_pick(SALIENT_APPROX, x, 1024, 8, found), 8);
}

static void test_residual(void **state) {
    (void)state;
    enum { ROWS = 37, COLUMNS = 96 };
    static const struct {
        int bits;
        double far;
    } cases[] = {{2, 0.9}, {4, 0.2}, {8, 0.02}, {16, 0.001}};
    float w[ROWS * COLUMNS], acc[ROWS];
    fill(w, ROWS * COLUMNS, 3);
    for (size_t i = 0; i < NUM_COUNT(cases); i++) {
        residual r;
        double all = 0, off = 0;
        assert_int_equal(residual_open(&r, cases[i].bits, ROWS, COLUMNS, NULL), NIB_OK);
        for (int n = 0; n < ROWS; n++)
            residual_set(&r, n, w + n * COLUMNS);
        for (int c = 0; c < COLUMNS; c++) {
            float y[ROWS] = {0};
            memset(acc, 0, sizeof acc);
            residual_add(&r, c, 2, acc);
            residual_finish(&r, acc, y);
            for (int n = 0; n < ROWS; n++) {
                const double is = 2 * (double)w[n * COLUMNS + c], d = is - (double)y[n];
                all += is * is;
                off += d * d;
            }
        }
        if (!(sqrt(off / all) < cases[i].far))
            fail_msg("%d bits: %g off", cases[i].bits, sqrt(off / all));
        residual_close(&r);
    }
}

static logits_rows logits_with(const char *path, const char *original, int bits, int k_chunk, int n_thread) {
    static const int32_t tokens[] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3};
    nib_engine_options o = engine_usual();
    o.activation = 16;
    o.n_thread = n_thread;
    o.residual = original;
    o.residual_bits = bits;
    o.k_chunk = k_chunk;
    nib_engine *e = engine_must_open(path, &o, NULL);
    logits_rows rows = logits_of(e, tokens, NUM_COUNT(tokens));
    nib_engine_close(e);
    return rows;
}

static double distance(logits_rows a, logits_rows b) {
    double all = 0, off = 0;
    for (int64_t i = 0; i < 10 * a.n_vocab; i++) {
        const double d = (double)a.data[i] - (double)b.data[i];
        all += (double)a.data[i] * (double)a.data[i];
        off += d * d;
    }
    return sqrt(off / all);
}

static void test_model(void **state) {
    (void)state;
    const tiny_shape shape = {TYPE_F32, 2, 256, 288, 4, 2, 384, 64, false};
    char whole[512], coarse[512];
    quantize_report report;
    nib_error err;
    snprintf(whole, sizeof whole, "%s", tiny_model("original.gguf", &shape));
    snprintf(coarse, sizeof coarse, "%s", temp_path("coarse.gguf"));
    const nib_engine_options o = engine_usual();
    const quantize_options q = {.out = coarse, .type = "n2g64", .imatrix = "none"};
    if (quantize(whole, &o, &q, &report, &err) != NIB_OK)
        fail_msg("%s", err.message);
    logits_rows of_whole = logits_with(whole, NULL, 4, 0, 2), base = logits_with(coarse, whole, 4, 0, 2),
                some = logits_with(coarse, whole, 4, 256, 2), other = logits_with(coarse, whole, 4, 256, 1),
                all = logits_with(coarse, whole, 16, 1024, 2);
    const double far = distance(of_whole, base), nearer = distance(of_whole, some),
                 nearest = distance(of_whole, all);
    /* the embedding and the head stay coarse, layers are whole again */
    if (!(nearer < far && nearest < nearer))
        fail_msg("%g, with a quarter of the channels %g, with all in halves %g", far, nearer, nearest);
    assert_memory_equal(some.data, other.data, (size_t)(10 * some.n_vocab) * sizeof *some.data);
    nib_engine_options wrong = engine_usual();
    nib_engine *e;
    const tiny_shape larger = {TYPE_F32, 2, 320, 288, 4, 2, 384, 64, false};
    wrong.residual = tiny_model("other.gguf", &larger);
    wrong.k_chunk = 8;
    assert_int_equal(nib_engine_open(coarse, &wrong, &e, &err), NIB_E_MODEL);
    free(of_whole.data);
    free(base.data);
    free(some.data);
    free(other.data);
    free(all.data);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pick), cmocka_unit_test(test_residual),
                                       cmocka_unit_test(test_model)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
