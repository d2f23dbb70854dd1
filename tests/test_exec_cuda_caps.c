/* Caps on VRAM, RAM and disk and a number of layers, all at once, on the fake GPU (support/fakecuda.h): each
 * combination is kept, or refused with a cap that works. Answers have the same bits under all caps, and a
 * plan under the same caps agrees with the run. The process's resident memory is a constant here, so that RAM
 * counts the engine's charges and not the fake's memory. */
#include "base/jsonx.h"
#include "base/num.h"
#include "kernels/cuda_load.h"
#include "support/engine.h"
#include "support/fakecuda.h"
#include "support/logits.h"
#include "support/sanitized.h"
#include "support/slow.h"
#include "support/tempdir.h"
#include "support/tinymodel.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_VOCAB = 512, N_CTX = 128, N_LAYER = 5, MEMORY = 1 << 28, N_PROMPT = 24, N_STEP = 4 };

static const tiny_shape shape = {TYPE_Q8_0, N_LAYER, 256, 512, 4, 2, N_VOCAB, N_CTX, false};

static ledger_process constant(void) {
    return (ledger_process){1 << 20, 1 << 20};
}

typedef struct caps {
    uint64_t vram, ram;
    int32_t n_layer;
    bool disk;
} caps;

static char scratch[512];
enum { MANY = 20 /* with the kernels for many sequences */ };
static int n_sequence = 1;

static nib_engine_options under(const caps *c) {
    nib_engine_options o = engine_usual();
    o.backend = "cuda";
    o.kv_type = NIB_KV_F16;
    o.n_ctx = N_CTX;
    o.n_sequence = n_sequence;
    o.stream = true;
    o.vram = c->vram;
    o.ram = c->ram;
    o.gpu_layers = c->n_layer;
    o.packed = NIB_PACKED_OFF;
    if (c->disk) {
        o.packed = NIB_PACKED_AUTO;
        o.scratch = scratch;
        o.disk = 64 << 20;
    }
    return o;
}

static nib_status open_under(const char *path, const nib_engine_options *o, nib_engine **e, nib_error *err) {
    cuda_load_with(fake_cuda(MEMORY, 0, 0));
    return nib_engine_open(path, o, e, err);
}

static void check_tiers(const nib_engine *e, const caps *c) {
    nib_memory m;
    nib_engine_memory(e, &m);
    for (int t = NIB_TIER_RAM; t <= NIB_TIER_VRAM; t++) {
        const uint64_t cap = t == NIB_TIER_RAM ? c->ram : c->vram;
        const bool loading = t == NIB_TIER_RAM; /* then staging is there too */
        if (m.tier[t].peak > cap || m.tier[t].planned > cap ||
            (!loading && m.tier[t].peak > m.tier[t].planned))
            fail_msg("tier %d: %llu taken, %llu planned, the cap is %llu", t,
                     (unsigned long long)m.tier[t].peak, (unsigned long long)m.tier[t].planned,
                     (unsigned long long)cap);
    }
}

/* Logits after a prompt and some tokens, [N_STEP, N_VOCAB]. */
static void walk(nib_engine *e, float *logits) {
    int32_t tokens[N_CTX];
    nib_error err = {0};
    nib_session *s = session_must_open(e);
    logits_tokens(tokens, N_CTX, N_VOCAB, 3);
    for (int i = 0; i < N_STEP; i++, logits += N_VOCAB) {
        if (nib_session_sync(s, tokens, (size_t)(N_PROMPT + i), &err))
            fail_msg("to %d: %s", N_PROMPT + i, err.message);
        memcpy(logits, nib_session_logits(s), N_VOCAB * sizeof *logits);
    }
    nib_session_close(s);
}

static void must_close(nib_engine *e) {
    nib_engine_close(e);
    if (fake_cuda_wrong())
        fail_msg("%s", fake_cuda_wrong());
    assert_int_equal(fake_cuda_held(), 0);
}

/* "...; --vram 1.5 MiB is the smallest that works", "...; 1.5 MiB is the smallest..." -> bytes. */
static uint64_t named_cap(const char *message) {
    const char *end = strstr(message, " is the smallest that works"), *at = end;
    uint64_t bytes;
    char text[32] = "";
    if (!end)
        fail_msg("no cap in: %s", message);
    for (int spaces = 0; at > message && spaces < 2; at--)
        spaces += at[-1] == ' ';
    at += *at == ' ';
    for (size_t n = 0; at < end && n + 1 < sizeof text; at++)
        if (*at != ' ')
            text[n++] = *at;
    assert_true(num_parse_size(text, &bytes));
    return bytes;
}

/* Opens under the caps, or under the caps that the refusals name. */
static nib_engine *must_open(const char *path, caps *c, int *n_refused) {
    nib_error err = {0};
    nib_engine *e = NULL;
    for (int i = 0; i < 4; i++) {
        const nib_engine_options o = under(c);
        const nib_status status = open_under(path, &o, &e, &err);
        if (status == NIB_OK)
            return e;
        if (status != NIB_E_NOFIT)
            fail_msg("status %d: %s", status, err.message);
        ++*n_refused;
        uint64_t *cap = strncmp(err.message, "VRAM:", 5) ? &c->ram : &c->vram;
        const uint64_t named = named_cap(err.message);
        if (named <= *cap)
            fail_msg("a cap of %llu was refused: %s", (unsigned long long)*cap, err.message);
        *cap = named;
    }
    fail_msg("%s", err.message);
    return NULL;
}

/* The bytes that a tier is planned to have without a cap. */
static uint64_t whole(const char *path, int tier) {
    caps none = {NIB_AUTO, NIB_AUTO, 0, false};
    int n = 0;
    nib_engine *e = must_open(path, &none, &n);
    nib_memory m;
    nib_engine_memory(e, &m);
    must_close(e);
    return m.tier[tier].planned;
}

static void every_combination(void **state) {
    n_sequence = *(const int *)*state;
    const size_t step = slow_is_thinned() ? 5 : n_sequence > 1 ? 3 : 1; /* every value of each setting */
    static float all[N_STEP][N_VOCAB], now[N_STEP][N_VOCAB];
    const char *path = tiny_model("caps.gguf", &shape);
    const uint64_t vram = whole(path, NIB_TIER_VRAM), ram = whole(path, NIB_TIER_RAM);
    const uint64_t vrams[] = {NIB_AUTO, vram + vram / 16, vram - vram / 5, vram / 8};
    const uint64_t rams[] = {NIB_AUTO, ram + (4 << 20), ram - ram / 4 + (3 << 20), ram / 8};
    int n_refused = 0, n = 0;
    snprintf(scratch, sizeof scratch, "%s", temp_path("scratch"));
    caps none = {NIB_AUTO, NIB_AUTO, 0, false};
    nib_engine *e = must_open(path, &none, &n_refused);
    walk(e, all[0]);
    must_close(e);
    for (size_t i = 0; i < NUM_COUNT(vrams) * NUM_COUNT(rams) * 2; i += step, n++) {
        caps c = {vrams[i % 4], rams[i / 4 % 4], i / 16 % 2 ? 2 : 0, (i + i / 4) % 2 != 0};
        e = must_open(path, &c, &n_refused);
        walk(e, now[0]);
        check_tiers(e, &c);
        assert_int_equal(fake_cuda_batch() > 0, n_sequence == MANY);
        must_close(e);
        if (memcmp(all, now, sizeof all) != 0)
            fail_msg("other logits under combination %zu", i);
    }
    assert_int_equal(n, step == 5 ? 7 : step == 3 ? 11 : 32);
    /* a quarter of the caps on VRAM is too small, and of those on RAM */
    assert_true(n_refused >= (step == 5 ? 2 : step == 3 ? 4 : 14));
}

/* Weights that stay on the GPU leave RAM, the embedding too. */
static void one_copy(void **state) {
    n_sequence = *(const int *)*state;
    static float logits[N_STEP][N_VOCAB];
    const char *path = tiny_model("one-copy.gguf", &shape);
    caps none = {NIB_AUTO, NIB_AUTO, 0, false};
    int n = 0;
    nib_engine *e = must_open(path, &none, &n);
    const nib_slice *slices;
    nib_memory before, after;
    uint64_t there = 0, embedding = 0;
    const size_t n_slice = nib_engine_placement(e, &slices);
    for (size_t i = 0; i < n_slice; i++) {
        there += slices[i].tier == NIB_TIER_VRAM ? slices[i].bytes : 0;
        embedding += strcmp(slices[i].block, "embed") ? 0 : slices[i].bytes;
    }
    nib_engine_memory(e, &before);
    walk(e, logits[0]);
    nib_engine_memory(e, &after);
    assert_true(there > 0 && embedding > 0);
    assert_true(before.owner[NIB_OWNER_WEIGHTS] - after.owner[NIB_OWNER_WEIGHTS] >= there + embedding);
    must_close(e);
}

/* Rows that the GPU looked up in a walk of one model: all or none. */
static bool gpu_looks_up(const char *path, uint64_t vram, uint64_t ram) {
    static float logits[N_STEP][N_VOCAB];
    caps c = {vram, ram, 0, false};
    int n = 0;
    nib_engine *e = must_open(path, &c, &n);
    walk(e, logits[0]);
    const long rows = fake_cuda_embedded();
    must_close(e);
    assert_true(rows == 0 || rows == N_PROMPT + N_STEP - 1);
    return rows > 0;
}

/* A tied table is on the GPU with the head; another table if all layers are and there is memory left. The
 * host looks up tables on disk, and tables in a format that the GPU's kernel lacks. */
static void who_looks_up(void **state) {
    n_sequence = *(const int *)*state;
    tiny_shape tied = shape, codes = shape;
    const char *path = tiny_model("looks-up.gguf", &shape);
    const uint64_t vram = whole(path, NIB_TIER_VRAM), ram = whole(path, NIB_TIER_RAM);
    tied.tied = true;
    codes.type = TYPE_IQ4_NL;
    assert_true(gpu_looks_up(path, vram + vram / 16, NIB_AUTO));
    assert_false(gpu_looks_up(path, vram / 2, NIB_AUTO));
    assert_false(gpu_looks_up(path, NIB_AUTO, ram / 8));
    assert_true(gpu_looks_up(tiny_model("looks-up-tied.gguf", &tied), NIB_AUTO, NIB_AUTO));
    assert_false(gpu_looks_up(tiny_model("looks-up-codes.gguf", &codes), NIB_AUTO, NIB_AUTO));
}

/* ---- plans ---- */

static json_t *plan_under(const char *path, const nib_engine_options *o, char **text) {
    nib_error err = {0};
    json_t *made = NULL;
    cuda_load_with(fake_cuda(MEMORY, 0, 0));
    if (nib_plan(path, o, NULL, text, &err) || jsonx_parse(*text, strlen(*text), &made, &err))
        fail_msg("%s", err.message);
    return made;
}

/* The tier of block b's matrices, by the plan. */
static const char *home_of(const json_t *made, size_t b) {
    const json_t *of = json_array_get(json_object_get(made, "blocks"), b);
    const json_t *slice = json_array_get(json_object_get(of, "slices"), 0);
    return json_string_value(json_object_get(slice, "tier"));
}

/* The bytes of block b's matrices in VRAM, by the plan. */
static double planned_in_vram(const json_t *made, size_t b) {
    const json_t *of = json_object_get(json_array_get(json_object_get(made, "blocks"), b), "slices");
    double sum = 0;
    for (size_t i = 0; i < json_array_size(of); i++)
        if (!strcmp(json_string_value(json_object_get(json_array_get(of, i), "tier")), "vram"))
            sum += json_number_value(json_object_get(json_array_get(of, i), "bytes"));
    return sum;
}

/* What the engine has of each layer in VRAM is what the plan has there. Returns the number of layers of which
 * a part is there. */
static int check_places(const nib_engine *e, const json_t *made) {
    const nib_slice *slices;
    const size_t n = nib_engine_placement(e, &slices);
    int n_part = 0;
    for (int layer = 0; layer < N_LAYER; layer++) {
        double sum = 0, others = 0;
        for (size_t i = 0; i < n; i++)
            if (slices[i].layer == layer && strcmp(slices[i].format, "f32") != 0)
                *(slices[i].tier == NIB_TIER_VRAM ? &sum : &others) += (double)slices[i].bytes;
        assert_true(fabs(sum - planned_in_vram(made, (size_t)layer + 1)) <= 4096); /* padding */
        n_part += sum > 0 && others > 0;
    }
    return n_part;
}

static void a_plan_is_followed(void **state) {
    n_sequence = *(const int *)*state;
    static float all[N_STEP][N_VOCAB], now[N_STEP][N_VOCAB];
    const char *path = tiny_model("planned.gguf", &shape);
    const uint64_t vram = whole(path, NIB_TIER_VRAM), ram = whole(path, NIB_TIER_RAM);
    int n = 0, n_part = 0;
    for (int i = 0; i < 6; i += SANITIZED ? 4 : 1) {
        caps c = {vram - vram / 10 * (uint64_t)(i % 3), i < 3 ? NIB_AUTO : ram / 8, 0, false};
        nib_engine *e = must_open(path, &c, &n); /* c: caps that work */
        must_close(e);
        if (c.ram != NIB_AUTO) /* a plan counts a little more */
            c.ram += 2 << 20;
        const nib_engine_options o = under(&c);
        char *text = NULL;
        json_t *made = plan_under(path, &o, &text);
        const json_t *predicted = json_object_get(made, "predicted");
        nib_memory m;
        const uint64_t peak = (uint64_t)json_integer_value(json_object_get(predicted, "vram_peak"));
        assert_true(peak <= c.vram);
        assert_int_equal(json_is_true(json_object_get(json_object_get(made, "gpu"), "many_sequences")),
                         n_sequence == MANY);
        e = must_open(path, &c, &n);
        n_part += check_places(e, made); /* the same function decided */
        nib_engine_memory(e, &m);
        assert_true(m.tier[NIB_TIER_VRAM].planned <= peak);
        walk(e, all[0]);
        must_close(e);
        nib_engine_options by = under(&(caps){NIB_AUTO, NIB_AUTO, 0, false});
        nib_error err = {0};
        by.plan = text;
        by.backend = NULL; /* the plan agrees */
        if (open_under(path, &by, &e, &err))
            fail_msg("%s", err.message);
        check_places(e, made);
        walk(e, now[0]);
        nib_engine_memory(e, &m);
        assert_true(m.tier[NIB_TIER_VRAM].cap == c.vram && m.tier[NIB_TIER_RAM].cap == c.ram);
        check_tiers(e, &c);
        must_close(e);
        assert_memory_equal(all, now, sizeof all);
        json_decref(made);
        nib_free(text);
    }
    assert_true(n_part > 0 || SANITIZED);
}

/* A hand edit counts: another layer leaves the GPU. */
static void an_edit_counts(void **state) {
    n_sequence = *(const int *)*state;
    const char *path = tiny_model("edited.gguf", &shape);
    nib_engine_options o = under(&(caps){NIB_AUTO, NIB_AUTO, 0, false});
    char *text = NULL, *edited;
    json_t *made = plan_under(path, &o, &text);
    nib_engine *e = NULL;
    nib_error err = {0};
    json_t *entry = json_array_get(json_object_get(made, "blocks"), 2);
    assert_string_equal(home_of(made, 2), "vram");
    json_object_set_new(json_array_get(json_object_get(entry, "slices"), 0), "tier", json_string("ram"));
    json_object_set_new(entry, "compute", json_string("cpu"));
    edited = jsonx_text(made, JSON_COMPACT | JSON_REAL_PRECISION(7));
    o.plan = edited;
    if (open_under(path, &o, &e, &err))
        fail_msg("%s", err.message);
    check_places(e, made);
    must_close(e);
    o.gpu_layers = 2;
    assert_int_equal(open_under(path, &o, &e, &err), NIB_E_USAGE);
    assert_non_null(strstr(err.message, "--gpu-layers allows 2"));
    o.gpu_layers = 0;
    o.backend = "cpu";
    assert_int_equal(open_under(path, &o, &e, &err), NIB_E_USAGE);
    assert_non_null(strstr(err.message, "layers on the GPU"));
    nib_free(edited);
    nib_free(text);
    json_decref(made);
}

int main(void) {
    static int one = 1, many = MANY;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(every_combination, &one),
        cmocka_unit_test_prestate(every_combination, &many),
        cmocka_unit_test_prestate(one_copy, &one),
        cmocka_unit_test_prestate(who_looks_up, &one),
        cmocka_unit_test_prestate(a_plan_is_followed, &one),
        cmocka_unit_test_prestate(a_plan_is_followed, &many),
        cmocka_unit_test_prestate(an_edit_counts, &one),
    };
    ledger_set_process_usage(constant);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
