/* nib_tools.h from C: a model is described and made, and its logits are written; every failing allocation is
 * an error.
 */
#include "nib_tools.h"

#include "base/file.h"
#include "base/jsonx.h"
#include "base/mem.h"
#include "formats/container.h"
#include "support/engine.h"
#include "support/faults.h"
#include "support/logits.h"
#include "support/tempdir.h"
#include "support/tinymodel.h"
#include "synth/routing.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const tiny_shape shape = {TYPE_Q8_0, 2, 64, 128, 4, 2, 96, 64, false};

static json_t *described(const char *path) {
    char *text;
    json_t *doc;
    nib_error err;
    if (nib_model_describe(path, &text, &err) != NIB_OK)
        fail_msg("%s", err.message);
    assert_int_equal(jsonx_parse(text, strlen(text), &doc, &err), NIB_OK);
    nib_free(text);
    return doc;
}

static long long number(const json_t *doc, const char *key) {
    assert_true(json_is_integer(json_object_get(doc, key)));
    return (long long)json_integer_value(json_object_get(doc, key));
}

static void describes(void **state) {
    (void)state;
    json_t *doc = described(tiny_model("tools.gguf", &shape));
    assert_string_equal(json_string_value(json_object_get(doc, "arch")), "llama");
    assert_string_equal(json_string_value(json_object_get(doc, "container")), "gguf");
    assert_int_equal(number(doc, "n_layer"), shape.n_layer);
    assert_int_equal(number(doc, "n_vocab"), shape.n_vocab);
    /* 2 layers, keys and values, 2 heads of 16, 2 bytes each */
    assert_int_equal(number(doc, "kv_bytes"), 2 * 2 * 2 * 16 * 2);
    long long bytes = 0;
    size_t i;
    const json_t *t;
    json_array_foreach(json_object_get(doc, "tensors"), i, t) bytes += number(t, "bytes");
    assert_int_equal(bytes, number(doc, "bytes"));
    json_decref(doc);
    char *text;
    nib_error err;
    assert_int_equal(nib_model_describe("/no/such/model", &text, &err), NIB_E_NOTFOUND);
}

static nib_status describe_once(void *path, nib_error *err) {
    char *text;
    NIB_TRY(nib_model_describe(path, &text, err));
    fault_made(text, strlen(text));
    nib_free(text);
    return NIB_OK;
}

static void describes_whole_or_not(void **state) {
    char path[512];
    (void)state;
    snprintf(path, sizeof path, "%s", tiny_model("tools.gguf", &shape));
    json_set_alloc_funcs(mem_alloc, mem_free);
    assert_true(fault_sweep(FAULT_ALLOC, 1, describe_once, path) > 50);
    json_set_alloc_funcs(malloc, free);
}

static void makes(void **state) {
    char first[512], second[512];
    nib_synth_report r;
    nib_error err;
    (void)state;
    snprintf(first, sizeof first, "%s", temp_path("first.gguf"));
    snprintf(second, sizeof second, "%s", temp_path("second.gguf"));
    nib_synth_options o = {.shape = "SmolLM2-135M", .n_layer = 1, .hollow = true};
    assert_int_equal(nib_synth(&o, first, &r, &err), NIB_OK);
    assert_string_equal(r.shape, "smollm2-135m");
    assert_string_equal(r.type, "q4_0");
    json_t *doc = described(first);
    assert_int_equal(number(doc, "n_layer"), 1);
    assert_int_equal(number(doc, "bytes"), r.bytes);
    json_decref(doc);
    o.shape = "no-such";
    assert_int_equal(nib_synth(&o, second, &r, &err), NIB_E_USAGE);
    assert_non_null(strstr(err.message, "llama-3-8b"));
    o = (nib_synth_options){.shape = "smollm2-135m", .type = "q2_k"};
    assert_int_equal(nib_synth(&o, second, &r, &err), NIB_E_USAGE);
    assert_false(path_exists(second));
    size_t n = 0;
    while (nib_synth_shape(n))
        n++;
    assert_true(n > 10);
}

/* The mixtures have the parameters that their makers publish, within a few per cent, and open. */
static void makes_mixtures(void **state) {
    (void)state;
    static const struct {
        const char *shape;
        double params, active; /* in billions */
    } of[] = {{"qwen3-30b-a3b", 30.5, 3.3},   {"qwen3.5-35b-a3b", 35, 3.4}, {"gpt-oss-20b", 20.9, 3.6},
              {"gpt-oss-120b", 116.8, 5.1},   {"glm-4.5-air", 106.5, 12.5}, {"deepseek-v3", 671, 37.5},
              {"gemma-4-26b-a4b", 25.8, 3.9}, {"lfm2-8b-a1b", 8.3, 1.55},   {"granite-4-h-small", 32, 9.2}};
    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++) {
        const char *path = temp_path("mixture.gguf");
        nib_error err;
        const nib_synth_options o = {.shape = of[i].shape, .hollow = true};
        if (nib_synth(&o, path, NULL, &err) != NIB_OK)
            fail_msg("%s: %s", of[i].shape, err.message);
        json_t *doc = described(path);
        const double params = (double)number(doc, "params") / 1e9;
        const double active = (double)number(doc, "active_params") / 1e9;
        if (fabs(params / of[i].params - 1) > 0.04 || fabs(active / of[i].active - 1) > 0.15)
            fail_msg("%s: found %.2f B parameters, %.2f B active", of[i].shape, params, active);
        json_decref(doc);
        remove(path);
    }
}

/* With any number of layers they are models, too. */
static void makes_a_few_layers(void **state) {
    (void)state;
    static const char *const shapes[] = {"qwen3-30b-a3b", "qwen3.5-35b-a3b",  "gpt-oss-20b",
                                         "glm-4.5-air",   "deepseek-v3",      "gemma-4-26b-a4b",
                                         "lfm2-8b-a1b",   "granite-4-h-small"};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int n = 2; n < 8; n += 2) {
            const char *path = temp_path("few.gguf");
            nib_error err;
            const nib_synth_options o = {.shape = shapes[i], .n_layer = n, .hollow = true};
            if (nib_synth(&o, path, NULL, &err) != NIB_OK)
                fail_msg("%s: %s", shapes[i], err.message);
            json_t *doc = described(path);
            assert_int_equal(number(doc, "n_layer"), n);
            json_decref(doc);
            remove(path);
        }
}

enum { E = 128, ROUTED = 6, STEPS = 150, WIDTH = 512, LAYERS = 4 };

static float routers[LAYERS][E][WIDTH], stream[STEPS][WIDTH];

/* The experts with the largest logits. */
static void choose(const float router[E][WIDTH], const float *x, int out[ROUTED]) {
    bool taken[E] = {false};
    float logit[E] = {0};
    for (int e = 0; e < E; e++)
        for (int i = 0; i < WIDTH; i++)
            logit[e] += router[e][i] * x[i];
    for (int k = 0; k < ROUTED; k++) {
        out[k] = -1;
        for (int e = 0; e < E; e++)
            if (!taken[e] && (out[k] < 0 || logit[e] > logit[out[k]]))
                out[k] = e;
        taken[out[k]] = true;
    }
}

/* The share of uses that find their expert among the n_slot least recently used ones of their layer; *again:
 * the share that the token before has used too. */
static double lru_hits(const char *regime, int n_slot, double *again) {
    routing r;
    int hits = 0, repeats = 0;
    routing_begin(&r, routing_find(regime), 7);
    for (int t = 0; t < STEPS; t++) {
        routing_embed(&r, (uint64_t)t, stream[t]);
        for (int i = ROUTING_WIDTH; i < WIDTH; i++)
            stream[t][i] = 0.5f * (float)synth_random_normal(&r.random);
    }
    for (int l = 0; l < LAYERS; l++) {
        int last[E], chosen[ROUTED];
        for (int e = 0; e < E; e++) {
            routing_router(&r, 0.5, WIDTH, routers[l][e]);
            last[e] = -1;
        }
        for (int t = 0; t < STEPS; t++) {
            choose(routers[l], stream[t], chosen);
            for (int k = 0; k < ROUTED; k++) {
                const int *mine = &last[chosen[k]];
                int later = 0;
                for (int e = 0; e < E; e++)
                    later += last[e] > *mine;
                hits += *mine >= 0 && later < n_slot;
                repeats += *mine >= 0 && *mine / ROUTED == t - 1;
                last[chosen[k]] = t * ROUTED + k;
            }
        }
    }
    *again = (double)repeats / (LAYERS * STEPS * ROUTED);
    return (double)hits / (LAYERS * STEPS * ROUTED);
}

/* Fitted routing has about the hits of the recorded choices of Qwen3-30B-A3B and Gemma 4 26B-A4B: .555 and
 * .567 with 12 % of the experts in memory, .765 and .762 with 24 %; .37 of the choices repeat the last ones.
 */
static void routes_as_recorded(void **state) {
    (void)state;
    double again;
    assert_float_equal(lru_hits("fitted", 15, &again), 0.56, 0.06);
    assert_float_equal(lru_hits("fitted", 31, &again), 0.764, 0.05);
    assert_float_equal(again, 0.37, 0.06);
    assert_float_equal(lru_hits("uniform", 31, &again), 31.0 / E, 0.05);
    assert_float_equal(again, (double)ROUTED / E, 0.03);
    const double flat = lru_hits("flat", 31, &again);
    assert_true(flat > 0.35 && flat < 0.65);
}

static void knows_regimes(void **state) {
    nib_error err;
    (void)state;
    const nib_synth_options o = {.shape = "qwen3-30b-a3b", .n_layer = 1, .routing = "no-such"};
    assert_int_equal(nib_synth(&o, temp_path("routed.gguf"), NULL, &err), NIB_E_USAGE);
    assert_non_null(strstr(err.message, "fitted"));
}

/* The file has the bits of nib_session_forward. */
static void writes_logits(void **state) {
    enum { N = 5 };
    int32_t tokens[N];
    char path[512];
    nib_error err;
    (void)state;
    snprintf(path, sizeof path, "%s", temp_path("logits.safetensors"));
    const nib_engine_options o = engine_usual();
    nib_engine *e = engine_must_open(tiny_model("tools.gguf", &shape), &o, NULL);
    nib_session *s = session_must_open(e);
    logits_tokens(tokens, N, shape.n_vocab, 1);
    logits_rows want = logits_of_session(s, tokens, N, shape.n_vocab);
    assert_int_equal(nib_session_logits_save(s, tokens, N, path, &err), NIB_OK);
    char *data;
    size_t n_byte;
    assert_int_equal(file_read_all(path, 1 << 20, &data, &n_byte, &err), NIB_OK);
    const size_t n = N * (size_t)shape.n_vocab * sizeof(float);
    assert_true(n_byte > n);
    assert_memory_equal(data + n_byte - n, want.data, n);
    mem_free(data);
    tokens[2] = (int32_t)shape.n_vocab;
    assert_int_equal(unlink(path), 0);
    assert_int_equal(nib_session_logits_save(s, tokens, N, path, &err), NIB_E_USAGE);
    assert_false(path_exists(path));
    free(want.data);
    nib_session_close(s);
    nib_engine_close(e);
}

static void checks_the_processor(void **state) {
    nib_error err;
    (void)state;
    const char *was = getenv("NIBBLE_ISA");
    char *kept = was ? mem_strdup(was) : NULL;
    setenv("NIBBLE_ISA", "ref", 1);
    assert_int_equal(nib_processor_check(&err), NIB_OK);
    setenv("NIBBLE_ISA", "nothing", 1);
    assert_int_equal(nib_processor_check(&err), NIB_E_USAGE);
    assert_non_null(strstr(err.message, "found 'nothing'"));
    if (kept)
        setenv("NIBBLE_ISA", kept, 1);
    else
        unsetenv("NIBBLE_ISA");
    mem_free(kept);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(describes),
        cmocka_unit_test(describes_whole_or_not),
        cmocka_unit_test(makes),
        cmocka_unit_test(makes_mixtures),
        cmocka_unit_test(makes_a_few_layers),
        cmocka_unit_test(routes_as_recorded),
        cmocka_unit_test(knows_regimes),
        cmocka_unit_test(writes_logits),
        cmocka_unit_test(checks_the_processor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
