/* Every row of the type table against the PyPI package gguf, bit by bit (tests/data/quant, made by
 * tools/make-quant-data.py), and halves against their definition. */
#include "base/file.h"
#include "base/mem.h"
#include "numbers/types.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static char *load(const char *name, const char *suffix, size_t *n_byte) {
    char path[256];
    snprintf(path, sizeof path, "tests/data/quant/%s.%s", name, suffix);
    if (!path_exists(path))
        return NULL;
    char *data;
    nib_error err;
    if (file_read_all(path, 1 << 20, &data, n_byte, &err))
        fail_msg("%s", err.message);
    return data;
}

/* NaNs are equal to each other: which payload a product of NaNs has is the processor's choice. */
static void assert_same_floats(const char *name, const float *found, const float *expected, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (isnan(found[i]) && isnan(expected[i]))
            continue;
        if (memcmp(&found[i], &expected[i], sizeof(float)))
            fail_msg("%s: element %zu is %a, expected %a", name, i, (double)found[i], (double)expected[i]);
    }
}

static void test_dequantize(void **state) {
    (void)state;
    int n_tested = 0;
    for (int id = 0; id < TYPE_COUNT; id++) {
        const type_info *t = type_get((type_id)id);
        size_t n_block_byte, n_float_byte;
        char *blocks = load(t->name, "blocks", &n_block_byte);
        if (!blocks) /* only the plain floats have no file */
        {
            if (t->dequantize) /* our own types are looked at in test_numbers_encode and test_quantize_packed
                                */
                assert_true(t->block_elems == 1 || t->gguf >= 1000 || t->gguf < 0);
            continue;
        }
        float *expected = (float *)(void *)load(t->name, "floats", &n_float_byte);
        assert_non_null(expected);
        const size_t n = n_float_byte / sizeof(float);
        assert_int_equal(n % (size_t)t->block_elems, 0);
        assert_int_equal(n / (size_t)t->block_elems * (size_t)t->block_bytes, n_block_byte);
        float *found = mem_array(n, sizeof(float));
        char *shifted = mem_alloc(n_block_byte + 1); /* blocks may be at any address */
        memcpy(shifted + 1, blocks, n_block_byte);
        t->dequantize(blocks, found, (int64_t)n);
        assert_same_floats(t->name, found, expected, n);
        memset(found, 0, n * sizeof(float));
        t->dequantize(shifted + 1, found, (int64_t)n);
        assert_same_floats(t->name, found, expected, n);
        mem_free(shifted);
        mem_free(found);
        mem_free(expected);
        mem_free(blocks);
        n_tested++;
    }
    assert_true(n_tested > 0);
}

static void test_quantize_floats(void **state) {
    (void)state;
    size_t n_byte;
    int n_tested = 0;
    float *in = (float *)(void *)load("input", "floats", &n_byte);
    assert_non_null(in);
    const int64_t n = (int64_t)(n_byte / sizeof(float));
    for (int id = 0; id < TYPE_COUNT; id++) {
        const type_info *t = type_get((type_id)id);
        size_t n_expected;
        char *expected = load(t->name, "quantized", &n_expected);
        if (!expected)
            continue;
        assert_non_null(t->quantize);
        uint64_t n_found;
        assert_true(type_row_bytes((type_id)id, n, &n_found));
        assert_int_equal(n_found, n_expected);
        char *found = mem_alloc(n_found);
        t->quantize(in, found, n);
        for (size_t i = 0; i < n_found; i++) {
            if (found[i] != expected[i])
                fail_msg("%s: byte %zu (of block %zu) is %02x, expected %02x", t->name, i,
                         i / (size_t)t->block_bytes, (unsigned char)found[i], (unsigned char)expected[i]);
        }
        mem_free(found);
        mem_free(expected);
        n_tested++;
    }
    assert_int_equal(n_tested, 2);
    mem_free(in);
}

static double half_by_definition(unsigned h) {
    const int exponent = (int)(h >> 10 & 31), fraction = (int)(h & 1023);
    const double sign = h & 0x8000 ? -1 : 1;
    if (exponent == 31)
        return fraction ? NAN : sign * INFINITY;
    return sign * (exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24));
}

static void test_half(void **state) {
    (void)state;
    for (unsigned h = 0; h < 65536; h++) {
        const double expected = half_by_definition(h);
        const float found = half_to_float((uint16_t)h);
        if (isnan(expected)) {
            assert_true(isnan(found));
            assert_true(isnan(half_to_float(half_from_float(found))));
            continue;
        }
        assert_true((double)found == expected && !signbit(found) == !signbit(expected));
        assert_int_equal(half_from_float(found), h); /* every half converts to a float and back unchanged */
    }
}

/* Between two neighbours: the nearer one, at the middle the even one. */
static void test_half_rounding(void **state) {
    (void)state;
    for (unsigned h = 0; h < 0x7bff; h++) {
        const float low = half_to_float((uint16_t)h), high = half_to_float((uint16_t)(h + 1));
        const float middle = low + (high - low) / 2;
        assert_int_equal(half_from_float(middle), h & 1 ? h + 1 : h);
        assert_int_equal(half_from_float(nextafterf(middle, 0)), h);
        assert_int_equal(half_from_float(nextafterf(middle, INFINITY)), h + 1);
        assert_int_equal(half_from_float(-middle), (h & 1 ? h + 1 : h) | 0x8000);
    }
    assert_int_equal(half_from_float(65519.99f), 0x7bff);
    assert_int_equal(half_from_float(65520.0f), 0x7c00);
    assert_int_equal(half_from_float(1e-40f), 0);
}

static void test_bf16(void **state) {
    (void)state;
    assert_int_equal(bf16_from_float(1.0f), 0x3f80);
    assert_int_equal(bf16_from_float(1.00390625f), 0x3f80); /* a tie, to even */
    assert_int_equal(bf16_from_float(1.01171875f), 0x3f82); /* a tie, to even */
    assert_int_equal(bf16_from_float(3.4e38f), 0x7f80);
    assert_true(isnan(bf16_to_float(bf16_from_float(NAN))));
    for (unsigned h = 0; h < 65536; h++) {
        const float f = bf16_to_float((uint16_t)h);
        if (!isnan(f))
            assert_int_equal(bf16_from_float(f), h);
    }
}

static void test_look_ups(void **state) {
    (void)state;
    type_id id;
    uint64_t bytes;
    for (int i = 0; i < TYPE_COUNT; i++) {
        const type_info *t = type_get((type_id)i);
        assert_true(type_from_name(t->name, &id) && id == (type_id)i);
        if (t->gguf >= 0)
            assert_true(type_from_gguf((uint32_t)t->gguf, &id) && id == (type_id)i);
        if (t->st)
            assert_true(type_from_safetensors(t->st, &id) && id == (type_id)i);
    }
    assert_false(type_from_gguf(4, &id)); /* a number that was withdrawn */
    assert_false(type_from_gguf(UINT32_MAX, &id));
    assert_false(type_from_safetensors("f32", &id));
    assert_false(type_from_name("", &id));
    assert_true(type_row_bytes(TYPE_Q4_K, 512, &bytes) && bytes == 288);
    assert_false(type_row_bytes(TYPE_Q4_K, 100, &bytes));
    assert_false(type_row_bytes(TYPE_F32, -1, &bytes));
    assert_false(type_row_bytes(TYPE_F32, INT64_MAX, &bytes));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dequantize), cmocka_unit_test(test_quantize_floats),
        cmocka_unit_test(test_half),       cmocka_unit_test(test_half_rounding),
        cmocka_unit_test(test_bf16),       cmocka_unit_test(test_look_ups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
