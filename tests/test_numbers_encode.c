/* Blocks with searched scales: the bytes agree with the chosen codes, bit by bit, are the same on every
 * instruction set, and the error is smaller than with scales that reach the largest value. */
#include "base/num.h"
#include "numbers/encode.h"
#include "support/matrix.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N = 4096 };

/* Long tails, and every 37th value an outlier. */
static void fill(float *x, int n, uint64_t seed) {
    for (int i = 0; i < n; i++) {
        const float a = random_float(&seed), b = random_float(&seed);
        x[i] = 0.05f * (a + b * b * b) * (i % 37 ? 1 : 6);
    }
}

/* The error as it is weighed: by group root mean square plus magnitude, and by column. */
static double error_of(const encode_shape *s, const float *x, const float *y, const float *column) {
    double sum = 0;
    for (int g = 0; g < N / s->group; g++, x += s->group, y += s->group) {
        double squares = 0;
        for (int i = 0; i < s->group; i++)
            squares += (double)x[i] * (double)x[i];
        const double rms = sqrt(squares / s->group);
        for (int i = 0; i < s->group; i++) {
            const double d = (double)x[i] - (double)y[i], c = column ? (double)column[g * s->group + i] : 1;
            sum += c * (rms + fabs((double)x[i])) * d * d;
        }
    }
    return sum;
}

/* The values of the bytes are scale * level + min. */
static void test_bytes(void **state) {
    (void)state;
    int n_tested = 0;
    for (int id = 0; id < TYPE_COUNT; id++) {
        const encode_shape *s = encode_shape_of((type_id)id);
        const type_info *info = type_get((type_id)id);
        if (!s)
            continue;
        assert_int_equal(s->elems, info->block_elems);
        for (uint64_t seed = 1; seed <= 20; seed++) {
            float x[ENCODE_MAX], y[ENCODE_MAX];
            uint8_t block[ENCODE_MAX * 2];
            encode_block b;
            fill(x, s->elems, seed);
            encode_scales(s, x, NULL, &b);
            memset(block, 0xa5, sizeof block);
            encode_put(s, &b, block);
            info->dequantize(block, y, s->elems);
            assert_int_equal(block[info->block_bytes], 0xa5);
            for (int i = 0; i < s->elems; i++) {
                const float expected = encode_value(s, &b, i / s->group, b.level[i]);
                assert_in_range(b.level[i] + 128, s->low + 128, s->high + 128);
                if (y[i] != expected)
                    fail_msg("%s, seed %d: value %d is %g, expected %g", info->name, (int)seed, i,
                             (double)y[i], (double)expected);
            }
        }
        n_tested++;
    }
    assert_int_equal(n_tested, 17);
}

/* The error of the scales that reach the largest values. */
static double uniform_error(const encode_shape *s, const float *x, const float *column) {
    float y[N];
    for (int g = 0; g < N; g += s->group) {
        float low = x[g], high = x[g];
        for (int i = 1; i < s->group; i++) {
            low = fminf(low, x[g + i]);
            high = fmaxf(high, x[g + i]);
        }
        const int n = s->asym ? s->high : 2 * s->high;
        if (!s->asym) {
            high = fmaxf(high, -low);
            low = -high;
        } else {
            low = fminf(low, 0);
        }
        const float step = (high - low) / (float)n;
        for (int i = 0; i < s->group; i++)
            y[g + i] = low + step * rintf((x[g + i] - low) / step);
    }
    return error_of(s, x, y, column);
}

static void test_errs_less(void **state) {
    (void)state;
    float x[N], y[N], column[N];
    uint8_t blocks[N * 2];
    uint64_t seed = 5;
    fill(x, N, 7);
    for (int i = 0; i < N; i++)
        column[i] = expf(2 * random_float(&seed));
    for (int id = 0; id < TYPE_COUNT; id++) {
        const encode_shape *s = encode_shape_of((type_id)id);
        const type_info *info = type_get((type_id)id);
        if (!s)
            continue;
        assert_true(encode_row((type_id)id, x, column, N, blocks));
        info->dequantize(blocks, y, N);
        const double with = error_of(s, x, y, column);
        assert_true(encode_row((type_id)id, x, NULL, N, blocks));
        info->dequantize(blocks, y, N);
        const double without = error_of(s, x, y, NULL);
        if (s->high - s->low < 64 && !(with < error_of(s, x, y, column)))
            fail_msg("%s: columns do not help", info->name);
        const double plain = s->table ? INFINITY : uniform_error(s, x, NULL);
        /* two levels of scales, and integer zeros, have a larger error than floats for each group */
        if (!(s->high < 31 && !s->zero ? without < plain : without < plain * 1.2))
            fail_msg("%s: error %g, plainly %g", info->name, without, plain);
    }
}

static void test_strange(void **state) {
    (void)state;
    static const float strange[] = {NAN, INFINITY, -INFINITY, 3e38f, -3e38f, 1e-45f, 0.0f, -0.0f, 1.0f, -7};
    float x[ENCODE_MAX], y[ENCODE_MAX];
    uint8_t block[ENCODE_MAX * 2];
    for (int id = 0; id < TYPE_COUNT; id++) {
        const encode_shape *s = encode_shape_of((type_id)id);
        if (!s)
            continue;
        for (size_t a = 0; a < NUM_COUNT(strange); a++)
            for (size_t b = 0; b < NUM_COUNT(strange); b++) {
                for (int i = 0; i < s->elems; i++)
                    x[i] = i % 3 ? strange[a] : strange[b];
                encode_row((type_id)id, x, NULL, s->elems, block);
                type_get((type_id)id)->dequantize(block, y, s->elems);
                for (int i = 0; i < s->elems; i++)
                    if (x[i] == 0 && (strange[a] == 0 && strange[b] == 0))
                        assert_true(y[i] == 0);
            }
    }
}

static float odd_value(int kind, int i, uint64_t *seed) {
    const float x = random_float(seed), size = i / 16 % 3 ? 0.03f : 0.4f;
    const int draw = (int)(random_next(seed) >> 40) % 100;
    switch (kind) {
    case 0: return x * size;
    case 1: return draw < 50 ? 0.0f : -0.0f;
    case 2: return draw < 90 ? 0.0f : x;
    case 3: return x * 1e-38f;
    case 4: return ldexpf(x, draw - 50);
    case 5: return draw ? x : draw % 2 ? NAN : INFINITY;
    case 6: return i / 32 % 2 ? 0.25f : -3;
    case 7: return fabsf(x) + 1;
    case 8: return x * 6e-8f; /* scales are denormal halves */
    case 9: return x * 6e4f;
    default: return draw < 5 ? 40 * x : 0.01f * x; /* outliers */
    }
}

static void check_isas(const encode_shape *s, const float *x, const float *column, int kind) {
    encode_block expected = {0}, found = {0};
    for (int i = 0; pack_isa_at(i); i++) {
        encode_scales_by(pack_isa_at(i), s, x, column, i ? &found : &expected);
        if (i && memcmp(&found, &expected, sizeof found) != 0)
            fail_msg("%s, kind %d: %s differs from ref: d %04x %04x, level %d %d", type_get(s->type)->name,
                     kind, pack_isa_at(i)->name, found.d, expected.d, found.level[0], expected.level[0]);
    }
    for (int i = 0; i < s->elems; i++) /* gptq.c takes levels one by one */
        if (isfinite(expected.scale[i / s->group]) &&
            expected.level[i] != encode_nearest(s, &expected, i / s->group, isfinite(x[i]) ? x[i] : 0))
            fail_msg("%s, kind %d: level %d is not the nearest", type_get(s->type)->name, kind, i);
}

static void test_same_on_every_set(void **state) {
    (void)state;
    enum { KINDS = 11, TURNS = 40 };
    float x[ENCODE_MAX], column[ENCODE_MAX];
    uint64_t seed = 11;
    for (int id = 0; id < TYPE_COUNT; id++) {
        const encode_shape *s = encode_shape_of((type_id)id);
        for (int turn = 0; s && turn < KINDS * TURNS; turn++) {
            for (int i = 0; i < s->elems; i++) {
                x[i] = odd_value(turn % KINDS, i, &seed);
                column[i] = turn % 5 ? expf(4 * random_float(&seed)) : (float)(i % 3);
            }
            check_isas(s, x, turn % 3 ? column : NULL, turn % KINDS);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bytes), cmocka_unit_test(test_errs_less),
                                       cmocka_unit_test(test_strange),
                                       cmocka_unit_test(test_same_on_every_set)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
