/* QDEC: a model that adds its residuals back. Residuals of a matrix: test_numbers_residual.c. */
#include "base/num.h"
#include "kernels/cuda_load.h"
#include "kernels/kernels.h"
#include "engine/engine.h"
#include "nib_tools.h"
#include "support/engine.h"
#include "support/fakecuda.h"
#include "support/logits.h"
#include "support/sanitized.h"
#include "support/tempdir.h"
#include "support/tinymodel.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

enum { N_TOKEN = 10 };
static const int32_t tokens[N_TOKEN] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3};

static logits_rows logits_with(const char *path, const nib_engine_options *o) {
    nib_engine *e = engine_must_open(path, o, NULL);
    logits_rows rows = logits_of(e, tokens, N_TOKEN);
    nib_engine_close(e);
    return rows;
}

static nib_engine_options options(const char *original, int bits, int k_chunk) {
    nib_engine_options o = engine_usual();
    o.residual = original;
    o.residual_bits = bits;
    o.k_chunk = k_chunk;
    return o;
}

static const tiny_shape shape = {TYPE_F32, 2, 256, 320, 4, 2, 384, 64, false};

/* How the base is made. */
typedef struct base_kind {
    const char *type, *method;
    double outliers;
} base_kind;
static const base_kind by_rtn = {"n2g64", "rtn", 0}, by_awq = {"n2g64", "awq", 0},
                       with_outliers = {"c3", "squeezellm", 1};

/* An original, and the same model in few bits. */
static const char *original_and_made(char coarse[512], const base_kind *kind) {
    static char whole[512];
    const nib_engine_options o = engine_usual();
    const nib_quantize_options q = {.out = coarse,
                                    .type = kind->type,
                                    .method = kind->method,
                                    .outliers = kind->outliers,
                                    .imatrix = "none"};
    nib_quantize_report report;
    nib_error err;
    snprintf(whole, sizeof whole, "%s", tiny_model("original.gguf", &shape));
    snprintf(coarse, 512, "%s", temp_path("coarse.gguf"));
    if (nib_quantize(whole, &o, &q, &report, &err) != NIB_OK)
        fail_msg("%s", err.message);
    return whole;
}

static const char *original_and_coarse(char coarse[512]) {
    return original_and_made(coarse, &by_rtn);
}

/* Its distance from the original with all channels in halves. */
static double check_model(const base_kind *kind) {
    char coarse[512];
    const char *whole = original_and_made(coarse, kind);
    const nib_engine_options none = options(NULL, 4, 0), quarter = options(whole, 4, 256),
                             widest = options(whole, 16, 1024);
    logits_rows of_whole = logits_with(whole, &none), base = logits_with(coarse, &none),
                some = logits_with(coarse, &quarter), all = logits_with(coarse, &widest);
    const double far = logits_distance(&of_whole, &base), nearer = logits_distance(&of_whole, &some),
                 nearest = logits_distance(&of_whole, &all);
    /* the embedding and the head stay coarse, layers are exact again */
    if (!(nearer < far && nearest < nearer))
        fail_msg("%s: %g, with a quarter of the channels %g, with all in halves %g", kind->method, far,
                 nearer, nearest);
    free(of_whole.data);
    free(base.data);
    free(some.data);
    free(all.data);
    return nearest;
}

/* AWQ multiplies a base's channels: residuals have the same scale. */
static void test_model(void **state) {
    (void)state;
    const double plain = check_model(&by_rtn), scaled = check_model(&by_awq);
    if (!(scaled < 1.2 * plain))
        fail_msg("all channels of AWQ's base leave %g, of a plain one %g", scaled, plain);
    check_model(&with_outliers);
}

static void must_be(const logits_rows *expected, const char *path, const nib_engine_options *o,
                    const char *what) {
    logits_rows found = logits_with(path, o);
    if (memcmp(found.data, expected->data, (size_t)(N_TOKEN * found.n_vocab) * sizeof *found.data))
        fail_msg("%s: other bits", what);
    free(found.data);
}

/* The same bits for any number of threads, op by op, for rows alone and together, and in every run. */
enum { RUNS = SANITIZED ? 2 : 100 };
static void check_same_bits(const base_kind *kind) {
    char coarse[512];
    const char *whole = original_and_made(coarse, kind);
    for (int bits = 8; bits <= 16; bits += 8) {
        nib_engine_options o = options(whole, 4, 100);
        if (SANITIZED && (bits == 16) != (kind->outliers > 0)) /* each once */
            continue;
        o.activation = bits;
        o.residual_rule = bits == 16 ? "weighted" : NULL;
        logits_rows expected = logits_with(coarse, &o);
        o.n_thread = 1;
        must_be(&expected, coarse, &o, "one thread");
        o.n_thread = 3;
        must_be(&expected, coarse, &o, "three threads");
        o.no_fuse = true;
        must_be(&expected, coarse, &o, "op by op");
        o.no_fuse = false;
        o.n_batch = 1;
        must_be(&expected, coarse, &o, "row by row");
        o.n_batch = 16;
        nib_engine *e = engine_must_open(coarse, &o, NULL);
        for (int run = 0; run < RUNS; run++) {
            logits_rows found = logits_of(e, tokens, N_TOKEN);
            if (memcmp(found.data, expected.data, (size_t)(N_TOKEN * found.n_vocab) * sizeof *found.data))
                fail_msg("run %d of %d: other bits", run, RUNS);
            free(found.data);
        }
        nib_engine_close(e);
        free(expected.data);
    }
}

static void test_same_bits(void **state) {
    (void)state;
    check_same_bits(&by_rtn);
    check_same_bits(&with_outliers);
}

/* Generated tokens, unlike rows of a prompt, are replayed as a graph, fetches included. */
static void generate_replayed(const char *coarse, const nib_engine_options *o) {
    enum { N = 6 };
    nib_result result;
    nib_error err = {0};
    cuda_load_with(fake_cuda(1 << 28, 0, 0));
    if (engine_life(coarse, o, NULL, N, &result, &err))
        fail_msg("%s", err.message);
    assert_int_equal(result.n_token, N);
    nib_result_clear(&result);
    assert_null(fake_cuda_wrong());
    assert_int_equal(fake_cuda_held(), 0);
    assert_true(fake_cuda_replayed() > 0);
    assert_true(fake_cuda_fetched() > 0);
    assert_int_equal(fake_cuda_batch() > 0, o->n_sequence > 1);
}

/* The GPU's back end with the fake's kernels agrees with the processor except for the last bits: prompts of
 * few and many rows, and one token after the other, which is replayed. */
static void check_gpu(const base_kind *kind) {
    char coarse[512];
    const char *whole = original_and_made(coarse, kind);
    nib_engine_options o = options(whole, 4, 100), none = options(NULL, 4, 0);
    o.activation = none.activation = 16;
    o.kv_type = none.kv_type = NIB_KV_F16;
    logits_rows by_cpu = logits_with(coarse, &o), base = logits_with(coarse, &none);
    for (int i = 0; i < 4; i += SANITIZED ? 3 : 1) {
        const int n_batch = i % 2 ? 16 : 1;
        o.backend = "cuda";
        o.n_batch = n_batch;
        o.n_sequence = i < 2 ? 1 : 20; /* with the kernels for many sequences */
        cuda_load_with(fake_cuda(1 << 28, 0, 0));
        logits_rows found = logits_with(coarse, &o);
        if (!(logits_distance(&by_cpu, &found) < 0.02 * logits_distance(&by_cpu, &base)))
            fail_msg("%s, %d rows: %g off, without residuals %g", kind->type, n_batch,
                     logits_distance(&by_cpu, &found), logits_distance(&by_cpu, &base));
        assert_null(fake_cuda_wrong());
        assert_int_equal(fake_cuda_held(), 0);
        assert_int_equal(fake_cuda_fetched(), N_TOKEN * shape.n_layer * 4);
        free(found.data);
        generate_replayed(coarse, &o);
    }
    cuda_load_with(NULL);
    free(by_cpu.data);
    free(base.data);
}

/* Products are in the second stream if their rows have many channels, else the fetch is. A prompt of N rows
 * fetches for all of them at once. */
static void test_order(void **state) {
    (void)state;
    enum { N = 5 };
    static const struct {
        int k_chunk;
        bool first;
    } cases[] = {{3, false}, {4, true}};
    char coarse[512];
    const char *whole = original_and_coarse(coarse);
    for (size_t i = 0; i < NUM_COUNT(cases); i++) {
        nib_engine_options o = options(whole, 4, cases[i].k_chunk);
        const int64_t n = N * 4 * shape.n_layer;
        o.activation = 16;
        o.backend = "cuda";
        cuda_load_with(fake_cuda(1 << 28, 0, 0));
        nib_engine *e = engine_must_open(coarse, &o, NULL);
        logits_rows found = logits_of(e, tokens, N);
        nib_engine_close(e);
        free(found.data);
        assert_null(fake_cuda_wrong());
        assert_int_equal(fake_cuda_fetched(), n);
        assert_int_equal(fake_cuda_fetched_first(), cases[i].first ? n : 0);
        generate_replayed(coarse, &o);
    }
    cuda_load_with(NULL);
}

static void test_gpu(void **state) {
    (void)state;
    check_gpu(&by_rtn);
    check_gpu(&with_outliers);
}

/* A trace has the fetches beside the products, with their bytes over the link. */
static void test_spans(void **state) {
    (void)state;
    enum { MAX = 200 };
    static nib_span spans[MAX];
    char coarse[512];
    const char *whole = original_and_coarse(coarse);
    nib_engine_options o = options(whole, 4, 100);
    nib_span_scale scale;
    size_t n, dropped, n_fetch = 0, n_add = 0;
    double bytes = 0;
    o.activation = 16;
    o.kv_type = NIB_KV_F16;
    o.backend = "cuda";
    cuda_load_with(fake_cuda(1 << 28, 0, 0));
    nib_engine *e = engine_must_open(coarse, &o, NULL);
    nib_session *s = session_must_open(e);
    assert_int_equal(nib_session_sync(s, tokens, 4, NULL), NIB_OK);
    assert_int_equal(nib_engine_spans_start(e, MAX, &scale, NULL), NIB_OK);
    assert_int_equal(nib_session_sync(s, tokens, 5, NULL), NIB_OK);
    assert_int_equal(nib_engine_spans_stop(e, spans, &n, &dropped, NULL), NIB_OK);
    for (size_t i = 0; i < n; i++)
        if (!strcmp(spans[i].what, "fetch residuals")) {
            assert_true(spans[i].lane == NIB_LANE_SIDE && spans[i].link);
            bytes += spans[i].bytes;
            n_fetch++;
        } else if (!strcmp(spans[i].what, "add residuals"))
            n_add++;
    assert_int_equal(n_fetch, shape.n_layer * 4);
    assert_int_equal(n_add, n_fetch);
    /* Only gate and up: four bits a weight of the chosen channels, and a scale for each output. */
    assert_true(bytes > (double)shape.n_layer * (double)(2 * shape.d_ff) *
                            ((double)salient_count(shape.d_model, 100) / 2 + sizeof(float)));
    nib_session_close(s);
    nib_engine_close(e);
    assert_null(fake_cuda_wrong());
    assert_int_equal(fake_cuda_held(), 0);
    cuda_load_with(NULL);
}

/* A later choice takes effect from the next pass on, also for replayed passes: no channels, then as before.
 */
static void check_choices(const nib_engine_options *o, const char *coarse, const logits_rows *with,
                          const logits_rows *without) {
    nib_engine *e = engine_must_open(coarse, o, NULL);
    const residual_kinds *kinds = engine_residual_kinds(e);
    assert_int_equal(kinds->n, 4);
    assert_string_equal(kinds->names[0], "q+k+v");
    assert_string_equal(kinds->names[2], "gate+up");
    assert_true(kinds->kinds[0].k == shape.d_model && kinds->kinds[3].k == shape.d_ff);
    for (int i = 0; i < 4; i++) {
        tune_choice c = {{0}, {0}};
        for (int k = 0; k < kinds->n && i % 2 == 0; k++)
            c.k_chunk[k] = 100;
        engine_residuals_choose(e, &c);
        logits_rows found = logits_of(e, tokens, N_TOKEN);
        const logits_rows *expected = i % 2 ? without : with;
        if (memcmp(found.data, expected->data, (size_t)(N_TOKEN * found.n_vocab) * sizeof *found.data))
            fail_msg("choice %d: other bits", i);
        free(found.data);
    }
    nib_engine_close(e);
}

static void test_choices(void **state) {
    (void)state;
    char coarse[512];
    const char *whole = original_and_coarse(coarse);
    nib_engine_options o = options(whole, 4, 100), none = options(NULL, 4, 0);
    for (int gpu = 0; gpu < 2; gpu++) {
        o.backend = none.backend = gpu ? "cuda" : NULL;
        o.n_batch = none.n_batch = gpu; /* 1: token by token, which is replayed */
        o.activation = none.activation = gpu ? 16 : 8;
        cuda_load_with(gpu ? fake_cuda(1 << 28, 0, 0) : NULL);
        logits_rows with = logits_with(coarse, &o), without = logits_with(coarse, &none);
        assert_true(logits_distance(&without, &with) > 0);
        check_choices(&o, coarse, &with, &without);
        free(with.data);
        free(without.data);
    }
    cuda_load_with(NULL);
}

/* Adds residuals of these kinds to a plan's text. */
static void write_plan(const char *text, const char *kinds, char *out, size_t size) {
    snprintf(out, size, "%.*s, \"residuals\": {\"kinds\": [%s]}}", (int)strlen(text) - 2, text, kinds);
}

/* The tuner on the engine's own tokens: the slowdown that it promises, and a plan with the same choice. */
static void test_tuned(void **state) {
    (void)state;
    char coarse[512], said_too[8192], *json, *text;
    const char *whole = original_and_coarse(coarse);
    nib_engine_options o = options(whole, 4, SANITIZED ? 8 : 64);
    nib_error err;
    nib_engine *e = engine_must_open(coarse, &o, NULL);
    assert_int_equal(nib_residuals_tune(e, 0.5, 0, &json, &err), NIB_OK);
    json_t *found = json_loads(json, 0, NULL);
    assert_true(json_real_value(json_object_get(found, "slowdown")) <= 0.5);
    assert_int_equal(json_array_size(json_object_get(found, "kinds")), 4);
    json_decref(found);
    nib_free(json);
    nib_engine_close(e);
    logits_rows other;
    const nib_engine_options plain = engine_usual();
    assert_int_equal(nib_plan(coarse, &plain, NULL, &text, &err), NIB_OK);
    for (int i = 0; i < 3; i++) {
        static const char *const said[] = {"{\"products\": \"q+k+v\", \"k_chunk\": 65}",
                                           "{\"products\": \"qkv\", \"k_chunk\": 8}",
                                           "{\"products\": \"o\", \"k_chunk\": 1025}"};
        write_plan(text, said[i], said_too, sizeof said_too);
        o.plan = said_too;
        if (i > 0) {
            assert_int_equal(nib_engine_open(coarse, &o, &e, &err), NIB_E_MODEL);
            continue;
        }
        assert_int_equal(nib_engine_open(coarse, &o, &e, &err), NIB_OK);
        other = logits_of(e, tokens, N_TOKEN);
        nib_engine_close(e);
        const nib_engine_options none = options(NULL, 4, 0), all = options(whole, 4, 64);
        logits_rows base = logits_with(coarse, &none), with_all = logits_with(coarse, &all);
        assert_true(logits_distance(&base, &other) > 0 && logits_distance(&with_all, &other) > 0);
        free(base.data);
        free(with_all.data);
        free(other.data);
    }
    nib_free(text);
    e = engine_must_open(coarse, &plain, NULL);
    assert_int_equal(nib_residuals_tune(e, 0.5, 0, &json, &err), NIB_E_USAGE);
    nib_engine_close(e);
}

static uint64_t weight_bytes(const char *path, const nib_engine_options *o) {
    nib_memory now;
    nib_error err;
    nib_engine *e;
    if (nib_engine_open(path, o, &e, &err) != NIB_OK)
        fail_msg("%s", err.message);
    nib_engine_memory(e, &now);
    nib_engine_close(e);
    return now.owner[NIB_OWNER_WEIGHTS];
}

/* A plan's residuals are not left out silently, and no memory is taken where it has no channels. */
static void test_planned(void **state) {
    (void)state;
    char coarse[512], planned[8192], *text;
    const char *whole = original_and_coarse(coarse);
    const nib_engine_options plain = engine_usual();
    nib_engine_options without = plain, with = options(whole, 4, 64);
    nib_error err;
    nib_engine *e;
    assert_int_equal(nib_plan(coarse, &plain, NULL, &text, &err), NIB_OK);
    without.plan = with.plan = planned;
    write_plan(text, "{\"products\": \"down\", \"k_chunk\": 100}", planned, sizeof planned);
    assert_int_equal(nib_engine_open(coarse, &without, &e, &err), NIB_E_USAGE);
    assert_non_null(strstr(err.message, "--residual"));
    uint64_t down;
    assert_true(residual_bytes(4, shape.d_model, shape.d_ff, &down));
    const uint64_t none = weight_bytes(coarse, &plain);
    assert_int_equal(weight_bytes(coarse, &with) - none, (uint64_t)shape.n_layer * down);
    assert_int_equal(nib_engine_open(coarse, &with, &e, &err), NIB_OK);
    assert_int_equal(nib_residuals_tune(e, 0.5, 0, &(char *){NULL}, &err), NIB_E_USAGE);
    nib_engine_close(e);
    with.k_chunk = 0; /* the plan's channels apply, not the request's */
    assert_int_equal(weight_bytes(coarse, &with) - none, (uint64_t)shape.n_layer * down);
    write_plan(text, "{\"products\": \"down\", \"k_chunk\": 0}", planned, sizeof planned);
    assert_int_equal(weight_bytes(coarse, &with), none);
    assert_int_equal(weight_bytes(coarse, &without), none);
    nib_free(text);
}

/* Tuned to no channels, residuals return their memory. */
static void test_settled(void **state) {
    (void)state;
    char coarse[512];
    nib_memory before, after;
    const nib_engine_options o = options(original_and_coarse(coarse), 4, 64);
    nib_engine *e = engine_must_open(coarse, &o, NULL);
    tune_choice c = {{0}, {0}};
    nib_engine_memory(e, &before);
    c.k_chunk[2] = 64; /* gate and up */
    engine_residuals_settle(e, &c);
    nib_engine_memory(e, &after);
    uint64_t kept;
    assert_true(residual_bytes(4, shape.d_ff, shape.d_model, &kept));
    assert_int_equal(engine_residual_bytes(e), 2 * (uint64_t)shape.n_layer * kept);
    assert_true(after.owner[NIB_OWNER_WEIGHTS] < before.owner[NIB_OWNER_WEIGHTS]);
    logits_rows settled = logits_of(e, tokens, N_TOKEN);
    nib_engine_close(e);
    e = engine_must_open(coarse, &o, NULL);
    engine_residuals_choose(e, &c);
    logits_rows chosen = logits_of(e, tokens, N_TOKEN);
    nib_engine_close(e);
    assert_memory_equal(settled.data, chosen.data, (size_t)(N_TOKEN * chosen.n_vocab) * sizeof *chosen.data);
    free(settled.data);
    free(chosen.data);
}

/* The perplexity that residuals give, for a model with a vocabulary: without, with the choice, and for steps.
 */
static void test_gain(void **state) {
    (void)state;
    static const tiny_shape words = {TYPE_F32, 2, 256, 320, 4, 2, 1801, 64, false};
    char whole[512], coarse[512], *json;
    const nib_engine_options plain = engine_usual();
    const nib_quantize_options q = {.out = coarse, .type = "n2g64", .imatrix = "none"};
    nib_quantize_report report;
    nib_error err;
    nib_engine *e;
    snprintf(whole, sizeof whole, "%s", tiny_model_with_words("words.gguf", &words));
    snprintf(coarse, sizeof coarse, "%s", temp_path("coarse-words.gguf"));
    assert_int_equal(nib_quantize(whole, &plain, &q, &report, &err), NIB_OK);
    nib_engine_options o = options(whole, 4, 64);
    if (nib_engine_open(coarse, &o, &e, &err) || nib_residuals_tune(e, 9, 60, &json, &err))
        fail_msg("%s", err.message);
    json_t *found = json_loads(json, 0, NULL), *steps = json_object_get(found, "steps");
    const double without = json_real_value(json_object_get(found, "perplexity_without")),
                 with = json_real_value(json_object_get(found, "perplexity"));
    if (!(without > 1 && with > 1 && without != with))
        fail_msg("perplexity %g, with residuals %g", without, with);
    assert_true(json_array_size(steps) > 0);
    for (size_t i = 0; i < json_array_size(steps); i++) {
        const json_t *step = json_array_get(steps, i);
        assert_true(json_integer_value(json_object_get(step, "read")) > 0 &&
                    json_integer_value(json_object_get(step, "read")) <=
                        json_integer_value(json_object_get(found, "ram")));
    }
    assert_true(json_real_value(json_object_get(json_array_get(steps, 0), "perplexity")) > 1);
    json_decref(found);
    nib_free(json);
    nib_engine_close(e);
}

/* Residuals are on the ledger: opening under a cap that cannot hold them fails. */
static void test_budget(void **state) {
    (void)state;
    char coarse[512];
    const char *whole = original_and_coarse(coarse);
    const nib_engine_options o = options(whole, 4, 8);
    nib_memory with, without;
    nib_engine *e = engine_must_open(coarse, &o, NULL);
    nib_engine_memory(e, &with);
    nib_engine_close(e);
    const nib_engine_options plain = engine_usual();
    e = engine_must_open(coarse, &plain, NULL);
    nib_engine_memory(e, &without);
    nib_engine_close(e);
    const int64_t d = shape.d_model, kv = shape.d_model * shape.n_kv_head / shape.n_head;
    uint64_t layer = 0;
    const int64_t shapes[][2] = {{d, d},          {kv, d},         {kv, d},        {d, d},
                                 {shape.d_ff, d}, {shape.d_ff, d}, {d, shape.d_ff}};
    for (size_t i = 0; i < NUM_COUNT(shapes); i++) {
        uint64_t bytes;
        assert_true(residual_bytes(4, shapes[i][0], shapes[i][1], &bytes));
        layer += bytes;
    }
    assert_int_equal(with.owner[NIB_OWNER_WEIGHTS] - without.owner[NIB_OWNER_WEIGHTS],
                     (uint64_t)shape.n_layer * layer);
}

static void test_refused(void **state) {
    (void)state;
    char coarse[512];
    const char *whole = original_and_coarse(coarse);
    const tiny_shape larger = {TYPE_F32, 2, 320, 288, 4, 2, 384, 64, false};
    nib_engine *e;
    nib_error err;
    nib_engine_options o = options(tiny_model("other.gguf", &larger), 4, 8);
    assert_int_equal(nib_engine_open(coarse, &o, &e, &err), NIB_E_MODEL);
    tiny_shape others = shape; /* as many layers of the same shapes, with other values */
    others.n_layer++;
    o = options(tiny_model_without("others.gguf", &others, 1), 4, 8);
    assert_int_equal(nib_engine_open(coarse, &o, &e, &err), NIB_E_MODEL);
    assert_non_null(strstr(err.message, "others.gguf") ? strstr(err.message, "another model") : NULL);
    o = options(coarse, 4, 8); /* rounding has removed nothing */
    assert_int_equal(nib_engine_open(coarse, &o, &e, &err), NIB_E_MODEL);
    o = options(whole, 5, 8);
    assert_int_equal(nib_engine_open(coarse, &o, &e, &err), NIB_E_USAGE);
    o = options(whole, 4, 8);
    o.residual_rule = "best";
    assert_int_equal(nib_engine_open(coarse, &o, &e, &err), NIB_E_USAGE);
    o = options(whole, 4, 8);
    o.residual_rule = "static"; /* the original's channels were never measured */
    assert_int_equal(nib_engine_open(coarse, &o, &e, &err), NIB_E_NOTFOUND);
    o = options(whole, 4, 8);
    o.backend = "check";
    assert_int_equal(nib_engine_open(coarse, &o, &e, &err), NIB_E_USAGE);
    o = options(whole, 4, 8);
    assert_int_equal(nib_engine_open(whole, &o, &e, &err), NIB_E_MODEL); /* it has no rounded weights */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model),   cmocka_unit_test(test_same_bits), cmocka_unit_test(test_budget),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_gpu),       cmocka_unit_test(test_spans),
        cmocka_unit_test(test_choices), cmocka_unit_test(test_tuned),     cmocka_unit_test(test_gain),
        cmocka_unit_test(test_order),   cmocka_unit_test(test_planned),   cmocka_unit_test(test_settled)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
