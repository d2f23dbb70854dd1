/* The check back end: the scalar reference in memory of its own gives the bits of the processor's back
 * end and kernels, for every fixture, precision and cache, resident and from disk, alone and in batches, in
 * sessions and in measurements. So nothing outside a back end reads its memory: other code cannot read the
 * check back end's memory, and data that it returns is invalid after its next call. */
#include "base/file.h"
#include "base/mem.h"
#include "exec/check/memory.h"
#include "measure/measure.h"
#include "engine/state.h"
#include "measure/prompt_rows.h"
#include "support/answers.h"
#include "support/engine.h"
#include "support/logits.h"
#include "support/prompts.h"
#include "support/sanitized.h"
#include "support/slow.h"
#include "support/tinymodel.h"
#include "support/tinyplan.h"

#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { N_TOKEN = 150, N_VOCAB = 512, N_CTX = 192 };

static const tiny_shape small = {TYPE_Q8_0, 2, 64, 96, 4, 2, N_VOCAB, N_CTX, true};

/* ---- the same bits ---- */

static logits_rows logits_by(const char *name, const char *path, nib_engine_options o,
                             const engine_internal *internal, int n) {
    nib_engine *e = NULL;
    nib_error err = {0};
    int32_t tokens[N_TOKEN];
    o.backend = name;
    if (engine_open(path, &o, internal, &e, &err))
        fail_msg("%s on %s: %s", path, name, err.message);
    logits_tokens(tokens, n, nib_engine_info(e)->n_vocab, 3);
    const logits_rows r = logits_of(e, tokens, n);
    nib_engine_close(e);
    return r;
}

static void compare(const char *path, const nib_engine_options *o, const engine_internal *internal, int n,
                    const char *what) {
    logits_rows cpu = logits_by("cpu", path, *o, internal, n),
                check = logits_by("check", path, *o, internal, n);
    assert_int_equal(logits_bytes(&cpu), logits_bytes(&check));
    if (memcmp(cpu.data, check.data, logits_bytes(&cpu)) != 0)
        fail_msg("%s, %s: the check back end has other logits", path, what);
    assert_true(isfinite(cpu.data[0]));
    free(cpu.data);
    free(check.data);
}

static int compare_folder(const char *root) {
    static const int types[] = {NIB_KV_F32, NIB_KV_F16};
    DIR *dir = opendir(root);
    int n = 0;
    assert_non_null(dir);
    for (struct dirent *d; (d = readdir(dir)) != NULL;) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", root, d->d_name);
        if (d->d_name[0] == '.' || (!path_is_dir(path) && !strstr(path, ".gguf")))
            continue;
        if (n++ % (SANITIZED ? 3 : 1)) /* the others run without one */
            continue;
        for (int i = 0; i < 2; i += slow_is_thinned() ? 2 : 1) {
            nib_engine_options o = engine_usual();
            o.n_ctx = 32;
            o.kv_type = types[i];
            compare(path, &o, NULL, 24, i ? "f16 cache" : "f32 cache");
        }
    }
    closedir(dir);
    return n;
}

static void every_fixture(void **state) {
    (void)state;
    assert_true(compare_folder("tests/data/arch") >= 16);
    assert_true(compare_folder("tests/data/arch-extra") >= 60);
    assert_true(compare_folder("tests/data/arch-gguf") >= 30);
}

static void every_precision(void **state) {
    (void)state;
    static const type_id types[] = {TYPE_F16, TYPE_Q4_1, TYPE_Q5_0, TYPE_Q8_0};
    static const int caches[] = {NIB_KV_F32, NIB_KV_F16, NIB_KV_8, NIB_KV_4}, bits[] = {4, 8, 16};
    for (int t = 0; t < 4; t++) {
        tiny_shape shape = small;
        shape.type = types[t];
        const char *path = tiny_model("precision.gguf", &shape);
        for (int i = t % 2; i < 6; i += slow_is_thinned() ? 2 : 1) {
            nib_engine_options o = engine_usual();
            o.kv_type = caches[(t + i) % 4];
            o.activation = bits[i % 3];
            o.n_batch = i % 2 ? 7 : 70;
            compare(path, &o, NULL, N_TOKEN, "a precision");
        }
    }
}

/* Windows, sinks, slopes and shared keys, with whole blocks in codes. */
static void every_kind_of_attention(void **state) {
    (void)state;
    static const char *const names[] = {
        "arch/gemma3",      "arch-extra/llama-sinks", "arch-extra/mistral-window",
        "arch-extra/bloom", "arch-extra/cohere2",     "arch/falcon"};
    static const int caches[] = {NIB_KV_8H, NIB_KV_4H, NIB_KV_4S};
    for (int i = 0; i < 18; i += slow_is_thinned() ? 5 : 1) {
        char path[64];
        nib_engine_options o = engine_usual();
        o.n_ctx = N_CTX;
        o.kv_type = caches[i % 3];
        snprintf(path, sizeof path, "tests/data/%s", names[i / 3]);
        compare(path, &o, NULL, N_TOKEN, i % 3 ? "kv4" : "kv8");
    }
}

static void from_disk_and_in_slices(void **state) {
    (void)state;
    static const char *const recipes[] = {"u4g32+u4g32", "u3g32a", "file"};
    const char *path = tiny_model("disk.gguf", &small);
    nib_engine_options o = engine_usual();
    o.stream = true;
    compare(path, &o, &(engine_internal){.n_row = 40, .keep_nothing = true}, N_TOKEN, "from disk");
    tiny_plan h;
    tiny_plan_make(&h, path, recipes, 3, NIB_TIER_RAM, NIB_TIER_RAM);
    compare(path, &o, &(engine_internal){.plan = &h.p}, N_TOKEN, "second slices");
}

/* Rows and weights that are rotated, with every number of bits. */
static void rotated(void **state) {
    (void)state;
    static const char *const recipes[] = {"u4g64h", "u8g32h", "u4g32h+u4g32h", "u3g32ah"};
    static const int bits[] = {4, 8, 16, 0};
    const char *path = tiny_model("rotated.gguf", &small);
    for (int i = 0; i < 4; i++) {
        nib_engine_options o = engine_usual();
        tiny_plan h;
        o.activation = bits[i];
        o.n_batch = i % 2 ? 7 : 70;
        tiny_plan_make(&h, path, recipes, 4, NIB_TIER_RAM, NIB_TIER_RAM);
        compare(path, &o, &(engine_internal){.plan = &h.p}, N_TOKEN, "rotated");
    }
}

/* ---- batches ---- */

enum { N_REQUEST = 5 };

static void answers_by(const char *name, const char *path, int32_t (*out)[PROMPT_ANSWER]) {
    nib_engine_options o = engine_usual();
    o.backend = name;
    nib_engine *e = engine_must_open(path, &o, NULL);
    answers_to_prompts(e, 3, N_REQUEST, 17, out);
    nib_engine_close(e);
}

static void batches(void **state) {
    (void)state;
    int32_t cpu[N_REQUEST][PROMPT_ANSWER] = {{0}}, check[N_REQUEST][PROMPT_ANSWER] = {{0}};
    const char *path = tiny_model("batch.gguf", &small);
    answers_by("cpu", path, cpu);
    answers_by("check", path, check);
    assert_memory_equal(cpu, check, sizeof cpu);
    assert_int_not_equal(cpu[0][0], cpu[0][1]);
}

/* One answer at a time in memory for one: the pages of each prompt are reused by the next one. With cache_ram
 * the prompts of the second turn are not computed again, and the answers are the same: a device's pages are
 * copied to RAM and back, and in RAM there are more pages. */
static void prompts_from_ram(void **state) {
    (void)state;
    enum { N_PROMPT = 3, N_LONG = 150, N_TURN = 2 };
    static const struct {
        const char *backend;
        int kv;
        int64_t n_again; /* rows that are computed again */
    } cases[] = {{"check", NIB_KV_F16, 1},
                 {"check", NIB_KV_8, N_LONG - 2 * KV_BLOCK},
                 {"cpu", NIB_KV_F16, 1},
                 {"cpu", NIB_KV_4, N_LONG - 2 * KV_BLOCK}};
    const char *path = tiny_model("ram.gguf", &small);
    for (size_t k = 0; k < NUM_COUNT(cases); k++) {
        int32_t first[N_PROMPT][PROMPT_ANSWER];
        nib_engine_options o = engine_usual();
        nib_error err = {0};
        o.backend = cases[k].backend;
        o.kv_type = cases[k].kv;
        nib_engine *e = engine_must_open(path, &o, NULL);
        nib_batch *b = batch_must_open(
            e, &(nib_batch_options){.n_sequence = 1, .n_position = 192, .cache_ram = UINT64_C(1) << 20});
        for (int i = 0; i < N_TURN * N_PROMPT; i++) {
            int32_t tokens[N_LONG], left = 1;
            int64_t id;
            nib_result r = {0};
            nib_generate_options g;
            nib_generate_options_init(&g);
            logits_tokens(tokens, N_LONG, N_VOCAB, i % N_PROMPT);
            g.prompt = tokens;
            g.n_prompt = N_LONG;
            g.n_predict = PROMPT_ANSWER;
            g.ignore_eos = true;
            assert_int_equal(nib_batch_add(b, &g, &id, &err), NIB_OK);
            while (left > 0)
                assert_int_equal(nib_batch_step(b, &left, &err), NIB_OK);
            assert_true(nib_batch_take(b, &id, &r, &err));
            assert_int_equal(r.prompt_n, i < N_PROMPT ? N_LONG : cases[k].n_again);
            if (i < N_PROMPT)
                memcpy(first[i], r.tokens, sizeof first[i]);
            else
                assert_memory_equal(r.tokens, first[i - N_PROMPT], sizeof first[0]);
            nib_result_clear(&r);
        }
        nib_batch_counts c;
        nib_batch_count(b, &c);
        if (strcmp(cases[k].backend, "check") == 0)
            assert_true(c.ram_restored >= 2 * N_PROMPT && c.ram_saved >= c.ram_restored && c.ram_bytes > 0);
        nib_batch_close(b);
        nib_engine_close(e);
    }
}

/* ---- measurements: probes, changes, the residual stream read and written ---- */

typedef struct measured {
    char *importance, *quality;
    model_imatrix channels;
} measured;

static measured measure_by(const char *name, const char *path, const calibration *c) {
    static const char *const formats[] = {"u6g64", "u4g64", "u4g64+u2g64"};
    const double score[] = {1, 0.5};
    const quality_options q = {formats, 3, score, 20, 4};
    nib_engine_options o = engine_usual();
    measured m = {0};
    importance p;
    quality cost;
    nib_error err = {0};
    o.n_batch = 0;
    o.backend = name;
    if (measure_importance(path, &o, c, &p, &err) || importance_print(&p, &m.importance, &err) ||
        measure_quality(path, &o, c, &q, &cost, &m.channels, &err) || quality_print(&cost, &m.quality, &err))
        fail_msg("%s: %s", name, err.message);
    importance_clear(&p);
    quality_clear(&cost);
    return m;
}

static void measurements(void **state) {
    (void)state;
    const char *path = tiny_model("measured.gguf", &small);
    calibration c = prompts_open(N_VOCAB);
    measured cpu = measure_by("cpu", path, &c), check = measure_by("check", path, &c);
    assert_string_equal(cpu.importance, check.importance);
    assert_string_equal(cpu.quality, check.quality);
    for (uint64_t i = 0; i < cpu.channels.first[cpu.channels.n_site]; i++) { /* summed in another order */
        const float is = check.channels.mean[i], should = cpu.channels.mean[i];
        assert_true(fabsf(is - should) <= 1e-5f * should);
    }
    imatrix_clear(&cpu.channels);
    imatrix_clear(&check.channels);
    mem_free(cpu.importance);
    mem_free(cpu.quality);
    mem_free(check.importance);
    mem_free(check.quality);
    calibration_clear(&c);
}

/* ---- memory ---- */

static void reads(const volatile uint8_t *at) {
    (void)*at;
}

static void its_memory_cannot_be_read(void **state) {
    (void)state;
    device *d = check_device();
    uint8_t here[4] = {1, 2, 3, 4}, back[4] = {0};
    void *at = NULL;
    nib_error err = {0};
    int status;
    assert_int_equal(d->kind->alloc(d, 4096, false, &at, &err), NIB_OK);
    assert_null(check_at(here));
    assert_int_equal(d->kind->copy(d, DEVICE_LOAD, (uint8_t *)at + 100, here, 4, &err), NIB_OK);
    assert_int_equal(d->kind->copy(d, DEVICE_STORE, back, (uint8_t *)at + 100, 4, &err), NIB_OK);
    assert_memory_equal(here, back, 4);
    assert_memory_equal((uint8_t *)check_at(at) + 100, here, 4);
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL); /* cmocka's own handler would go on in the child */
        if (freopen("/dev/null", "w", stderr))
            reads(at);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_false(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    d->kind->free(d, at, 4096);
}

static nib_engine *open_check(int64_t n_row) {
    nib_engine_options o = engine_usual();
    nib_engine *e = NULL;
    nib_error err = {0};
    o.backend = "check";
    if (engine_open(tiny_model("memory.gguf", &small), &o, &(engine_internal){.n_row = n_row}, &e, &err))
        fail_msg("%s", err.message);
    return e;
}

static void keys_and_values_are_its_own(void **state) {
    (void)state;
    int64_t begin[] = {0, 5};
    calibration c = {.begin = begin, .n_prompt = 1, .tokens = (int32_t[]){3, 1, 4, 1, 5}};
    nib_engine *e = open_check(5);
    prompt_rows rows;
    kv_pool *pages;
    kv_table host;
    nib_error err = {0};
    const engine_parts on = engine_parts_of(e);
    assert_int_equal(prompt_rows_open(&rows, &on, &c, 0, 0, &err), NIB_OK);
    pass p = {.segments = rows.segments, .n_segment = 1, .n_head = 1};
    assert_int_equal(step_pass(engine_parts_of(e).step, &p, &err), NIB_OK);
    assert_int_equal(kv_pool_open(engine_parts_of(e).layout, kv_formats_all(TYPE_F32), true, false,
                                  device_host(), engine_parts_of(e).ledger, &pages, &err),
                     NIB_OK);
    assert_int_equal(kv_table_open(&host, pages, engine_parts_of(e).layout, device_host(),
                                   engine_parts_of(e).ledger, 5, NULL, &err),
                     NIB_OK);
    segment wrong = rows.segments[0];
    wrong.kv = &host;
    p.segments = &wrong;
    assert_int_equal(step_pass(engine_parts_of(e).step, &p, &err), NIB_E_DEVICE);
    assert_non_null(strstr(err.message, "keys and values"));
    kv_table_close(&host);
    kv_pool_close(pages);
    prompt_rows_close(&rows);
    nib_engine_close(e);
}

/* Data that a caller keeps too long. */
typedef struct kept {
    const float *stream, *seen;
    int n, n_seen;
} kept;

static nib_status look_back(void *user, int b, backend *by, nib_error *err) {
    kept *k = user;
    (void)b;
    if (k->n > 0)
        assert_true(isnan(k->stream[0]));
    NIB_TRY(by->kind->read_stream(by, 0, 5, &k->stream, err));
    assert_true(k->n == 0 || isfinite(k->stream[0]));
    k->n++;
    return NIB_OK;
}

static void keep_seen(void *user, const probe_data *s) {
    kept *k = user;
    assert_true(isfinite(s->x[0]));
    k->seen = s->x;
    k->n_seen++;
}

static void what_was_read_is_gone_at_the_next_call(void **state) {
    (void)state;
    int64_t begin[] = {0, 5};
    calibration c = {.begin = begin, .n_prompt = 1, .tokens = (int32_t[]){3, 1, 4, 1, 5}};
    nib_engine *e = open_check(5);
    prompt_rows rows;
    nib_error err = {0};
    kept k = {0};
    const engine_parts on = engine_parts_of(e);
    assert_int_equal(prompt_rows_open(&rows, &on, &c, 0, 1, &err), NIB_OK);
    float logits[N_VOCAB];
    const probe observer = {.point = keep_seen, .user = &k};
    const pass p = {.segments = rows.segments,
                    .n_segment = 1,
                    .logits = logits,
                    .n_head = 1,
                    .enter = look_back,
                    .user = &k,
                    .probe = &observer};
    assert_int_equal(step_pass(engine_parts_of(e).step, &p, &err), NIB_OK);
    assert_int_equal(k.n, model_n_block(engine_parts_of(e).m));
    assert_true(isnan(k.stream[0]));
    assert_true(k.n_seen > 0 && isnan(k.seen[0]));
    assert_true(isfinite(logits[0]));
    prompt_rows_close(&rows);
    nib_engine_close(e);
}

static void an_unknown_one_is_said(void **state) {
    (void)state;
    nib_engine_options o = engine_usual();
    nib_engine *e = NULL;
    nib_error err = {0};
    o.backend = "abacus";
    assert_int_equal(nib_engine_open(tiny_model("unknown.gguf", &small), &o, &e, &err), NIB_E_DEVICE);
    assert_string_equal(err.message, "backend 'abacus' is not available; this build has: cpu, check, cuda");
}

/* Predictions are of the processor. */
static void nothing_is_learned_of_it(void **state) {
    (void)state;
    static const char *const names[] = {"cpu", "check"};
    for (int i = 0; i < 2; i++) {
        nib_engine_options o = engine_usual();
        nib_generate_options g;
        nib_result r = {0};
        nib_error err = {0};
        const int32_t tokens[] = {3, 1, 4};
        o.backend = names[i];
        o.learn = true;
        nib_engine *e = engine_must_open(tiny_model("learned.gguf", &small), &o, NULL);
        nib_session *s = session_must_open(e);
        nib_generate_options_init(&g);
        g.prompt = tokens;
        g.n_prompt = 3;
        g.n_predict = 4; /* too few to be stored */
        g.ignore_eos = true;
        assert_int_equal(nib_generate(s, &g, &r, &err), NIB_OK);
        assert_true(i == 0 ? e->learned.n_token > 0 : e->learned.n_token == 0);
        nib_result_clear(&r);
        nib_session_close(s);
        nib_engine_close(e);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_fixture),
        cmocka_unit_test(every_precision),
        cmocka_unit_test(every_kind_of_attention),
        cmocka_unit_test(from_disk_and_in_slices),
        cmocka_unit_test(rotated),
        cmocka_unit_test(batches),
        cmocka_unit_test(prompts_from_ram),
        cmocka_unit_test(measurements),
        cmocka_unit_test(its_memory_cannot_be_read),
        cmocka_unit_test(keys_and_values_are_its_own),
        cmocka_unit_test(what_was_read_is_gone_at_the_next_call),
        cmocka_unit_test(an_unknown_one_is_said),
        cmocka_unit_test(nothing_is_learned_of_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
