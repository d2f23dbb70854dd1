/* Mixtures of experts: the check back end, any number of threads, rows together and memory give the same
 * bits, with float and packed experts; the router of a row is chosen as its parameters say. */
#include "base/mem.h"
#include "kernels/route.h"
#include "nib_tools.h"
#include "support/engine.h"
#include "support/expected.h"
#include "support/logits.h"
#include "support/process.h"
#include "support/slow.h"
#include "support/tempdir.h"
#include "support/tinymodel.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { N_TOKEN = 75, N_VOCAB = 512, N_CTX = 128 };

/* 36 rows of an expert are no whole number of panels. */
static const tiny_shape packed = {TYPE_Q4_1, 3, 96, 160, 6, 2, N_VOCAB, N_CTX, true, 7, 3};
static const tiny_shape floats = {TYPE_F16, 2, 64, 36, 4, 2, N_VOCAB, N_CTX, true, 5, 2};
static const tiny_shape large = {TYPE_Q8_0, 4, 256, 256, 8, 2, 8192, N_CTX, true, 16, 3};

static float *forward(const char *path, nib_engine_options o) {
    nib_engine *e = NULL;
    nib_error err = {0};
    int32_t tokens[N_TOKEN];
    if (nib_engine_open(path, &o, &e, &err))
        fail_msg("%s", err.message);
    logits_tokens(tokens, N_TOKEN, nib_engine_info(e)->n_vocab, 1);
    const logits_rows r = logits_of(e, tokens, N_TOKEN);
    nib_engine_close(e);
    return r.data;
}

static nib_engine_options options(int n_thread, int64_t n_batch, int bits) {
    nib_engine_options o;
    nib_engine_options_init(&o);
    o.n_thread = n_thread;
    o.n_batch = n_batch;
    o.activation = bits;
    return o;
}

static void same_bits_for_any_cut(void **state) {
    (void)state;
    const tiny_shape *shapes[] = {&packed, &floats};
    static const int bits[] = {8, 4, 16};
    for (int m = 0; m < 4; m++) {
        const char *path = tiny_model("experts.gguf", shapes[m == 3]);
        nib_engine_options o = options(1, 512, bits[m % 3]);
        float *want = forward(path, o);
        for (int threads = 1; threads <= 3; threads += slow_step(2))
            for (int b = 0; b < 4; b++) {
                static const int64_t batches[] = {512, 7, 1, 40};
                o = options(threads, batches[b], bits[m % 3]);
                o.no_fuse = b == 3;
                float *got = forward(path, o);
                assert_memory_equal(got, want, (size_t)N_TOKEN * N_VOCAB * sizeof(float));
                free(got);
            }
        free(want);
    }
}

static void as_the_check_back_end(void **state) {
    (void)state;
    const tiny_shape *shapes[] = {&packed, &floats};
    setenv("NIBBLE_ISA", "ref", 1);
    for (int m = 0; m < 6; m += slow_step(3)) { /* each shape */
        static const int bits[] = {8, 4, 16};
        const char *path = tiny_model("experts.gguf", shapes[m % 2]);
        nib_engine_options o = options(2, 32, bits[m / 2]);
        float *cpu = forward(path, o);
        o.backend = "check";
        float *check = forward(path, o);
        assert_memory_equal(cpu, check, (size_t)N_TOKEN * N_VOCAB * sizeof(float));
        free(cpu);
        free(check);
    }
}

static void streamed_is_resident(void **state) {
    (void)state;
    const char *path = tiny_model("large.gguf", &large);
    float *want = forward(path, options(2, 0, 0));
    process_counted();
    const uint64_t headroom = tiny_model_half_bytes(path);
    for (int64_t batch = 9; batch < 600; batch += 503) {
        nib_engine_options o = options(2, batch, 0);
        o.ram = process_bytes() + headroom;
        o.stream = true;
        float *got = forward(path, o);
        assert_memory_equal(got, want, (size_t)N_TOKEN * 8192 * sizeof(float));
        free(got);
    }
    free(want);
    process_measured();
}

/* ---- experts of a packed checkpoint ---- */

static double error_as(const char *type, const expected *x) {
    nib_engine_options o = options(2, 0, 0);
    nib_engine *e = NULL;
    nib_error err = {0};
    nib_quantize_report r;
    const char *path = temp_path("packed.gguf");
    const nib_quantize_options q = {.out = path, .type = type, .imatrix = "none"};
    unlink(path);
    if (nib_quantize("tests/data/packed/gpt_oss_mxfp4", &o, &q, &r, &err) ||
        nib_engine_open(path, &o, &e, &err))
        fail_msg("%s", err.message);
    nib_session *s = session_must_open(e);
    const logits_rows got = logits_of_session(s, x->input_ids, (size_t)x->n_input, x->n_vocab);
    const double error = relative_rms(got.data, x->logits, x->n_input * x->n_vocab);
    nib_session_close(s);
    nib_engine_close(e);
    free(got.data);
    return error;
}

/* Frees want. */
static void same_when_streamed(const char *folder, float *want) {
    nib_engine_options o = options(2, 0, 0);
    for (int i = 0; i < 2; i++) {
        float *got = forward(folder, o);
        assert_memory_equal(got, want, N_TOKEN * 320 * sizeof *got);
        free(got);
        o.ram = process_bytes() + tiny_model_half_bytes(folder);
        o.stream = true;
    }
    free(want);
}

/* The folder itself has the bits of the file made from it, resident and streamed. So have folders whose
 * experts are listed for each token, and whose matrices of groups come in pieces. */
static void from_an_mxfp4_folder(void **state) {
    (void)state;
    const char *folder = "tests/data/packed/gpt_oss_mxfp4", *path = temp_path("packed.gguf");
    nib_engine_options o = options(2, 0, 0);
    nib_error err = {0};
    nib_quantize_report r;
    const nib_quantize_options q = {.out = path, .imatrix = "none"};
    unlink(path);
    if (nib_quantize(folder, &o, &q, &r, &err))
        fail_msg("%s", err.message);
    same_when_streamed(folder, forward(path, o));
    same_when_streamed("tests/data/arch/deepseek_v3_fp8", forward("tests/data/arch/deepseek_v3_fp8", o));
    same_when_streamed("tests/data/arch/deepseek_v4", forward("tests/data/arch/deepseek_v4", o));
}

/* The values are exact in bf16; as MXFP4 the rows are multiplied as 8-bit integers. */
static void from_mxfp4(void **state) {
    (void)state;
    expected x;
    expected_load("tests/data/packed/gpt_oss_mxfp4/expected.safetensors", &x);
    assert_true(error_as("bf16", &x) < 1e-3);
    assert_true(error_as(NULL, &x) < 0.08);
    expected_free(&x);
}

/* ---- routing ---- */

static op router(score_kind score, int64_t n, int64_t n_used) {
    op o = {.kind = OP_ROUTE, .k = n, .n = 2 * n_used};
    o.u.route.score = score;
    o.u.route.n_used = n_used;
    o.u.route.scale = 1;
    return o;
}

static void chooses(const op *o, const float *logits, const float *bias, const float *want) {
    float out[8];
    route_row(o, logits, bias, NULL, NULL, out);
    for (int i = 0; i < o->n; i++)
        if (!(out[i] >= want[i] - 1e-5f && out[i] <= want[i] + 1e-5f))
            fail_msg("entry %d: expected %f, found %f", i, (double)want[i], (double)out[i]);
}

static void routes(void **state) {
    (void)state;
    static const float logits[] = {0.5f, 2, -1, 1}, bias[] = {0, -2, 2, 0};
    op o = router(SCORE_SOFTMAX, 4, 2);
    chooses(&o, logits, NULL, (float[]){1, 3, 0.6094602f, 0.2242078f}); /* of all four */
    o.u.route.normalise = true;
    o.u.route.scale = 2;
    chooses(&o, logits, NULL, (float[]){1, 3, 2 * 0.7310586f, 2 * 0.2689414f});
    o = router(SCORE_SOFTMAX_LATE, 4, 2);
    chooses(&o, logits, NULL, (float[]){1, 3, 0.7310586f, 0.2689414f});
    o = router(SCORE_SIGMOID, 4, 2);
    chooses(&o, logits, bias, (float[]){2, 3, 0.2689414f, 0.7310586f}); /* the weights have no bias */
    o.u.route.n_group = 2;
    o.u.route.group_used = 1;
    o.u.route.group_best = 2;
    chooses(&o, logits, NULL, (float[]){0, 1, 0.6224593f, 0.8807971f});
    o.u.route.group_best = 1;
    chooses(&o, (float[]){3, -9, 1, 2}, NULL, (float[]){0, 1, 0.9525741f, 0.0001234f});
    o = router(SCORE_SQRT_SOFTPLUS, 4, 1);
    chooses(&o, logits, NULL, (float[]){1, 1.4583943f});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits_for_any_cut), cmocka_unit_test(as_the_check_back_end),
        cmocka_unit_test(streamed_is_resident),  cmocka_unit_test(from_mxfp4),
        cmocka_unit_test(from_an_mxfp4_folder),  cmocka_unit_test(routes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
