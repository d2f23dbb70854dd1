/* Products with weights of every type, on every instruction set of this machine: against exact integers,
 * against double precision under a derived bound, and bit by bit against the reference, for any grouping of
 * rows. */
#include "kernels/act8.h"
#include "support/isas.h"
#include "support/slow.h"
#include "support/tilecase.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *name_of(const matrix *w) {
    static char name[PACK_NAME];
    pack_name(&w->view.format, name);
    return name;
}

static void assert_same(const char *what, const kernel_table *t, const matrix *w, const float *a,
                        const float *b, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (memcmp(a + i, b + i, sizeof *a) && !(isnan(a[i]) && isnan(b[i])))
            fail_msg("%s: %s %s a%d %dx%d: output %d is %a, expected %a", what, t->isa, name_of(w),
                     w->act_bits, (int)w->n, (int)w->k, (int)i, (double)a[i], (double)b[i]);
}

/* |y - exact| <= (operations on the way + 2) * 2^-24 * sum |w x|, and for tiles half a step of each
 * activation. */
static void check_oracle(const kernel_table *t, const matrix *w, const float *x, int64_t n_row,
                         const float *bias, const float *y) {
    const pack_format *f = &w->view.format;
    const bool tile = f->layout == PACK_TILE;
    const act_format af = act_format_for(f, w->act_bits, 0);
    const int64_t group = tile ? act_group(af, w->k) : 32;
    float *row = malloc((size_t)w->k * sizeof *row);
    for (int64_t n = 0; n < w->n; n++) {
        matrix_row(w, n, row);
        for (int64_t m = 0; m < n_row; m++) {
            double sum = bias ? (double)bias[n] : 0, size = fabs(sum), slack = 0;
            for (int64_t g = 0; g < w->k; g += group) {
                const int64_t end = g + group < w->k ? g + group : w->k;
                double max = 0, of_group = 0;
                for (int64_t k = g; k < end; k++) {
                    const double xk = (double)x[m * w->k + k], p = (double)row[k] * xk;
                    max = fmax(max, fabs(xk));
                    sum += p;
                    size += fabs(p);
                    of_group += fabs((double)row[k]);
                }
                slack +=
                    of_group * max * (af.bits == 4 ? 1.0001 / 8 : 0.5001 / max_act(af)); /* +8 becomes 7 */
                size += of_group * max; /* a minimum may cancel against the codes */
            }
            const double bound = (double)(w->k / 16 + 24) * 0x1p-24 * 4 * size + (tile ? slack : 0) + 1e-40;
            const double found = (double)y[m * w->n + n];
            if (!(fabs(found - sum) <= bound))
                fail_msg("%s %s a%d %dx%d: output (%d, %d) is %.9g, expected %.9g +- %.3g", t->isa,
                         name_of(w), w->act_bits, (int)w->n, (int)w->k, (int)m, (int)n, found, sum, bound);
        }
    }
    free(row);
}

/* Every strategy of this machine that can compute it, also those that the rule does not choose. */
static void check_strategies(const matrix *w, const float *x, int64_t n_row, const float *bias,
                             const float *expected) {
    const kernel_table *t = kernels_table();
    for (int i = 0; i < t->n_strategy && w->view.format.layout == PACK_TILE; i++) {
        const strategy *s = t->strategies[i];
        if (!s->can(&w->view.format, n_row))
            continue;
        guarded y = case_linear_by(t, s, w, x, n_row, bias, w->n > 16 && n_row % 2 ? 16 : 0);
        assert_same(s->name, t, w, y.data, expected, w->n * n_row);
        guard_close(&y);
    }
}

/* Closes w. seed 0: activations at their most. */
static void check_matrix(matrix w, int64_t n_row, uint64_t seed) {
    const int64_t n = w.n, k = w.k;
    float *x = case_rows(n_row, k, seed), *bias = case_rows(1, n, seed + 1);
    const float *b = n_row % 2 ? bias : NULL;
    const kernel_table *ref = kernels_table_for("ref");
    guarded expected = case_linear(ref, &w, x, n_row, b, 0);
    check_oracle(ref, &w, x, n_row, b, expected.data);
    EACH_ISA(t) {
        guarded y = case_linear(t, &w, x, n_row, b, 0);
        assert_same("against ref", t, &w, y.data, expected.data, n * n_row);
        guard_close(&y);
        if (n > 16) {
            y = case_linear(t, &w, x, n_row, b, n > 32 ? 32 : 16);
            assert_same("split", t, &w, y.data, expected.data, n * n_row);
            guard_close(&y);
        }
        for (int64_t m = 0; m < n_row && n_row > 1; m += 5) {
            y = case_linear(t, &w, x + m * k, 1, b, 0);
            assert_same("one row", t, &w, y.data, (float *)expected.data + m * n, n);
            guard_close(&y);
        }
    }
    check_strategies(&w, x, n_row, b, expected.data);
    guard_close(&expected);
    free(x);
    free(bias);
    matrix_close(&w);
}

static void check_shape(type_id type, int64_t n, int64_t k, int64_t n_row, matrix_kind kind) {
    const uint64_t seed = (uint64_t)(type * 7919 + n * 31 + k + n_row);
    check_matrix(matrix_open(type, n, k, kind, seed), n_row, kind == MATRIX_LARGEST ? 0 : seed);
}

static void check_uniform(const char *name, int act_bits, int64_t n, int64_t k, int64_t n_row,
                          matrix_kind kind) {
    const uint64_t seed = (uint64_t)(name[1] * 7919 + n * 31 + k + n_row);
    matrix w = matrix_open_uniform(name, n, k, kind, seed);
    w.act_bits = act_bits;
    check_matrix(w, n_row, kind == MATRIX_LARGEST ? 0 : seed);
}

static const int64_t rows_of[] = {1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33, 64};
enum { N_ROWS = sizeof rows_of / sizeof *rows_of };

static void test_shapes(void **state) {
    (void)state;
    static const int64_t ns[] = {1, 15, 16, 17, 48, 80};
    int turn = 0;
    for (int id = 0; id < TYPE_COUNT; id++) {
        const int64_t block = type_get((type_id)id)->block_elems;
        pack_format f;
        if (!pack_choose((type_id)id, block, &f))
            continue;
        static const int64_t plain[] = {1, 7, 15, 16, 17, 31, 63, 64, 65, 200},
                             by32[] = {32, 64, 96, 288, 576, 608}, by64[] = {64, 192, 576},
                             by256[] = {256, 512, 768};
        const int64_t *ks = block == 1 ? plain : block == 32 ? by32 : block == 64 ? by64 : by256;
        const int n_k = block == 1 ? 10 : block == 32 ? 6 : 3;
        const int step = slow_is_quick() ? 3 : slow_step(3);
        for (int i = 0; i < n_k; i++)
            for (int j = (i + id) % step; j < N_ROWS; j += step) /* every K with every M, N in turn */
                check_shape((type_id)id, ns[turn++ % 6], ks[i], rows_of[j], MATRIX_RANDOM);
    }
}

/* n_row rows have the bits that they have alone, by the rule's choice and by every strategy. */
static void check_width(const matrix *w, const float *x, int64_t n_row, const float *alone) {
    EACH_ISA(t) {
        guarded y = case_linear(t, w, x, n_row, NULL, 0);
        assert_same("width", t, w, y.data, alone, w->n * n_row);
        guard_close(&y);
    }
    check_strategies(w, x, n_row, NULL, alone);
}

/* Every number of rows that a batch may have. */
static void test_every_width(void **state) {
    (void)state;
    enum { N = 18, K = 256, MAX = 64 };
    static const type_id types[] = {TYPE_F16, TYPE_Q4_0, TYPE_Q8_0, TYPE_Q6_K, TYPE_C4};
    static const char *const names[] = {"u4g128", "u3g64p", "u8g32a"};
    float *x = case_rows(MAX, K, 77), *alone = malloc(sizeof *alone * MAX * N);
    for (size_t i = 0; i < NUM_COUNT(types) + NUM_COUNT(names); i++) {
        matrix w = i < NUM_COUNT(types)
                       ? matrix_open(types[i], N, K, MATRIX_RANDOM, i + 3)
                       : matrix_open_uniform(names[i - NUM_COUNT(types)], N, K, MATRIX_RANDOM, i + 3);
        for (int64_t m = 0; m < MAX; m++) {
            guarded y = case_linear(kernels_table_for("ref"), &w, x + m * K, 1, NULL, 0);
            memcpy(alone + m * N, y.data, sizeof *alone * N);
            guard_close(&y);
        }
        for (int64_t m = 1; m <= MAX; m += slow_step(3))
            check_width(&w, x, m, alone);
        matrix_close(&w);
    }
    free(alone);
    free(x);
}

static void test_long(void **state) { /* several blocks of K, more rows than one block of rows */
    (void)state;
    check_shape(TYPE_Q4_1, 48, 2048, 3, MATRIX_RANDOM);
    check_shape(TYPE_Q5_0, 33, 2048, 9, MATRIX_RANDOM);
    check_shape(TYPE_Q4_K, 33, 1024, 131, MATRIX_RANDOM);
    check_shape(TYPE_Q6_K, 32, 2048, 5, MATRIX_RANDOM);
    check_shape(TYPE_Q8_0, 50, 640, 130, MATRIX_RANDOM);
    check_shape(TYPE_F16, 21, 2048, 35, MATRIX_RANDOM);
    check_shape(TYPE_C3, 37, 2048, 35, MATRIX_RANDOM);
    check_shape(TYPE_C3, 33, 1088, 4, MATRIX_RANDOM);
    check_shape(TYPE_C4, 50, 2048, 131, MATRIX_RANDOM);
    check_shape(TYPE_C4, 33, 1120, 2, MATRIX_RANDOM);
    check_uniform("u4g128", 8, 33, 1100, 135, MATRIX_RANDOM);
    check_uniform("u5grow", 8, 20, 1700, 21, MATRIX_RANDOM);
    check_uniform("u6growa", 8, 17, 1100, 18, MATRIX_RANDOM);
    check_uniform("u7g64", 8, 17, 1100, 23, MATRIX_RANDOM);
    check_uniform("u8g128a", 8, 33, 1100, 22, MATRIX_RANDOM);
    check_uniform("u2g32a", 8, 17, 1100, 19, MATRIX_RANDOM);
    check_uniform("u4g32t", 8, 33, 1700, 27, MATRIX_RANDOM);
    check_uniform("u7g128t", 8, 33, 1100, 131, MATRIX_RANDOM);
}

static void test_extremes(void **state) {
    (void)state;
    for (int id = 0; id < TYPE_COUNT; id++) {
        const int64_t block = type_get((type_id)id)->block_elems;
        pack_format f;
        if (block == 1 || !pack_choose((type_id)id, block, &f))
            continue;
        for (int kind = MATRIX_LARGEST; kind <= MATRIX_TINY; kind++) {
            check_shape((type_id)id, 17, block == 32 ? 160 : 512, 1, (matrix_kind)kind);
            check_shape((type_id)id, 32, block == 32 ? 160 : 512, 7, (matrix_kind)kind);
        }
    }
}

static const int groups[] = {16, 32, 64, 128, PACK_GROUP_ROW};

/* Random combinations of widths, groups, packings, activations and shapes. */
static void test_uniform(void **state) {
    (void)state;
    uint64_t s = 20;
    for (int i = 0; i < 500; i++) {
        const int64_t k = 1 + (int64_t)(random_next(&s) >> 40) % (i % 5 ? 330 : 900);
        const int64_t n = 1 + (int64_t)(random_next(&s) >> 40) % 50,
                      n_row = rows_of[(random_next(&s) >> 40) % 10];
        const int bits = 2 + i % 7, group = groups[(random_next(&s) >> 40) % 5];
        const int kind = i % 3 ? MATRIX_RANDOM : (int)(random_next(&s) >> 40) % 5;
        pack_format f;
        char name[PACK_NAME];
        const bool asym = random_next(&s) >> 63, two = (random_next(&s) >> 62) == 0;
        if (!pack_uniform(bits, group, asym, two, k, &f) && !pack_uniform(bits, group, asym, false, k, &f))
            fail_msg("%d bits, group %d", bits, group);
        f.packing = random_next(&s) >> 63;
        pack_name(&f, name);
        check_uniform(name, i % 4 ? 8 : 4, n, k, n_row, (matrix_kind)kind);
    }
}

/* Every format once at the ends of its codes; the longest row that is summed as one. */
static void test_uniform_extremes(void **state) {
    (void)state;
    char name[PACK_NAME];
    for (int bits = 2; bits <= 8; bits++)
        for (int g = 0; g < 5; g++)
            for (int form = 0; form < 6; form++) {
                pack_format f;
                if (!pack_uniform(bits, groups[g], form % 3 == 1, form % 3 == 2, 200, &f))
                    continue;
                f.packing = form / 3;
                pack_name(&f, name);
                check_uniform(name, 8, 17, 200, 5, MATRIX_LARGEST);
                check_uniform(name, 4, 17, 200, 1, MATRIX_LARGEST);
            }
    check_uniform("u8growa", 8, 2, MAX_PACK_ROW, 1, MATRIX_LARGEST);
    check_uniform("u8grow", 8, 2, MAX_PACK_ROW, 3, MATRIX_LARGEST);
    check_uniform("u8growap", 8, 2, MAX_PACK_ROW, 2, MATRIX_LARGEST);
    check_uniform("u4g128t", 8, 2, MAX_PACK_ROW, 2, MATRIX_LARGEST);
}

/* Planes of file formats. */
static void test_planes(void **state) {
    (void)state;
    for (int id = 0; id < TYPE_COUNT; id++) {
        const int64_t block = type_get((type_id)id)->block_elems;
        pack_format f;
        if (block == 1 || !pack_choose((type_id)id, block, &f))
            continue;
        for (int64_t m = 1; m <= 9; m += 4)
            check_matrix(matrix_open_planes((type_id)id, 33, 512, MATRIX_RANDOM, (uint64_t)(id + m)), m, 4);
    }
}

/* Scales of one and whole activations whose largest is 127 make every output a sum of integers below 2^24: it
 * must be exact. */
static void test_integers(void **state) {
    (void)state;
    static const type_id types[] = {TYPE_Q4_0, TYPE_Q5_0, TYPE_Q8_0, TYPE_IQ4_NL, TYPE_Q4_1};
    enum { K = 576, N = 35, M = 7 };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        uint64_t s = 99 + i;
        float *x = malloc(sizeof(float) * K * M), row[K];
        for (int j = 0; j < K * M; j++)
            x[j] = j % 32 == 5 ? 127.0f : (float)((int)(random_next(&s) >> 40) % 255 - 127);
        matrix w = matrix_open(types[i], N, K, MATRIX_UNIT, i + 1);
        EACH_ISA(t) {
            guarded y = case_linear(t, &w, x, M, NULL, 0);
            for (int n = 0; n < N; n++) {
                matrix_row(&w, n, row);
                for (int m = 0; m < M; m++) {
                    int64_t sum = 0;
                    for (int k = 0; k < K; k++)
                        sum += (int64_t)row[k] * (int64_t)x[m * K + k];
                    assert_true(llabs(sum) < 1 << 24);
                    if ((float)sum != ((float *)y.data)[m * N + n])
                        fail_msg("%s %s: %g, expected %ld", t->isa, type_get(types[i])->name,
                                 (double)((float *)y.data)[m * N + n], (long)sum);
                }
            }
            guard_close(&y);
        }
        matrix_close(&w);
        free(x);
    }
}

/* Products with a NaN or an infinity: integers have no infinity, so their result is a NaN; floats have the
 * result of the arithmetic, a NaN or infinity times a weight. */
static bool is_poison(const matrix *w, int64_t n, int64_t k, float bad, float found) {
    float row[1024];
    assert_true(w->k <= 1024);
    matrix_row(w, n, row);
    if (w->view.format.layout != PACK_ROWS || isnan(bad) || row[k] == 0)
        return isnan(found);
    return found == bad * row[k];
}

/* A NaN or an infinity affects all outputs of its row and no other row. */
static void test_poison(void **state) {
    (void)state;
    static const type_id types[] = {TYPE_Q4_0, TYPE_Q4_1, TYPE_Q6_K, TYPE_Q8_0, TYPE_F32, TYPE_F16};
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    enum { K = 512, N = 33, M = 9 };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        for (size_t j = 0; j < 3; j++) {
            matrix w = matrix_open(types[i], N, K, MATRIX_RANDOM, 3);
            float *x = case_rows(M, K, 8);
            EACH_ISA(t) {
                guarded clean = case_linear(t, &w, x, M, NULL, 0);
                const float kept = x[4 * K + 100];
                x[4 * K + 100] = bad[j];
                guarded y = case_linear(t, &w, x, M, NULL, 0);
                x[4 * K + 100] = kept;
                for (int m = 0; m < M; m++)
                    for (int n = 0; n < N; n++) {
                        const float a = ((float *)y.data)[m * N + n], b = ((float *)clean.data)[m * N + n];
                        if (m == 4 ? !is_poison(&w, n, 100, bad[j], a) : memcmp(&a, &b, sizeof a) != 0)
                            fail_msg("%s %s: row %d is %g", t->isa, type_get(types[i])->name, m, (double)a);
                    }
                guard_close(&y);
                guard_close(&clean);
            }
            free(x);
            matrix_close(&w);
        }
}

/* The quantizer: its definition, and the same bytes everywhere. */
static void test_activations(void **state) {
    (void)state;
    static const int64_t ks[] = {1, 31, 32, 33, 64, 65, 576};
    static const act_format formats[] = {{.bits = 8, .group = 32},
                                         {.bits = 4, .group = 32},
                                         {.bits = 8, .group = 64},
                                         {.bits = 8, .group = 128},
                                         {.bits = 4, .group = 128},
                                         {.bits = 4, .group = 64, .n8 = 1},
                                         {.bits = 8, .group = PACK_GROUP_ROW}};
    const kernel_table *ref = kernels_table_for("ref");
    for (size_t i = 0, which = 0; which < NUM_COUNT(formats);
         i + 1 < sizeof ks / sizeof *ks ? i++ : (i = 0, which++)) {
        const int64_t k = ks[i];
        const act_format f = formats[which];
        const int64_t group = act_group(f, k);
        const size_t n = act_row_bytes(f, k);
        for (int turn = 0; turn < 9; turn++) {
            float *x = case_rows(1, k, (uint64_t)(turn + 1));
            if (turn == 8 && k > 1) { /* both signs reach the largest magnitude */
                x[0] = 9;
                x[1] = -9;
            }
            if (turn == 5)
                x[k / 2] = 1e-40f;
            for (int64_t j = 0; j < k && turn >= 5 && turn < 8; j++)
                x[j] = turn == 5 ? x[j] * 1e-37f : turn == 6 ? 0 : x[j] * 2e37f;
            if (turn == 4)
                x[k - 1] = NAN;
            guarded a = guard_open(n), in = guard_open((size_t)k * sizeof(float));
            memcpy(in.data, x, (size_t)k * sizeof(float));
            memset(a.data, 0, n);
            ref->act_quantize(f, in.data, k, a.data);
            const int8_t *codes = a.data;
            for (int64_t g = 0; g < k; g += group) {
                const int64_t end = g + group < k ? g + group : k;
                float max = 0, low = 0;
                bool finite = true;
                for (int64_t j = g; j < end; j++) {
                    max = fmaxf(max, fabsf(x[j]));
                    low = fminf(low, x[j]);
                    finite = finite && isfinite(x[j]);
                }
                for (int64_t j = g; j < end; j++) {
                    const double top = (double)max_act_at(f, g),
                                 steps = (double)act_steps((float)top, low == -max);
                    const double exact = max < 1e-35f || !finite ? 0 : (double)x[j] / ((double)max / steps);
                    assert_true(fabs((double)codes[j] - fmin(exact, top)) < 0.5001);
                    assert_true(codes[j] <= (int)top && abs(codes[j]) <= (int)fabs(steps));
                }
            }
            EACH_ISA(t) {
                guarded b = guard_open(n);
                memset(b.data, 0, n);
                t->act_quantize(f, in.data, k, b.data);
                assert_memory_equal(b.data, codes, ks[i] < 1 ? 0 : k);
                if (turn != 4) /* NaNs may differ in their payload */
                    assert_memory_equal(b.data, a.data, n);
                guard_close(&b);
            }
            guard_close(&in);
            guard_close(&a);
            free(x);
        }
    }
}

static void test_tables(void **state) {
    (void)state;
    assert_string_equal(kernels_isa_at(0), "ref");
    assert_null(kernels_table_for("no such set"));
    assert_non_null(kernels_table());
    EACH_ISA(t) {
        const char *first = (const char *)t + offsetof(kernel_table, act_quantize);
        const size_t n =
            (offsetof(kernel_table, strategies) - offsetof(kernel_table, act_quantize)) / sizeof(void *);
        for (size_t i = 0; i < n; i++)
            assert_true(((void (*const *)(void))(const void *)first)[i] != NULL);
        assert_true(t->n_strategy > 0);
        for (int i = 0; i < t->n_strategy; i++)
            assert_ptr_equal(isas_strategy(t, t->strategy_isa[i], t->strategies[i]->name), t->strategies[i]);
    }
}

/* For every format and number of rows each instruction set beyond the reference has a kernel. */
static void test_no_shape_is_left_to_ref(void **state) {
    (void)state;
    EACH_ISA(t)
    for (int i = 0; i < 20 && strcmp(t->isa, "ref"); i++) {
        pack_format f;
        assert_true(pack_choose(i % 2 ? TYPE_C4 : TYPE_C3, 1024, &f));
        const strategy *s = strategy_by_rule(t, &f, 1 << i / 2);
        assert_ptr_not_equal(s, isas_strategy(t, "ref", "scalar"));
    }
    EACH_ISA(t)
    for (int i = 0; i < 7 * 5 * 6 && strcmp(t->isa, "ref"); i++) {
        const int bits = 2 + i % 7, group = groups[i / 7 % 5], form = i / 35;
        pack_format f;
        if (!pack_uniform(bits, group, form % 3 == 1, form % 3 == 2, 1000, &f))
            continue;
        f.packing = form / 3;
        for (int64_t m = 1; m <= 512; m = m < 8 ? m + 1 : 2 * m) {
            char name[PACK_NAME];
            const strategy *s = strategy_by_rule(t, &f, m);
            pack_name(&f, name);
            for (int k = 0; k < t->n_strategy; k++)
                if (t->strategies[k] == s && !strcmp(t->strategy_isa[k], "ref"))
                    fail_msg("%s: %s with %d rows", t->isa, name, (int)m);
        }
    }
}

/* Bits are counted with VPOPCNTD only; other folders turn planes into parts. */
static void test_few_rows_of_planes(void **state) {
    (void)state;
    pack_format f;
    assert_true(pack_from_name("u4g128p", 1000, &f));
    EACH_ISA(t)
    if (!strncmp(t->isa, "avx", 3)) {
        const bool counts = !strcmp(t->isa, "avx512pop");
        assert_string_equal(strategy_by_rule(t, &f, 1)->name, counts ? "bitwise" : "padding.blocked");
        assert_string_equal(strategy_by_rule(t, &f, 64)->name, "padding.blocked");
    }
}

/* ---- estimates ---- */

/* y and the errors by the table's estimates of w, with activations of 8 bits. length: of each row, [n_row].
 */
static void estimate(const kernel_table *t, const matrix *w, const float *x, int64_t n_row, guarded *y,
                     guarded *error, float *length) {
    const act_format f = act_format_for(&w->view.format, 8, 0);
    const size_t each = act_row_bytes(ESTIMATE_ACT, w->k);
    guarded q = guard_open(each * (size_t)n_row), scratch = guard_open(linear_scratch_bytes(false));
    guarded row = guard_open(act_row_bytes(f, w->k));
    *y = guard_open((size_t)(n_row * w->n) * sizeof(float));
    *error = guard_open((size_t)num_round_up(w->n, PACK_PANEL) * sizeof(float));
    for (int64_t m = 0; m < n_row; m++) {
        t->act_quantize(f, x + m * w->k, w->k, row.data);
        length[m] = estimate_row(f, row.data, w->k, (char *)q.data + (size_t)m * each);
    }
    guard_read_only(&q);
    const linear_args a = {.w = &w->view,
                           .q = {q.data, n_row, w->k, ESTIMATE_ACT},
                           .y = y->data,
                           .ldy = w->n,
                           .n_row = n_row,
                           .scratch = scratch.data};
    t->estimate(&a, 0, w->n, error->data);
    guard_close(&row);
    guard_close(&scratch);
    guard_close(&q);
}

/* The errors of estimates, in units of their own error times the length: no more than a bound of rounding,
 * and about 1 in the mean. The length is that of the row, and at most a fifth more: its groups have very
 * different scales. */
static void check_estimates(const kernel_table *t, int64_t n, int64_t k, int64_t n_row) {
    matrix w = matrix_open(TYPE_Q8_0, n, k, MATRIX_RANDOM, (uint64_t)(n + k + n_row));
    float *x = case_rows(n_row, k, (uint64_t)(n * k + n_row)),
          *length = malloc((size_t)n_row * sizeof(float));
    guarded exact = case_linear(t, &w, x, n_row, NULL, 0), y, error;
    double squares = 0;
    assert_true(t->estimate_can(&w.view.format, n_row));
    estimate(t, &w, x, n_row, &y, &error, length);
    for (int64_t m = 0; m < n_row; m++) {
        double square = 0;
        for (int64_t i = 0; i < k; i++)
            square += (double)x[m * k + i] * (double)x[m * k + i];
        if (!(length[m] > 0.99 * sqrt(square) && length[m] < 1.2 * sqrt(square)))
            fail_msg("%s %dx%d: row %d has the length %g, expected %g and little more", t->isa, (int)n,
                     (int)k, (int)m, (double)length[m], sqrt(square));
        for (int64_t i = 0; i < n; i++) {
            const double off =
                (double)((float *)y.data)[m * n + i] - (double)((float *)exact.data)[m * n + i];
            const double unit = (double)((float *)error.data)[i] * (double)length[m];
            if (!(fabs(off) <= 6 * unit))
                fail_msg("%s %dx%d: estimate (%d, %d) is off by %g, its error is %g", t->isa, (int)n, (int)k,
                         (int)m, (int)i, off, unit);
            squares += off * off / (unit * unit);
        }
    }
    const double mean = sqrt(squares / (double)(n * n_row));
    if (!(mean > 0.6 && mean < 1.4))
        fail_msg("%s %dx%d, %d rows: estimates are off by %.2f of their errors", t->isa, (int)n, (int)k,
                 (int)n_row, mean);
    guard_close(&y);
    guard_close(&error);
    guard_close(&exact);
    free(length);
    free(x);
    matrix_close(&w);
}

/* The largest sums overflow nothing: their estimates are within half an upper code, 8 of 127. Weights of zero
 * have estimates of zero without an error, and very small ones have finite estimates. */
static void check_extreme_estimates(const kernel_table *t, matrix_kind kind, int64_t k) {
    enum { N = 32, N_ROW = 5 };
    matrix w = matrix_open(TYPE_Q8_0, N, k, kind, (uint64_t)k);
    float *x = malloc((size_t)(N_ROW * k) * sizeof *x), length[N_ROW];
    for (int64_t i = 0; i < N_ROW * k; i++)
        x[i] =
            (i / k + i % k / 32) % 2 ? 127 : -127; /* the signs of the largest weights, or their opposites */
    guarded exact = case_linear(t, &w, x, N_ROW, NULL, 0), y, error;
    estimate(t, &w, x, N_ROW, &y, &error, length);
    for (int64_t i = 0; i < N_ROW * N; i++) {
        const double got = (double)((float *)y.data)[i], want = (double)((float *)exact.data)[i];
        const double bound = 0.07 * fabs(want), sigma = (double)((float *)error.data)[i % N];
        const bool ok = kind == MATRIX_LARGEST ? fabs(got - want) <= bound && want != 0
                        : kind == MATRIX_ZERO  ? got == 0 && sigma == 0
                                               : isfinite(got) && isfinite(sigma);
        if (!ok)
            fail_msg("%s, kind %d, k %d: estimate %d is %g, error %g, expected %g", t->isa, (int)kind, (int)k,
                     (int)i, got, sigma, want);
    }
    guard_close(&y);
    guard_close(&error);
    guard_close(&exact);
    free(x);
    matrix_close(&w);
}

/* Rows with a scale that is not finite have no length; rows of zeros have none either, but a finite one. */
static void check_estimate_rows(const kernel_table *t) {
    enum { K = 96 };
    const act_format f = {.bits = 8, .group = 32};
    float x[K] = {0};
    guarded row = guard_open(act_row_bytes(f, K)), out = guard_open(act_row_bytes(ESTIMATE_ACT, K));
    t->act_quantize(f, x, K, row.data);
    assert_true(estimate_row(f, row.data, K, out.data) == 0);
    for (int i = 0; i < K; i++)
        assert_int_equal(((uint8_t *)out.data)[i], 128);
    const float bad[] = {NAN, INFINITY};
    for (size_t i = 0; i < NUM_COUNT(bad); i++) {
        x[40] = bad[i];
        t->act_quantize(f, x, K, row.data);
        assert_true(isnan(estimate_row(f, row.data, K, out.data)));
    }
    guard_close(&row);
    guard_close(&out);
}

static void test_estimates(void **state) {
    (void)state;
    static const int64_t shapes[][3] = {{512, 576, 32}, {512, 576, 7},  {328, 64, 12},
                                        {256, 1536, 5}, {100, 352, 33}, {64, 2048, 140}};
    EACH_ISA(t) {
        for (size_t i = 0; t->estimate && i < NUM_COUNT(shapes); i++)
            check_estimates(t, shapes[i][0], shapes[i][1], shapes[i][2]);
        static const int64_t ks[] = {64, 576, 2048, 8192};
        for (size_t i = 0; t->estimate && i < 3 * NUM_COUNT(ks); i++)
            check_extreme_estimates(t, (matrix_kind[]){MATRIX_LARGEST, MATRIX_ZERO, MATRIX_TINY}[i % 3],
                                    ks[i / 3]);
        check_estimate_rows(t);
        float y[64], error[64], upper[4];
        uint64_t s = 7;
        for (int i = 0; i < 64; i++) {
            y[i] = random_float(&s);
            error[i] = fabsf(random_float(&s));
        }
        const float max = t->upper_bounds(y, error, 0.5f, 64, upper);
        for (int i = 0; i < 64; i++)
            assert_true(upper[i / 16] >= fmaf(error[i], 0.5f, y[i]));
        assert_true(max == fmaxf(fmaxf(upper[0], upper[1]), fmaxf(upper[2], upper[3])));
        for (int p = 0; p < 4; p++) {
            bool found = false;
            for (int i = 16 * p; i < 16 * p + 16; i++)
                found = found || upper[p] == fmaf(error[i], 0.5f, y[i]);
            assert_true(found);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tables),
        cmocka_unit_test(test_activations),
        cmocka_unit_test(test_integers),
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_every_width),
        cmocka_unit_test(test_long),
        cmocka_unit_test(test_extremes),
        cmocka_unit_test(test_poison),
        cmocka_unit_test(test_uniform),
        cmocka_unit_test(test_uniform_extremes),
        cmocka_unit_test(test_planes),
        cmocka_unit_test(test_estimates),
        cmocka_unit_test(test_no_shape_is_left_to_ref),
        cmocka_unit_test(test_few_rows_of_planes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
