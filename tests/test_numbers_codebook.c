/* Rows with a codebook of their own: a row with few values is exact, the codebook is near the optimum,
 * columns with more weight have smaller errors, and special values do no harm. */
#include "numbers/codebook.h"
#include "support/matrix.h"

#include "base/num.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N = 576, MAX_BYTES = 18 + N };

static const type_id types[] = {TYPE_C3, TYPE_C4};
static const int entries[] = {8, 16};

static void fill(float *x, uint64_t seed) {
    uint64_t s = seed * 0x9e3779b97f4a7c15u | 1;
    for (int i = 0; i < N; i++) {
        const float a = random_float(&s), b = random_float(&s), c = random_float(&s);
        x[i] = (a + b + c) * (i % 97 == 5 ? 0.3f : 0.03f);
    }
}

static bool by_size; /* of the type that was encoded last */

/* The weight of a value's squared error: with 8 entries its magnitude plus the root mean square of its row.
 */
static double size_of(const float *x, int i) {
    double squares = 0;
    if (!by_size)
        return 1;
    for (int j = 0; j < N; j++)
        squares += (double)x[j] * (double)x[j];
    return sqrt(squares / N) + fabs((double)x[i]);
}

static double error_of(const float *x, const float *y, const float *weight) {
    double sum = 0;
    for (int i = 0; i < N; i++) {
        const double d = (double)x[i] - (double)y[i];
        sum += (double)(weight ? weight[i] : 1) * size_of(x, i) * d * d;
    }
    return sum;
}

static double encode(type_id type, const float *x, const float *weight, float *y) {
    uint8_t row[MAX_BYTES];
    uint64_t bytes = 0;
    assert_true(type_row_bytes(type, N, &bytes) && bytes < MAX_BYTES);
    memset(row, 0xa5, sizeof row);
    by_size = type_get(type)->row_bytes == 2 + 8;
    codebook_encode(type, x, weight, N, row);
    assert_int_equal(row[bytes], 0xa5);
    type_get(type)->dequantize(row, y, N);
    return error_of(x, y, weight);
}

/* Values that a half times signed bytes can be, no more different ones than the book has entries. */
static void exact(void **state) {
    (void)state;
    for (size_t t = 0; t < NUM_COUNT(types); t++) {
        float x[N], y[N], part[64];
        uint8_t row[MAX_BYTES];
        for (int i = 0; i < N; i++)
            x[i] = 0.125f * (float)(i % entries[t] == 0 ? -127 : 11 * (i % entries[t]) - 60);
        assert_true(encode(types[t], x, NULL, y) == 0);
        codebook_encode(types[t], x, NULL, N, row);
        for (int at = 0; at < N; at += 64) { /* a part of a row equals that part of the whole row */
            type_dequantize_part(types[t], row, N, at, part, 64);
            assert_memory_equal(part, y + at, sizeof part);
        }
    }
}

/* The least error of n entries that may be any numbers: every place for the cuts of the sorted values. */
static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double min_error(const float *x, int n) {
    static double sorted[N], weight[N + 1], sum[N + 1], squares[N + 1], best[17][N + 1];
    const double rms = size_of(x, 0) - fabs((double)x[0]);
    for (int i = 0; i < N; i++)
        sorted[i] = (double)x[i];
    qsort(sorted, N, sizeof *sorted, by_value);
    for (int i = 0; i < N; i++) {
        const double w = by_size ? rms + fabs(sorted[i]) : 1;
        weight[i + 1] = weight[i] + w;
        sum[i + 1] = sum[i] + w * sorted[i];
        squares[i + 1] = squares[i] + w * sorted[i] * sorted[i];
    }
    for (int e = 1; e <= n; e++)
        for (int i = 1; i <= N; i++) {
            best[e][i] = INFINITY;
            for (int cut = 0; cut < i; cut++) {
                const double s = sum[i] - sum[cut];
                const double one = squares[i] - squares[cut] - s * s / (weight[i] - weight[cut]),
                             all = (e == 1 ? (cut ? INFINITY : 0) : best[e - 1][cut]) + one;
                best[e][i] = fmin(best[e][i], all);
            }
        }
    return best[n][N];
}

static void near_the_best(void **state) {
    (void)state;
    for (size_t t = 0; t < NUM_COUNT(types); t++)
        for (uint64_t seed = 1; seed <= 6; seed++) {
            float x[N], y[N];
            fill(x, seed);
            const double found = encode(types[t], x, NULL, y), best = min_error(x, entries[t]);
            if (!(found >= best * 0.999 && found < best * (t ? 1.10 : 1.03)))
                fail_msg("%d entries, seed %d: error %g, the least is %g", entries[t], (int)seed, found,
                         best);
        }
}

static void columns(void **state) {
    (void)state;
    float x[N], y[N], z[N], weight[N];
    uint64_t s = 3;
    fill(x, 9);
    for (int i = 0; i < N; i++)
        weight[i] = expf(3 * random_float(&s));
    for (size_t t = 0; t < NUM_COUNT(types); t++) {
        encode(types[t], x, NULL, y);
        encode(types[t], x, weight, z);
        assert_true(error_of(x, z, weight) < 0.98 * error_of(x, y, weight));
        memset(weight, 0, sizeof weight); /* all weights zero: as if all were equal */
        encode(types[t], x, weight, z);
        assert_memory_equal(y, z, sizeof y);
        for (int i = 0; i < N; i++)
            weight[i] = expf(3 * random_float(&s));
    }
}

static void strange(void **state) {
    (void)state;
    static const float odd[] = {NAN, INFINITY, -INFINITY, 3e38f, -3e38f, 1e-45f, 0.0f, -0.0f, 1.0f, -7};
    float x[N], y[N];
    for (size_t t = 0; t < NUM_COUNT(types); t++)
        for (size_t a = 0; a < NUM_COUNT(odd); a++)
            for (size_t b = 0; b < NUM_COUNT(odd); b++) {
                for (int i = 0; i < N; i++)
                    x[i] = i % 3 ? odd[a] : odd[b];
                encode(types[t], x, NULL, y);
                for (int i = 0; i < N; i++) {
                    assert_true(isfinite(y[i]));
                    if (odd[a] == 0 && odd[b] == 0)
                        assert_true(y[i] == 0);
                    if (odd[a] == 1 && odd[b] == -7) /* 7 / 127 is no half */
                        assert_true(fabsf(y[i] - x[i]) < 0.05f);
                }
            }
}

/* Outliers: a few columns are close to their values, a row's error is smaller, and the columns ascend. */
static void outliers(void **state) {
    (void)state;
    static const type_id sparse[] = {TYPE_C3O45, TYPE_C4O45, TYPE_C3O100, TYPE_C4O100};
    static const float odd[] = {NAN, INFINITY, 3.4e38f, -3e38f, 1e-45f, 0.0f};
    for (size_t t = 0; t < NUM_COUNT(sparse); t++) {
        const type_info *info = type_get(sparse[t]);
        const int64_t n = type_outliers(sparse[t], N);
        assert_int_equal(n, info->sparse == 45 ? 3 : 6);
        for (uint64_t seed = 1; seed <= 4; seed++) {
            float x[N], y[N], part[64];
            uint8_t row[MAX_BYTES];
            fill(x, seed);
            const double plain = encode(info->dense, x, NULL, y), with = encode(sparse[t], x, NULL, y);
            if (!(with < 0.9 * plain))
                fail_msg("%s, seed %d: error %g, %g without outliers", info->name, (int)seed, with, plain);
            codebook_encode(sparse[t], x, NULL, N, row);
            type_dequantize_part(sparse[t], row, N, 128, part, 64);
            assert_memory_equal(part, y + 128, sizeof part);
            uint64_t bytes = 0;
            int last = -1;
            type_row_bytes(sparse[t], N, &bytes);
            for (int64_t i = 0; i < n; i++) {
                const uint8_t *at = row + bytes - 4 * (size_t)(n - i);
                const int column = at[0] | at[1] << 8;
                assert_true(column > last && column < N);
                assert_true(fabsf(x[column] - y[column]) <= fabsf(x[column]) * 0x1p-7f);
                last = column;
            }
        }
        for (size_t a = 0; a < NUM_COUNT(odd); a++) {
            float x[N], y[N];
            for (int i = 0; i < N; i++)
                x[i] = i % 3 ? odd[a] : 0.25f;
            encode(sparse[t], x, NULL, y);
            for (int i = 0; i < N; i++)
                assert_true(isfinite(y[i]));
        }
    }
    assert_int_equal(type_outliers(TYPE_C4O100, 65536), 656);
    assert_int_equal(type_outliers(TYPE_C4, 65536), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(exact), cmocka_unit_test(near_the_best),
                                       cmocka_unit_test(columns), cmocka_unit_test(strange),
                                       cmocka_unit_test(outliers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
