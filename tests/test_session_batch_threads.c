/* A batch from many threads: requests are added, cancelled, counted and taken while one thread computes
 * steps, and others try to; callbacks use the batch too. Every answer that was not cancelled has the tokens
 * of a session. And progress of prompts, and allocations that fail. */
#include "base/num.h"
#include "engine/engine.h"
#include "support/engine.h"
#include "support/faults.h"
#include "support/tinymodel.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_VOCAB = 300, N_CTX = 192, N_KIND = 6, N_THREAD = 8, N_EACH = 24, N_ALL = N_THREAD * N_EACH };

static const tiny_shape packed = {TYPE_Q4_0, 2, 64, 96, 4, 2, N_VOCAB, 256, true};

static nib_engine *open_engine(void) {
    nib_engine_options o = engine_usual();
    o.n_thread = 2;
    o.n_ctx = N_CTX;
    o.n_batch = 32;
    return engine_must_open(tiny_model("threads.gguf", &packed), &o, NULL);
}

static int32_t prompts[N_KIND][N_CTX];

/* One of a few requests: any length, greedy or drawn. */
static nib_generate_options request_of(int kind) {
    nib_generate_options o;
    nib_generate_options_init(&o);
    for (int i = 0; i < N_CTX; i++)
        prompts[kind][i] = (i * 31 + kind * 17 + 3) % N_VOCAB;
    o.prompt = prompts[kind];
    o.n_prompt = (size_t)(1 + kind * 23);
    o.n_predict = 3 + kind * 2;
    o.ignore_eos = true;
    o.sampling.temperature = kind % 2 ? 0.9F : 0;
    o.sampling.seed = (uint64_t)kind;
    return o;
}

/* ---- many threads ---- */

typedef struct shared {
    nib_batch *b;
    nib_generate_options requests[N_KIND];
    nib_result want[N_KIND];
    atomic_int kind_of[N_ALL + 1]; /* by id; -1: not known yet */
    atomic_bool asked[N_ALL + 1];  /* it was cancelled, perhaps too late */
    atomic_int n_added, n_taken, n_wrong, n_cancelled, n_refused;
} shared;

static void judge(shared *s, int64_t id, const nib_result *r, nib_status status) {
    int kind;
    while ((kind = atomic_load(&s->kind_of[id])) < 0)
        sched_yield(); /* taken before its number was noted */
    const nib_result *want = &s->want[kind];
    if (status == NIB_E_CANCELLED && atomic_load(&s->asked[id]))
        atomic_fetch_add(&s->n_cancelled, 1);
    else if (status != NIB_OK || r->n_token != want->n_token ||
             memcmp(r->tokens, want->tokens, r->n_token * sizeof *r->tokens))
        atomic_fetch_add(&s->n_wrong, 1);
}

static void take_all(shared *s) {
    nib_result r;
    nib_error how;
    for (int64_t id; nib_batch_take(s->b, &id, &r, &how); nib_result_clear(&r)) {
        judge(s, id, &r, how.status);
        atomic_fetch_add(&s->n_taken, 1);
    }
}

typedef struct worker {
    shared *s;
    int index;
} worker;

static void *work(void *arg) {
    const worker *w = arg;
    shared *s = w->s;
    nib_error err;
    for (int i = 0; i < N_EACH; i++) {
        const int kind = (w->index + i) % N_KIND;
        int64_t id;
        nib_batch_counts counts;
        if (nib_batch_add(s->b, &s->requests[kind], &id, &err) != NIB_OK) {
            atomic_fetch_add(&s->n_wrong, 1);
            continue;
        }
        if (i % 3 == w->index % 3) {
            atomic_store(&s->asked[id], true);
            if (i % 2)
                sched_yield();
            nib_batch_cancel(s->b, id);
        }
        atomic_store(&s->kind_of[id], kind);
        atomic_fetch_add(&s->n_added, 1);
        nib_batch_cancel(s->b, id + 1000);
        nib_batch_count(s->b, &counts);
        int32_t n_left;
        const nib_status status = nib_batch_step(s->b, &n_left, &err);
        if (status == NIB_E_USAGE)
            atomic_fetch_add(&s->n_refused, 1);
        else if (status != NIB_OK)
            atomic_fetch_add(&s->n_wrong, 1);
        take_all(s);
    }
    return NULL;
}

static void any_thread(void **state) {
    (void)state;
    static shared s;
    nib_error err = {0};
    nib_engine *e = open_engine();
    for (int k = 0; k < N_KIND; k++) {
        nib_session *alone = session_must_open(e);
        s.requests[k] = request_of(k);
        assert_int_equal(nib_generate(alone, &s.requests[k], &s.want[k], &err), NIB_OK);
        nib_session_close(alone);
    }
    for (int i = 0; i <= N_ALL; i++)
        atomic_store(&s.kind_of[i], -1);
    s.b = batch_must_open(e, &(nib_batch_options){.n_sequence = 5, .optimistic = true, .n_position = 512});
    pthread_t threads[N_THREAD];
    worker workers[N_THREAD];
    for (int i = 0; i < N_THREAD; i++) {
        workers[i] = (worker){&s, i};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < N_THREAD; i++)
        pthread_join(threads[i], NULL);
    int32_t n_left = 1;
    while (n_left > 0)
        assert_int_equal(nib_batch_step(s.b, &n_left, &err), NIB_OK);
    take_all(&s);
    assert_int_equal(atomic_load(&s.n_added), N_ALL);
    assert_int_equal(atomic_load(&s.n_taken), N_ALL);
    assert_int_equal(atomic_load(&s.n_wrong), 0);
    assert_true(atomic_load(&s.n_cancelled) > 0 && atomic_load(&s.n_cancelled) <= N_ALL / 3 + N_THREAD);
    nib_batch_close(s.b);
    for (int k = 0; k < N_KIND; k++)
        nib_result_clear(&s.want[k]);
    nib_engine_close(e);
}

/* ---- callbacks ---- */

typedef struct caller {
    nib_batch *b;
    nib_generate_options more;
    int64_t added, victim;
    nib_status step;
    int n_token;
    uint64_t done[16], total;
    int n_told;
    int cancel_at; /* this call of on_prompt ends the request; 0: none */
} caller;

static bool use_batch(void *user, int32_t token) {
    caller *c = user;
    nib_error err;
    int32_t n_left;
    (void)token;
    if (c->n_token++ == 0) {
        nib_batch_add(c->b, &c->more, &c->added, &err);
        nib_batch_cancel(c->b, c->victim);
        c->step = nib_batch_step(c->b, &n_left, &err);
    }
    return true;
}

static void callbacks_may_use_the_batch(void **state) {
    (void)state;
    nib_error err = {0}, how;
    nib_engine *e = open_engine();
    caller c = {.b = batch_must_open(e, &(nib_batch_options){.n_sequence = 3}), .more = request_of(1)};
    nib_generate_options first = request_of(2), victim = request_of(5);
    int64_t id;
    int32_t n_left = 1;
    first.on_token = use_batch;
    first.user = &c;
    assert_int_equal(nib_batch_add(c.b, &first, &id, &err), NIB_OK);
    assert_int_equal(nib_batch_add(c.b, &victim, &c.victim, &err), NIB_OK);
    while (n_left > 0)
        assert_int_equal(nib_batch_step(c.b, &n_left, &err), NIB_OK);
    assert_int_equal(c.step, NIB_E_USAGE);
    int n_ok = 0, n_cancelled = 0;
    nib_result r;
    for (; nib_batch_take(c.b, &id, &r, &how); nib_result_clear(&r)) {
        n_ok += how.status == NIB_OK;
        n_cancelled += how.status == NIB_E_CANCELLED && id == c.victim;
    }
    assert_int_equal(n_ok, 2);
    assert_int_equal(n_cancelled, 1);
    nib_batch_close(c.b);
    nib_engine_close(e);
}

static bool note_prompt(void *user, const char *what, uint64_t done, uint64_t total) {
    caller *c = user;
    assert_string_equal(what, "prompt");
    assert_int_equal(c->n_token, 0); /* before the first token */
    assert_true(c->n_told < 16);
    c->done[c->n_told++] = done;
    c->total = total;
    return c->n_told != c->cancel_at;
}
static bool note_token(void *user, int32_t token) {
    caller *c = user;
    (void)token;
    c->n_token++;
    return true;
}

/* A prompt of 116 rows in passes of at most 32. Ended by the callback in the middle, or at its end. */
static void prompts_tell_their_progress(void **state) {
    (void)state;
    nib_error err = {0}, how;
    nib_engine *e = open_engine();
    for (int cancel_at = 0; cancel_at <= 4; cancel_at += 2) {
        caller c = {.b = batch_must_open(e, &(nib_batch_options){.n_sequence = 3}), .cancel_at = cancel_at};
        nib_generate_options o = request_of(5);
        int64_t id;
        int32_t n_left = 1;
        nib_result r;
        o.prompt += cancel_at; /* none has a prefix that was computed before */
        o.on_prompt = note_prompt;
        o.on_token = note_token;
        o.user = &c;
        assert_int_equal(nib_batch_add(c.b, &o, &id, &err), NIB_OK);
        while (n_left > 0)
            assert_int_equal(nib_batch_step(c.b, &n_left, &err), NIB_OK);
        assert_true(nib_batch_take(c.b, &id, &r, &how));
        assert_int_equal(how.status, cancel_at ? NIB_E_CANCELLED : NIB_OK);
        assert_int_equal(c.n_told, cancel_at ? cancel_at : 4);
        assert_int_equal(c.total, o.n_prompt);
        for (int i = 0; i < c.n_told; i++)
            assert_int_equal(c.done[i], NUM_MIN(32 * (i + 1), (int)o.n_prompt));
        assert_int_equal(c.n_token, cancel_at ? 0 : o.n_predict);
        assert_int_equal(r.n_token, cancel_at ? 0 : o.n_predict);
        nib_result_clear(&r);
        nib_batch_close(c.b);
    }
    nib_engine_close(e);
}

/* ---- allocations ---- */

static nib_status answer_some(void *user, nib_error *err) {
    static const char *const stops[] = {"never", "either"};
    static const nib_logit_bias bias = {7, -INFINITY};
    nib_batch *b = NULL;
    nib_status status = nib_batch_open(user, &(nib_batch_options){.n_sequence = 2, .n_draft = 2}, &b, err);
    int64_t ids[3];
    for (int i = 0; i < 3 && status == NIB_OK; i++) {
        nib_generate_options o = request_of(i + 1);
        o.n_predict = 4;
        o.stop = stops;
        o.n_stop = i == 1 ? 2 : 0;
        o.bias = &bias;
        o.n_bias = i == 2;
        status = nib_batch_add(b, &o, &ids[i], err);
    }
    for (int32_t n_left = 1; n_left > 0 && status == NIB_OK;)
        status = nib_batch_step(b, &n_left, err);
    nib_result r;
    nib_error how;
    const int32_t *tokens[3] = {0};
    nib_result results[3] = {0};
    for (int64_t id; status == NIB_OK && nib_batch_take(b, &id, &r, &how);) {
        results[id - ids[0]] = r;
        tokens[id - ids[0]] = r.tokens;
        if (how.status != NIB_OK) {
            status = how.status;
            *err = how;
        }
    }
    for (int i = 0; i < 3; i++) {
        if (status == NIB_OK)
            fault_made(tokens[i], results[i].n_token * sizeof **tokens);
        nib_result_clear(&results[i]);
    }
    nib_batch_close(b);
    return status;
}

static void every_allocation(void **state) {
    (void)state;
    nib_engine *e = open_engine();
    assert_true(fault_sweep(FAULT_ALLOC, 1, answer_some, e) > 10);
    nib_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_thread),
        cmocka_unit_test(callbacks_may_use_the_batch),
        cmocka_unit_test(prompts_tell_their_progress),
        cmocka_unit_test(every_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
