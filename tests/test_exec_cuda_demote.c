/* Layers leave the GPU's memory when another program takes its free memory, and return when that program
 * frees it; logits keep their bits. On the fake GPU (support/fakecuda.h), whose free memory the test sets. A
 * call that fails meanwhile is an error of that pass and loses nothing. */
#include "kernels/cuda_load.h"
#include "support/engine.h"
#include "support/fakecuda.h"
#include "support/logits.h"
#include "support/sanitized.h"
#include "support/tinymodel.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

/* A 256th of the device is 32 KiB, as much as a layer has. */
enum { N_VOCAB = 512, N_CTX = 192, MEMORY = 8 << 20, N_LAYER = 12, N_PROMPT = 90, N_STEP = 24 };

static const tiny_shape small = {TYPE_Q8_0, N_LAYER, 64, 96, 4, 2, N_VOCAB, N_CTX, false};

typedef struct subject {
    nib_engine *e;
    nib_session *s;
    int32_t tokens[N_CTX];
    int n;
} subject;

/* vram NIB_AUTO: all layers are resident; else a cap, with which the processor computes none. */
static void open_under(subject *x, const char *path, uint64_t vram) {
    nib_engine_options o = engine_usual();
    o.vram = vram;
    o.n_sequence = vram == NIB_AUTO ? 0 : 1000;
    o.backend = "cuda";
    o.kv_type = NIB_KV_F16;
    o.n_ctx = N_CTX;
    cuda_load_with(fake_cuda(MEMORY, 0, FAKE_CUDA_LOST));
    x->e = engine_must_open(path, &o, NULL);
    x->s = session_must_open(x->e);
    x->n = 0;
    logits_tokens(x->tokens, N_CTX, N_VOCAB, 3);
}

static void open_on(subject *x, const char *path) {
    open_under(x, path, NIB_AUTO);
}

/* Number of layers of which a part is resident. */
static int n_in_part(const subject *x) {
    const nib_slice *slices;
    const size_t n = nib_engine_placement(x->e, &slices);
    int count = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++)
            count += slices[i].layer >= 0 && slices[i].layer == slices[j].layer &&
                     slices[i].tier == NIB_TIER_VRAM && slices[j].tier != NIB_TIER_VRAM &&
                     strcmp(slices[j].format, "f32") != 0;
    return count;
}

static void close_it(subject *x) {
    nib_memory used;
    nib_engine_memory(x->e, &used);
    assert_true(used.tier[NIB_TIER_VRAM].peak <= used.tier[NIB_TIER_VRAM].planned);
    nib_session_close(x->s);
    nib_engine_close(x->e);
    if (fake_cuda_wrong())
        fail_msg("%s", fake_cuda_wrong());
    assert_int_equal(fake_cuda_held(), 0);
}

static nib_status go_on(subject *x, int n, nib_error *err) {
    x->n += n;
    return nib_session_sync(x->s, x->tokens, (size_t)x->n, err);
}

static void must_go_on(subject *x, int n, float *logits) {
    nib_error err = {0};
    if (go_on(x, n, &err) != NIB_OK)
        fail_msg("to %d: %s", x->n, err.message);
    if (logits)
        memcpy(logits, nib_session_logits(x->s), N_VOCAB * sizeof *logits);
}

/* The back end checks the free memory ten times a second. */
static void wait_for_a_look(void) {
    const struct timespec t = {0, 110000000};
    nanosleep(&t, NULL);
}

static size_t left_now(void) {
    const cuda_kernels *table;
    size_t left, all;
    assert_int_equal(cuda_load(&table, NULL), NIB_OK);
    assert_int_equal(table->memory_now(&left, &all), 0);
    return left;
}

/* Another program leaves this much memory free. */
static void squeeze(size_t left) {
    fake_cuda_others(0);
    fake_cuda_others(left_now() - left);
}

/* All layers are resident, or the same share of each. */
static void there_and_back(void **state) {
    const bool part = *(const bool *)*state;
    const int n_step = part ? 12 : N_STEP; /* each waits */
    uint64_t vram = NIB_AUTO;
    static float should[N_STEP][N_VOCAB], is[N_VOCAB];
    const char *path = tiny_model("demote.gguf", &small);
    subject x;
    if (part) {
        nib_memory whole;
        open_under(&x, path, UINT64_C(1) << 40);
        nib_engine_memory(x.e, &whole);
        close_it(&x);
        vram = whole.tier[NIB_TIER_VRAM].planned - whole.tier[NIB_TIER_VRAM].planned / 32;
    }
    open_under(&x, path, vram);
    assert_true((n_in_part(&x) > 2) == part);
    must_go_on(&x, N_PROMPT, NULL);
    for (int i = 0; i < n_step; i++)
        must_go_on(&x, i == 20 ? 30 : 1, should[i]);
    close_it(&x);

    open_under(&x, path, vram);
    must_go_on(&x, N_PROMPT, NULL);
    const size_t usual = left_now();
    for (int i = 0; i < n_step; i++) {
        if (i == 2 || i == 4 || i == 6)
            squeeze(i == 6 ? 0 : 20 << 10);
        if (i == 9)
            fake_cuda_others(0);
        wait_for_a_look();
        must_go_on(&x, i == 20 ? 30 : 1, is);
        if (memcmp(is, should[i], sizeof is) != 0)
            fail_msg("step %d: other logits", i);
        if (i == 2 || i == 4)
            assert_true(left_now() >= MEMORY / 128);
    }
    for (int i = 0; i < N_LAYER && left_now() != usual; i++) {
        wait_for_a_look();
        must_go_on(&x, 1, NULL);
    }
    assert_int_equal(left_now(), usual);
    close_it(&x);
}

/* The number of calls of a pass in which layers leave; fail_at: the call that fails, 0: none. */
static long calls_of_demotion(const char *path, long fail_at, nib_status *status) {
    subject x;
    nib_error err = {0};
    open_on(&x, path);
    must_go_on(&x, N_PROMPT, NULL);
    must_go_on(&x, 1, NULL);
    squeeze(20 << 10);
    wait_for_a_look();
    const long before = fake_cuda_calls();
    fake_cuda_fail_in(fail_at);
    *status = go_on(&x, 1, &err);
    const long calls = fake_cuda_calls() - before;
    close_it(&x);
    return calls;
}

static void any_call_fails(void **state) {
    (void)state;
    const char *path = tiny_model("demote.gguf", &small);
    nib_status status;
    const long n = calls_of_demotion(path, 0, &status);
    int n_failed = 0;
    assert_int_equal(status, NIB_OK);
    for (long at = 1; at <= n; at += n / (SANITIZED ? 8 : 24) + 1) {
        calls_of_demotion(path, at, &status);
        n_failed += status == NIB_E_DEVICE;
    }
    assert_true(n_failed > (SANITIZED ? 2 : 8));
}

int main(void) {
    static bool whole = false, part = true;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(there_and_back, &whole),
        cmocka_unit_test_prestate(there_and_back, &part),
        cmocka_unit_test(any_call_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
