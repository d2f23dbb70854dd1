/* Attention on every instruction set against double precision: grouped heads, windows, soft caps, ALiBi, odd
 * head sizes, sinks, f16 and f32 caches; equal bits for any split of heads and rows; a NaN affects only the
 * rows that see it. */
#include "support/guard.h"
#include "support/isas.h"
#include "support/matrix.h"
#include "support/paged_kv.h"

#include "kernels/kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct attend_case {
    int64_t n_head, n_kv, d, n_row, past, window;
    float softcap, alibi, alibi_scale; /* alibi_scale 0: as 1 */
    float sink;                        /* heads' sinks are this times sink_sizes; 0: there are none */
    type_id type;
} attend_case;

static const float sink_sizes[] = {0.25f, -1, 1};

typedef struct problem {
    attend_case c;
    float *q, *k, *v; /* [rows, heads * d]; keys and values for past + n_row positions */
    float *sinks;     /* [heads] */
    paged_kv kv;
    attend_args args;
} problem;

static problem problem_open(const kernel_table *t, const attend_case *c) {
    problem p = {.c = *c};
    const int64_t n = c->past + c->n_row, width = c->n_kv * c->d;
    p.q = random_rows(c->n_row * c->n_head * c->d, 1, 3);
    p.k = random_rows(n * width, 2, 2);
    p.v = random_rows(n * width, 3, 1);
    p.sinks = malloc((size_t)c->n_head * sizeof *p.sinks);
    for (int64_t h = 0; h < c->n_head; h++)
        p.sinks[h] = c->sink * sink_sizes[h % 3];
    p.kv = paged_kv_open(c->type, n, c->n_kv, c->d); /* NaN: unwritten positions must not be used */
    p.args = (attend_args){.kv = p.kv.view,
                           .q = p.q,
                           .n_row = c->n_row,
                           .first_position = c->past,
                           .n_head = c->n_head,
                           .window = c->window,
                           .scale = 1 / sqrtf((float)c->d),
                           .softcap = c->softcap,
                           .alibi_max_bias = c->alibi,
                           .alibi_scale = c->alibi_scale,
                           .sinks = c->sink > 0 ? p.sinks : NULL};
    for (int64_t i = n - 1; i >= 0; i--) {
        t->kv_store(&p.args.kv, false, i, p.k + i * width);
        t->kv_store(&p.args.kv, true, i, p.v + i * width);
    }
    return p;
}

static void problem_close(problem *p) {
    free(p->q);
    free(p->k);
    free(p->v);
    free(p->sinks);
    paged_kv_close(&p->kv);
}

/* Heads in steps of by_head, rows in steps of by_row. */
static guarded attend_by(const kernel_table *t, const problem *p, int64_t by_head, int64_t by_row) {
    const attend_case *c = &p->c;
    guarded out = guard_open((size_t)(c->n_row * c->n_head * c->d) * sizeof(float));
    guarded scratch = guard_open(attend_scratch_bytes(c->d, false));
    attend_args a = p->args;
    a.out = out.data;
    a.scratch = scratch.data;
    for (int64_t h = 0; h < c->n_head; h += by_head)
        for (int64_t r = 0; r < c->n_row; r += by_row)
            t->attend(&a, h, h + by_head < c->n_head ? h + by_head : c->n_head, r,
                      r + by_row < c->n_row ? r + by_row : c->n_row);
    guard_close(&scratch);
    return out;
}

/* Every row span by span, kv head by kv head, the spans from the last to the first, and joined in order. */
static guarded attend_by_parts(const kernel_table *t, const problem *p) {
    const attend_case *c = &p->c;
    const int64_t group = c->n_head / c->n_kv, each = attend_part_floats(c->d);
    guarded out = guard_open((size_t)(c->n_row * c->n_head * c->d) * sizeof(float));
    guarded scratch = guard_open(attend_scratch_bytes(c->d, false));
    attend_args a = p->args;
    a.out = out.data;
    a.scratch = scratch.data;
    for (int64_t r = 0; r < c->n_row; r++) {
        const int64_t seen = c->past + r + 1, lo = c->window > 0 && seen > c->window ? seen - c->window : 0;
        const int64_t first = lo / ATTEND_SPAN, end = (seen - 1) / ATTEND_SPAN + 1;
        guarded parts = guard_open((size_t)((end - first) * c->n_head * each) * sizeof(float));
        guarded total = guard_open((size_t)each * sizeof(float));
        float *at = parts.data;
        for (int64_t s = end - 1; s >= first; s--)
            for (int64_t h = 0; h < c->n_head; h += group)
                t->attend_part(&a, h, h + group, r, s, at + ((s - first) * c->n_head + h) * each);
        for (int64_t h = 0; h < c->n_head; h++)
            for (int64_t s = first; s < end; s++)
                t->attend_join(&a, h, r, at + ((s - first) * c->n_head + h) * each, s == first, s == end - 1,
                               total.data);
        guard_close(&parts);
        guard_close(&total);
    }
    guard_close(&scratch);
    return out;
}

static double stored(type_id type, float x) {
    return (double)(type == TYPE_F16 ? half_to_float(half_from_float(x)) : x);
}

static double slope_of(const attend_case *c, int64_t h) {
    if (c->alibi <= 0)
        return 0;
    const double n = exp2(floor(log2((double)c->n_head))),
                 scale = c->alibi_scale != 0 ? (double)c->alibi_scale : 1;
    return scale * ((double)h < n ? pow(2, -(double)c->alibi * (double)(h + 1) / n)
                                  : pow(2, -(double)c->alibi / 2 * (2 * ((double)h - n) + 1) / n));
}

static void check_row(const kernel_table *t, const problem *p, const float *out, int64_t r, int64_t h) {
    const attend_case *c = &p->c;
    const int64_t pos = c->past + r, width = c->n_kv * c->d, kv = h / (c->n_head / c->n_kv);
    const int64_t lo = c->window > 0 && pos + 1 > c->window ? pos + 1 - c->window : 0;
    double *s = malloc((size_t)(pos + 1) * sizeof *s), max = -1e300, sum = 0;
    for (int64_t j = lo; j <= pos; j++) {
        s[j] = 0;
        for (int64_t d = 0; d < c->d; d++)
            s[j] += (double)p->q[(r * c->n_head + h) * c->d + d] *
                    stored(c->type, p->k[j * width + kv * c->d + d]);
        s[j] *= (double)p->args.scale;
        if (c->softcap > 0)
            s[j] = (double)c->softcap * tanh(s[j] / (double)c->softcap);
        s[j] += slope_of(c, h) * (double)(j - pos);
        max = fmax(max, s[j]);
    }
    if (c->sink > 0) {
        max = fmax(max, (double)p->sinks[h]);
        sum = exp((double)p->sinks[h] - max);
    }
    for (int64_t j = lo; j <= pos; j++)
        sum += s[j] = exp(s[j] - max);
    for (int64_t d = 0; d < c->d; d++) {
        double y = 0;
        for (int64_t j = lo; j <= pos; j++)
            y += s[j] / sum * stored(c->type, p->v[j * width + kv * c->d + d]);
        const double found = (double)out[(r * c->n_head + h) * c->d + d];
        if (!(fabs(found - y) <=
              2e-6 * (1 + sqrt((double)c->d) / 8))) /* scores of size 10 err by some 1e-6 */
            fail_msg("%s: row %d head %d element %d is %.9g, expected %.9g (d %d, window %d)", t->isa, (int)r,
                     (int)h, (int)d, found, y, (int)c->d, (int)c->window);
    }
    free(s);
}

static void check_case(const attend_case *c) {
    const size_t n = (size_t)(c->n_row * c->n_head * c->d) * sizeof(float);
    problem p0 = problem_open(kernels_table_for("ref"), c);
    guarded expected = attend_by(kernels_table_for("ref"), &p0, c->n_head, c->n_row);
    EACH_OPS(t) {
        problem p = problem_open(t, c);
        assert_memory_equal(p.kv.pages[0], p0.kv.pages[0], 1);
        guarded out = attend_by(t, &p, c->n_head, c->n_row);
        for (int64_t r = 0; r < c->n_row; r += 1 + r / 4)
            for (int64_t h = 0; h < c->n_head; h++)
                check_row(t, &p, out.data, r, h);
        assert_memory_equal(out.data, expected.data, n); /* the same bits as the reference */
        const int64_t steps[][2] = {{1, 1}, {2, 5}, {c->n_head, 1}, {1, c->n_row}};
        for (int i = 0; i < 4; i++) {
            guarded other = attend_by(t, &p, steps[i][0], steps[i][1]);
            assert_memory_equal(out.data, other.data, n);
            guard_close(&other);
        }
        guarded other = attend_by_parts(t, &p);
        assert_memory_equal(out.data, other.data, n);
        guard_close(&other);
        guard_close(&out);
        problem_close(&p);
    }
    guard_close(&expected);
    problem_close(&p0);
}

static void test_cases(void **state) {
    (void)state;
    const attend_case cases[] = {
        {.n_head = 9, .n_kv = 3, .d = 64, .n_row = 1, .past = 0, .type = TYPE_F16},
        {.n_head = 9, .n_kv = 3, .d = 64, .n_row = 70, .past = 0, .type = TYPE_F16},
        {.n_head = 9, .n_kv = 3, .d = 64, .n_row = 3, .past = 150, .type = TYPE_F16},
        {.n_head = 4, .n_kv = 1, .d = 256, .n_row = 33, .past = 40, .window = 24, .type = TYPE_F16},
        {.n_head = 4, .n_kv = 4, .d = 32, .n_row = 90, .past = 0, .window = 1, .type = TYPE_F32},
        {.n_head = 4, .n_kv = 2, .d = 32, .n_row = 130, .past = 7, .window = 64, .type = TYPE_F32},
        {.n_head = 2, .n_kv = 2, .d = 80, .n_row = 20, .past = 60, .softcap = 5, .type = TYPE_F16},
        {.n_head = 6, .n_kv = 6, .d = 20, .n_row = 65, .past = 0, .alibi = 8, .type = TYPE_F32},
        {.n_head = 8, .n_kv = 1, .d = 8, .n_row = 17, .past = 3, .alibi = 8, .softcap = 30, .type = TYPE_F16},
        {.n_head = 4,
         .n_kv = 4,
         .d = 16,
         .n_row = 40,
         .past = 5,
         .alibi = 8,
         .alibi_scale = 0.25f,
         .type = TYPE_F32},
        {.n_head = 6,
         .n_kv = 2,
         .d = 12,
         .n_row = 3,
         .past = 90,
         .alibi = 8,
         .alibi_scale = 1,
         .type = TYPE_F16},
        {.n_head = 6,
         .n_kv = 3,
         .d = 12,
         .n_row = 3,
         .past = 90,
         .alibi = 8,
         .alibi_scale = 2.5f,
         .type = TYPE_F16},
        {.n_head = 3, .n_kv = 1, .d = 1, .n_row = 9, .past = 120, .type = TYPE_F16},
        {.n_head = 3, .n_kv = 3, .d = 17, .n_row = 9, .past = 120, .window = 70, .type = TYPE_F16},
        {.n_head = 9, .n_kv = 3, .d = 64, .n_row = 3, .past = 700, .type = TYPE_F16},
        {.n_head = 20, .n_kv = 2, .d = 20, .n_row = 5, .past = 253, .type = TYPE_F32},
        {.n_head = 2,
         .n_kv = 1,
         .d = 24,
         .n_row = 40,
         .past = 500,
         .window = 260,
         .alibi = 8,
         .type = TYPE_F16},
        {.n_head = 1, .n_kv = 1, .d = 48, .n_row = 200, .past = 0, .window = 100, .type = TYPE_F32},
        {.n_head = 9, .n_kv = 3, .d = 64, .n_row = 70, .past = 0, .sink = 4, .type = TYPE_F16},
        {.n_head = 3, .n_kv = 1, .d = 17, .n_row = 5, .past = 700, .sink = 8, .type = TYPE_F32},
        {.n_head = 4,
         .n_kv = 2,
         .d = 32,
         .n_row = 40,
         .past = 230,
         .window = 60,
         .sink = 300,
         .type = TYPE_F16},
        {.n_head = 6,
         .n_kv = 2,
         .d = 12,
         .n_row = 3,
         .past = 300,
         .softcap = 5,
         .alibi = 8,
         .sink = 3,
         .type = TYPE_F16},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_case(&cases[i]);
}

/* A sink of -infinity changes no bit; one far above all scores takes everything. */
static void test_sink_limits(void **state) {
    (void)state;
    attend_case c = {.n_head = 4, .n_kv = 2, .d = 20, .n_row = 7, .past = 520, .type = TYPE_F16};
    EACH_OPS(t) {
        problem p = problem_open(t, &c);
        guarded without = attend_by(t, &p, c.n_head, c.n_row);
        p.args.sinks = p.sinks;
        p.sinks[0] = p.sinks[1] = -INFINITY;
        p.sinks[2] = 1e30f;
        p.sinks[3] = -1e30f;
        guarded with = attend_by(t, &p, c.n_head, c.n_row);
        for (int64_t r = 0; r < c.n_row; r++)
            for (int64_t i = 0; i < c.n_head * c.d; i++) {
                const float found = ((float *)with.data)[r * c.n_head * c.d + i],
                            other = ((float *)without.data)[r * c.n_head * c.d + i];
                assert_true(found == (i / c.d == 2 ? 0 : other));
            }
        guard_close(&without);
        guard_close(&with);
        problem_close(&p);
    }
}

static void test_nan(void **state) {
    (void)state;
    const attend_case c = {.n_head = 4, .n_kv = 2, .d = 32, .n_row = 24, .past = 50, .type = TYPE_F16};
    EACH_OPS(t)
    for (int value = 0; value < 2; value++) {
        problem p = problem_open(t, &c);
        guarded clean = attend_by(t, &p, c.n_head, c.n_row);
        const int64_t at = 60; /* position 60 is row 10 */
        float *row = (value ? p.v : p.k) + at * c.n_kv * c.d;
        row[3] = NAN; /* kv head 0 */
        t->kv_store(&p.args.kv, value, at, row);
        guarded out = attend_by(t, &p, c.n_head, c.n_row);
        for (int64_t r = 0; r < c.n_row; r++)
            for (int64_t h = 0; h < c.n_head; h++) {
                const float *a = (float *)out.data + (r * c.n_head + h) * c.d;
                const float *b = (float *)clean.data + (r * c.n_head + h) * c.d;
                if (h < 2 && c.past + r >= at)
                    assert_true(isnan(a[3]));
                else
                    assert_memory_equal(a, b, (size_t)c.d * sizeof(float));
            }
        guard_close(&out);
        guard_close(&clean);
        problem_close(&p);
    }
}

/* A position that is written again behaves like a new one. */
static void test_rewrite(void **state) {
    (void)state;
    const attend_case c = {.n_head = 2, .n_kv = 1, .d = 24, .n_row = 1, .past = 33, .type = TYPE_F32};
    EACH_OPS(t) {
        problem p = problem_open(t, &c);
        guarded first = attend_by(t, &p, 2, 1);
        float other[24] = {5};
        for (int i = 0; i < 3; i++)
            t->kv_store(&p.args.kv, i & 1, 30 + i, other);
        for (int64_t i = 30; i < 34; i++) {
            t->kv_store(&p.args.kv, false, i, p.k + i * c.d);
            t->kv_store(&p.args.kv, true, i, p.v + i * c.d);
        }
        guarded again = attend_by(t, &p, 2, 1);
        assert_memory_equal(first.data, again.data, 2 * 24 * sizeof(float));
        guard_close(&again);
        guard_close(&first);
        problem_close(&p);
    }
}

static void test_sizes(void **state) {
    (void)state;
    uint64_t bytes;
    assert_true(kv_page_bytes(TYPE_F16, 3, 64, &bytes));
    assert_int_equal(bytes, 64 * 3 * 64 * 2);
    assert_true(kv_page_bytes(TYPE_F32, 1, 10, &bytes));
    assert_int_equal(bytes, 64 * 10 * 4);
    assert_false(kv_page_bytes(TYPE_F32, 1, INT64_MAX, &bytes));
    assert_false(kv_page_bytes(TYPE_F32, INT64_C(1) << 40, INT64_C(1) << 20, &bytes));
}

/* Values that are the keys have the bits of values that are stored as such. */
static void shared_keys_and_values(void **state) {
    (void)state;
    static const attend_case cases[] = {
        {.n_head = 3, .n_kv = 1, .d = 36, .n_row = 5, .past = 300},
        {.n_head = 40, .n_kv = 1, .d = 64, .n_row = 2, .past = 70, .window = 65},
        {.n_head = 4, .n_kv = 2, .d = 20, .n_row = 70, .past = 0, .sink = 1}};
    static const type_id types[] = {TYPE_F32, TYPE_F16};
    EACH_OPS(t)
    for (size_t i = 0; i < 2 * (sizeof cases / sizeof *cases); i++) {
        attend_case c = cases[i / 2];
        c.type = types[i % 2];
        problem p = problem_open(t, &c);
        for (int64_t at = 0; at < c.past + c.n_row; at++)
            t->kv_store(&p.args.kv, true, at, p.k + at * c.n_kv * c.d);
        guarded want = attend_by(t, &p, c.n_head, c.n_row);
        p.args.kv.shared = true;
        p.args.kv.value_at = p.args.kv.key_at;
        guarded whole = attend_by(t, &p, c.n_head, c.n_row), some = attend_by(t, &p, 1, 1);
        const size_t bytes = (size_t)(c.n_row * c.n_head * c.d) * sizeof(float);
        assert_memory_equal(whole.data, want.data, bytes);
        assert_memory_equal(some.data, want.data, bytes);
        guard_close(&want);
        guard_close(&whole);
        guard_close(&some);
        problem_close(&p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),       cmocka_unit_test(test_cases),
        cmocka_unit_test(test_sink_limits), cmocka_unit_test(test_nan),
        cmocka_unit_test(test_rewrite),     cmocka_unit_test(shared_keys_and_values)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
