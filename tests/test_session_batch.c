/* Batches: every answer is that of a session for the same request alone, whatever else is computed at the
 * same time, for every width, cache and kind of sampling; requests wait, share prefixes, stop, are cancelled
 * and refused; a step that failed can be taken again. */
#include "base/mem.h"
#include "base/num.h"
#include "engine/engine.h"
#include "support/company.h"
#include "support/engine.h"
#include "support/process.h"
#include "support/slow.h"
#include "support/tinymodel.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_VOCAB = 300, N_CTX = 192, MAX = SANITIZED ? 24 : 64 };

static const tiny_shape packed = {TYPE_Q4_0, 2, 64, 96, 4, 2, N_VOCAB, 256, true};

typedef struct work {
    int32_t prompt[512];
    nib_generate_options o;
    nib_result want; /* alone */
} work;

static nib_engine *open_engine(int kv, int n_thread, int64_t n_batch, int64_t n_logits) {
    nib_engine_options o = engine_usual();
    o.n_thread = n_thread;
    o.n_ctx = N_CTX;
    o.n_batch = n_batch;
    o.n_logits = n_logits;
    o.kv_type = kv;
    return engine_must_open(tiny_model("batch.gguf", &packed), &o, NULL);
}

/* Prompts of any length, some with a prefix in common; greedy, drawn, with penalties. */
static void make(work *w, int i) {
    const int n = 1 + i * 37 % 90, shared = i % 3 ? 0 : 70;
    nib_generate_options_init(&w->o);
    for (int k = 0; k < n + shared; k++)
        w->prompt[k] = k < shared ? (k * 7 + 1) % N_VOCAB : (k * 31 + i * 17 + 3) % N_VOCAB;
    w->o.prompt = w->prompt;
    w->o.n_prompt = (size_t)(n + shared);
    w->o.n_predict = 1 + i * 13 % 20;
    w->o.ignore_eos = true;
    w->o.sampling.temperature = i % 2 ? 0.9F : 0;
    w->o.sampling.repeat_penalty = i % 5 ? 1 : 1.3F;
    w->o.sampling.seed = (uint64_t)i;
}

static void answer_alone(nib_engine *e, work *all, int n) {
    nib_error err = {0};
    for (int i = 0; i < n; i++) {
        nib_session *s = session_must_open(e);
        make(&all[i], i);
        if (nib_generate(s, &all[i].o, &all[i].want, &err))
            fail_msg("%s", err.message);
        nib_session_close(s);
    }
}

static void add(nib_batch *b, const work *w) {
    nib_error err = {0};
    int64_t id;
    if (nib_batch_add(b, &w->o, &id, &err))
        fail_msg("%s", err.message);
}

static void run_out(nib_batch *b) {
    int32_t n_left = 1;
    nib_error err = {0};
    while (n_left > 0)
        if (nib_batch_step(b, &n_left, &err))
            fail_msg("%s", err.message);
}

/* Compares finished answers, with ids from first_id on, with those of the sessions. */
static void compare_done(nib_batch *b, const work *all, int n, int64_t first_id) {
    nib_result r;
    nib_error how;
    int64_t id;
    int found = 0;
    for (; nib_batch_take(b, &id, &r, &how); found++) {
        const work *w = &all[id - first_id];
        assert_int_equal(how.status, NIB_OK);
        assert_int_equal(r.finish, w->want.finish);
        assert_int_equal(r.n_token, w->want.n_token);
        assert_memory_equal(r.tokens, w->want.tokens, r.n_token * sizeof *r.tokens);
        nib_result_clear(&r);
    }
    assert_int_equal(found, n);
}

static void clear(work *all, int n) {
    for (int i = 0; i < n; i++)
        nib_result_clear(&all[i].want);
}

static void same_as_alone(void **state) {
    (void)state;
    static work all[MAX];
    static const int kinds[] = {NIB_KV_F16, NIB_KV_F32, NIB_KV_8, NIB_KV_4}, widths[] = {1, 2, 7, 16, MAX};
    for (size_t k = 0; k < NUM_COUNT(kinds); k += (size_t)slow_step(3)) {
        nib_engine *e = open_engine(kinds[k], 2, 70, 0);
        answer_alone(e, all, MAX);
        for (size_t w = 0; w < NUM_COUNT(widths); w += (size_t)slow_step(2)) {
            const nib_batch_options o = {.n_sequence = widths[w], .n_prompt = w % 2 ? 40 : 0};
            const int n =
                widths[w] == MAX || slow_step(2) == 1 ? MAX : 24; /* more of them wait where few run */
            nib_batch *b = batch_must_open(e, &o);
            for (int i = 0; i < n; i++)
                add(b, &all[i]);
            run_out(b);
            compare_done(b, all, n, 1);
            nib_batch_close(b);
        }
        clear(all, MAX);
        nib_engine_close(e);
    }
}

/* Threads, rows of a pass and rows of logits change no token. Requests arrive while others are computed. */
static void however_it_is_cut(void **state) {
    (void)state;
    static work all[MAX];
    nib_error err = {0};
    nib_engine *first = open_engine(0, 1, 0, 0);
    answer_alone(first, all, 24);
    nib_engine_close(first);
    static const int cuts[][3] = {{1, 16, 1}, {3, 64, 5}, {2, 512, 32}};
    for (size_t i = 0; i < NUM_COUNT(cuts); i++) {
        nib_engine *e = open_engine(0, cuts[i][0], cuts[i][1], cuts[i][2]);
        nib_batch *b = batch_must_open(e, &(nib_batch_options){.n_sequence = 9});
        int32_t n_left;
        for (int k = 0; k < 24; k++) {
            add(b, &all[k]);
            if (k % 4 == 3 && nib_batch_step(b, &n_left, &err))
                fail_msg("%s", err.message);
        }
        run_out(b);
        compare_done(b, all, 24, 1);
        nib_batch_close(b);
        nib_engine_close(e);
    }
    clear(all, 24);
}

/* Fewer positions than all need: requests wait, none is lost, none is refused in the middle. */
static void they_wait_for_pages(void **state) {
    enum { N_WAITING = SANITIZED ? 24 : 30 };
    (void)state;
    static work all[MAX];
    nib_engine *e = open_engine(NIB_KV_F16, 2, 64, 0);
    nib_error err = {0};
    int64_t id;
    answer_alone(e, all, N_WAITING);
    nib_batch *b = batch_must_open(e, &(nib_batch_options){.n_sequence = 16, .n_position = 2 * N_CTX});
    for (int i = 0; i < N_WAITING; i++)
        add(b, &all[i]);
    run_out(b);
    compare_done(b, all, N_WAITING, 1);
    nib_batch_close(b);
    b = batch_must_open(e, &(nib_batch_options){.n_position = 64});
    work *w = &all[1];
    w->o.n_predict = 60;
    w->o.n_prompt = 38;
    assert_int_equal(nib_batch_add(b, &w->o, &id, &err), NIB_E_USAGE);
    assert_non_null(strstr(err.message, "found up to 97"));
    w->o.n_prompt = 0;
    assert_int_equal(nib_batch_add(b, &w->o, &id, &err), NIB_E_USAGE);
    nib_batch_close(b);
    clear(all, N_WAITING);
    nib_engine_close(e);
}

static uint64_t kv_bytes_in_use(nib_engine *e, int type) {
    kv_usage u;
    sequence_memory memory;
    assert_int_equal(engine_sequence_memory(e, kv_formats_all((type_id)type), &memory, NULL), NIB_OK);
    kv_pool_usage(memory.pages, &u);
    return (uint64_t)u.used * u.page_bytes;
}

/* 32 sequences with a prefix of 400 tokens in common, before each has written its own: the pages of one. */
static void a_common_prefix_takes_memory_once(void **state) {
    (void)state;
    enum { N = 32, PREFIX = 400 };
    static work all[N];
    static int32_t prompt[PREFIX];
    nib_engine_options eo = engine_usual();
    nib_error err = {0};
    eo.n_ctx = 512;
    eo.n_batch = 512;
    eo.kv_type = NIB_KV_F16;
    nib_engine *e = engine_must_open(tiny_model("batch.gguf", &packed), &eo, NULL);
    for (int i = 0; i < PREFIX; i++)
        prompt[i] = (i * 7 + 1) % N_VOCAB;
    nib_batch *b = batch_must_open(e, &(nib_batch_options){.n_sequence = N, .n_prompt = PREFIX});
    int32_t n_left;
    int64_t id;
    uint64_t one = 0, max = 0;
    for (int i = 0; i < N; i++) {
        nib_generate_options_init(&all[i].o);
        all[i].o.sampling.temperature = 0;
        all[i].o.n_predict = 2;
        all[i].o.ignore_eos = true;
        all[i].o.prompt = prompt;
        all[i].o.n_prompt = PREFIX;
        assert_int_equal(nib_batch_add(b, &all[i].o, &id, &err), NIB_OK);
    }
    assert_int_equal(nib_batch_step(b, &n_left, &err), NIB_OK);
    one = kv_bytes_in_use(e, TYPE_F16);
    while (n_left > 0) {
        assert_int_equal(nib_batch_step(b, &n_left, &err), NIB_OK);
        max = NUM_MAX(max, kv_bytes_in_use(e, TYPE_F16));
    }
    assert_true(one > 0 && max <= one / 7 * (6 + N)); /* each sequence has only its last page for itself */
    nib_result r;
    int64_t computed = 0;
    for (; nib_batch_take(b, &id, &r, NULL); nib_result_clear(&r))
        computed += r.prompt_n;
    assert_true(computed < PREFIX + N * 20); /* not N times the prefix */
    nib_batch_close(b);
    nib_engine_close(e);
}

/* The KV pages that are reserved for 32 sequences with 400 tokens in common are those of one and one page for
 * each: all decode together, and their answers are those without the others. */
static void a_common_prefix_is_reserved_once(void **state) {
    (void)state;
    enum { N = SANITIZED ? 12 : 32, PREFIX = 400, OWN = 5, ANSWER = 20, PAGES = 7 + N };
    static const int kinds[] = {NIB_KV_F16, NIB_KV_8};
    static work all[N];
    for (size_t k = 0; k < NUM_COUNT(kinds); k++) {
        nib_engine_options eo = engine_usual();
        nib_error err = {0};
        eo.n_ctx = 512;
        eo.n_batch = 512;
        eo.kv_type = kinds[k];
        nib_engine *e = engine_must_open(tiny_model("batch.gguf", &packed), &eo, NULL);
        for (int i = 0; i < N; i++) {
            nib_generate_options_init(&all[i].o);
            for (int t = 0; t < PREFIX + OWN; t++)
                all[i].prompt[t] = t < PREFIX ? (t * 7 + 1) % N_VOCAB : (t * 31 + i * 17) % N_VOCAB;
            all[i].o.sampling.temperature = 0;
            all[i].o.n_predict = ANSWER;
            all[i].o.ignore_eos = true;
            all[i].o.prompt = all[i].prompt;
            all[i].o.n_prompt = PREFIX + OWN;
            nib_session *s = session_must_open(e);
            assert_int_equal(nib_generate(s, &all[i].o, &all[i].want, &err), NIB_OK);
            nib_session_close(s);
        }
        for (int optimistic = 0; optimistic < 2; optimistic++) {
            const nib_batch_options o = {
                .n_sequence = N, .n_position = PAGES * KV_BLOCK, .optimistic = optimistic};
            nib_batch *b = batch_must_open(e, &o);
            nib_batch_counts counts;
            int32_t n_left = 1;
            int n_step = 0;
            for (int i = 0; i < N; i++)
                add(b, &all[i]);
            for (; n_left > 0; n_step++)
                assert_int_equal(nib_batch_step(b, &n_left, &err), NIB_OK);
            nib_batch_count(b, &counts);
            compare_done(b, all, N, 1);
            assert_true(n_step < 2 * ANSWER); /* not one after the other */
            assert_int_equal(counts.paused, 0);
            nib_batch_close(b);
        }
        clear(all, N);
        nib_engine_close(e);
    }
}

/* Under a cap that streams weights, memory is there for any sampling of one answer; others of a batch wait.
 */
static void any_sampling_under_a_cap(void **state) {
    (void)state;
    enum { N = 6 };
    static const tiny_shape wide = {TYPE_Q8_0, 4, 128, 256, 4, 2, 65536, 64, true};
    static const int32_t prompt[] = {1, 2, 3};
    const nib_logit_bias bias = {5, 1};
    const char *path = tiny_model("sampling.gguf", &wide);
    nib_engine_options o = engine_usual();
    nib_generate_options g;
    nib_result alone, r;
    nib_error err = {0};
    int64_t id;
    int32_t n_left = 1;
    int n_done = 0;
    o.stream = true;
    o.n_ctx = 64;
    o.n_session = N;
    o.ram = tiny_model_half_bytes_with(path, &o);
    o.ram += process_bytes();
    if (SANITIZED_THREADS) /* its own memory grows meanwhile */
        o.ram += 256 << 20;
    nib_engine *e = engine_must_open(path, &o, NULL);
    nib_generate_options_init(&g);
    g.prompt = prompt;
    g.n_prompt = NUM_COUNT(prompt);
    g.n_predict = 8;
    g.ignore_eos = true;
    g.sampling = (nib_sampling){.temperature = 1, .top_p = 1, .repeat_penalty = 1.1F, .penalty_window = -1};
    g.bias = &bias;
    g.n_bias = 1;
    nib_session *s = session_must_open(e);
    if (nib_generate(s, &g, &alone, &err))
        fail_msg("%s", err.message);
    nib_session_close(s);
    nib_batch *b = batch_must_open(e, &(nib_batch_options){.n_sequence = N});
    for (int i = 0; i < N; i++)
        assert_int_equal(nib_batch_add(b, &g, &id, &err), NIB_OK);
    while (n_left > 0)
        assert_int_equal(nib_batch_step(b, &n_left, &err), NIB_OK);
    for (; nib_batch_take(b, &id, &r, &err); n_done++) {
        if (err.status)
            fail_msg("%s", err.message);
        assert_int_equal(r.n_token, alone.n_token);
        assert_memory_equal(r.tokens, alone.tokens, r.n_token * sizeof *r.tokens);
        nib_result_clear(&r);
    }
    assert_int_equal(n_done, N);
    nib_result_clear(&alone);
    nib_batch_close(b);
    nib_engine_close(e);
}

/* Greedy answers in company, to the bits of their candidates' probabilities. */
static void the_same_bits_in_company(void **state) {
    (void)state;
    static const int kinds[] = {NIB_KV_F16, NIB_KV_F32, NIB_KV_8, NIB_KV_4};
    static company_answer alone, is;
    static const tiny_shape longer = {TYPE_Q4_0, 2, 64, 96, 4, 2, N_VOCAB, COMPANY_CTX, true};
    const char *path = tiny_model("company.gguf", &longer);
    int32_t tokens[COMPANY_PROMPT];
    for (size_t k = 0; k < NUM_COUNT(kinds); k += (size_t)slow_step(3))
        for (int how = 0; how < COMPANY_COUNT; how++) {
            nib_engine_options o = engine_usual();
            o.n_ctx = COMPANY_CTX;
            o.n_session = 4;
            o.n_batch = 65;
            o.kv_type = kinds[k];
            nib_engine *e = engine_must_open(path, &o, NULL);
            company_prompt(e, N_VOCAB, tokens);
            nib_engine_close(e);
            e = engine_must_open(path, &o, NULL);
            company_ask(e, how, tokens, how ? &is : &alone);
            nib_engine_close(e);
            if (how && memcmp(&is, &alone, sizeof is) != 0)
                fail_msg("an answer %s has other bits than in a session, cache %zu", company_names[how], k);
        }
}

static bool stop_after_three(void *user, int32_t token) {
    (void)token;
    return ++*(int *)user < 3;
}

static void stopped_and_cancelled(void **state) {
    (void)state;
    static work all[8];
    nib_engine *e = open_engine(0, 2, 64, 0);
    nib_batch *b = batch_must_open(e, &(nib_batch_options){.n_sequence = 3});
    nib_error err = {0}, how;
    nib_result r;
    int64_t id;
    int32_t n_left;
    int n_told = 0;
    for (int i = 0; i < 6; i++) {
        make(&all[i], i);
        all[i].o.n_predict = 30;
        if (i == 0) {
            all[i].o.on_token = stop_after_three;
            all[i].o.user = &n_told;
        }
        add(b, &all[i]);
    }
    assert_int_equal(nib_batch_step(b, &n_left, &err), NIB_OK);
    assert_int_equal(n_left, 6);
    nib_batch_cancel(b, 2);  /* is computed */
    nib_batch_cancel(b, 6);  /* waits */
    nib_batch_cancel(b, 99); /* never was */
    run_out(b);
    int cancelled = 0, stopped = 0;
    while (nib_batch_take(b, &id, &r, &how)) {
        cancelled += how.status == NIB_E_CANCELLED && (id == 2 || id == 6);
        stopped += id == 1 && r.n_token == 3 && r.finish == NIB_FINISH_STOP;
        nib_result_clear(&r);
    }
    assert_int_equal(cancelled, 2);
    assert_int_equal(stopped, 1);
    add(b, &all[3]); /* closed while something is computed and something waits */
    add(b, &all[4]);
    assert_int_equal(nib_batch_step(b, &n_left, &err), NIB_OK);
    nib_batch_close(b);
    nib_engine_close(e);
}

/* Under a cap that streams the weights every read fails once; the step is repeated, and the tokens are the
 * same. */
static void a_failed_step_is_taken_again(void **state) {
    (void)state;
    static work all[4];
    const char *path = tiny_model("batch.gguf", &packed);
    nib_engine_options o = engine_usual();
    nib_error err = {0};
    o.n_ctx = N_CTX;
    o.n_batch = 64;
    o.stream = true;
    engine_internal nothing = {.keep_nothing = true};
    nib_engine *e;
    if (engine_open(path, &o, &nothing, &e, &err))
        fail_msg("%s", err.message);
    answer_alone(e, all, 4);
    int failures = 0;
    for (int64_t nth = 1; nth < 400; nth += 1 + nth / 3) {
        nib_batch *b = batch_must_open(e, &(nib_batch_options){.n_sequence = 4});
        int32_t n_left = 1;
        for (int i = 0; i < 4; i++)
            add(b, &all[i]);
        fault_arm(FAULT_READ, nth);
        for (int tries = 0; n_left > 0 && tries < 200; tries++)
            failures += nib_batch_step(b, &n_left, &err) != NIB_OK;
        fault_arm(FAULT_READ, 0);
        compare_done(b, all, 4, 1);
        nib_batch_close(b);
    }
    assert_true(failures > 0);
    clear(all, 4);
    nib_engine_close(e);
}

/* ---- all widths ---- */

enum { N_WIDE = SANITIZED ? 24 : 64, TOP = 4 };

typedef struct drawn_tokens {
    int n;
    nib_candidate drawn[N_WIDE + 1], top[N_WIDE + 1][TOP];
} drawn_tokens;

static void keep_drawn(void *user, nib_candidate drawn, const nib_candidate *top, int32_t n_top) {
    drawn_tokens *d = user;
    assert_true(d->n <= N_WIDE);
    assert_int_equal(n_top, TOP);
    d->drawn[d->n] = drawn;
    memcpy(d->top[d->n++], top, sizeof d->top[0]);
}

/* Request i has i + 2 tokens, so that a batch of all has every width from N_WIDE to 1. Some answers continue
 * in their second page. */
static void make_wide(work *w, int i, drawn_tokens *out) {
    nib_generate_options_init(&w->o);
    w->o.prompt = w->prompt;
    w->o.n_prompt = i % 8 == 7 ? 30 : 2 + (size_t)(i % 5);
    for (size_t k = 0; k < w->o.n_prompt; k++)
        w->prompt[k] = (int32_t)((size_t)i * 4 + k * 31 + 1) % N_VOCAB;
    w->o.n_predict = i + 2;
    w->o.ignore_eos = true;
    w->o.sampling.temperature = 0;
    w->o.n_top = TOP;
    w->o.on_candidates = keep_drawn;
    w->o.user = out;
    out->n = 0;
}

/* Steps until nothing is left, and checks that each number of generated rows was there once. */
static void step_widths(nib_batch *b, const drawn_tokens *all) {
    int32_t n_left = 1;
    nib_error err = {0};
    int before = 0;
    for (int want = N_WIDE; n_left > 0; want -= before > N_WIDE) { /* the first step has the prompts */
        if (nib_batch_step(b, &n_left, &err))
            fail_msg("%s", err.message);
        int n = -before;
        for (int i = 0; i < N_WIDE; i++)
            n += all[i].n;
        assert_int_equal(n, want);
        before += n;
    }
    assert_int_equal(before, N_WIDE + N_WIDE * (N_WIDE + 1) / 2);
}

/* A row has the same bits beside any number of others. */
static void every_width(void **state) {
    (void)state;
    static const int kinds[] = {NIB_KV_F16, NIB_KV_F32, NIB_KV_8, NIB_KV_4};
    static work all[N_WIDE];
    static drawn_tokens alone[N_WIDE], together[N_WIDE];
    for (size_t k = 0; k < NUM_COUNT(kinds); k += (size_t)slow_step(3)) {
        nib_engine *e = open_engine(kinds[k], 2, 512, N_WIDE);
        nib_batch *b = batch_must_open(e, &(nib_batch_options){.n_sequence = N_WIDE});
        nib_session *s = session_must_open(e);
        nib_error err = {0};
        nib_result r;
        int64_t id;
        memset(alone, 0, sizeof alone);
        memset(together, 0, sizeof together);
        for (int i = 0; i < N_WIDE; i++) {
            make_wide(&all[i], i, &alone[i]);
            assert_int_equal(nib_generate(s, &all[i].o, &r, &err), NIB_OK);
            nib_result_clear(&r);
            make_wide(&all[i], i, &together[i]);
            add(b, &all[i]);
        }
        step_widths(b, together);
        for (int i = 0; i < N_WIDE; i++)
            if (memcmp(&together[i], &alone[i], sizeof alone[i]) != 0)
                fail_msg("answer %d has other bits than alone, cache %zu", i, k);
        for (; nib_batch_take(b, &id, &r, NULL);)
            nib_result_clear(&r);
        nib_session_close(s);
        nib_batch_close(b);
        nib_engine_close(e);
    }
}

/* ---- rows ---- */

/* Of the ops with this name since the trace began. */
static nib_trace_row traced(nib_engine *e, const char *what) {
    nib_trace_row rows[64];
    const size_t n = nib_engine_trace_read(e, rows, NUM_COUNT(rows), NULL);
    assert_in_range(n, 1, NUM_COUNT(rows));
    for (size_t i = 0; i < n; i++)
        if (!strcmp(rows[i].what, what))
            return rows[i];
    fail_msg("the trace has no \"%s\"", what);
    return rows[0];
}

static void step_once(nib_batch *b) {
    int32_t n_left;
    nib_error err = {0};
    if (nib_batch_step(b, &n_left, &err))
        fail_msg("%s", err.message);
}

/* A step multiplies each matrix once, with the rows of all sequences. The last layer and the head have the
 * rows that want logits only. */
static void a_batch_is_rows(void **state) {
    (void)state;
    enum { N = 6, PROMPT = 20, OWN = 3 };
    static const struct {
        int n_row, n_wanted;
    } steps[] = {{N * OWN, N}, {N, N}, {N + PROMPT, N + 1}, {N + 1, N + 1}};
    static work all[N + 1];
    nib_engine *e = open_engine(NIB_KV_F16, 2, 128, 16);
    nib_batch *b = batch_must_open(e, &(nib_batch_options){.n_sequence = N + 1});
    const double qkv = (double)(packed.d_model * packed.d_model * 2),
                 head = (double)(packed.d_model * N_VOCAB);
    for (int i = 0; i <= N; i++) {
        make(&all[i], i);
        all[i].o.n_prompt = i == N ? PROMPT : OWN;
        for (int k = 0; k < PROMPT; k++)
            all[i].prompt[k] = (i * 40 + k) % N_VOCAB;
        all[i].o.n_predict = 8;
        if (i < N)
            add(b, &all[i]);
    }
    for (size_t i = 0; i < NUM_COUNT(steps); i++) {
        const int n_row = steps[i].n_row, n_wanted = steps[i].n_wanted;
        if (i == 2)
            add(b, &all[N]); /* a prompt beside generated rows */
        assert_int_equal(nib_engine_trace_begin(e, NULL), NIB_OK);
        step_once(b);
        const nib_trace_row products = traced(e, "linear q+k+v"), logits = traced(e, "linear head");
        assert_true(products.macs == qkv * (double)((packed.n_layer - 1) * n_row + n_wanted));
        if (n_row == n_wanted) /* a call for each of the three */
            assert_int_equal(products.calls, 3 * packed.n_layer);
        assert_int_equal(logits.calls, 1);
        assert_true(logits.macs == head * n_wanted);
    }
    nib_batch_close(b);
    nib_engine_close(e);
}

/* A request that never fits is refused when it is added; nothing of it is computed. */
static void what_never_fits_is_refused(void **state) {
    (void)state;
    static const int kinds[] = {NIB_KV_F16, NIB_KV_F32, NIB_KV_8, NIB_KV_4};
    static work w;
    for (size_t k = 0; k < NUM_COUNT(kinds); k++) {
        nib_engine *e = open_engine(kinds[k], 1, 64, 0);
        nib_batch *b = batch_must_open(e, &(nib_batch_options){.n_position = KV_BLOCK, .optimistic = k % 2});
        nib_error err = {0};
        nib_trace_row row;
        int64_t id = -1;
        int32_t n_left = 1;
        double pass_s = -1;
        nib_batch_counts before, after;
        nib_batch_count(b, &before);
        assert_int_equal(nib_engine_trace_begin(e, NULL), NIB_OK);
        make(&w, 1);
        w.o.n_prompt = 70;
        for (int i = 0; i < 70; i++)
            w.prompt[i] = i;
        w.o.n_predict = 2 * KV_BLOCK - 70 + 1; /* two pages of any cache */
        assert_int_equal(nib_batch_add(b, &w.o, &id, &err), NIB_E_USAGE);
        assert_int_equal(id, -1);
        assert_int_equal(nib_batch_step(b, &n_left, &err), NIB_OK);
        assert_int_equal(n_left, 0);
        nib_batch_count(b, &after);
        assert_memory_equal(&after, &before, sizeof after);
        nib_engine_trace_read(e, &row, 1, &pass_s);
        assert_true(pass_s == 0);
        w.o.n_prompt = KV_BLOCK; /* this one fits */
        w.o.n_predict = 1;
        add(b, &w);
        run_out(b);
        nib_result r;
        assert_true(nib_batch_take(b, &id, &r, &err));
        assert_int_equal(err.status, NIB_OK);
        nib_result_clear(&r);
        nib_batch_close(b);
        nib_engine_close(e);
    }
}

static bool count_token(void *user, int32_t token) {
    (void)token;
    ++*(int *)user;
    return true;
}

/* With prompts_first no answer gets a second token before each has its first; then all decode in each step.
 */
static void prompts_are_first(void **state) {
    (void)state;
    enum { N = 7, N_TOKEN = 4 };
    static work w;
    nib_engine *e = open_engine(NIB_KV_F16, 1, 70, 0);
    nib_batch *b = batch_must_open(e, &(nib_batch_options){.n_sequence = N, .prompts_first = true});
    int counts[N] = {0};
    nib_error err = {0};
    for (int i = 0; i < N; i++) {
        make(&w, i);
        w.o.n_predict = N_TOKEN;
        w.o.on_token = count_token;
        w.o.user = &counts[i];
        add(b, &w);
    }
    for (int32_t n_left = N; n_left > 0;) {
        int min = N_TOKEN, max = 0;
        if (nib_batch_step(b, &n_left, &err))
            fail_msg("%s", err.message);
        for (int i = 0; i < N; i++) {
            min = NUM_MIN(min, counts[i]);
            max = NUM_MAX(max, counts[i]);
        }
        assert_true(max - min <= (min == 0));
    }
    assert_int_equal(counts[0], N_TOKEN);
    nib_batch_close(b);
    nib_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_as_alone),
        cmocka_unit_test(however_it_is_cut),
        cmocka_unit_test(they_wait_for_pages),
        cmocka_unit_test(a_common_prefix_takes_memory_once),
        cmocka_unit_test(a_common_prefix_is_reserved_once),
        cmocka_unit_test(any_sampling_under_a_cap),
        cmocka_unit_test(the_same_bits_in_company),
        cmocka_unit_test(every_width),
        cmocka_unit_test(a_batch_is_rows),
        cmocka_unit_test(what_never_fits_is_refused),
        cmocka_unit_test(prompts_are_first),
        cmocka_unit_test(stopped_and_cancelled),
        cmocka_unit_test(a_failed_step_is_taken_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
