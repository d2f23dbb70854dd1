/* Packing loses nothing: every type, odd shapes, read back row by row and compared with the file type's own
 * dequantiser, bit by bit; packed bytes end at a forbidden page. */
#include "support/matrix.h"

#include "quant/tile.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void check_matrix(type_id type, int64_t n, int64_t k, matrix_kind kind) {
    matrix m = matrix_open(type, n, k, kind, (uint64_t)(type * 1000 + n + k));
    float *expected = malloc((size_t)k * sizeof(float));
    guarded found = guard_open((size_t)k * sizeof(float));
    for (int64_t r = 0; r < n; r++) {
        matrix_row(&m, r, expected);
        pack_read_row(&m.view, r, found.data);
        for (int64_t i = 0; i < k; i++)
            if (memcmp((float *)found.data + i, expected + i, sizeof(float)))
                fail_msg("%s %dx%d row %d element %d: %a, expected %a", type_get(type)->name, (int)n, (int)k,
                         (int)r, (int)i, (double)((float *)found.data)[i], (double)expected[i]);
    }
    guard_close(&found);
    free(expected);
    matrix_close(&m);
}

static void test_round_trip(void **state) {
    (void)state;
    static const int64_t ns[] = {1, 15, 16, 17, 48}, ks[] = {1, 2, 8, 9, 15, 18, 64};
    int n_type = 0;
    for (int id = 0; id < TYPE_COUNT; id++) {
        const type_info *t = type_get((type_id)id);
        pack_format f;
        if (!pack_choose((type_id)id, t->block_elems, &f)) {
            assert_null(t->dequantize);
            continue;
        }
        n_type++;
        for (size_t i = 0; i < sizeof ns / sizeof *ns; i++)
            for (size_t j = 0; j < sizeof ks / sizeof *ks; j++)
                for (int kind = MATRIX_RANDOM; kind <= MATRIX_TINY; kind++)
                    if (t->block_elems < 256 || ks[j] <= 9)
                        check_matrix((type_id)id, ns[i], ks[j] * t->block_elems, (matrix_kind)kind);
    }
    assert_true(n_type >= 18);
}

static void test_choose(void **state) {
    (void)state;
    pack_format f;
    assert_false(pack_choose(TYPE_I32, 64, &f));
    assert_false(pack_choose(TYPE_BOOL, 64, &f));
    assert_false(pack_choose(TYPE_Q4_0, 33, &f));
    assert_false(pack_choose(TYPE_Q4_K, 128, &f));
    assert_false(pack_choose(TYPE_F32, 0, &f));
    assert_false(pack_choose(TYPE_COUNT, 64, &f));
    assert_true(pack_choose(TYPE_F8_E4M3, 3, &f));
    assert_int_equal(f.layout, PACK_ROWS);
    assert_int_equal(f.type, TYPE_BF16);
}

static void test_sizes(void **state) {
    (void)state;
    pack_format f;
    uint64_t bytes;
    assert_true(pack_choose(TYPE_Q4_1, 576, &f));
    assert_true(pack_bytes(&f, 1536, 576, &bytes)); /* 4 bits and 2 halves for 32: as in the file */
    assert_int_equal(bytes, 1536 * 576 / 32 * 20);
    assert_true(pack_choose(TYPE_Q8_0, 640, &f));
    assert_true(pack_bytes(&f, 262144, 640, &bytes));
    assert_int_equal(bytes, 262144 * 640 / 32 * 34);
    assert_true(pack_choose(TYPE_Q6_K, 2048, &f));
    assert_true(pack_bytes(&f, 640, 2048, &bytes));
    assert_int_equal(bytes, 640 / 16 * 2048 / 256 * (16 * 210 + 32)); /* its scales are padded to 64 bytes */
    assert_false(pack_bytes(&f, INT64_MAX, 2048, &bytes));
    assert_false(pack_bytes(&f, 16, INT64_MAX, &bytes));
    assert_false(pack_bytes(&f, -1, 256, &bytes));
    assert_false(pack_bytes(&f, INT64_C(1) << 50, INT64_C(1) << 30, &bytes));
}

/* The parts rule, written down once more in the plainest way: field f of line l is quad l + 2wf. */
static void test_layout(void **state) {
    (void)state;
    matrix m = matrix_open(TYPE_Q8_0, 16, 64, MATRIX_RANDOM, 5);
    const uint8_t *line = m.view.data;
    for (int r = 0; r < 16; r++)
        for (int k = 0; k < 64; k++)
            assert_int_equal(line[k / 4 * 64 + 4 * r + k % 4],
                             m.raw[(size_t)r * m.raw_row_bytes + (size_t)(k / 32 * 34 + 2 + k % 32)] ^ 0x80);
    matrix_close(&m);
    m = matrix_open(TYPE_Q4_0, 16, 64, MATRIX_RANDOM, 6);
    line = m.view.data;
    for (int r = 0; r < 16; r++)
        for (int k = 0; k < 64; k++) {
            const int quad = k / 4, field = quad / 8, byte = line[quad % 8 * 64 + 4 * r + k % 4];
            const uint8_t *block = m.raw + (size_t)r * m.raw_row_bytes + (size_t)(k / 32 * 18);
            const int j = k % 32;
            assert_int_equal(byte >> 4 * field & 15, j < 16 ? block[2 + j] & 15 : block[2 + j - 16] >> 4);
        }
    matrix_close(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_choose),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_layout),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
