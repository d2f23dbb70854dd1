/* Sparse attention on every instruction set against double precision: the chosen positions, weights over them
 * or over all, grouped heads, windows, all formats of the cache; the same bits for any split of heads and
 * rows; the values of other positions are not read. */
#include "support/guard.h"
#include "support/isas.h"
#include "support/matrix.h"
#include "support/paged_kv.h"

#include "kernels/kernels.h"
#include "kernels/kv_layout.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct top_case {
    int64_t n_head, n_kv, d, n_row, past, window;
    float top;
    bool raw, sinks;
    type_id type;
} top_case;

typedef struct problem {
    top_case c;
    float *q, *k, *v;
    float sinks[32];
    paged_kv kv;
    attend_args args;
} problem;

static problem problem_open(const kernel_table *t, const top_case *c) {
    problem p = {.c = *c};
    const int64_t n = c->past + c->n_row, width = c->n_kv * c->d;
    p.q = random_rows(c->n_row * c->n_head * c->d, 1, 3);
    p.k = random_rows(n * width, 2, 2);
    p.v = random_rows(n * width, 3, 1);
    for (int h = 0; h < 32; h++)
        p.sinks[h] = (float)(h % 3) - 1;
    p.kv = paged_kv_open(c->type, n, c->n_kv, c->d);
    p.args = (attend_args){.kv = p.kv.view,
                           .q = p.q,
                           .n_row = c->n_row,
                           .first_position = c->past,
                           .n_head = c->n_head,
                           .window = c->window,
                           .scale = 1 / sqrtf((float)c->d),
                           .top = c->top,
                           .top_raw = c->raw};
    for (int64_t i = 0; i < n; i++)
        for (int kind = 0; kind < 2; kind++) {
            t->kv_store(&p.args.kv, kind, i, (kind ? p.v : p.k) + i * width);
            for (int64_t h = 0; kv_is_coded(c->type) && i % KV_BLOCK == KV_BLOCK - 1 && h < c->n_kv; h++)
                t->kv_pack(&p.args.kv, kind, h, i / KV_BLOCK);
        }
    return p;
}

static void problem_close(problem *p) {
    free(p->q);
    free(p->k);
    free(p->v);
    paged_kv_close(&p->kv);
}

static guarded attend_by(const kernel_table *t, problem *p, int64_t by_head, int64_t by_row) {
    const top_case *c = &p->c;
    guarded out = guard_open((size_t)(c->n_row * c->n_head * c->d) * sizeof(float));
    guarded scratch =
        guard_open(attend_scratch_bytes(c->d, kv_is_coded(c->type)) + attend_top_bytes(c->past + c->n_row));
    attend_args a = p->args;
    a.sinks = c->sinks ? p->sinks : NULL;
    a.out = out.data;
    a.scratch = scratch.data;
    for (int64_t h = 0; h < c->n_head; h += by_head)
        for (int64_t r = 0; r < c->n_row; r += by_row)
            t->attend(&a, h, h + by_head < c->n_head ? h + by_head : c->n_head, r,
                      r + by_row < c->n_row ? r + by_row : c->n_row);
    guard_close(&scratch);
    return out;
}

/* What a row at `pos` reads of a position: its own block of a coded cache is in f16. */
static void read_kv(const problem *p, bool is_value, int64_t head, int64_t j, int64_t pos, double *out) {
    const top_case *c = &p->c;
    const float *from = (is_value ? p->v : p->k) + (j * c->n_kv + head) * c->d;
    float row[256];
    const bool coded = kv_is_coded(c->type) && j < pos / KV_BLOCK * KV_BLOCK;
    if (coded)
        kv_read(&p->args.kv, is_value, head, j, row);
    for (int64_t d = 0; d < c->d; d++)
        out[d] = (double)(coded                 ? row[d]
                          : c->type == TYPE_F32 ? from[d]
                                                : half_to_float(half_from_float(from[d])));
}

/* Whether position j is chosen of those with scores s[lo..pos], by the definition. */
static bool is_chosen(const double *s, int64_t lo, int64_t pos, int64_t j, int64_t k) {
    int64_t n_before = 0;
    for (int64_t i = lo; i <= pos; i++)
        n_before += s[i] > s[j] || (s[i] == s[j] && i < j);
    return n_before < k || j == pos;
}

/* Scores nearer than a float's error to the least chosen one may be either: such rows are left out. */
static bool is_clear(const double *s, int64_t lo, int64_t pos, int64_t k) {
    double least = INFINITY, most = -INFINITY;
    for (int64_t j = lo; j <= pos; j++) {
        int64_t n_before = 0;
        for (int64_t i = lo; i <= pos; i++)
            n_before += s[i] > s[j] || (s[i] == s[j] && i < j);
        if (n_before < k)
            least = fmin(least, s[j]);
        else
            most = fmax(most, s[j]);
    }
    return least - most > 1e-5;
}

static bool check_row(const kernel_table *t, const problem *p, const float *out, int64_t r, int64_t h) {
    const top_case *c = &p->c;
    const int64_t pos = c->past + r, kv = h / (c->n_head / c->n_kv);
    const int64_t lo = c->window > 0 && pos + 1 > c->window ? pos + 1 - c->window : 0;
    const int64_t k = (int64_t)ceilf(c->top * (float)(pos + 1 - lo));
    double *s = calloc((size_t)pos + 1, sizeof *s), y[256] = {0}, row[256], all = 0, some = 0;
    for (int64_t j = lo; j <= pos; j++) {
        read_kv(p, false, kv, j, pos, row);
        for (int64_t d = 0; d < c->d; d++)
            s[j] += (double)p->q[(r * c->n_head + h) * c->d + d] * row[d] * (double)p->args.scale;
    }
    const bool clear = is_clear(s, lo, pos, k);
    for (int64_t j = lo; clear && j <= pos; j++) {
        const double w = exp(s[j]);
        all += w;
        if (!is_chosen(s, lo, pos, j, k))
            continue;
        some += w;
        read_kv(p, true, kv, j, pos, row);
        for (int64_t d = 0; d < c->d; d++)
            y[d] += w * row[d];
    }
    const double sum = (c->raw ? all : some) + (c->sinks ? exp((double)p->sinks[h]) : 0);
    for (int64_t d = 0; clear && d < c->d; d++) {
        const double found = (double)out[(r * c->n_head + h) * c->d + d];
        if (!(fabs(found - y[d] / sum) <= 1e-5))
            fail_msg("%s: row %d head %d element %d is %.9g, expected %.9g (d %d, type %d)", t->isa, (int)r,
                     (int)h, (int)d, found, y[d] / sum, (int)c->d, (int)c->type);
    }
    free(s);
    return clear;
}

static void check_case(const top_case *c) {
    const size_t n = (size_t)(c->n_row * c->n_head * c->d) * sizeof(float);
    problem p0 = problem_open(kernels_table_for("ref"), c);
    guarded expected = attend_by(kernels_table_for("ref"), &p0, c->n_head, c->n_row);
    EACH_OPS(t) {
        problem p = problem_open(t, c);
        guarded out = attend_by(t, &p, c->n_head, c->n_row);
        int n_row = 0, n_clear = 0;
        for (int64_t r = 0; r < c->n_row; r += 1 + r / 4)
            for (int64_t h = 0; h < c->n_head; h++, n_row++)
                n_clear += check_row(t, &p, out.data, r, h);
        assert_true(n_clear * 10 >= n_row * 9);
        assert_memory_equal(out.data, expected.data, n); /* the same bits as the reference */
        const int64_t steps[][2] = {{1, 1}, {2, 5}, {c->n_head, 1}, {1, c->n_row}};
        for (int i = 0; i < 4; i++) {
            guarded other = attend_by(t, &p, steps[i][0], steps[i][1]);
            assert_memory_equal(out.data, other.data, n);
            guard_close(&other);
        }
        guard_close(&out);
        problem_close(&p);
    }
    guard_close(&expected);
    problem_close(&p0);
}

static void test_cases(void **state) {
    (void)state;
    const top_case cases[] = {
        {.n_head = 9, .n_kv = 3, .d = 64, .n_row = 1, .past = 0, .top = 0.1F, .type = TYPE_F16},
        {.n_head = 9, .n_kv = 3, .d = 64, .n_row = 5, .past = 300, .top = 0.1F, .type = TYPE_F16},
        {.n_head = 9,
         .n_kv = 3,
         .d = 64,
         .n_row = 5,
         .past = 300,
         .top = 0.1F,
         .raw = true,
         .type = TYPE_F16},
        {.n_head = 4, .n_kv = 4, .d = 20, .n_row = 40, .past = 30, .top = 0.25F, .type = TYPE_F32},
        {.n_head = 20,
         .n_kv = 2,
         .d = 80,
         .n_row = 2,
         .past = 500,
         .top = 0.02F,
         .raw = true,
         .type = TYPE_F32},
        {.n_head = 4,
         .n_kv = 2,
         .d = 32,
         .n_row = 9,
         .past = 200,
         .window = 70,
         .top = 0.3F,
         .type = TYPE_F16},
        {.n_head = 6, .n_kv = 2, .d = 64, .n_row = 3, .past = 300, .top = 0.1F, .type = TYPE_KV8},
        {.n_head = 6,
         .n_kv = 2,
         .d = 48,
         .n_row = 3,
         .past = 290,
         .top = 0.1F,
         .raw = true,
         .type = TYPE_KV4},
        {.n_head = 4,
         .n_kv = 2,
         .d = 128,
         .n_row = 2,
         .past = 130,
         .top = 0.5F,
         .sinks = true,
         .type = TYPE_KV4},
        {.n_head = 4,
         .n_kv = 2,
         .d = 16,
         .n_row = 6,
         .past = 90,
         .top = 0.1F,
         .raw = true,
         .sinks = true,
         .type = TYPE_F16},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_case(&cases[i]);
}

/* All positions: nearly what attention without a choice gives. */
static void all_chosen(void **state) {
    (void)state;
    const top_case c = {.n_head = 6, .n_kv = 2, .d = 64, .n_row = 4, .past = 200, .top = 1, .type = TYPE_F16};
    EACH_OPS(t) {
        problem p = problem_open(t, &c);
        guarded some = attend_by(t, &p, c.n_head, c.n_row);
        p.args.top = 0;
        guarded all = attend_by(t, &p, c.n_head, c.n_row);
        for (int64_t i = 0; i < c.n_row * c.n_head * c.d; i++)
            assert_true(fabsf(((float *)some.data)[i] - ((float *)all.data)[i]) < 3e-6F);
        guard_close(&some);
        guard_close(&all);
        problem_close(&p);
    }
}

/* A NaN among the values is seen only by rows that choose its position. */
static void others_are_not_read(void **state) {
    (void)state;
    const top_case c = {
        .n_head = 1, .n_kv = 1, .d = 32, .n_row = 1, .past = 199, .top = 0.05F, .type = TYPE_F16};
    EACH_OPS(t) {
        int n_chosen = 0;
        for (int64_t at = 0; at < 200; at++) {
            problem p = problem_open(t, &c);
            p.v[at * c.d + 5] = NAN;
            t->kv_store(&p.args.kv, true, at, p.v + at * c.d);
            guarded out = attend_by(t, &p, 1, 1);
            n_chosen += isnan(((float *)out.data)[5]);
            assert_true(at < 199 || isnan(((float *)out.data)[5]));
            guard_close(&out);
            problem_close(&p);
        }
        assert_in_range(n_chosen, 10, 11);
    }
}

/* Ties, negative zeros, and numbers of all sizes. */
static void choices(void **state) {
    (void)state;
    float ties[] = {1, 2, 2, -0.0F, 0, 2, 1, 0}, few[] = {-3};
    int32_t at[8];
    assert_int_equal(attend_choose(ties, 8, 2, at), 3); /* the first two of three, and the last one */
    assert_true(at[0] == 1 && at[1] == 2 && at[2] == 7 && ties[0] == 2 && ties[2] == 0);
    float zeros[] = {-0.0F, 0, -1, 0};
    assert_int_equal(attend_choose(zeros, 4, 2, at), 3);
    assert_true(at[0] == 0 && at[1] == 1 && at[2] == 3);
    assert_int_equal(attend_choose(few, 1, 1, at), 1);
    float *x = random_rows(1000, 9, 5), *y = malloc(1000 * sizeof *y);
    int32_t *place = malloc(1000 * sizeof *place);
    for (int k = 1; k <= 1000; k += 37) {
        for (int i = 0; i < 1000; i++)
            y[i] = x[i] * powf(10, (float)(i % 60) - 30);
        memcpy(x, y, 1000 * sizeof *x);
        const int64_t n = attend_choose(y, 1000, k, place);
        assert_true(n == k || n == k + 1);
        for (int64_t i = 0; i < n; i++) {
            int n_before = 0;
            for (int j = 0; j < 1000; j++)
                n_before += x[j] > y[i] || (x[j] == y[i] && j < place[i]);
            assert_true(y[i] == x[place[i]] && (n_before < k || place[i] == 999));
            assert_true(i == 0 || place[i] > place[i - 1]);
        }
        memset(y, 0, 1000 * sizeof *y);
    }
    free(x);
    free(y);
    free(place);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),
        cmocka_unit_test(all_chosen),
        cmocka_unit_test(others_are_not_read),
        cmocka_unit_test(choices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
