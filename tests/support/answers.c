/* answers.c - see answers.h. */
#include "support/answers.h"

#include "support/engine.h"
#include "support/logits.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void ignore(void *user, nib_candidate drawn, const nib_candidate *top, int32_t n_top) {
    (void)user, (void)drawn, (void)top, (void)n_top;
}

nib_generate_options answer_options(int i) {
    static const int32_t prompt[] = {1, 2, 3, 4, 5, 3, 3, 9};
    static const nib_logit_bias bias[] = {{400, 0.3f}, {17, -1}, {3, 2.5f}, {17, 0.4f}, {9, -INFINITY}};
    nib_generate_options g;
    nib_generate_options_init(&g);
    g.prompt = prompt;
    g.n_prompt = 3 + (size_t)i % 6;
    g.n_predict = ANSWER_TOKENS;
    g.ignore_eos = true;
    g.sampling.temperature = i % 2 ? 1.5f : 0;
    g.sampling.top_k = 1 + i * 9;
    g.sampling.seed = (uint64_t)i;
    g.sampling.repeat_penalty = i % 4 == 1 ? 0.9f : i % 4 ? 1.4f : 1;
    g.sampling.frequency_penalty = i % 3 ? 0.3f : 0;
    g.sampling.presence_penalty = i % 5 == 2 ? -0.2f : 0.1f;
    g.sampling.penalty_window = i == 0 ? 0 : i % 3 == 1 ? -1 : 16;
    g.bias = bias;
    g.n_bias = i % 3 == 2 || i == 0 ? sizeof bias / sizeof *bias : 0;
    return g;
}

static void keep(nib_result *r, int32_t *out) {
    assert_int_equal(r->n_token, ANSWER_TOKENS);
    memcpy(out, r->tokens, ANSWER_TOKENS * sizeof *out);
    nib_result_clear(r);
}

static void answer_together(nib_engine *e, const nib_generate_options *all, int32_t (*out)[ANSWER_TOKENS]) {
    nib_batch *b = NULL;
    nib_error err = {0};
    nib_result r = {0};
    int64_t id;
    if (nib_batch_open(e, &(nib_batch_options){.n_sequence = ANSWERS - 2}, &b, &err))
        fail_msg("%s", err.message);
    for (int i = 0; i < ANSWERS; i++)
        assert_int_equal(nib_batch_add(b, &all[i], &id, &err), NIB_OK);
    for (int32_t left = 1; left > 0;)
        if (nib_batch_step(b, &left, &err))
            fail_msg("%s", err.message);
    while (nib_batch_take(b, &id, &r, &err))
        keep(&r, out[id - 1]);
    nib_batch_close(b);
}

void answers_of(nib_engine *e, bool together, bool whole, int32_t (*out)[ANSWER_TOKENS]) {
    nib_generate_options all[ANSWERS];
    nib_error err = {0};
    for (int i = 0; i < ANSWERS; i++) {
        all[i] = answer_options(i);
        all[i].on_candidates = whole ? ignore : NULL;
    }
    if (together) {
        answer_together(e, all, out);
        return;
    }
    for (int i = 0; i < ANSWERS; i++) {
        nib_result r;
        nib_session *s = session_must_open(e);
        if (nib_generate(s, &all[i], &r, &err))
            fail_msg("%s", err.message);
        keep(&r, out[i]);
        nib_session_close(s);
    }
}

void answers_to_prompts(nib_engine *e, int n_sequence, int n, int step, int32_t (*out)[PROMPT_ANSWER]) {
    enum { MOST = 256 };
    nib_batch *b = NULL;
    nib_error err = {0};
    int64_t id;
    nib_result r = {0};
    assert_true(3 + step * (n - 1) <= MOST);
    if (nib_batch_open(e, &(nib_batch_options){.n_sequence = n_sequence}, &b, &err))
        fail_msg("%s", err.message);
    for (int i = 0; i < n; i++) {
        int32_t tokens[MOST];
        nib_generate_options g;
        nib_generate_options_init(&g);
        logits_tokens(tokens, 3 + step * i, nib_engine_info(e)->n_vocab, i % 2);
        g.prompt = tokens;
        g.n_prompt = (size_t)(3 + step * i);
        g.n_predict = PROMPT_ANSWER;
        g.ignore_eos = true;
        g.sampling.temperature = i % 2 ? 1 : 0;
        g.sampling.seed = 7;
        assert_int_equal(nib_batch_add(b, &g, &id, &err), NIB_OK);
    }
    for (int32_t left = 1; left > 0;)
        if (nib_batch_step(b, &left, &err))
            fail_msg("%s", err.message);
    while (nib_batch_take(b, &id, &r, &err)) {
        assert_int_equal(r.n_token, PROMPT_ANSWER);
        memcpy(out[id - 1], r.tokens, sizeof out[0]);
        nib_result_clear(&r);
    }
    nib_batch_close(b);
}
