/* Keys and values of running sequences on the disk: the logits and tokens are bit by bit those of an engine
 * that has them in RAM, for every format, number of such layers and division of the rows, for sequences that
 * grow, go back and share prefixes, and in batches. Faults of the disk are errors, never other answers. */
#include "base/mem.h"
#include "base/num.h"
#include "engine/state.h"
#include "memory/device_disk.h"
#include "memory/ledger.h"
#include "support/engine.h"
#include "support/faults.h"
#include "support/logits.h"
#include "support/slow.h"
#include "support/tempdir.h"
#include "support/tinyfolder.h"
#include "support/tinymodel.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_CTX = 320, N_TOKEN = 300, N_VOCAB = 300, ALL = 4, MIXED = 50 };

static const tiny_shape shape = {TYPE_Q8_0, ALL, 96, 160, 6, 2, N_VOCAB, N_CTX, true};

/* Its path; temp_path has few buffers. */
static const char *model_path(void) {
    static char path[512];
    if (!*path)
        snprintf(path, sizeof path, "%s", tiny_model("disk.gguf", &shape));
    return path;
}

static nib_engine_options options(int kv, int64_t n_batch) {
    nib_engine_options o = engine_usual();
    o.n_ctx = N_CTX;
    o.n_batch = n_batch;
    o.kv_type = kv == MIXED ? NIB_KV_4 : kv;
    o.scratch = temp_path("scratch");
    o.packed = NIB_PACKED_OFF;
    return o;
}

static nib_engine *open_engine(const char *path, int kv, int64_t n_batch, int on_disk) {
    const engine_internal internal = {.kv_layers = kv == MIXED ? "0=f16,2=kv8" : NULL};
    nib_engine_options o = options(kv, n_batch);
    o.kv_on_disk = on_disk;
    nib_engine *e = NULL;
    nib_error err = {0};
    if (engine_open(path, &o, &internal, &e, &err))
        fail_msg("%s", err.message);
    assert_int_equal(e->core.resolved.formats.on_disk > 0, on_disk > 0);
    return e;
}

static void any_rows(void **state) {
    (void)state;
    static const int kinds[] = {NIB_KV_F32, NIB_KV_F16, NIB_KV_8, NIB_KV_4, MIXED};
    static const struct {
        int64_t n_batch;
        int on_disk;
    } ways[] = {{512, ALL}, {37, ALL}, {64, 1}, {1, 2}};
    int32_t tokens[N_TOKEN];
    logits_tokens(tokens, N_TOKEN, N_VOCAB, 1);
    for (size_t k = 0; k < NUM_COUNT(kinds); k += (size_t)slow_step(2)) {
        const char *path = model_path();
        nib_engine *in_ram = open_engine(path, kinds[k], 512, 0);
        logits_rows want = logits_of(in_ram, tokens, N_TOKEN);
        nib_engine_close(in_ram);
        for (size_t i = k % 2; i < NUM_COUNT(ways); i += 2) {
            nib_engine *e = open_engine(path, kinds[k], ways[i].n_batch, ways[i].on_disk);
            logits_rows got = logits_of(e, tokens, N_TOKEN);
            assert_memory_equal(got.data, want.data, logits_bytes(&want));
            free(got.data);
            nib_engine_close(e);
        }
        free(want.data);
    }
}

/* Two sessions that grow, go back and another way, and share pages, beside two in RAM. */
static void back_and_forth(void **state) {
    (void)state;
    static const struct {
        int n, seed;
    } steps[] = {{40, 1},  {200, 1}, {201, 1}, {190, 1}, {120, 2},
                 {300, 1}, {20, 1},  {250, 2}, {248, 3}, {300, 1}};
    char gemma[512];
    snprintf(gemma, sizeof gemma, "%s", tiny_folder_gemma3(30));
    for (int folder = 0; folder < 2; folder += slow_step(2)) {
        const char *path = folder ? gemma : model_path();
        nib_engine *e[2] = {open_engine(path, folder ? NIB_KV_F16 : MIXED, 200, ALL),
                            open_engine(path, folder ? NIB_KV_F16 : MIXED, 200, 0)};
        nib_session *s[2][2];
        for (int i = 0; i < 4; i++)
            s[i / 2][i % 2] = session_must_open(e[i % 2]);
        for (size_t i = 0; i < NUM_COUNT(steps); i++) {
            int32_t tokens[N_TOKEN];
            const int same = 110 * (steps[i].seed - 1), n = folder ? steps[i].n / 3 : steps[i].n;
            logits_tokens(tokens, N_TOKEN, N_VOCAB, 1);
            logits_tokens(tokens + same, N_TOKEN - same, N_VOCAB, steps[i].seed);
            for (int w = 0; w < 2; w++)
                assert_int_equal(nib_session_sync(s[i % 3 == 2][w], tokens, (size_t)n, NULL), NIB_OK);
            assert_memory_equal(nib_session_logits(s[i % 3 == 2][0]), nib_session_logits(s[i % 3 == 2][1]),
                                N_VOCAB * sizeof(float));
        }
        for (int i = 0; i < 4; i++)
            nib_session_close(s[i / 2][i % 2]);
        nib_engine_close(e[0]);
        nib_engine_close(e[1]);
    }
}

/* ---- batches ---- */

enum { N_REQUEST = 6 };

static void answer_all(nib_engine *e, const nib_batch_options *o, nib_result *out) {
    nib_batch *b = batch_must_open(e, o);
    int32_t n_left = 1, prompt[N_CTX];
    int64_t id;
    nib_result r;
    nib_error err = {0};
    for (int i = 0; i < N_REQUEST; i++) {
        nib_generate_options g;
        nib_generate_options_init(&g);
        for (int k = 0; k < N_CTX; k++)
            prompt[k] = k < 70 && i % 3 ? (k * 7 + 1) % N_VOCAB : (k * 31 + i * 17 + 3) % N_VOCAB;
        g.prompt = prompt;
        g.n_prompt = (size_t)(30 + i * 47 % 200);
        g.n_predict = 20 + i * 13 % 50;
        g.ignore_eos = true;
        g.sampling.temperature = 0;
        assert_int_equal(nib_batch_add(b, &g, &id, NULL), NIB_OK);
    }
    while (n_left > 0)
        if (nib_batch_step(b, &n_left, &err))
            fail_msg("%s", err.message);
    while (nib_batch_take(b, &id, &r, NULL))
        out[id - 1] = r;
    nib_batch_close(b);
}

static void batches(void **state) {
    (void)state;
    const nib_batch_options ways[] = {{.n_sequence = N_REQUEST},
                                      {.n_sequence = 3, .optimistic = true, .n_position = 400},
                                      {.n_sequence = 4, .n_position = 900, .n_prompt = 40, .n_draft = 3}};
    const char *path = model_path();
    nib_result want[N_REQUEST], got[N_REQUEST];
    for (int kv = 0; kv < 2; kv += slow_step(2)) {
        nib_engine *in_ram = open_engine(path, kv ? NIB_KV_8 : NIB_KV_F16, 256, 0);
        answer_all(in_ram, &ways[0], want);
        nib_engine_close(in_ram);
        for (size_t i = 0; i < NUM_COUNT(ways); i += (size_t)slow_step(2)) {
            nib_engine *e = open_engine(path, kv ? NIB_KV_8 : NIB_KV_F16, 256, kv ? ALL : 3);
            answer_all(e, &ways[i], got);
            for (int k = 0; k < N_REQUEST; k++) {
                assert_int_equal(got[k].n_token, want[k].n_token);
                assert_memory_equal(got[k].tokens, want[k].tokens, want[k].n_token * sizeof(int32_t));
                nib_result_clear(&got[k]);
            }
            nib_engine_close(e);
        }
        for (int k = 0; k < N_REQUEST; k++)
            nib_result_clear(&want[k]);
    }
}

/* A context that fits no RAM opens with a scratch folder, keeps the cap, and is on the ledger of the disk. */
static void instead_of_refusing(void **state) {
    (void)state;
    if (SANITIZED) /* whose own memory does not fit the cap */
        return;
    static const tiny_shape large = {TYPE_Q8_0, 4, 256, 256, 4, 4, N_VOCAB, 1 << 15, true};
    nib_engine_options o = engine_usual();
    nib_engine *e = NULL;
    nib_error err = {0};
    nib_memory now;
    int32_t tokens[N_TOKEN];
    char path[512];
    snprintf(path, sizeof path, "%s", tiny_model("large.gguf", &large));
    logits_tokens(tokens, N_TOKEN, N_VOCAB, 1);
    o.n_ctx = 1 << 14;
    o.kv_type = NIB_KV_F16;
    o.ram = UINT64_C(50) << 20; /* keys and values take 64 MiB */
    assert_int_equal(nib_engine_open(path, &o, &e, &err), NIB_E_NOFIT);
    o.scratch = temp_path("scratch");
    o.disk = UINT64_C(20) << 20;
    if (nib_engine_open(path, &o, &e, &err) ==
        NIB_OK) { /* the disk's cap is of memory that a session reserves */
        nib_session *s = NULL;
        assert_int_equal(nib_session_open(e, NULL, &s, &err), NIB_E_NOFIT);
        nib_engine_close(e);
    }
    o.disk = UINT64_C(80) << 20;
    if (nib_engine_open(path, &o, &e, &err))
        fail_msg("%s", err.message);
    nib_session *s = session_must_open(e);
    session_must_compute(s, tokens, N_TOKEN);
    nib_engine_memory(e, &now);
    assert_true(now.tier[NIB_TIER_RAM].peak <= o.ram);
    assert_in_range(now.tier[NIB_TIER_DISK].peak, UINT64_C(30) << 20, o.disk);
    nib_session_close(s);
    nib_engine_close(e);
}

/* ---- faults ---- */

static nib_status live(void *user, nib_error *err) {
    (void)user;
    nib_engine_options o = options(NIB_KV_F16, 16);
    o.kv_on_disk = ALL;
    nib_engine *e = NULL;
    nib_session *s = NULL;
    int32_t tokens[100];
    logits_tokens(tokens, 100, N_VOCAB, 1);
    nib_status status = nib_engine_open(model_path(), &o, &e, err);
    if (status == NIB_OK)
        status = nib_session_open(e, NULL, &s, err);
    for (int n = 50; n <= 100 && status == NIB_OK; n += 25) {
        status = nib_session_sync(s, tokens, (size_t)n, err);
        if (status != NIB_OK) /* the session goes on from what it still has */
            status = nib_session_sync(s, tokens, (size_t)n, err);
    }
    if (status == NIB_OK)
        fault_made(nib_session_logits(s), N_VOCAB * sizeof(float));
    nib_session_close(s);
    nib_engine_close(e);
    return status;
}

static void faults(void **state) {
    (void)state;
    fault_sweep(FAULT_ALLOC, 3 * slow_step(5), live, NULL);
    fault_sweep(FAULT_READ, 1 * slow_step(5), live, NULL);
    fault_sweep(FAULT_WRITE, 1 * slow_step(3), live, NULL);
    fault_sweep(FAULT_DONE, 2 * slow_step(5), live, NULL);
}

/* ---- the device ---- */

static void copies(void **state) {
    (void)state;
    enum { N = 40, PAGE = DEVICE_PAGE };
    device *d = NULL;
    void *there = NULL;
    device_mark stored, loaded;
    uint8_t *from = mem_map(N * PAGE), *to = mem_map(N * PAGE);
    assert_int_equal(device_disk_open(temp_path("scratch"), &d, NULL), NIB_OK);
    assert_int_equal(d->kind->alloc(d, N * PAGE, false, &there, NULL), NIB_OK);
    for (int i = 0; i < N * PAGE; i++)
        from[i] = (uint8_t)(i * 7 + i / PAGE);
    for (int i = 0; i < N; i++) /* each page on its own, in another order */
        assert_int_equal(d->kind->copy(d, DEVICE_STORE_CACHE, (uint8_t *)there + (i * 17 % N) * PAGE,
                                       from + (i * 17 % N) * PAGE, PAGE, NULL),
                         NIB_OK);
    assert_int_equal(d->kind->mark(d, DEVICE_STORE_CACHE, &stored, NULL), NIB_OK);
    assert_int_equal(d->kind->follow(d, DEVICE_LOAD_CACHE, stored, NULL), NIB_OK);
    assert_int_equal(d->kind->copy_rows(d, DEVICE_LOAD_CACHE, to, PAGE, there, PAGE, PAGE, N, NULL), NIB_OK);
    assert_int_equal(d->kind->mark(d, DEVICE_LOAD_CACHE, &loaded, NULL), NIB_OK);
    assert_int_equal(d->kind->wait(d, loaded, NULL), NIB_OK);
    assert_memory_equal(to, from, N * PAGE);
    d->kind->free(d, there, N * PAGE);
    device_close(d);
    mem_unmap(from, N * PAGE);
    mem_unmap(to, N * PAGE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies),
        cmocka_unit_test(any_rows),
        cmocka_unit_test(back_and_forth),
        cmocka_unit_test(batches),
        cmocka_unit_test(instead_of_refusing),
        cmocka_unit_test(faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
