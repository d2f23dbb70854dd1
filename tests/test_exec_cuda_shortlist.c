/* The output head in two steps on the cuda back end, on the processor's kernels instead of a GPU
 * (support/fakecuda.h, which also checks every estimate against its bound): the tokens and the bits of the
 * whole head, for greedy and other sampling, penalties, several rows, caps and calls that fail; and where it
 * is not used. */
#include "base/jsonx.h"
#include "kernels/cuda_load.h"
#include "support/answers.h"
#include "support/engine.h"
#include "support/fakecuda.h"
#include "support/sanitized.h"
#include "support/tinymodel.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_VOCAB = 1000, N_CTX = 192, MEMORY = 1 << 28 };

static const tiny_shape small = {TYPE_Q8_0, 2, 64, 96, 4, 2, N_VOCAB, N_CTX, true};

static nib_engine_options options(int shortlist) {
    nib_engine_options o = engine_usual();
    o.backend = "cuda";
    o.kv_type = NIB_KV_F16;
    o.shortlist = shortlist;
    o.n_best = 1;
    return o;
}

static nib_engine *open_one(const char *path, const nib_engine_options *o) {
    cuda_load_with(fake_cuda(MEMORY, 0, 0));
    return engine_must_open(path, o, NULL);
}

static void close_one(nib_engine *e) {
    nib_engine_close(e);
    if (fake_cuda_wrong())
        fail_msg("%s", fake_cuda_wrong());
    assert_int_equal(fake_cuda_held(), 0);
}

/* Tokens of one session; the rows that two steps computed. */
static long tokens_of(const char *path, nib_engine_options o, const nib_sampling *how, nib_result *out) {
    nib_error err;
    cuda_load_with(fake_cuda(MEMORY, 0, 0));
    if (engine_life(path, &o, how, 40, out, &err))
        fail_msg("%s", err.message);
    if (fake_cuda_wrong())
        fail_msg("%s", fake_cuda_wrong());
    assert_int_equal(fake_cuda_held(), 0);
    return fake_cuda_short();
}

/* ---- the same answers ---- */

static void tokens(void **state) {
    (void)state;
    static const nib_sampling how[] = {
        {.temperature = 0, .top_p = 1, .repeat_penalty = 1},
        {.temperature = 0, .top_p = 1, .repeat_penalty = 1.3f, .penalty_window = 64},
        {.temperature = 1, .top_k = 12, .top_p = 0.9f, .min_p = 0.01f, .repeat_penalty = 1, .seed = 5},
        {.temperature = 1, .top_k = 64, .top_p = 1, .repeat_penalty = 1.1f, .penalty_window = 64, .seed = 6}};
    for (int tied = 0; tied < 2; tied++) {
        tiny_shape shape = small;
        shape.tied = tied;
        const char *path = tiny_model("tokens.gguf", &shape);
        for (size_t c = 0; c < sizeof how / sizeof *how; c++) {
            nib_result with, without;
            assert_int_equal(tokens_of(path, options(NIB_SHORTLIST_ON), &how[c], &with), 40);
            assert_int_equal(tokens_of(path, options(NIB_SHORTLIST_OFF), &how[c], &without), 0);
            assert_int_equal(with.n_token, 40);
            assert_int_equal(without.n_token, 40);
            assert_memory_equal(with.tokens, without.tokens, 40 * sizeof(int32_t));
            nib_result_clear(&with), nib_result_clear(&without);
        }
    }
}

/* Penalties and biases, alone and in a batch of eight; all logits are returned if they are requested. */
static void answers(void **state) {
    (void)state;
    const char *path = tiny_model("answers.gguf", &small);
    for (int together = 0; together < 2; together++) {
        int32_t whole[ANSWERS][ANSWER_TOKENS], with[ANSWERS][ANSWER_TOKENS];
        for (int i = 0; i < 3; i++) {
            const nib_engine_options o = options(i ? NIB_SHORTLIST_ON : NIB_SHORTLIST_OFF);
            nib_engine *e = open_one(path, &o);
            answers_of(e, together, i == 2, i ? with : whole);
            nib_traffic t;
            nib_engine_traffic(e, &t);
            assert_int_equal(fake_cuda_short() > 0, i == 1);
            assert_int_equal(t.head_share < 1, i == 1);
            close_one(e);
            assert_memory_equal(whole, i ? with : whole, sizeof whole);
        }
    }
}

/* Tokens in two steps become a graph too. */
static void replayed(void **state) {
    (void)state;
    nib_result r;
    assert_int_equal(tokens_of(tiny_model("replay.gguf", &small), options(NIB_SHORTLIST_ON), NULL, &r) > 0,
                     true);
    assert_true(fake_cuda_replayed() > 30 * 5 * small.n_layer);
    nib_result_clear(&r);
}

/* ---- where it is used ---- */

static char said[8192];
static void hear(void *user, const char *line) {
    const size_t n = strlen(said);
    (void)user;
    snprintf(said + n, sizeof said - n, "%s\n", line);
}

static long with_words(const char *path, nib_engine_options o, const char *words) {
    nib_result r;
    said[0] = 0;
    o.log = hear;
    o.log_details = true;
    const long n = tokens_of(path, o, &(nib_sampling){.top_p = 1, .repeat_penalty = 1}, &r);
    nib_result_clear(&r);
    if (words && !strstr(said, words))
        fail_msg("'%s' is not said, but: %s", words, said);
    return n;
}

static void not_everywhere(void **state) {
    (void)state;
    static const char whole[] = "the output head is computed as a whole: --shortlist was requested";
    tiny_shape four = small;
    four.type = TYPE_Q4_0;
    const char *path = tiny_model("where.gguf", &small), *path4 = tiny_model("where4.gguf", &four);
    nib_engine_options o = options(NIB_SHORTLIST_ON);
    assert_true(with_words(path, o, "a sketch of 4 bits") > 0);
    assert_int_equal(with_words(path4, o, whole), 0); /* the head itself has 4 bits */
    o.activation = 16;
    assert_int_equal(with_words(path, o, whole), 0);
    o = options(NIB_SHORTLIST_ON);
    o.n_sequence = 20;
    assert_int_equal(with_words(path, o, whole), 0);
    o = options(NIB_SHORTLIST_AUTO); /* a small head is not worth a sketch */
    assert_int_equal(with_words(path, o, NULL), 0);
    assert_null(strstr(said, "the output head"));
}

/* ---- under a cap ---- */

static nib_status fits(const char *path, nib_engine_options o, uint64_t vram) {
    nib_engine *e = NULL;
    nib_error err;
    o.vram = vram;
    cuda_load_with(fake_cuda(MEMORY, 0, 0));
    const nib_status status = nib_engine_open(path, &o, &e, &err);
    nib_engine_close(e);
    return status;
}

/* Every cap in turn: the same tokens, and never more memory than the cap. There is a sketch under the largest
 * cap, and none if the head is streamed. */
static void caps(void **state) {
    (void)state;
    const char *path = tiny_model("caps.gguf", &small);
    nib_engine_options o = options(NIB_SHORTLIST_ON);
    nib_result first;
    bool seen[2] = {false, false};
    tokens_of(path, options(NIB_SHORTLIST_OFF), NULL, &first);
    uint64_t vram = 4 << 20;
    for (; fits(path, o, vram) == NIB_OK; vram -= vram / 24) {
        nib_result r;
        o.vram = vram;
        const long n = tokens_of(path, o, NULL, &r);
        seen[n > 0] = true;
        assert_true(fake_cuda_peak() <= vram + 16 * 4096); /* each region is a little larger, to be aligned */
        assert_int_equal(r.n_token, first.n_token);
        assert_memory_equal(r.tokens, first.tokens, first.n_token * sizeof(int32_t));
        nib_result_clear(&r);
    }
    assert_true(seen[0] && seen[1]);
    nib_result_clear(&first);
}

/* A plan under a cap, as text. */
static char *plan_of(const char *path, const nib_engine_options *o) {
    char *text = NULL;
    nib_error err;
    cuda_load_with(fake_cuda(MEMORY, 0, 0));
    if (nib_plan(path, o, NULL, &text, &err))
        fail_msg("%s", err.message);
    return text;
}

/* A plan has the bytes of the sketch, and a run takes no more than planned. */
static void planned(void **state) {
    (void)state;
    static const char words[] = "the output head is computed only for the likeliest tokens";
    const char *path = tiny_model("planned.gguf", &small);
    nib_engine_options o = options(NIB_SHORTLIST_ON);
    uint64_t peak[2];
    o.vram = 4 << 20;
    for (int on = 0; on < 2; on++) {
        nib_error err;
        json_t *made = NULL;
        nib_memory m;
        o.shortlist = on ? NIB_SHORTLIST_ON : NIB_SHORTLIST_OFF;
        char *text = plan_of(path, &o);
        assert_int_equal(strstr(text, words) != NULL, on);
        if (jsonx_parse(text, strlen(text), &made, &err))
            fail_msg("%s", err.message);
        peak[on] =
            (uint64_t)json_integer_value(json_object_get(json_object_get(made, "predicted"), "vram_peak"));
        nib_engine *e = open_one(path, &o);
        nib_engine_memory(e, &m);
        assert_true(m.tier[NIB_TIER_VRAM].planned <= peak[on]);
        const nib_slice *slices;
        const size_t n = nib_engine_placement(e, &slices);
        assert_int_equal(!strcmp(slices[n - 1].format, "u4g32"), on);
        close_one(e);
        json_decref(made), nib_free(text);
    }
    assert_true(peak[1] - peak[0] >= N_VOCAB * 64 / 2 && peak[1] - peak[0] < N_VOCAB * 64);
}

/* `auto` needs a head that saves 64 MiB, a few logits, and free memory. Only the header is read. */
static void large_heads(void **state) {
    (void)state;
    static const char words[] = "the output head is computed only for the likeliest tokens";
    static const struct {
        int n_best, shortlist;
        uint64_t vram;
        bool has;
    } cases[] = {{1, NIB_SHORTLIST_AUTO, 2048, true},  {8, NIB_SHORTLIST_AUTO, 2048, true},
                 {9, NIB_SHORTLIST_AUTO, 2048, false}, {0, NIB_SHORTLIST_AUTO, 2048, false},
                 {0, NIB_SHORTLIST_ON, 2048, true},    {1, NIB_SHORTLIST_OFF, 2048, false},
                 {1, NIB_SHORTLIST_AUTO, 200, false}};
    const tiny_shape large = {TYPE_Q8_0, 1, 1024, 32, 4, 2, SANITIZED ? 64 : 140000, N_CTX, true};
    const char *path = tiny_model("large.gguf", &large);
    for (size_t i = 0; i < sizeof cases / sizeof *cases && !SANITIZED; i++) {
        nib_engine_options o = options(cases[i].shortlist);
        o.n_best = cases[i].n_best;
        o.n_logits = 1;
        o.vram = cases[i].vram << 20;
        char *text = plan_of(path, &o);
        if ((strstr(text, words) != NULL) != cases[i].has)
            fail_msg("case %zu: %s", i, text);
        nib_free(text);
    }
}

/* ---- calls that fail ---- */

static void faults(void **state) {
    (void)state;
    enum { OUT_OF_MEMORY = 2 };
    const char *path = tiny_model("faults.gguf", &small);
    const nib_engine_options o = options(NIB_SHORTLIST_ON);
    nib_error err;
    nib_result r;
    for (int way = 0; way < 2; way++) {
        cuda_load_with(fake_cuda(MEMORY, 0, 0));
        assert_int_equal(engine_life(path, &o, NULL, 6, &r, &err), NIB_OK);
        nib_result_clear(&r);
        const long n = fake_cuda_calls();
        assert_true(fake_cuda_short() > 0);
        for (long i = 1; i <= n; i++) {
            err = (nib_error){0};
            cuda_load_with(fake_cuda(MEMORY, i, way ? OUT_OF_MEMORY : FAKE_CUDA_LOST));
            const nib_status status = engine_life(path, &o, NULL, 6, &r, &err);
            nib_result_clear(&r);
            if (fake_cuda_wrong() || fake_cuda_held())
                fail_msg("call %ld: %s, %zu are left", i, fake_cuda_wrong() ? fake_cuda_wrong() : "",
                         fake_cuda_held());
            if (status == NIB_OK && i > n - 24) /* no error can be reported any more */
                continue;
            if (status != NIB_E_DEVICE && !(way && status == NIB_E_NOMEM))
                fail_msg("call %ld of %ld: status %d, '%s'", i, n, status, err.message);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens),         cmocka_unit_test(answers), cmocka_unit_test(replayed),
        cmocka_unit_test(not_everywhere), cmocka_unit_test(caps),    cmocka_unit_test(planned),
        cmocka_unit_test(large_heads),    cmocka_unit_test(faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
