/* Layers whose experts the processor computes for generated rows, all or those that are not on the GPU, on
 * the fake GPU (support/fakecuda.h). Its kernels of generated rows are the processor's, and the outputs of
 * experts are added in the order of the router's choice wherever they were computed, so all logits have the
 * bits of a model that is resident as a whole. Copies are late. */
#include "base/mem.h"
#include "base/num.h"
#include "engine/engine.h"
#include "kernels/cuda_load.h"
#include "nib_tools.h"
#include "profile/hardware.h"
#include "support/archs.h"
#include "support/engine.h"
#include "support/fakecuda.h"
#include "support/logits.h"
#include "support/sanitized.h"
#include "support/tempdir.h"
#include "support/tinymodel.h"
#include "weights/device_store_parts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MEMORY = 1 << 28, N_CTX = 128, NO_MEMORY = 2 };

static nib_kv_type kv_type = NIB_KV_F16;
static uint64_t ram = NIB_AUTO;
static const char *plan_text;   /* of a plan that is followed; NULL: none */
static nib_cancel_fn cancel_fn; /* NULL: nobody cancels */
static int32_t n_sequence = 1;
static int n_popular; /* lines of the log about the file of popular experts */

/* So that RAM has what the engine charges. */
static ledger_process constant(void) {
    return (ledger_process){1 << 20, 1 << 20};
}

/* A machine on which streaming a layer, or computing it as a whole on the processor, takes long. */
static void slow_machine(void) {
    const rate some = {1e6, 1e6, 1e6}, fast = {1e10, 1e10, 1e10};
    const hardware h = {.memory = {{1, fast}},
                        .n_memory = 1,
                        .kernels = {{8, false, some, some, some, some}},
                        .n_kernel = 1,
                        .n_thread = 1,
                        .pack = fast,
                        .link = 1e3,
                        .barrier_s = 1e-6,
                        .seconds = 1};
    nib_error err = {0};
    machine here;
    machine_detect(&here);
    setenv("XDG_CACHE_HOME", temp_path("experts-cache"), 1);
    char *path = hardware_path(&here);
    hardware back;
    if (hardware_save(path, &here, &h, &err) || hardware_load(path, &here, &back, &err))
        fail_msg("%s", err.message);
    mem_free(path);
}

static void count_lines(void *user, const char *line) {
    (void)user;
    n_popular += strstr(line, "shares of experts") != NULL;
}

static nib_engine_options under(uint64_t vram) {
    nib_engine_options o = engine_usual();
    o.backend = "cuda";
    o.kv_type = kv_type;
    o.n_ctx = N_CTX;
    o.n_batch = 40;
    o.vram = vram;
    o.ram = ram;
    o.stream = true;
    o.plan = plan_text;
    o.n_sequence = o.n_session = n_sequence;
    o.cancel = cancel_fn;
    o.log = count_lines;
    return o;
}

static nib_status try_open(const char *path, uint64_t vram, nib_engine **e, nib_error *err) {
    const nib_engine_options o = under(vram);
    cuda_load_with(fake_cuda(MEMORY, 0, NO_MEMORY));
    fake_cuda_prompts_differ(true);
    fake_cuda_late(1);
    return nib_engine_open(path, &o, e, err);
}

static void must_close(nib_engine *e) {
    nib_memory used;
    nib_engine_memory(e, &used);
    assert_true(used.tier[NIB_TIER_VRAM].peak <= used.tier[NIB_TIER_VRAM].planned);
    assert_true(used.tier[NIB_TIER_RAM].peak <= ram);
    nib_engine_close(e);
    if (fake_cuda_wrong())
        fail_msg("%s", fake_cuda_wrong());
    assert_int_equal(fake_cuda_held(), 0);
}

/* Prompts of many rows and of few, single tokens, and back to a prefix. */
static const int reach[] = {50, 51, 52, 53, 54, 55, 80, 81, 82};
enum { N_REACH = sizeof reach / sizeof *reach };

/* Bytes of weights of layers in a tier. */
static uint64_t placed(const nib_engine *e, int tier) {
    const nib_slice *slices;
    const size_t n = nib_engine_placement(e, &slices);
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += slices[i].layer >= 0 && slices[i].tier == tier ? slices[i].bytes : 0;
    return sum;
}

typedef struct walked {
    float *logits; /* [N_REACH, n_vocab] */
    size_t bytes;
    int n_apart, n_kept;
    long replayed;
    uint64_t read; /* bytes of weights that passes read from disk */
    uint64_t in_vram;
} walked;

static walked walk(const char *path, uint64_t vram) {
    nib_engine *e = NULL;
    nib_error err = {0};
    int32_t tokens[N_CTX];
    if (try_open(path, vram, &e, &err))
        fail_msg("%s: %s", path, err.message);
    const homes_split *split = engine_parts_of(e).step->backend->split;
    walked w = {.n_apart = split->n_apart, .n_kept = split->n_kept, .in_vram = placed(e, NIB_TIER_VRAM)};
    const size_t n_vocab = (size_t)nib_engine_info(e)->n_vocab;
    w.bytes = N_REACH * n_vocab * sizeof(float);
    w.logits = malloc(w.bytes);
    nib_session *s = session_must_open(e);
    for (int i = 0; i < N_REACH; i++) {
        logits_tokens(tokens, N_CTX, (int64_t)n_vocab, i < 6 ? 3 : 4);
        if (i >= 6)
            logits_tokens(tokens, 40, (int64_t)n_vocab, 3);
        if (nib_session_sync(s, tokens, (size_t)reach[i], &err))
            fail_msg("%s, to %d: %s (%s)", path, reach[i], err.message, fake_cuda_wrong());
        memcpy(w.logits + (size_t)i * n_vocab, nib_session_logits(s), n_vocab * sizeof(float));
    }
    nib_session_close(s);
    nib_traffic t;
    nib_engine_traffic(e, &t);
    w.read = t.streamed;
    w.replayed = fake_cuda_replayed();
    must_close(e);
    return w;
}

static uint64_t ram_whole;

/* Bytes of VRAM; 0: it does not open. *n_apart: split.n_apart. */
static uint64_t planned_of(const char *path, uint64_t vram, int *n_apart, nib_error *err) {
    nib_engine *e = NULL;
    nib_memory used;
    if (try_open(path, vram, &e, err))
        return 0;
    *n_apart = engine_parts_of(e).step->backend->split->n_apart;
    nib_engine_memory(e, &used);
    const uint64_t bytes = used.tier[NIB_TIER_VRAM].planned;
    if (ram == NIB_AUTO)
        ram_whole = used.tier[NIB_TIER_RAM].planned;
    must_close(e);
    return bytes;
}

typedef struct seen {
    int n_model, n_apart, n_kept;
} seen;

static void look(void *user, const char *path, const char *name) {
    seen *n = user;
    nib_error err = {0};
    int n_apart = 0;
    const uint64_t all = planned_of(path, NIB_AUTO, &n_apart, &err);
    walked whole = {.logits = NULL};
    assert_int_equal(n_apart, 0);
    for (int i = 1; i < 12 && all > 0; i++) {
        const uint64_t vram = all - all / 24 * (uint64_t)i;
        if (planned_of(path, vram, &n_apart, &err) == 0 || n_apart == 0)
            continue;
        if (!whole.logits)
            whole = walk(path, NIB_AUTO);
        walked part = walk(path, vram);
        if (getenv("SHOW"))
            fprintf(stderr, "%s %d: apart %d kept %d replayed %ld\n", name, i, part.n_apart, part.n_kept,
                    part.replayed);
        n->n_apart++;
        n->n_kept += part.n_kept > 0;
        if (memcmp(whole.logits, part.logits, whole.bytes))
            fail_msg("%s: logits under cap %d, %d layers apart, %d experts kept", name, i, part.n_apart,
                     part.n_kept);
        assert_true(part.replayed > 0);
        free(part.logits);
    }
    n->n_model += whole.logits != NULL;
    free(whole.logits);
}

static void all_models(void **state) {
    (void)state;
    seen n = {0};
    slow_machine();
    ledger_set_process_usage(constant);
    archs_each("tests/data/arch", look, &n);
    assert_true(n.n_model > 10 && n.n_apart > n.n_kept && n.n_kept > 10);
}

static const tiny_shape mixture = {.type = TYPE_Q8_0,
                                   .n_layer = 4,
                                   .d_model = 256,
                                   .d_ff = 256,
                                   .n_head = 4,
                                   .n_kv_head = 2,
                                   .n_vocab = 513,
                                   .n_ctx = N_CTX,
                                   .n_expert = 16,
                                   .n_used = 3};

/* The pass after a prompt does not read what comes of these layers, so nothing of them is copied ahead for
 * it. */
static void nothing_comes_after_a_prompt(void **state) {
    (void)state;
    const char *path = tiny_model("experts.gguf", &mixture);
    nib_error err = {0};
    int n_apart = 0, n_seen = 0;
    slow_machine();
    const uint64_t all = planned_of(path, NIB_AUTO, &n_apart, &err);
    for (int i = 3; i < 12; i++) {
        const uint64_t vram = all - all / 16 * (uint64_t)i;
        nib_engine *e = NULL;
        int32_t tokens[N_CTX];
        if (planned_of(path, vram, &n_apart, &err) == 0 || n_apart < mixture.n_layer)
            continue;
        if (try_open(path, vram, &e, &err))
            fail_msg("%s", err.message);
        nib_session *s = session_must_open(e);
        logits_tokens(tokens, N_CTX, mixture.n_vocab, 3);
        session_must_compute(s, tokens, 60); /* in two passes */
        const device_blocks *slots = &engine_parts_of(e).step->backend->store->slots;
        for (int b = 1; b <= mixture.n_layer; b++)
            assert_true(b > mixture.n_layer - 2 || device_blocks_slot(slots, b) == NULL);
        nib_session_close(s);
        must_close(e);
        n_seen++;
    }
    assert_true(n_seen > 0);
}

/* RAM does not hold all experts that are not on the GPU: they are read when a router has chosen them. Those
 * on the GPU are not in RAM. */
static void little_ram(void **state) {
    (void)state;
    const char *path = tiny_model("experts.gguf", &mixture);
    nib_error err = {0};
    int n_apart = 0, n_read = 0;
    slow_machine();
    const uint64_t all = planned_of(path, NIB_AUTO, &n_apart, &err), in_ram = ram_whole;
    walked whole = walk(path, NIB_AUTO);
    for (int i = 3; i < 9; i += 2)
        for (int r = 0; r < 12; r++) {
            const uint64_t vram = all - all / 16 * (uint64_t)i;
            ram = in_ram - in_ram / 14 * (uint64_t)r;
            if (planned_of(path, vram, &n_apart, &err) > 0) {
                walked part = walk(path, vram);
                if (getenv("SHOW"))
                    fprintf(stderr, "%d %d: apart %d kept %d read %lld\n", i, r, part.n_apart, part.n_kept,
                            (long long)part.read);
                n_read += part.n_apart > 0 && part.read > 0;
                if (memcmp(whole.logits, part.logits, whole.bytes))
                    fail_msg("logits under cap %d and RAM %d", i, r);
                free(part.logits);
            } else if (getenv("SHOW"))
                fprintf(stderr, "%d %d: %s\n", i, r, err.message);
            ram = NIB_AUTO;
        }
    free(whole.logits);
    assert_true(n_read > 4);
}

/* What is planned under caps is what a run under them has; and the plan can be followed without the caps. */
static void a_plan_is_followed(void **state) {
    (void)state;
    const char *path = tiny_model("experts-planned.gguf", &mixture);
    nib_error err = {0};
    int n_apart = 0, n_kept = 0;
    slow_machine();
    const uint64_t all = planned_of(path, NIB_AUTO, &n_apart, &err);
    for (int i = 2; i < 6; i++) {
        const nib_engine_options o = under(all - all / 16 * (uint64_t)i);
        char *text = NULL;
        cuda_load_with(fake_cuda(MEMORY, 0, 0));
        if (nib_plan(path, &o, NULL, &text, &err))
            fail_msg("%s", err.message);
        walked run = walk(path, o.vram);
        plan_text = text;
        walked planned = walk(path, NIB_AUTO);
        plan_text = NULL;
        assert_true(run.n_apart == 4 && planned.n_apart == 4 && planned.n_kept == run.n_kept);
        assert_true(planned.in_vram == run.in_vram && run.in_vram > 0);
        assert_memory_equal(run.logits, planned.logits, run.bytes);
        n_kept += run.n_kept;
        free(run.logits), free(planned.logits);
        nib_engine_options both = o; /* the plan says it */
        nib_engine *e = NULL;
        both.plan = text;
        both.cpu_experts = 2;
        assert_int_equal(nib_engine_open(path, &both, &e, &err), NIB_E_USAGE);
        assert_non_null(strstr(err.message, "--cpu-experts"));
        nib_free(text);
    }
    assert_true(n_kept > 4);
}

/* The most popular experts of each layer are on the GPU, in another order than their numbers'. */
static void popular_experts_are_here(void **state) {
    (void)state;
    const char *path = tiny_model_with_words("experts-popular.gguf", &mixture);
    nib_error err = {0};
    int n_apart = 0, n_other = 0;
    char *json = NULL;
    slow_machine();
    const uint64_t all = planned_of(path, NIB_AUTO, &n_apart, &err);
    walked whole = walk(path, NIB_AUTO);
    nib_engine_options o;
    nib_engine_options_init(&o);
    if (nib_profile_experts(path, &o, &(nib_profile_options){0}, &json, &err))
        fail_msg("%s", err.message);
    nib_free(json);
    const uint64_t vram = all - all / 16 * 4;
    walked part = walk(path, vram);
    assert_true(part.n_apart == 4 && part.n_kept > 0);
    assert_memory_equal(whole.logits, part.logits, whole.bytes);
    free(whole.logits), free(part.logits);
    nib_engine *e = NULL;
    assert_int_equal(try_open(path, vram, &e, &err), NIB_OK);
    nib_session *s = session_must_open(e);
    int32_t tokens[N_CTX];
    logits_tokens(tokens, N_CTX, 256, 3);
    assert_int_equal(nib_session_sync(s, tokens, 4, &err), NIB_OK); /* loads the layers */
    for (int b = 1; b <= 4; b++) {
        const int16_t *places = device_store_places_host(engine_parts_of(e).step->backend->store, b);
        int n = 0;
        for (int i = 0; i < 16; i++) {
            n += places[i] >= 0;
            n_other += places[i] >= 0 && places[i] != i;
        }
        assert_int_equal(n, part.n_kept);
    }
    assert_true(n_other > 4);
    nib_session_close(s);
    must_close(e);
    /* a damaged file is looked at once, whatever asks for it; then lower numbers come first */
    char command[1200];
    snprintf(command, sizeof command, "for f in %s/nibble/importance/*-experts.json; do echo { >$f; done",
             getenv("XDG_CACHE_HOME"));
    assert_int_equal(system(command), 0);
    n_popular = 0;
    assert_int_equal(try_open(path, vram, &e, &err), NIB_OK);
    assert_int_equal(n_popular, 1);
    must_close(e);
    nib_plan_options how = {0};
    how.quality = "small";
    o = under(vram);
    n_popular = 0;
    char *text = NULL;
    cuda_load_with(fake_cuda(MEMORY, 0, 0));
    if (nib_plan(path, &o, &how, &text, &err))
        fail_msg("%s", err.message);
    assert_int_equal(n_popular, 1);
    nib_free(text);
}

enum { N_REQUEST = 6, N_ANSWER = 8, N_TOGETHER = 3 };

/* The answers of requests that decode together, also beside prompts. */
static void answers(const char *path, uint64_t vram, int32_t (*out)[N_ANSWER], bool *apart) {
    nib_error err = {0};
    nib_batch *b = NULL;
    nib_engine *e = NULL;
    nib_result r = {0};
    int64_t id;
    if (try_open(path, vram, &e, &err) ||
        nib_batch_open(e, &(nib_batch_options){.n_sequence = N_TOGETHER}, &b, &err))
        fail_msg("%s", err.message);
    *apart = engine_parts_of(e).step->backend->split->n_apart > 0;
    for (int i = 0; i < N_REQUEST; i++) {
        int32_t tokens[N_CTX];
        nib_generate_options g;
        nib_generate_options_init(&g);
        logits_tokens(tokens, 20 + 11 * i, 512, i);
        g.prompt = tokens;
        g.n_prompt = (size_t)(20 + 11 * i);
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
        nib_result_clear(&r);
    }
    nib_batch_close(b);
    nib_engine_close(e);
    if (fake_cuda_wrong())
        fail_msg("%s", fake_cuda_wrong());
    assert_int_equal(fake_cuda_held(), 0);
}

static void a_batch(void **state) {
    (void)state;
    static int32_t whole[N_REQUEST][N_ANSWER], part[N_REQUEST][N_ANSWER];
    const char *path = tiny_model("experts-batch.gguf", &mixture);
    nib_error err = {0};
    int n_apart = 0, n = 0;
    slow_machine();
    n_sequence = N_TOGETHER;
    for (kv_type = NIB_KV_F16;; kv_type = NIB_KV_4) {
        bool apart;
        const uint64_t all = planned_of(path, NIB_AUTO, &n_apart, &err);
        answers(path, NIB_AUTO, whole, &apart);
        for (int i = 2; i < 6; i++) {
            memset(part, 0, sizeof part);
            answers(path, all - all / 16 * (uint64_t)i, part, &apart);
            assert_memory_equal(whole, part, sizeof whole);
            n += apart;
        }
        if (kv_type == NIB_KV_4)
            break;
    }
    assert_true(n > 4);
    kv_type = NIB_KV_F16;
    n_sequence = 1;
}

static long n_left;
static bool cancels(void *user) {
    (void)user;
    return n_left > 0 && --n_left == 0;
}

/* A pass that is cancelled, also between what goes down and what comes up, can be repeated with its bits. */
static void a_pass_is_cancelled(void **state) {
    (void)state;
    const char *path = tiny_model("experts-cancelled.gguf", &mixture);
    nib_error err = {0};
    int n_apart = 0, n_cancelled = 0;
    int32_t tokens[N_CTX];
    nib_engine *e = NULL;
    slow_machine();
    logits_tokens(tokens, N_CTX, 512, 3);
    const uint64_t all = planned_of(path, NIB_AUTO, &n_apart, &err);
    cancel_fn = cancels;
    assert_int_equal(try_open(path, all - all / 16 * 4, &e, &err), NIB_OK);
    const size_t n_vocab = (size_t)mixture.n_vocab;
    float *want = malloc(n_vocab * sizeof *want);
    for (long at = 0; at < 60; at += at < 20 ? 1 : 7) {
        nib_session *s = session_must_open(e);
        for (size_t n = 20; n < 24; n++)
            if (nib_session_sync(s, tokens, n, &err))
                fail_msg("%s", err.message);
        n_left = at;
        const nib_status status = nib_session_sync(s, tokens, 24, &err);
        n_left = 0;
        assert_true(status == NIB_OK || status == NIB_E_CANCELLED);
        n_cancelled += status == NIB_E_CANCELLED;
        if (status && nib_session_sync(s, tokens, 24, &err))
            fail_msg("after a cancel: %s", err.message);
        if (at == 0)
            memcpy(want, nib_session_logits(s), n_vocab * sizeof *want);
        assert_memory_equal(want, nib_session_logits(s), n_vocab * sizeof *want);
        nib_session_close(s);
    }
    assert_true(n_cancelled > 10);
    free(want);
    must_close(e);
    cancel_fn = NULL;
}

/* Reads of experts that the processor computes fail, the n-th one for all n: the pass fails, and repeated it
 * has its bits. */
static void reads_fail(void **state) {
    (void)state;
    const char *path = tiny_model("experts-unread.gguf", &mixture);
    nib_error err = {0};
    int n_apart = 0, n_failed = 0, n_read = 0;
    int32_t tokens[N_CTX];
    nib_engine *e = NULL;
    slow_machine();
    logits_tokens(tokens, N_CTX, 512, 3);
    const uint64_t all = planned_of(path, NIB_AUTO, &n_apart, &err), vram = all - all / 16 * 5;
    const uint64_t in_ram = ram_whole;
    for (uint64_t r = 1; r < 12 && n_read == 0; r++) {
        ram = in_ram - in_ram / 14 * r;
        walked part = {.n_apart = 0};
        if (planned_of(path, vram, &n_apart, &err) > 0)
            part = walk(path, vram);
        n_read = part.n_apart > 0 && part.read > 0;
        free(part.logits);
    }
    assert_true(n_read);
    assert_int_equal(try_open(path, vram, &e, &err), NIB_OK);
    const size_t n_vocab = (size_t)mixture.n_vocab;
    float *want = malloc(n_vocab * sizeof *want);
    nib_session *s = session_must_open(e);
    for (int64_t at = 0, n = 1; at <= n; at += 1 + at / 6) {
        const nib_status back = nib_session_sync(s, tokens, 1, &err);
        for (size_t k = 20; k < 24 && back == NIB_OK; k++)
            if (nib_session_sync(s, tokens, k, &err))
                fail_msg("%s", err.message);
        fault_arm(FAULT_READ, at ? at : INT64_MAX);
        const nib_status status = nib_session_sync(s, tokens, 24, &err);
        const int64_t calls = fault_count(FAULT_READ);
        fault_arm(FAULT_READ, 0);
        n = at == 0 ? calls : n;
        n_failed += status != NIB_OK;
        assert_true(status == NIB_OK || (status == NIB_E_IO && err.message[0]));
        if (status && nib_session_sync(s, tokens, 24, &err))
            fail_msg("after a read that failed: %s", err.message);
        if (at == 0)
            memcpy(want, nib_session_logits(s), n_vocab * sizeof *want);
        assert_memory_equal(want, nib_session_logits(s), n_vocab * sizeof *want);
    }
    assert_true(n_failed > 0);
    free(want);
    nib_session_close(s);
    must_close(e);
    ram = NIB_AUTO;
}

/* The n-th call fails, for all n. */
static void a_lost_device(void **state) {
    (void)state;
    const char *path = tiny_model("experts-lost.gguf", &mixture);
    nib_error err = {0};
    int n_apart = 0;
    int32_t tokens[N_CTX];
    slow_machine();
    logits_tokens(tokens, N_CTX, 512, 3);
    const uint64_t all = planned_of(path, NIB_AUTO, &n_apart, &err);
    const nib_engine_options o = under(all - all / 16 * 4);
    for (long at = 0, n = 1; at <= n; at += 1 + at / (SANITIZED ? 6 : 40)) {
        nib_engine *e = NULL;
        nib_session *s = NULL;
        cuda_load_with(fake_cuda(MEMORY, at, FAKE_CUDA_LOST));
        nib_status status = nib_engine_open(path, &o, &e, &err);
        if (status == NIB_OK)
            status = nib_session_open(e, NULL, &s, &err);
        for (size_t i = 20; i < 25 && status == NIB_OK; i++)
            status = nib_session_sync(s, tokens, i, &err);
        if (at == 0)
            assert_true(status == NIB_OK && fake_cuda_replayed() > 0);
        nib_session_close(s);
        nib_engine_close(e);
        n = at == 0 ? fake_cuda_calls() : n;
        if (fake_cuda_held() || (status != NIB_OK && status != NIB_E_DEVICE))
            fail_msg("call %ld of %ld: status %d, %zu left: %s", at, n, status, fake_cuda_held(),
                     err.message);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_models),
        cmocka_unit_test(nothing_comes_after_a_prompt),
        cmocka_unit_test(little_ram),
        cmocka_unit_test(a_plan_is_followed),
        cmocka_unit_test(popular_experts_are_here),
        cmocka_unit_test(a_batch),
        cmocka_unit_test(a_pass_is_cancelled),
        cmocka_unit_test(reads_fail),
        cmocka_unit_test(a_lost_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
