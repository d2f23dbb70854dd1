/* The sampler against a plain computation of llama.cpp's chain of cuts, and calls that it must refuse.
 */
#include "base/mem.h"
#include "sequence/sampler.h"
#include "support/sanitized.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_VOCAB = 50, N_DRAW = SANITIZED ? 10000 : 40000 };

typedef struct entry {
    double logit, p;
    int id;
} entry;

static int by_logit(const void *a, const void *b) {
    const entry *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return x->id - y->id;
}

/* Sort everything, cut, and divide: slow and obvious. p[id] is 0 for tokens that are cut. */
static void expected(const nib_sampling *how, const float *logits, double *p) {
    entry e[N_VOCAB];
    int n = N_VOCAB;
    double sum = 0, total = 0;
    for (int i = 0; i < n; i++)
        e[i] = (entry){(double)logits[i], 0, i};
    qsort(e, (size_t)n, sizeof *e, by_logit);
    if (how->top_k > 0 && how->top_k < n)
        n = how->top_k;
    for (int i = 0; i < n; i++)
        total += e[i].p = exp(e[i].logit - e[0].logit);
    if (how->top_p < 1) {
        int keep = 0;
        while (keep < n && (keep == 0 || sum < (double)how->top_p * total))
            sum += e[keep++].p;
        n = keep;
    }
    int keep = 1;
    while (keep < n && e[keep].p >= (double)how->min_p)
        keep++;
    n = keep;
    total = 0;
    for (int i = 0; i < n; i++)
        total += e[i].p = exp((e[i].logit - e[0].logit) / (double)how->temperature);
    memset(p, 0, N_VOCAB * sizeof *p);
    for (int i = 0; i < n; i++)
        p[e[i].id] = e[i].p / total;
}

static void make_logits(float *logits) {
    for (int i = 0; i < N_VOCAB; i++)
        logits[i] = (float)((i * 37) % N_VOCAB) * 0.15f; /* a permutation, so no two are equal */
}

static void compare(nib_sampling how) {
    float logits[N_VOCAB];
    double p[N_VOCAB];
    int seen[N_VOCAB] = {0};
    sampler s;
    make_logits(logits);
    expected(&how, logits, p);
    assert_int_equal(sampler_open(&s, &how, N_VOCAB, NULL), NIB_OK);
    for (int i = 0; i < N_DRAW; i++)
        seen[sampler_draw(&s, logits, NULL, 0)]++;
    sampler_close(&s);
    for (int i = 0; i < N_VOCAB; i++) {
        double deviation = sqrt(p[i] * (1 - p[i]) / N_DRAW), found = (double)seen[i] / N_DRAW;
        if (p[i] == 0)
            assert_int_equal(seen[i], 0);
        else
            assert_true(fabs(found - p[i]) < 5 * deviation + 5.0 / N_DRAW);
    }
}

static nib_sampling plain(void) {
    nib_sampling how;
    nib_sampling_init(&how);
    how.temperature = 1;
    how.top_k = 0;
    how.top_p = 1;
    how.min_p = 0;
    how.seed = 7;
    return how;
}

static void distributions(void **state) {
    (void)state;
    static const float temperatures[] = {0.3f, 1, 1.7f}, top_ps[] = {1, 0.9f, 0.4f, 0.01f},
                       min_ps[] = {0, 0.05f, 0.6f};
    static const int top_ks[] = {0, 1, 5, 49, 50, 1000};
    for (int t = 0; t < 3; t++)
        for (int k = 0; k < 6; k++)
            for (int p = 0; p < 4; p++)
                for (int m = 0; m < 3; m++) {
                    if ((t + k + p + m) % 4 != 0 && (t != 1 || SANITIZED))
                        continue;
                    nib_sampling how = plain();
                    how.temperature = temperatures[t];
                    how.top_k = top_ks[k];
                    how.top_p = top_ps[p];
                    how.min_p = min_ps[m];
                    compare(how);
                }
}

static void greedy_takes_the_first_of_the_best(void **state) {
    (void)state;
    float logits[N_VOCAB];
    sampler s;
    nib_sampling how = plain();
    how.temperature = 0;
    make_logits(logits);
    logits[9] = logits[30] = 100;
    logits[3] = NAN;
    assert_int_equal(sampler_open(&s, &how, N_VOCAB, NULL), NIB_OK);
    assert_int_equal(sampler_draw(&s, logits, NULL, 0), 9);
    sampler_close(&s);
}

static void penalties(void **state) {
    (void)state;
    float logits[4] = {2, 1.9f, -1, 1.5f};
    int32_t past[] = {0, 2, 0, 1};
    sampler s;
    nib_sampling how = plain();
    how.temperature = 0;
    how.repeat_penalty = 1.5f; /* 2 / 1.5 = 1.33, 1.9 / 1.5 = 1.27 */
    how.penalty_window = -1;
    assert_int_equal(sampler_open(&s, &how, 4, NULL), NIB_OK);
    assert_int_equal(sampler_draw(&s, logits, past, 4), 3);
    assert_int_equal(sampler_draw(&s, logits, past, 0), 0);
    sampler_close(&s);
    how.penalty_window = 1; /* only token 1 */
    assert_int_equal(sampler_open(&s, &how, 4, NULL), NIB_OK);
    assert_int_equal(sampler_draw(&s, logits, past, 4), 0);
    sampler_close(&s);
    how.repeat_penalty = 1;
    how.penalty_window = 4;
    how.frequency_penalty = 0.2f; /* 2 - 0.4 = 1.6, 1.9 - 0.2 = 1.7 */
    assert_int_equal(sampler_open(&s, &how, 4, NULL), NIB_OK);
    assert_int_equal(sampler_draw(&s, logits, past, 4), 1);
    sampler_close(&s);
    how.frequency_penalty = 0;
    how.presence_penalty = 0.6f; /* 1.4, 1.3, 1.5 */
    assert_int_equal(sampler_open(&s, &how, 4, NULL), NIB_OK);
    assert_int_equal(sampler_draw(&s, logits, past, 4), 3);
    sampler_close(&s);
}

static void a_seed_repeats(void **state) {
    (void)state;
    float logits[N_VOCAB];
    int32_t a[64], b[64];
    int same = 0;
    make_logits(logits);
    nib_sampling how = plain();
    sampler s;
    for (int round = 0; round < 3; round++) {
        how.seed = round < 2 ? 11 : 12;
        assert_int_equal(sampler_open(&s, &how, N_VOCAB, NULL), NIB_OK);
        for (int i = 0; i < 64; i++)
            (round == 0 ? a : b)[i] = sampler_draw(&s, logits, NULL, 0);
        sampler_close(&s);
        if (round == 1)
            assert_memory_equal(a, b, sizeof a);
    }
    for (int i = 0; i < 64; i++)
        same += a[i] == b[i];
    assert_true(same < 32);
}

static void strange_logits(void **state) {
    (void)state;
    float logits[N_VOCAB];
    sampler s;
    nib_sampling how = plain();
    how.top_p = 0.9f;
    for (int kind = 0; kind < 3; kind++) {
        for (int i = 0; i < N_VOCAB; i++)
            logits[i] = kind == 0 ? NAN : kind == 1 ? -INFINITY : (i == 4 ? INFINITY : 0);
        for (int k = 0; k < 60; k += 20) {
            how.top_k = k;
            assert_int_equal(sampler_open(&s, &how, N_VOCAB, NULL), NIB_OK);
            int32_t id = sampler_draw(&s, logits, NULL, 0);
            assert_in_range(id, 0, N_VOCAB - 1);
            if (kind == 2)
                assert_int_equal(id, 4);
            sampler_close(&s);
        }
    }
}

static void drawing_allocates_nothing(void **state) {
    (void)state;
    float logits[N_VOCAB];
    int32_t past[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    sampler s;
    nib_sampling how = plain();
    how.repeat_penalty = 1.1f;
    how.top_k = 20;
    how.top_p = 0.8f;
    make_logits(logits);
    assert_int_equal(sampler_open(&s, &how, N_VOCAB, NULL), NIB_OK);
    fault_arm(FAULT_ALLOC, INT64_MAX);
    for (int i = 0; i < 100; i++)
        sampler_draw(&s, logits, past, 8);
    assert_int_equal(fault_count(FAULT_ALLOC), 0);
    fault_arm(FAULT_ALLOC, 0);
    sampler_close(&s);
}

static void meaningless_values_are_refused(void **state) {
    (void)state;
    nib_error err;
    nib_sampling how = plain();
    how.top_p = 0;
    assert_int_equal(sampler_check(&how, &err), NIB_E_USAGE);
    how = plain();
    how.temperature = NAN;
    assert_int_equal(sampler_check(&how, &err), NIB_E_USAGE);
    how = plain();
    how.top_k = -1;
    assert_int_equal(sampler_check(&how, &err), NIB_E_USAGE);
    how = plain();
    how.min_p = 1.5f;
    assert_int_equal(sampler_check(&how, &err), NIB_E_USAGE);
    how = plain();
    how.repeat_penalty = 0;
    assert_int_equal(sampler_check(&how, &err), NIB_E_USAGE);
}

/* From the largest logits alone: the same tokens. */
static void test_best(void **state) {
    (void)state;
    enum { MAX_BEST = 20 };
    static const nib_sampling all[] = {
        {.temperature = 0, .top_p = 1, .repeat_penalty = 1},
        {.temperature = 1, .top_k = 5, .top_p = 0.9f, .min_p = 0.02f, .repeat_penalty = 1, .seed = 7},
        {.temperature = 2, .top_k = MAX_BEST, .top_p = 1, .repeat_penalty = 1, .seed = 8}};
    float logits[N_VOCAB], best[MAX_BEST];
    int32_t ids[MAX_BEST];
    for (size_t c = 0; c < sizeof all / sizeof *all; c++) {
        sampler a, b;
        assert_int_equal(sampler_open(&a, &all[c], N_VOCAB, NULL), NIB_OK);
        assert_int_equal(sampler_open(&b, &all[c], N_VOCAB, NULL), NIB_OK);
        const int n = sampler_n_best(&a, MAX_BEST);
        assert_int_equal(n, c ? all[c].top_k : 1);
        assert_int_equal(sampler_n_best(&a, n - 1), 0);
        for (int round = 0; round < 200; round++) {
            make_logits(logits);
            for (int i = 0; i < N_VOCAB; i++) /* some are equal, some nothing */
                logits[i] = round % 3 == 2 && i % 4 ? -INFINITY : logits[(i + round) % N_VOCAB];
            logits[round % N_VOCAB] = round % 2 ? NAN : INFINITY;
            bool taken[N_VOCAB] = {false};
            for (int i = 0; i < n; i++) {
                int at = -1;
                for (int t = 0; t < N_VOCAB; t++)
                    if (!taken[t] && (at < 0 || logits[t] > logits[at] || isnan(logits[at])))
                        at = t;
                taken[ids[i] = at] = true;
                best[i] = logits[at];
            }
            assert_int_equal(sampler_draw_best(&b, ids, best), sampler_draw(&a, logits, NULL, 0));
        }
        sampler_close(&a), sampler_close(&b);
    }
    const nib_sampling whole = {.temperature = 1, .top_p = 1, .repeat_penalty = 1};
    sampler s;
    assert_int_equal(sampler_open(&s, &whole, N_VOCAB, NULL), NIB_OK);
    assert_int_equal(sampler_n_best(&s, MAX_BEST), 0);
    sampler_close(&s);
}

/* From changed logits only, as a back end changes them: the same tokens as from all logits with penalties. */
static void test_changes(void **state) {
    (void)state;
    enum { PAST = 90 };
    static const nib_sampling all[] = {
        {.temperature = 0, .top_p = 1, .repeat_penalty = 1.3f, .penalty_window = 64},
        {.temperature = 0, .top_p = 1, .repeat_penalty = 0.7f, .presence_penalty = -1, .penalty_window = -1},
        {.temperature = 1,
         .top_k = 7,
         .top_p = 0.95f,
         .repeat_penalty = 1,
         .frequency_penalty = 0.7f,
         .penalty_window = 20,
         .seed = 3},
        {.temperature = 1, .top_k = 7, .top_p = 1, .repeat_penalty = 1, .seed = 3}};
    static const nib_logit_bias bias[] = {{2, -INFINITY}, {5, 3}, {44, -0.5f}};
    float logits[N_VOCAB], with_bias[N_VOCAB];
    int32_t past[PAST];
    for (size_t c = 0; c < sizeof all / sizeof *all; c++) {
        sampler a, b;
        assert_int_equal(sampler_open(&a, &all[c], N_VOCAB, NULL), NIB_OK);
        assert_int_equal(sampler_open(&b, &all[c], N_VOCAB, NULL), NIB_OK);
        for (int round = 0; round < 300; round++) {
            const int n_past = round % PAST, n_bias = round % 4, n_best = sampler_n_best(&a, N_VOCAB);
            logit_change changes[3 + N_VOCAB];
            float best[N_VOCAB];
            int32_t ids[N_VOCAB];
            bool taken[N_VOCAB] = {false};
            make_logits(logits);
            logits[round % N_VOCAB] = round % 3 ? NAN : -3;
            for (int i = 0; i < n_past; i++)
                past[i] = (i * i + round) % (N_VOCAB + 1); /* one is no token of the vocabulary */
            memcpy(with_bias, logits, sizeof logits);
            for (int i = 0; i < n_bias; i++)
                with_bias[bias[i].token] += bias[i].bias;
            const int64_t n = sampler_changes(&b, past, n_past, bias, n_bias, changes);
            const logit_row row = {0, (int32_t)n, all[c].repeat_penalty, all[c].frequency_penalty,
                                   all[c].presence_penalty};
            assert_true(n <= n_bias + sampler_max_changes(&b, n_past));
            for (int64_t i = 0; i < n; i++) {
                for (int64_t j = 0; j < i; j++)
                    assert_int_not_equal(changes[i].token, changes[j].token);
                logits[changes[i].token] = logit_changed(logits[changes[i].token], &changes[i], &row);
            }
            for (int i = 0; i < n_best; i++) {
                int at = -1;
                for (int t = 0; t < N_VOCAB; t++)
                    if (!taken[t] && (at < 0 || logits[t] > logits[at] || isnan(logits[at])))
                        at = t;
                taken[ids[i] = at] = true;
                best[i] = logits[at];
            }
            assert_int_equal(sampler_draw_best(&b, ids, best), sampler_draw(&a, with_bias, past, n_past));
        }
        sampler_close(&a), sampler_close(&b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_best),
        cmocka_unit_test(test_changes),
        cmocka_unit_test(distributions),
        cmocka_unit_test(greedy_takes_the_first_of_the_best),
        cmocka_unit_test(penalties),
        cmocka_unit_test(a_seed_repeats),
        cmocka_unit_test(strange_logits),
        cmocka_unit_test(drawing_allocates_nothing),
        cmocka_unit_test(meaningless_values_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
