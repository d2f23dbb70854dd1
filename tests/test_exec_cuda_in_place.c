/* Layers that do not fit on the GPU: the processor computes them for generated rows, the GPU for prompts; or
 * their keys and values are in host memory and come for each pass.  Copies are late. On the fake GPU
 * (support/fakecuda.h), whose bits are the processor's for generated rows and others for prompts, so logits
 * do not depend on the device of a layer. An error (in the residual stream, in copies of keys and values, in
 * caps, in the device of a row) changes them. */
#include "base/mem.h"
#include "engine/engine.h"
#include "kernels/cuda_load.h"
#include "profile/hardware.h"
#include "support/engine.h"
#include "support/fakecuda.h"
#include "support/logits.h"
#include "support/process.h"
#include "support/sanitized.h"
#include "support/slow.h"
#include "support/tempdir.h"
#include "support/tinymodel.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_VOCAB = 512, N_CTX = 320, MEMORY = 1 << 28, N_LAYER = 5, N_SESSION = 3, NO_MEMORY = 2 };

static const tiny_shape small = {TYPE_Q8_0, N_LAYER, 64, 96, 4, 2, N_VOCAB, N_CTX, true};

static nib_kv_type kv_type = NIB_KV_F16;
static int32_t n_sequence = N_SESSION;
static int32_t n_vocab = N_VOCAB; /* of the model */
static uint32_t late_seed = 1;

static nib_engine_options under(uint64_t vram) {
    nib_engine_options o = engine_usual();
    o.backend = "cuda";
    o.kv_type = kv_type;
    o.n_ctx = N_CTX;
    o.n_session = N_SESSION;
    o.n_sequence = n_sequence;
    o.n_batch = 110;
    o.vram = vram;
    return o;
}

static nib_engine *must_open(const char *path, uint64_t vram) {
    const nib_engine_options o = under(vram);
    cuda_load_with(fake_cuda(MEMORY, 0, NO_MEMORY));
    fake_cuda_prompts_differ(true);
    fake_cuda_late(late_seed);
    return engine_must_open(path, &o, NULL);
}

static void must_close(nib_engine *e) {
    nib_memory used;
    nib_engine_memory(e, &used);
    assert_true(used.tier[NIB_TIER_VRAM].peak <= used.tier[NIB_TIER_VRAM].planned);
    nib_engine_close(e);
    if (fake_cuda_wrong())
        fail_msg("%s", fake_cuda_wrong());
    assert_int_equal(fake_cuda_held(), 0);
}

/* The smallest cap that works, and the bytes of the whole model. */
static uint64_t min_vram(const char *path, uint64_t *all) {
    nib_engine_options o = under(NIB_AUTO);
    nib_engine *e = must_open(path, NIB_AUTO);
    nib_memory used;
    nib_error err;
    nib_engine_memory(e, &used);
    *all = used.tier[NIB_TIER_VRAM].planned;
    must_close(e);
    for (o.vram = *all;; o.vram -= *all / 60) {
        cuda_load_with(fake_cuda(MEMORY, 0, 0));
        if (nib_engine_open(path, &o, &e, &err))
            return o.vram + *all / 60;
        nib_engine_close(e);
    }
}

/* How far a sequence goes: prompts of many rows and of few, single tokens, back to a prefix of it. */
static const int reach[] = {100, 101, 102, 103, 170, 171, 180, 300, 301, 80, 81, 150, 151};
enum { N_REACH = sizeof reach / sizeof *reach };

/* What the fake GPU counted. */
typedef struct counted {
    long moved, replayed; /* pages that changed their order, launches of graphs */
    size_t stored;        /* bytes of keys and values that went back to host memory in their own lane */
} counted;

static counted walk(const char *path, uint64_t vram, float *logits) {
    int32_t tokens[N_CTX];
    nib_error err = {0};
    nib_engine *e = must_open(path, vram);
    nib_session *s = session_must_open(e);
    for (int i = 0; i < N_REACH; i++, logits += N_VOCAB) {
        logits_tokens(tokens, N_CTX, n_vocab, i < 9 ? 3 : 4); /* another text after the common prefix */
        if (i >= 9)
            logits_tokens(tokens, 70, n_vocab, 3);
        if (nib_session_sync(s, tokens, (size_t)reach[i], &err))
            fail_msg("to %d: %s", reach[i], err.message);
        memcpy(logits, nib_session_logits(s), (size_t)n_vocab * sizeof *logits);
    }
    nib_session_close(s);
    const counted c = {fake_cuda_moved(), fake_cuda_replayed(), fake_cuda_stored()};
    must_close(e);
    return c;
}

static void a_sequence(void **state) {
    (void)state;
    static float whole[N_REACH][N_VOCAB], part[N_REACH][N_VOCAB];
    for (int tied = SANITIZED ? 1 : 0; tied < 2; tied++) {
        tiny_shape shape = small;
        shape.tied = tied;
        const char *path = tiny_model("in-place.gguf", &shape);
        uint64_t all;
        const uint64_t min = min_vram(path, &all);
        assert_true(min < all);
        counted c = walk(path, NIB_AUTO, whole[0]);
        assert_true(c.moved == 0 && c.stored == 0);
        for (int i = 0; i < 4; i += slow_is_thinned() ? 3 : 1) {
            late_seed = (uint32_t)i + 1;
            c = walk(path, min + (all - min) / 4 * (uint64_t)i, part[0]);
            assert_true(i == 0 ? c.stored > 0 : i < 2 || (c.moved > 0 && (i == 2 || c.replayed > 0)));
            for (int r = 0; r < N_REACH; r++)
                if (memcmp(whole[r], part[r], sizeof whole[r]))
                    fail_msg("logits behind %d tokens, under cap %d", reach[r], i);
        }
    }
}

/* Each call of a step fails once: where the GPU can go on, the step can be repeated, with its bits. */
static void a_pass_fails(void **state) {
    (void)state;
    static const int to[] = {101, 150};
    const char *path = tiny_model("in-place-fails.gguf", &small);
    uint64_t all;
    const uint64_t min = min_vram(path, &all);
    int32_t tokens[N_CTX];
    nib_error err = {0};
    logits_tokens(tokens, N_CTX, n_vocab, 3);
    for (int i = 0; i < 2; i++) {
        static float whole[N_VOCAB];
        int n_repeated = 0;
        long n_call = 0;
        for (long n = 0; n <= n_call; n++) {
            nib_engine *e = must_open(path, min + (all - min) / 4);
            nib_session *s = session_must_open(e);
            assert_int_equal(nib_session_sync(s, tokens, 100, &err), NIB_OK);
            fake_cuda_fail_once(n);
            const long before = fake_cuda_calls();
            const nib_status status = nib_session_sync(s, tokens, (size_t)to[i], &err);
            n_call = n == 0 ? fake_cuda_calls() - before : n_call;
            if (n == 0)
                memcpy(whole, nib_session_logits(s), sizeof whole);
            else if (status && nib_session_sync(s, tokens, (size_t)to[i], &err) == NIB_OK) {
                assert_memory_equal(whole, nib_session_logits(s), sizeof whole);
                n_repeated++;
            }
            nib_session_close(s);
            must_close(e);
        }
        assert_true(n_repeated > 0);
    }
}

/* Keys and values in codes and their newest positions in halves: no layer is in place, some come. */
static void codes_come(void **state) {
    (void)state;
    static float whole[N_REACH][N_VOCAB], part[N_REACH][N_VOCAB];
    const char *path = tiny_model("in-place-codes.gguf", &small);
    uint64_t all;
    for (kv_type = NIB_KV_8; kv_type <= NIB_KV_4; kv_type++) {
        const uint64_t min = min_vram(path, &all);
        assert_true(min < all);
        walk(path, NIB_AUTO, whole[0]);
        const counted c = walk(path, min, part[0]);
        assert_true(c.moved == 0 && c.stored > 0);
        assert_memory_equal(whole, part, sizeof whole);
    }
    kv_type = NIB_KV_F16;
}

/* Rows of low rank, which are keys and values at once, in halves and in codes. They come to the GPU, or the
 * processor attends to those of generated rows. */
static void latents_come(void **state) {
    (void)state;
    static float whole[N_REACH][N_VOCAB], part[N_REACH][N_VOCAB];
    static const nib_kv_type types[] = {NIB_KV_F16, NIB_KV_8, NIB_KV_4};
    const char *path = "tests/data/arch/deepseek_v3";
    uint64_t all;
    n_vocab = 320;
    for (int t = 0; t < 3; t++) {
        kv_type = types[t];
        const uint64_t min = min_vram(path, &all);
        assert_true(min < all);
        walk(path, NIB_AUTO, whole[0]);
        for (int i = 0; i < 3; i++) {
            late_seed = (uint32_t)i + 1;
            const counted c = walk(path, min + (all - min) / 4 * (uint64_t)i, part[0]);
            assert_true(i > 0 || c.stored > 0 || c.moved > 0);
            assert_memory_equal(whole, part, sizeof whole);
        }
    }
    kv_type = NIB_KV_F16;
    n_vocab = N_VOCAB;
}

/* Requests with a common prefix: their pages are shared, and copied when one of them continues. */
enum { N_REQUEST = 6, N_ANSWER = 8 };

/* Returns how many rows of prompts were computed. */
static int64_t answer_all(nib_batch *b, int32_t (*out)[N_ANSWER]) {
    nib_error err = {0};
    nib_result r = {0};
    int64_t id, n_computed = 0;
    for (int i = 0; i < N_REQUEST; i++) {
        int32_t tokens[N_CTX];
        nib_generate_options g;
        nib_generate_options_init(&g);
        logits_tokens(tokens, 70 + 25 * i, n_vocab, i);
        logits_tokens(tokens, 40 + i, n_vocab, 9);
        g.prompt = tokens;
        g.n_prompt = (size_t)(70 + 25 * i);
        g.n_predict = N_ANSWER;
        g.ignore_eos = true;
        g.sampling.temperature = 0;
        assert_int_equal(nib_batch_add(b, &g, &id, &err), NIB_OK);
    }
    for (int32_t left = 1; left > 0;)
        if (nib_batch_step(b, &left, &err))
            fail_msg("%s", err.message);
    while (nib_batch_take(b, &id, &r, &err)) {
        memcpy(out[(id - 1) % N_REQUEST], r.tokens, sizeof out[0]);
        n_computed += r.prompt_n;
        nib_result_clear(&r);
    }
    return n_computed;
}

static void answers(const char *path, uint64_t vram, int32_t (*out)[N_ANSWER]) {
    nib_error err = {0};
    nib_batch *b = NULL;
    nib_engine *e = must_open(path, vram);
    if (nib_batch_open(e, &(nib_batch_options){.n_sequence = N_SESSION}, &b, &err))
        fail_msg("%s", err.message);
    answer_all(b, out);
    nib_batch_close(b);
    nib_engine_close(e);
    assert_int_equal(fake_cuda_held(), 0);
}

static void a_batch(void **state) {
    (void)state;
    static int32_t whole[N_REQUEST][N_ANSWER], part[N_REQUEST][N_ANSWER];
    const char *path = tiny_model("in-place-batch.gguf", &small);
    uint64_t all;
    static const nib_kv_type types[] = {NIB_KV_F16, NIB_KV_4};
    for (int t = 0; t < 2; t++) {
        kv_type = types[t];
        const uint64_t min = min_vram(path, &all);
        answers(path, NIB_AUTO, whole);
        for (int i = 0; i < (t ? 2 : 4); i += slow_is_thinned() ? 2 : 1) {
            memset(part, 0, sizeof part);
            late_seed = (uint32_t)i + 3;
            answers(path, min + (all - min) / 4 * (uint64_t)i, part);
            assert_memory_equal(whole, part, sizeof whole);
        }
    }
    kv_type = NIB_KV_F16;
}

/* The GPU has memory for one answer, so pages leave it. They come back from RAM, and in another engine from
 * disk. If layers are in place, a page is in both memories. */
static void pages_leave_the_gpu(void **state) {
    (void)state;
    static int32_t whole[N_REQUEST][N_ANSWER], got[N_REQUEST][N_ANSWER];
    const char *path = tiny_model("in-place-pages.gguf", &small);
    char folder[256], remove[300];
    snprintf(folder, sizeof folder, "%s", temp_path("in-place-pages"));
    snprintf(remove, sizeof remove, "rm -rf %s", folder);
    const nib_batch_options o = {
        .n_sequence = N_SESSION, .n_position = 256, .prefix_cache = folder, .cache_ram = UINT64_C(4) << 20};
    nib_batch_counts c;
    uint64_t all;
    const uint64_t min = min_vram(path, &all);
    assert_int_equal(system(remove), 0);
    answers(path, NIB_AUTO, whole);
    for (int i = 0; i < 4; i++) {
        nib_error err = {0};
        nib_engine *e = must_open(path, i < 2 ? min : NIB_AUTO);
        for (int turn = 0; turn < 2; turn++) {
            nib_batch *b = NULL;
            if (nib_batch_open(e, &o, &b, &err))
                fail_msg("%s", err.message);
            const int64_t n_computed = answer_all(b, got);
            nib_batch_count(b, &c);
            nib_batch_close(b); /* after all pages are on disk */
            assert_memory_equal(whole, got, sizeof whole);
            assert_true(i % 2 == 0 && turn == 0 ? n_computed > 500 : n_computed < 50);
            assert_true(i % 2 == 1 || turn == 0 || c.ram_restored > 10);
            assert_true(i % 2 == 0 || turn == 1 || c.disk_read > 10);
        }
        nib_engine_close(e);
        assert_int_equal(fake_cuda_held(), 0);
    }
    assert_int_equal(system(remove), 0);
}

/* If more sequences may decode together than the processor can compute before the link has copied all layers,
 * no layer is in place: all are streamed, for one sequence too. */
static void many_sequences(void **state) {
    (void)state;
    const char *path = tiny_model("in-place-many.gguf", &small);
    static float whole[N_REACH][N_VOCAB], part[N_REACH][N_VOCAB];
    uint64_t all;
    n_sequence = 65; /* with the kernels for many sequences, resident or streamed */
    walk(path, NIB_AUTO, whole[0]);
    const uint64_t min = min_vram(path, &all);
    assert_true(min < all);
    assert_int_equal(walk(path, min, part[0]).moved, 0);
    assert_memory_equal(whole, part, sizeof whole);
    n_sequence = N_SESSION;
}

/* Under a cap on RAM that the model does not fit: layers that stay on the GPU are read from disk once. */
static void from_disk_once(void **state) {
    (void)state;
    tiny_shape shape = small;
    shape.d_model = 256, shape.d_ff = 768;
    const char *path = tiny_model("in-place-disk.gguf", &shape);
    nib_engine_options o = under(NIB_AUTO);
    nib_traffic first, last;
    nib_error err = {0};
    int32_t tokens[N_CTX];
    if (SANITIZED) /* whose own memory does not fit the cap */
        return;
    logits_tokens(tokens, N_CTX, N_VOCAB, 3);
    o.n_ctx = 64;
    o.n_session = 1;
    cuda_load_with(fake_cuda(MEMORY, 0, 0));
    const uint64_t half = tiny_model_half_bytes_with(path, &o);
    o.ram = process_bytes() + half;
    o.stream = true;
    nib_engine *e = engine_must_open(path, &o, NULL);
    nib_session *s = session_must_open(e);
    for (size_t n = 5; n <= 30; n++) {
        if (nib_session_sync(s, tokens, n, &err))
            fail_msg("%s", err.message);
        nib_engine_traffic(e, n == 5 ? &first : &last);
    }
    assert_true(first.streamed > 0 && last.streamed - first.streamed < first.streamed);
    nib_session_close(s);
    must_close(e);
}

static uint64_t planned(const nib_engine *e) {
    nib_memory used;
    nib_engine_memory(e, &used);
    return used.tier[NIB_TIER_VRAM].planned;
}

/* The driver has one context for a process: the first engine is charged with it, and after it closes the next
 * one.
 */
static void engines_share_the_driver(void **state) {
    (void)state;
    enum { DRIVER = 5 << 20 };
    const nib_engine_options o = under(NIB_AUTO);
    const char *path = tiny_model("in-place-two.gguf", &small);
    nib_engine *e[3];
    cuda_load_with(fake_cuda(MEMORY, 0, 0));
    fake_cuda_driver(DRIVER);
    e[0] = engine_must_open(path, &o, NULL);
    e[1] = engine_must_open(path, &o, NULL);
    assert_true(planned(e[0]) >= planned(e[1]) + DRIVER);
    nib_engine_close(e[0]);
    e[2] = engine_must_open(path, &o, NULL);
    assert_true(planned(e[2]) >= planned(e[1]) + DRIVER);
    nib_engine_close(e[1]);
    e[1] = engine_must_open(path, &o, NULL);
    assert_true(planned(e[2]) >= planned(e[1]) + DRIVER);
    nib_engine_close(e[1]);
    must_close(e[2]);
}

/* The n-th call fails, also while pages are copied. */
static void lose_device(const char *path, uint64_t vram) {
    int32_t tokens[N_CTX];
    long n = 1;
    logits_tokens(tokens, N_CTX, n_vocab, 3);
    for (long at = 0; at <= n; at += 1 + at / (SANITIZED ? 6 : 40)) {
        const nib_engine_options o = under(vram);
        nib_engine *e = NULL;
        nib_session *s = NULL;
        nib_error err = {0};
        cuda_load_with(fake_cuda(MEMORY, at, FAKE_CUDA_LOST));
        nib_status status = nib_engine_open(path, &o, &e, &err);
        if (status == NIB_OK)
            status = nib_session_open(e, NULL, &s, &err);
        for (int i = 0; i < 3 && status == NIB_OK; i++)
            status = nib_session_sync(s, tokens, (size_t)(i == 2 ? 170 : 100 + i), &err);
        if (at == 0)
            assert_true(status == NIB_OK && (fake_cuda_moved() > 0 || fake_cuda_stored() > 0));
        nib_session_close(s);
        nib_engine_close(e);
        n = at == 0 ? fake_cuda_calls() : n;
        if (fake_cuda_held() || (status != NIB_OK && status != NIB_E_DEVICE))
            fail_msg("call %ld of %ld: status %d, %zu left: %s", at, n, status, fake_cuda_held(),
                     err.message);
    }
}

static void a_lost_device(void **state) {
    (void)state;
    tiny_shape shape = small;
    shape.n_layer = 3;
    const char *path = tiny_model("in-place-lost.gguf", &shape);
    uint64_t all;
    const uint64_t min = min_vram(path, &all);
    lose_device(path, min);
    lose_device(path, min + (all - min) / 2);
}

/* A machine whose link is so slow that the processor attends to all keys and values in host memory; else the
 * usual one. */
static void slow_link(bool slow) {
    const rate some = {1e10, 1e10, 1e10};
    const hardware h = {.memory = {{1, some}},
                        .n_memory = 1,
                        .kernels = {{8, false, some, some, some, some}},
                        .n_kernel = 1,
                        .n_thread = 1,
                        .pack = some,
                        .link = slow ? 1e6 : 1e10,
                        .barrier_s = 1e-6,
                        .seconds = 1};
    nib_error err = {0};
    machine here;
    machine_detect(&here);
    setenv("XDG_CACHE_HOME", temp_path("in-place-cache"), 1);
    char *path = hardware_path(&here);
    hardware back;
    if (hardware_save(path, &here, &h, &err) || hardware_load(path, &here, &back, &err))
        fail_msg("%s", err.message);
    mem_free(path);
}

/* Blocks are cut at attention, in the decoding of one sequence and of several. */
static void check_attends(const char *path) {
    static float whole[N_REACH][N_VOCAB], part[N_REACH][N_VOCAB];
    uint64_t all;
    walk(path, NIB_AUTO, whole[0]);
    const uint64_t min = min_vram(path, &all);
    for (int i = 0; i < 3; i += slow_is_thinned() ? 2 : 1) {
        const uint64_t vram = min + (all - min) / 4 * (uint64_t)i;
        nib_engine *e = must_open(path, vram);
        const homes_split *split = engine_parts_of(e).step->backend->split;
        assert_true(split->n_attended > 0 && split->n_attended == split->n_staged && !split->n_in_place);
        must_close(e);
        late_seed = (uint32_t)i + 5;
        assert_true(walk(path, vram, part[0]).moved > 0); /* for prompts */
        assert_memory_equal(whole, part, sizeof whole);
    }
    static int32_t answered[N_REQUEST][N_ANSWER], got[N_REQUEST][N_ANSWER];
    answers(path, NIB_AUTO, answered);
    answers(path, min, got);
    assert_memory_equal(answered, got, sizeof got);
    lose_device(path, min);
}

static void attends_on_the_processor(void **state) {
    static const nib_kv_type types[] = {NIB_KV_F16, NIB_KV_8, NIB_KV_4};
    const char *path = tiny_model("in-place-attends.gguf", &small);
    (void)state;
    n_sequence = 65; /* no layer is in place */
    slow_link(true);
    for (int i = 0; i < 6; i++) {
        kv_type = types[i % 3];
        n_vocab = i < 3 ? N_VOCAB : 320;
        check_attends(i < 3 ? path : "tests/data/arch/deepseek_v3");
    }
    n_vocab = N_VOCAB;
    kv_type = NIB_KV_F16;
    slow_link(false);
    n_sequence = N_SESSION;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sequence),
        cmocka_unit_test(a_pass_fails),
        cmocka_unit_test(codes_come),
        cmocka_unit_test(latents_come),
        cmocka_unit_test(a_batch),
        cmocka_unit_test(pages_leave_the_gpu),
        cmocka_unit_test(many_sequences),
        cmocka_unit_test(from_disk_once),
        cmocka_unit_test(engines_share_the_driver),
        cmocka_unit_test(a_lost_device),
        cmocka_unit_test(attends_on_the_processor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
