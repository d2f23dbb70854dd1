/* What one CUDA kernel leaves of a row for the next; skipped without a device.
 *   test_kernels_cuda_codes [PATTERN]: the tests with such names */
#include "support/gpu.h"

#include "kernels/kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A launch of one row of k floats, with or without what another left of them, has the same bits. */
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

/* Who takes what is left for such groups. */
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

/* A gated product whose row was left too leaves whole groups, where blocks have them: the same outputs, and
 * the codes of them. Sizes are of groups for all multiprocessors, some, one, and half a turn more. */
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

/* Attention does, on one block's pages and on several's. */
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

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_left),
        cmocka_unit_test(test_whole),
        cmocka_unit_test(test_attend_left),
    };
    if (gpu_open(argc, argv))
        return cmocka_run_group_tests(tests, NULL, NULL);
    return gpu_missing();
}
