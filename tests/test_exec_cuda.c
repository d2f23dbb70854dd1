/* The cuda back end on a real GPU against the processor; skipped without one.
 *   test_exec_cuda [PATTERN]: the tests with such names
 *
 * Generated rows: with activations of 16 bits every logit is within 2e-3 of the largest, and greedy tokens
 * are the same. With 8 bits the processor keeps outliers of a row as floats, and the GPU does not: the
 * difference of all logits is within 6 % of them (root mean squares).
 *
 * If the device has kernels for prompts (cuda_kernels.has_wide), these round activations to halves, whatever
 * precision is requested, so prompt rows have bits of their own. The difference of all logits to 16-bit
 * activations is within WIDE_ALL of them.
 *
 * If it has kernels for the generated rows of many sequences (cuda_kernels.has_batch), these round to halves
 * too, and have the same bound.
 *
 * In mixtures of experts a small difference of a router's input may change a choice, and then all of the row.
 * So the bounds are those of the median of rows, MIXTURE times as large.
 *
 * A row of either kind has the same bits alone and beside any other rows. */
#include "kernels/cuda_load.h"
#include "model/model.h"
#include "session/session.h"
#include "support/answers.h"
#include "support/archs.h"
#include "support/company.h"
#include "engine/engine.h"
#include "support/engine.h"
#include "support/logits.h"
#include "support/skip.h"
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

/* Halves have 11 bits, and activations as well as weights are rounded to them: a sixth of the bound for 8
 * bits (above). */
#define WIDE_ALL 0.01
#define MIXTURE  2
enum { N_TOKEN = 150, N_VOCAB = 512, N_CTX = 192 };

static const tiny_shape small = {TYPE_Q8_0, 2, 256, 384, 4, 2, N_VOCAB, N_CTX, true};

static bool is_mixture; /* the model of the last logits_by */

static bool routes(const model *m) {
    for (int b = 0; b < model_n_block(m); b++)
        for (int i = 0; i < model_block(m, b)->program.n_op; i++)
            if (model_block(m, b)->program.ops[i].kind == OP_ROUTE)
                return true;
    return false;
}

/* false: the GPU's kernels lack an op of the model. */
static bool logits_by(const char *name, const char *path, nib_engine_options o, const plan *p, int n,
                      bool generated, logits_rows *out) {
    nib_engine *e = NULL;
    nib_error err = {0};
    int32_t tokens[N_TOKEN];
    o.backend = name;
    o.kv_type = o.kv_type ? o.kv_type : NIB_KV_F16;
    const nib_status status = engine_open(path, &o, &(engine_internal){.plan = p}, &e, &err);
    if (status == NIB_E_DEVICE && strstr(err.message, "the cuda back end does not support "))
        return false;
    if (status != NIB_OK)
        fail_msg("%s on %s: %s", path, name, err.message);
    is_mixture = routes(engine_parts_of(e).m);
    logits_tokens(tokens, n, nib_engine_info(e)->n_vocab, 3);
    *out = generated ? logits_generated(e, tokens, n, (int)o.n_batch) : logits_of(e, tokens, n);
    nib_engine_close(e);
    return true;
}

typedef struct distance {
    double worst;   /* of a logit, in the largest */
    double all;     /* of root mean squares */
    double typical; /* the median of the rows' */
} distance;

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double median_of(const logits_rows *is, const logits_rows *should) {
    const size_t n = (size_t)is->n_vocab, n_row = logits_bytes(is) / sizeof(float) / n;
    double *rows = malloc(n_row * sizeof *rows);
    for (size_t r = 0; r < n_row; r++) {
        double sum = 0, of = 0;
        for (size_t i = r * n; i < (r + 1) * n; i++) {
            const double a = (double)is->data[i], b = (double)should->data[i];
            sum += (a - b) * (a - b);
            of += b * b;
        }
        rows[r] = sqrt(sum / of);
    }
    qsort(rows, n_row, sizeof *rows, by_size);
    const double median = rows[n_row / 2];
    free(rows);
    return median;
}

static distance distance_of(const logits_rows *is, const logits_rows *should) {
    double largest = 0, worst = 0, sum = 0, of = 0;
    assert_int_equal(logits_bytes(is), logits_bytes(should));
    for (size_t i = 0; i < logits_bytes(is) / sizeof(float); i++) {
        const double a = (double)is->data[i], b = (double)should->data[i];
        if (!isfinite(a))
            fail_msg("logit %zu is %g", i, a);
        largest = fmax(largest, fabs(b));
        worst = fmax(worst, fabs(a - b));
        sum += (a - b) * (a - b);
        of += b * b;
    }
    return (distance){worst / largest, sqrt(sum / of), median_of(is, should)};
}

static bool is_close(const distance *d, double bound) {
    return is_mixture ? d->typical <= MIXTURE * bound : d->all <= bound;
}

static bool has_wide, has_batch;
enum { MANY = 20 /* sequences that may decode together: with the kernels for many */ };

static bool compare(const char *path, nib_engine_options o, const plan *p, int n, const char *what) {
    for (int bits = 8; bits <= 16; bits += 8) {
        logits_rows cpu, cuda;
        o.activation = bits;
        if (!logits_by("cuda", path, o, p, n, true, &cuda))
            return false;
        logits_by("cpu", path, o, p, n, false, &cpu);
        const distance d = distance_of(&cuda, &cpu);
        printf("%s, %s, %d bits: worst %.2e of the largest, all %.2e, typical %.2e\n", path, what, bits,
               d.worst, d.all, d.typical);
        if (bits == 8 || is_mixture ? !is_close(&d, bits == 8 ? 0.06 : 2e-3) : !(d.worst <= 2e-3))
            fail_msg("%s, %s, %d bits: too far from the processor's logits", path, what, bits);
        free(cpu.data);
        free(cuda.data);
    }
    return true;
}

static void compare_halves(const char *path, nib_engine_options o, const plan *p, int n, bool generated,
                           const char *what) {
    logits_rows cpu, cuda;
    o.activation = 16;
    if (!logits_by("cuda", path, o, p, n, generated, &cuda))
        return;
    logits_by("cpu", path, o, p, n, false, &cpu);
    const distance d = distance_of(&cuda, &cpu);
    printf("%s, %s, %d %s rows: worst %.2e of the largest, all %.2e, typical %.2e\n", path, what,
           (int)o.n_batch, generated ? "generated" : "prompt's", d.worst, d.all, d.typical);
    if (!is_close(&d, WIDE_ALL))
        fail_msg("%s, %s, %d rows: too far from the processor's logits", path, what, n);
    free(cpu.data);
    free(cuda.data);
}

/* As a prompt, and as generated rows of many sequences. */
static void compare_wide(const char *path, nib_engine_options o, const plan *p, int n, const char *what) {
    if (has_batch) {
        o.n_sequence = MANY;
        compare_halves(path, o, p, n, true, what);
        o.n_sequence = 0;
    }
    o.n_batch = n;
    if (has_wide)
        compare_halves(path, o, p, n, false, what);
}

static void formats(void **state) {
    (void)state;
    static const type_id types[] = {TYPE_Q4_0, TYPE_Q4_1, TYPE_Q5_0, TYPE_Q8_0,
                                    TYPE_F16,  TYPE_BF16, TYPE_F32};
    for (int t = 0; t < 7; t++) {
        static const int rows[] = {1, 7, 16, 13, 1, 9, 20};
        static const char *const names[] = {"Q4_0", "Q4_1", "Q5_0", "Q8_0", "F16", "BF16", "F32"};
        tiny_shape shape = small;
        nib_engine_options o = engine_usual();
        shape.type = types[t];
        shape.tied = t % 2;
        o.n_batch = rows[t];
        assert_true(compare(tiny_model("formats.gguf", &shape), o, NULL, N_TOKEN, names[t]));
        compare_wide(tiny_model("formats.gguf", &shape), o, NULL, N_TOKEN, names[t]);
    }
}

/* Codes of table entries, also with outliers. */
static void tables(void **state) {
    (void)state;
    static const type_id types[] = {TYPE_IQ4_NL, TYPE_IQ4_XS, TYPE_MXFP4, TYPE_C4,
                                    TYPE_C3,     TYPE_C4O45,  TYPE_C3O100};
    for (int t = 0; t < 7; t++) {
        tiny_shape shape = small;
        nib_engine_options o = engine_usual();
        shape.type = types[t];
        shape.d_ff = 512;
        o.n_batch = 1 + 6 * t;
        const char *path = tiny_model("tables.gguf", &shape), *name = type_get(types[t])->name;
        assert_true(compare(path, o, NULL, N_TOKEN, name));
        if (types[t] == TYPE_IQ4_NL) /* random blocks of others make weights that round too much in halves */
            compare_wide(path, o, NULL, N_TOKEN, name);
    }
}

/* Mixtures of experts: few and many experts and rows, packed and with floats. */
static void mixtures(void **state) {
    (void)state;
    static const tiny_shape shapes[] = {{TYPE_Q4_0, 2, 256, 384, 4, 2, N_VOCAB, N_CTX, true, 16, 4},
                                        {TYPE_Q8_0, 2, 128, 160, 4, 2, N_VOCAB, N_CTX, true, 7, 3},
                                        {TYPE_Q4_1, 2, 256, 96, 4, 2, N_VOCAB, N_CTX, true, 40, 8},
                                        {TYPE_MXFP4, 2, 256, 128, 4, 2, N_VOCAB, N_CTX, true, 8, 2},
                                        {TYPE_F16, 2, 128, 100, 4, 2, N_VOCAB, N_CTX, true, 9, 2},
                                        {TYPE_BF16, 2, 128, 64, 4, 2, N_VOCAB, N_CTX, true, 300, 5},
                                        {TYPE_F32, 2, 128, 64, 4, 2, N_VOCAB, N_CTX, true, 6, 1}};
    for (size_t t = 0; t < sizeof shapes / sizeof *shapes; t++) {
        static const int rows[] = {1, 7, 16, 13, 1, 9, 20};
        const char *path = tiny_model("mixtures.gguf", &shapes[t]), *name = type_get(shapes[t].type)->name;
        nib_engine_options o = engine_usual();
        o.n_batch = rows[t];
        assert_true(compare(path, o, NULL, N_TOKEN, name));
        if (shapes[t].type != TYPE_MXFP4) /* random scales make weights that round too much in halves */
            compare_wide(path, o, NULL, N_TOKEN, name);
    }
}

/* Folders of the hub, with a context of 64: codes with and without zeros, floats of 8 and 4 bits with scales.
 */
static void folders(void **state) {
    (void)state;
    static const char *const names[] = {"awq-128", "gptq-128", "w4a16-64",  "moe-awq", "mxfp4-packed",
                                        "fp8-row", "nvfp4",    "moe-nvfp4", "moe-fp8"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        static const int rows[] = {1, 7, 16};
        char path[200];
        nib_engine_options o = engine_usual();
        snprintf(path, sizeof path, "tests/data/packed/%s", names[i]);
        o.n_batch = rows[i % 3];
        assert_true(compare(path, o, NULL, 48, names[i]));
        compare_wide(path, o, NULL, 48, names[i]);
    }
}

/* Activations of 4 and 8 bits by block of channels. A small difference may change a code of 4 bits, and
 * prompts attend in halves: their logits are as near as the processor's own with keys and values in halves
 * and in floats (0.29). test_kernels_cuda_mixed compares the products themselves. */
static void mixed_activations(void **state) {
    (void)state;
    static const char *const recipes[] = {"u4g64", "u4g128", "u4g32"};
    static const int rows[] = {1, 16, 48};
    tiny_plan h;
    const char *path = tiny_plan_make_mixed(&h, "tests/data/arch/llama", recipes, 3);
    logits_rows cpu, floats;
    nib_engine_options o = engine_usual();
    o.n_ctx = 64;
    logits_by("cpu", path, o, &h.p, 48, false, &cpu);
    o.kv_type = NIB_KV_F32;
    logits_by("cpu", path, o, &h.p, 48, false, &floats);
    o.kv_type = NIB_KV_F16;
    for (int i = 0; i < 4; i++) {
        const bool generated = i < 3;
        logits_rows cuda;
        o.n_batch = generated ? rows[i] : 48;
        assert_true(logits_by("cuda", path, o, &h.p, 48, generated, &cuda));
        const distance d = distance_of(&cuda, &cpu);
        printf("ax, %d %s rows: worst %.2e of the largest, all %.2e, typical %.2e\n", (int)o.n_batch,
               generated ? "generated" : "prompt's", d.worst, d.all, d.typical);
        assert_true(d.all <= (generated ? 1e-4 : distance_of(&floats, &cpu).all));
        free(cuda.data);
    }
    free(cpu.data);
    free(floats.data);
}

static void embed_by(const char *name, const char *path, int n, float *out) {
    nib_engine_options o = engine_usual();
    int32_t tokens[N_TOKEN];
    nib_error err = {0};
    o.backend = name;
    o.activation = 16;
    o.n_batch = n;
    nib_engine *e = engine_must_open(path, &o, NULL);
    nib_session *s = session_must_open(e);
    logits_tokens(tokens, n, N_VOCAB, 3);
    if (nib_session_embed(s, tokens, (size_t)n, NIB_POOLING_MEAN, out, NULL, NULL, &err) != NIB_OK)
        fail_msg("%s: %s", name, err.message);
    nib_session_close(s);
    nib_engine_close(e);
}

static void embeddings(void **state) {
    (void)state;
    static const int rows[] = {1, 9, 64, N_TOKEN};
    const char *path = tiny_model("embeddings.gguf", &small);
    for (int i = 0; i < 4; i++) {
        float cpu[256], cuda[256];
        double sum = 0, of = 0;
        embed_by("cpu", path, rows[i], cpu);
        embed_by("cuda", path, rows[i], cuda);
        for (int j = 0; j < 256; j++) {
            sum += (double)(cuda[j] - cpu[j]) * (double)(cuda[j] - cpu[j]);
            of += (double)cpu[j] * (double)cpu[j];
        }
        printf("embedding of %d tokens: %.2e from the processor's\n", rows[i], sqrt(sum / of));
        assert_true(of > 0 && sqrt(sum / of) <= WIDE_ALL);
    }
}

static void plans(void **state) {
    (void)state;
    static const char *const recipes[] = {"u4g64", "u3g32a", "u2g16", "u6g128", "u4g32+u4g32"};
    const char *path = tiny_model("plans.gguf", &small);
    for (int i = 0; i < 5; i++) {
        tiny_plan h;
        tiny_plan_make(&h, path, &recipes[i], 1, NIB_TIER_RAM, NIB_TIER_RAM);
        nib_engine_options o = engine_usual();
        assert_true(compare(path, o, &h.p, N_TOKEN, recipes[i]));
        compare_wide(path, o, &h.p, N_TOKEN, recipes[i]);
    }
}

static void compare_arch(void *user, const char *path, const char *name) {
    static const char *const recipes[] = {"u8g32"};
    tiny_plan h;
    nib_engine_options o = engine_usual();
    (void)name;
    o.n_ctx = 32;
    tiny_plan_make(&h, path, recipes, 1, NIB_TIER_RAM, NIB_TIER_RAM);
    *(int *)user += compare(path, o, &h.p, 24, "u8g32");
    o.n_ctx = 80;
    compare_wide(path, o, &h.p, 70, "u8g32");
    o.n_ctx = 32;
    if (compare(path, o, NULL, 24, "floats"))
        compare_wide(path, o, NULL, 24, "floats");
}

static void architectures(void **state) {
    (void)state;
    int n = 0;
    archs_each("tests/data/arch", compare_arch, &n);
    archs_each("tests/data/arch-extra", compare_arch, &n);
    assert_true(n >= 140);
}

static int n_sequence = 1;

static logits_rows rows_by(const char *path, int n, int n_batch, int bits, bool generated) {
    logits_rows out;
    nib_engine_options o = engine_usual();
    o.n_sequence = n_sequence;
    o.n_batch = n_batch;
    o.activation = bits;
    assert_true(logits_by("cuda", path, o, NULL, n, generated, &out));
    return out;
}

/* In passes of any number of rows, of prompts and of generated ones. */
static void alone_and_together(const char *path, int n) {
    static const int rows[] = {1, 5, 16, 64, 65, 100, 150};
    for (int bits = 8; bits <= 16; bits += 8) {
        logits_rows alone[2];
        for (int generated = 0; generated < 2; generated++) {
            alone[generated] = rows_by(path, n, rows[0], bits, generated);
            for (size_t i = 1; i < sizeof rows / sizeof *rows; i++) {
                logits_rows is = rows_by(path, n, rows[i], bits, generated);
                if (memcmp(is.data, alone[generated].data, logits_bytes(&is)) != 0)
                    fail_msg("%d %s rows together have other bits than one, %d bits", rows[i],
                             generated ? "generated" : "prompt's", bits);
                free(is.data);
            }
        }
        const distance d = distance_of(&alone[0], &alone[1]);
        printf("rows of a prompt beside generated ones, %d bits: worst %.2e of the largest, all %.2e\n", bits,
               d.worst, d.all);
        /* `batch` computes with halves like `wide`; experts of generated rows keep their 8 bits */
        const bool halves = has_batch && n_sequence == MANY && !is_mixture;
        if (has_wide && !is_close(&d, bits == 8 && !halves ? 0.06 : WIDE_ALL))
            fail_msg("rows of a prompt are too far from generated ones, %d bits", bits);
        if (!has_wide && memcmp(alone[0].data, alone[1].data, logits_bytes(&alone[0])) != 0)
            fail_msg("rows of a prompt have other bits than generated ones");
        free(alone[0].data);
        free(alone[1].data);
    }
}

static void rows_alone_and_together(void **state) {
    n_sequence = *(const int *)*state;
    tiny_shape shape = small;
    shape.type = TYPE_Q4_0;
    alone_and_together(tiny_model("rows.gguf", &shape), N_TOKEN);
    shape.n_expert = 24;
    shape.n_used = 5;
    alone_and_together(tiny_model("rows-of-experts.gguf", &shape), N_TOKEN);
    alone_and_together("tests/data/arch/qwen3_5", 100); /* recurrent layers */
    alone_and_together("tests/data/arch/mamba2", 100);
    alone_and_together("tests/data/arch/lfm2", 100);
}

/* An answer's tokens and their probabilities. */
static nib_engine *company_open(const char *path, nib_kv_type kv, int n_batch) {
    nib_engine_options o = engine_usual();
    o.backend = "cuda";
    o.kv_type = kv;
    o.n_ctx = COMPANY_CTX;
    o.n_session = 4;
    o.n_sequence = n_sequence;
    o.n_batch = n_batch;
    return engine_must_open(path, &o, NULL);
}

static void in_company(void **state) {
    n_sequence = *(const int *)*state;
    static const nib_kv_type caches[] = {NIB_KV_F16, NIB_KV_8, NIB_KV_4};
    static const int pieces[] = {512, 7, 64, 100};
    static company_answer alone, is;
    int32_t tokens[COMPANY_PROMPT];
    tiny_shape shape = small;
    shape.type = TYPE_Q4_0;
    shape.n_ctx = COMPANY_CTX;
    const char *path = tiny_model("company.gguf", &shape);
    for (int kv = 0; kv < 3; kv++)
        for (int i = 0; i < (kv ? 2 : 4); i++)
            for (int how = 0; how < COMPANY_COUNT; how++) {
                nib_engine *e = company_open(path, caches[kv], pieces[i]);
                company_prompt(e, N_VOCAB, tokens);
                nib_engine_close(e);
                e = company_open(path, caches[kv], pieces[i]);
                company_ask(e, how, tokens, i || how ? &is : &alone);
                nib_engine_close(e);
                if ((i || how) && memcmp(&is, &alone, sizeof is) != 0)
                    fail_msg("an answer %s has other bits than in a session: passes of %d rows, cache %d",
                             company_names[how], pieces[i], kv);
            }
}

/* Layers without weights on the GPU: the processor computes some of them for generated rows, and the GPU
 * computes all of them for prompts, with the same bits as with all weights there. */
static void in_place(void **state) {
    (void)state;
    static const int rows[] = {1, 16, 40, N_TOKEN};
    tiny_shape shape = small;
    shape.n_layer = 5;
    const char *path = tiny_model("in-place.gguf", &shape);
    for (int i = 0; i < 4; i++) {
        logits_rows part, all;
        nib_engine_options o = engine_usual();
        o.n_batch = rows[i];
        o.activation = 16;
        logits_by("cuda", path, o, NULL, N_TOKEN, false, &all);
        o.gpu_layers = 1 + i;
        logits_by("cuda", path, o, NULL, N_TOKEN, false, &part);
        assert_memory_equal(part.data, all.data, logits_bytes(&all));
        free(part.data);
        free(all.data);
        if (rows[i] > 64)
            continue;
        assert_true(compare(path, o, NULL, N_TOKEN, "in place"));
        o.activation = 16;
        logits_by("cuda", path, o, NULL, N_TOKEN, true, &part);
        o.gpu_layers = 0;
        logits_by("cuda", path, o, NULL, N_TOKEN, true, &all);
        const distance d = distance_of(&part, &all);
        printf("%d of 5 layers on the GPU, %d rows: all %.2e\n", 1 + i, rows[i], d.all);
        assert_true(d.all <= WIDE_ALL);
        free(part.data);
        free(all.data);
    }
}

/* Keys and values of many sequences that do not fit on the GPU: those of some layers come from host memory,
 * with the same bits, or the processor attends to them for generated rows. */
static void staged(void **state) {
    (void)state;
    static const nib_kv_type types[] = {NIB_KV_F16, NIB_KV_8, NIB_KV_4};
    tiny_shape shape = small;
    shape.n_layer = 5;
    const char *path = tiny_model("staged.gguf", &shape);
    for (int i = 0; i < 6; i++) {
        const bool generated = i % 2;
        logits_rows part, all;
        nib_memory used;
        nib_engine_options o = engine_usual();
        o.backend = "cuda";
        o.kv_type = types[i / 2];
        o.n_session = o.n_sequence = 32;
        o.n_ctx = 8192;
        o.n_batch = 40;
        o.activation = 16;
        nib_engine *e = engine_must_open(path, &o, NULL);
        nib_engine_memory(e, &used);
        nib_engine_close(e);
        logits_by("cuda", path, o, NULL, N_TOKEN, generated, &all);
        o.vram = used.tier[NIB_TIER_VRAM].planned - used.tier[NIB_TIER_VRAM].planned / 16;
        logits_by("cuda", path, o, NULL, N_TOKEN, generated, &part);
        e = engine_must_open(path, &o, NULL);
        const bool attends = engine_parts_of(e).step->backend->split->n_attended > 0;
        nib_engine_close(e);
        if (generated && attends)
            assert_true(distance_of(&part, &all).all <= WIDE_ALL);
        else
            assert_memory_equal(part.data, all.data, logits_bytes(&all));
        free(part.data);
        free(all.data);
    }
}

enum { N_ANSWER = 64 };

static void answer(const char *name, const char *path, int32_t *out) {
    nib_engine_options o = engine_usual();
    nib_generate_options g;
    nib_result r = {0};
    nib_error err = {0};
    o.backend = name;
    o.kv_type = NIB_KV_F16;
    o.activation = 16;
    nib_engine *e = engine_must_open(path, &o, NULL);
    nib_session *s = session_must_open(e);
    nib_generate_options_init(&g);
    g.prompt = (const int32_t[]){1, 2, 3, 4, 5};
    g.n_prompt = 5;
    g.n_predict = N_ANSWER;
    g.ignore_eos = true;
    g.sampling.temperature = 0;
    if (nib_generate(s, &g, &r, &err))
        fail_msg("%s: %s", name, err.message);
    assert_int_equal(r.n_token, N_ANSWER);
    memcpy(out, r.tokens, N_ANSWER * sizeof *out);
    nib_result_clear(&r);
    nib_session_close(s);
    nib_engine_close(e);
}

static void greedy_tokens(void **state) {
    (void)state;
    int32_t cpu[N_ANSWER], cuda[N_ANSWER];
    const char *path = tiny_model("greedy.gguf", &small);
    answer("cpu", path, cpu);
    answer("cuda", path, cuda);
    assert_memory_equal(cpu, cuda, sizeof cpu);
}

/* Penalties and a bias on the device: the tokens are those of the host's sampler on the same logits, and
 * those of the processor. */
static void changed_logits(void **state) {
    (void)state;
    int32_t tokens[3][ANSWERS][ANSWER_TOKENS];
    const char *path = tiny_model("changed.gguf", &small);
    for (int together = 0; together < 2; together++) {
        for (int i = 0; i < 3; i++) {
            nib_engine_options o = engine_usual();
            o.activation = 16;
            o.kv_type = NIB_KV_F16;
            o.backend = i ? "cuda" : "cpu";
            nib_engine *e = engine_must_open(path, &o, NULL);
            answers_of(e, together, i == 1, tokens[i]);
            nib_engine_close(e);
        }
        assert_memory_equal(tokens[1], tokens[2], sizeof tokens[1]);
        for (int i = 0; i < ANSWERS; i += 2) /* greedy ones */
            assert_memory_equal(tokens[0][i], tokens[2][i], sizeof tokens[0][i]);
    }
}

/* A head in two steps, alone and with eight sequences: the tokens of the whole head, also of its graph. */
static void head_in_two_steps(void **state) {
    (void)state;
    int32_t tokens[2][ANSWERS][ANSWER_TOKENS];
    tiny_shape shape = small;
    shape.n_vocab = 30000;
    const char *path = tiny_model("two_steps.gguf", &shape);
    for (int together = 0; together < 2; together++) {
        for (int i = 0; i < 2; i++) {
            nib_engine_options o = engine_usual();
            nib_traffic t;
            o.kv_type = NIB_KV_F16;
            o.backend = "cuda";
            o.shortlist = i ? NIB_SHORTLIST_ON : NIB_SHORTLIST_OFF;
            nib_engine *e = engine_must_open(path, &o, NULL);
            answers_of(e, together, false, tokens[i]);
            nib_engine_traffic(e, &t);
            assert_true(i ? t.head_share < 0.5 : t.head_share == 1);
            nib_engine_close(e);
        }
        assert_memory_equal(tokens[0], tokens[1], sizeof tokens[0]);
    }
}

static char missing[sizeof((nib_error *)0)->message];

static void without_a_device(void **state) {
    (void)state;
    skip_because(missing);
}

int main(int argc, char **argv) {
    const struct CMUnitTest none[] = {cmocka_unit_test(without_a_device)};
    static int one = 1, many = MANY;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(formats),
        cmocka_unit_test(tables),
        cmocka_unit_test(mixtures),
        cmocka_unit_test(folders),
        cmocka_unit_test(mixed_activations),
        cmocka_unit_test(embeddings),
        cmocka_unit_test(plans),
        cmocka_unit_test(greedy_tokens),
        cmocka_unit_test(changed_logits),
        cmocka_unit_test(head_in_two_steps),
        cmocka_unit_test_prestate(rows_alone_and_together, &one),
        cmocka_unit_test_prestate(rows_alone_and_together, &many),
        cmocka_unit_test_prestate(in_company, &one),
        cmocka_unit_test_prestate(in_company, &many),
        cmocka_unit_test(in_place),
        cmocka_unit_test(staged),
        cmocka_unit_test(architectures),
    };
    const cuda_kernels *kernels;
    cuda_device_info info;
    nib_error err;
    if (cuda_load(&kernels, &err) != NIB_OK) {
        snprintf(missing, sizeof missing, "%s", err.message);
        return cmocka_run_group_tests(none, NULL, NULL);
    }
    if (!kernels->device_open(0, &info)) {
        has_wide = kernels->has_wide();
        has_batch = kernels->has_batch();
    }
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
