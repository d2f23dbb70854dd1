/* A generation without an engine: made-up logits choose each token, and its text, its end and its errors are
 * those that generation.h and nib.h promise. */
#include "base/mem.h"
#include "sequence/generation.h"
#include "support/faults.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* The vocabulary: ids and texts, as tokenizer.json has them. The decoder takes U+00E2 U+0124 U+00AC for the
 * bytes E2 82 AC of the euro sign, and U+00F0 U+0141 U+013A U+0122 for F0 9F 98 80, an emoji. */
#define PIECES(X)                                                                                            \
    X(A, "a")                                                                                                \
    X(B, "b")                                                                                                \
    X(C, "c")                                                                                                \
    X(D, "d")                                                                                                \
    X(AB, "ab")                                                                                              \
    X(DABCD, "dabcd")                                                                                        \
    X(EURO, "\\u00e2\\u0124\\u00ac")                                                                         \
    X(A_EURO_1, "a\\u00e2")                                                                                  \
    X(EURO_2, "\\u0124")                                                                                     \
    X(EURO_3_B, "\\u00acb")                                                                                  \
    X(EMOJI_1, "\\u00f0")                                                                                    \
    X(EMOJI_2, "\\u0141")                                                                                    \
    X(EMOJI_3, "\\u013a")                                                                                    \
    X(EMOJI_4, "\\u0122")                                                                                    \
    X(LONG, "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz")

enum {
#define PIECE_ID(id, text) id,
    PIECES(PIECE_ID)
#undef PIECE_ID
        END, /* </s>, an added special token that ends a text */
    N_VOCAB
};

#define EURO_TEXT  "\xE2\x82\xAC"
#define EMOJI_TEXT "\xF0\x9F\x98\x80"
#define REPLACED   "\xEF\xBF\xBD"

enum { N_CTX = 64, MAX_STEP = 8, MAX_STOP = 3 };

typedef struct fixture {
    ledger *ledger;
    tokenizer *tokenizer;
    generation_setup with;
} fixture;

static int open_fixture(void **state) {
    static fixture f;
    static const char *const pieces[] = {
#define PIECE_TEXT(id, text) text,
        PIECES(PIECE_TEXT)
#undef PIECE_TEXT
    };
    const uint64_t caps[NIB_N_TIER] = {NIB_AUTO, NIB_AUTO, NIB_AUTO};
    char json[4096];
    int n = snprintf(json, sizeof json, "{\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{");
    for (int i = 0; i < END; i++)
        n += snprintf(json + n, sizeof json - (size_t)n, "%s\"%s\":%d", i ? "," : "", pieces[i], i);
    n += snprintf(json + n, sizeof json - (size_t)n,
                  "}},\"added_tokens\":[{\"id\":%d,\"content\":\"</s>\",\"special\":true}],"
                  "\"decoder\":{\"type\":\"ByteLevel\"}}",
                  END);
    nib_error err;
    assert_true((size_t)n < sizeof json);
    if (tokenizer_open_json(json, (size_t)n, NULL, 0, &f.tokenizer, &err) != NIB_OK ||
        ledger_open(places_of(caps), &f.ledger, &err) != NIB_OK)
        fail_msg("%s", err.message);
    assert_int_equal(tokenizer_n_vocab(f.tokenizer), N_VOCAB);
    f.with = (generation_setup){.ledger = f.ledger, .tokenizer = f.tokenizer, .n_vocab = N_VOCAB};
    *state = &f;
    return 0;
}

static int close_fixture(void **state) {
    fixture *f = *state;
    tokenizer_close(f->tokenizer);
    ledger_close(f->ledger);
    return 0;
}

/* ---- one answer, and what its callbacks received ---- */

typedef struct answer {
    nib_generate_options options;
    nib_result result;
    generation g;
    int32_t past[N_CTX]; /* [n_past]: the sequence so far */
    int64_t n_past;
    char shown[1024]; /* the text that on_text received, NUL-terminated */
    size_t n_shown;
    int32_t last;    /* the token that on_token received last */
    size_t n_called; /* calls of on_token */
    size_t n_wanted; /* on_token ends the answer with this token; 0: never */
} answer;

static bool keep_text(void *user, const char *text, size_t n_byte) {
    answer *a = user;
    assert_true(a->n_shown + n_byte < sizeof a->shown);
    memcpy(a->shown + a->n_shown, text, n_byte);
    a->n_shown += n_byte;
    a->shown[a->n_shown] = '\0';
    return true;
}

static bool keep_token(void *user, int32_t token) {
    answer *a = user;
    a->last = token;
    return ++a->n_called != a->n_wanted;
}

static bool end_at_text(void *user, const char *text, size_t n_byte) {
    keep_text(user, text, n_byte);
    return false;
}

/* A greedy answer without an end. */
static void init_answer(answer *a) {
    memset(a, 0, sizeof *a);
    nib_generate_options_init(&a->options);
    a->options.sampling.temperature = 0;
    a->options.on_text = keep_text;
    a->options.on_token = keep_token;
    a->options.user = a;
}

static void open_answer(answer *a, const generation_setup *with) {
    nib_error err;
    if (generation_check(with, &a->options, &err) != NIB_OK ||
        generation_open(&a->g, with, &a->options, N_CTX, &a->result, &err) != NIB_OK)
        fail_msg("%s", err.message);
}

static int32_t feed_logits(answer *a, const float *logits) {
    int32_t token = -1;
    generation_feed(&a->g, logits, a->past, a->n_past, &token);
    if (!a->g.done && a->n_past < N_CTX)
        a->past[a->n_past++] = token;
    return token;
}

/* Logits whose largest one is that of `token`. */
static void favour(float *logits, int32_t token) {
    for (int i = 0; i < N_VOCAB; i++)
        logits[i] = (float)(i * 7 % N_VOCAB) - 20;
    logits[token] = 1;
}

static int32_t feed_token(answer *a, int32_t token) {
    float logits[N_VOCAB];
    favour(logits, token);
    return feed_logits(a, logits);
}

/* Closes the answer and compares its result. */
static void expect_result(answer *a, size_t n_token, const char *text, nib_finish finish) {
    assert_true(a->g.done);
    assert_int_equal(a->g.failed.status, NIB_OK);
    generation_close(&a->g);
    assert_int_equal(a->result.n_token, n_token);
    assert_string_equal(a->result.text, text);
    assert_int_equal(a->result.n_byte, strlen(text));
    assert_int_equal(a->result.finish, finish);
    nib_result_clear(&a->result);
}

/* ---- tokens that are fed one by one, and the text that is shown after each of them ---- */

typedef struct step {
    int32_t token;
    const char *shown; /* all text until now; NULL: no further step */
} step;

typedef struct story {
    step steps[MAX_STEP];
    nib_finish finish; /* after the last step */
    const char *stop[MAX_STOP];
    int64_t n_predict; /* 0: no limit */
    bool ignore_eos;
} story;

static void check_story(const fixture *f, const story *s) {
    answer a;
    size_t n = 0, n_token = 0;
    init_answer(&a);
    a.options.stop = s->stop;
    while (a.options.n_stop < MAX_STOP && s->stop[a.options.n_stop])
        a.options.n_stop++;
    a.options.n_predict = s->n_predict ? s->n_predict : -1;
    a.options.ignore_eos = s->ignore_eos;
    open_answer(&a, &f->with);
    for (; n < MAX_STEP && s->steps[n].shown; n++) {
        const bool ends = s->steps[n].token == END && !s->ignore_eos;
        assert_false(a.g.done);
        const int32_t token = feed_token(&a, s->steps[n].token);
        assert_string_equal(a.shown, s->steps[n].shown);
        n_token += !ends;
        assert_int_equal(a.result.n_token, n_token);
        assert_int_equal(a.n_called, n_token);
        if (ends)
            continue;
        assert_int_equal(token, s->steps[n].token);
        assert_int_equal(a.last, token);
        assert_int_equal(a.result.tokens[n_token - 1], token);
    }
    expect_result(&a, n_token, s->steps[n - 1].shown, s->finish);
}

static void check_stories(const fixture *f, const story *stories, size_t n) {
    for (size_t i = 0; i < n; i++)
        check_story(f, &stories[i]);
}

static void the_greedy_token_and_its_text_come_out(void **state) {
    static const story stories[] = {
        {{{A, "a"}, {C, "ac"}, {DABCD, "acdabcd"}, {A, "acdabcda"}, {END, "acdabcda"}},
         .finish = NIB_FINISH_STOP},
        {{{EURO, EURO_TEXT}, {B, EURO_TEXT "b"}, {END, EURO_TEXT "b"}}, .finish = NIB_FINISH_STOP},
    };
    check_stories(*state, stories, sizeof stories / sizeof *stories);
}

static void equal_logits_give_the_smaller_id_and_a_nan_is_never_drawn(void **state) {
    const fixture *f = *state;
    float logits[N_VOCAB];
    answer a;
    init_answer(&a);
    a.options.n_predict = 2;
    open_answer(&a, &f->with);
    favour(logits, D);
    logits[AB] = logits[D];
    logits[A] = NAN;
    assert_int_equal(feed_logits(&a, logits), D);
    logits[D] = NAN;
    assert_int_equal(feed_logits(&a, logits), AB);
    expect_result(&a, 2, "dab", NIB_FINISH_LENGTH);
}

static void a_character_of_several_tokens_appears_when_it_is_whole(void **state) {
    static const story stories[] = {
        {{{A_EURO_1, "a"}, {EURO_2, "a"}, {EURO_3_B, "a" EURO_TEXT "b"}, {END, "a" EURO_TEXT "b"}},
         .finish = NIB_FINISH_STOP},
        {{{EMOJI_1, ""}, {EMOJI_2, ""}, {EMOJI_3, ""}, {EMOJI_4, EMOJI_TEXT}, {A, EMOJI_TEXT "a"}},
         .finish = NIB_FINISH_LENGTH,
         .n_predict = 5},
        /* the next character shows that it will not be whole */
        {{{A_EURO_1, "a"}, {C, "a" REPLACED "c"}, {END, "a" REPLACED "c"}}, .finish = NIB_FINISH_STOP},
        /* the end of the answer finishes it */
        {{{B, "b"}, {A_EURO_1, "ba"}, {END, "ba" REPLACED}}, .finish = NIB_FINISH_STOP},
        {{{B, "b"}, {A_EURO_1, "ba" REPLACED}}, .finish = NIB_FINISH_LENGTH, .n_predict = 2},
    };
    check_stories(*state, stories, sizeof stories / sizeof *stories);
}

static void text_that_may_become_a_stop_string_is_held_back(void **state) {
    static const story stories[] = {
        /* it does not become one */
        {{{C, "c"}, {A, "c"}, {B, "c"}, {D, "cabd"}, {END, "cabd"}},
         .finish = NIB_FINISH_STOP,
         .stop = {"abc"}},
        {{{AB, ""}, {AB, "ab"}, {D, "ababd"}, {END, "ababd"}}, .finish = NIB_FINISH_STOP, .stop = {"abc"}},
        /* no token follows that it could need */
        {{{C, "c"}, {AB, "c"}, {END, "cab"}}, .finish = NIB_FINISH_STOP, .stop = {"abc"}},
        {{{C, "c"}, {AB, "cab"}}, .finish = NIB_FINISH_LENGTH, .stop = {"abc"}, .n_predict = 2},
        /* the first bytes of a stop string are those of another character */
        {{{EURO, ""}, {A, EURO_TEXT "a"}, {END, EURO_TEXT "a"}},
         .finish = NIB_FINISH_STOP,
         .stop = {EURO_TEXT "!"}},
        {{{EURO, EURO_TEXT}, {END, EURO_TEXT}}, .finish = NIB_FINISH_STOP, .stop = {EMOJI_TEXT}},
        /* it begins in the middle of a character, which is held back as a whole */
        {{{EURO, ""}, {A, EURO_TEXT "a"}, {END, EURO_TEXT "a"}},
         .finish = NIB_FINISH_STOP,
         .stop = {"\xAC!"}},
    };
    check_stories(*state, stories, sizeof stories / sizeof *stories);
}

static void a_stop_string_ends_the_answer_and_is_cut_off(void **state) {
    static const story stories[] = {
        /* the text of one token, a part of it, and all of it */
        {{{A, "a"}, {C, "a"}}, .finish = NIB_FINISH_STOP, .stop = {"c"}},
        {{{B, "b"}, {DABCD, "bd"}}, .finish = NIB_FINISH_STOP, .stop = {"abc"}},
        {{{AB, ""}}, .finish = NIB_FINISH_STOP, .stop = {"ab"}},
        /* over several tokens, from the middle of one */
        {{{D, "d"}, {A, "d"}, {B, "d"}, {C, "d"}}, .finish = NIB_FINISH_STOP, .stop = {"abc"}},
        {{{AB, "a"}, {C, "a"}, {DABCD, "a"}}, .finish = NIB_FINISH_STOP, .stop = {"bcda"}},
        /* its first attempt fails, and a later one begins within that */
        {{{A, ""}, {A, ""}, {A, "a"}, {B, "a"}}, .finish = NIB_FINISH_STOP, .stop = {"aab"}},
        {{{AB, ""}, {AB, "ab"}, {C, "ab"}}, .finish = NIB_FINISH_STOP, .stop = {"abc"}},
        /* with a character that is itself in several tokens */
        {{{B, "b"}, {A_EURO_1, "b"}, {EURO_2, "b"}, {EURO_3_B, "b"}},
         .finish = NIB_FINISH_STOP,
         .stop = {"a" EURO_TEXT}},
        /* with the last token that may be generated */
        {{{C, "c"}, {A, "c"}, {B, "c"}}, .finish = NIB_FINISH_STOP, .stop = {"ab"}, .n_predict = 3},
    };
    check_stories(*state, stories, sizeof stories / sizeof *stories);
}

static void one_of_several_stop_strings_ends_the_answer(void **state) {
    static const story stories[] = {
        /* one is a prefix of the other, in either order */
        {{{D, "d"}, {A, "d"}, {B, "d"}}, .finish = NIB_FINISH_STOP, .stop = {"ab", "abc"}},
        {{{D, "d"}, {A, "d"}, {B, "d"}}, .finish = NIB_FINISH_STOP, .stop = {"abc", "ab"}},
        {{{DABCD, "d"}}, .finish = NIB_FINISH_STOP, .stop = {"ab", "abc"}},
        {{{DABCD, "d"}}, .finish = NIB_FINISH_STOP, .stop = {"abc", "ab"}},
        {{{A, ""}, {D, "ad"}, {AB, "ad"}}, .finish = NIB_FINISH_STOP, .stop = {"abc", "ab"}},
        /* the earliest of two in the text of one token */
        {{{DABCD, "da"}}, .finish = NIB_FINISH_STOP, .stop = {"cd", "bc"}},
        /* the longest beginning is held back */
        {{{AB, ""}, {C, ""}, {B, "abcb"}, {C, "abcb"}, {D, "abcb"}},
         .finish = NIB_FINISH_STOP,
         .stop = {"cd", "abcd"}},
        {{{AB, ""}, {C, ""}, {D, ""}}, .finish = NIB_FINISH_STOP, .stop = {"cdd", "abcd"}},
    };
    check_stories(*state, stories, sizeof stories / sizeof *stories);
}

static void the_end_token_ends_the_answer_unless_it_is_ignored(void **state) {
    static const story stories[] = {
        {{{END, ""}}, .finish = NIB_FINISH_STOP},
        {{{A, "a"}, {END, "a"}}, .finish = NIB_FINISH_STOP, .n_predict = 3},
        {{{END, ""}, {A, "a"}, {END, "a"}, {END, "a"}, {B, "ab"}},
         .finish = NIB_FINISH_LENGTH,
         .n_predict = 5,
         .ignore_eos = true},
        {{{A, "a"}, {END, "a"}, {B, "a"}, {C, "a"}},
         .finish = NIB_FINISH_STOP,
         .stop = {"bc"},
         .ignore_eos = true},
    };
    check_stories(*state, stories, sizeof stories / sizeof *stories);
}

static void n_predict_ends_the_answer(void **state) {
    const fixture *f = *state;
    for (int64_t n = 0; n < 5; n++) {
        answer a;
        init_answer(&a);
        a.options.n_predict = n;
        open_answer(&a, &f->with);
        for (int64_t i = 0; i < n; i++) {
            assert_false(a.g.done);
            assert_int_equal(feed_token(&a, C), C);
        }
        expect_result(&a, (size_t)n, &"cccc"[4 - n], NIB_FINISH_LENGTH);
    }
}

/* The last position of the context has logits too; whether a token is drawn from them is not promised. */
static void without_n_predict_the_context_ends_the_answer(void **state) {
    enum { N_PROMPT = N_CTX - 5 };
    const fixture *f = *state;
    answer a;
    init_answer(&a);
    a.options.prompt = a.past;
    a.options.n_prompt = (size_t)(a.n_past = N_PROMPT);
    open_answer(&a, &f->with);
    while (!a.g.done && a.result.n_token < N_CTX)
        feed_token(&a, B);
    const size_t n = a.result.n_token;
    assert_in_range(n, N_CTX - N_PROMPT, N_CTX - N_PROMPT + 1);
    expect_result(&a, n, &"bbbbbb"[6 - n], NIB_FINISH_LENGTH);
}

static void a_callback_ends_the_answer(void **state) {
    const fixture *f = *state;
    answer a;
    init_answer(&a);
    a.n_wanted = 2;
    open_answer(&a, &f->with);
    feed_token(&a, A);
    assert_false(a.g.done);
    feed_token(&a, B);
    expect_result(&a, 2, "ab", NIB_FINISH_STOP);
    init_answer(&a);
    a.options.on_text = end_at_text;
    open_answer(&a, &f->with);
    feed_token(&a, EMOJI_1);
    feed_token(&a, EMOJI_2);
    feed_token(&a, EMOJI_3);
    assert_false(a.g.done); /* there is no text yet */
    feed_token(&a, EMOJI_4);
    expect_result(&a, 4, EMOJI_TEXT, NIB_FINISH_STOP);
}

static void without_a_tokenizer_there_are_ids_only(void **state) {
    const fixture *f = *state;
    generation_setup with = f->with;
    answer a;
    with.tokenizer = NULL;
    init_answer(&a);
    a.options.n_predict = 2;
    open_answer(&a, &with);
    assert_int_equal(feed_token(&a, C), C);
    assert_int_equal(feed_token(&a, LONG), LONG);
    assert_true(a.g.done);
    generation_close(&a.g);
    assert_int_equal(a.result.n_token, 2);
    assert_int_equal(a.result.tokens[0], C);
    assert_int_equal(a.result.tokens[1], LONG);
    assert_null(a.result.text);
    assert_int_equal(a.n_shown, 0);
    nib_result_clear(&a.result);
}

static void a_zeroed_generation_may_be_closed(void **state) {
    generation g = {0};
    (void)state;
    generation_close(&g);
}

/* ---- answers beside each other ---- */

enum { N_ANSWER = 4, BIASED = 3, N_DRAW = 40 };

/* The first two differ in their seeds only. The one at BIASED has a bias too. */
static const nib_sampling samplings[N_ANSWER] = {
    {.temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = 5},
    {.temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = 6},
    {.temperature = 0.7f,
     .top_k = 6,
     .top_p = 0.9f,
     .repeat_penalty = 1.3f,
     .frequency_penalty = 0.1f,
     .penalty_window = -1,
     .seed = 5},
    {.temperature = 1.5f,
     .top_p = 1,
     .min_p = 0.05f,
     .repeat_penalty = 1,
     .presence_penalty = 0.5f,
     .penalty_window = 8,
     .seed = 7},
};

static void open_sampled(answer *a, const generation_setup *with, int i) {
    static const nib_logit_bias bias[] = {{C, 2}, {A, -INFINITY}};
    init_answer(a);
    a->options.sampling = samplings[i];
    a->options.ignore_eos = true;
    a->options.n_predict = N_DRAW;
    a->options.bias = i == BIASED ? bias : NULL;
    a->options.n_bias = i == BIASED ? 2 : 0;
    open_answer(a, with);
}

/* Logits that depend on the position and the token before it, as a model's do. */
static void draw_next(answer *a) {
    float logits[N_VOCAB];
    uint32_t x = (uint32_t)a->n_past * 2654435761u + 1;
    if (a->n_past)
        x += (uint32_t)a->past[a->n_past - 1] * 40503u;
    for (int i = 0; i < N_VOCAB; i++) {
        x = x * 1664525u + 1013904223u;
        logits[i] = (float)(x >> 16) / 16384; /* 0 to 4 */
    }
    feed_logits(a, logits);
}

static void expect_same(answer *a, answer *b) {
    assert_true(a->g.done && b->g.done);
    assert_int_equal(a->result.n_token, N_DRAW);
    assert_int_equal(b->result.n_token, N_DRAW);
    assert_memory_equal(a->result.tokens, b->result.tokens, N_DRAW * sizeof *a->result.tokens);
    assert_string_equal(a->shown, b->shown);
}

static void close_answers(answer *all) {
    for (int i = 0; i < N_ANSWER; i++) {
        generation_close(&all[i].g);
        nib_result_clear(&all[i].result);
    }
}

static void sampled_answers_do_not_depend_on_each_other(void **state) {
    const fixture *f = *state;
    static answer alone[N_ANSWER], beside[N_ANSWER];
    for (int i = 0; i < N_ANSWER; i++) {
        open_sampled(&alone[i], &f->with, i);
        while (!alone[i].g.done)
            draw_next(&alone[i]);
    }
    for (int i = 0; i < N_ANSWER; i++)
        open_sampled(&beside[i], &f->with, i);
    for (int round = 0; round < N_DRAW; round++)
        for (int i = 0; i < N_ANSWER; i++)
            for (int k = 0; k <= i && !beside[i].g.done; k++) /* they advance at different speeds */
                draw_next(&beside[i]);
    for (int i = 0; i < N_ANSWER; i++) {
        expect_same(&alone[i], &beside[i]);
        for (int k = 0; k < i; k++)
            assert_memory_not_equal(alone[i].result.tokens, alone[k].result.tokens, N_DRAW * sizeof(int32_t));
        for (int k = 0; k < N_DRAW && i == BIASED; k++)
            assert_int_not_equal(alone[i].result.tokens[k], A); /* its bias forbids it */
    }
    close_answers(alone);
    close_answers(beside);
}

/* ---- memory runs out ---- */

/* Two answers take tokens in turn, and an allocation of the second one fails. */
static void an_answer_that_fails_ends_alone(void **state) {
    const fixture *f = *state;
    answer a, b;
    init_answer(&a);
    init_answer(&b);
    open_answer(&a, &f->with);
    open_answer(&b, &f->with);
    feed_token(&a, AB);
    int64_t n_call = 0;
    for (int i = 0; i < N_CTX && !n_call; i++) { /* until the text needs more memory */
        fault_arm(FAULT_ALLOC, 1);
        feed_token(&b, LONG);
        n_call = fault_count(FAULT_ALLOC);
        fault_arm(FAULT_ALLOC, 0);
    }
    assert_int_equal(n_call, 1);
    assert_true(b.g.done);
    assert_int_equal(b.g.failed.status, NIB_E_NOMEM);
    assert_true(b.g.failed.message[0]);
    assert_false(a.g.done);
    feed_token(&a, C);
    feed_token(&a, END);
    expect_result(&a, 2, "abc", NIB_FINISH_STOP);
    generation_close(&b.g);
    nib_result_clear(&b.result);
}

/* An answer that needs all of its memory: a bias, a grammar, penalties, candidates and a text that grows. */
static nib_status fault_step_answer(void *user, nib_error *err) {
    static const nib_logit_bias bias[] = {{B, 1}, {END, -1}};
    const fixture *f = user;
    const uint64_t promised = ledger_promised(f->ledger, PLACE_RAM);
    generation_setup with = f->with;
    grammar_store grammars;
    mem_bound counted;
    answer a;
    mem_bound_set(&counted, UINT64_MAX); /* only counts */
    grammar_store_open(&grammars, f->ledger, f->tokenizer, N_VOCAB);
    with.grammars = &grammars;
    init_answer(&a);
    a.options.sampling = samplings[2];
    a.options.bias = bias;
    a.options.n_bias = 2;
    a.options.grammar = "root ::= [a-z]+";
    a.options.n_predict = 4;
    nib_status status = generation_open(&a.g, &with, &a.options, N_CTX, &a.result, err);
    while (status == NIB_OK && !a.g.done) {
        feed_token(&a, LONG);
        status = a.g.failed.status;
    }
    if (a.g.failed.status != NIB_OK) {
        assert_true(a.g.done);
        *err = a.g.failed;
    }
    generation_close(&a.g);
    if (status == NIB_OK) {
        fault_made(a.result.tokens, a.result.n_token * sizeof *a.result.tokens);
        fault_made(a.result.text, a.result.n_byte);
        fault_made(a.shown, a.n_shown);
    } else {
        assert_int_equal(status, NIB_E_NOMEM);
    }
    nib_result_clear(&a.result);
    grammar_store_close(&grammars);
    mem_bound_end(&counted);
    assert_int_equal(counted.now, 0);
    assert_int_equal(ledger_promised(f->ledger, PLACE_RAM), promised);
    return status;
}

static void every_allocation_may_fail(void **state) {
    assert_true(fault_sweep(FAULT_ALLOC, 1, fault_step_answer, *state) > 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_greedy_token_and_its_text_come_out),
        cmocka_unit_test(equal_logits_give_the_smaller_id_and_a_nan_is_never_drawn),
        cmocka_unit_test(a_character_of_several_tokens_appears_when_it_is_whole),
        cmocka_unit_test(text_that_may_become_a_stop_string_is_held_back),
        cmocka_unit_test(a_stop_string_ends_the_answer_and_is_cut_off),
        cmocka_unit_test(one_of_several_stop_strings_ends_the_answer),
        cmocka_unit_test(the_end_token_ends_the_answer_unless_it_is_ignored),
        cmocka_unit_test(n_predict_ends_the_answer),
        cmocka_unit_test(without_n_predict_the_context_ends_the_answer),
        cmocka_unit_test(a_callback_ends_the_answer),
        cmocka_unit_test(without_a_tokenizer_there_are_ids_only),
        cmocka_unit_test(a_zeroed_generation_may_be_closed),
        cmocka_unit_test(sampled_answers_do_not_depend_on_each_other),
        cmocka_unit_test(an_answer_that_fails_ends_alone),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, open_fixture, close_fixture);
}
