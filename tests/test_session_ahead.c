/* A head that predicts later tokens: its logits and what it proposes are those of an independent computation
 * (tools/make-ahead-fixture.py), and answers are those without it: alone, in batches that share prefixes, in
 * conversations, with streamed weights, from a folder and from a GGUF file made of it. */
#include "base/mem.h"
#include "base/num.h"
#include "kernels/cuda_load.h"
#include "nib_tools.h"
#include "support/engine.h"
#include "support/expected.h"
#include "support/fakecuda.h"
#include "support/sanitized.h"
#include "support/tempdir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { PROMPT = 16, N_CTX = 128, N_PROPOSE = 3 };

/* Those of Qwen have recurrent layers, whose state goes back when a proposal is rejected. */
static const char *const fixtures[] = {
    "tests/data/arch-extra/glm4_moe-ahead",    "tests/data/arch-extra/qwen3_5-ahead",
    "tests/data/arch-extra/qwen3_5_moe-ahead", "tests/data/arch-extra/mimo_v2_flash-ahead",
    "tests/data/arch-extra/exaone_moe-ahead",  "tests/data/arch-extra/ernie4_5_moe-ahead"};
static const char *fixture; /* one of them */
static expected want;

static int load(void **state) {
    char path[256];
    (void)state;
    snprintf(path, sizeof path, "%s/expected.safetensors", fixture);
    expected_load(path, &want);
    return 0;
}

static int unload(void **state) {
    (void)state;
    expected_free(&want);
    return 0;
}

static nib_engine_options usual(const char *by) {
    nib_engine_options o = engine_usual();
    o.n_thread = 1;
    o.n_ctx = N_CTX;
    o.kv_type = by && !strcmp(by, "cuda") ? NIB_KV_F16 : NIB_KV_F32;
    o.backend = by;
    return o;
}

static nib_engine *open_head(const char *path, const char *by, int n_session) {
    nib_engine_options o = usual(by);
    o.ahead = true;
    o.n_session = n_session;
    return engine_must_open(path, &o, NULL);
}

static nib_engine *open_beside(const char *path, const char *by, int n_session, const nib_engine *lender) {
    nib_engine_options o = usual(by);
    o.lender = lender;
    o.n_draft = N_PROPOSE;
    o.n_session = n_session;
    return engine_must_open(path, &o, NULL);
}

static nib_engine *open_model(const char *path, const char *by, int n_session) {
    return open_beside(path, by, n_session, NULL);
}

/* ---- the head alone ---- */

static const float *give_states(void *user, int segment_index) {
    (void)segment_index;
    return (const float *)user;
}

static double worst;

static nib_status compare(void *user, int segment_index, int64_t row, int64_t n_row, const float *logits,
                          nib_error *err) {
    (void)user, (void)segment_index, (void)err;
    worst = NUM_MAX(worst, relative_rms(logits, want.ahead + row * want.n_vocab, n_row * want.n_vocab));
    return NIB_OK;
}

/* Passes of the head, with the states of the other implementation. */
static void its_logits_are_right(void **state) {
    static const char *const backends[] = {NULL, "check"};
    (void)state;
    for (size_t i = 0; i < NUM_COUNT(backends); i++) {
        nib_engine *e = open_head(fixture, backends[i], 1);
        const engine_parts on = engine_parts_of(e);
        nib_error err = {0};
        sequence_memory memory;
        sequence s;
        int32_t tokens[N_CTX];
        assert_int_equal(engine_sequence_memory(e, on.kv, &memory, &err), NIB_OK);
        assert_int_equal(sequence_open(&s, &memory, N_CTX, tokens, NULL, &err), NIB_OK);
        sequence_set(&s, want.input_ids + 1, 16, 0);
        segment rows = sequence_rows(&s, 16, 0);
        segments_number(&rows, 1);
        const pass how = {.segments = &rows,
                          .n_segment = 1,
                          .n_head = 1,
                          .rows = compare,
                          .input = give_states,
                          .user = want.states};
        worst = 0;
        if (step_pass(on.step, &how, &err))
            fail_msg("%s", err.message);
        assert_true(worst < 1e-4);
        assert_int_equal(on.m ? model_n_block(on.m) : 0, 3);
        sequence_close(&s);
        nib_engine_close(e);
    }
}

/* It is no model: nothing answers with it, and it has no other ranks. */
static void it_is_not_a_model(void **state) {
    (void)state;
    nib_engine *head = open_head(fixture, NULL, 2), *e = NULL;
    nib_session *s;
    nib_batch *b;
    nib_error err = {0};
    assert_int_equal(nib_session_open(head, NULL, &s, &err), NIB_E_USAGE);
    assert_non_null(strstr(err.message, "expected a model, found its head"));
    assert_int_equal(nib_batch_open(head, NULL, &b, &err), NIB_E_USAGE);
    nib_engine_close(head);
    nib_engine_options o = usual(NULL);
    o.ahead = true;
    o.devices = "cpu,cpu";
    assert_int_equal(nib_engine_open(fixture, &o, &e, &err), NIB_E_USAGE);
    assert_non_null(strstr(err.message, "head that predicts later tokens"));
}

/* ---- answers ---- */

static nib_generate_options greedy(const int32_t *prompt, size_t n_prompt, int n) {
    nib_generate_options o;
    nib_generate_options_init(&o);
    o.prompt = prompt;
    o.n_prompt = n_prompt;
    o.n_predict = n;
    o.ignore_eos = true;
    o.sampling.temperature = 0;
    return o;
}

static nib_session *open_session(nib_engine *e, nib_engine *head) {
    const nib_session_options how = {.n_draft_min = N_PROPOSE, .draft = head};
    nib_error err = {0};
    nib_session *s;
    if (nib_session_open(e, &how, &s, &err))
        fail_msg("%s", err.message);
    return s;
}

static nib_result answer(nib_session *s, const nib_generate_options *o) {
    nib_error err = {0};
    nib_result r = {0};
    if (nib_generate(s, o, &r, &err))
        fail_msg("%s", err.message);
    return r;
}

/* The greedy answer; all: with as many proposals, and as many right ones, as computed independently. */
static void check_with(nib_engine *e, nib_engine *head, bool all) {
    nib_session *s = open_session(e, head);
    const nib_generate_options o = greedy(want.input_ids, PROMPT, want.n_answer);
    nib_result r = answer(s, &o);
    assert_int_equal(r.n_token, want.n_answer);
    assert_memory_equal(r.tokens, want.answer, (size_t)want.n_answer * sizeof *want.answer);
    assert_true(r.draft_n > 0);
    if (all) {
        assert_int_equal(r.draft_n, want.proposed);
        assert_int_equal(r.draft_right, want.accepted);
    }
    nib_result_clear(&r);
    nib_session_close(s);
    nib_engine_close(e);
    nib_engine_close(head); /* may lend weights */
}

static uint64_t weights_of(const nib_engine *e) {
    nib_memory m;
    nib_engine_memory(e, &m);
    return m.owner[NIB_OWNER_WEIGHTS];
}

/* Weights that the file has once are in memory once, in packed form: the embedding and the output head, of
 * 160 rows with 40 channels in bf16. GLM's file has copies of both for the head. */
static void in_memory_once(void **state) {
    (void)state;
    const bool copies = strstr(fixture, "glm4") != NULL;
    nib_engine *alone = open_model(fixture, NULL, 1), *head = open_head(fixture, NULL, 1);
    nib_engine *e = open_beside(fixture, NULL, 1, head), *other = open_head(fixture, "check", 1);
    const uint64_t whole = weights_of(alone), saved = whole - weights_of(e);
    assert_int_equal(saved, copies ? 0 : 2 * num_round_up(160 * 40 * 2, 4096));
    nib_engine_close(alone);
    check_with(e, head, true);
    alone = open_beside(fixture, NULL, 1, other); /* whose memory is another one */
    assert_int_equal(weights_of(alone), whole);
    nib_engine_close(alone);
    nib_engine_close(other);
}

static void check_answer(const char *path, const char *by) {
    check_with(open_model(path, by, 1), open_head(path, by, 1), true);
}

static void it_proposes_what_it_should(void **state) {
    (void)state;
    check_answer(fixture, NULL);
    check_answer(fixture, "check");
}

/* All weights of the model are read for each pass; prompts are cut into passes of six rows. A head with
 * memory for fewer rows forgets the text before them. */
static void streamed_and_in_parts(void **state) {
    const engine_internal nothing_stays = {.keep_nothing = true};
    (void)state;
    for (int rows = 6; rows >= 2; rows -= 2) {
        nib_engine_options o = usual(NULL), of_head = o;
        nib_engine *e;
        nib_error err = {0};
        o.ram = SANITIZED ? (uint64_t)2 << 30 : 64 << 20; /* a sanitizer has memory of its own */
        o.stream = true;
        o.n_draft = N_PROPOSE;
        o.n_batch = 6;
        of_head.ahead = true;
        of_head.n_batch = rows;
        nib_engine *head = engine_must_open(fixture, &of_head, NULL);
        o.lender = rows == 4 ? head : NULL;
        if (engine_open(fixture, &o, &nothing_stays, &e, &err))
            fail_msg("%s", err.message);
        check_with(e, head, rows == 6);
    }
}

/* Turns of a conversation: the text goes on after an answer, or with another token than its last one, or it
 * is another text. The head goes on as well. */
static void a_conversation_goes_on(void **state) {
    (void)state;
    nib_engine *e = open_model(fixture, NULL, 2), *head = open_head(fixture, NULL, 1);
    nib_session *plain = session_must_open(e), *s = open_session(e, head);
    int32_t text[N_CTX];
    size_t n = PROMPT;
    int64_t n_right = 0;
    memcpy(text, want.input_ids, sizeof *text * PROMPT);
    for (int turn = 0; turn < 5; turn++) {
        const nib_generate_options o = greedy(text, n, 9 + turn);
        nib_result is = answer(s, &o), expects = answer(plain, &o);
        assert_int_equal(is.n_token, expects.n_token);
        assert_memory_equal(is.tokens, expects.tokens, expects.n_token * sizeof *expects.tokens);
        n_right += is.draft_right;
        memcpy(text + n, is.tokens, is.n_token * sizeof *text);
        n += is.n_token - (turn == 1); /* without its last token */
        nib_result_clear(&is);
        nib_result_clear(&expects);
        text[n++] = want.input_ids[20 + turn];
        if (turn == 2) { /* another beginning */
            n = 5;
            text[2]++;
        }
    }
    assert_true(n_right > 0);
    nib_session_close(plain);
    nib_session_close(s);
    nib_engine_close(head);
    nib_engine_close(e);
}

/* ---- batches ---- */

enum { N_REQUEST = 9, SHARED = 70 };

static void make_request(nib_generate_options *o, int32_t *prompt, int i) {
    *o = greedy(prompt, (size_t)(i % 3 == 2 ? 10 + i : SHARED + i), 12 + 2 * i);
    for (size_t k = 0; k < o->n_prompt; k++)
        prompt[k] = (int32_t)(3 + (k * k + 5 * k + (i % 3 == 2 ? (size_t)i : 0)) % 150);
    o->sampling.temperature = i % 2 ? 0.4F : 0;
    o->sampling.seed = (uint64_t)i + 1;
}

static void run_batch(nib_engine *e, const nib_batch_options *how, nib_result *out,
                      nib_batch_counts *counts) {
    nib_batch *b = batch_must_open(e, how);
    static int32_t prompts[N_REQUEST][N_CTX];
    nib_error err = {0};
    int32_t left = 1;
    for (int i = 0; i < N_REQUEST; i++) {
        nib_generate_options o;
        int64_t id;
        make_request(&o, prompts[i], i);
        assert_int_equal(nib_batch_add(b, &o, &id, &err), NIB_OK);
        assert_int_equal(id, i + 1);
    }
    while (left > 0)
        if (nib_batch_step(b, &left, &err))
            fail_msg("%s", err.message);
    nib_result r;
    for (int64_t id; nib_batch_take(b, &id, &r, &err); out[id - 1] = r)
        assert_int_equal(err.status, NIB_OK);
    nib_batch_count(b, counts);
    nib_batch_close(b);
}

static void compare_batches(const char *by) {
    nib_engine *e = open_model(fixture, by, 4), *head = open_head(fixture, by, 4);
    nib_result plain[N_REQUEST] = {0}, is[N_REQUEST] = {0};
    nib_batch_counts counts;
    run_batch(e, &(nib_batch_options){.n_sequence = 4}, plain, &counts);
    for (int n_slot = 1; n_slot <= 4; n_slot += 3) {
        run_batch(e,
                  &(nib_batch_options){
                      .n_sequence = n_slot, .n_draft = N_PROPOSE, .n_draft_min = N_PROPOSE, .draft = head},
                  is, &counts);
        assert_true(counts.draft_right > 0 && counts.draft_right < counts.draft_n);
        for (int i = 0; i < N_REQUEST; i++) {
            assert_int_equal(is[i].n_token, plain[i].n_token);
            assert_memory_equal(is[i].tokens, plain[i].tokens, plain[i].n_token * sizeof *plain[i].tokens);
            nib_result_clear(&is[i]);
        }
    }
    for (int i = 0; i < N_REQUEST; i++)
        nib_result_clear(&plain[i]);
    nib_engine_close(head);
    nib_engine_close(e);
}

static void batches_are_the_same(void **state) {
    (void)state;
    compare_batches(NULL);
}

/* On a fake GPU (support/fakecuda.h), whose kernels of prompts have other bits: states cross to the host. */
static void on_a_gpu(void **state) {
    (void)state;
    cuda_load_with(fake_cuda(1 << 28, 0, 0));
    fake_cuda_prompts_differ(true);
    compare_batches("cuda");
    if (fake_cuda_wrong())
        fail_msg("%s", fake_cuda_wrong());
    assert_int_equal(fake_cuda_held(), 0);
    cuda_load_with(NULL);
}

/* ---- files ---- */

static void quantize(const char *out, bool permute) {
    const nib_engine_options o = usual(NULL);
    const nib_quantize_options q = {.out = out, .type = "f32", .permute = permute};
    nib_quantize_report report;
    nib_error err = {0};
    if (nib_quantize(fixture, &o, &q, &report, &err))
        fail_msg("%s", err.message);
}

static void check_refused(const char *path) {
    nib_engine_options o = usual(NULL);
    nib_engine *e;
    nib_error err = {0};
    o.ahead = true;
    assert_int_equal(nib_engine_open(path, &o, &e, &err), NIB_E_USAGE);
    assert_non_null(strstr(err.message, "a head that predicts later tokens"));
}

/* One that orders channels leaves it out. */
static void a_file_keeps_it(void **state) {
    const char *path = temp_path("ahead.gguf"), *ordered = temp_path("ordered.gguf");
    (void)state;
    quantize(path, false);
    check_answer(path, NULL);
    quantize(ordered, true);
    check_refused(ordered);
    check_refused("tests/data/arch/llama");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(its_logits_are_right),
        cmocka_unit_test(it_is_not_a_model),
        cmocka_unit_test(it_proposes_what_it_should),
        cmocka_unit_test(streamed_and_in_parts),
        cmocka_unit_test(in_memory_once),
        cmocka_unit_test(a_conversation_goes_on),
        cmocka_unit_test(batches_are_the_same),
        cmocka_unit_test(on_a_gpu),
        cmocka_unit_test(a_file_keeps_it),
    };
    int failed = 0;
    for (size_t i = 0; i < NUM_COUNT(fixtures); i++) {
        fixture = fixtures[i];
        failed += cmocka_run_group_tests(tests, load, unload);
    }
    return failed;
}
