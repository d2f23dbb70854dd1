/* Answers of the cuda back end on the processor's kernels instead of a GPU (support/fakecuda.h) are those of
 * the check back end: batches with common prefixes, and sampling from the logits that the device finds and
 * changes. */
#include "base/mem.h"
#include "kernels/cuda_load.h"
#include "support/answers.h"
#include "support/engine.h"
#include "support/fakecuda.h"
#include "support/logits.h"
#include "support/process.h"
#include "support/tinymodel.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { N_TOKEN = 150, N_VOCAB = 512, N_CTX = 192, MEMORY = 1 << 28 };

static const tiny_shape small = {TYPE_Q8_0, 2, 64, 96, 4, 2, N_VOCAB, N_CTX, true};

static void fake_is_idle(void) {
    if (fake_cuda_wrong())
        fail_msg("%s", fake_cuda_wrong());
    assert_int_equal(fake_cuda_held(), 0);
}

enum { N_REQUEST = 7 };

static void answers_by(const char *name, const char *path, nib_kv_type kv, int32_t (*out)[PROMPT_ANSWER]) {
    nib_engine_options o = engine_usual();
    o.backend = name;
    o.kv_type = kv;
    cuda_load_with(fake_cuda(MEMORY, 0, 0));
    nib_engine *e = engine_must_open(path, &o, NULL);
    answers_to_prompts(e, 4, N_REQUEST, 20, out);
    nib_engine_close(e);
    fake_is_idle();
}

static void batches(void **state) {
    (void)state;
    const char *path = tiny_model("batch.gguf", &small);
    for (nib_kv_type kv = NIB_KV_F16; kv <= NIB_KV_4; kv++) {
        int32_t check[N_REQUEST][PROMPT_ANSWER] = {{0}}, cuda[N_REQUEST][PROMPT_ANSWER] = {{0}};
        if (kv == NIB_KV_F32)
            continue;
        answers_by("check", path, kv, check);
        answers_by("cuda", path, kv, cuda);
        assert_memory_equal(check, cuda, sizeof check);
        assert_int_not_equal(cuda[0][0], cuda[0][1]);
    }
}

/* The device finds the logits that answers are sampled from: the same tokens, in a session and in a batch.
 * All logits are copied if an answer needs all. */
static void the_best_come(void **state) {
    (void)state;
    static const nib_sampling how[] = {
        {.temperature = 0, .top_p = 1, .repeat_penalty = 1},
        {.temperature = 1, .top_k = 12, .top_p = 0.9f, .min_p = 0.01f, .repeat_penalty = 1, .seed = 5},
        {.temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = 5}};
    const char *path = tiny_model("best.gguf", &small);
    for (size_t c = 0; c < sizeof how / sizeof *how; c++) {
        nib_result found[2];
        for (int i = 0; i < 2; i++) {
            nib_engine_options o = engine_usual();
            nib_error err;
            o.kv_type = NIB_KV_F16;
            o.backend = i ? "cuda" : "check";
            cuda_load_with(fake_cuda(MEMORY, 0, 0));
            if (engine_life(path, &o, &how[c], 20, &found[i], &err))
                fail_msg("%s", err.message);
            if (i)
                assert_int_equal(fake_cuda_sampled(), c < 2 ? 20 : 0);
            fake_is_idle();
        }
        assert_int_equal(found[0].n_token, 20);
        assert_int_equal(found[1].n_token, 20);
        assert_memory_equal(found[0].tokens, found[1].tokens, 20 * sizeof(int32_t));
        nib_result_clear(&found[0]), nib_result_clear(&found[1]);
    }
}

/* The device applies penalties and biases: the tokens are those of the check back end, which returns all
 * logits. */
static void changes_are_the_devices(void **state) {
    (void)state;
    const char *path = tiny_model("changes.gguf", &small);
    for (int together = 0; together < 2; together++) {
        int32_t check[ANSWERS][ANSWER_TOKENS], cuda[ANSWERS][ANSWER_TOKENS];
        for (int i = 0; i < 3; i++) {
            nib_engine_options o = engine_usual();
            o.kv_type = NIB_KV_F16;
            o.backend = i ? "cuda" : "check";
            cuda_load_with(fake_cuda(MEMORY, 0, 0));
            nib_engine *e = engine_must_open(path, &o, NULL);
            answers_of(e, together, i == 2, i ? cuda : check);
            nib_engine_close(e);
            fake_is_idle();
            assert_int_equal(fake_cuda_sampled() > 0, i == 1);
            assert_memory_equal(check, i ? cuda : check, sizeof check);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batches),
        cmocka_unit_test(the_best_come),
        cmocka_unit_test(changes_are_the_devices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
