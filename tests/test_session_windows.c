/* Sessions and batches of a model with windows, in contexts many windows long: the logits and tokens are bit
 * by bit those of an engine that keeps the keys and values of all positions, for every cache and division of
 * the rows, for sequences that grow, go back, share prefixes and are paused, and with prefixes in RAM and on
 * disk. On the processor, and on the cuda back end with a fake GPU. Also where later layers read a window's
 * keys and values, and beside recurrent states with compressed entries, which stay. */
#include "base/mem.h"
#include "base/num.h"
#include "kernels/cuda_load.h"
#include "support/fakecuda.h"
#include "engine/state.h"
#include "session/session.h"
#include "support/engine.h"
#include "support/logits.h"
#include "support/slow.h"
#include "support/tempdir.h"
#include "support/tinyfolder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { WINDOW = 30, N_CTX = 512, N_VOCAB = 300, N_TOKEN = 400, MIXED = 50 };

static bool on_gpu;         /* set by `cuda` */
static const char *fixture; /* set by the setups below; NULL: a small Gemma 3 */

static int cuda(void **state) {
    (void)state;
    cuda_load_with(fake_cuda((size_t)1 << 28, 0, 0));
    on_gpu = true;
    return 0;
}

static int processor(void **state) {
    (void)state;
    if (on_gpu && fake_cuda_wrong())
        fail_msg("%s", fake_cuda_wrong());
    on_gpu = false;
    fixture = NULL;
    return 0;
}

static int shared_layers(void **state) {
    (void)state;
    fixture = "tests/data/arch/gemma3n";
    return 0;
}

static int shared_layers_cuda(void **state) {
    fixture = "tests/data/arch/gemma4";
    return cuda(state);
}

static int states(void **state) {
    (void)state;
    fixture = "tests/data/arch/deepseek_v4";
    return 0;
}

static int cache_type(int kv) {
    const bool has_entries = fixture && strstr(fixture, "deepseek_v4"); /* which are never in codes */
    if (kv != NIB_KV_F32 && (has_entries || (on_gpu && fixture)))
        return NIB_KV_F16;
    return kv == MIXED ? NIB_KV_4 : kv == NIB_KV_F32 && on_gpu ? NIB_KV_F16 : kv;
}

/* whole: layers with a window keep all positions too. Otherwise there are few parts, as under a cap, and some
 * passes reuse theirs. */
static nib_engine *open_engine(int kv, int64_t n_batch, bool whole) {
    static char path[512];
    nib_engine_options o = engine_usual();
    nib_engine *e = NULL;
    nib_error err = {0};
    if (!*path && !fixture)
        snprintf(path, sizeof path, "%s", tiny_folder_gemma3(WINDOW));
    o.n_ctx = N_CTX;
    o.n_batch = n_batch;
    o.n_thread = 1;
    o.backend = on_gpu ? "cuda" : "cpu";
    o.kv_type = cache_type(kv);
    const engine_internal internal = {
        .kv_layers = kv == MIXED && o.kv_type == NIB_KV_4 && !on_gpu ? "0=f16,3=kv8" : NULL};
    if (engine_open(fixture ? fixture : path, &o, &internal, &e, &err))
        fail_msg("%s", err.message);
    assert_true(e->core.resolved.formats.slides);
    assert_int_equal(e->core.resolved.formats.kept, KV_KEPT);
    e->core.resolved.formats.slides = !whole;
    e->core.resolved.formats.kept = 0;
    if (!fixture)
        e->core.resolved.formats.rows = kv == NIB_KV_8 ? 128 : 0;
    return e;
}

static void fewer_bytes(void **state) {
    (void)state;
    uint64_t bytes[2];
    for (int whole = 0; whole < 2; whole++) {
        nib_engine *e = open_engine(NIB_KV_F16, 64, whole);
        const kv_formats formats = e->core.resolved.formats;
        assert_int_equal(kv_table_bytes(e->core.layout, formats, false, 16384, &bytes[whole], NULL), NIB_OK);
        nib_engine_close(e);
    }
    assert_true(bytes[0] < bytes[1] / 5 * 4);
}

/* Layers that others read are in f16 where codes are requested; a session cannot have them in codes. */
static void codes_of_shared_layers(void **state) {
    (void)state;
    nib_engine *e = open_engine(NIB_KV_4, 64, false);
    const nib_session_options coded = {.kv_type = NIB_KV_8};
    nib_session *s;
    nib_error err = {0};
    for (int i = 0; i < 4; i++)
        assert_int_equal(kv_format_of(e->core.resolved.formats, i), i < 2 ? TYPE_KV4 : TYPE_F16);
    assert_int_equal(nib_session_open(e, &coded, &s, &err), NIB_E_USAGE);
    assert_non_null(strstr(err.message, "those of layer 2, which later layers read, are in f16 or f32"));
    nib_engine_close(e);
}

static void any_rows(void **state) {
    (void)state;
    static const int kinds[] = {NIB_KV_F32, MIXED};
    static const int64_t batches[] = {512, 50};
    int32_t tokens[N_TOKEN];
    logits_tokens(tokens, N_TOKEN, N_VOCAB, 1);
    for (size_t k = 0; k < NUM_COUNT(kinds); k += (size_t)slow_step(2)) {
        nib_engine *whole = open_engine(kinds[k], 64, true);
        logits_rows want = logits_of(whole, tokens, N_TOKEN);
        nib_engine_close(whole);
        for (size_t i = 0; i < NUM_COUNT(batches); i += (size_t)slow_step(2)) {
            nib_engine *e = open_engine(kinds[k], batches[i], false);
            logits_rows got = logits_of(e, tokens, N_TOKEN);
            assert_memory_equal(got.data, want.data, logits_bytes(&want));
            free(got.data);
            nib_engine_close(e);
        }
        free(want.data);
    }
}

/* Grows, goes back and goes another way; two sessions, which share prefixes. */
static void back_and_forth(void **state) {
    (void)state;
    static const int kinds[] = {NIB_KV_4};
    static const struct {
        int n, seed;
    } steps[] = {{40, 1}, {300, 1}, {301, 1}, {290, 1}, {291, 1}, {180, 2}, {400, 1}, {370, 1},
                 {20, 1}, {350, 2}, {349, 2}, {400, 2}, {398, 3}, {64, 3},  {65, 3},  {400, 1}};
    for (size_t k = 0; k < NUM_COUNT(kinds); k += (size_t)slow_step(2)) {
        nib_engine *e[2] = {open_engine(kinds[k], 200, false), open_engine(kinds[k], 200, true)};
        nib_session *s[2][2];
        for (int i = 0; i < 4; i++)
            s[i / 2][i % 2] = session_must_open(e[i % 2]);
        for (size_t i = 0; i < NUM_COUNT(steps) / (SANITIZED && on_gpu   ? 4
                                                   : SANITIZED || on_gpu ? 2
                                                                         : 1);
             i++) {
            int32_t tokens[N_TOKEN];
            logits_tokens(tokens, N_TOKEN, N_VOCAB, 1);
            logits_tokens(tokens + 120 * (steps[i].seed - 1), N_TOKEN - 120 * (steps[i].seed - 1), N_VOCAB,
                          steps[i].seed);
            for (int w = 0; w < 2; w++)
                assert_int_equal(nib_session_sync(s[i % 3 == 2][w], tokens, (size_t)steps[i].n, NULL),
                                 NIB_OK);
            assert_memory_equal(nib_session_logits(s[i % 3 == 2][0]), nib_session_logits(s[i % 3 == 2][1]),
                                N_VOCAB * sizeof(float));
        }
        for (int i = 0; i < 4; i++)
            nib_session_close(s[i / 2][i % 2]);
        nib_engine_close(e[0]);
        nib_engine_close(e[1]);
    }
}

/* The last tokens of an answer can be generated again without its prompt: as many as parts are left for. */
static void an_answer_again(void **state) {
    (void)state;
    nib_engine *e = open_engine(NIB_KV_F16, 512, false);
    nib_session *s = session_must_open(e);
    int32_t tokens[N_TOKEN];
    logits_tokens(tokens, N_TOKEN, N_VOCAB, 1);
    assert_int_equal(session_must_compute(s, tokens, 300), 300);
    for (int n = 301; n < (SANITIZED ? 340 : 400); n++)
        assert_int_equal(session_must_compute(s, tokens, n), 1);
    assert_int_equal(session_must_compute(s, tokens, 302), 1);
    assert_int_equal(session_must_compute(s, tokens, 320), 18);
    nib_session_close(s);
    nib_engine_close(e);
}

/* ---- batches ---- */

enum { N_REQUEST = 8 };
/* The fake GPU is slow. */
static int n_request(void) {
    return N_REQUEST / (on_gpu ? 2 : 1) / (SANITIZED ? 2 : 1);
}

typedef struct work {
    int32_t prompt[N_CTX];
    nib_generate_options o;
    nib_result out;
} work;

/* Prompts with prefixes in common, of which some end within a pass of the first. */
static void make(work *w, int i) {
    const int n = 60 + i * 47 % 270, shared = i % 4 ? 30 + i % 3 * 100 : 0;
    nib_generate_options_init(&w->o);
    for (int k = 0; k < n; k++)
        w->prompt[k] = k < shared ? (k * 7 + 1) % N_VOCAB : (k * 31 + i * 17 + 3) % N_VOCAB;
    w->o.prompt = w->prompt;
    w->o.n_prompt = (size_t)n;
    w->o.n_predict = 30 + i * 13 % 70;
    w->o.ignore_eos = true;
    w->o.sampling.temperature = 0;
}

/* Answers all requests and closes the batch; *computed: rows of prompts. */
static void answer_all(nib_engine *e, const nib_batch_options *o, work *all, int64_t *computed,
                       nib_batch_counts *counts) {
    nib_batch *b = batch_must_open(e, o);
    int32_t n_left = 1;
    int64_t id;
    nib_result r;
    nib_error err = {0};
    *computed = 0;
    for (int i = 0; i < n_request(); i++) {
        make(&all[i], i);
        assert_int_equal(nib_batch_add(b, &all[i].o, &id, NULL), NIB_OK);
        assert_int_equal(id, i + 1);
    }
    while (n_left > 0)
        if (nib_batch_step(b, &n_left, &err))
            fail_msg("%s", err.message);
    for (; nib_batch_take(b, &id, &r, NULL); all[id - 1].out = r)
        *computed += r.prompt_n;
    nib_batch_count(b, counts);
    nib_batch_close(b);
}

static void compare(work *all, const work *want) {
    for (int i = 0; i < n_request(); i++) {
        assert_int_equal(all[i].out.n_token, want[i].out.n_token);
        assert_memory_equal(all[i].out.tokens, want[i].out.tokens,
                            want[i].out.n_token * sizeof *want[i].out.tokens);
        nib_result_clear(&all[i].out);
    }
}

static void batches(void **state) {
    (void)state;
    static work want[N_REQUEST], all[N_REQUEST];
    static const int kinds[] = {NIB_KV_8, NIB_KV_F16}; /* each in half of the ways */
    const nib_batch_options ways[] = {{.n_sequence = N_REQUEST, .cache_ram = 0},
                                      {.n_sequence = 3, .cache_ram = 4 << 20},
                                      {.n_sequence = 6, .optimistic = true, .n_position = 640},
                                      {.n_sequence = 4, .n_position = 700, .n_prompt = 40, .n_draft = 3}};
    for (size_t k = 0; k < NUM_COUNT(kinds); k += (size_t)slow_step(2)) {
        nib_batch_counts counts;
        int64_t computed, before;
        nib_engine *whole = open_engine(kinds[k], 256, true);
        answer_all(whole, &ways[0], want, &before, &counts);
        nib_engine_close(whole);
        uint64_t paused = 0;
        for (size_t i = SANITIZED ? 2 : k; i < NUM_COUNT(ways); i += 2) {
            nib_engine *e = open_engine(kinds[k], 256, false);
            answer_all(e, &ways[i], all, &computed, &counts);
            compare(all, want);
            paused += counts.paused;
            if (i == 0) /* parts of other sequences' reservations hold the common prefixes */
                assert_true(computed <= before + before / 4);
            nib_engine_close(e);
        }
        assert_true(k > 0 || paused > 0 || on_gpu || SANITIZED);
        for (int i = 0; i < n_request(); i++)
            nib_result_clear(&want[i].out);
    }
}

/* The second batch finds the prompts of the first on disk, whose parts were written after each pass. */
static void prefixes_on_disk(void **state) {
    (void)state;
    static work want[N_REQUEST], all[N_REQUEST];
    char folder[512];
    snprintf(folder, sizeof folder, "%s", temp_path("prefixes"));
    const nib_batch_options o = {
        .n_sequence = N_REQUEST, .prefix_cache = folder, .prefix_bytes = UINT64_C(1) << 30};
    nib_batch_counts counts;
    int64_t first, second;
    nib_engine *e = open_engine(NIB_KV_F16, 256, false);
    answer_all(e, &o, want, &first, &counts);
    nib_engine_close(e);
    e = open_engine(NIB_KV_F16, 256, false);
    answer_all(e, &o, all, &second, &counts);
    assert_true(counts.disk_read > 0 && second < first / 2);
    compare(all, want);
    for (int i = 0; i < n_request(); i++)
        nib_result_clear(&want[i].out);
    nib_engine_close(e);
}

typedef struct waiting {
    nib_batch *batch;
    uint64_t n; /* pages of earlier passes */
} waiting;

/* The pages of a pass are written during the next one. */
static bool wait_written(void *user, const char *what, uint64_t done, uint64_t total) {
    (void)what;
    (void)total;
    waiting *w = user;
    nib_batch_counts counts = {0};
    for (int i = 0; i < 1000 && counts.disk_written < w->n; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
        nib_batch_count(w->batch, &counts);
    }
    w->n = done / KV_BLOCK;
    return true;
}

/* A prompt that has only the first tokens of another one finds their pages on disk, with what windows need at
 * their end, although the other one went on for many windows. */
static void a_prefix_inside_a_prompt(void **state) {
    (void)state;
    char folder[512];
    snprintf(folder, sizeof folder, "%s", temp_path("inside"));
    const nib_batch_options o = {.n_sequence = 1, .prefix_cache = folder, .prefix_bytes = UINT64_C(1) << 30};
    int32_t tokens[N_TOKEN];
    logits_tokens(tokens, N_TOKEN, N_VOCAB, 1);
    for (int n = N_TOKEN, first = 1; n > 0; n = first ? 220 : 0, first = 0) {
        nib_engine *e = open_engine(NIB_KV_F16, 64, false);
        nib_batch *b = batch_must_open(e, &o);
        waiting w = {.batch = b};
        nib_generate_options ask;
        nib_generate_options_init(&ask);
        ask.prompt = tokens;
        ask.n_prompt = (size_t)n;
        ask.n_predict = 1;
        ask.on_prompt = wait_written;
        ask.user = &w;
        nib_result r;
        int64_t id;
        int32_t n_left = 1;
        assert_int_equal(nib_batch_add(b, &ask, &id, NULL), NIB_OK);
        while (n_left > 0)
            assert_int_equal(nib_batch_step(b, &n_left, NULL), NIB_OK);
        assert_true(nib_batch_take(b, &id, &r, NULL));
        assert_int_equal(r.prompt_n, first ? N_TOKEN : 220 - 192);
        nib_result_clear(&r);
        nib_batch_close(b);
        nib_engine_close(e);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_rows),
        cmocka_unit_test(back_and_forth),
        cmocka_unit_test(an_answer_again),
        cmocka_unit_test(batches),
        cmocka_unit_test(prefixes_on_disk),
        cmocka_unit_test(a_prefix_inside_a_prompt),
        cmocka_unit_test_setup_teardown(fewer_bytes, shared_layers, processor),
        cmocka_unit_test_setup_teardown(codes_of_shared_layers, shared_layers, processor),
        cmocka_unit_test_setup_teardown(any_rows, shared_layers, processor),
        cmocka_unit_test_setup_teardown(back_and_forth, shared_layers, processor),
        cmocka_unit_test_setup_teardown(batches, shared_layers, processor),
        cmocka_unit_test_setup_teardown(any_rows, shared_layers_cuda, processor),
        cmocka_unit_test_setup_teardown(batches, shared_layers_cuda, processor),
        cmocka_unit_test_setup_teardown(fewer_bytes, states, processor),
        cmocka_unit_test_setup_teardown(any_rows, states, processor),
        cmocka_unit_test_setup_teardown(back_and_forth, states, processor),
        cmocka_unit_test_setup_teardown(batches, states, processor),
        cmocka_unit_test_setup_teardown(any_rows, cuda, processor),
        cmocka_unit_test_setup_teardown(back_and_forth, cuda, processor),
        cmocka_unit_test_setup_teardown(an_answer_again, cuda, processor),
        cmocka_unit_test_setup_teardown(batches, cuda, processor),
        cmocka_unit_test_setup_teardown(prefixes_on_disk, cuda, processor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
