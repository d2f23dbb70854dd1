/* Probabilities of sampled tokens and of the likeliest alternatives, and a bias on logits: against plain
 * arithmetic, in a session and in a batch. */
#include "base/num.h"
#include "sequence/candidates.h"
#include "support/engine.h"
#include "support/tinymodel.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_VOCAB = 300, MAX = 16, N_TOP = 5 };

static const tiny_shape packed = {TYPE_Q4_0, 2, 64, 96, 4, 2, N_VOCAB, 256, true};
static const tiny_shape large = {TYPE_Q8_0, 2,    256, 512, 8,
                                 2,         8200, 64,  true}; /* its head can be in two steps */
static const int32_t prompt[] = {1, 5, 9, 200};

static void test_against_arithmetic(void **state) {
    enum { N = 40 };
    float logits[N];
    double sum = 0;
    nib_candidate drawn, top[NIB_MAX_TOP];
    (void)state;
    for (int i = 0; i < N; i++)
        logits[i] = (float)((i * 29) % N) / 4 - 3; /* all different */
    logits[7] = NAN;
    logits[8] = -INFINITY;
    for (int i = 0; i < N; i++)
        sum += isnan(logits[i]) ? 0 : exp((double)logits[i]);
    candidates_find(logits, N, 11, &drawn, top, N_TOP);
    assert_int_equal(drawn.token, 11);
    assert_float_equal(drawn.logprob, (double)logits[11] - log(sum), 1e-5);
    for (int k = 0; k < N_TOP; k++) {
        int n_better = 0;
        for (int i = 0; i < N; i++)
            n_better += logits[i] > logits[top[k].token];
        assert_int_equal(n_better, k);
        assert_float_equal(top[k].logprob, (double)logits[top[k].token] - log(sum), 1e-5);
    }
    candidates_find(logits, N, 8, &drawn, top, 0);
    assert_true(isinf(drawn.logprob));
}

static void test_alike(void **state) {
    const float logits[] = {1, 2, 2, 1};
    nib_candidate drawn, top[NIB_MAX_TOP];
    (void)state;
    candidates_find(logits, 4, 0, &drawn, top, 3);
    assert_int_equal(top[0].token, 1);
    assert_int_equal(top[1].token, 2);
    assert_int_equal(top[2].token, 0);
}

typedef struct seen {
    nib_candidate drawn[MAX], top[MAX][N_TOP];
    int n;
} seen;

static void note(void *user, nib_candidate drawn, const nib_candidate *top, int32_t n_top) {
    seen *s = user;
    assert_int_equal(n_top, N_TOP);
    assert_true(s->n < MAX);
    s->drawn[s->n] = drawn;
    memcpy(s->top[s->n++], top, N_TOP * sizeof *top);
}

static nib_engine *open_engine(void) {
    const nib_engine_options o = engine_usual();
    return engine_must_open(tiny_model("candidates.gguf", &packed), &o, NULL);
}

static nib_engine *open_for_the_best(void) {
    nib_engine_options o = engine_usual();
    o.n_best = 1;
    o.shortlist = NIB_SHORTLIST_ON;
    return engine_must_open(tiny_model("best.gguf", &large), &o, NULL);
}

static nib_generate_options ask(seen *s) {
    nib_generate_options o;
    nib_generate_options_init(&o);
    o.prompt = prompt;
    o.n_prompt = NUM_COUNT(prompt);
    o.n_predict = 8;
    o.ignore_eos = true;
    o.sampling.temperature = 0;
    o.n_top = N_TOP;
    o.on_candidates = note;
    o.user = s;
    return o;
}

static void generate(nib_engine *e, const nib_generate_options *o, nib_result *r) {
    nib_error err = {0};
    nib_session *s = session_must_open(e);
    if (nib_generate(s, o, r, &err))
        fail_msg("%s", err.message);
    nib_session_close(s);
}

static void test_greedy_is_the_first(void **state) {
    nib_engine *e = open_engine();
    seen s = {.n = 0};
    const nib_generate_options o = ask(&s);
    nib_result r;
    (void)state;
    generate(e, &o, &r);
    assert_int_equal(s.n, r.n_token);
    for (int i = 0; i < s.n; i++) {
        assert_int_equal(s.drawn[i].token, r.tokens[i]);
        assert_int_equal(s.top[i][0].token, r.tokens[i]);
        assert_true(s.top[i][0].logprob == s.drawn[i].logprob && s.drawn[i].logprob < 0);
    }
    nib_result_clear(&r);
    nib_engine_close(e);
}

/* Its probability is by the model alone. */
static void test_a_bias_decides(void **state) {
    nib_engine *e = open_engine();
    seen plain = {.n = 0}, with = {.n = 0};
    nib_generate_options o = ask(&plain);
    nib_result r;
    (void)state;
    generate(e, &o, &r);
    const nib_logit_bias never = {r.tokens[0], -INFINITY}, always = {77, 1000};
    const int32_t second = plain.top[0][1].token;
    nib_result_clear(&r);
    o.n_predict = 1;
    o.user = &with;
    o.bias = &never;
    o.n_bias = 1;
    generate(e, &o, &r);
    assert_int_equal(r.tokens[0], second);
    assert_true(with.drawn[0].logprob == plain.top[0][1].logprob);
    nib_result_clear(&r);
    with.n = 0;
    o.bias = &always;
    o.n_predict = 4;
    o.sampling.temperature = 1;
    generate(e, &o, &r);
    for (size_t i = 0; i < r.n_token; i++)
        assert_int_equal(r.tokens[i], 77);
    nib_result_clear(&r);
    nib_engine_close(e);
}

static void test_in_a_batch(void **state) {
    nib_engine *e = open_engine();
    nib_batch *b;
    nib_error err = {0};
    seen alone = {.n = 0}, there[3] = {{.n = 0}};
    nib_logit_bias bias = {77, 3};
    nib_generate_options o = ask(&alone);
    nib_result r;
    int64_t id;
    int32_t n_left = 1;
    (void)state;
    o.bias = &bias;
    o.n_bias = 1;
    generate(e, &o, &r);
    nib_result_clear(&r);
    assert_int_equal(nib_batch_open(e, &(nib_batch_options){.n_sequence = 3}, &b, &err), NIB_OK);
    for (int i = 0; i < 3; i++) {
        o.user = &there[i];
        assert_int_equal(nib_batch_add(b, &o, &id, &err), NIB_OK);
    }
    bias.bias = -3; /* added requests are copies */
    while (n_left > 0)
        assert_int_equal(nib_batch_step(b, &n_left, &err), NIB_OK);
    while (nib_batch_take(b, &id, &r, NULL))
        nib_result_clear(&r);
    for (int i = 0; i < 3; i++)
        assert_memory_equal(&there[i], &alone, sizeof alone);
    nib_batch_close(b);
    nib_engine_close(e);
}

static void test_refused(void **state) {
    static const nib_logit_bias wrong[] = {{-1, 0}, {N_VOCAB, 0}, {1, NAN}, {1, INFINITY}}, fine = {1, 1};
    nib_engine *e = open_engine(), *few = open_for_the_best();
    nib_error err;
    nib_result r;
    seen s = {.n = 0};
    (void)state;
    nib_session *session = session_must_open(e), *of_few = session_must_open(few);
    for (size_t i = 0; i < NUM_COUNT(wrong); i++) {
        nib_generate_options o = ask(&s);
        o.bias = &wrong[i];
        o.n_bias = 1;
        assert_int_equal(nib_generate(session, &o, &r, &err), NIB_E_USAGE);
        nib_result_clear(&r);
    }
    nib_generate_options o = ask(&s);
    o.n_top = NIB_MAX_TOP + 1;
    assert_int_equal(nib_generate(session, &o, &r, &err), NIB_E_USAGE);
    nib_result_clear(&r);
    o = ask(&s);
    o.on_candidates = NULL;
    o.bias = &fine;
    o.n_bias = 1;
    assert_int_equal(nib_generate(session, &o, &r, &err), NIB_OK);
    nib_result_clear(&r);
    assert_int_equal(nib_generate(of_few, &o, &r, &err), NIB_E_USAGE);
    assert_non_null(strstr(err.message, "need all"));
    nib_result_clear(&r);
    nib_session_close(session);
    nib_session_close(of_few);
    nib_engine_close(e);
    nib_engine_close(few);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_arithmetic),  cmocka_unit_test(test_alike),
        cmocka_unit_test(test_greedy_is_the_first), cmocka_unit_test(test_a_bias_decides),
        cmocka_unit_test(test_in_a_batch),          cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
