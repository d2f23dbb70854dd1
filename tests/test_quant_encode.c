/* Blocks with searched scales: the bytes agree with the chosen codes, bit by bit, and the error is smaller
 * than with scales that reach the largest value. */
#include "base/num.h"
#include "quant/encode.h"
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

/* Bits of a code, for the step that a type without a plain quantizer is compared with. */
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
        double plain = s->table ? INFINITY : uniform_error(s, x, NULL);
        if (info->quantize) {
            info->quantize(x, blocks, N);
            info->dequantize(blocks, y, N);
            plain = fmin(plain, error_of(s, x, y, NULL));
        }
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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bytes), cmocka_unit_test(test_errs_less),
                                       cmocka_unit_test(test_strange)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
