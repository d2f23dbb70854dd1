/* The cuda back end on the processor's kernels instead of a GPU (support/fakecuda.h): tests everything around
 * the kernels, on every machine. Logits have the bits of the check back end, for the architectures whose ops
 * it has, formats, precisions, passes of any number of rows of prompts and of generated ones, weights from
 * disk; models that it cannot compute are refused by name. */
#include "base/mem.h"
#include "kernels/cuda_load.h"
#include "support/archs.h"
#include "support/engine.h"
#include "support/fakecuda.h"
#include "support/logits.h"
#include "support/process.h"
#include "support/sanitized.h"
#include "support/slow.h"
#include "support/tinymodel.h"
#include "support/tinyplan.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_TOKEN = 150, N_VOCAB = 512, N_CTX = 192, N_GREEDY = 6, N_OUTLIER_TOKENS = 30, MEMORY = 1 << 28 };

static const tiny_shape small = {TYPE_Q8_0, 2, 64, 96, 4, 2, N_VOCAB, N_CTX, true};

static void fake_is_idle(void) {
    if (fake_cuda_wrong())
        fail_msg("%s", fake_cuda_wrong());
    assert_int_equal(fake_cuda_held(), 0);
}

/* ---- the same bits ---- */

typedef enum rows_as { PROMPT, GENERATED, WITHOUT_WIDE, OF_MANY, N_ROWS_AS } rows_as;

static nib_status logits_by(const char *name, const char *path, nib_engine_options o,
                            const engine_internal *internal, int n, rows_as as, logits_rows *out,
                            nib_error *err) {
    nib_engine *e = NULL;
    int32_t tokens[N_TOKEN];
    o.backend = name;
    o.kv_type = o.kv_type ? o.kv_type : NIB_KV_F16;
    o.n_sequence = as == OF_MANY ? 20 : 1;
    cuda_load_with(fake_cuda(MEMORY, 0, 0));
    if (as == WITHOUT_WIDE)
        fake_cuda_without_wide();
    NIB_TRY(engine_open(path, &o, internal, &e, err));
    logits_tokens(tokens, n, nib_engine_info(e)->n_vocab, 3);
    *out = as == GENERATED || as == OF_MANY ? logits_generated(e, tokens, n, (int)o.n_batch)
                                            : logits_of(e, tokens, n);
    nib_engine_close(e);
    fake_is_idle();
    assert_int_equal(fake_cuda_batch() > 0, as == OF_MANY && !strcmp(name, "cuda"));
    return NIB_OK;
}

/* false: the cuda back end refuses the model. `check`: the reference's logits, computed when it has none. */
static bool same_as_check(const char *path, const nib_engine_options *o, const engine_internal *internal,
                          int n, bool exact, rows_as as, logits_rows *check, const char *what) {
    logits_rows cuda;
    nib_error err = {0};
    const nib_status status = logits_by("cuda", path, *o, internal, n, as, &cuda, &err);
    if (status == NIB_E_DEVICE && strstr(err.message, "the cuda back end does not support "))
        return false;
    if (status != NIB_OK ||
        (!check->data && logits_by("check", path, *o, internal, n, PROMPT, check, &err) != NIB_OK))
        fail_msg("%s, %s: %s", path, what, err.message);
    assert_int_equal(logits_bytes(check), logits_bytes(&cuda));
    if (!isfinite(cuda.data[0]))
        fail_msg("%s, %s: the first logit is %g", path, what, (double)cuda.data[0]);
    for (size_t i = 0; i < logits_bytes(check) / sizeof(float); i++) {
        const float is = cuda.data[i], should = check->data[i];
        if (exact ? memcmp(&is, &should, sizeof is) != 0 : !(fabsf(is - should) <= 1e-4f))
            fail_msg("%s, %s: logit %zu of %zu is %g, not %g", path, what, i % N_VOCAB, i / N_VOCAB,
                     (double)is, (double)should);
    }
    free(cuda.data);
    return true;
}

static bool same_as(const char *path, const nib_engine_options *o, const engine_internal *internal, int n,
                    bool exact, rows_as as, const char *what) {
    logits_rows check = {0};
    const bool is = same_as_check(path, o, internal, n, exact, as, &check, what);
    free(check.data);
    return is;
}

/* As a prompt, as generated rows of few and of many sequences, and on a device without kernels for prompts.
 * Under a sanitizer these take turns. */
static bool same(const char *path, const nib_engine_options *o, const engine_internal *internal, int n,
                 bool exact, const char *what) {
    static int turn;
    logits_rows check = {0};
    bool is = true;
    for (int as = slow_is_thinned() ? turn++ % N_ROWS_AS : 0; is && as < N_ROWS_AS;
         as += slow_is_thinned() ? N_ROWS_AS : 1)
        is = same_as_check(path, o, internal, n, exact, (rows_as)as, &check, what);
    free(check.data);
    return is;
}

typedef struct archs {
    int n_seen, n_same, n_refused;
    char known[8192]; /* names of the fixtures with equal bits */
} archs;

/* With integer weights, and with the floats of the files. */
static void compare_arch(void *user, const char *path, const char *name) {
    static const char *const recipes[] = {"u8g32"};
    archs *a = user;
    if (SANITIZED && a->n_seen++ % 6) /* the others run without one */
        return;
    tiny_plan h;
    nib_engine_options o = engine_usual();
    o.n_ctx = 32;
    tiny_plan_make(&h, path, recipes, 1, NIB_TIER_RAM, NIB_TIER_RAM);
    if (!same(path, &o, &(engine_internal){.plan = &h.p}, 24, true, "u8g32")) {
        a->n_refused++;
        return;
    }
    if (!SANITIZED && !same_as(path, &o, NULL, 24, true, PROMPT, "floats"))
        fail_msg("%s: floats are refused", path);
    const size_t n = strlen(a->known);
    snprintf(a->known + n, sizeof a->known - n, "%s ", name);
    a->n_same++;
}

static void architectures(void **state) {
    (void)state;
    static const char *const needed[] = {"llama",  "qwen3_moe", "qwen3_next",  "deepseek_v3", "gpt_oss",
                                         "mamba2", "jamba",     "kimi_linear", "llama4"};
    archs a = {0};
    archs_each("tests/data/arch", compare_arch, &a);
    archs_each("tests/data/arch-extra", compare_arch, &a);
    printf("%d the same, %d refused; the same: %s\n", a.n_same, a.n_refused, a.known);
    for (size_t i = 0; !SANITIZED && i < sizeof needed / sizeof *needed; i++)
        if (!strstr(a.known, needed[i]))
            fail_msg("%s is refused", needed[i]);
    assert_true(a.n_same >= (SANITIZED ? 10 : 140));
}

/* Mixtures of experts: with several formats, and experts whose rows are no whole number of panels. */
static void mixtures(void **state) {
    (void)state;
    static const tiny_shape shapes[] = {{TYPE_Q4_1, 2, 96, 160, 6, 2, N_VOCAB, N_CTX, true, 7, 3},
                                        {TYPE_Q4_0, 2, 128, 192, 4, 2, N_VOCAB, N_CTX, true, 9, 2},
                                        {TYPE_MXFP4, 2, 64, 64, 4, 2, N_VOCAB, N_CTX, true, 5, 4},
                                        {TYPE_F16, 2, 64, 36, 4, 2, N_VOCAB, N_CTX, true, 5, 2},
                                        {TYPE_F32, 2, 64, 40, 4, 2, N_VOCAB, N_CTX, true, 4, 1}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int bits = 8; bits <= 16; bits += 8) {
            nib_engine_options o = engine_usual();
            o.n_batch = 40;
            o.activation = bits;
            if (!same(tiny_model("mixtures.gguf", &shapes[i]), &o, NULL, N_TOKEN, true, "mixture"))
                fail_msg("mixture %zu is refused", i);
        }
}

/* Folders whose weights are held in formats that no file has, on a GPU too. */
static void folders(void **state) {
    (void)state;
    static const char *const names[] = {"gptq-128", "w4a16-64", "awq-128",  "fp8-row",
                                        "nvfp4",    "moe-fp8",  "moe-nvfp4"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[200];
        nib_engine_options o = engine_usual();
        o.n_ctx = 32;
        snprintf(path, sizeof path, "tests/data/packed/%s", names[i]);
        const bool exact = strcmp(names[i], "awq-128") != 0; /* a GPU subtracts zeros from codes first */
        if (!same(path, &o, NULL, 24, exact, "folder"))
            fail_msg("%s is refused", path);
    }
}

/* Activations of 4 and 8 bits by block of channels. */
static void mixed_activations(void **state) {
    (void)state;
    static const char *const recipes[] = {"u4g64", "u4g128", "u4g32"}, *const others[] = {"u4g64a"};
    nib_engine_options o = engine_usual();
    nib_error err = {0};
    logits_rows none, check = {0};
    tiny_plan h;
    const char *path = tiny_plan_make_mixed(&h, "tests/data/arch/llama", recipes, 3);
    o.n_ctx = 64;
    o.n_batch = 40;
    for (rows_as as = PROMPT; as <= WITHOUT_WIDE; as++) {
        assert_true(same_as_check(path, &o, &(engine_internal){.plan = &h.p}, 48, true, as, &check, "ax"));
        assert_true(as == PROMPT || fake_cuda_mixed() > 0); /* the first time the reference ran after it */
    }
    free(check.data);
    path = tiny_plan_make_mixed(&h, "tests/data/arch/llama", others, 1);
    assert_int_equal(logits_by("cuda", path, o, &(engine_internal){.plan = &h.p}, 48, PROMPT, &none, &err),
                     NIB_E_DEVICE);
    assert_non_null(strstr(err.message, "linear q: its kernels have activations ax for"));
}

static void embed_by(const char *name, const char *path, int pooling, float *out) {
    nib_engine_options o = engine_usual();
    int32_t tokens[N_TOKEN];
    nib_error err = {0};
    o.backend = name;
    o.kv_type = NIB_KV_F16;
    o.n_batch = 100;
    cuda_load_with(fake_cuda(MEMORY, 0, 0));
    nib_engine *e = engine_must_open(path, &o, NULL);
    nib_session *s = session_must_open(e);
    logits_tokens(tokens, N_TOKEN, N_VOCAB, 3);
    if (nib_session_embed(s, tokens, N_TOKEN, pooling, out, NULL, NULL, &err) != NIB_OK)
        fail_msg("%s: %s", name, err.message);
    nib_session_close(s);
    nib_engine_close(e);
    fake_is_idle();
}

static void embeddings(void **state) {
    (void)state;
    const char *path = tiny_model("embeddings.gguf", &small);
    for (int pooling = NIB_POOLING_MEAN; pooling <= NIB_POOLING_LAST; pooling++) {
        float check[64], cuda[64];
        embed_by("check", path, pooling, check);
        embed_by("cuda", path, pooling, cuda);
        assert_memory_equal(check, cuda, sizeof check);
    }
}

static void every_precision(void **state) {
    (void)state;
    static const type_id types[] = {TYPE_Q4_0, TYPE_Q4_1, TYPE_Q5_0, TYPE_Q8_0,
                                    TYPE_F16,  TYPE_BF16, TYPE_F32};
    for (int t = 0; t < 7; t++) {
        tiny_shape shape = small;
        shape.type = types[t];
        shape.tied = t % 2;
        const char *path = tiny_model("precision.gguf", &shape);
        for (int i = slow_is_thinned() ? t % 2 : 0; i < 4; i += slow_is_thinned() ? 2 : 1) {
            static const int rows[] = {7, 70, 1, 16};
            nib_engine_options o = engine_usual();
            o.activation = i % 2 ? 16 : 8;
            o.n_batch = rows[i];
            o.n_logits = i < 2 ? 0 : 5;
            assert_true(same(path, &o, NULL, 100, true, "a precision"));
        }
    }
}

/* Codes of table entries. */
static void tables(void **state) {
    (void)state;
    static const type_id types[] = {TYPE_IQ4_NL, TYPE_MXFP4, TYPE_C4, TYPE_C3, TYPE_IQ4_XS};
    for (int t = 0; t < 5; t++) {
        tiny_shape shape = small;
        nib_engine_options o = engine_usual();
        shape.type = types[t];
        shape.d_model = types[t] == TYPE_IQ4_XS ? 256 : 64;
        shape.d_ff = types[t] == TYPE_IQ4_XS ? 256 : 128;
        o.n_batch = 20;
        assert_true(same_as(tiny_model("tables.gguf", &shape), &o, NULL, 40, true, GENERATED, "tables"));
        assert_true(same_as(tiny_model("tables.gguf", &shape), &o, NULL, 40, true, PROMPT, "tables"));
    }
}

static void greedy_by(const char *name, const char *path, nib_engine_options o, nib_result *out) {
    const nib_sampling greedy = {.temperature = 0, .top_p = 1, .repeat_penalty = 1};
    nib_error err;
    o.backend = name;
    o.kv_type = NIB_KV_F16;
    cuda_load_with(fake_cuda(MEMORY, 0, 0));
    if (engine_life(path, &o, &greedy, N_OUTLIER_TOKENS, out, &err))
        fail_msg("%s: %s", name, err.message);
    assert_int_equal(fake_cuda_sparse() > 0, !strcmp(name, "cuda"));
    assert_int_equal(out->n_token, N_OUTLIER_TOKENS);
    fake_is_idle();
}

/* Logits within a share of the largest one, with rows of every kind. */
static void logits_are_near(const char *path, nib_engine_options o, float share) {
    logits_rows check;
    nib_error err;
    if (logits_by("check", path, o, NULL, 40, PROMPT, &check, &err))
        fail_msg("%s", err.message);
    const size_t n = logits_bytes(&check) / sizeof(float);
    float largest = 0;
    for (size_t i = 0; i < n; i++)
        largest = fmaxf(largest, fabsf(check.data[i]));
    for (int as = 0; as < N_ROWS_AS; as++) {
        logits_rows cuda;
        if (logits_by("cuda", path, o, NULL, 40, (rows_as)as, &cuda, &err))
            fail_msg("%s", err.message);
        for (size_t i = 0; i < n; i++)
            if (!(fabsf(cuda.data[i] - check.data[i]) <= share * largest))
                fail_msg("logit %zu of %zu is %g, not %g; the largest is %g", i % N_VOCAB, i / N_VOCAB,
                         (double)cuda.data[i], (double)check.data[i], (double)largest);
        free(cuda.data);
    }
    free(check.data);
}

/* Weights with outliers: outliers multiply a row's floats, not its codes. With 16 bits the difference is
 * small and the greedy tokens are the same. */
static void outliers_of_weights(void **state) {
    (void)state;
    static const type_id types[] = {TYPE_C3O45, TYPE_C4O45, TYPE_C3O100, TYPE_C4O100};
    for (int t = SANITIZED ? 3 : 0; t < 4; t++) {
        nib_result check, cuda;
        tiny_shape shape = small;
        nib_engine_options o = engine_usual();
        shape.type = types[t];
        shape.d_model = 256;
        shape.d_ff = 384;
        shape.tied = t % 2;
        const char *path = tiny_model("outliers.gguf", &shape);
        o.n_batch = 20;
        o.activation = 16;
        logits_are_near(path, o, 1e-3f);
        greedy_by("check", path, o, &check);
        greedy_by("cuda", path, o, &cuda);
        assert_memory_equal(check.tokens, cuda.tokens, N_OUTLIER_TOKENS * sizeof(int32_t));
        nib_result_clear(&check), nib_result_clear(&cuda);
    }
}

/* Blocks of codes: with single tokens, few rows, and many rows, which complete several blocks at once. */
static void keys_in_codes(void **state) {
    (void)state;
    static const int rows[] = {1, 7, 64, 70, 100, 150};
    for (int i = 0; i < 12; i++) {
        nib_engine_options o = engine_usual();
        o.kv_type = i % 2 ? NIB_KV_4 : NIB_KV_8;
        o.n_batch = rows[i / 2];
        o.n_logits = i < 6 ? 0 : 5;
        assert_true(same(tiny_model("codes-of-keys.gguf", &small), &o, NULL, N_TOKEN, true, "keys in codes"));
    }
}

/* Keys that are the values too, as above. */
static void latents_in_codes(void **state) {
    (void)state;
    static const int rows[] = {1, 70, 150};
    static const char *const recipes[] = {"u8g32"};
    const char *path = "tests/data/arch/deepseek_v3";
    tiny_plan h;
    tiny_plan_make(&h, path, recipes, 1, NIB_TIER_RAM, NIB_TIER_RAM);
    for (int i = 0; i < 6; i++) {
        nib_engine_options o = engine_usual();
        o.kv_type = i % 2 ? NIB_KV_4 : NIB_KV_8;
        o.n_batch = rows[i / 2];
        o.n_ctx = N_CTX;
        assert_true(same(path, &o, &(engine_internal){.plan = &h.p}, N_TOKEN, true, "latents in codes"));
    }
}

static void other_formats(void **state) {
    (void)state;
    static const char *const recipes[] = {"u4g64", "u3g32a", "u2g16", "u6g128"};
    const char *path = tiny_model("formats.gguf", &small);
    tiny_plan h;
    const nib_engine_options o = engine_usual();
    tiny_plan_make(&h, path, recipes, 4, NIB_TIER_RAM, NIB_TIER_RAM);
    assert_true(same(path, &o, &(engine_internal){.plan = &h.p}, N_TOKEN, true, "formats"));
    /* second slices are added to sums in another order */
    tiny_plan_make(&h, path, (const char *const[]){"u4g32+u4g32"}, 1, NIB_TIER_RAM, NIB_TIER_RAM);
    assert_true(same(path, &o, &(engine_internal){.plan = &h.p}, N_TOKEN, false, "second slices"));
}

static void from_disk(void **state) {
    (void)state;
    nib_engine_options o = engine_usual();
    o.stream = true;
    assert_true(same(tiny_model("disk.gguf", &small), &o,
                     &(engine_internal){.n_row = 40, .keep_nothing = true}, N_TOKEN, true, "from disk"));
}

/* ---- batches ---- */

/* ---- what is refused ---- */

static nib_status open_cuda(const char *path, nib_engine_options o, size_t memory, nib_error *err) {
    nib_engine *e = NULL;
    cuda_load_with(fake_cuda(memory, 0, 0));
    o.backend = "cuda";
    const nib_status status = engine_open(path, &o, NULL, &e, err);
    nib_engine_close(e);
    fake_is_idle();
    return status;
}

static void assert_refused(nib_status status, nib_status expected, const nib_error *err, const char *words) {
    if (status != expected || !strstr(err->message, words))
        fail_msg("status %d, '%s', without '%s'", status, err->message, words);
}

static void what_it_cannot_do_is_named(void **state) {
    (void)state;
    const char *path = tiny_model("refused.gguf", &small);
    static const char *const planes[] = {"u4g32p"};
    tiny_plan h;
    nib_engine_options o = engine_usual();
    nib_engine *e = NULL;
    nib_error err = {0};
    tiny_plan_make(&h, path, planes, 1, NIB_TIER_RAM, NIB_TIER_RAM);
    o.backend = "cuda";
    cuda_load_with(fake_cuda(MEMORY, 0, 0));
    assert_refused(engine_open(path, &o, &(engine_internal){.plan = &h.p}, &e, &err), NIB_E_DEVICE, &err,
                   "layer.0: the cuda back end does not support linear q: its kernels have no u4g32p");
    o.activation = 4;
    assert_refused(open_cuda(path, o, MEMORY, &err), NIB_E_DEVICE, &err,
                   "supports activations of 8 and 16 bits, not of 4");
    o = engine_usual();
    o.kv_type = NIB_KV_F32;
    assert_refused(open_cuda(path, o, MEMORY, &err), NIB_E_USAGE, &err, "not in f32");
}

static void caps_are_kept(void **state) {
    (void)state;
    const char *path = tiny_model("caps.gguf", &small);
    nib_engine_options o = engine_usual();
    nib_memory used;
    nib_error err = {0};
    o.vram = 4096;
    assert_refused(open_cuda(path, o, MEMORY, &err), NIB_E_NOFIT, &err, "VRAM: needs at least");
    o.vram = NIB_AUTO;
    assert_refused(open_cuda(path, o, 65536, &err), NIB_E_NOFIT, &err, "fake has 63");
    cuda_load_with(fake_cuda(MEMORY, 0, 0));
    o.backend = "cuda";
    nib_engine *e = engine_must_open(path, &o, NULL);
    free(logits_of(e, (const int32_t[]){1, 2, 3}, 3).data);
    nib_engine_memory(e, &used);
    assert_true(used.tier[NIB_TIER_VRAM].peak > 0);
    assert_true(used.tier[NIB_TIER_VRAM].peak <= used.tier[NIB_TIER_VRAM].planned);
    /* each region is a little larger, to be aligned */
    assert_true(fake_cuda_peak() <= used.tier[NIB_TIER_VRAM].peak + 16 * 4096);
    nib_engine_close(e);
    fake_is_idle();
}

/* Logits of a prompt and greedy tokens after it, under a cap on the GPU's memory, which is kept. */
static logits_rows under_cap(const char *path, nib_engine_options o, int32_t *greedy, uint64_t *peak) {
    static const int32_t prompt[] = {1, 2, 3, 4, 5};
    nib_memory used;
    nib_result answer;
    nib_error err = {0};
    nib_generate_options how;
    cuda_load_with(fake_cuda(MEMORY, 0, 0));
    o.backend = "cuda";
    nib_engine *e = engine_must_open(path, &o, NULL);
    const logits_rows r = logits_of(e, prompt, 5);
    nib_session *s = session_must_open(e);
    nib_generate_options_init(&how);
    how.prompt = prompt;
    how.n_prompt = 5;
    how.n_predict = N_GREEDY;
    how.ignore_eos = true;
    if (nib_generate(s, &how, &answer, &err))
        fail_msg("%s", err.message);
    memcpy(greedy, answer.tokens, N_GREEDY * sizeof *greedy);
    nib_result_clear(&answer);
    nib_session_close(s);
    nib_engine_memory(e, &used);
    *peak = used.tier[NIB_TIER_VRAM].peak;
    if (o.vram != NIB_AUTO)
        assert_true(*peak <= o.vram && used.tier[NIB_TIER_VRAM].planned <= o.vram);
    nib_engine_close(e);
    fake_is_idle();
    return r;
}

/* Under any cap that is not refused: from all of it to two layers and the head. */
static void blocks_are_streamed_when_not_all_fit(void **state) {
    (void)state;
    enum { COPIES = 3 << 20 };                      /* of streamed blocks, on their way to the device */
    for (int i = 0; i < (SANITIZED ? 2 : 3); i++) { /* a sanitizer's own memory does not fit the cap */
        tiny_shape shape = small;
        shape.n_layer = 5;
        shape.tied = i % 2;
        const char *path = tiny_model("comes.gguf", &shape);
        nib_engine_options o = engine_usual();
        nib_error err = {0};
        int32_t want[N_GREEDY], got[N_GREEDY];
        uint64_t all, peak;
        int n_fit = 0;
        o.n_ctx = 64;
        if (i == 2) { /* the processor's part is not all in RAM either */
            o.ram = process_bytes() + tiny_model_half_bytes(path) + COPIES;
            o.stream = true;
        }
        const logits_rows whole = under_cap(path, o, want, &all);
        for (o.vram = all; open_cuda(path, o, MEMORY, &err) == NIB_OK; o.vram -= all / 60, n_fit++) {
            const logits_rows part = under_cap(path, o, got, &peak);
            assert_memory_equal(part.data, whole.data, logits_bytes(&whole));
            assert_memory_equal(got, want, sizeof want);
            free(part.data);
        }
        if (n_fit <= 3 || !strstr(err.message, "VRAM: needs at least"))
            fail_msg("%d caps fit, then: %s", n_fit, err.message);
        free(whole.data);
    }
}

/* One generated row: each product takes the codes that the previous launch left, except the first product of
 * a token. For the first token this works within a block only, because the next block's norm is not there
 * yet. */
static void codes_are_left(void **state) {
    (void)state;
    enum { TOKENS = 3 };
    tiny_shape shape = small;
    nib_engine_options o = engine_usual();
    shape.n_head = shape.n_kv_head = 2; /* heads of 32 */
    o.n_batch = 1;
    o.backend = "cuda";
    cuda_load_with(fake_cuda(MEMORY, 0, 0));
    nib_engine *e = engine_must_open(tiny_model("codes.gguf", &shape), &o, NULL);
    free(logits_generated(e, (const int32_t[]){1, 2, 3}, TOKENS, 1).data);
    assert_int_equal(fake_cuda_taken(), TOKENS * 4 * shape.n_layer - shape.n_layer);
    nib_engine_close(e);
    fake_is_idle();
}

/* The same for the rows of a pass, as many as both products can take, with the bits of one row at a time. */
static void codes_of_rows_are_left(void **state) {
    (void)state;
    enum { TOKENS = 24 };
    static const int rows[] = {1, 2, 3, 16};
    int32_t tokens[TOKENS];
    tiny_shape shape = small;
    nib_engine_options o = engine_usual();
    logits_rows got[4];
    shape.n_head = shape.n_kv_head = 2; /* heads of 32 */
    o.n_batch = 16;
    o.backend = "cuda";
    const char *path = tiny_model("codes.gguf", &shape);
    for (int i = 0; i < TOKENS; i++)
        tokens[i] = (i * 7 + 1) % N_VOCAB;
    for (int i = 0; i < 4; i++) {
        const int passes = (TOKENS + rows[i] - 1) / rows[i];
        cuda_load_with(fake_cuda(MEMORY, 0, 0));
        nib_engine *e = engine_must_open(path, &o, NULL);
        got[i] = logits_generated(e, tokens, TOKENS, rows[i]);
        assert_int_equal(fake_cuda_taken(), passes * 4 * shape.n_layer - shape.n_layer);
        assert_memory_equal(got[i].data, got[0].data, logits_bytes(&got[0]));
        nib_engine_close(e);
        fake_is_idle();
    }
    for (int i = 0; i < 4; i++)
        free(got[i].data);
}

/* Token after token: the first token's launches differ (the next block's norm is not there), the second
 * token's are seen for the first time, and the third token's are recorded. From then on all launches are in
 * graphs. */
static void tokens_are_replayed(void **state) {
    (void)state;
    enum { TOKENS = 80 }; /* more than a page */
    int32_t tokens[TOKENS];
    for (int i = 0; i < TOKENS; i++)
        tokens[i] = i % 50;
    tiny_plan h;
    const char *latents = "tests/data/arch/deepseek_v3";
    tiny_plan_make(&h, latents, (const char *const[]){"u8g32"}, 1, NIB_TIER_RAM, NIB_TIER_RAM);
    for (int i = 0; i < 8; i++) {
        static const nib_kv_type kv[] = {NIB_KV_F16, NIB_KV_F16, NIB_KV_8, NIB_KV_4};
        nib_engine_options o = engine_usual();
        const char *path = i < 4 ? tiny_model("replay.gguf", &small) : latents;
        const plan *by = i < 4 ? NULL : &h.p;
        o.n_batch = 1;
        o.n_ctx = 2 * TOKENS;
        o.activation = i % 2 ? 16 : 8;
        o.kv_type = kv[i % 4];
        o.backend = "check";
        nib_engine *e = engine_must_open(path, &o, by);
        logits_rows plain = logits_of(e, tokens, TOKENS);
        nib_engine_close(e);
        o.backend = "cuda";
        cuda_load_with(fake_cuda(MEMORY, 0, 0));
        e = engine_must_open(path, &o, by);
        logits_rows replayed = logits_generated(e, tokens, TOKENS, 1);
        const long all = fake_cuda_replayed();
        assert_memory_equal(plain.data, replayed.data, logits_bytes(&plain));
        assert_true(all > 0 && all % (TOKENS - 2) == 0 && all / (TOKENS - 2) >= 5 * small.n_layer);
        free(plain.data), free(replayed.data);
        nib_engine_close(e);
        fake_is_idle();
    }
}

/* All rows of a prompt go through a block together, and attention takes those of a sequence as one, however
 * few they are; in the last layer only the ops for keys and values. Generated rows never do so. */
static void prompts_are_wide(void **state) {
    (void)state;
    static const int rows[] = {100, 7, 1};
    int32_t tokens[N_TOKEN];
    logits_tokens(tokens, N_TOKEN, N_VOCAB, 3);
    for (int i = 0; i < 3; i++) {
        nib_engine_options o = engine_usual();
        o.backend = "cuda";
        o.n_batch = rows[i];
        cuda_load_with(fake_cuda(MEMORY, 0, 0));
        nib_engine *e = engine_must_open(tiny_model("wide.gguf", &small), &o, NULL);
        free(logits_of(e, tokens, N_TOKEN).data);
        assert_int_equal(fake_cuda_prompt(), small.n_layer * N_TOKEN);
        assert_int_equal(fake_cuda_wide(), (4 * (small.n_layer - 1) + 1) * N_TOKEN);
        free(logits_generated(e, tokens, N_TOKEN, rows[i]).data);
        assert_int_equal(fake_cuda_prompt(), small.n_layer * N_TOKEN);
        assert_int_equal(fake_cuda_wide(), (4 * (small.n_layer - 1) + 1) * N_TOKEN);
        nib_engine_close(e);
        fake_is_idle();
    }
}

static void auto_finds_it(void **state) {
    (void)state;
    nib_engine_options o = engine_usual();
    o.backend = "auto";
    cuda_load_with(fake_cuda(MEMORY, 0, 0));
    nib_engine *e = engine_must_open(tiny_model("auto.gguf", &small), &o, NULL);
    assert_string_equal(engine_parts_of(e).step->backend->kind->name, "cuda");
    nib_engine_close(e);
    fake_is_idle();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embeddings),
        cmocka_unit_test(every_precision),
        cmocka_unit_test(tables),
        cmocka_unit_test(outliers_of_weights),
        cmocka_unit_test(keys_in_codes),
        cmocka_unit_test(latents_in_codes),
        cmocka_unit_test(other_formats),
        cmocka_unit_test(architectures),
        cmocka_unit_test(mixtures),
        cmocka_unit_test(folders),
        cmocka_unit_test(mixed_activations),
        cmocka_unit_test(from_disk),
        cmocka_unit_test(what_it_cannot_do_is_named),
        cmocka_unit_test(caps_are_kept),
        cmocka_unit_test(blocks_are_streamed_when_not_all_fit),
        cmocka_unit_test(codes_are_left),
        cmocka_unit_test(codes_of_rows_are_left),
        cmocka_unit_test(prompts_are_wide),
        cmocka_unit_test(auto_finds_it),
        cmocka_unit_test(tokens_are_replayed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
