/* Scheduling: parts of prompts by the times of steps (on a fake clock), clients in turn by their counters,
 * and answers that pause when KV pages run out. The tokens are those of each answer alone. */
#include "base/mem.h"
#include "base/num.h"
#include "engine/engine.h"
#include "session/prefill_budget.h"
#include "session/fairness.h"
#include "support/engine.h"
#include "support/slow.h"
#include "support/tinymodel.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { N_VOCAB = 300, N_CTX = 256, MAX = 24 };

static const tiny_shape shape = {TYPE_Q4_0, 2, 64, 96, 4, 2, N_VOCAB, N_CTX, true};

/* ---- parts of prompts ---- */

/* Seconds of a step on a machine where it takes `fixed`, and each row `each`. */
static void target_is_kept(void **state) {
    (void)state;
    static const double machines[][2] = {{0.001, 0.0002}, {0.02, 0.002}, {0.2, 0.00001}, {0.0001, 0.00001}};
    for (size_t m = 0; m < NUM_COUNT(machines); m++) {
        const double fixed = machines[m][0], each = machines[m][1], target = 0.1, n_decode = 4;
        const double alone = fixed + each * n_decode, max_seconds = NUM_MAX(target, 2 * alone);
        prefill_budget p = {0};
        for (int i = 0; i < 60; i++) {
            const int64_t n = prefill_budget_rows(&p, target, alone);
            const double seconds = alone + each * (double)n;
            assert_true(n >= 8);
            if (i > 0 && n > 8)
                assert_true(seconds < 1.01 * max_seconds);
            if (i > 40)
                assert_true(seconds > 0.9 * max_seconds);
            prefill_budget_note(&p, i % 7 ? seconds : seconds * 1.0001, alone, n);
        }
        prefill_budget_note(&p, 10 * max_seconds, alone,
                            8); /* another program ran: fewer rows at once, and later more again */
        const int64_t fewer = prefill_budget_rows(&p, target, alone);
        assert_true(fewer >= 8 && alone + each * (double)fewer < 0.6 * max_seconds);
    }
    prefill_budget p = {0};
    assert_true(prefill_budget_rows(&p, 0.1, 0) > 0);
    prefill_budget_note(&p, 0, 0, 5);
    prefill_budget_note(&p, 1, 0, 0);
    assert_true(p.row_s == 0);
}

/* ---- clients ---- */

static void who_was_served_less(void **state) {
    (void)state;
    static fairness s;
    const int a = fairness_enter(&s, 7), b = fairness_enter(&s, 9);
    assert_int_equal(fairness_enter(&s, 7), a);
    fairness_serve(&s, a, 100);
    assert_true(fairness_served(&s, b) < fairness_served(&s, a));
    fairness_serve(&s, b, 300);
    const int c = fairness_enter(&s, 11); /* begins with those that are there, not before them */
    assert_true(fairness_served(&s, c) == 100);
    fairness_leave(&s, b);
    assert_int_equal(fairness_enter(&s, 9), b); /* its counter is not forgotten */
    assert_true(fairness_served(&s, b) == 300);
    for (uint64_t i = 100; i < 100 + 2 * FAIRNESS_CLIENTS; i++)
        assert_in_range(fairness_enter(&s, i), 0, FAIRNESS_CLIENTS - 1);
}

/* A client that was alone for long does not wait until another one has caught up. */
static void who_comes_when_nobody_is_there(void **state) {
    (void)state;
    static fairness s;
    const int a = fairness_enter(&s, 7);
    fairness_serve(&s, a, 1000000);
    fairness_leave(&s, a);
    const int b = fairness_enter(&s, 9);
    fairness_enter(&s, 7);
    assert_true(fairness_served(&s, b) == fairness_served(&s, a));
}

typedef struct work {
    int32_t prompt[N_CTX];
    nib_generate_options o;
    nib_result want;
    int64_t step; /* in which its first token came; 0: none yet */
} work;

static int64_t step_now;

static bool note_step(void *user, int32_t token) {
    work *w = user;
    (void)token;
    w->step = w->step ? w->step : step_now;
    return true;
}

static void make(work *w, int i, size_t n_prompt, int64_t n_predict) {
    memset(w, 0, sizeof *w);
    nib_generate_options_init(&w->o);
    for (size_t k = 0; k < n_prompt; k++)
        w->prompt[k] = (int32_t)((k * 31 + (size_t)i * 17 + 3) % N_VOCAB);
    w->o.prompt = w->prompt;
    w->o.n_prompt = n_prompt;
    w->o.n_predict = n_predict;
    w->o.ignore_eos = true;
    w->o.sampling.seed = (uint64_t)i;
    w->o.on_token = note_step;
    w->o.user = w;
}

static nib_engine *open_engine(int kv) {
    nib_engine_options o = engine_usual();
    o.n_thread = 1;
    o.n_ctx = N_CTX;
    o.n_batch = 64;
    o.kv_type = kv;
    return engine_must_open(tiny_model("fair.gguf", &shape), &o, NULL);
}

static void add(nib_batch *b, work *w) {
    nib_error err = {0};
    int64_t id;
    if (nib_batch_add(b, &w->o, &id, &err))
        fail_msg("%s", err.message);
}

static void run_out(nib_batch *b) {
    nib_error err = {0};
    int32_t n_left = 1;
    for (step_now = 1; n_left > 0; step_now++)
        if (nib_batch_step(b, &n_left, &err))
            fail_msg("%s", err.message);
}

static void drop_results(nib_batch *b) {
    nib_result r;
    int64_t id;
    while (nib_batch_take(b, &id, &r, NULL))
        nib_result_clear(&r);
}

/* One client has requested twenty answers when another one requests one: that one gets the next place. */
static void nobody_starves(void **state) {
    (void)state;
    static work all[MAX];
    nib_engine *e = open_engine(NIB_KV_F16);
    nib_batch *b = batch_must_open(e, &(nib_batch_options){.n_sequence = 2});
    for (int i = 0; i < 21; i++) {
        make(&all[i], i, 20, 10);
        all[i].o.client = i < 20 ? 1 : 2;
        add(b, &all[i]);
    }
    run_out(b);
    int before = 0;
    for (int i = 0; i < 20; i++)
        before += all[i].step < all[20].step;
    assert_in_range(before, 1, 3);
    drop_results(b);
    nib_batch_close(b);

    /* Rows of prompts: a short prompt does not wait for all long prompts of another client. */
    b = batch_must_open(e, &(nib_batch_options){.n_sequence = 4, .n_prompt = 16});
    for (int i = 0; i < 4; i++) {
        make(&all[i], i, i < 3 ? 200 : 30, 4);
        all[i].o.client = i < 3 ? 1 : 2;
        add(b, &all[i]);
    }
    run_out(b);
    assert_true(all[3].step <= 5); /* of about forty */
    assert_true(all[0].step < all[1].step && all[1].step < all[2].step);
    drop_results(b);
    nib_batch_close(b);
    nib_engine_close(e);
}

/* ---- optimistic admission ---- */

static void take(nib_batch *b, work *all, bool keep) {
    nib_result r;
    nib_error how;
    int64_t id;
    while (nib_batch_take(b, &id, &r, &how)) {
        work *w = &all[id - 1];
        assert_int_equal(how.status, NIB_OK);
        if (keep) {
            w->want = r;
            continue;
        }
        assert_int_equal(r.finish, w->want.finish);
        assert_int_equal(r.n_token, w->want.n_token);
        assert_memory_equal(r.tokens, w->want.tokens, r.n_token * sizeof *r.tokens);
        nib_result_clear(&r);
    }
}

/* Pages for a context and a half, and sixteen answers that grow: some are preempted, all end, with the same
 * tokens. */
static void they_pause(void **state) {
    (void)state;
    static work all[MAX];
    static const int kinds[] = {NIB_KV_F16, NIB_KV_F32, NIB_KV_8, NIB_KV_4};
    for (size_t k = 0; k < NUM_COUNT(kinds); k += (size_t)slow_step(3)) {
        nib_engine *e = open_engine(kinds[k]);
        nib_batch_counts counts;
        for (int i = 0; i < MAX; i++)
            make(&all[i], i, (size_t)(10 + i * 37 % 70), 60 + i * 29 % 110);
        for (int way = 0; way < 3; way++) {
            const nib_batch_options o = {.n_sequence = way ? 8 : 1,
                                         .n_position = way ? N_CTX + N_CTX / 2 : 0,
                                         .optimistic = way,
                                         .n_draft = way == 2 ? 6 : 0,
                                         .n_draft_min = way == 2 ? 6 : 0};
            nib_batch *b = batch_must_open(e, &o);
            for (int i = 0; i < MAX; i++)
                add(b, &all[i]);
            run_out(b);
            take(b, all, way == 0);
            nib_batch_count(b, &counts);
            assert_true(way ? counts.paused > 0 : counts.paused == 0);
            nib_batch_close(b);
        }
        for (int i = 0; i < MAX; i++)
            nib_result_clear(&all[i].want);
        nib_engine_close(e);
    }
}

/* An answer is cancelled while it pauses, a batch is closed while others pause, and a request that can never
 * fit is refused at once. */
static void a_pause_ends(void **state) {
    (void)state;
    static work all[MAX];
    nib_engine *e = open_engine(NIB_KV_F16);
    nib_batch *b =
        batch_must_open(e, &(nib_batch_options){.n_sequence = 6, .n_position = N_CTX, .optimistic = true});
    nib_batch_counts counts = {0};
    nib_error err;
    int64_t id;
    int32_t n_left;
    for (int i = 0; i < 8; i++) {
        make(&all[i], i, 30, 200);
        add(b, &all[i]);
    }
    for (int i = 0; i < 2000 && counts.paused < 3; i++) {
        assert_int_equal(nib_batch_step(b, &n_left, &err), NIB_OK);
        nib_batch_count(b, &counts);
    }
    assert_true(counts.paused >= 3);
    for (int64_t i = 2; i < 7; i++)
        nib_batch_cancel(b, i);
    assert_int_equal(nib_batch_step(b, &n_left, &err), NIB_OK);
    assert_in_range(n_left, 1, 3);
    drop_results(b);
    nib_batch_close(b);
    b = batch_must_open(e, &(nib_batch_options){.n_sequence = 6, .n_position = 64, .optimistic = true});
    make(&all[0], 0, 30, 100);
    assert_int_equal(nib_batch_add(b, &all[0].o, &id, &err), NIB_E_USAGE);
    nib_batch_close(b);
    nib_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(target_is_kept),
        cmocka_unit_test(who_was_served_less),
        cmocka_unit_test(who_comes_when_nobody_is_there),
        cmocka_unit_test(nobody_starves),
        cmocka_unit_test(they_pause),
        cmocka_unit_test(a_pause_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
