/* Traces of the GPU's back end, launch by launch, on the fake GPU, whose clock counts calls
 * (support/fakecuda.h): names, bytes and products of every launch, lanes, dropped spans. The answer and later
 * passes are the same as without a trace. */
#include "kernels/cuda_load.h"
#include "support/engine.h"
#include "support/fakecuda.h"
#include "support/logits.h"
#include "support/sanitized.h"
#include "support/tinymodel.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_VOCAB = 512, N_CTX = 320, MEMORY = 1 << 28, N_LAYER = 5, MAX = 1000 };

static const tiny_shape small = {TYPE_Q8_0, N_LAYER, 64, 96, 4, 2, N_VOCAB, N_CTX, false};

static nib_kv_type kv_type = NIB_KV_F16;

static nib_engine_options under(uint64_t vram) {
    nib_engine_options o = engine_usual();
    o.backend = "cuda";
    o.kv_type = kv_type;
    o.n_ctx = N_CTX;
    o.n_batch = 110;
    o.vram = vram;
    return o;
}

static nib_engine *opened(uint64_t vram, nib_session **s) {
    const nib_engine_options o = under(vram);
    cuda_load_with(fake_cuda(MEMORY, 0, FAKE_CUDA_LOST));
    nib_engine *e = engine_must_open(tiny_model("spans.gguf", &small), &o, NULL);
    *s = session_must_open(e);
    return e;
}

static void closed(nib_engine *e, nib_session *s) {
    nib_session_close(s);
    nib_engine_close(e);
    if (fake_cuda_wrong())
        fail_msg("%s", fake_cuda_wrong());
    assert_int_equal(fake_cuda_held(), 0);
}

static void extend(nib_session *s, int n) {
    int32_t tokens[N_CTX];
    nib_error err = {0};
    logits_tokens(tokens, N_CTX, N_VOCAB, 3);
    if (nib_session_sync(s, tokens, (size_t)n, &err))
        fail_msg("to %d: %s", n, err.message);
}

typedef struct trace {
    nib_span list[MAX];
    size_t n, n_dropped;
    nib_span_scale scale;
} trace;

/* The pass to n tokens. */
static trace *traced(nib_engine *e, nib_session *s, int n, size_t max) {
    static trace t;
    assert_int_equal(nib_engine_spans_start(e, max, &t.scale, NULL), NIB_OK);
    extend(s, n);
    assert_int_equal(nib_engine_spans_stop(e, t.list, &t.n, &t.n_dropped, NULL), NIB_OK);
    return &t;
}

typedef struct sum {
    int n, at_least;
    double seconds, bytes, macs;
} sum;

static sum of(const trace *t, const char *what, nib_lane lane) {
    sum all = {0};
    for (size_t i = 0; i < t->n; i++)
        if (!strcmp(t->list[i].what, what) && t->list[i].lane == (int)lane) {
            all.n++;
            all.at_least += t->list[i].at_least;
            all.seconds += t->list[i].end_s - t->list[i].start_s;
            all.bytes += t->list[i].bytes;
            all.macs += t->list[i].macs;
        }
    return all;
}

static void is_about(double a, double b) { /* a float of milliseconds */
    if (fabs(a - b) > 1e-9)
        fail_msg("%.9f instead of %.9f", a, b);
}

/* Of Q8_0. */
static double weight_bytes(int64_t n, int64_t k) {
    return (double)(n * (k / 32 * 34));
}

static void a_token(void **state) {
    (void)state;
    nib_session *s;
    nib_engine *e = opened(NIB_AUTO, &s);
    const double d = (double)small.d_model, ff = (double)small.d_ff;
    extend(s, 9);
    const trace *t = traced(e, s, 10, MAX);
    const sum gate = of(t, "linear gate+up", NIB_LANE_COMPUTE), head = of(t, "linear head", NIB_LANE_COMPUTE);
    const sum attention = of(t, "rope, attention", NIB_LANE_COMPUTE);
    assert_int_equal(t->n_dropped, 0);
    assert_int_equal(gate.n, N_LAYER);
    assert_int_equal(of(t, "linear q+k+v", NIB_LANE_COMPUTE).n, N_LAYER);
    assert_int_equal(of(t, "linear down", NIB_LANE_COMPUTE).n, N_LAYER);
    assert_int_equal(head.n, 1);
    assert_true(gate.macs == N_LAYER * 2 * d * ff && head.macs == d * N_VOCAB);
    assert_int_equal(gate.at_least, 0);
    /* The row comes as codes with scales, sums and sums of squares, and is left as codes beside its floats.
     */
    assert_true(gate.bytes == N_LAYER * (weight_bytes(2 * small.d_ff, small.d_model) + d / 32 * 44 + 4 * ff +
                                         ff / 32 * 40));
    assert_int_equal(attention.n, N_LAYER);
    assert_true(attention.macs == N_LAYER * 2 * 10 * d); /* ten positions */
    assert_int_equal(of(t, "look up embeddings", NIB_LANE_COMPUTE).n, 1);
    assert_true(of(t, "look up embeddings", NIB_LANE_COMPUTE).bytes ==
                weight_bytes(16, d) / 16 + d * sizeof(float));
    assert_int_equal(of(t, "copy embeddings", NIB_LANE_COMPUTE).n, 0);
    assert_true(of(t, "copy rows", NIB_LANE_COMPUTE).bytes == N_VOCAB * sizeof(float));
    /* A span has its launch and the event after it; the event before it is between two spans. */
    is_about(gate.seconds, N_LAYER * 2e-6);
    for (size_t i = 0; i < t->n; i++)
        assert_true(t->list[i].end_s > t->list[i].start_s &&
                    (!i || t->list[i].start_s > t->list[i - 1].end_s));
    is_about(t->scale.empty_s, 1e-6);
    assert_true(t->scale.read_rate > 0);
    closed(e, s);
}

static void a_prompt(void **state) {
    (void)state;
    nib_session *s;
    nib_engine *e = opened(NIB_AUTO, &s);
    extend(s, 1);
    const trace *t = traced(e, s, 101, MAX);
    const sum down = of(t, "linear down", NIB_LANE_COMPUTE);
    /* The last row goes through the last layer alone. */
    assert_int_equal(of(t, "rope, store keys and values", NIB_LANE_COMPUTE).n, N_LAYER + 1);
    assert_true(down.macs > (N_LAYER - 1) * 100.0 * small.d_model * small.d_ff);
    assert_true(down.at_least > 0);
    closed(e, s);
}

/* An answer's second token is sampled from the largest logits; only these are copied. */
static void an_answer(void **state) {
    (void)state;
    static trace t;
    int32_t tokens[9];
    nib_session *s;
    nib_result result;
    nib_generate_options g;
    nib_engine *e = opened(NIB_AUTO, &s);
    logits_tokens(tokens, 9, N_VOCAB, 3);
    nib_generate_options_init(&g);
    g.prompt = tokens;
    g.n_prompt = 9;
    g.n_predict = 2;
    g.ignore_eos = true;
    extend(s, 9);
    assert_int_equal(nib_engine_spans_start(e, MAX, &t.scale, NULL), NIB_OK);
    assert_int_equal(nib_generate(s, &g, &result, NULL), NIB_OK);
    assert_int_equal(nib_engine_spans_stop(e, t.list, &t.n, &t.n_dropped, NULL), NIB_OK);
    const sum sampling = of(&t, "sampling", NIB_LANE_COMPUTE);
    assert_int_equal(sampling.n, 1);
    assert_true(sampling.bytes == N_VOCAB * sizeof(float));
    assert_int_equal(of(&t, "copy the largest logits", NIB_LANE_COMPUTE).n, 1);
    assert_int_equal(of(&t, "copy rows", NIB_LANE_COMPUTE).n, 0);
    nib_result_clear(&result);
    closed(e, s);
}

/* A prompt that completes a block packs it; a token reads codes, which are fewer bytes than halves. */
static void keys_in_codes(void **state) {
    (void)state;
    double bytes[2];
    for (int coded = 0; coded < 2; coded++) {
        nib_session *s;
        kv_type = coded ? NIB_KV_4 : NIB_KV_F16;
        nib_engine *e = opened(NIB_AUTO, &s);
        extend(s, 1);
        const sum packed = of(traced(e, s, 101, MAX), "keys and values to codes", NIB_LANE_COMPUTE);
        assert_true(coded ? packed.n >= N_LAYER && packed.bytes > 0 : packed.n == 0);
        bytes[coded] = of(traced(e, s, 102, MAX), "rope, attention", NIB_LANE_COMPUTE).bytes;
        closed(e, s);
    }
    kv_type = NIB_KV_F16;
    assert_true(bytes[1] > 0 && bytes[1] < bytes[0]);
}

/* Of MAX, of three, of none. */
static void what_does_not_fit(void **state) {
    (void)state;
    nib_session *s;
    nib_engine *e = opened(NIB_AUTO, &s);
    extend(s, 9);
    const size_t all = traced(e, s, 10, MAX)->n;
    const trace *t = traced(e, s, 11, 3);
    assert_int_equal(t->n, 3);
    assert_int_equal(t->n_dropped, all - 3);
    t = traced(e, s, 12, 0);
    assert_int_equal(t->n + t->n_dropped, all);
    closed(e, s);
}

/* The same logits, and graphs go on as before. */
static void nothing_changes(void **state) {
    (void)state;
    float logits[2][N_VOCAB];
    for (int with = 0; with < 2; with++) {
        nib_session *s;
        nib_engine *e = opened(NIB_AUTO, &s);
        for (int n = 1; n < 8; n++)
            extend(s, n);
        const long before = fake_cuda_replayed();
        assert_true(before > 0);
        if (with)
            traced(e, s, 8, MAX);
        assert_true(!with || fake_cuda_replayed() == before);
        for (int n = 8; n < 12; n++)
            extend(s, n);
        assert_true(fake_cuda_replayed() > before);
        memcpy(logits[with], nib_session_logits(s), sizeof logits[with]);
        closed(e, s);
    }
    assert_memory_equal(logits[0], logits[1], sizeof logits[0]);
}

/* A cap between the smallest one that works and that for everything. */
static uint64_t some_vram(void) {
    nib_session *s;
    nib_memory used;
    nib_error err;
    nib_engine *e = opened(NIB_AUTO, &s);
    nib_engine_memory(e, &used);
    closed(e, s);
    const uint64_t step = used.tier[NIB_TIER_VRAM].planned / 60;
    for (uint64_t vram = used.tier[NIB_TIER_VRAM].planned;; vram -= step) {
        const nib_engine_options o = under(vram);
        cuda_load_with(fake_cuda(MEMORY, 0, FAKE_CUDA_LOST));
        if (nib_engine_open(tiny_model("spans.gguf", &small), &o, &e, &err))
            return (vram + used.tier[NIB_TIER_VRAM].planned) / 2;
        nib_engine_close(e);
    }
}

/* Under a cap layers are streamed, or the processor computes them. */
static void layers_that_do_not_fit(void **state) {
    (void)state;
    nib_session *s;
    nib_engine *e = opened(some_vram(), &s);
    extend(s, 120);
    const trace *t = traced(e, s, 121, MAX);
    const sum host = of(t, "layer in place", NIB_LANE_HOST);
    assert_true(host.n > 0 && host.seconds > 0);
    assert_int_equal(host.n + of(t, "linear down", NIB_LANE_COMPUTE).n, N_LAYER);
    t = traced(e, s, 240, MAX);
    const sum copied = of(t, "copy weights", NIB_LANE_COPY), ordered = of(t, "order weights", NIB_LANE_SIDE);
    assert_true(copied.n > 0 && ordered.n > 0 && copied.bytes > 0);
    const sum loaded = of(t, "load keys and values", NIB_LANE_COPY),
              stored = of(t, "store keys and values", NIB_LANE_COPY);
    assert_true(loaded.n > 0 && loaded.bytes > 0 && stored.n == loaded.n && stored.bytes > 0);
    assert_int_equal(of(t, "layer in place", NIB_LANE_HOST).n, 0);
    closed(e, s);
}

static void who_cannot(void **state) {
    (void)state;
    nib_engine_options o = engine_usual();
    nib_span_scale scale;
    nib_span span;
    nib_error err = {0};
    size_t n = 1, dropped = 1;
    nib_engine *e = engine_must_open(tiny_model("spans.gguf", &small), &o, NULL);
    assert_int_equal(nib_engine_spans_start(e, MAX, &scale, &err), NIB_E_USAGE);
    assert_non_null(strstr(err.message, "GPU"));
    assert_int_equal(nib_engine_spans_stop(e, &span, &n, &dropped, &err), NIB_E_USAGE);
    assert_true(n == 0 && dropped == 0);
    nib_engine_close(e);
    nib_session *s;
    e = opened(NIB_AUTO, &s);
    assert_int_equal(nib_engine_spans_stop(e, &span, &n, &dropped, &err), NIB_E_USAGE);
    assert_non_null(strstr(err.message, "started"));
    closed(e, s);
}

/* The n-th call of a token's trace fails, and all later ones, for every n. */
static void a_lost_device(void **state) {
    (void)state;
    int32_t tokens[N_CTX];
    static trace t;
    logits_tokens(tokens, N_CTX, N_VOCAB, 3);
    for (long at = 1;; at++) {
        nib_session *s;
        nib_error err = {0};
        nib_engine *e = opened(NIB_AUTO, &s);
        extend(s, 9);
        const long before = fake_cuda_calls();
        fake_cuda_fail_in(at);
        nib_status status = nib_engine_spans_start(e, 100, &t.scale, &err);
        const bool started = status == NIB_OK;
        if (started)
            status = nib_session_sync(s, tokens, 10, &err);
        const nib_status stopped =
            started ? nib_engine_spans_stop(e, t.list, &t.n, &t.n_dropped, status ? NULL : &err) : NIB_OK;
        status = status ? status : stopped;
        const long calls = fake_cuda_calls() - before;
        closed(e, s);
        if (status == NIB_OK && calls < at) {
            assert_true(at > 200);
            return;
        }
        if (status != NIB_E_DEVICE || !err.message[0])
            fail_msg("call %ld: status %d, '%s'", at, status, err.message);
        at +=
            at > (SANITIZED ? 20 : 300) ? 12 : 0; /* most are alike: reading ahead, and the times of spans */
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_token),
        cmocka_unit_test(a_prompt),
        cmocka_unit_test(an_answer),
        cmocka_unit_test(keys_in_codes),
        cmocka_unit_test(what_does_not_fit),
        cmocka_unit_test(nothing_changes),
        cmocka_unit_test(layers_that_do_not_fit),
        cmocka_unit_test(who_cannot),
        cmocka_unit_test(a_lost_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
