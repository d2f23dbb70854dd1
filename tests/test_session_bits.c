/* The engine's promises: the same bits however the work is divided, reuse of a prefix, cancellation, no
 * allocation while decoding, and a budget that is kept. */
#include "base/mem.h"
#include "nib.h"
#include "support/engine.h"
#include "support/logits.h"
#include "support/process.h"
#include "support/slow.h"
#include "support/tinymodel.h"
#include "memory/ledger.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_TOKEN = 75, N_VOCAB = 1000, N_CTX = 128 };
#define MIB (UINT64_C(1) << 20)

static const tiny_shape small = {TYPE_Q4_1, 3, 96, 160, 6, 2, N_VOCAB, N_CTX, true};
static const tiny_shape small_f16 = {TYPE_F16, 2, 64, 144, 4, 4, N_VOCAB, N_CTX, false};
static const tiny_shape large = {TYPE_Q8_0, 8, 256, 768, 8, 2, 8192, N_CTX, true};

/* Of the engines that are opened. */
static bool no_fuse;
static int act_bits;

static nib_engine *open_engine(const char *path, int n_thread, int64_t n_batch, uint64_t ram) {
    nib_engine_options o;
    nib_engine *e = NULL;
    nib_error err = {0};
    nib_engine_options_init(&o);
    o.n_thread = n_thread;
    o.n_batch = n_batch;
    o.ram = ram;
    o.stream = ram != NIB_AUTO;
    o.no_fuse = no_fuse;
    o.activation = act_bits;
    if (nib_engine_open(path, &o, &e, &err))
        fail_msg("%s", err.message);
    return e;
}

/* Logits of every position; caller frees. */
static float *forward(nib_engine *e) {
    int32_t tokens[N_TOKEN];
    int64_t n_vocab = nib_engine_info(e)->n_vocab;
    nib_session *s = session_must_open(e);
    logits_tokens(tokens, N_TOKEN, n_vocab, 1);
    const logits_rows r = logits_of_session(s, tokens, N_TOKEN, n_vocab);
    assert_memory_equal(nib_session_logits(s), r.data + (N_TOKEN - 1) * n_vocab,
                        (size_t)n_vocab * sizeof(float));
    nib_session_close(s);
    return r.data;
}

static void same_bits_for_any_cut(void **state) {
    (void)state;
    const tiny_shape *shapes[] = {&small, &small_f16, &small};
    const int bits[] = {0, 0, 4}; /* 4: rows have outliers, which are floats */
    for (int m = 0; m < 3; m++) {
        act_bits = bits[m];
        const char *path = tiny_model("small.gguf", shapes[m]);
        float *want = NULL;
        for (int threads = 1; threads <= 3; threads++) {
            static const int64_t batches[] = {512, 7, 1};
            for (int b = 0; b < 6; b++) {
                no_fuse = b >= 3;
                nib_engine *e = open_engine(path, threads, batches[b % 3], NIB_AUTO);
                float *got = forward(e);
                if (want)
                    assert_memory_equal(got, want, (size_t)N_TOKEN * N_VOCAB * sizeof(float));
                nib_engine_close(e);
                if (want)
                    free(got);
                else
                    want = got;
            }
        }
        free(want);
        no_fuse = false;
        act_bits = 0;
    }
}

/* A cap below the model's size, and the same bits. */
static void check_streamed_is_resident(void) {
    const char *path = tiny_model("large.gguf", &large);
    nib_memory whole, part;
    nib_engine *e = open_engine(path, 2, 0, NIB_AUTO);
    nib_engine_memory(e, &whole);
    float *want = forward(e);
    nib_engine_close(e);
    uint64_t weights = whole.owner[NIB_OWNER_WEIGHTS];
    assert_true(weights > 6 * MIB);
    uint64_t headroom = tiny_model_half_bytes(path);
    for (int64_t batch = 9; batch < 600; batch += 503) {
        uint64_t cap = process_bytes() + headroom;
        e = open_engine(path, 2, batch, cap);
        nib_engine_memory(e, &part);
        float *got = forward(e);
        assert_memory_equal(got, want, (size_t)N_TOKEN * 8192 * sizeof(float));
        free(got);
        nib_engine_close(e);
        assert_true(part.owner[NIB_OWNER_WEIGHTS] < weights);
        assert_true(part.owner[NIB_OWNER_STAGING] > 0);
        assert_true(part.tier[NIB_TIER_RAM].peak <= cap);
    }
    free(want);
}

static void streamed_is_resident(void **state) {
    (void)state;
    process_counted();
    check_streamed_is_resident();
    process_measured();
    if (!SANITIZED) /* it counts there too */
        check_streamed_is_resident();
}

static void a_prefix_is_reused(void **state) {
    (void)state;
    int32_t tokens[N_TOKEN], other[N_TOKEN];
    float want[N_VOCAB];
    nib_engine *e = open_engine(tiny_model("small.gguf", &small), 2, 16, NIB_AUTO);
    nib_session *s = session_must_open(e);
    logits_tokens(tokens, N_TOKEN, N_VOCAB, 1);
    memcpy(other, tokens, sizeof other);
    for (int i = 20; i < N_TOKEN; i++)
        other[i] = 5;
    assert_null(nib_session_logits(s));
    assert_int_equal(nib_session_sync(s, tokens, N_TOKEN, NULL), NIB_OK);
    memcpy(want, nib_session_logits(s), sizeof want);
    assert_int_equal(nib_session_sync(s, other, 60, NULL), NIB_OK);
    assert_int_equal(nib_session_length(s), 60);
    assert_true(memcmp(want, nib_session_logits(s), sizeof want) != 0);
    assert_int_equal(nib_session_sync(s, tokens, N_TOKEN, NULL), NIB_OK);
    assert_memory_equal(want, nib_session_logits(s), sizeof want);
    /* shorter, then token by token */
    assert_int_equal(nib_session_sync(s, tokens, 3, NULL), NIB_OK);
    for (size_t n = 4; n <= N_TOKEN; n++)
        assert_int_equal(nib_session_sync(s, tokens, n, NULL), NIB_OK);
    assert_memory_equal(want, nib_session_logits(s), sizeof want);
    nib_session_close(s);
    nib_engine_close(e);
}

/* If only the last row's logits are wanted, the other rows of the last layer compute only their keys and
 * values. The bits are those of a pass that computes everything, for this pass and for later ones. */
static void only_the_last_row_is_wanted(void **state) {
    (void)state;
    static const int kv_types[] = {NIB_KV_F16, NIB_KV_F32, NIB_KV_8, NIB_KV_4};
    const tiny_shape *shapes[] = {&small, &small_f16};
    enum { MORE = 5 };
    int32_t tokens[N_TOKEN];
    logits_tokens(tokens, N_TOKEN, N_VOCAB, 1);
    for (int c = 0; c < 16; c++) {
        const nib_session_options so = {.kv_type = kv_types[c % 4]};
        no_fuse = c >= 8;
        nib_engine *e =
            open_engine(tiny_model("small.gguf", shapes[c / 4 % 2]), 1 + c % 3, c % 2 ? 0 : 32, NIB_AUTO);
        nib_session *all = NULL, *last = NULL;
        assert_int_equal(nib_session_open(e, &so, &all, NULL), NIB_OK);
        assert_int_equal(nib_session_open(e, &so, &last, NULL), NIB_OK);
        const logits_rows want = logits_of_session(all, tokens, N_TOKEN, N_VOCAB);
        for (int n = N_TOKEN - MORE; n <= N_TOKEN; n++) {
            assert_int_equal(nib_session_sync(last, tokens, (size_t)n, NULL), NIB_OK);
            assert_memory_equal(nib_session_logits(last), want.data + (n - 1) * N_VOCAB,
                                N_VOCAB * sizeof(float));
        }
        free(want.data);
        nib_session_close(last);
        nib_session_close(all);
        nib_engine_close(e);
    }
    no_fuse = false;
}

static void wrong_use_changes_nothing(void **state) {
    (void)state;
    int32_t tokens[N_CTX + 1] = {0}, bad[2] = {1, N_VOCAB};
    nib_error err;
    nib_engine *e = open_engine(tiny_model("small.gguf", &small), 1, 0, NIB_AUTO);
    nib_session *s = session_must_open(e);
    assert_int_equal(nib_session_sync(s, tokens, 4, &err), NIB_OK);
    assert_int_equal(nib_session_sync(s, tokens, N_CTX + 1, &err), NIB_E_USAGE);
    assert_int_equal(nib_session_sync(s, bad, 2, &err), NIB_E_USAGE);
    assert_non_null(strstr(err.message, "1000"));
    assert_int_equal(nib_session_sync(s, tokens, 0, &err), NIB_E_USAGE);
    assert_int_equal(nib_session_length(s), 4);
    assert_non_null(nib_session_logits(s));
    assert_int_equal(nib_session_sync(s, tokens, N_CTX, &err), NIB_OK);
    nib_session_close(s);
    nib_engine_close(e);
}

static nib_generate_options greedy(const int32_t *prompt, size_t n, int64_t n_predict) {
    nib_generate_options o;
    nib_generate_options_init(&o);
    o.prompt = prompt;
    o.n_prompt = n;
    o.n_predict = n_predict;
    o.ignore_eos = true;
    o.sampling.temperature = 0;
    return o;
}

static void generates_what_the_logits_say(void **state) {
    (void)state;
    int32_t tokens[N_TOKEN];
    nib_result r;
    nib_engine *e = open_engine(tiny_model("small.gguf", &small), 2, 0, NIB_AUTO);
    nib_session *s = session_must_open(e), *plain = session_must_open(e);
    logits_tokens(tokens, N_TOKEN, N_VOCAB, 1);
    nib_generate_options o = greedy(tokens, 16, 20);
    assert_int_equal(nib_generate(s, &o, &r, NULL), NIB_OK);
    assert_int_equal(r.n_token, 20);
    assert_int_equal(r.prompt_n, 16);
    assert_int_equal(r.finish, NIB_FINISH_LENGTH);
    assert_null(r.text);
    for (size_t i = 0; i < r.n_token; i++) {
        assert_int_equal(nib_session_sync(plain, tokens, 16 + i, NULL), NIB_OK);
        const float *logits = nib_session_logits(plain);
        int32_t best = 0;
        for (int32_t id = 1; id < N_VOCAB; id++)
            if (logits[id] > logits[best])
                best = id;
        assert_int_equal(r.tokens[i], best);
        tokens[16 + i] = best;
    }
    nib_result_clear(&r);
    /* the context ends the answer: the last token needs no place in it */
    o.n_predict = -1;
    assert_int_equal(nib_generate(s, &o, &r, NULL), NIB_OK);
    assert_int_equal(r.n_token, N_CTX - 16 + 1);
    assert_int_equal(r.prompt_n, 1);
    nib_result_clear(&r);
    nib_session_close(plain);
    nib_session_close(s);
    nib_engine_close(e);
}

static void decoding_allocates_nothing(void **state) {
    (void)state;
    int32_t tokens[N_TOKEN];
    nib_engine *e = open_engine(tiny_model("small.gguf", &small), 2, 0, NIB_AUTO);
    nib_session *s = session_must_open(e);
    logits_tokens(tokens, N_TOKEN, N_VOCAB, 1);
    fault_arm(FAULT_ALLOC, INT64_MAX);
    for (size_t n = 1; n <= N_TOKEN; n += n < 50 ? 1 : 5)
        assert_int_equal(nib_session_sync(s, tokens, n, NULL), NIB_OK);
    int64_t calls = fault_count(FAULT_ALLOC);
    fault_arm(FAULT_ALLOC, 0);
    assert_int_equal(calls, 0);
    nib_session_close(s);
    nib_engine_close(e);
}

/* ---- several sessions under a cap ---- */

enum { N_SESSION = 3 };

typedef struct speaker {
    nib_session *s;
    nib_status status;
    nib_error err;
} speaker;

static void *speak(void *arg) {
    speaker *me = arg;
    int32_t tokens[16];
    nib_result r;
    nib_generate_options o;
    logits_tokens(tokens, 16, large.n_vocab, 1);
    nib_generate_options_init(&o);
    o.prompt = tokens;
    o.n_prompt = 16;
    o.n_predict = (N_CTX - 16) / slow_step(14); /* to the end of the context, or a part of it */
    o.ignore_eos = true;
    me->status = nib_generate(me->s, &o, &r, &me->err);
    nib_result_clear(&r);
    return NULL;
}

/* The engine reserves memory for the sessions that it was opened for: all of them can be used to the end of
 * their contexts at once, and one more is refused with a reason. */
static void keep_memory(const nib_plan_options *planning) {
    const char *path = tiny_model("large.gguf", &large);
    for (int n = 1; n <= N_SESSION; n += N_SESSION - 1) {
        char opened_for[64];
        nib_engine *e = NULL;
        nib_session *more = NULL;
        nib_error err = {0};
        nib_memory now;
        nib_engine_options o = engine_usual();
        pthread_t threads[N_SESSION];
        speaker speakers[N_SESSION] = {0};
        o.n_session = n == 1 ? 0 : n;
        o.n_ctx = N_CTX;
        o.planning = planning;
        o.stream = true;
        o.ram = tiny_model_half_bytes(path);
        o.ram += process_bytes();
        if (nib_engine_open(path, &o, &e, &err))
            fail_msg("%s", err.message);
        for (int i = 0; i < n; i++)
            speakers[i].s = session_must_open(e);
        assert_int_equal(nib_session_open(e, NULL, &more, &err), NIB_E_NOFIT);
        snprintf(opened_for, sizeof opened_for, "opened for %d session%s of 128 positions", n,
                 n == 1 ? "" : "s");
        if (!strstr(err.message, opened_for))
            fail_msg("expected \"%s\", found \"%s\"", opened_for, err.message);
        for (int i = 0; i < n; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, speak, &speakers[i]), 0);
        for (int i = 0; i < n; i++) {
            pthread_join(threads[i], NULL);
            if (speakers[i].status)
                fail_msg("session %d: %s", i, speakers[i].err.message);
        }
        nib_engine_memory(e, &now);
        assert_true(now.tier[NIB_TIER_RAM].peak <= o.ram && now.tier[NIB_TIER_RAM].planned <= o.ram);
        nib_session_close(speakers[0].s); /* its memory is another one's */
        speakers[0].s = session_must_open(e);
        for (int i = 0; i < n; i++)
            nib_session_close(speakers[i].s);
        nib_engine_close(e);
    }
}

static void memory_is_kept_for_sessions(void **state) {
    (void)state;
    keep_memory(NULL);
    keep_memory(&(nib_plan_options){.n_gen = 8});
}

static void absurd_contexts_are_refused(void **state) {
    (void)state;
    static const int64_t absurd[] = {
        INT64_MAX, INT64_MAX / 2, INT64_C(1) << 61, INT64_C(1) << 50, INT64_C(1) << 40, -2, INT64_MIN};
    nib_engine *e = open_engine(tiny_model("small.gguf", &small), 2, 0, NIB_AUTO);
    nib_session *s = NULL;
    nib_error err = {0};
    for (size_t i = 0; i < sizeof absurd / sizeof *absurd; i++) {
        const nib_session_options o = {.n_ctx = absurd[i]};
        const nib_batch_options batch = {.n_ctx = absurd[i], .n_position = 64};
        nib_batch *b = NULL;
        const nib_status want = absurd[i] < 0 ? NIB_E_USAGE : NIB_E_NOFIT;
        assert_int_equal(nib_session_open(e, &o, &s, &err), want);
        assert_null(s);
        assert_int_equal(nib_batch_open(e, &batch, &b, &err), want);
        assert_null(b);
    }
    nib_engine_options o = engine_usual();
    nib_engine *none = NULL;
    for (size_t i = 0; i < sizeof absurd / sizeof *absurd; i++) {
        o.n_ctx = absurd[i];
        assert_int_equal(nib_engine_open(tiny_model("small.gguf", &small), &o, &none, &err),
                         absurd[i] < 0 ? NIB_E_USAGE : NIB_E_NOFIT);
    }
    o.n_ctx = 0;
    o.n_session = -1;
    assert_int_equal(nib_engine_open(tiny_model("small.gguf", &small), &o, &none, &err), NIB_E_USAGE);
    nib_engine_close(e);
}

typedef struct impatient {
    nib_session *s;
    atomic_bool stop;
} impatient;

static void *cancel_all_the_time(void *arg) {
    impatient *c = arg;
    while (!atomic_load(&c->stop))
        nib_session_cancel(c->s);
    return NULL;
}

static void cancelled_from_another_thread(void **state) {
    (void)state;
    int32_t tokens[N_TOKEN];
    float want[N_VOCAB];
    pthread_t thread;
    nib_error err = {0};
    nib_engine *e = open_engine(tiny_model("small.gguf", &small), 2, 8, NIB_AUTO);
    nib_session *s = session_must_open(e);
    logits_tokens(tokens, N_TOKEN, N_VOCAB, 1);
    assert_int_equal(nib_session_sync(s, tokens, N_TOKEN, NULL), NIB_OK);
    memcpy(want, nib_session_logits(s), sizeof want);
    assert_int_equal(nib_session_sync(s, tokens, 1, NULL), NIB_OK);
    impatient c = {s, false};
    assert_int_equal(pthread_create(&thread, NULL, cancel_all_the_time, &c), 0);
    nib_status status = NIB_OK;
    for (int i = 0; i < 1000 && status == NIB_OK; i++) {
        tokens[0] = i % 7;
        status = nib_session_sync(s, tokens, N_TOKEN, &err);
    }
    atomic_store(&c.stop, true);
    pthread_join(thread, NULL);
    assert_int_equal(status, NIB_E_CANCELLED);
    assert_true(nib_session_length(s) <= N_TOKEN); /* before a call began: the state of the last call */
    nib_session_cancel_clear(s);
    logits_tokens(tokens, N_TOKEN, N_VOCAB, 1);
    assert_int_equal(nib_session_sync(s, tokens, N_TOKEN, &err), NIB_OK);
    assert_memory_equal(want, nib_session_logits(s), sizeof want);
    nib_session_close(s);
    nib_engine_close(e);
}

static void a_cancel_is_kept_until_a_call_answers(void **state) {
    (void)state;
    int32_t tokens[N_TOKEN];
    nib_error err = {0};
    nib_result r;
    nib_engine *e = open_engine(tiny_model("small.gguf", &small), 2, 8, NIB_AUTO);
    nib_session *s = session_must_open(e);
    logits_tokens(tokens, N_TOKEN, N_VOCAB, 1);
    const nib_generate_options o = greedy(tokens, 16, 4);
    nib_session_cancel(s); /* before anything was computed */
    assert_int_equal(nib_generate(s, &o, &r, &err), NIB_E_CANCELLED);
    assert_int_equal(r.finish, NIB_FINISH_CANCELLED);
    assert_int_equal(r.n_token, 0);
    assert_int_equal(r.prompt_n, 0);
    nib_result_clear(&r);
    assert_int_equal(nib_generate(s, &o, &r, &err), NIB_OK); /* it was answered */
    nib_result_clear(&r);
    nib_session_cancel(s); /* between two calls */
    assert_int_equal(nib_session_sync(s, tokens, 0, &err), NIB_E_USAGE);
    assert_int_equal(nib_session_sync(s, tokens, 16, &err), NIB_E_CANCELLED);
    assert_int_equal(nib_session_sync(s, tokens, 16, &err), NIB_OK);
    nib_session_cancel(s); /* with nothing to compute: the positions stay */
    assert_int_equal(nib_session_sync(s, tokens, 16, &err), NIB_E_CANCELLED);
    assert_int_equal(nib_session_length(s), 16);
    assert_non_null(nib_session_logits(s));
    nib_session_cancel(s); /* forgotten */
    nib_session_cancel_clear(s);
    assert_int_equal(nib_session_sync(s, tokens, 20, &err), NIB_OK);
    nib_session_close(s);
    nib_engine_close(e);
}

static bool cancel_at_third(void *user, int32_t token) {
    static int n;
    (void)token;
    if (++n == 3)
        nib_session_cancel(user);
    return true;
}

static void a_cancelled_answer_is_what_was_made(void **state) {
    (void)state;
    int32_t tokens[N_TOKEN];
    nib_error err = {0};
    nib_result whole, part;
    nib_engine *e = open_engine(tiny_model("small.gguf", &small), 2, 8, NIB_AUTO);
    nib_session *s = session_must_open(e);
    logits_tokens(tokens, N_TOKEN, N_VOCAB, 1);
    nib_generate_options o = greedy(tokens, 16, 20);
    assert_int_equal(nib_generate(s, &o, &whole, &err), NIB_OK);
    o.on_token = cancel_at_third;
    o.user = s;
    assert_int_equal(nib_generate(s, &o, &part, &err), NIB_E_CANCELLED);
    assert_int_equal(part.finish, NIB_FINISH_CANCELLED);
    assert_int_equal(part.n_token, 3);
    assert_int_equal(part.predicted_n, 3);
    assert_memory_equal(part.tokens, whole.tokens, 3 * sizeof *part.tokens);
    nib_result_clear(&part);
    nib_result_clear(&whole);
    nib_session_close(s);
    nib_engine_close(e);
}

typedef struct runner {
    nib_engine *e;
    nib_status status;
    int32_t tokens[24];
    size_t n;
} runner;

static void *generate_some(void *arg) {
    runner *r = arg;
    int32_t prompt[10];
    nib_session *s = NULL;
    nib_result result = {0};
    for (int i = 0; i < 10; i++)
        prompt[i] = 3 * i + 1;
    nib_generate_options o = greedy(prompt, 10, 24);
    r->status = nib_session_open(r->e, NULL, &s, NULL);
    if (r->status == NIB_OK)
        r->status = nib_generate(s, &o, &result, NULL);
    r->n = result.n_token;
    if (r->n <= 24 && result.tokens)
        memcpy(r->tokens, result.tokens, r->n * sizeof *result.tokens);
    nib_result_clear(&result);
    nib_session_close(s);
    return NULL;
}

static void two_sessions_in_two_threads(void **state) {
    (void)state;
    pthread_t threads[2];
    nib_engine *e = open_engine(tiny_model("small.gguf", &small), 2, 0, NIB_AUTO);
    runner r[3] = {{.e = e}, {.e = e}, {.e = e}};
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, generate_some, &r[i]), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    generate_some(&r[2]);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(r[i].status, NIB_OK);
        assert_int_equal(r[i].n, 24);
        assert_memory_equal(r[i].tokens, r[2].tokens, sizeof r[2].tokens);
    }
    nib_engine_close(e);
}

static void check_named_cap(nib_engine_options *o) {
    nib_engine *e = NULL;
    nib_error err = {0};
    const char *path = tiny_model("large.gguf", &large);
    o->n_thread = 2;
    o->ram = process_bytes() + 6 * MIB;
    assert_int_equal(nib_engine_open(path, o, &e, &err), NIB_E_NOFIT);
    assert_null(e);
    const char *at = strstr(err.message, "; ");
    assert_non_null(at);
    assert_non_null(strstr(at, "MiB is the smallest that works, "));
    double mib = strtod(at + strlen("; "), NULL);
    assert_true(mib > 6);
    o->ram = (uint64_t)((mib + 0.1) * (double)MIB); /* the figure is rounded */
    if (nib_engine_open(path, o, &e, &err))
        fail_msg("%s", err.message);
    nib_engine_close(e);
}

/* Also by a plan that is made when the engine opens, beside memory that grammars need. */
static void too_small_a_cap_is_refused_with_one_that_works(void **state) {
    (void)state;
    static const nib_plan_options planning = {.n_prompt = 16, .n_gen = 8};
    process_counted(); /* what a failed opening leaves on the C library's heap differs from run to run */
    for (int how = 0; how < 4; how++) {
        nib_engine_options o;
        nib_engine_options_init(&o);
        o.grammar = how % 2;
        o.planning = how / 2 ? &planning : NULL;
        o.stream = how / 2;
        o.n_session = 1 + 7 * (how / 2);
        check_named_cap(&o);
    }
    process_measured();
}

static void check_peak(void) {
    nib_memory m;
    nib_engine *e = open_engine(tiny_model("large.gguf", &large), 2, 0, NIB_AUTO);
    free(forward(e));
    nib_engine_memory(e, &m);
    nib_engine_close(e);
    uint64_t peak = m.tier[NIB_TIER_RAM].peak;
    uint64_t gap = peak > m.rss_peak ? peak - m.rss_peak : m.rss_peak - peak;
    assert_true(gap < 4 * MIB);
}

static void the_peak_is_the_systems(void **state) {
    (void)state;
    process_measured(); /* first: the system never forgets a peak */
    check_peak();
    process_counted();
    check_peak();
    process_measured();
}

static void the_trace_counts_every_op(void **state) {
    (void)state;
    int32_t tokens[N_TOKEN];
    nib_trace_row trace[64];
    double pass_s = -1, sum = 0;
    uint64_t calls = 0;
    nib_engine *e = open_engine(tiny_model("small.gguf", &small), 2, 16, NIB_AUTO);
    nib_session *s = session_must_open(e);
    logits_tokens(tokens, N_TOKEN, N_VOCAB, 1);
    assert_int_equal(nib_session_sync(s, tokens, 5, NULL), NIB_OK);
    assert_int_equal(nib_engine_trace_read(e, trace, 64, &pass_s), 0);
    assert_true(pass_s == 0);
    for (int round = 0; round < 2; round++) { /* beginning again begins at zero */
        assert_int_equal(nib_engine_trace_begin(e, NULL), NIB_OK);
        assert_int_equal(nib_session_sync(s, tokens, 6 + (size_t)round, NULL), NIB_OK);
    }
    size_t n = nib_engine_trace_read(e, trace, 64, &pass_s);
    assert_in_range(n, 10, 64);
    for (size_t i = 0; i < n; i++) {
        calls += trace[i].calls;
        assert_true(trace[i].busy_s >= 0 && trace[i].wait_s >= 0);
        sum += trace[i].busy_s + trace[i].wait_s;
        if (!strcmp(trace[i].what, "linear q+k+v")) {
            double each = (double)small.d_model *
                          (double)(small.d_model * (small.n_head + 2 * small.n_kv_head) / small.n_head);
            assert_int_equal(trace[i].calls, 3 * small.n_layer);
            assert_true(trace[i].macs == (double)small.n_layer * each);
        }
    }
    assert_int_equal(calls, 1 + small.n_layer * 15 + 2);
    assert_true(sum > 0 && sum <= 2 * pass_s);
    nib_session_close(s);
    nib_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_peak_is_the_systems),
        cmocka_unit_test(same_bits_for_any_cut),
        cmocka_unit_test(streamed_is_resident),
        cmocka_unit_test(a_prefix_is_reused),
        cmocka_unit_test(only_the_last_row_is_wanted),
        cmocka_unit_test(wrong_use_changes_nothing),
        cmocka_unit_test(generates_what_the_logits_say),
        cmocka_unit_test(decoding_allocates_nothing),
        cmocka_unit_test(memory_is_kept_for_sessions),
        cmocka_unit_test(absurd_contexts_are_refused),
        cmocka_unit_test(cancelled_from_another_thread),
        cmocka_unit_test(a_cancel_is_kept_until_a_call_answers),
        cmocka_unit_test(a_cancelled_answer_is_what_was_made),
        cmocka_unit_test(the_trace_counts_every_op),
        cmocka_unit_test(two_sessions_in_two_threads),
        cmocka_unit_test(too_small_a_cap_is_refused_with_one_that_works),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
