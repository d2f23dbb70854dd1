/* Matrices of checkpoints in the packed forms of the hub, as a model holds them: the type, and every value as
 * tools/make-packed-data.py computed it from the form's definition, bit for bit. */
#include "base/mem.h"
#include "base/num.h"
#include "formats/packed_matrix.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const struct {
    const char *folder;
    type_id type;
    bool rounded; /* the expected values are, to bf16 */
} cases[] = {
    {"awq", TYPE_N4G32, false},
    {"awq-128", TYPE_N4G128, false},
    {"gptq-2", TYPE_Q4_0, false},
    {"gptq-3", TYPE_Q4_0, false},
    {"gptq-4", TYPE_Q4_0, false},
    {"gptq-4-asym", TYPE_N4G32, false},
    {"gptq-64", TYPE_N4G64, false},
    {"gptq-128", TYPE_S4G128, false},
    {"gptq-8", TYPE_Q8_0, false},
    {"gptq-act", TYPE_F32, false},
    {"auto-round", TYPE_S4G64, false},
    {"w4a16", TYPE_Q4_0, false},
    {"w4a16-64", TYPE_S4G64, false},
    {"w4a16-asym", TYPE_N4G32, false},
    {"w4a16-128-asym", TYPE_N4G128, false},
    {"w4a16-small", TYPE_F32, false}, /* scales that are no halves, one for 32 or for 64 */
    {"w4a16-64-small", TYPE_F8G64, false},
    {"w8a16", TYPE_Q8_0, false},
    {"w8a8", TYPE_Q8_0, false},
    {"moe-gptq", TYPE_N4G32, false},
    {"moe-awq", TYPE_N4G64, false},
    {"mxfp4-packed", TYPE_MXFP4, false},
    {"nf4", TYPE_BF16, false},
    {"nf4-nested", TYPE_BF16, false},
    {"fp8-row", TYPE_F8G64, true},
    {"fp8-tensor", TYPE_F32, true},
    {"nvfp4", TYPE_F4G64, true},
    {"nvfp4-packed", TYPE_F4G64, true},
    {"moe-fp8", TYPE_F8G64, true},
    {"moe-nvfp4", TYPE_F4G64, true},
};

static void must(nib_status status, const nib_error *err) {
    if (status != NIB_OK)
        fail_msg("%s", err->message);
}

/* Reads a matrix in its type, n_row rows at a time. */
static float *read_as(const container *c, const container_tensor *t, type_id type, int64_t n_row) {
    const int64_t n = t->shape[0], k = t->shape[1];
    uint64_t each = 0;
    nib_error err;
    type_row_bytes(type, k, &each);
    uint8_t *raw = mem_alloc((size_t)(each * (uint64_t)n_row));
    float *out = mem_array((size_t)(n * k), sizeof *out);
    for (int64_t first = 0; first < n; first += n_row) {
        const int64_t some = NUM_MIN(n_row, n - first);
        must(packed_read(c, t, first, some, type, raw, &err), &err);
        for (int64_t i = 0; i < some; i++)
            type_get(type)->dequantize(raw + (uint64_t)i * each, out + (first + i) * k, k);
    }
    mem_free(raw);
    return out;
}

static void check_matrix(const char *folder, const container *c, const container *expected,
                         const container_tensor *t, type_id type, bool rounded) {
    const container_tensor *is = container_find(c, t->name);
    const int64_t n = t->shape[0] * t->shape[1];
    float *wanted = mem_array((size_t)n, sizeof *wanted);
    type_id held;
    nib_error err;
    assert_true(is && is->packed && is->shape[0] == t->shape[0] && is->shape[1] == t->shape[1]);
    must(packed_runs_as(c, is, &held, &err), &err);
    if (held != type)
        fail_msg("%s: %s is held as %s", folder, t->name, type_get(held)->name);
    must(file_read_at(container_file(expected, t->file), wanted, t->offset, t->bytes, &err), &err);
    for (int64_t n_row = 1; n_row <= 64; n_row += 15) {
        float *found = read_as(c, is, held, n_row);
        for (int64_t i = 0; i < n; i++)
            if (rounded ? fabsf(found[i] - wanted[i]) > 0x1p-8f * fabsf(found[i])
                        : found[i] != wanted[i]) /* a zero has either sign */
                fail_msg("%s: %s[%d] is %.9g, expected %.9g", folder, t->name, (int)i, (double)found[i],
                         (double)wanted[i]);
        mem_free(found);
    }
    mem_free(wanted);
}

static void open_both(const char *folder, container **c, container **expected) {
    char path[300];
    nib_error err;
    snprintf(path, sizeof path, "tests/data/packed/%s", folder);
    must(container_open(path, NULL, c, &err), &err);
    snprintf(path, sizeof path, "tests/data/packed/%s/expected.safetensors", folder);
    must(container_open(path, NULL, expected, &err), &err);
}

static void test_values(void **state) {
    (void)state;
    container *c, *expected;
    for (size_t i = 0; i < NUM_COUNT(cases); i++) {
        open_both(cases[i].folder, &c, &expected);
        assert_true(container_n_tensor(expected) >= 2);
        for (size_t k = 0; k < container_n_tensor(expected); k++) {
            const container_tensor *t = container_tensor_at(expected, k);
            const bool half = t->shape[1] % 64 && cases[i].type == TYPE_N4G64; /* half of an expert's width */
            check_matrix(cases[i].folder, c, expected, t, half ? TYPE_N4G32 : cases[i].type,
                         cases[i].rounded);
        }
        container_close(c);
        container_close(expected);
    }
}

/* One expert has scales that are no halves, so it cannot be in the type of the others. */
static void test_one_expert(void **state) {
    (void)state;
    static const struct {
        const char *folder;
        type_id usual, other;
    } of[] = {{"moe-w4a16", TYPE_Q4_0, TYPE_F32}, {"moe-64-small", TYPE_S4G64, TYPE_F8G64}};
    for (size_t i = 0; i < NUM_COUNT(of); i++) {
        container *c, *expected;
        open_both(of[i].folder, &c, &expected);
        assert_int_equal(packed_join(of[i].usual, of[i].other), of[i].other);
        for (size_t k = 0; k < container_n_tensor(expected); k++) {
            const container_tensor *t = container_tensor_at(expected, k);
            const bool small = strstr(t->name, "experts.1.up_proj") != NULL;
            check_matrix(of[i].folder, c, expected, t, small ? of[i].other : of[i].usual, false);
            if (small) {
                uint8_t raw[2048];
                nib_error err;
                assert_int_equal(packed_read(c, container_find(c, t->name), 0, 1, of[i].usual, raw, &err),
                                 NIB_E_MODEL);
                assert_non_null(strstr(err.message, "exact in f16"));
            }
        }
        container_close(c);
        container_close(expected);
    }
    assert_int_equal(packed_join(TYPE_S4G128, TYPE_N4G128), TYPE_N4G128);
    assert_int_equal(packed_join(TYPE_S4G128, TYPE_S4G64), TYPE_F32);
}

/* The official form of DeepSeek V4: the experts in e2m1, the others in fp8, with exponents as scales. */
static void test_exponents(void **state) {
    (void)state;
    container *c, *expected;
    open_both("deepseek-v4", &c, &expected);
    assert_int_equal(container_n_tensor(expected), 4);
    for (size_t k = 0; k < container_n_tensor(expected); k++) {
        const container_tensor *t = container_tensor_at(expected, k);
        check_matrix("deepseek-v4", c, expected, t, strstr(t->name, "experts") ? TYPE_MXFP4 : TYPE_F8G64,
                     false);
    }
    container_close(c);
    container_close(expected);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_values), cmocka_unit_test(test_one_expert),
                                       cmocka_unit_test(test_exponents)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
