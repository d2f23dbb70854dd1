/* nib_session_next: the largest logit of each step, as from all logits, on the processor and on a table of
 * CUDA kernels without a GPU (support/fakecuda.h), which returns no others. */
#include "kernels/cuda_load.h"
#include "nib.h"
#include "support/engine.h"
#include "support/fakecuda.h"
#include "support/tinymodel.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { N_VOCAB = 512, N_CTX = 24, N_PROMPT = 4, MEMORY = 1 << 28 };

static const tiny_shape small = {TYPE_Q8_0, 3, 64, 96, 4, 2, N_VOCAB, N_CTX, false};

static nib_engine *opened(const char *which) {
    nib_engine_options o = engine_usual();
    o.backend = which;
    o.n_ctx = N_CTX;
    return engine_must_open(tiny_model("next.gguf", &small), &o, NULL);
}

static int32_t largest(const float *logits) {
    int32_t best = 0;
    for (int32_t i = 1; i < N_VOCAB; i++)
        best = logits[i] > logits[best] ? i : best;
    return best;
}

/* Two sessions compute the same: one step by step, one by whole prefixes. */
static void is_greedy(nib_engine *e) {
    int32_t tokens[N_CTX] = {7, 300, 12, 81};
    nib_session *steps = session_must_open(e), *whole = session_must_open(e);
    assert_int_equal(nib_session_sync(steps, tokens, N_PROMPT - 1, NULL), NIB_OK);
    assert_int_equal(nib_session_sync(whole, tokens, N_PROMPT - 1, NULL), NIB_OK);
    for (size_t n = N_PROMPT; n <= N_CTX; n++) {
        int32_t next = -1;
        assert_int_equal(nib_session_next(steps, tokens[n - 1], &next, NULL), NIB_OK);
        assert_int_equal(nib_session_sync(whole, tokens, n, NULL), NIB_OK);
        assert_int_equal(next, largest(nib_session_logits(whole)));
        assert_int_equal(nib_session_length(steps), n);
        if (n < N_CTX)
            tokens[n] = n % 3 ? next : (int32_t)(n * 17);
    }
    nib_session_close(whole);
    nib_session_close(steps);
}

static void refuses(nib_engine *e) {
    int32_t next = -1, tokens[N_CTX] = {1};
    nib_error err;
    nib_session *s = session_must_open(e);
    assert_int_equal(nib_session_next(s, 1, &next, &err), NIB_E_USAGE);
    assert_int_equal(nib_session_sync(s, tokens, 2, NULL), NIB_OK);
    assert_int_equal(nib_session_next(s, N_VOCAB, &next, &err), NIB_E_USAGE);
    assert_int_equal(nib_session_next(s, -1, &next, &err), NIB_E_USAGE);
    nib_session_cancel(s);
    assert_int_equal(nib_session_next(s, 1, &next, &err), NIB_E_CANCELLED);
    assert_int_equal(nib_session_length(s), 2);
    assert_int_equal(nib_session_next(s, 1, &next, &err), NIB_OK);
    assert_int_equal(nib_session_sync(s, tokens, N_CTX, NULL), NIB_OK);
    assert_int_equal(nib_session_next(s, 1, &next, &err), NIB_E_USAGE);
    assert_int_equal(nib_session_length(s), N_CTX);
    nib_session_close(s);
}

static void on_the_processor(void **state) {
    (void)state;
    nib_engine *e = opened("cpu");
    is_greedy(e);
    refuses(e);
    nib_engine_close(e);
}

static void on_a_gpu(void **state) {
    (void)state;
    cuda_load_with(fake_cuda(MEMORY, 0, FAKE_CUDA_LOST));
    nib_engine *e = opened("cuda");
    is_greedy(e);
    assert_true(fake_cuda_sampled() >= N_CTX - N_PROMPT);
    refuses(e);
    nib_engine_close(e);
    assert_null(fake_cuda_wrong());
    assert_int_equal(fake_cuda_held(), 0);
    cuda_load_with(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(on_the_processor), cmocka_unit_test(on_a_gpu)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
