/* A cache in codes on every instruction set: groups against their definition in double precision, attention
 * against double precision over the dequantized codes, equal bits for any order of the positions, also after
 * truncating to a shorter prefix. */
#include "support/guard.h"
#include "support/isas.h"
#include "support/matrix.h"
#include "support/paged_kv.h"
#include "support/sanitized.h"

#include "base/num.h"
#include "kernels/kernels.h"
#include "kernels/kv_layout.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct coded_case {
    int64_t n_head, n_kv, d, n, window; /* n positions, each a row */
    float softcap, alibi, sink;         /* sink: head h's is this times h; 0: there are none */
    type_id type;
    bool rotated, first;
} coded_case;

typedef struct cache {
    coded_case c;
    float *q, *k, *v, *out; /* [n, heads * d] */
    float *sinks;           /* [heads] */
    guarded scratch;
    paged_kv paged;
    kv_view kv;
} cache;

static cache cache_open(const coded_case *c) {
    cache x = {.c = *c};
    x.q = random_rows(c->n * c->n_head * c->d, 1, 3);
    x.k = random_rows(c->n * c->n_kv * c->d, 2, 2);
    x.v = random_rows(c->n * c->n_kv * c->d, 3, 1);
    x.out = calloc((size_t)(c->n * c->n_head * c->d), sizeof *x.out);
    x.sinks = malloc((size_t)c->n_head * sizeof *x.sinks);
    for (int64_t h = 0; h < c->n_head; h++)
        x.sinks[h] = c->sink * (float)h;
    for (int64_t i = 0; i < c->n * c->n_kv;
         i++) /* channels with a size and a place of their own, as keys have */
        for (int64_t d = 0; d < c->d; d++)
            x.k[i * c->d + d] = x.k[i * c->d + d] * (float)(1 + d % 7) / 4 + (float)(d % 5) - 2;
    x.scratch = guard_open(attend_scratch_bytes(c->d, true));
    x.paged = paged_kv_open(c->type, c->n, c->n_kv, c->d); /* NaN: unwritten positions must not be used */
    x.kv = x.paged.view;
    x.kv.rotated = c->rotated;
    x.kv.first = c->first;
    return x;
}

static void cache_close(cache *x) {
    free(x->q);
    free(x->k);
    free(x->v);
    free(x->out);
    free(x->sinks);
    paged_kv_close(&x->paged);
    guard_close(&x->scratch);
}

/* Rows [first, first + n) of one block, as a cell does them. */
static void step(const kernel_table *t, cache *x, int64_t first, int64_t n, int64_t by_head) {
    const coded_case *c = &x->c;
    for (int64_t i = first + n - 1; i >= first; i--) {
        t->kv_store(&x->kv, false, i, x->k + i * c->n_kv * c->d);
        t->kv_store(&x->kv, true, i, x->v + i * c->n_kv * c->d);
    }
    for (int64_t h = 0; (first + n) % KV_BLOCK == 0 && h < c->n_kv; h++) {
        t->kv_pack(&x->kv, false, h, first / KV_BLOCK);
        t->kv_pack(&x->kv, true, h, first / KV_BLOCK);
    }
    const attend_args a = {.kv = x->kv,
                           .q = x->q + first * c->n_head * c->d,
                           .out = x->out + first * c->n_head * c->d,
                           .n_row = n,
                           .first_position = first,
                           .n_head = c->n_head,
                           .window = c->window,
                           .scale = 1 / sqrtf((float)c->d),
                           .softcap = c->softcap,
                           .alibi_max_bias = c->alibi,
                           .sinks = c->sink > 0 ? x->sinks : NULL,
                           .scratch = x->scratch.data};
    for (int64_t h = 0; h < c->n_head; h += by_head)
        t->attend(&a, h, NUM_MIN(h + by_head, c->n_head), 0, n);
}

static void steps(const kernel_table *t, cache *x, int64_t first, int64_t n, int64_t by_row,
                  int64_t by_head) {
    for (int64_t some; first < n; first += some) {
        some = NUM_MIN(NUM_MIN(by_row, n - first), KV_BLOCK - first % KV_BLOCK);
        step(t, x, first, some, by_head);
    }
}

/* ---- groups ---- */

static double half(double x) {
    return (double)half_to_float(half_from_float((float)x));
}

/* Rows [n] of heads as they are stored. */
static float *stored(const cache *x, bool is_value) {
    const int64_t n = x->c.n * x->c.n_kv * x->c.d;
    float *out = malloc((size_t)n * sizeof *out);
    memcpy(out, is_value ? x->v : x->k, (size_t)n * sizeof *out);
    if (is_value)
        hadamard(out, n, kv_rotation(&x->kv));
    return out;
}

/* Every code is the nearest one between the group's smallest value and its largest. */
static void check_groups(const cache *x, bool is_value) {
    const coded_case *c = &x->c;
    float *from = stored(x, is_value);
    const double max = c->type == TYPE_KV8 ? 255 : 15;
    float *row = malloc((size_t)c->d * sizeof *row);
    for (int64_t p = 0; p < c->n / KV_BLOCK * KV_BLOCK; p++)
        for (int64_t h = 0; h < c->n_kv; h++) {
            kv_read(&x->kv, is_value, h, p, row);
            if (is_value)
                hadamard(row, c->d, kv_rotation(&x->kv));
            for (int64_t d = 0; d < c->d; d++) {
                const bool apart = c->first && p < KV_BLOCK; /* keys in one group, but for position 0 */
                const int64_t at = is_value ? d : p, each = apart && !is_value ? KV_BLOCK : 32;
                const int64_t g = at / each * each, end = is_value ? c->d : c->n;
                double low = INFINITY, high = -INFINITY;
                for (int64_t i = apart && p == 0      ? end
                                 : apart && !is_value ? 1
                                                      : g;
                     i < NUM_MIN(g + each, end); i++) {
                    const int64_t pos = is_value ? p : i, chan = is_value ? i : d;
                    const double y = half((double)from[(pos * c->n_kv + h) * c->d + chan]);
                    low = fmin(low, y);
                    high = fmax(high, y);
                }
                const double y = half((double)from[(p * c->n_kv + h) * c->d + d]);
                if (apart && p == 0)
                    low = high = y;
                /* half a step, plus the error of the rounded scale at the far end */
                const double bound = (high - low) / max * 0.501 + (high - low) / 2048 + 3e-6;
                if (!(fabs((double)row[d] - y) <= bound))
                    fail_msg("%s of position %d, head %d, channel %d: %g for %g, bound %g",
                             is_value ? "value" : "key", (int)p, (int)h, (int)d, (double)row[d], y, bound);
            }
        }
    free(row);
    free(from);
}

/* ---- rows ---- */

static void seen(const cache *x, bool is_value, int64_t h, int64_t p, int64_t row, float *out) {
    const float *from = (is_value ? x->v : x->k) + (p * x->c.n_kv + h) * x->c.d;
    if (p / KV_BLOCK < row / KV_BLOCK) {
        kv_read(&x->kv, is_value, h, p, out);
        return;
    }
    const int64_t turn = is_value ? kv_rotation(&x->kv) : 1;
    memcpy(out, from, (size_t)x->c.d * sizeof *out);
    hadamard(out, x->c.d, turn);
    for (int64_t d = 0; d < x->c.d; d++)
        out[d] = (float)half((double)out[d]);
    hadamard(out, x->c.d, turn);
}

static void check_row(const kernel_table *t, const cache *x, int64_t r, int64_t h) {
    const coded_case *c = &x->c;
    const int64_t kv = h / (c->n_head / c->n_kv);
    const int64_t lo = c->window > 0 && r + 1 > c->window ? r + 1 - c->window : 0;
    double *s = malloc((size_t)(r + 1) * sizeof *s), max = -1e300, sum = 0;
    double *y = calloc((size_t)c->d, sizeof *y);
    float *row = malloc((size_t)c->d * sizeof *row);
    const float *q = x->q + (r * c->n_head + h) * c->d, *found = x->out + (r * c->n_head + h) * c->d;
    for (int64_t j = lo; j <= r; j++) {
        s[j] = 0;
        seen(x, false, kv, j, r, row);
        for (int64_t d = 0; d < c->d; d++)
            s[j] += (double)q[d] * (double)row[d];
        s[j] /= sqrt((double)c->d);
        if (c->softcap > 0)
            s[j] = (double)c->softcap * tanh(s[j] / (double)c->softcap);
        if (c->alibi > 0) /* n_head is a power of two in these cases */
            s[j] += pow(2, -(double)c->alibi * (double)(h + 1) / (double)c->n_head) * (double)(j - r);
        max = fmax(max, s[j]);
    }
    if (c->sink > 0) {
        max = fmax(max, (double)x->sinks[h]);
        sum = exp((double)x->sinks[h] - max);
    }
    for (int64_t j = lo; j <= r; j++)
        sum += s[j] = exp(s[j] - max);
    for (int64_t j = lo; j <= r; j++) {
        seen(x, true, kv, j, r, row);
        for (int64_t d = 0; d < c->d; d++)
            y[d] += s[j] / sum * (double)row[d];
    }
    for (int64_t d = 0; d < c->d; d++) /* scores of size 30 err by some 5e-6 */
        if (!(fabs((double)found[d] - y[d]) <= 1e-5 * (1 + sqrt((double)c->d) / 8)))
            fail_msg("%s: row %d head %d element %d is %.9g, expected %.9g (d %d, type %d)", t->isa, (int)r,
                     (int)h, (int)d, (double)found[d], y[d], (int)c->d, (int)c->type);
    free(s);
    free(y);
    free(row);
}

static void check_case(const coded_case *c) {
    const size_t n = (size_t)(c->n * c->n_head * c->d) * sizeof(float);
    static const int64_t ways[][2] = {{1, 1}, {7, 2}, {33, 100}, {63, 1}};
    cache first = cache_open(c);
    steps(kernels_table_for("ref"), &first, 0, c->n, KV_BLOCK, c->n_head);
    check_groups(&first, false);
    check_groups(&first, true);
    for (int64_t r = 0; r < c->n; r += 1 + r / 5)
        for (int64_t h = 0; h < c->n_head; h++)
            check_row(kernels_table_for("ref"), &first, r, h);
    EACH_OPS(t) {
        cache x = cache_open(c);
        steps(t, &x, 0, c->n, KV_BLOCK, c->n_head);
        assert_memory_equal(x.out, first.out, n); /* the same bits as the reference */
        for (size_t i = 0; i < NUM_COUNT(ways); i++) {
            cache other = cache_open(c);
            steps(t, &other, 0, c->n, ways[i][0], ways[i][1]);
            assert_memory_equal(other.out, first.out, n);
            cache_close(&other);
        }
        cache_close(&x);
    }
    cache_close(&first);
}

static void test_cases(void **state) {
    (void)state;
    coded_case cases[] = {
        {.n_head = 9, .n_kv = 3, .d = 64, .n = 200},
        {.n_head = 4, .n_kv = 1, .d = 256, .n = 150, .window = 24},
        {.n_head = 4, .n_kv = 1, .d = 128, .n = 200, .window = 100},
        {.n_head = 2, .n_kv = 2, .d = 80, .n = 140, .softcap = 5},
        {.n_head = 8, .n_kv = 1, .d = 20, .n = 130, .alibi = 8},
        {.n_head = 3, .n_kv = 1, .d = 1, .n = 129},
        {.n_head = 2, .n_kv = 2, .d = 96, .n = 64},
        {.n_head = 2, .n_kv = 1, .d = 48, .n = 63, .window = 1},
        {.n_head = 6, .n_kv = 2, .d = 64, .n = 150, .window = 100, .sink = 4},
    };
    for (size_t i = 0; i < NUM_COUNT(cases); i++)
        for (int way = 0; way < 5; way++) { /* the last one: kv4s */
            if (SANITIZED && way != (int)i % 5)
                continue;
            cases[i].type = way % 2 ? TYPE_KV8 : TYPE_KV4;
            cases[i].rotated = way / 2 == 1;
            cases[i].first = way == 4;
            check_case(&cases[i]);
        }
}

/* Truncates to a shorter prefix and continues with other rows, as kernels.h allows: the dropped rows have no
 * effect. */
static void test_going_back(void **state) {
    (void)state;
    const coded_case c = {.n_head = 2, .n_kv = 1, .d = 32, .n = 250, .type = TYPE_KV4, .rotated = true};
    static const int64_t back[] = {249, 200, 193, 192, 128, 64};
    const size_t n = (size_t)(c.n * c.n_head * c.d) * sizeof(float);
    EACH_OPS(t) {
        cache want = cache_open(&c);
        steps(t, &want, 0, c.n, 50, 2);
        for (size_t i = 0; i < NUM_COUNT(back); i++) {
            cache x = cache_open(&c);
            float *k = random_rows(c.n * c.d, 77, 5), *own = x.k;
            memcpy(k, own, (size_t)(back[i] * c.d) * sizeof *k);
            x.k = k;
            steps(t, &x, 0, c.n, 50, 2);
            x.k = own;
            steps(t, &x, back[i], c.n, 31, 1);
            assert_memory_equal(x.out, want.out, n);
            free(k);
            cache_close(&x);
        }
        cache_close(&want);
    }
}

/* A value that is not finite affects the rows that see its group, and no others. */
static void test_nan(void **state) {
    (void)state;
    const coded_case c = {
        .n_head = 4, .n_kv = 2, .d = 64, .n = 200, .window = 40, .type = TYPE_KV8, .rotated = true};
    EACH_OPS(t)
    for (int value = 0; value < 2; value++) {
        cache clean = cache_open(&c), x = cache_open(&c);
        (value ? x.v : x.k)[(10 * c.n_kv + 0) * c.d + 3] = value ? INFINITY : NAN; /* kv head 0 */
        steps(t, &clean, 0, c.n, 64, 4);
        steps(t, &x, 0, c.n, 64, 4);
        for (int64_t r = 0; r < c.n; r++)
            for (int64_t h = 0; h < c.n_head; h++) {
                const int64_t at = (r * c.n_head + h) * c.d;
                const bool sees = h < 2 && r >= 10 && r < 10 + c.window;
                const int64_t reach = value ? 11 : 32; /* the end of its group */
                if (sees)
                    assert_false(isfinite(x.out[at + 3]));
                else if (h >= 2 || r < 10 || r >= reach - 1 + c.window)
                    assert_memory_equal(x.out + at, clean.out + at, (size_t)c.d * sizeof(float));
            }
        cache_close(&x);
        cache_close(&clean);
    }
}

static void test_sizes(void **state) {
    (void)state;
    uint64_t bytes;
    assert_true(kv_page_bytes(TYPE_KV4, 3, 64, &bytes));
    assert_int_equal(bytes, 64 / 32 * 3 * 64 * 20);
    assert_true(kv_page_bytes(TYPE_KV8, 3, 64, &bytes));
    assert_int_equal(bytes, 64 / 32 * 3 * 64 * 36);
    assert_false(kv_page_bytes(TYPE_KV4, 1, INT64_MAX, &bytes));
    assert_false(kv_page_bytes(TYPE_KV8, INT64_C(1) << 55, 64, &bytes));
    static const type_id types[] = {TYPE_F16, TYPE_F32};
    for (size_t i = 0; i < NUM_COUNT(types); i++) {
        uint64_t before = 0;
        assert_true(kv_page_bytes(types[i], 3, 72, &bytes));
        for (int64_t n = 0; n <= KV_BLOCK; n++) {
            const uint64_t now = kv_page_touched(types[i], 3, 72, n, 64);
            assert_true(now >= before && now <= bytes);
            before = now;
        }
        assert_int_equal(before, bytes);
        assert_int_equal(kv_page_touched(types[i], 3, 72, 0, 4096), 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sizes), cmocka_unit_test(test_cases),
                                       cmocka_unit_test(test_going_back), cmocka_unit_test(test_nan)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
