/* The probabilities of a prompt's tokens: of every token after the first, by the model's logits, in a session
 * and in a batch, beside other requests with the same prompt, and when the answer is paused. */
#include "base/num.h"
#include "sequence/candidates.h"
#include "support/engine.h"
#include "support/tinymodel.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { N_VOCAB = 300, N_CTX = 256, N_PROMPT = 150, N_TOP = 3, N_SCORED = 6 };

static const tiny_shape packed = {TYPE_Q4_0, 2, 64, 96, 4, 2, N_VOCAB, N_CTX, true};

typedef struct scores {
    nib_candidate token[N_PROMPT], top[N_PROMPT][N_TOP];
    int n, n_answer;
} scores;

static int32_t prompt[N_PROMPT];

static void on_prompt(void *user, nib_candidate token, const nib_candidate *top, int32_t n_top) {
    scores *s = user;
    assert_int_equal(n_top, N_TOP);
    assert_int_equal(s->n_answer, 0);
    assert_true(s->n < N_PROMPT - 1);
    s->token[s->n] = token;
    memcpy(s->top[s->n++], top, sizeof s->top[0]);
}

static void on_answer(void *user, nib_candidate drawn, const nib_candidate *top, int32_t n_top) {
    scores *s = user;
    (void)drawn, (void)top, (void)n_top;
    assert_int_equal(s->n, N_PROMPT - 1);
    s->n_answer++;
}

static void on_row(void *user, int64_t position, const float *logits) {
    scores *s = user;
    if (position == N_PROMPT - 1)
        return;
    assert_int_equal(position, s->n);
    candidates_find(logits, N_VOCAB, prompt[position + 1], &s->token[s->n], s->top[s->n], N_TOP);
    s->n++;
}

static nib_generate_options ask(scores *s, int64_t n_predict) {
    nib_generate_options o;
    nib_generate_options_init(&o);
    *s = (scores){.n = 0};
    o.prompt = prompt;
    o.n_prompt = N_PROMPT;
    o.n_predict = n_predict;
    o.ignore_eos = true;
    o.sampling.temperature = 0;
    o.n_top = N_TOP;
    o.on_prompt_candidates = on_prompt;
    o.on_candidates = on_answer;
    o.user = s;
    return o;
}

static nib_engine *open_engine(void) {
    nib_engine_options o = engine_usual();
    o.n_ctx = N_CTX;
    return engine_must_open(tiny_model("score.gguf", &packed), &o, NULL);
}

/* The scores and the answer of a plain session. */
static void compute_want(nib_engine *e, scores *want, nib_result *answer) {
    nib_session *s = session_must_open(e);
    nib_generate_options o = ask(want, 20);
    nib_error err = {0};
    assert_int_equal(nib_session_forward(s, prompt, N_PROMPT, 0, on_row, want, &err), NIB_OK);
    o.on_prompt_candidates = NULL;
    o.on_candidates = NULL;
    assert_int_equal(nib_generate(s, &o, answer, &err), NIB_OK);
    nib_session_close(s);
}

static void check(const scores *got, const scores *want, const nib_result *r, const nib_result *answer) {
    assert_int_equal(got->n, N_PROMPT - 1);
    assert_memory_equal(got->token, want->token, sizeof *got->token * (N_PROMPT - 1));
    assert_memory_equal(got->top, want->top, sizeof *got->top * (N_PROMPT - 1));
    assert_int_equal(got->n_answer, r->n_token);
    assert_memory_equal(r->tokens, answer->tokens, r->n_token * sizeof *r->tokens);
    assert_int_equal(r->prompt_n, N_PROMPT);
}

static void in_a_session(void **state) {
    nib_engine *e = open_engine();
    nib_session *s = session_must_open(e);
    nib_error err = {0};
    nib_result answer, r;
    scores want, got;
    (void)state;
    compute_want(e, &want, &answer);
    for (int n = 0; n <= 20; n += 10) { /* the session holds the prompt from the second time on */
        const nib_generate_options o = ask(&got, n);
        assert_int_equal(nib_generate(s, &o, &r, &err), NIB_OK);
        assert_int_equal(r.n_token, n);
        check(&got, &want, &r, &answer);
        nib_result_clear(&r);
    }
    nib_result_clear(&answer);
    nib_session_close(s);
    nib_engine_close(e);
}

/* Requests with and without scores, all with the same prompt, in pages that do not suffice for all. */
static void in_a_batch(void **state) {
    static const nib_batch_options how[] = {{.n_sequence = N_SCORED},
                                            {.n_sequence = 4, .n_prompt = 7},
                                            {.n_sequence = 4, .n_position = 320, .optimistic = true}};
    nib_engine *e = open_engine();
    nib_error err = {0};
    nib_result answer, r;
    scores want, got[N_SCORED];
    (void)state;
    compute_want(e, &want, &answer);
    for (size_t k = 0; k < NUM_COUNT(how); k++) {
        nib_batch *b = batch_must_open(e, &how[k]);
        int64_t id, first = 0;
        int32_t n_left = 1;
        for (int i = 0; i < N_SCORED; i++) {
            nib_generate_options o = ask(&got[i], i % 3 * 10);
            if (i % 2)
                o.on_prompt_candidates = NULL, o.on_candidates = NULL;
            assert_int_equal(nib_batch_add(b, &o, &id, &err), NIB_OK);
            first = first ? first : id;
        }
        while (n_left > 0)
            assert_int_equal(nib_batch_step(b, &n_left, &err), NIB_OK);
        for (; nib_batch_take(b, &id, &r, &err); nib_result_clear(&r)) {
            const int i = (int)(id - first);
            assert_int_equal(err.status, NIB_OK);
            assert_int_equal(r.n_token, i % 3 * 10);
            if (i % 2)
                assert_memory_equal(r.tokens, answer.tokens, r.n_token * sizeof *r.tokens);
            else
                check(&got[i], &want, &r, &answer);
        }
        nib_batch_close(b);
    }
    nib_result_clear(&answer);
    nib_engine_close(e);
}

/* A prompt of one token has nothing to score. */
static void one_token(void **state) {
    nib_engine *e = open_engine();
    nib_batch *b = batch_must_open(e, &(nib_batch_options){.n_sequence = 2});
    nib_error err = {0};
    nib_result r;
    scores got;
    int64_t id;
    int32_t n_left = 1;
    (void)state;
    nib_generate_options o = ask(&got, 0);
    o.n_prompt = 1;
    assert_int_equal(nib_batch_add(b, &o, &id, &err), NIB_OK);
    while (n_left > 0)
        assert_int_equal(nib_batch_step(b, &n_left, &err), NIB_OK);
    assert_true(nib_batch_take(b, &id, &r, &err));
    assert_true(err.status == NIB_OK && r.n_token == 0 && got.n == 0);
    nib_result_clear(&r);
    nib_batch_close(b);
    nib_engine_close(e);
}

int main(void) {
    for (int i = 0; i < N_PROMPT; i++)
        prompt[i] = (i * 37 + 5) % N_VOCAB;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(in_a_session),
        cmocka_unit_test(in_a_batch),
        cmocka_unit_test(one_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
