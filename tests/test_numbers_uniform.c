/* The error of rounding floats to uniform formats: to nearest, no larger than with the plain step, smaller
 * for columns with more weight; a stack's second slice has the residual of the first. */
#include "support/matrix.h"

#include "numbers/hadamard.h"
#include "numbers/tile.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const pack_from floats = {.type = TYPE_F32};

/* A row of k floats as the format keeps it. */
static void round_row(const pack_format *f, const pack_from *from, const float *x, int64_t k, float *out) {
    const void *rows[] = {x};
    uint64_t bytes = 0;
    assert_true(pack_bytes(f, 1, k, &bytes));
    guarded data = guard_open((size_t)bytes), scratch = guard_open(pack_scratch_bytes(f, k));
    pack_panel_from(f, from, k, 0, 1, rows, data.data, scratch.data);
    pack_read_row(&(view){data.data, *f, 1, k}, 0, out);
    guard_close(&scratch);
    guard_close(&data);
}

static bool has_search(const pack_format *f) {
    return f->scale == PACK_SCALE_F16 && f->group != PACK_GROUP_ROW;
}

/* Squared error of n values as pack_scale.h weights it. */
static double weighted_error(const float *x, const float *found, int64_t n) {
    double squares = 0, sum = 0;
    for (int64_t i = 0; i < n; i++)
        squares += (double)x[i] * (double)x[i];
    for (int64_t i = 0; i < n; i++) {
        const double d = (double)x[i] - (double)found[i];
        sum += (sqrt(squares / (double)n) + fabs((double)x[i])) * d * d;
    }
    return sum;
}

static uint16_t finite_half(float x) {
    const uint16_t h = half_from_float(x);
    return (h & 0x7fff) > 0x7bff ? (uint16_t)((h & 0x8000) | 0x7bff) : h;
}

/* The same at the step that just reaches the largest value; with a minimum, that reaches both ends. */
static double plain_error(const float *x, int64_t n, const pack_format *f) {
    const int zero = tile_zero(f), max = (1 << f->bits) - 1;
    float low = x[0], high = x[0], found[256];
    assert_true(n <= 256);
    for (int64_t i = 0; i < n; i++) {
        low = fminf(low, x[i]);
        high = fmaxf(high, x[i]);
    }
    const float peak = -low > high ? low : high, min = f->asym ? half_to_float(finite_half(low)) : 0;
    const float step = half_to_float(finite_half(f->asym ? (high - min) / (float)max : peak / (float)-zero));
    for (int64_t i = 0; i < n; i++) {
        const float q = step == 0 ? 0 : rintf((x[i] - min) / step);
        found[i] = fminf(fmaxf(q, (float)-zero), (float)(max - zero)) * step + min;
    }
    return weighted_error(x, found, n);
}

/* Round to nearest: at most half a step off, or more at the last codes, because the scale is rounded to a
 * half. With searched scales values at the ends may have larger errors, but never all together. */
static void check_rounding(const pack_format *f, int64_t n, int64_t k, matrix_kind kind) {
    char name[PACK_NAME];
    pack_name(f, name);
    matrix m = matrix_open_uniform(name, n, k, kind, (uint64_t)(n + k));
    const int64_t group = f->group == PACK_GROUP_ROW ? k : f->group;
    float *found = malloc((size_t)k * sizeof(float));
    for (int64_t r = 0; r < n; r++) {
        const float *x = (const float *)(const void *)(m.raw + (size_t)r * m.raw_row_bytes);
        float max = 0;
        pack_read_row(&m.view, r, found);
        for (int64_t i = 0; i < k; i++)
            max = fmaxf(max, fabsf(x[i]));
        for (int64_t g = 0; g < k; g += group) {
            float low = x[g], high = x[g];
            for (int64_t i = g; i < k && i < g + group; i++) {
                low = fminf(low, x[i]);
                high = fmaxf(high, x[i]);
            }
            /* symmetric: the side with the smaller magnitude may lose its last code */
            float size = f->asym ? (high - low) / (float)((1 << f->bits) - 1)
                                 : fmaxf(fabsf(low), fabsf(high)) / (float)(1 << (f->bits - 1));
            float bound = size * (f->asym ? 0.5f : 1.0f) + max * 1e-3f;
            bound += (float)(1 << f->bits) * 3.1e-8f; /* a subnormal scale is off by half a unit */
            if (has_search(f))
                bound += size;
            if (f->scale == PACK_SCALE_TWO) /* steps are multiples of the row's */
                bound = 2 * size + max / 127 + 127 * 3.1e-8f;
            for (int64_t i = g; i < k && i < g + group; i++)
                if (!(fabsf(found[i] - x[i]) <= bound))
                    fail_msg("%s %dx%d (%d, %d): %g for %g, more than %g off", name, (int)n, (int)k, (int)r,
                             (int)i, (double)found[i], (double)x[i], (double)bound);
            const int64_t n_here = g + group < k ? group : k - g;
            const double error = has_search(f) ? weighted_error(x + g, found + g, n_here) : 0;
            if (has_search(f) && error > plain_error(x + g, n_here, f) * (1 + 1e-5))
                fail_msg("%s (%d, %d): an error of %g, %g without a search", name, (int)r, (int)g, error,
                         plain_error(x + g, n_here, f));
        }
    }
    free(found);
    matrix_close(&m);
}

static void test_rounding(void **state) {
    (void)state;
    static const int groups[] = {16, 32, 64, 128, PACK_GROUP_ROW};
    static const int64_t ks[] = {1, 63, 64, 65, 200, 256, 300, 576};
    for (int bits = 2; bits <= 8; bits++)
        for (int g = 0; g < 5; g++)
            for (int form = 0; form < 6; form++)
                for (int i = 0; i < 8; i++) {
                    pack_format f;
                    if (!pack_uniform(bits, groups[g], form % 3 == 1, form % 3 == 2, ks[i], &f))
                        continue;
                    f.packing = form / 3;
                    check_rounding(&f, i % 2 ? 17 : 5, ks[i], MATRIX_RANDOM);
                    check_rounding(&f, 3, ks[i], (matrix_kind)(1 + i % 4));
                }
}

/* What the search gains on normally distributed values (a sum of twelve uniform ones), in groups of 64. */
static void test_search_gains(void **state) {
    (void)state;
    static const struct {
        const char *format;
        double max; /* of the plain error */
    } goals[] = {{"u3g64", 0.90},  {"u4g64", 0.92},  {"u5g64", 0.94},  {"u8g64", 0.95},
                 {"u3g64a", 0.85}, {"u4g64a", 0.92}, {"u5g64a", 0.97}, {"u8g64a", 0.99}};
    enum { K = 64 * 64 };
    float *x = malloc(K * sizeof *x), *out = malloc(K * sizeof *out);
    uint64_t seed = 5;
    for (int i = 0; i < K; i++) {
        x[i] = 0;
        for (int j = 0; j < 12; j++)
            x[i] += random_float(&seed) * 0.01f;
    }
    for (size_t c = 0; c < sizeof goals / sizeof *goals; c++) {
        pack_format f;
        double error = 0, plain = 0;
        assert_true(pack_from_name(goals[c].format, K, &f));
        round_row(&f, &floats, x, K, out);
        for (int g = 0; g < K; g += 64) {
            error += weighted_error(x + g, out + g, 64);
            plain += plain_error(x + g, 64, &f);
        }
        if (error > goals[c].max * plain)
            fail_msg("%s: %.3f of the plain error", goals[c].format, error / plain);
    }
    free(x);
    free(out);
}

static double column_error(const float *x, const float *found, const float *column, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) {
        const double d = (double)x[i] - (double)found[i];
        sum += (double)column[i] * d * d;
    }
    return sum;
}

/* Columns with more weight have smaller errors, and equal weights change nothing. */
static void test_columns(void **state) {
    (void)state;
    static const char *const names[] = {"u3g32", "u4g64", "u3g64a", "u4g128a"};
    enum { K = 700 };
    float x[K], column[3][K], found[3][K];
    uint64_t seed = 9;
    for (int i = 0; i < K; i++) {
        x[i] = random_float(&seed) + random_float(&seed) + random_float(&seed);
        column[0][i] = 1;
        column[1][i] = 8;
        column[2][i] = i % 11 ? 0.01f : 100;
    }
    for (size_t c = 0; c < sizeof names / sizeof *names; c++) {
        pack_format f;
        assert_true(pack_from_name(names[c], K, &f));
        for (int i = 0; i < 3; i++)
            round_row(&f, &(pack_from){.type = TYPE_F32, .imatrix = column[i]}, x, K, found[i]);
        assert_memory_equal(found[0], found[1], sizeof found[0]);
        const double plain = column_error(x, found[0], column[2], K);
        const double weighted = column_error(x, found[2], column[2], K);
        if (weighted > 0.7 * plain)
            fail_msg("%s: %.3f of the error without columns", names[c], weighted / plain);
    }
}

/* A stack is the sum of its two slices, and the second is the residual of the first. */
static void test_stack(void **state) {
    (void)state;
    static const char *const names[][2] = {{"u4g64", "u4g64"}, {"u3g32", "u4g128a"}, {"u4g32a", "u2g16"}};
    enum { K = 333 };
    float x[K], first[K], residual[K], second[K];
    uint64_t seed = 4;
    for (int i = 0; i < K; i++)
        x[i] = random_float(&seed) * 3;
    for (size_t c = 0; c < sizeof names / sizeof *names; c++) {
        float *const out[] = {first, second};
        pack_from from = {.type = TYPE_F32};
        for (int slice = 0; slice < 2; slice++) {
            pack_format f;
            assert_true(pack_from_name(names[c][slice], K, &f));
            round_row(&f, &from, x, K, out[slice]);
            if (slice == 1) { /* as a matrix of those values would be */
                round_row(&f, &floats, residual, K, residual);
                assert_memory_equal(residual, second, sizeof residual);
            }
            from.over = f;
            for (int i = 0; slice == 0 && i < K; i++)
                residual[i] = x[i] - first[i];
        }
        double off = 0, base = 0;
        for (int i = 0; i < K; i++) {
            base += fabs((double)x[i] - (double)first[i]);
            off += fabs((double)x[i] - (double)first[i] - (double)second[i]);
        }
        assert_true(off < base / 2);
    }
}

/* Integers that a step of one represents come back as they are. */
static void test_rounding_exact(void **state) {
    (void)state;
    static const char *const names[] = {"u2g16",  "u3g32a",  "u4g64",  "u5g128a",
                                        "u6grow", "u7growa", "u8g128", "u4g128p"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        matrix m = matrix_open_uniform(names[i], 20, 300, MATRIX_UNIT, i + 1);
        float row[300];
        for (int r = 0; r < 20; r++) {
            pack_read_row(&m.view, r, row);
            assert_memory_equal(row, m.raw + (size_t)r * m.raw_row_bytes, sizeof row);
        }
        matrix_close(&m);
    }
}

/* A NaN affects its group and no other. */
static void test_rounding_poison(void **state) {
    (void)state;
    static const char *const names[] = {"u4g64", "u4g64a", "u3grow", "u4g64t"};
    for (size_t i = 0; i < 4; i++) {
        pack_format f;
        enum { K = 300 };
        float x[K], out[K];
        for (int j = 0; j < K; j++)
            x[j] = j == 70 ? NAN : (float)(j % 7) - 3;
        assert_true(pack_from_name(names[i], K, &f));
        round_row(&f, &floats, x, K, out);
        for (int j = 0; j < K; j++)
            assert_int_equal(isnan(out[j]), i >= 2 || (j >= 64 && j < 128));
    }
}

/* A row that is rotated, rounded and read is the row. A large value costs its neighbours less. */
static void test_rotated(void **state) {
    (void)state;
    static const int64_t widths[] = {576, 640, 1536, 96, 40, 33};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        const int64_t k = widths[i];
        float *x = random_rows(k, (int)i + 1, 1), *found = malloc((size_t)k * sizeof *found);
        double off[2] = {0, 0}, all = 0;
        x[3] = 100;
        for (int h = 0; h < 2; h++) {
            pack_format f;
            assert_true(pack_from_name(h ? "u8g128h" : "u8g128", k, &f));
            round_row(&f, &floats, x, k, found);
            for (int64_t c = 0; c < k; c++)
                off[h] += ((double)found[c] - (double)x[c]) * ((double)found[c] - (double)x[c]);
        }
        for (int64_t c = 0; c < k; c++)
            all += (double)x[c] * (double)x[c];
        assert_true(off[1] < 1e-3 * all);
        if (k == 576 || k == 640 || k == 1536)
            assert_true(off[1] < off[0]);
        free(x);
        free(found);
    }
}

static void test_hadamard(void **state) {
    (void)state;
    assert_int_equal(hadamard_block(576, 256), 64);
    assert_int_equal(hadamard_block(640, 256), 128);
    assert_int_equal(hadamard_block(1536, 256), 256);
    assert_int_equal(hadamard_block(1536, 64), 64);
    assert_int_equal(hadamard_block(33, 256), 1);
    float *x = random_rows(576, 1, 1), *y = random_rows(576, 2, 1), *same = random_rows(576, 1, 1);
    double before = 0, after = 0;
    for (int i = 0; i < 576; i++)
        before += (double)x[i] * (double)y[i];
    hadamard(x, 576, 64);
    hadamard(y, 576, 64);
    for (int i = 0; i < 576; i++)
        after += (double)x[i] * (double)y[i];
    assert_true(fabs(before - after) < 1e-4);
    hadamard(x, 576, 64);
    for (int i = 0; i < 576; i++)
        assert_true(fabsf(x[i] - same[i]) < 1e-5f);
    free(x);
    free(y);
    free(same);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hadamard),     cmocka_unit_test(test_rotated),
        cmocka_unit_test(test_rounding),     cmocka_unit_test(test_rounding_exact),
        cmocka_unit_test(test_search_gains), cmocka_unit_test(test_rounding_poison),
        cmocka_unit_test(test_columns),      cmocka_unit_test(test_stack),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
