/* The n-th CUDA call of a whole life fails, for every n, as with a lost device (every later call fails too)
 * or missing memory: open, prompt, a few tokens, close. The error has its status and message, everything is
 * freed, and nothing waits for ever. On the fake GPU (support/fakecuda.h). */
#include "kernels/cuda_load.h"
#include "support/engine.h"
#include "support/fakecuda.h"
#include "support/tinymodel.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MEMORY = 1 << 26, OUT_OF_MEMORY = 2 };

static const tiny_shape small = {TYPE_Q4_0, 2, 64, 96, 4, 2, 300, 96, false};

static uint64_t vram = NIB_AUTO;
static nib_kv_type kv_type = NIB_KV_F16;
static int n_sequence = 1;

static nib_status live(const char *path, long fail_at, int error, nib_error *err) {
    nib_engine_options o = engine_usual();
    nib_result result;
    o.backend = "cuda";
    o.n_ctx = 96;
    o.vram = vram;
    o.kv_type = kv_type;
    o.n_sequence = n_sequence;
    cuda_load_with(fake_cuda(MEMORY, fail_at, error));
    const nib_status status = engine_life(path, &o, NULL, 6, &result, err);
    nib_result_clear(&result);
    if (fake_cuda_wrong())
        fail_msg("%s", fake_cuda_wrong());
    if (fake_cuda_held())
        fail_msg("call %ld failed: %zu blocks and streams are left", fail_at, fake_cuda_held());
    return status;
}

static void sweep(int error, nib_status one, nib_status other) {
    const char *path = tiny_model("faults.gguf", &small);
    nib_error err = {0};
    assert_int_equal(live(path, 0, 0, &err), NIB_OK);
    const long n = fake_cuda_calls();
    assert_true(n > 100 && (fake_cuda_replayed() > 0 || vram != NIB_AUTO));
    for (long i = 1; i <= n; i++) {
        err = (nib_error){0};
        const nib_status status = live(path, i, error, &err);
        /* the last calls prefetch for a pass that does not come, and close the engine: no error can be
         * reported
         */
        if (status == NIB_OK && i > n - 40)
            continue;
        if ((status != one && status != other) || !err.message[0])
            fail_msg("call %ld of %ld: status %d, '%s'", i, n, status, err.message);
    }
}

static void a_lost_device(void **state) {
    (void)state;
    sweep(FAKE_CUDA_LOST, NIB_E_DEVICE, NIB_E_DEVICE);
}

static void no_memory(void **state) {
    (void)state;
    sweep(OUT_OF_MEMORY, NIB_E_NOMEM, NIB_E_DEVICE);
}

/* The smallest cap that works: most blocks are streamed for each pass. */
static void blocks_that_come(void **state) {
    (void)state;
    const char *path = tiny_model("faults.gguf", &small);
    nib_error err = {0};
    uint64_t min_vram = 0;
    for (vram = 1 << 20; live(path, 0, 0, &err) == NIB_OK; vram -= 4096)
        min_vram = vram;
    assert_true(min_vram > 0 && min_vram < 1 << 20);
    vram = min_vram;
    sweep(FAKE_CUDA_LOST, NIB_E_DEVICE, NIB_E_DEVICE);
    vram = NIB_AUTO;
}

static void keys_in_codes(void **state) {
    (void)state;
    kv_type = NIB_KV_4;
    sweep(FAKE_CUDA_LOST, NIB_E_DEVICE, NIB_E_DEVICE);
    kv_type = NIB_KV_F16;
}

/* With the kernels for many sequences. */
static void many_sequences(void **state) {
    (void)state;
    n_sequence = 20;
    sweep(FAKE_CUDA_LOST, NIB_E_DEVICE, NIB_E_DEVICE);
    assert_true(fake_cuda_batch() > 0);
    n_sequence = 1;
}

/* The exit code of the command, and a message. */
static void it_is_said(void **state) {
    (void)state;
    nib_error err = {0};
    assert_int_equal(live(tiny_model("said.gguf", &small), 100, FAKE_CUDA_LOST, &err), NIB_E_DEVICE);
    assert_non_null(strstr(err.message, "the GPU, "));
    assert_non_null(strstr(err.message, "the device is lost"));
    assert_int_equal(nib_status_exit_code(NIB_E_DEVICE), 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lost_device), cmocka_unit_test(no_memory),      cmocka_unit_test(blocks_that_come),
        cmocka_unit_test(keys_in_codes), cmocka_unit_test(many_sequences), cmocka_unit_test(it_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
