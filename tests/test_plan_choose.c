/* The choice of formats against every possible choice, on small random instances. */
#include "plan/choose.h"

#include "base/num.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_BLOCK = 7, MAX_OPTION = 5 };

static uint64_t state = 88172645463325252u;

static double random_unit(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (double)(state >> 11) / 9007199254740992.0;
}

static int random_to(int n) {
    return (int)(random_unit() * n);
}

typedef struct instance {
    choose_option options[MAX_BLOCK * MAX_OPTION];
    int first[MAX_BLOCK + 1];
    choose_problem p;
} instance;

/* like: all blocks have the same options, except for their losses, as the layers of a model do. */
static void make(instance *x, bool like) {
    const int n = 1 + random_to(MAX_BLOCK), n_option = 1 + random_to(MAX_OPTION);
    const bool with_before = random_to(2);
    double bytes = 0;
    for (int b = 0; b < n; b++) {
        x->first[b] = b * n_option;
        for (int w = 0; w < n_option; w++) {
            choose_option *to = &x->options[b * n_option + w];
            const double size = like ? 8 - w : 1 + 7 * random_unit();
            *to = (choose_option){like ? size + (w == 2 ? 4 : 0) : size * (0.5 + random_unit()), size,
                                  w ? random_unit() * w : 0, with_before ? random_unit() * 8 : 0};
            bytes += to->bytes / n_option;
        }
    }
    x->first[n] = n * n_option;
    x->p = (choose_problem){.options = x->options,
                            .first = x->first,
                            .n_block = n,
                            .n_tier = random_to(CHOOSE_MAX_TIER + 1),
                            .fixed_s = random_to(2) ? random_unit() * 5 : 0,
                            .apart = random_to(2) ? random_unit() : 0,
                            .before_reads = with_before ? 2 * random_unit() : 0,
                            .max_bytes = random_to(3) ? INFINITY : bytes * (0.6 + random_unit()),
                            .max_loss = random_to(5) ? random_unit() * n * n_option / 3 : 0,
                            .max_time = random_to(3) ? INFINITY : 8 * n * random_unit(),
                            .max_node = INT64_MAX};
    double capacity = 0;
    for (int t = 0; t < x->p.n_tier; t++) {
        capacity += bytes * random_unit() * 1.2 / x->p.n_tier;
        x->p.tiers[t] =
            (choose_tier){capacity, random_to(4) ? 3 * random_unit() : 0, random_to(2) ? random_unit() : 0};
    }
}

typedef struct best {
    double value, time;
} best;

static void try_all(const instance *x, int b, choose_option sum, best *out) {
    const choose_problem *p = &x->p;
    if (b == p->n_block) {
        const double t = choose_time(p, &sum);
        if (sum.bytes > p->max_bytes || sum.loss > p->max_loss || t > p->max_time)
            return;
        const double v = isfinite(p->max_time) ? sum.loss : t;
        if (v < out->value || (v <= out->value && t < out->time))
            *out = (best){v, t};
        return;
    }
    for (int i = x->first[b]; i < x->first[b + 1]; i++)
        try_all(x, b + 1,
                (choose_option){sum.time + x->options[i].time, sum.bytes + x->options[i].bytes,
                                sum.loss + x->options[i].loss, sum.before + x->options[i].before},
                out);
}

static void against_brute_force(void **unused) {
    (void)unused;
    int n_found = 0;
    for (int round = 0; round < 1500; round++) {
        instance x;
        int choice[MAX_BLOCK];
        choose_result r;
        best want = {INFINITY, INFINITY};
        make(&x, round % 2);
        try_all(&x, 0, (choose_option){0}, &want);
        assert_int_equal(choose(&x.p, choice, &r, NULL), NIB_OK);
        assert_int_equal(r.found, isfinite(want.value));
        if (!r.found)
            continue;
        n_found++;
        choose_option sum = {0};
        for (int b = 0; b < x.p.n_block; b++) {
            const choose_option *w = &x.options[x.first[b] + choice[b]];
            assert_in_range(choice[b], 0, x.first[b + 1] - x.first[b] - 1);
            sum = (choose_option){sum.time + w->time, sum.bytes + w->bytes, sum.loss + w->loss,
                                  sum.before + w->before};
        }
        const double time = choose_time(&x.p, &sum);
        const double value = isfinite(x.p.max_time) ? sum.loss : time;
        if (!r.proved || fabs(value - want.value) > 1e-9 * (1 + want.value) || fabs(time - r.time) > 1e-9)
            fail_msg("round %d: %.12g instead of %.12g", round, value, want.value);
        assert_true(r.bound <= want.value + 1e-9);
    }
    assert_true(n_found > 500);
}

/* As large as a model: few steps are allowed, and the result is near the bound. */
static void large(void **unused) {
    (void)unused;
    enum { N = 98, W = 9 };
    static choose_option options[N * W];
    static int first[N + 1], choice[N];
    for (int b = 0; b < N; b++) {
        first[b] = b * W;
        for (int w = 0; w < W; w++)
            options[b * W + w] = (choose_option){1e-3 * (9 - w) + (w == 4 ? 1e-3 : 0), 1e8 * (9 - w),
                                                 w ? 1e-5 * (0.5 + random_unit()) * exp2(1.5 * w) : 0, 0};
    }
    first[N] = N * W;
    const choose_problem p = {.options = options,
                              .first = first,
                              .n_block = N,
                              .tiers = {{.capacity = 1e10, .link_s = 1e-9}},
                              .n_tier = 1,
                              .max_bytes = INFINITY,
                              .max_loss = 0.02,
                              .max_time = INFINITY,
                              .max_node = 100000};
    choose_result r;
    assert_int_equal(choose(&p, choice, &r, NULL), NIB_OK);
    assert_true(r.found && r.loss <= 0.02);
    assert_true(r.bound <= r.time && r.time <= 1.002 * r.bound);
}

/* Three tiers with the slowest link last: blocks become smaller until that link carries nothing, and no
 * smaller, because the traffic of the first link is hidden. */
static void slow_links_decide(void **unused) {
    (void)unused;
    enum { N = 10 };
    static choose_option options[N * 2];
    static int first[N + 1], choice[N];
    for (int b = 0; b <= N; b++)
        first[b] = 2 * b;
    for (int b = 0; b < N; b++) {
        options[2 * b] = (choose_option){1, 10, 0, 0};
        options[2 * b + 1] = (choose_option){1, 5, 1, 0};
    }
    const choose_problem p = {.options = options,
                              .first = first,
                              .n_block = N,
                              .tiers = {{.capacity = 40, .link_s = 0.1}, {.capacity = 80, .link_s = 10}},
                              .n_tier = 2,
                              .max_bytes = INFINITY,
                              .max_loss = 6,
                              .max_time = INFINITY,
                              .max_node = INT64_MAX};
    choose_result r;
    assert_int_equal(choose(&p, choice, &r, NULL), NIB_OK);
    assert_true(r.found && r.proved && r.bytes <= 80 && fabs(r.time - N) < 1e-9);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(against_brute_force), cmocka_unit_test(large),
                                       cmocka_unit_test(slow_links_decide)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
