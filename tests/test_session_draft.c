/* Speculation: with any number of proposals the tokens, the text and the reason to stop are those without
 * speculation, for every cache type, sampling, penalties, stop strings and grammars, alone and in a batch.
 * Some proposals are accepted, and none are made that do not pay. */
#include "base/mem.h"
#include "base/num.h"
#include "engine/engine.h"
#include "sequence/draft.h"
#include "support/engine.h"
#include "support/process.h"
#include "support/slow.h"
#include "support/tinymodel.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { N_VOCAB = 401, N_CTX = 256, N_WORK = 12 };

static const tiny_shape shape = {TYPE_Q4_0, 2, 64, 96, 4, 2, N_VOCAB, N_CTX, true};

typedef struct work {
    int32_t prompt[N_CTX];
    nib_generate_options o;
    nib_result want;
} work;

static const char *const stops[] = {"a", "th"};

/* Prompts that repeat themselves; greedy, drawn, with penalties, stop strings, a bias, a grammar. */
static void make(work *w, int i) {
    static const nib_logit_bias bias[] = {{65, 4}, {66, 3}};
    nib_generate_options_init(&w->o);
    w->o.n_prompt = (size_t)(20 + i * 31 % 90);
    for (size_t k = 0; k < w->o.n_prompt; k++)
        w->prompt[k] = (int32_t)(40 + k % 7 * 3 + (size_t)i);
    w->o.prompt = w->prompt;
    w->o.n_predict = 40 + i * 13 % 50;
    w->o.ignore_eos = i % 4 != 3;
    w->o.sampling.temperature = i % 3 ? 0.3F : 0;
    w->o.sampling.repeat_penalty = i % 5 == 1 ? 1.2F : 1;
    w->o.sampling.seed = (uint64_t)i;
    w->o.stop = stops;
    w->o.n_stop = i % 4 == 2 ? NUM_COUNT(stops) : 0;
    w->o.bias = bias;
    w->o.n_bias = i % 6 == 4 ? NUM_COUNT(bias) : 0;
    w->o.grammar = i % 4 == 1 ? "root ::= (\"ab\" | \"abc\" | [0-9])+" : NULL;
}

static nib_engine *open_engine_of(const char *name, const tiny_shape *of, int kv, int n_session) {
    nib_engine_options o = engine_usual();
    o.n_thread = 1;
    o.n_ctx = N_CTX;
    o.n_batch = 64;
    o.kv_type = kv;
    o.grammar = true;
    o.n_session = n_session;
    return engine_must_open(tiny_model_with_words(name, of), &o, NULL);
}

static nib_engine *open_engine(int kv) {
    return open_engine_of("draft.gguf", &shape, kv, 0);
}

static void run_batch(nib_engine *e, const nib_batch_options *o, work *all, bool keep,
                      nib_batch_counts *counts) {
    nib_error err = {0};
    nib_batch *b;
    nib_result r;
    int64_t id;
    int32_t n_left = 1;
    if (nib_batch_open(e, o, &b, &err))
        fail_msg("%s", err.message);
    for (int i = 0; i < N_WORK; i++)
        if (nib_batch_add(b, &all[i].o, &id, &err))
            fail_msg("%s", err.message);
    while (n_left > 0)
        if (nib_batch_step(b, &n_left, &err))
            fail_msg("%s", err.message);
    while (nib_batch_take(b, &id, &r, &err)) {
        work *w = &all[id - 1];
        assert_int_equal(err.status, NIB_OK);
        assert_true(r.draft_right <= r.draft_n);
        if (keep) {
            w->want = r;
            continue;
        }
        assert_int_equal(r.finish, w->want.finish);
        assert_int_equal(r.n_token, w->want.n_token);
        assert_memory_equal(r.tokens, w->want.tokens, r.n_token * sizeof *r.tokens);
        assert_string_equal(r.text, w->want.text);
        nib_result_clear(&r);
    }
    nib_batch_count(b, counts);
    nib_batch_close(b);
}

static void the_same_tokens(void **state) {
    (void)state;
    static work all[N_WORK];
    static const int kinds[] = {NIB_KV_F16, NIB_KV_F32, NIB_KV_8, NIB_KV_4};
    nib_batch_counts counts;
    for (size_t k = 0; k < NUM_COUNT(kinds); k += SANITIZED ? 3 : 1) {
        nib_engine *e = open_engine(kinds[k]);
        for (int i = 0; i < N_WORK; i++)
            make(&all[i], i);
        run_batch(e, &(nib_batch_options){.n_sequence = 1}, all, true, &counts);
        assert_int_equal(counts.draft_n, 0);
        static const int cuts[][2] = {{1, 1}, {5, 1}, {16, 1}, {32, 3}, {4, 12}};
        for (size_t c = SANITIZED ? k % 2 : 0; c < NUM_COUNT(cuts); c += SANITIZED ? 2 : 1) {
            const nib_batch_options o = {
                .n_sequence = cuts[c][1], .n_draft = cuts[c][0], .n_draft_min = c < 4 ? cuts[c][0] : 0};
            run_batch(e, &o, all, false, &counts);
            assert_true(counts.draft_right <= counts.draft_n);
            if (c < 4)
                assert_true(counts.draft_right > 20 && counts.draft_n > counts.draft_right);
        }
        for (int i = 0; i < N_WORK; i++)
            nib_result_clear(&all[i].want);
        nib_engine_close(e);
    }
}

/* The model as its own draft model is right whenever the sampler takes the likeliest token; another draft
 * model is right sometimes. The tokens are unchanged in both cases. Slots share the draft model's passes. */
static void a_model_proposes(void **state) {
    (void)state;
    static work all[N_WORK];
    static const tiny_shape other = {TYPE_Q4_0, 1, 64, 96, 4, 2, N_VOCAB, N_CTX / 2, true};
    nib_batch_counts counts;
    nib_engine *e = open_engine(NIB_KV_F16);
    for (int i = 0; i < N_WORK; i++) {
        make(&all[i], i);
        for (size_t k = 0; k < all[i].o.n_prompt; k++) /* which the text itself does not foretell */
            all[i].prompt[k] = (int32_t)((k * k + 7 * k + (size_t)i) % N_VOCAB);
    }
    run_batch(e, &(nib_batch_options){.n_sequence = 1}, all, true, &counts);
    for (int way = 0; way < 4; way += SANITIZED ? 3 : 1) {
        const int n_slot = way % 2 ? 4 : 1;
        nib_engine *with = open_engine_of(way < 2 ? "draft.gguf" : "guess.gguf", way < 2 ? &shape : &other,
                                          way == 3 ? NIB_KV_8 : NIB_KV_F16, n_slot);
        run_batch(e,
                  &(nib_batch_options){.n_sequence = n_slot, .n_draft = 5, .n_draft_min = 5, .draft = with},
                  all, false, &counts);
        assert_true(counts.draft_right > counts.draft_n / (way < 2 ? 8 : 100));
        if (n_slot == 4) /* the next proposals of all slots are one pass */
            assert_true(engine_parts_of(with).step->n_pass < counts.draft_n * 2 / 5);
        nib_engine_close(with);
    }
    for (int i = 0; i < N_WORK; i++)
        nib_result_clear(&all[i].want);
    static const tiny_shape less = {TYPE_Q4_0, 1, 64, 96, 4, 2, N_VOCAB - 2, N_CTX, true};
    nib_engine *with = open_engine_of("less.gguf", &less, NIB_KV_F16, 1);
    nib_error err = {0};
    nib_batch *b;
    assert_int_equal(nib_batch_open(e, &(nib_batch_options){.n_draft = 4, .draft = with}, &b, &err),
                     NIB_E_USAGE);
    assert_non_null(strstr(err.message, "found 399"));
    nib_engine_close(with);
    nib_engine_close(e);
}

static void what_is_proposed(void **state) {
    (void)state;
    static const int32_t text[] = {1, 2, 3, 4, 9, 2, 3, 7, 8, 1, 2, 3};
    draft d;
    draft_begin(&d);
    draft_propose(&d, text, 12, 4);
    assert_int_equal(d.n, 4); /* 1 2 3 is longer than the later 2 3 */
    assert_int_equal(d.n_same, 3);
    assert_memory_equal(d.tokens, text + 3, 4 * sizeof *text);
    draft_propose(&d, text, 5, 4);
    assert_int_equal(d.n, 0);
    draft_propose(&d, text, 12, 0);
    assert_int_equal(d.n, 0);
    static const int32_t again[] = {5, 6, 5, 6, 5, 6};
    static const int32_t goes_on[] = {5, 6, 5, 6, 5, 6, 5, 6};
    draft_propose(&d, again, 6, 8);
    assert_int_equal(d.n, 8);
    assert_memory_equal(d.tokens, goes_on, sizeof goes_on);
    draft_propose(&d, text, 1, 8);
    assert_int_equal(d.n, 0);
}

/* Makes proposals until the measurements have settled; returns the number of proposals in the next 100
 * passes. each: the time of one more row as a share of a pass of one; right: one of this many proposals is
 * rejected; each_before: seconds to make a proposal, where a pass of one row takes 0.01; again: right ones
 * before a wrong one are computed again. */
static int64_t settled(double each, int right, double each_before, bool again) {
    draft d;
    draft_cost cost = {0};
    int64_t made = 0;
    int turn = 0;
    draft_begin(&d);
    for (int i = 0; i < 300; i++) {
        int64_t n_right = 0;
        d.n = 8;
        d.n_same = 3;
        draft_choose(&d, &cost, 0,
                     &(draft_pass){.n_row = 1, .n_token = 1, .each = each_before, .again = again});
        draft_cost_note(&cost, 1 + d.n, 0.01 * (1 + each * (double)d.n));
        while (n_right < d.n && ++turn % right)
            n_right++;
        made += i < 200 ? 0 : d.n;
        draft_note(&d, n_right);
    }
    return made;
}

static void what_does_not_pay(void **state) {
    (void)state;
    assert_true(settled(0.01, 100, 0, false) > 600);     /* rows cost nothing, and are right */
    assert_true(settled(0.5, 100, 0, false) > 300);      /* right often enough */
    assert_true(settled(1.0, 2, 0, false) < 40);         /* a row costs as much as it may give */
    assert_true(settled(0.3, 1, 0, false) < 40);         /* never right */
    assert_true(settled(0.01, 100, 0.001, false) > 600); /* a draft model of a tenth */
    assert_true(settled(0.01, 100, 0.011, false) < 40);  /* one that is as slow itself */
    const int64_t once = settled(0.2, 8, 0, false), again = settled(0.2, 8, 0, true);
    assert_true(0 < again && again < once);
}

/* A session's answer with and without proposals. how NULL: no draft model. */
static nib_result generate_in(nib_engine *e, const nib_session_options *how, const work *w) {
    nib_session *s;
    nib_error err = {0};
    nib_result r = {0};
    if (nib_session_open(e, how, &s, &err) || nib_generate(s, &w->o, &r, &err))
        fail_msg("%s", err.message);
    nib_session_close(s);
    return r;
}

static nib_engine *open_proposing(int kv, int n_draft) {
    nib_engine_options o = engine_usual();
    o.n_thread = 1;
    o.n_ctx = N_CTX;
    o.n_batch = 64;
    o.kv_type = kv;
    o.grammar = true;
    o.n_draft = n_draft;
    return engine_must_open(tiny_model_with_words("draft.gguf", &shape), &o, NULL);
}

static void a_session_proposes(void **state) {
    (void)state;
    static work w;
    int64_t n = 0, n_right = 0;
    for (int kv = NIB_KV_F16; kv <= (SANITIZED ? NIB_KV_F16 : NIB_KV_4); kv++) {
        nib_engine *plain = open_engine(kv), *proposing = open_proposing(kv, 8);
        for (int i = 0; i < N_WORK; i++) {
            make(&w, i);
            nib_result want = generate_in(plain, NULL, &w), is = generate_in(proposing, NULL, &w);
            assert_int_equal(want.draft_n, 0);
            assert_int_equal(is.finish, want.finish);
            assert_int_equal(is.n_token, want.n_token);
            assert_memory_equal(is.tokens, want.tokens, want.n_token * sizeof *want.tokens);
            assert_string_equal(is.text, want.text);
            n += is.draft_n;
            n_right += is.draft_right;
            nib_result_clear(&want);
            nib_result_clear(&is);
        }
        nib_engine_close(plain);
        nib_engine_close(proposing);
    }
    assert_true(n_right > 0 && n_right <= n);
}

/* A session has a draft model as a batch does: the model itself, or another one. */
static void a_session_asks_a_model(void **state) {
    (void)state;
    static work w;
    static const tiny_shape other = {TYPE_Q4_0, 1, 64, 96, 4, 2, N_VOCAB, N_CTX / 2, true};
    nib_engine *plain = open_engine(NIB_KV_F16), *proposing = open_proposing(NIB_KV_F16, 5);
    for (int way = SANITIZED ? 1 : 0; way < 2; way++) {
        nib_engine *with =
            open_engine_of(way ? "guess.gguf" : "draft.gguf", way ? &other : &shape, NIB_KV_F16, 1);
        const nib_session_options how = {.n_draft_min = 5, .draft = with};
        int64_t n = 0, n_right = 0;
        for (int i = 0; i < N_WORK; i += SANITIZED ? 3 : 1) {
            make(&w, i);
            for (size_t k = 0; k < w.o.n_prompt; k++) /* which the text itself does not foretell */
                w.prompt[k] = (int32_t)((k * k + 7 * k + (size_t)i) % N_VOCAB);
            nib_result want = generate_in(plain, NULL, &w), is = generate_in(proposing, &how, &w);
            assert_int_equal(is.finish, want.finish);
            assert_int_equal(is.n_token, want.n_token);
            assert_memory_equal(is.tokens, want.tokens, want.n_token * sizeof *want.tokens);
            assert_string_equal(is.text, want.text);
            n += is.draft_n;
            n_right += is.draft_right;
            nib_result_clear(&want);
            nib_result_clear(&is);
        }
        assert_true(n > 0 && n_right > n / (way ? 100 : 8));
        nib_engine_close(with);
    }
    static const tiny_shape less = {TYPE_Q4_0, 1, 64, 96, 4, 2, N_VOCAB - 2, N_CTX, true};
    nib_engine *with = open_engine_of("less.gguf", &less, NIB_KV_F16, 1);
    nib_error err = {0};
    nib_session *s;
    assert_int_equal(nib_session_open(proposing, &(nib_session_options){.draft = with}, &s, &err),
                     NIB_E_USAGE);
    assert_non_null(strstr(err.message, "found 399"));
    nib_engine_close(with);
    nib_engine_close(proposing);
    nib_engine_close(plain);
}

/* A negative number is for engines whose weights are streamed. */
static void only_while_weights_are_streamed(void **state) {
    (void)state;
    static work w;
    nib_engine *e = open_proposing(NIB_KV_F16, -8);
    make(&w, 0);
    nib_result r = generate_in(e, NULL, &w);
    assert_int_equal(r.draft_n, 0);
    nib_result_clear(&r);
    nib_engine_close(e);
    const tiny_shape large = {TYPE_Q8_0, 12, 256, 768, 4, 2, N_VOCAB, N_CTX, true};
    nib_engine_options o = engine_usual();
    nib_error err = {0};
    o.n_thread = 1;
    o.n_ctx = N_CTX;
    o.n_draft = -8;
    o.grammar = true;
    o.stream = true;
    const char *path = tiny_model_with_words("streamed-draft.gguf", &large);
    o.ram = process_bytes() + (UINT64_C(16) << 20);
    if (nib_engine_open(path, &o, &e, &err))
        fail_msg("%s", err.message);
    static nib_result all[N_WORK];
    int64_t n = 0;
    for (int i = 0; i < N_WORK; i += slow_step(4)) {
        make(&w, i);
        all[i] = generate_in(e, NULL, &w);
        n += all[i].draft_n;
    }
    assert_true(SANITIZED || n > 0); /* a sanitizer's passes are not those that a disk binds */
    nib_engine_close(e);
    o.ram = NIB_AUTO;
    e = engine_must_open(path, &o, NULL);
    for (int i = 0; i < N_WORK; i += slow_step(4)) {
        make(&w, i);
        r = generate_in(e, NULL, &w);
        assert_int_equal(r.draft_n, 0);
        assert_int_equal(r.n_token, all[i].n_token);
        assert_memory_equal(r.tokens, all[i].tokens, r.n_token * sizeof *r.tokens);
        nib_result_clear(&r);
        nib_result_clear(&all[i]);
    }
    nib_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_tokens),        cmocka_unit_test(a_session_proposes),
        cmocka_unit_test(a_session_asks_a_model), cmocka_unit_test(only_while_weights_are_streamed),
        cmocka_unit_test(a_model_proposes),       cmocka_unit_test(what_is_proposed),
        cmocka_unit_test(what_does_not_pay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
