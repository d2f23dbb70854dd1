/* Models with recurrent layers: a sequence's state is that of one position, and every answer is that of a
 * fresh session, however the prompt is cut, the sequence goes back, a pass is cancelled, answers run
 * together, share a prefix or are preempted. The state is charged. On the processor, and on the cuda back
 * end with a fake GPU. */
#include "base/mem.h"
#include "base/num.h"
#include "kernels/cuda_load.h"
#include "support/engine.h"
#include "support/fakecuda.h"
#include "session/session.h"
#include "support/logits.h"
#include "support/sanitized.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_TOKEN = 100, N_VOCAB = 320 };

static bool on_gpu; /* set by `cuda` */

static const char *const models[] = {"tests/data/arch/lfm2",       "tests/data/arch/mamba2",
                                     "tests/data/arch/falcon_h1",  "tests/data/arch/qwen3_5",
                                     "tests/data/arch/jamba",      "tests/data/arch/nemotron_h",
                                     "tests/data/arch/qwen3_next", "tests/data/arch/granitemoehybrid",
                                     "tests/data/arch/lfm2_moe",   "tests/data/arch/kimi_linear",
                                     "tests/data/arch/deepseek_v4"};
enum { N_MODEL = NUM_COUNT(models) };
/* The last one is the processor's only, and has no cache in codes. */
static size_t n_model(void) {
    return (size_t)N_MODEL - on_gpu;
}

enum { EACH = SANITIZED ? 3 : 1 /* the others run without one */ };

static int cuda(void **state) {
    (void)state;
    on_gpu = true;
    return 0;
}
static int processor(void **state) {
    (void)state;
    if (on_gpu && fake_cuda_wrong())
        fail_msg("%s", fake_cuda_wrong());
    on_gpu = false;
    return 0;
}

static nib_engine *open_engine(const char *path, int n_thread, int64_t n_batch, int kv) {
    nib_engine_options o = engine_usual();
    o.n_thread = n_thread;
    o.n_batch = n_batch;
    o.n_ctx = 128;
    o.kv_type = on_gpu && kv == NIB_KV_F32 ? NIB_KV_F16 : kv;
    o.backend = on_gpu ? "cuda" : "cpu";
    if (on_gpu)
        cuda_load_with(fake_cuda((size_t)1 << 28, 0, 0));
    return engine_must_open(path, &o, NULL);
}

static void tokens_of(int32_t *tokens, int seed) {
    logits_tokens(tokens, N_TOKEN, N_VOCAB, seed);
}

static void however_prompts_are_cut(void **state) {
    (void)state;
    static const int64_t cuts[] = {1, 3, 16, 64, 100};
    int32_t tokens[N_TOKEN];
    tokens_of(tokens, 1);
    for (size_t m = 0; m < n_model(); m += EACH) {
        logits_rows want = {0};
        for (size_t i = 0; i < NUM_COUNT(cuts); i++) {
            nib_engine *e = open_engine(models[m], 1 + (int)i % 3, cuts[i], NIB_KV_F32);
            logits_rows got = logits_of(e, tokens, N_TOKEN);
            if (i == 0)
                want = got;
            assert_memory_equal(got.data, want.data, N_TOKEN * (size_t)got.n_vocab * sizeof(float));
            if (i > 0)
                free(got.data);
            nib_engine_close(e);
        }
        free(want.data);
    }
}

/* After a sync the logits are those of a session that never held anything else. */
static void check_sync(nib_session *s, nib_engine *e, const int32_t *tokens, int n) {
    nib_error err = {0};
    nib_session *fresh = session_must_open(e);
    if (nib_session_sync(s, tokens, (size_t)n, &err) || nib_session_sync(fresh, tokens, (size_t)n, &err))
        fail_msg("%s", err.message);
    assert_memory_equal(nib_session_logits(s), nib_session_logits(fresh), N_VOCAB * sizeof(float));
    nib_session_close(fresh);
}

static void grown_and_cut_back(void **state) {
    (void)state;
    static const int back[] = {99, 70, 64, 63, 1, 0}, kinds[] = {NIB_KV_F16, NIB_KV_8};
    int32_t tokens[N_TOKEN], other[N_TOKEN];
    tokens_of(tokens, 1);
    for (size_t m = 0; m < n_model() * NUM_COUNT(kinds); m += EACH) {
        nib_engine *e = open_engine(models[m / 2], 2, 48,
                                    m / 2 == 1 || m / 2 == N_MODEL - 1 || on_gpu ? NIB_KV_F16 : kinds[m % 2]);
        nib_session *s = session_must_open(e);
        for (int n = 1; n <= N_TOKEN; n += n < 5 ? 1 : 31)
            check_sync(s, e, tokens, n);
        for (size_t i = 0; i < NUM_COUNT(back); i++) {
            tokens_of(other, 2);
            memcpy(other, tokens, (size_t)back[i] * sizeof *other);
            assert_int_equal(nib_session_sync(s, tokens, N_TOKEN, NULL), NIB_OK);
            check_sync(s, e, other, NUM_MIN(back[i] + 1, N_TOKEN));
            check_sync(s, e, other, NUM_MIN(back[i] + 20, N_TOKEN)); /* goes on from there */
        }
        nib_session_close(s);
        nib_engine_close(e);
    }
}

static bool stop(void *user) {
    int *left = user;
    return --*left == 0;
}

/* A cancelled pass leaves a state of no position. */
static void after_a_cancelled_pass(void **state) {
    (void)state;
    int32_t tokens[N_TOKEN];
    tokens_of(tokens, 3);
    for (size_t m = 0; m < n_model(); m += EACH)
        for (int when = 3; when < 40; when += 6) {
            int left = 0;
            nib_engine_options o = engine_usual();
            o.n_ctx = 128;
            o.cancel = stop;
            o.user = &left;
            nib_engine *e = engine_must_open(models[m], &o, NULL);
            nib_session *s = session_must_open(e);
            assert_int_equal(nib_session_sync(s, tokens, 40, NULL), NIB_OK);
            left = when;
            const nib_status status = nib_session_sync(s, tokens, N_TOKEN, NULL);
            assert_true(status == NIB_OK || status == NIB_E_CANCELLED);
            left = 0;
            check_sync(s, e, tokens, 60);
            nib_session_close(s);
            nib_engine_close(e);
        }
}

/* Going back, and another session with the same tokens, continue at a checkpoint. */
static void from_a_checkpoint(void **state) {
    (void)state;
    int32_t tokens[N_TOKEN];
    tokens_of(tokens, 4);
    for (size_t m = 0; m < n_model(); m += EACH) {
        nib_engine *e = open_engine(models[m], 2, 128, NIB_KV_F32);
        nib_session *s = session_must_open(e), *other = session_must_open(e), *third = session_must_open(e);
        static const struct {
            int n, computed;
        } cases[] = {{100, 100}, {70, 6}, {90, 20}, {65, 1}, {64, 64}, {100, 36}};
        for (size_t i = 0; i < NUM_COUNT(cases); i++)
            assert_int_equal(session_must_compute(s, tokens, cases[i].n), cases[i].computed);
        assert_int_equal(session_must_compute(other, tokens, 80), 16);
        tokens[20]++; /* other tokens, other pages */
        assert_int_equal(session_must_compute(third, tokens, 80), 80);
        check_sync(third, e, tokens, 100);
        tokens[20]--;
        check_sync(other, e, tokens, 100);
        nib_session_close(third);
        nib_session_close(other);
        nib_session_close(s);
        nib_engine_close(e);
    }
}

/* Rows of an answer, here computed again together, leave the prompt's checkpoint. */
static void answers_leave_no_checkpoint(void **state) {
    (void)state;
    int32_t tokens[192];
    logits_tokens(tokens, 192, N_VOCAB, 5);
    for (size_t m = 0; m < n_model(); m += EACH) {
        nib_engine_options o = engine_usual();
        nib_error err = {0};
        o.n_ctx = 192;
        o.n_session = 2;
        nib_engine *e = engine_must_open(models[m], &o, NULL);
        nib_session *s = session_must_open(e), *other = session_must_open(e);
        assert_int_equal(session_must_compute(s, tokens, 100), 100);
        driver *d = &s->driver;
        memcpy(s->slot.of.tokens, tokens, sizeof tokens);
        s->slot.of.n_token = 140;
        driver_begin(d);
        driver_add(d, &s->slot, INT64_MAX);
        if (driver_run(d, &(pass){.logits = d->logits}, &err))
            fail_msg("%s", err.message);
        assert_int_equal(session_must_compute(other, tokens, 80), 16);
        nib_session_close(other);
        nib_session_close(s);
        nib_engine_close(e);
    }
}

/* ---- batches ---- */

enum { N_REQUEST = 9 };

typedef struct work {
    int32_t prompt[N_TOKEN];
    nib_generate_options o;
    nib_result want;
} work;

/* Two of three prompts begin with the same 70 tokens. */
static void make(work *w, int i) {
    const int n = 5 + i * 37 % 20, shared = i % 3 ? 70 : 0;
    nib_generate_options_init(&w->o);
    for (int k = 0; k < n + shared; k++)
        w->prompt[k] = k < shared ? (k * 7 + 1) % N_VOCAB : (k * 31 + i * 17 + 3) % N_VOCAB;
    w->o.prompt = w->prompt;
    w->o.n_prompt = (size_t)(n + shared);
    w->o.n_predict = 8 + i % 4;
    w->o.ignore_eos = true;
    w->o.sampling.temperature = i % 2 ? 0.9F : 0;
    w->o.sampling.seed = (uint64_t)i;
}

static nib_batch_counts answer_together(nib_engine *e, const work *all, const nib_batch_options *o) {
    nib_batch_counts counts;
    nib_batch *b = batch_must_open(e, o);
    nib_error err = {0}, how;
    nib_result r;
    int64_t id;
    int32_t left = 1;
    int found = 0;
    for (int i = 0; i < N_REQUEST; i++)
        if (nib_batch_add(b, &all[i].o, &id, &err))
            fail_msg("%s", err.message);
    while (left > 0)
        if (nib_batch_step(b, &left, &err))
            fail_msg("%s", err.message);
    for (; nib_batch_take(b, &id, &r, &how); found++) {
        const work *w = &all[id - 1];
        assert_int_equal(how.status, NIB_OK);
        assert_int_equal(r.n_token, w->want.n_token);
        assert_memory_equal(r.tokens, w->want.tokens, r.n_token * sizeof *r.tokens);
        nib_result_clear(&r);
    }
    assert_int_equal(found, N_REQUEST);
    nib_batch_count(b, &counts);
    nib_batch_close(b);
    return counts;
}

static void answer_alone(nib_engine *e, work *all) {
    nib_error err = {0};
    for (int i = 0; i < N_REQUEST; i++) {
        nib_session *s = session_must_open(e);
        if (nib_generate(s, &all[i].o, &all[i].want, &err))
            fail_msg("%s", err.message);
        nib_session_close(s);
    }
}

static void clear(work *all) {
    for (int i = 0; i < N_REQUEST; i++)
        nib_result_clear(&all[i].want);
}

static void answers_together(void **state) {
    (void)state;
    static work all[N_REQUEST];
    for (size_t m = 0; m < n_model(); m += EACH) {
        nib_engine *e = open_engine(models[m], 2, 64, 0);
        for (int i = 0; i < N_REQUEST; i++)
            make(&all[i], i);
        answer_alone(e, all);
        answer_together(e, all, &(nib_batch_options){.n_sequence = 1});
        answer_together(e, all, &(nib_batch_options){.n_sequence = 4, .n_draft = 4});
        answer_together(e, all, &(nib_batch_options){.n_sequence = 9, .n_prompt = 7});
        /* few pages: answers are preempted and computed again */
        answer_together(e, all, &(nib_batch_options){.n_sequence = 5, .optimistic = true, .n_position = 192});
        clear(all);
        nib_engine_close(e);
    }
}

/* Proposed tokens, of which some are rejected: the state goes back, and right ones are computed again. Texts
 * repeat themselves, and a bias makes some tokens of theirs likely. */
static void proposals_are_dropped(void **state) {
    (void)state;
    static const nib_logit_bias likely[] = {{40, 6}, {47, 6}, {54, 6}};
    static const int kinds[] = {NIB_KV_F32, NIB_KV_F16, NIB_KV_8};
    static work all[N_REQUEST];
    for (size_t m = 0; m < n_model(); m += EACH) {
        const bool codes = m != 1 && m != N_MODEL - 1 && !on_gpu;
        nib_engine *e = open_engine(models[m], 2, 64, kinds[m % (codes ? 3 : 2)]);
        uint64_t n = 0, n_right = 0;
        for (int i = 0; i < N_REQUEST; i++) {
            make(&all[i], i);
            for (size_t k = 0; k < all[i].o.n_prompt; k++)
                all[i].prompt[k] = (int32_t)(40 + k % 3 * 7);
            all[i].o.n_predict = 24;
            all[i].o.bias = likely;
            all[i].o.n_bias = NUM_COUNT(likely);
        }
        answer_alone(e, all);
        for (int n_draft = 1; n_draft <= 7; n_draft += 3)
            for (int n_slot = 1; n_slot <= 5; n_slot += 4) {
                const nib_batch_counts c = answer_together(
                    e, all,
                    &(nib_batch_options){.n_sequence = n_slot, .n_draft = n_draft, .n_draft_min = n_draft});
                n += c.draft_n;
                n_right += c.draft_right;
            }
        assert_true(n_right > 0 && n > n_right);
        clear(all);
        nib_engine_close(e);
    }
}

static bool goes_on(void *user, int32_t token) {
    int *left = user;
    (void)token;
    return --*left > 0;
}

/* A conversation in a session that proposes tokens goes on as in one that does not. Rows whose last pass had
 * rejected tokens are computed again only when it goes on. */
static void a_conversation_goes_on(void **state) {
    (void)state;
    int n_left = 0;
    static const nib_logit_bias likely[] = {{40, 6}, {47, 6}, {54, 6}};
    nib_error err = {0};
    for (size_t m = 0; m < n_model(); m += EACH) {
        nib_engine_options o = engine_usual();
        o.n_ctx = 256;
        o.n_session = 2;
        o.n_draft = 5;
        nib_engine *e = engine_must_open(models[m], &o, NULL);
        const nib_session_options how = {.n_draft_min = 5};
        nib_session *in[2];
        int32_t text[2][256];
        size_t n = 40;
        int64_t n_proposed = 0;
        for (size_t i = 0; i < 2; i++) {
            assert_int_equal(nib_session_open(e, i ? &how : NULL, &in[i], &err), NIB_OK);
            for (int k = 0; k < 40; k++)
                text[i][k] = 40 + k % 3 * 7;
        }
        for (int turn = 0; turn < 4; turn++) {
            for (size_t i = 0; i < 2; i++) {
                nib_generate_options g;
                nib_result r;
                int left = 10 + turn; /* the owner ends the answer, also where more is proposed */
                nib_generate_options_init(&g);
                g.prompt = text[i];
                g.n_prompt = n;
                g.n_predict = 20 + turn;
                g.ignore_eos = true;
                g.on_token = goes_on;
                g.user = &left;
                g.bias = likely;
                g.n_bias = NUM_COUNT(likely);
                g.sampling.seed = (uint64_t)turn;
                g.sampling.temperature = turn % 2 ? 0.5F : 0;
                if (nib_generate(in[i], &g, &r, &err))
                    fail_msg("%s", err.message);
                assert_int_equal(r.n_token, 10 + turn);
                memcpy(text[i] + n, r.tokens, r.n_token * sizeof *r.tokens);
                n_proposed += i * r.draft_n;
                n_left += in[i]->slot.of.n < in[i]->slot.of.n_token;
                assert_int_equal(nib_session_length(in[i]), in[i]->slot.of.n_token);
                nib_result_clear(&r);
            }
            n += (size_t)(10 + turn);
            assert_memory_equal(text[0], text[1], n * sizeof **text);
        }
        assert_true(n_proposed > 0);
        nib_session_close(in[0]);
        nib_session_close(in[1]);
        nib_engine_close(e);
    }
    assert_true(n_left > 0);
}

static void a_draft_model_is_refused(void **state) {
    (void)state;
    nib_error err = {0};
    nib_batch *b;
    nib_engine *e = open_engine("tests/data/arch/llama", 1, 16, 0), *other = open_engine(models[1], 1, 16, 0);
    const nib_batch_options o = {.n_sequence = 2, .n_draft = 4, .draft = other};
    assert_int_equal(nib_batch_open(e, &o, &b, &err), NIB_E_USAGE);
    assert_non_null(strstr(err.message, "recurrent"));
    nib_engine_close(other);
    nib_engine_close(e);
}

/* ---- memory and back ends ---- */

static uint64_t kv_bytes(nib_engine *e) {
    nib_memory now;
    nib_engine_memory(e, &now);
    return now.owner[NIB_OWNER_KV];
}

static void the_state_is_charged(void **state) {
    (void)state;
    for (size_t m = 0; m < n_model(); m += EACH) {
        nib_engine *e = open_engine(models[m], 1, 16, 0);
        const uint64_t each = model_state_bytes(engine_parts_of(e).m), before = kv_bytes(e);
        nib_session *a = session_must_open(e);
        assert_true(each > 0 && kv_bytes(e) >= before + each);
        nib_batch *b = batch_must_open(e, &(nib_batch_options){.n_sequence = 7});
        assert_true(kv_bytes(e) >= before + 8 * each);
        nib_batch_close(b);
        nib_session_close(a);
        assert_int_equal(kv_bytes(e), before);
        nib_engine_close(e);
    }
}

static uint64_t state_bytes(const char *path, int first, int end) {
    const nib_engine_options o = engine_usual();
    const engine_internal with = {.stage_first = first, .stage_end = end};
    nib_engine *e = NULL;
    nib_error err = {0};
    if (engine_open(path, &o, &with, &e, &err))
        fail_msg("%s: %s", path, err.message);
    const uint64_t bytes = model_state_bytes(engine_parts_of(e).m);
    nib_engine_close(e);
    return bytes;
}

static void a_stage_has_the_states_of_its_layers(void **state) {
    (void)state;
    const uint64_t whole = state_bytes("tests/data/arch/mamba2", 0, 0);
    const uint64_t first = state_bytes("tests/data/arch/mamba2", 0, 2);
    const uint64_t second = state_bytes("tests/data/arch/mamba2", 2, 6);
    assert_true(first > 0 && second > 0);
    assert_int_equal(first + second, whole);
    /* all ranks know that sequences have a state */
    const uint64_t none = state_bytes("tests/data/arch/lfm2", 3, 4);
    assert_true(none > 0 && none < 128);
}

static void codes_of_entries_are_refused(void **state) {
    (void)state;
    nib_engine_options o = engine_usual();
    nib_engine *e = NULL;
    nib_error err = {0};
    o.kv_type = NIB_KV_8;
    assert_int_equal(nib_engine_open(models[N_MODEL - 1], &o, &e, &err), NIB_E_USAGE);
    assert_non_null(strstr(err.message, "compressed attention has them in f16 and f32, not in kv8"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(however_prompts_are_cut),
        cmocka_unit_test(grown_and_cut_back),
        cmocka_unit_test(after_a_cancelled_pass),
        cmocka_unit_test(from_a_checkpoint),
        cmocka_unit_test(answers_leave_no_checkpoint),
        cmocka_unit_test(answers_together),
        cmocka_unit_test(proposals_are_dropped),
        cmocka_unit_test(a_conversation_goes_on),
        cmocka_unit_test(a_draft_model_is_refused),
        cmocka_unit_test(the_state_is_charged),
        cmocka_unit_test(a_stage_has_the_states_of_its_layers),
        cmocka_unit_test(codes_of_entries_are_refused),
        cmocka_unit_test_setup_teardown(however_prompts_are_cut, cuda, processor),
        cmocka_unit_test_setup_teardown(grown_and_cut_back, cuda, processor),
        cmocka_unit_test_setup_teardown(from_a_checkpoint, cuda, processor),
        cmocka_unit_test_setup_teardown(answers_together, cuda, processor),
        cmocka_unit_test_setup_teardown(proposals_are_dropped, cuda, processor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
