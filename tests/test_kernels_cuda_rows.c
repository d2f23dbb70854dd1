/* The CUDA kernels for rows (norms, embeddings, elementwise ops, sampling) against the scalar
 * reference; skipped without a device.
 *   test_kernels_cuda_rows [PATTERN]: the tests with such names */
#include "support/gpu.h"

#include "base/num.h"
#include "kernels/kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void check_close(const float *found, const float *expected, int64_t n, float bound, const char *what) {
    float max = 0;
    for (int64_t i = 0; i < n; i++)
        max = fmaxf(max, fabsf(expected[i]));
    for (int64_t i = 0; i < n; i++)
        if (!(fabsf(found[i] - expected[i]) <= bound * max))
            fail_msg("%s, element %d: %.9g, expected %.9g", what, (int)i, (double)found[i],
                     (double)expected[i]);
}

static void test_norm(void **state) {
    (void)state;
    const kernel_table *t = kernels_table_for("ref");
    for (int i = 0; i < 8; i++) {
        const int64_t k = i & 1 ? 576 : 4096, groups = i & 2 ? 8 : 1;
        const bool layer = i & 4;
        float *x = random_rows(3 * k, (uint64_t)i + 1, 4), *w = random_rows(k, 5, 1),
              *b = layer ? random_rows(k, 6, 1) : NULL;
        float *expected = malloc((size_t)(3 * k) * sizeof(float)),
              *found = malloc((size_t)(3 * k) * sizeof(float));
        float *there = device_copy(x, (size_t)(3 * k) * sizeof(float)),
              *w_there = device_copy(w, (size_t)k * sizeof(float));
        float *b_there = b ? device_copy(b, (size_t)k * sizeof(float)) : NULL;
        for (int r = 0; r < 3; r++)
            t->norm(layer ? NORM_LAYER : NORM_RMS, x + r * k, w, b, expected + r * k, k, groups, i & 1,
                    1e-5f);
        const cuda_norm a = {layer ? NORM_LAYER : NORM_RMS,
                             there,
                             w_there,
                             b_there,
                             there,
                             3,
                             k,
                             k,
                             k,
                             groups,
                             i & 1,
                             1e-5f,
                             NULL,
                             NULL,
                             NULL,
                             NULL,
                             0,
                             0,
                             0};
        OK(cuda->norm(&a, stream));
        read_back(found, there, (size_t)(3 * k) * sizeof(float));
        check_close(found, expected, 3 * k, 2e-6f, "norm");
        drop(there), drop(w_there);
        if (b)
            drop(b_there);
        free(x), free(w), free(b), free(expected), free(found);
    }
}

/* Rows look up table rows, some at an offset, and are stored further apart; then the sum. */
static void test_embed(void **state) {
    (void)state;
    enum { N = 50, K = 512, LD = K + 64, N_ROW = 3, OFFSET = 5 };
    static const char *const names[] = {"u4g32", "u6g128a", "u3grow", "u5g32t", "u2g16"};
    static const type_id types[] = {TYPE_Q4_0, TYPE_Q4_1, TYPE_Q5_0, TYPE_Q4_K, TYPE_Q5_K, TYPE_Q6_K,
                                    TYPE_F16,  TYPE_BF16, TYPE_F32,  TYPE_Q8_0, TYPE_Q2_K, TYPE_Q3_K};
    for (size_t i = 0; i < NUM_COUNT(names) + NUM_COUNT(types); i++) {
        matrix m = i < NUM_COUNT(names)
                       ? matrix_open_uniform(names[i], N, K, MATRIX_RANDOM, i + 1)
                       : matrix_open(types[i - NUM_COUNT(names)], N, K, MATRIX_RANDOM, i + 1);
        const int32_t rows[N_ROW] = {-OFFSET, N - 1 - OFFSET, 17};
        static float expected[N_ROW * LD], found[N_ROW * LD];
        const view w = matrix_there(&m);
        int32_t *there = device_copy(rows, sizeof rows);
        float *out = device_new(sizeof found), row[K];
        const kernel_table *t = kernels_table_for("ref");
        memset(expected, 0, sizeof expected);
        OK(cuda->fill(out, 0, sizeof found, stream));
        for (int adds = 0; adds < 2; adds++) {
            const cuda_embed a = {w, there, OFFSET, 0, K, adds ? 0.3f : 1.7f, adds, out, LD, N_ROW};
            OK(cuda->embed(&a, stream));
            for (int r = 0; r < N_ROW; r++) {
                pack_read_row(&m.view, rows[r] + OFFSET, row);
                if (adds)
                    t->add(expected + r * LD, row, a.factor, expected + r * LD, K);
                else
                    t->scale(row, a.factor, expected + r * LD, K);
            }
        }
        read_back(found, out, sizeof found);
        for (int c = 0; c < N_ROW * LD; c++)
            if (found[c] != expected[c])
                fail_msg("embedding %d, row %d column %d: %a, expected %a", (int)i, c / LD, c % LD,
                         (double)found[c], (double)expected[c]);
        drop(w.data), drop(there), drop(out);
        matrix_close(&m);
    }
}

static void test_each(void **state) {
    (void)state;
    enum { N = 300, LD = 320, ROWS = 3 };
    static const cuda_each cases[] = {
        {.kind = OP_ACT, .act = ACT_GELU_TANH}, {.kind = OP_GATE, .act = ACT_SILU},
        {.kind = OP_ADD, .value = 0.75f},       {.kind = OP_SCALE, .value = -3},
        {.kind = OP_CLAMP, .value = 0.5f},      {.kind = OP_SOFTCAP, .value = 0.8f}};
    const kernel_table *t = kernels_table_for("ref");
    float *x = random_rows(ROWS * LD, 1, 1), *y = random_rows(ROWS * LD, 2, 1);
    float *x_there = device_copy(x, sizeof(float) * ROWS * LD),
          *y_there = device_copy(y, sizeof(float) * ROWS * LD);
    float *out = device_new(sizeof(float) * ROWS * LD), found[ROWS * LD], expected[N];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cuda_each a = cases[i];
        a.x = x_there, a.y = y_there, a.out = out, a.n_row = ROWS, a.n = N;
        a.ldx = a.ldy = a.ldo = LD;
        OK(cuda->each(&a, stream));
        read_back(found, out, sizeof found);
        for (int64_t at = 0; at < ROWS * LD; at += LD) {
            switch (a.kind) {
            case OP_ACT: t->act(a.act, x + at, expected, N); break;
            case OP_GATE: t->gate(a.act, x + at, y + at, expected, N); break;
            case OP_ADD: t->add(x + at, y + at, a.value, expected, N); break;
            case OP_SCALE: t->scale(x + at, a.value, expected, N); break;
            case OP_CLAMP: t->clamp(x + at, a.value, expected, N); break;
            default: t->softcap(x + at, a.value, expected, N);
            }
            for (int n = 0; n < N; n++)
                if (!(fabsf(found[at + n] - expected[n]) <= 1e-6f))
                    fail_msg("op %d, element %d: %g, expected %g", (int)a.kind, n, (double)found[at + n],
                             (double)expected[n]);
        }
    }
    drop(x_there), drop(y_there), drop(out);
    free(x), free(y);
}

/* A sum that the sigmoid of a product weighs, and the total that it is added to, against sums in double. The
 * codes that one row leaves give a product the bits of the row itself. */
static void check_weighed(type_id type, int64_t k, int64_t n_row) {
    enum { N = 512, ROWS = 3 };
    matrix m = matrix_open(type, 1, k, MATRIX_RANDOM, 7),
           next = matrix_open(TYPE_Q4_0, 48, N, MATRIX_RANDOM, 8);
    float *of[4], *there[4], *w = malloc((size_t)k * sizeof *w), out[ROWS * N], total[ROWS * N], is[2][48];
    matrix_row(&m, 0, w);
    for (int i = 0; i < 4; i++) { /* x, y, what `total` is before, the product's input */
        const int64_t n = ROWS * (i == 3 ? k : N);
        of[i] = random_rows(n, 21 + (uint64_t)i, 1);
        there[i] = device_copy(of[i], (size_t)n * sizeof(float));
    }
    cuda_codes left = {device_new(cuda->codes_bytes(N)), NULL, 32};
    OK(cuda->fill(left.data, 0, cuda->codes_bytes(N), stream));
    cuda_each a = {.kind = OP_ADD, .value = 1, .x = there[0], .y = there[1], .z = there[3], .out = there[0]};
    a.by = matrix_there(&m);
    a.total = there[2];
    a.n_row = n_row, a.n = N;
    a.ldx = a.ldy = a.ldo = a.ldt = N, a.ldz = k;
    a.leaves = n_row == 1 ? left : (cuda_codes){0};
    OK(cuda->each(&a, stream));
    read_back(out, there[0], (size_t)(n_row * N) * sizeof *out);
    read_back(total, there[2], (size_t)(n_row * N) * sizeof *total);
    for (int64_t r = 0; r < n_row; r++) {
        double sum = 0;
        for (int64_t i = 0; i < k; i++)
            sum += (double)w[i] * (double)of[3][r * k + i];
        for (int64_t i = r * N; i < (r + 1) * N; i++) {
            const double v = (double)of[0][i] + (double)of[1][i] / (1 + exp(-sum));
            if (!(fabs((double)out[i] - v) <= 2e-6) ||
                !(fabs((double)total[i] - v - (double)of[2][i]) <= 2e-6))
                fail_msg("k %d, row %d: %.9g and %.9g, expected %.9g and %.9g", (int)k, (int)r,
                         (double)out[i], (double)total[i], v, v + (double)of[2][i]);
        }
    }
    cuda_linear product = {.n_w = 1, .w = {matrix_there(&next)}, .n_row = 1, .x = there[2], .ldx = N};
    product.y[0] = device_new(sizeof is[0]);
    product.ldy[0] = 48;
    product.scratch = device_new(cuda->linear_scratch(1, N, false));
    for (int i = 0; i < 2 && n_row == 1; i++) {
        product.codes = i ? left.data : NULL;
        OK(cuda->linear(&product, stream));
        read_back(is[i], product.y[0], sizeof is[i]);
    }
    if (n_row == 1)
        assert_memory_equal(is[0], is[1], sizeof is[0]);
    for (int i = 0; i < 4; i++) {
        drop(there[i]);
        free(of[i]);
    }
    drop(left.data), drop(a.by.data), drop(product.w[0].data), drop(product.y[0]), drop(product.scratch);
    matrix_close(&m), matrix_close(&next);
    free(w);
}
static void test_weighed(void **state) {
    (void)state;
    static const type_id types[] = {TYPE_F32, TYPE_F16, TYPE_BF16};
    for (int i = 0; i < 3; i++) {
        check_weighed(types[i], 2048, 1);
        check_weighed(types[i], 2880, 1);
        check_weighed(types[i], 96, 3);
    }
}

/* Few rows, then many, with one scratch: the counters of the many are zero. */
static void test_sample_sizes(void **state) {
    (void)state;
    enum { VOCAB = 5000, ROWS = 200, TOP = 40 };
    static const int rows[] = {3, 64, 65, ROWS, 1, 130};
    float *logits = random_rows(ROWS * VOCAB, 15, 20);
    void *there = device_copy(logits, (size_t)(ROWS * VOCAB) * 4);
    void *scratch = device_new(cuda->sample_scratch(ROWS));
    int32_t *ids = device_new((size_t)ROWS * TOP * 4), found[ROWS * TOP];
    float *values = device_new((size_t)ROWS * TOP * 4);
    OK(cuda->fill(scratch, 0, cuda->sample_scratch(ROWS), stream));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const cuda_sample a = {.logits = there,
                               .n_row = rows[i],
                               .ld = VOCAB,
                               .n_vocab = VOCAB,
                               .top = TOP,
                               .top_ids = ids,
                               .top_logits = values,
                               .scratch = scratch};
        OK(cuda->sample(&a, stream));
        read_back(found, ids, (size_t)rows[i] * TOP * 4);
        for (int r = 0; r < rows[i]; r++) {
            int best = 0;
            for (int v = 1; v < VOCAB; v++)
                best = logits[r * VOCAB + v] > logits[r * VOCAB + best] ? v : best;
            if (found[r * TOP] != best)
                fail_msg("row %d of %d: token %d instead of %d", r, rows[i], (int)found[r * TOP], best);
        }
    }
    drop(there), drop(scratch), drop(ids), drop(values);
    free(logits);
}

static void test_sample(void **state) {
    (void)state;
    enum { VOCAB = 262208 /* Gemma 3 from 4B on */, ROWS = 3, TOP = 40 };
    float *logits = random_rows(ROWS * VOCAB, 12, 20);
    logits[777] = logits[40000] = 30; /* the first of two equals */
    logits[VOCAB + 3] = NAN;
    logits[2 * VOCAB + VOCAB - 1] = 21;
    void *there = device_copy(logits, (size_t)(ROWS * VOCAB) * 4);
    int32_t *ids = device_new((size_t)ROWS * TOP * 4);
    float *values = device_new((size_t)ROWS * TOP * 4);
    void *scratch = device_new(cuda->sample_scratch(ROWS));
    OK(cuda->fill(scratch, 0, cuda->sample_scratch(ROWS), stream));
    cuda_sample a = {.logits = there,
                     .n_row = ROWS,
                     .ld = VOCAB,
                     .n_vocab = VOCAB,
                     .top = 1,
                     .top_ids = ids,
                     .top_logits = values,
                     .scratch = scratch};
    int32_t found[ROWS], found_ids[ROWS * TOP];
    float found_values[ROWS * TOP];
    OK(cuda->sample(&a, stream));
    read_back(found, ids, sizeof found);
    assert_int_equal(found[0], 777);
    assert_int_equal(found[2], VOCAB - 1);
    a.top = TOP;
    for (int turn = 0; turn < 2; turn++) { /* the counters are ready again */
        OK(cuda->sample(&a, stream));
        read_back(found_ids, ids, sizeof found_ids);
        read_back(found_values, values, sizeof found_values);
        for (int r = 0; r < ROWS; r++) {
            for (int i = 0; i < TOP; i++) {
                const int32_t id = found_ids[r * TOP + i];
                int larger = 0;
                assert_true(logits[r * VOCAB + id] == found_values[r * TOP + i]);
                for (int v = 0; v < VOCAB; v++)
                    larger += logits[r * VOCAB + v] > logits[r * VOCAB + id] ||
                              (logits[r * VOCAB + v] == logits[r * VOCAB + id] && v < id);
                assert_int_equal(larger, i);
            }
        }
        assert_int_equal(found_ids[0], 777);
    }
    free(logits);
    drop(there), drop(ids), drop(values), drop(scratch);
}

/* Changes of random lists, before the largest are found: the tokens and the bits of the sampler's. */
static void test_changes(void **state) {
    (void)state;
    enum { VOCAB = 50257, ROWS = 9, TOP = 40, MAX_CHANGES = 3000 };
    float *logits = random_rows(ROWS * VOCAB, 21, 12), values[ROWS * TOP];
    logit_row rows[ROWS];
    logit_change *list = malloc((size_t)ROWS * MAX_CHANGES * sizeof *list);
    int32_t ids[ROWS * TOP], n_all = 0;
    logits[VOCAB + 5] = NAN, logits[6] = INFINITY, logits[7] = -INFINITY;
    for (int r = 0; r < ROWS; r++) {
        static const float repeat[] = {1, 1.3f, 0.8f};
        const int n = r == 0 ? 0 : r == 1 ? 1 : r * r * 37 % MAX_CHANGES + 40;
        rows[r] = (logit_row){n_all, n, repeat[r % 3], (float)(r % 4) * 0.37f, r % 2 ? 0.61f : -0.2f};
        for (int i = 0; i < n; i++) {
            const int32_t id = (int32_t)(((int64_t)i * 7919 + r) % VOCAB);
            list[n_all++] = (logit_change){id, i % 3,
                                           i % 5    ? 0
                                           : i % 35 ? 11.7f / (float)(i + 1)
                                                    : -INFINITY};
            logits[(int64_t)r * VOCAB + id] += i % 2 ? 9 : 0; /* among the largest, before */
        }
    }
    void *there = device_copy(logits, (size_t)(ROWS * VOCAB) * 4),
         *rows_there = device_copy(rows, sizeof rows),
         *list_there = device_copy(list, (size_t)n_all * sizeof *list);
    int32_t *ids_there = device_new(sizeof ids);
    float *values_there = device_new(sizeof values);
    void *scratch = device_new(cuda->sample_scratch(ROWS));
    OK(cuda->fill(scratch, 0, cuda->sample_scratch(ROWS), stream));
    cuda_sample a = {.logits = there,
                     .n_row = ROWS,
                     .ld = VOCAB,
                     .n_vocab = VOCAB,
                     .rows = rows_there,
                     .changes = list_there,
                     .top_ids = ids_there,
                     .top_logits = values_there,
                     .scratch = scratch};
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < rows[r].n; i++) {
            const logit_change *c = &list[rows[r].first + i];
            float *x = &logits[(int64_t)r * VOCAB + c->token];
            *x = logit_changed(*x, c, &rows[r]);
        }
    for (a.top = TOP; a.top >= 1; a.top -= TOP - 1) {
        OK(cuda->sample(&a, stream));
        read_back(ids, ids_there, sizeof ids);
        read_back(values, values_there, sizeof values);
        for (int r = 0; r < ROWS; r++)
            for (int i = 0; i < a.top; i++) {
                const float *x = logits + (int64_t)r * VOCAB;
                const int32_t id = ids[r * a.top + i];
                int larger = 0;
                assert_memory_equal(&x[id], &values[r * a.top + i], 4);
                for (int v = 0; v < VOCAB; v++)
                    larger += x[v] > x[id] || (x[v] == x[id] && v < id);
                assert_int_equal(larger, i);
            }
    }
    free(logits), free(list);
    drop(there), drop(rows_there), drop(list_there), drop(ids_there), drop(values_there);
    drop(scratch);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_norm),    cmocka_unit_test(test_embed),  cmocka_unit_test(test_each),
        cmocka_unit_test(test_weighed), cmocka_unit_test(test_sample), cmocka_unit_test(test_sample_sizes),
        cmocka_unit_test(test_changes),
    };
    if (gpu_open(argc, argv))
        return cmocka_run_group_tests(tests, NULL, NULL);
    return gpu_missing();
}
