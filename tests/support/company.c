/* company.c - see company.h. */
#include "support/company.h"

#include "support/engine.h"
#include "support/logits.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { FIRST = 60 /* tokens of a prompt that was answered before */, N_LONG = 200, N_SEQUENCE = 4 };

const char *const company_names[COMPANY_COUNT] = {
    "in a session",         "alone in a batch",      "beside three answers",
    "beside a long prompt", "beside others' tokens", "begun before",
    "answered before",      "with drafts",           "with a pause"};

static void keep(void *user, nib_candidate drawn, const nib_candidate *top, int32_t n_top) {
    company_answer *a = user;
    assert_true(a->n < COMPANY_TOKENS);
    assert_int_equal(n_top, COMPANY_TOP);
    a->drawn[a->n] = drawn;
    memcpy(a->top[a->n++], top, sizeof a->top[0]);
}

static nib_generate_options request(const int32_t *tokens, size_t n, int64_t n_predict) {
    nib_generate_options g;
    nib_generate_options_init(&g);
    g.prompt = tokens;
    g.n_prompt = n;
    g.n_predict = n_predict;
    g.ignore_eos = true;
    g.sampling.temperature = 0;
    return g;
}

static nib_generate_options question(const int32_t *tokens, company_answer *out) {
    nib_generate_options g = request(tokens, COMPANY_PROMPT, COMPANY_TOKENS);
    memset(out, 0, sizeof *out);
    g.n_top = COMPANY_TOP;
    g.on_candidates = keep;
    g.user = out;
    return g;
}

static void in_session(nib_engine *e, const nib_generate_options *g, int32_t *tokens) {
    nib_result r;
    nib_error err = {0};
    nib_session *s = session_must_open(e);
    if (nib_generate(s, g, &r, &err))
        fail_msg("%s", err.message);
    if (tokens)
        memcpy(tokens, r.tokens, r.n_token * sizeof *tokens);
    nib_result_clear(&r);
    nib_session_close(s);
}

void company_prompt(nib_engine *e, int64_t n_vocab, int32_t tokens[COMPANY_PROMPT]) {
    logits_tokens(tokens, COMPANY_PROMPT, n_vocab, 5);
    const nib_generate_options g = request(tokens, FIRST, COMPANY_TOKENS);
    in_session(e, &g, tokens + FIRST);
}

static int32_t step(nib_batch *b, int n) {
    nib_error err = {0};
    int32_t left = 1;
    for (int i = 0; i < n && left > 0; i++)
        if (nib_batch_step(b, &left, &err))
            fail_msg("%s", err.message);
    return left;
}

static void add(nib_batch *b, const nib_generate_options *g) {
    nib_error err = {0};
    int64_t id;
    if (nib_batch_add(b, g, &id, &err))
        fail_msg("%s", err.message);
}

static void other(nib_batch *b, int seed, int64_t n_vocab, int n, int64_t n_predict) {
    int32_t tokens[COMPANY_CTX];
    logits_tokens(tokens, n, n_vocab, seed);
    const nib_generate_options g = request(tokens, (size_t)n, n_predict);
    add(b, &g);
}

/* Sets up the other requests that come before the answer. */
static void begin(nib_batch *b, company how, const int32_t *tokens, int64_t n_vocab) {
    nib_generate_options g;
    switch (how) {
    case COMPANY_ANSWERS:
        for (int i = 0; i < 3; i++)
            other(b, 20 + i, n_vocab, 3 + 40 * i, 60);
        step(b, 5);
        break;
    case COMPANY_BESIDE:
        other(b, 30, n_vocab, 17, 60);
        step(b, 4);
        other(b, 31, n_vocab, 100, 10);
        break;
    case COMPANY_BEGINNING:
    case COMPANY_ANSWERED:
        g = how == COMPANY_ANSWERED ? request(tokens, FIRST, COMPANY_TOKENS)
                                    : request(tokens, COMPANY_PROMPT - 1, 3);
        add(b, &g);
        step(b, 100);
        break;
    case COMPANY_PAUSE: other(b, 40, n_vocab, COMPANY_PROMPT - 5, 40); break;
    case COMPANY_SESSION:
    case COMPANY_BATCH:
    case COMPANY_LONG:
    case COMPANY_DRAFTS:
    case COMPANY_COUNT: break;
    }
}

void company_ask(nib_engine *e, company how, const int32_t *tokens, company_answer *out) {
    const int64_t n_vocab = nib_engine_info(e)->n_vocab;
    const nib_generate_options g = question(tokens, out);
    nib_batch_options o = {.n_sequence = N_SEQUENCE, .n_draft = how == COMPANY_DRAFTS ? 6 : 0};
    nib_batch_counts counts;
    nib_batch *b = NULL;
    nib_error err = {0};
    o.n_draft_min = o.n_draft;
    if (how == COMPANY_PAUSE) {
        /* Space for both prompts and one more page; codes are in whole pages only. */
        o.n_position = (kv_formats_all_coded(engine_parts_of(e).kv) ? 3 : 5) * KV_BLOCK;
        o.optimistic = true;
    }
    if (how == COMPANY_SESSION) {
        in_session(e, &g, NULL);
        return;
    }
    if (nib_batch_open(e, &o, &b, &err))
        fail_msg("%s", err.message);
    begin(b, how, tokens, n_vocab);
    add(b, &g);
    for (int32_t left = 1, i = 0; left > 0; i++) {
        if (how == COMPANY_LONG && i == 6)
            other(b, 50, n_vocab, N_LONG, 4);
        left = step(b, 1);
    }
    assert_int_equal(out->n, COMPANY_TOKENS);
    nib_batch_count(b, &counts);
    assert_true((counts.paused > 0) == (how == COMPANY_PAUSE));
    nib_batch_close(b);
}
