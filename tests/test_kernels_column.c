/* Columns of packed matrices, and outliers of rows, on every instruction set: the bits of pack_read_row for
 * every format, and the same outliers as by their definition. */
#include "support/guard.h"
#include "support/isas.h"
#include "support/matrix.h"

#include "kernels/kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void check_columns(const matrix *m, const char *name) {
    const int64_t n = m->view.n, k = m->view.k, from = 16;
    float *rows = malloc((size_t)(n * k) * sizeof *rows);
    assert_non_null(rows);
    for (int64_t r = 0; r < n; r++)
        pack_read_row(&m->view, r, rows + r * k);
    EACH_OPS(t)
    for (int64_t c = 0; c < k; c++) {
        guarded out = guard_open((size_t)(n - from) * sizeof(float));
        t->column(&m->view, c, from, n, out.data);
        for (int64_t r = from; r < n; r++)
            if (memcmp((float *)out.data + r - from, &rows[r * k + c], sizeof(float)))
                fail_msg("%s, %s: row %d, column %d: expected %a, found %a", name, t->isa, (int)r, (int)c,
                         (double)rows[r * k + c], (double)((float *)out.data)[r - from]);
        guard_close(&out);
    }
    free(rows);
}

static void columns(void **state) {
    (void)state;
    static const char *const uniform[] = {"u2g16", "u3g32a", "u4g64",  "u5g128a", "u6g64",
                                          "u7g32", "u8grow", "u4g64t", "u3g32p"};
    for (int type = 0; type < TYPE_COUNT; type++) {
        pack_format f;
        if (!pack_choose((type_id)type, 512, &f) || f.layout != PACK_TILE)
            continue;
        matrix m = matrix_open((type_id)type, 37, 512, MATRIX_RANDOM, 5 + (uint64_t)type);
        check_columns(&m, type_get((type_id)type)->name);
        matrix_close(&m);
    }
    for (size_t i = 0; i < sizeof uniform / sizeof *uniform; i++) {
        matrix m = matrix_open_uniform(uniform[i], 37, 352, MATRIX_RANDOM, 50 + i);
        check_columns(&m, uniform[i]);
        matrix_close(&m);
    }
}

static void check_outliers(const float *x, int64_t k, float share, int n_expected, const int32_t *at) {
    EACH_OPS(t) {
        outlier found[ACT_OUTLIERS];
        assert_int_equal(t->outliers(x, k, share, found), n_expected);
        for (int i = 0; i < n_expected; i++) {
            assert_int_equal(found[i].at, at[i]);
            assert_memory_equal(&found[i].value, &x[at[i]], sizeof *x);
        }
    }
}

static void outliers(void **state) {
    (void)state;
    enum { K = 133 };
    float x[K];
    for (int i = 0; i < K; i++)
        x[i] = (float)(i % 7 - 3);
    check_outliers(x, K, 0.3f, 0, NULL);
    x[130] = -300; /* after the last whole vector */
    x[17] = 260;
    check_outliers(x, K, 0.3f, 2, (int32_t[]){17, 130});
    check_outliers(x, K, 0.5f, 1, (int32_t[]){130});
    check_outliers(x, 128, 0.5f, 1, (int32_t[]){17});
    x[40] = NAN;
    check_outliers(x, K, 0.3f, 0, NULL);
    memset(x, 0, sizeof x);
    check_outliers(x, K, 0.3f, 0, NULL);
    x[3] = 1e-3f;
    check_outliers(x, K, 0.3f, 1, (int32_t[]){3});
}

/* The rules for 8 and for 4 bits: values beyond 4 times the root mean square are outliers with 4 bits. */
static void outliers_by_bits(void **state) {
    (void)state;
    enum { K = 576 };
    float x[K], others[K];
    outlier found[ACT_OUTLIERS];
    for (int i = 0; i < K; i++)
        x[i] = i % 2 ? 1 : -1;
    x[9] = 6;
    x[300] = -5;
    EACH_OPS(t) {
        assert_int_equal(act_extract_outliers(t, 8, x, K, others, found), 0);
        assert_int_equal(act_extract_outliers(t, 4, x, K, others, found), 2);
        assert_int_equal(found[0].at, 9);
        assert_int_equal(found[1].at, 300);
        assert_true(others[9] == 0 && others[300] == 0 && others[8] == -1);
    }
    for (int i = 0; i < K; i += 30) /* more than the maximum: the first ones are taken */
        x[i] = 9;
    EACH_OPS(t) {
        assert_int_equal(act_extract_outliers(t, 4, x, K, others, found), ACT_OUTLIERS);
        assert_int_equal(found[ACT_OUTLIERS - 1].at, 30 * (ACT_OUTLIERS - 1));
    }
    x[40] = 1e6f;
    EACH_OPS(t)
    assert_true(act_extract_outliers(t, 8, x, K, others, found) == 1 && found[0].at == 40);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(columns), cmocka_unit_test(outliers),
                                       cmocka_unit_test(outliers_by_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
