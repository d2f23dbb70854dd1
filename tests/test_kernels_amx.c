/* The AMX product over tiles in plain C, bit by bit against the reference, for every format and odd shapes.
 * So its logic is tested on processors without AMX. The instructions themselves are tested by
 * test_kernels_linear where there are any. */
#include "support/amx_emulated.h"
#include "support/skip.h"
#include "support/tilecase.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void check_matrix(matrix w, int64_t n_row, bool max) {
    const uint64_t seed = (uint64_t)(w.n * 17 + w.k + n_row);
    const kernel_table *ref = kernels_table_for("ref");
    float *x = case_rows(n_row, w.k, max ? 0 : seed), *bias = case_rows(1, w.n, seed + 1);
    const float *b = n_row % 2 ? bias : NULL;
    guarded expected = case_linear(ref, &w, x, n_row, b, 0);
    guarded y = case_linear_by(ref, &amx_emulated, &w, x, n_row, b, w.n > 16 ? 16 : 0);
    char name[PACK_NAME];
    pack_name(&w.view.format, name);
    for (int64_t i = 0; i < w.n * n_row; i++) {
        const float found = ((float *)y.data)[i], right = ((float *)expected.data)[i];
        if (memcmp(&found, &right, sizeof found) && !(isnan(found) && isnan(right)))
            fail_msg("%s %dx%d, %d rows: output %d is %a, expected %a", name, (int)w.n, (int)w.k, (int)n_row,
                     (int)i, (double)found, (double)right);
    }
    guard_close(&y);
    guard_close(&expected);
    free(x);
    free(bias);
    matrix_close(&w);
}

static void check(type_id type, int64_t n, int64_t k, int64_t n_row, matrix_kind kind) {
    const uint64_t seed = (uint64_t)(type * 131 + n * 17 + k + n_row);
    check_matrix(matrix_open(type, n, k, kind, seed), n_row, kind == MATRIX_LARGEST);
}
static void check_uniform(const char *name, int64_t n, int64_t k, int64_t n_row, matrix_kind kind) {
    check_matrix(matrix_open_uniform(name, n, k, kind, (uint64_t)(n * 17 + k + n_row)), n_row,
                 kind == MATRIX_LARGEST);
}

static void test_formats(void **state) {
    (void)state;
    need_kernels("avx512");
    static const int64_t ns[] = {1, 16, 33, 48, 80}, rows[] = {1, 4, 5, 8, 15, 16, 17, 33};
    int turn = 0;
    for (int id = 0; id < TYPE_COUNT; id++) {
        pack_format f;
        const int64_t block = type_get((type_id)id)->block_elems;
        if (!pack_choose((type_id)id, block, &f) || f.layout != PACK_TILE)
            continue;
        static const int64_t by32[] = {32, 96, 544, 576}, by256[] = {256, 512, 768, 1280};
        for (int i = 0; i < 4; i++)
            for (size_t j = 0; j < sizeof rows / sizeof *rows; j++)
                check((type_id)id, ns[turn++ % 5], block == 32 ? by32[i] : by256[i], rows[j], MATRIX_RANDOM);
        for (int kind = MATRIX_LARGEST; kind <= MATRIX_TINY; kind++)
            check((type_id)id, 17, block == 32 ? 160 : 512, 7, (matrix_kind)kind);
    }
    assert_int_equal(amx_emulated_faults, 0);
}

/* Groups of one tile, of two, of the row; short last groups; all sizes of parts and blocks. */
static void test_uniform(void **state) {
    (void)state;
    need_kernels("avx512");
    static const int64_t ns[] = {1, 16, 33, 48, 80}, rows[] = {1, 4, 15, 17, 33, 48};
    static const char *const groups[] = {"32", "64", "128", "row"};
    int turn = 0;
    for (int bits = 2; bits <= 8; bits++)
        for (int g = 0; g < 4; g++)
            for (int form = 0; form < 4; form++) {
                static const int64_t ks[] = {40, 200, 576, 640, 1100};
                char name[PACK_NAME];
                snprintf(name, sizeof name, "u%dg%s%s%s", bits, groups[g], form % 2 ? "a" : "",
                         form / 2 ? "p" : "");
                for (int i = 0; i < 2; i++, turn++)
                    check_uniform(name, ns[turn % 5], ks[turn * 7 % 5], rows[turn % 6],
                                  turn % 11 ? MATRIX_RANDOM : MATRIX_LARGEST);
            }
    assert_int_equal(amx_emulated_faults, 0);
}

/* More rows than one block of rows has, more of K than one span of the copied activations. */
static void test_blocks(void **state) {
    (void)state;
    need_kernels("avx512");
    check(TYPE_Q4_1, 17, 1088, 259, MATRIX_RANDOM);
    check(TYPE_Q6_K, 33, 1536, 130, MATRIX_RANDOM);
    check(TYPE_Q4_0, 16, 2112, 256, MATRIX_RANDOM);
    check_uniform("u4g128a", 17, 2300, 256, MATRIX_RANDOM);
    check_uniform("u4g128", 33, 1800, 259, MATRIX_RANDOM);
    check_uniform("u4g64", 33, 2200, 250, MATRIX_RANDOM);
    check_uniform("u8grow", 33, 2200, 200, MATRIX_LARGEST);
    check_uniform("u8growa", 16, 2112, 256, MATRIX_LARGEST);
    check_uniform("u4grow", 40, 2300, 241, MATRIX_RANDOM);
    check(TYPE_Q4_0, 33, 4160, 128, MATRIX_RANDOM);
    check_uniform("u4g128a", 16, 4700, 120, MATRIX_RANDOM);
    check_uniform("u4growa", 33, 4200, 128, MATRIX_RANDOM);
    assert_int_equal(amx_emulated_faults, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_formats), cmocka_unit_test(test_uniform),
                                       cmocka_unit_test(test_blocks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
