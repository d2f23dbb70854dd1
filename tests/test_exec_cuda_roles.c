/* The role of a row (prompt row or generated row) decides which of the GPU's kernels compute it. An engine
 * for many sequences has other kernels for generated rows. All kinds differ in the last bits, so a row with
 * the wrong kernels is noticed: on the fake GPU (support/fakecuda.h) the results differ a little on purpose.
 * test_exec_cuda asserts the same on a real device. */
#include "kernels/cuda_load.h"
#include "nib_tools.h"
#include "support/company.h"
#include "support/engine.h"
#include "support/fakecuda.h"
#include "support/logits.h"
#include "support/sanitized.h"
#include "support/slow.h"
#include "support/tinymodel.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_VOCAB = 512, MEMORY = 1 << 28, N_TOKEN = 200, N_MORE = 4 };

/* Heads of 32, so that attention leaves codes of several rows. */
static const tiny_shape small = {TYPE_Q8_0, 2, 128, 96, 4, 2, N_VOCAB, COMPANY_CTX, true};
static const nib_kv_type caches[] = {NIB_KV_F16, NIB_KV_8, NIB_KV_4};
static const int pieces[] = {512, 100, 65, 64, 16, 7, 1};
enum { N_PIECE = sizeof pieces / sizeof *pieces };

/* Sequences that may decode together: with the kernels for few, and for many. */
enum { FEW = 4, MANY = 20 };
static int n_sequence = FEW;
static uint64_t vram = NIB_AUTO;

/* On the device that is there. */
static nib_engine *opened_beside(const char *path, nib_kv_type kv, int n_batch) {
    nib_engine_options o = engine_usual();
    o.backend = "cuda";
    o.kv_type = kv;
    o.n_ctx = COMPANY_CTX;
    o.n_session = 4;
    o.n_sequence = n_sequence;
    o.n_batch = n_batch;
    o.vram = vram;
    return engine_must_open(path, &o, NULL);
}

static nib_engine *opened(const char *path, nib_kv_type kv, int n_batch) {
    cuda_load_with(fake_cuda(MEMORY, 0, 0));
    fake_cuda_prompts_differ(true);
    return opened_beside(path, kv, n_batch);
}

static void closed(nib_engine *e) {
    nib_engine_close(e);
    if (fake_cuda_wrong())
        fail_msg("%s", fake_cuda_wrong());
    assert_int_equal(fake_cuda_held(), 0);
}

/* Logits of the last token of a prompt, and of some that follow it. */
static void follow(const char *path, nib_kv_type kv, int n_batch, float (*out)[N_VOCAB]) {
    int32_t tokens[N_TOKEN + N_MORE];
    nib_error err = {0};
    nib_engine *e = opened(path, kv, n_batch);
    nib_session *s = session_must_open(e);
    logits_tokens(tokens, N_TOKEN + N_MORE, N_VOCAB, 3);
    for (int i = 0; i <= N_MORE; i++) {
        if (nib_session_sync(s, tokens, (size_t)(N_TOKEN + i), &err))
            fail_msg("%s", err.message);
        memcpy(out[i], nib_session_logits(s), sizeof out[i]);
    }
    nib_session_close(s);
    closed(e);
}

static logits_rows all_logits(const char *path, nib_kv_type kv, int n_batch) {
    int32_t tokens[N_TOKEN];
    nib_engine *e = opened(path, kv, n_batch);
    logits_tokens(tokens, N_TOKEN, N_VOCAB, 3);
    const logits_rows r = logits_of(e, tokens, N_TOKEN);
    closed(e);
    return r;
}

static void a_prompt_in_pieces(void **state) {
    n_sequence = *(const int *)*state;
    static float whole[N_MORE + 1][N_VOCAB], cut[N_MORE + 1][N_VOCAB];
    const char *path = tiny_model("pieces.gguf", &small);
    for (size_t kv = 0; kv < sizeof caches / sizeof *caches; kv++) {
        if (SANITIZED && (kv > 0) != (n_sequence == MANY)) /* each once */
            continue;
        follow(path, caches[kv], pieces[0], whole);
        const logits_rows all = all_logits(path, caches[kv], pieces[0]);
        assert_memory_equal(all.data + (N_TOKEN - 1) * N_VOCAB, whole[0], sizeof whole[0]);
        for (int i = 1; i < N_PIECE; i += slow_is_thinned() ? 3 : 1) {
            follow(path, caches[kv], pieces[i], cut);
            if (memcmp(whole, cut, sizeof whole) != 0)
                fail_msg("pieces of %d rows give other logits than one, cache %zu", pieces[i], kv);
            const logits_rows some = all_logits(path, caches[kv], pieces[i]);
            if (memcmp(all.data, some.data, logits_bytes(&all)) != 0)
                fail_msg("pieces of %d rows give other logits of all rows, cache %zu", pieces[i], kv);
            free(some.data);
        }
        free(all.data);
    }
}

/* A prompt row and the same row as a generated one differ here: otherwise these tests could not fail. */
static void roles_differ(void **state) {
    (void)state;
    int32_t tokens[N_TOKEN];
    static float prompt[N_VOCAB], generated[N_VOCAB];
    nib_error err = {0};
    const char *path = tiny_model("roles.gguf", &small);
    logits_tokens(tokens, N_TOKEN, N_VOCAB, 3);
    for (int i = 0; i < 2; i++) {
        nib_engine *e = opened(path, NIB_KV_F16, 64);
        nib_session *s = session_must_open(e);
        assert_int_equal(nib_session_sync(s, tokens, i ? 69 : 70, &err), NIB_OK);
        if (i)
            assert_int_equal(nib_session_sync(s, tokens, 70, &err), NIB_OK);
        memcpy(i ? generated : prompt, nib_session_logits(s), sizeof prompt);
        nib_session_close(s);
        closed(e);
    }
    assert_memory_not_equal(prompt, generated, sizeof prompt);
}

static void an_answer_in_company(void **state) {
    n_sequence = *(const int *)*state;
    static company_answer alone, is;
    static const int rows[] = {512, 65, 7};
    int32_t tokens[COMPANY_PROMPT];
    const char *path = tiny_model("company.gguf", &small);
    for (size_t kv = 0; kv < (SANITIZED ? 1 : sizeof caches / sizeof *caches); kv++)
        for (int i = 0; i < (slow_is_thinned() ? 1 : 3); i++)
            for (int how = 0; how < COMPANY_COUNT; how++) {
                nib_engine *e = opened(path, caches[kv], rows[i]);
                company_prompt(e, N_VOCAB, tokens);
                closed(e);
                e = opened(path, caches[kv], rows[i]);
                company_ask(e, how, tokens, i || how ? &is : &alone);
                assert_int_equal(fake_cuda_batch() > 0, n_sequence == MANY);
                assert_int_equal(fake_cuda_by(FAKE_BY_RULE) > 0, n_sequence != MANY);
                closed(e);
                if ((i || how) && memcmp(&is, &alone, sizeof is) != 0)
                    fail_msg("an answer %s has other bits than in a session: passes of %d rows, cache %zu",
                             company_names[how], rows[i], kv);
            }
}

/* The number of sequences that may decode together decides for all rows of an engine, also for one alone. */
static void many_from(void **state) {
    (void)state;
    static float few[N_MORE + 1][N_VOCAB], other[N_MORE + 1][N_VOCAB], many[N_MORE + 1][N_VOCAB];
    const char *path = tiny_model("many.gguf", &small);
    n_sequence = FEW;
    nib_engine *e = opened(path, NIB_KV_F16, 64);
    const int from = nib_engine_many_from(e);
    closed(e);
    assert_in_range(from, FEW + 2, MANY);
    follow(path, NIB_KV_F16, 64, few);
    n_sequence = from - 1;
    follow(path, NIB_KV_F16, 64, other);
    assert_memory_equal(few, other, sizeof few);
    assert_int_equal(fake_cuda_batch(), 0);
    assert_true(fake_cuda_by(FAKE_BY_RULE) > 0 && fake_cuda_taken() > 0);
    n_sequence = from;
    follow(path, NIB_KV_F16, 64, other);
    assert_true(fake_cuda_batch() > 0 && fake_cuda_replayed() > 0);
    assert_int_equal(fake_cuda_by(FAKE_BY_RULE), 0);
    assert_int_equal(fake_cuda_taken(), 0);
    n_sequence = MANY;
    follow(path, NIB_KV_F16, 64, many);
    assert_memory_equal(other, many, sizeof many);
    for (int i = 0; i <= N_MORE; i++)
        assert_memory_not_equal(few[i], many[i], sizeof few[i]);
    n_sequence = FEW;
}

/* The smallest cap that works: most layers are streamed. */
static void many_with_streamed_layers(void **state) {
    (void)state;
    static company_answer alone, is;
    int32_t tokens[COMPANY_PROMPT];
    const tiny_shape deeper = {TYPE_Q8_0, 5, 64, 96, 4, 2, N_VOCAB, COMPANY_CTX, true};
    const char *path = tiny_model("streamed.gguf", &deeper);
    n_sequence = MANY;
    logits_tokens(tokens, COMPANY_PROMPT, N_VOCAB, 7);
    nib_engine *e = opened(path, NIB_KV_F16, 64);
    company_ask(e, COMPANY_BATCH, tokens, &alone);
    nib_memory m;
    nib_engine_memory(e, &m);
    closed(e);
    vram = m.tier[NIB_TIER_VRAM].planned - m.tier[NIB_TIER_VRAM].planned / 50;
    e = opened(path, NIB_KV_F16, 64);
    company_ask(e, COMPANY_ANSWERS, tokens, &is);
    nib_engine_memory(e, &m);
    assert_true(m.tier[NIB_TIER_VRAM].peak <= vram);
    closed(e);
    vram = NIB_AUTO;
    n_sequence = FEW;
    assert_memory_equal(&is, &alone, sizeof is);
}

/* A request whose prompt has n tokens. */
static void ask(nib_batch *b, int seed, int n) {
    int32_t tokens[N_TOKEN];
    nib_error err = {0};
    int64_t id;
    nib_generate_options g;
    nib_generate_options_init(&g);
    logits_tokens(tokens, n, N_VOCAB, (uint64_t)seed);
    g.prompt = tokens;
    g.n_prompt = (size_t)n;
    g.n_predict = 20;
    g.ignore_eos = true;
    assert_int_equal(nib_batch_add(b, &g, &id, &err), NIB_OK);
}

static size_t sent_by_step(nib_batch *b) {
    nib_error err = {0};
    int32_t left;
    const size_t before = fake_cuda_sent();
    assert_int_equal(nib_batch_step(b, &left, &err), NIB_OK);
    return fake_cuda_sent() - before;
}

/* A step with prompt rows and generated rows copies each streamed weight once. */
static void a_weight_crosses_the_link_once(void **state) {
    const bool in_place = *(const int *)*state == FEW;
    const tiny_shape wide = {TYPE_Q8_0, 5, 256, 768, 4, 2, N_VOCAB, COMPANY_CTX, true};
    const char *path = tiny_model("once.gguf", &wide);
    nib_memory m;
    nib_error err = {0};
    nib_batch *b = NULL;
    n_sequence = in_place ? FEW : 65;
    nib_engine *e = opened(path, NIB_KV_F16, 128);
    nib_engine_memory(e, &m);
    closed(e);
    /* for many sequences too little for the weights, wherever keys and values are */
    vram = in_place ? m.tier[NIB_TIER_VRAM].planned / 6 * 5 : m.tier[NIB_TIER_VRAM].planned / 2;
    e = opened(path, NIB_KV_F16, 128);
    assert_int_equal(nib_batch_open(e, &(nib_batch_options){.n_sequence = 4}, &b, &err), NIB_OK);
    ask(b, 1, 40);
    sent_by_step(b); /* weights that stay are copied, too */
    sent_by_step(b);
    const size_t generated = sent_by_step(b);
    ask(b, 2, 40);
    const size_t both = sent_by_step(b);
    nib_batch_close(b);
    b = NULL;
    assert_int_equal(nib_batch_open(e, &(nib_batch_options){.n_sequence = 4}, &b, &err), NIB_OK);
    ask(b, 3, 41);
    const size_t prompt = sent_by_step(b);
    nib_batch_close(b);
    closed(e);
    vram = NIB_AUTO;
    n_sequence = FEW;
    assert_true(in_place ? generated < prompt / 2 : generated > prompt / 2);
    assert_true(both > prompt / 2 && both < prompt + prompt / 4);
}

/* The rows of an answer that a draft model computes are generated rows. Prompts of its engine do not share
 * their pages. The GPU finds its likeliest tokens. */
static void a_draft_model_shares_no_answers(void **state) {
    (void)state;
    static company_answer alone, is;
    int32_t tokens[COMPANY_PROMPT], left = 1;
    nib_error err = {0};
    nib_generate_options g;
    nib_batch *b = NULL;
    nib_batch_counts counts;
    int64_t id;
    const char *path = tiny_model("drafts.gguf", &small);
    nib_engine *target = opened(path, NIB_KV_F16, 64), *drafts = opened_beside(path, NIB_KV_F16, 64);
    const nib_batch_options o = {.n_sequence = 1, .draft = drafts, .n_draft = 6, .n_draft_min = 6};
    company_prompt(target, N_VOCAB, tokens);
    company_ask(target, COMPANY_SESSION, tokens, &alone);
    assert_int_equal(nib_batch_open(target, &o, &b, &err), NIB_OK);
    nib_generate_options_init(&g);
    g.prompt = tokens;
    g.n_prompt = COMPANY_PROMPT / 2;
    g.n_predict = COMPANY_TOKENS;
    g.ignore_eos = true;
    g.sampling.temperature = 0;
    assert_int_equal(nib_batch_add(b, &g, &id, &err), NIB_OK);
    const long sampled = fake_cuda_sampled();
    while (left > 0)
        assert_int_equal(nib_batch_step(b, &left, &err), NIB_OK);
    nib_batch_count(b, &counts);
    assert_true(fake_cuda_sampled() - sampled >= (long)(2 * counts.draft_n));
    company_ask(drafts, COMPANY_SESSION, tokens, &is); /* the draft model's pages are still in the pool */
    nib_batch_close(b);
    nib_engine_close(target);
    closed(drafts);
    assert_memory_equal(&is, &alone, sizeof is);
}

/* On a device without kernels for prompts all rows have the same bits, and one pass has both kinds. */
static void without_wide_products(void **state) {
    (void)state;
    static company_answer alone, is;
    int32_t tokens[COMPANY_PROMPT];
    const char *path = tiny_model("few.gguf", &small);
    logits_tokens(tokens, COMPANY_PROMPT, N_VOCAB, 7);
    for (int how = 0; how < COMPANY_COUNT; how++) {
        nib_engine_options o = engine_usual();
        o.backend = "cuda";
        o.kv_type = NIB_KV_F16;
        o.n_ctx = COMPANY_CTX;
        o.n_session = 4;
        o.n_batch = 100;
        cuda_load_with(fake_cuda(MEMORY, 0, 0));
        fake_cuda_without_wide();
        nib_engine *e = engine_must_open(path, &o, NULL);
        company_ask(e, how, tokens, how ? &is : &alone);
        assert_int_equal(fake_cuda_wide() + fake_cuda_prompt(), 0);
        closed(e);
        if (how && memcmp(&is, &alone, sizeof is) != 0)
            fail_msg("an answer %s has other bits than in a session", company_names[how]);
    }
}

int main(void) {
    static int few = FEW, many = MANY;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(roles_differ),
        cmocka_unit_test(many_from),
        cmocka_unit_test_prestate(a_prompt_in_pieces, &few),
        cmocka_unit_test_prestate(a_prompt_in_pieces, &many),
        cmocka_unit_test_prestate(an_answer_in_company, &few),
        cmocka_unit_test_prestate(an_answer_in_company, &many),
        cmocka_unit_test(many_with_streamed_layers),
        cmocka_unit_test_prestate(a_weight_crosses_the_link_once, &few),
        cmocka_unit_test_prestate(a_weight_crosses_the_link_once, &many),
        cmocka_unit_test(a_draft_model_shares_no_answers),
        cmocka_unit_test(without_wide_products),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
