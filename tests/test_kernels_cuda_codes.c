/* The codes of its rows that one CUDA kernel leaves for the next; skipped without a device.
 *   test_kernels_cuda_codes [PATTERN]: the tests with such names */
#include "support/gpu.h"

#include "kernels/kernels.h"
#include "numbers/pack.h"
#include "support/skip.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A launch of one row of k floats has the same bits with and without prepared codes. */
static void check_left(const char *name, const float *x, const void *codes, bool whole, const float *norm,
                       int64_t k) {
    enum { N = 40 };
    matrix m = matrix_open_uniform(name, N, k, MATRIX_RANDOM, 31);
    const view w = matrix_there(&m);
    uint32_t found[2][N]; /* bits of floats */
    float *y = device_new(sizeof found[0]);
    for (int i = 0; i < 2; i++) {
        OK(cuda->fill(y, 0xff, sizeof found[0], stream));
        const cuda_linear a = {.w = {w},
                               .n_w = 1,
                               .n_row = 1,
                               .x = x,
                               .ldx = k,
                               .norm = norm,
                               .eps = 1e-5f,
                               .codes = i ? codes : NULL,
                               .codes_whole = i && whole,
                               .y = {y},
                               .ldy = {N}};
        OK(cuda->linear(&a, stream));
        read_back(found[i], y, sizeof found[i]);
    }
    if (memcmp(found[0], found[1], sizeof found[0]))
        fail_msg("%s, rows of %d: codes that were left give other bits", name, (int)k);
    drop(y), drop(w.data);
    matrix_close(&m);
}

/* The products that take codes for such groups. */
static void check_takers(int64_t group, const float *x, const void *codes, bool whole, const float *norm,
                         int64_t k) {
    static const char *const takers[][5] = {{"u4g32", "u8g32a", "u3g32", "u2g32", "u5g32"},
                                            {"u4g64", "u8g64", "u3g64", "u2g64", "u6g64"},
                                            {"u4g128", "u8g128a", "u3g128", "u2g128", "u7g128"}};
    for (size_t i = 0; i < 5; i++)
        check_left(takers[group == 32 ? 0 : group == 64 ? 1 : 2][i], x, codes, whole, norm, k);
}

/* A product leaves its outputs: plain, added to something, gated; with a norm, and with a NaN. */
static void test_left(void **state) {
    (void)state;
    static const int64_t sizes[] = {32, 96, 1120, 4096, 14336}, groups[] = {32, 64, 128};
    const int64_t k = 320;
    for (size_t all = 0; all < 3 * 5 * sizeof sizes / sizeof *sizes; all++) {
        const size_t c = all / 3;
        const int64_t n = sizes[c / 5], group = groups[all % 3];
        const bool gated = c % 5 == 1, adds = c % 5 == 2, nan = c % 5 == 4;
        matrix m[2];
        view w[2];
        for (int i = 0; i < 2; i++) {
            m[i] = matrix_open_uniform("u4g32", n, k, MATRIX_RANDOM, 40 + (uint64_t)i);
            w[i] = matrix_there(&m[i]);
        }
        float *x = random_rows(k, c, 3), *norm = random_rows(n, 7, 2), *before = random_rows(n, 8, 3),
              *plain = malloc((size_t)n * sizeof(float));
        if (nan)
            before[n / 2] = NAN;
        float *x_there = device_copy(x, (size_t)k * 4), *y = device_copy(before, (size_t)n * 4);
        float *norm_there = c % 5 > 1 ? device_copy(norm, (size_t)n * 4) : NULL;
        void *codes = device_new(cuda->codes_bytes(n));
        OK(cuda->fill(codes, 0, cuda->codes_bytes(n), stream));
        cuda_linear a = {.w = {w[0], w[1]},
                         .n_w = gated ? 2 : 1,
                         .n_row = 1,
                         .x = x_there,
                         .ldx = k,
                         .gated = gated,
                         .adds = adds || nan,
                         .y = {y},
                         .ldy = {n},
                         .leaves = {codes, norm_there, group}};
        OK(cuda->linear(&a, stream));
        float *left = malloc((size_t)n * sizeof(float));
        read_back(left, y, (size_t)n * 4);
        check_takers(group, y, codes, false, norm_there, n);
        OK(cuda->to_device(y, before, (size_t)n * 4, stream));
        a.leaves.data = NULL;
        OK(cuda->linear(&a, stream));
        read_back(plain, y, (size_t)n * 4);
        assert_memory_equal(plain, left, (size_t)n * 4);
        free(x), free(norm), free(before), free(plain), free(left);
        drop(x_there), drop(y), drop(codes);
        if (norm_there)
            drop(norm_there);
        for (int i = 0; i < 2; i++) {
            drop(w[i].data);
            matrix_close(&m[i]);
        }
    }
}

/* A gated product with a prepared row leaves whole groups, if blocks have them: the same outputs, and their
 * codes. Sizes are of groups for all multiprocessors, some, one, and half a turn more. */
static void test_whole(void **state) {
    (void)state;
    cuda_device_info device;
    OK(cuda->device_open(0, &device));
    const int64_t k = 256, n_sm = device.n_sm, groups_of[] = {n_sm, n_sm - 20, 1, n_sm + n_sm / 2};
    for (int c = 0; c < 8; c++) {
        const int64_t group = c % 2 ? 64 : 128, n = groups_of[c / 2] * group;
        const char *const format = c % 2 ? "u4g64" : "u4g128";
        matrix first = matrix_open_uniform(format, k, k, MATRIX_RANDOM, 50), m[2];
        view w[3] = {matrix_there(&first)};
        for (int i = 0; i < 2; i++) {
            m[i] = matrix_open_uniform(format, n, k, MATRIX_RANDOM, 51 + (uint64_t)i);
            w[i + 1] = matrix_there(&m[i]);
        }
        float *x = random_rows(k, 4, 3), *x_there = device_copy(x, (size_t)k * 4);
        float *mid = device_new((size_t)k * 4), *y = device_new((size_t)n * 4);
        void *codes[2] = {device_new(cuda->codes_bytes(k)), device_new(cuda->codes_bytes(n))};
        OK(cuda->fill(codes[0], 0, cuda->codes_bytes(k), stream));
        OK(cuda->fill(codes[1], 0, cuda->codes_bytes(n), stream));
        const cuda_linear one = {.w = {w[0]},
                                 .n_w = 1,
                                 .n_row = 1,
                                 .x = x_there,
                                 .ldx = k,
                                 .y = {mid},
                                 .ldy = {k},
                                 .leaves = {codes[0], NULL, group}};
        cuda_linear two = {.w = {w[1], w[2]},
                           .n_w = 2,
                           .n_row = 1,
                           .x = mid,
                           .ldx = k,
                           .gated = true,
                           .codes = codes[0],
                           .y = {y},
                           .ldy = {n},
                           .leaves = {codes[1], NULL, group}};
        OK(cuda->linear(&one, stream));
        OK(cuda->linear(&two, stream));
        const bool whole = cuda->leaves_whole(&two);
        if (c < 2 && device.major >= 9)
            assert_true(whole);
        float *left = malloc((size_t)n * sizeof(float)), *plain = malloc((size_t)n * sizeof(float));
        read_back(left, y, (size_t)n * 4);
        check_takers(group, y, codes[1], whole, NULL, n);
        two.codes = NULL;
        two.leaves.data = NULL;
        OK(cuda->linear(&two, stream));
        read_back(plain, y, (size_t)n * 4);
        assert_memory_equal(plain, left, (size_t)n * 4);
        free(x), free(left), free(plain);
        drop(x_there), drop(mid), drop(y), drop(codes[0]), drop(codes[1]);
        for (int i = 0; i < 3; i++)
            drop(w[i].data);
        matrix_close(&first), matrix_close(&m[0]), matrix_close(&m[1]);
    }
}

/* Attention leaves codes, on the pages of one block and of several. */
static void test_attend_left(void **state) {
    (void)state;
    enum { HEADS = 4, D = 64, K = HEADS * D, PAGES = 4 };
    const size_t cache = (size_t)PAGES * CUDA_PAGE * K * 2, scratch_bytes = cuda->attend_scratch(1, HEADS, D);
    float *rows = random_rows(3 * K, 5, 1), *there = device_copy(rows, sizeof(float) * 3 * K);
    void *keys = device_new(cache), *values = device_new(cache), *scratch = device_new(scratch_bytes),
         *codes = device_new(cuda->codes_bytes(K));
    float *out = device_new(sizeof(float) * K);
    int32_t *pages = device_copy((const int32_t[]){0, 1, 2, 3}, sizeof(int32_t) * PAGES);
    int32_t *first = device_copy((const int32_t[]){0}, sizeof(int32_t));
    OK(cuda->fill(keys, 0, cache, stream));
    OK(cuda->fill(values, 0, cache, stream));
    OK(cuda->fill(scratch, 0, scratch_bytes, stream));
    OK(cuda->fill(codes, 0, cuda->codes_bytes(K), stream));
    for (int32_t i = 0; i < 9; i++) {
        const int32_t at = 5 + 100 * (i / 3);
        const int64_t group = 32 << i % 3;
        int32_t *position = device_copy(&at, sizeof at);
        const cuda_attend a = {
            .kv = {.k = keys, .v = values, .n_kv_head = HEADS, .d_head = D, .page = CUDA_PAGE * K},
            .q = there,
            .k = there + K,
            .v = there + 2 * K,
            .ldq = K,
            .ldk = K,
            .ldv = K,
            .out = out,
            .ldo = K,
            .n_row = 1,
            .n_head = HEADS,
            .position = position,
            .pages = pages,
            .first_page = first,
            .scale = 0.125f,
            .scratch = scratch,
            .leaves = {.data = codes, .group = group}};
        OK(cuda->attend(&a, stream));
        check_takers(group, out, codes, false, NULL, K);
        drop(position);
    }
    free(rows);
    drop(there), drop(keys), drop(values), drop(scratch), drop(codes), drop(out), drop(pages), drop(first);
}

/* ---- several rows ---- */

enum { MAX_ROWS = 16, TAKEN = 40 /* outputs of the product that takes codes */ };
static const int64_t left_rows[] = {2, 4, 5, 8, 11, MAX_ROWS};

/* A launch of several rows of k floats has the same bits with prepared codes, without, and row by row; and it
 * uses the prepared codes. */
static void check_rows(const view *w, const float *x, const void *codes, const float *norm, int64_t n_row) {
    enum { N = TAKEN };
    const int64_t k = w->k;
    const size_t bytes = (size_t)n_row * N * sizeof(float);
    uint32_t found[3][MAX_ROWS][N]; /* bits of floats */
    float *y = device_new(bytes);
    void *scratch = device_new(cuda->linear_scratch(n_row, k, false));
    for (int i = 0; i < 3; i++) {
        OK(cuda->fill(y, 0xff, bytes, stream));
        cuda_linear a = {.w = {*w},
                         .n_w = 1,
                         .n_row = i < 2 ? n_row : 1,
                         .x = x,
                         .ldx = k,
                         .norm = norm,
                         .eps = 1e-5f,
                         .codes = i == 1 ? codes : NULL,
                         .y = {y},
                         .ldy = {N},
                         .scratch = scratch};
        for (int64_t row = 0; row < n_row; row += a.n_row, a.x += a.n_row * k, a.y[0] += a.n_row * N)
            OK(cuda->linear(&a, stream));
        read_back(found[i], y, bytes);
    }
    for (int i = 1; i < 3; i++)
        if (memcmp(found[0], found[i], bytes) != 0)
            fail_msg("%d rows of %d: %s", (int)n_row, (int)k,
                     i == 1 ? "codes that were left give other bits" : "one row has other bits");
    drop(y), drop(scratch);
}

/* A product leaves n outputs of each row: plain, gated, added to something, with a norm, and with a NaN. */
static void check_rows_left(const view w[2], const view *taker, int64_t n_row, int how) {
    const bool gated = how == 1, adds = how == 2, nan = how == 4;
    const int64_t n = w[0].n, k = w[0].k;
    const size_t bytes = (size_t)(n_row * n) * sizeof(float);
    float *x = random_rows(n_row * k, 9, 3), *norm = random_rows(n, 7, 2),
          *before = random_rows(n_row * n, 8, 3), *plain = malloc(bytes), *left = malloc(bytes);
    if (nan)
        before[n + n / 2] = NAN;
    float *x_there = device_copy(x, (size_t)(n_row * k) * 4), *y = device_copy(before, bytes);
    float *norm_there = how > 1 ? device_copy(norm, (size_t)n * 4) : NULL;
    void *codes = device_new(cuda->codes_bytes(n)),
         *scratch = device_new(cuda->linear_scratch(n_row, k, false));
    OK(cuda->fill(codes, 0, cuda->codes_bytes(n), stream));
    cuda_linear a = {.w = {w[0], w[1]},
                     .n_w = gated ? 2 : 1,
                     .n_row = n_row,
                     .x = x_there,
                     .ldx = k,
                     .gated = gated,
                     .adds = adds || nan,
                     .y = {y},
                     .ldy = {n},
                     .scratch = scratch,
                     .leaves = {codes, norm_there, 32}};
    OK(cuda->linear(&a, stream));
    read_back(left, y, bytes);
    check_rows(taker, y, codes, norm_there, n_row);
    OK(cuda->to_device(y, before, bytes, stream));
    a.leaves.data = NULL;
    OK(cuda->linear(&a, stream));
    read_back(plain, y, bytes);
    assert_memory_equal(plain, left, bytes);
    free(x), free(norm), free(before), free(plain), free(left);
    drop(x_there), drop(y), drop(codes), drop(scratch);
    if (norm_there)
        drop(norm_there);
}

/* Rows that fit a block's shared memory, and those that only a pair of blocks holds. */
static void test_rows_left(void **state) {
    (void)state;
    static const int64_t shapes[][2] = {{256, 256}, {512, 1024}, {256, 14336}, {14336, 512}, {512, 4096}};
    view w = {.n = 256, .k = 256};
    assert_true(pack_from_name("u4g32", w.k, &w.format));
    if (cuda->left_rows(&w) == 1)
        skip_because("several rows leave nothing on this device");
    assert_int_equal(cuda->left_rows(&w), MAX_ROWS);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const int64_t k = shapes[i][0], n = shapes[i][1];
        matrix m[3] = {matrix_open_uniform("u4g32", n, k, MATRIX_RANDOM, 40),
                       matrix_open_uniform("u4g32", n, k, MATRIX_RANDOM, 41),
                       matrix_open_uniform("u4g32", TAKEN, n, MATRIX_RANDOM, 31)};
        const view w_there[3] = {matrix_there(&m[0]), matrix_there(&m[1]), matrix_there(&m[2])};
        for (size_t r = 0; r < sizeof left_rows / sizeof *left_rows; r++)
            for (int how = 0; how < 5; how++)
                check_rows_left(w_there, &w_there[2], left_rows[r], how);
        for (int e = 0; e < 3; e++) {
            drop(w_there[e].data);
            matrix_close(&m[e]);
        }
    }
}

/* No codes are left for other groups, for a width that is no multiple of 256, or for more rows. */
static void test_rows_not_left(void **state) {
    (void)state;
    static const char *const others[] = {"u4g64", "u4g128", "u8g32", "u3g32", "u4g32a"};
    view w = {.n = 256, .k = 256};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        assert_true(pack_from_name(others[i], w.k, &w.format));
        assert_int_equal(cuda->left_rows(&w), 1);
    }
    w.k = 320;
    assert_true(pack_from_name("u4g32", w.k, &w.format));
    assert_int_equal(cuda->left_rows(&w), 1);
}

/* Attention of several sequences leaves the codes of their rows. */
static void test_attend_rows_left(void **state) {
    (void)state;
    enum { HEADS = 4, D = 64, K = HEADS * D, PAGES = 4 };
    const size_t cache = (size_t)MAX_ROWS * PAGES * CUDA_PAGE * K * 2,
                 scratch_bytes = cuda->attend_scratch(MAX_ROWS, HEADS, D);
    float *rows = random_rows(3 * MAX_ROWS * K, 5, 1),
          *there = device_copy(rows, sizeof(float) * 3 * MAX_ROWS * K);
    void *keys = device_new(cache), *values = device_new(cache), *scratch = device_new(scratch_bytes),
         *codes = device_new(cuda->codes_bytes(K));
    float *out = device_new(sizeof(float) * MAX_ROWS * K);
    int32_t page[MAX_ROWS * PAGES], first_of[MAX_ROWS];
    for (int32_t i = 0; i < MAX_ROWS * PAGES; i++)
        page[i] = i;
    for (int32_t i = 0; i < MAX_ROWS; i++)
        first_of[i] = i * PAGES;
    int32_t *pages = device_copy(page, sizeof page), *first = device_copy(first_of, sizeof first_of);
    matrix m = matrix_open_uniform("u4g32", TAKEN, K, MATRIX_RANDOM, 31);
    const view w = matrix_there(&m);
    OK(cuda->fill(keys, 0, cache, stream));
    OK(cuda->fill(values, 0, cache, stream));
    OK(cuda->fill(scratch, 0, scratch_bytes, stream));
    for (size_t r = 0; cuda->left_rows(&w) == MAX_ROWS && r < 3 * (sizeof left_rows / sizeof *left_rows);
         r++) {
        int32_t at[MAX_ROWS];
        for (int32_t i = 0; i < MAX_ROWS; i++)
            at[i] = 5 + 100 * (int32_t)(r % 3) + i % 3;
        int32_t *position = device_copy(at, sizeof at);
        const cuda_attend a = {
            .kv = {.k = keys, .v = values, .n_kv_head = HEADS, .d_head = D, .page = CUDA_PAGE * K},
            .q = there,
            .k = there + MAX_ROWS * K,
            .v = there + 2 * MAX_ROWS * K,
            .ldq = K,
            .ldk = K,
            .ldv = K,
            .out = out,
            .ldo = K,
            .n_row = left_rows[r / 3],
            .n_head = HEADS,
            .position = position,
            .pages = pages,
            .first_page = first,
            .scale = 0.125f,
            .scratch = scratch,
            .leaves = {.data = codes, .group = 32}};
        OK(cuda->attend(&a, stream));
        check_rows(&w, out, codes, NULL, a.n_row);
        drop(position);
    }
    drop(w.data);
    matrix_close(&m);
    free(rows);
    drop(there), drop(keys), drop(values), drop(scratch), drop(codes), drop(out), drop(pages), drop(first);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_left),          cmocka_unit_test(test_whole),
        cmocka_unit_test(test_attend_left),   cmocka_unit_test(test_rows_left),
        cmocka_unit_test(test_rows_not_left), cmocka_unit_test(test_attend_rows_left),
    };
    if (gpu_open(argc, argv))
        return cmocka_run_group_tests(tests, NULL, NULL);
    return gpu_missing();
}
