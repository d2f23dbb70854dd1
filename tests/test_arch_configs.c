/* Published models as on the hub: config.json in the style of its year, with keys left out, and tensors under
 * the names of the published files (tests/data/arch-configs). Each is opened from sparse files of the true
 * size, so names, shapes and every derived number are checked as for the real model. The expected values come
 * from HF transformers. */
#include "model/model.h"
#include "base/mem.h"
#include "support/tempdir.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

typedef struct expect {
    const char *name, *arch;
    int64_t n_layer, d_model, n_head, n_kv_head, d_head, d_ff, n_vocab, n_ctx, n_rot;
    double theta, eps;
    int64_t window;
    int n_slide, n_nope; /* layers with a window; layers without rotary embedding */
    bool tied;
    uint64_t n_param;
} expect;

static const expect models[] = {
    {"bloom-560m", "bloom", 24, 1024, 16, 16, 64, 4096, 250880, 2048, 0, 0, 1e-05, 0, 0, 24, true, 559214592},
    {"command-r", "cohere", 40, 8192, 64, 64, 128, 22528, 256000, 8192, 128, 8000000, 1e-05, 0, 0, 0, true,
     34980831232},
    {"command-r7b", "cohere2", 32, 4096, 32, 8, 128, 14336, 256000, 8192, 128, 50000, 1e-05, 4096, 24, 8,
     true, 8028033024},
    {"deepseek-llm-7b", "llama", 30, 4096, 32, 32, 128, 11008, 102400, 4096, 128, 10000, 1e-06, 0, 0, 0,
     false, 6910365696},
    {"falcon-11b", "falcon", 60, 4096, 32, 8, 128, 16384, 65024, 8192, 128, 500042, 1e-05, 0, 0, 0, false,
     11102822400},
    {"falcon-40b", "falcon", 60, 8192, 128, 8, 64, 32768, 65024, 2048, 64, 10000, 1e-05, 0, 0, 0, true,
     41303293952},
    {"falcon-7b", "falcon", 32, 4544, 71, 1, 64, 18176, 65024, 2048, 64, 10000, 1e-05, 0, 0, 0, true,
     6921720704},
    {"falcon-rw-1b", "falcon", 24, 2048, 32, 32, 64, 8192, 50304, 2048, 0, 0, 1e-05, 0, 0, 24, true,
     1311625216},
    {"galactica-1.3b", "opt", 24, 2048, 32, 32, 64, 8192, 50000, 2048, 0, 0, 1e-05, 0, 0, 24, true,
     1315201024},
    {"gemma-2-27b", "gemma2", 46, 4608, 32, 16, 128, 36864, 256000, 8192, 128, 10000, 1e-06, 4096, 23, 0,
     true, 27227128320},
    {"gemma-2-2b", "gemma2", 26, 2304, 8, 4, 256, 9216, 256000, 8192, 256, 10000, 1e-06, 4096, 13, 0, true,
     2614341888},
    {"gemma-3-1b", "gemma3", 26, 1152, 4, 1, 256, 6912, 262144, 32768, 256, 1000000, 1e-06, 512, 22, 0, true,
     999885952},
    {"gemma-3-4b", "gemma3", 34, 2560, 8, 4, 256, 10240, 262208, 131072, 256, 1000000, 1e-06, 1024, 29, 0,
     true, 3880263168},
    {"gemma-7b", "gemma", 28, 3072, 16, 16, 256, 24576, 256000, 8192, 256, 10000, 1e-06, 0, 0, 0, true,
     8537680896},
    {"glm-4-32b-0414", "glm4", 61, 6144, 48, 2, 128, 23040, 151552, 32768, 64, 10000, 1e-05, 0, 0, 0, false,
     32566081536},
    {"glm-4-9b", "glm", 40, 4096, 32, 2, 128, 13696, 151552, 131072, 64, 10000, 1.5625e-07, 0, 0, 0, false,
     9399951360},
    {"gpt-j-6b", "gptj", 28, 4096, 16, 16, 256, 16384, 50400, 2048, 64, 10000, 1e-05, 0, 0, 0, false,
     6050882784},
    {"gpt-neox-20b", "gpt_neox", 44, 6144, 64, 64, 96, 24576, 50432, 2048, 24, 10000, 1e-05, 0, 0, 0, false,
     20554567680},
    {"gpt2-xl", "gpt2", 48, 1600, 25, 25, 64, 6400, 50257, 1024, 0, 0, 1e-05, 0, 0, 48, true, 1557611200},
    {"gpt2", "gpt2", 12, 768, 12, 12, 64, 3072, 50257, 1024, 0, 0, 1e-05, 0, 0, 12, true, 124439808},
    {"granite-3.0-2b", "granite", 40, 2048, 32, 8, 64, 8192, 49155, 4096, 64, 10000, 1e-05, 0, 0, 0, true,
     2533531648},
    {"internlm2-7b", "internlm2", 32, 4096, 32, 8, 128, 14336, 92544, 32768, 128, 1000000, 1e-05, 0, 0, 0,
     false, 7737708544},
    {"llama-2-7b", "llama", 32, 4096, 32, 32, 128, 11008, 32000, 4096, 128, 10000, 1e-05, 0, 0, 0, false,
     6738415616},
    {"llama-3-8b", "llama", 32, 4096, 32, 8, 128, 14336, 128256, 8192, 128, 500000, 1e-05, 0, 0, 0, false,
     8030261248},
    {"llama-3.2-1b", "llama", 16, 2048, 32, 8, 64, 8192, 128256, 131072, 64, 500000, 1e-05, 0, 0, 0, true,
     1235814400},
    {"llama-7b", "llama", 32, 4096, 32, 32, 128, 11008, 32000, 2048, 128, 10000, 1e-06, 0, 0, 0, false,
     6738415616},
    {"mistral-7b-v0.1", "mistral", 32, 4096, 32, 8, 128, 14336, 32000, 32768, 128, 10000, 1e-05, 4096, 32, 0,
     false, 7241732096},
    {"mistral-7b-v0.3", "mistral", 32, 4096, 32, 8, 128, 14336, 32768, 32768, 128, 1000000, 1e-05, 0, 0, 0,
     false, 7248023552},
    {"mistral-nemo", "mistral", 40, 5120, 32, 8, 128, 14336, 131072, 131072, 128, 1000000, 1e-05, 0, 0, 0,
     false, 12247782400},
    {"mpt-30b", "mpt", 48, 7168, 64, 64, 112, 28672, 50432, 8192, 0, 0, 1e-05, 0, 0, 48, true, 29957200896},
    {"mpt-7b", "mpt", 32, 4096, 32, 32, 128, 16384, 50432, 2048, 0, 0, 1e-05, 0, 0, 32, true, 6649286656},
    {"olmo-1b", "olmo", 16, 2048, 16, 16, 128, 8192, 50304, 2048, 128, 10000, 1e-05, 0, 0, 0, true,
     1176764416},
    {"olmo-2-7b", "olmo2", 32, 4096, 32, 32, 128, 11008, 100352, 4096, 128, 500000, 1e-06, 0, 0, 0, false,
     7298617344},
    {"olmo-7b", "olmo", 32, 4096, 32, 32, 128, 11008, 50304, 2048, 128, 10000, 1e-05, 0, 0, 0, false,
     6888095744},
    {"opt-350m", "opt", 24, 1024, 16, 16, 64, 4096, 50272, 2048, 0, 0, 1e-05, 0, 0, 24, true, 331196416},
    {"opt-6.7b", "opt", 32, 4096, 32, 32, 128, 16384, 50272, 2048, 0, 0, 1e-05, 0, 0, 32, true, 6658473984},
    {"phi-1.5", "phi", 24, 2048, 32, 32, 64, 8192, 51200, 2048, 32, 10000, 1e-05, 0, 0, 0, false, 1418270720},
    {"phi-2", "phi", 32, 2560, 32, 32, 80, 10240, 51200, 2048, 32, 10000, 1e-05, 0, 0, 0, false, 2779683840},
    {"phi-3-mini-128k", "phi3", 32, 3072, 32, 32, 96, 8192, 32064, 131072, 96, 10000, 1e-05, 262144, 32, 0,
     false, 3821079552},
    {"phi-3-mini-4k", "phi3", 32, 3072, 32, 32, 96, 8192, 32064, 4096, 96, 10000, 1e-05, 2047, 32, 0, false,
     3821079552},
    {"phi-4-mini", "phi3", 32, 3072, 24, 8, 128, 8192, 200064, 131072, 96, 10000, 1e-05, 262144, 32, 0, true,
     3836021760},
    {"phi-4", "phi3", 40, 5120, 40, 10, 128, 17920, 100352, 16384, 128, 250000, 1e-05, 0, 0, 0, false,
     14659507200},
    {"pythia-1.4b", "gpt_neox", 24, 2048, 16, 16, 128, 8192, 50304, 2048, 32, 10000, 1e-05, 0, 0, 0, false,
     1414647808},
    {"qwen2.5-0.5b", "qwen2", 24, 896, 14, 2, 64, 4864, 151936, 32768, 64, 1000000, 1e-06, 0, 0, 0, true,
     494032768},
    {"qwen2.5-7b", "qwen2", 28, 3584, 28, 4, 128, 18944, 152064, 32768, 128, 1000000, 1e-06, 0, 0, 0, false,
     7615616512},
    {"qwen3-4b", "qwen3", 36, 2560, 32, 8, 128, 9728, 151936, 40960, 128, 1000000, 1e-06, 0, 0, 0, true,
     4022468096},
    {"smollm2-135m", "llama", 30, 576, 9, 3, 64, 1536, 49152, 8192, 64, 100000, 1e-05, 0, 0, 0, true,
     134515008},
    {"smollm3-3b", "smollm3", 36, 2048, 16, 4, 128, 11008, 128256, 65536, 128, 5000000, 1e-06, 0, 0, 9, true,
     3075098624},
    {"stablelm-2-1.6b", "stablelm", 24, 2048, 32, 32, 64, 5632, 100352, 4096, 16, 10000, 1e-05, 0, 0, 0,
     false, 1644515328},
    {"stablelm-2-12b", "stablelm", 40, 5120, 32, 8, 160, 13824, 100352, 4096, 40, 10000, 1e-05, 0, 0, 0,
     false, 12143185920},
    {"stablelm-3b-4e1t", "stablelm", 32, 2560, 32, 32, 80, 6912, 50304, 4096, 20, 10000, 1e-05, 0, 0, 0,
     false, 2795443200},
    {"starcoder2-3b", "starcoder2", 30, 3072, 24, 2, 128, 12288, 49152, 16384, 128, 999999.442035881, 1e-05,
     4096, 30, 0, true, 3030371328},
};

/* --- a folder with config.json and a model.safetensors that is a header and a hole --- */

typedef struct text {
    char *data;
    size_t n, cap;
} text;

static void append(text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void append(text *t, const char *format, ...) {
    if (t->cap - t->n < 512) {
        t->cap = t->cap * 2 + 4096;
        t->data = realloc(t->data, t->cap);
        assert_non_null(t->data);
    }
    va_list args;
    va_start(args, format);
    t->n += (size_t)vsnprintf(t->data + t->n, t->cap - t->n, format, args);
    va_end(args);
}

static void append_tensor(text *header, const char *name, const char *type, const char *shape,
                          uint64_t *offset) {
    uint64_t bytes = strcmp(type, "F32") == 0 ? 4 : 2;
    append(header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", header->n > 1 ? "," : "", name, type);
    for (const char *p = shape; *p;) {
        char *end;
        uint64_t n = strtoull(p, &end, 10);
        append(header, "%s%llu", p == shape ? "" : ",", (unsigned long long)n);
        bytes *= n;
        p = *end == 'x' ? end + 1 : end;
    }
    append(header, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)*offset,
           (unsigned long long)(*offset + bytes));
    *offset += bytes;
}

static text header_of(const expect *e, uint64_t *data_bytes) {
    char path[256], line[256], name[128], shape[64], type[8];
    snprintf(path, sizeof path, "tests/data/arch-configs/%s.tensors", e->name);
    FILE *f = fopen(path, "r");
    if (f == NULL)
        fail_msg("cannot read %s", path);
    text header = {0};
    append(&header, "{");
    *data_bytes = 0;
    while (fgets(line, sizeof line, f) != NULL) {
        assert_int_equal(sscanf(line, "%127s %7s %63s", name, type, shape), 3);
        char *mark = strstr(name, "%d");
        int64_t n = mark != NULL ? e->n_layer : 1;
        for (int64_t i = 0; i < n; i++) {
            char full[192];
            if (mark != NULL)
                snprintf(full, sizeof full, "%.*s%d%s", (int)(mark - name), name, (int)i, mark + 2);
            else
                snprintf(full, sizeof full, "%s", name);
            append_tensor(&header, full, type, shape, data_bytes);
        }
    }
    fclose(f);
    append(&header, "}");
    while (header.n % 8 != 0)
        append(&header, " ");
    return header;
}

static void copy_config(const char *name, const char *folder) {
    char path[1024];
    size_t n;
    char *json;
    nib_error err;
    snprintf(path, sizeof path, "tests/data/arch-configs/%s.json", name);
    if (file_read_all(path, 1 << 20, &json, &n, &err) != NIB_OK)
        fail_msg("%s", err.message);
    snprintf(path, sizeof path, "%s/config.json", folder);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(json, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    mem_free(json);
}

static const char *make_folder(const expect *e) {
    const char *folder = temp_path(e->name);
    char path[1024];
    assert_int_equal(mkdir(folder, 0700), 0);
    copy_config(e->name, folder);
    uint64_t data_bytes;
    text header = header_of(e, &data_bytes);
    unsigned char length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)((uint64_t)header.n >> (8 * i));
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(length, 1, 8, f), 8);
    assert_int_equal(fwrite(header.data, 1, header.n, f), header.n);
    assert_int_equal(fflush(f), 0);
    assert_int_equal(ftruncate(fileno(f), (off_t)(8 + header.n + data_bytes)), 0);
    assert_int_equal(fclose(f), 0);
    free(header.data);
    return folder;
}

/* --- the results --- */

typedef struct layer_kinds {
    int n_slide, n_nope;
    int64_t window;
} layer_kinds;

static layer_kinds count_layers(const model *m) {
    layer_kinds out = {0, 0, 0};
    for (int i = 0; i < model_n_block(m); i++) {
        const block *b = model_block(m, i);
        bool rope = false;
        for (int j = 0; j < b->program.n_op; j++) {
            const op *o = &b->program.ops[j];
            rope = rope || o->kind == OP_ROPE;
            if (o->kind == OP_ATTENTION && o->u.attn.window > 0) {
                out.n_slide++;
                out.window = o->u.attn.window;
            }
        }
        out.n_nope += b->layer >= 0 && !rope;
    }
    return out;
}

#define SAME_INT(what, found, expected)                                                                      \
    do {                                                                                                     \
        if ((int64_t)(found) != (int64_t)(expected))                                                         \
            fail_msg("%s: %s: expected %lld, found %lld", e->name, what, (long long)(expected),              \
                     (long long)(found));                                                                    \
    } while (0)
#define SAME_FLOAT(what, found, expected)                                                                    \
    do {                                                                                                     \
        if (!(fabs((found) - (expected)) <= 1e-7 * fabs(expected)))                                          \
            fail_msg("%s: %s: expected %.9g, found %.9g", e->name, what, (double)(expected),                 \
                     (double)(found));                                                                       \
    } while (0)

static void check(const expect *e, const model *m) {
    const hparams *hp = model_hparams(m);
    if (strcmp(model_arch(m), e->arch) != 0)
        fail_msg("%s: expected the family %s, found %s", e->name, e->arch, model_arch(m));
    SAME_INT("n_layer", hp->n_layer, e->n_layer);
    SAME_INT("d_model", hp->d_model, e->d_model);
    SAME_INT("n_head", hp->n_head, e->n_head);
    SAME_INT("n_kv_head", hp->n_kv_head, e->n_kv_head);
    SAME_INT("d_head", hp->d_head, e->d_head);
    SAME_INT("d_ff", hp->d_ff, e->d_ff);
    SAME_INT("n_vocab", hp->n_vocab, e->n_vocab);
    SAME_INT("n_ctx_train", hp->n_ctx_train, e->n_ctx);
    SAME_INT("n_rot", hp->n_rot, e->n_rot);
    if (e->n_rot > 0)
        SAME_FLOAT("rope_theta", hp->rope_theta, e->theta);
    SAME_FLOAT("norm_eps", hp->norm_eps, e->eps);
    layer_kinds found = count_layers(m);
    SAME_INT("window", found.window, e->window);
    SAME_INT("layers with a window", found.n_slide, e->n_slide);
    SAME_INT("layers without rotary embedding", found.n_nope, e->n_nope);
    SAME_INT("tied_head", hp->tied_head, e->tied);
    SAME_INT("parameters", model_n_param(m), e->n_param);
    SAME_INT("blocks", model_n_block(m), e->n_layer + 2);
}

static void check_one(void **state) {
    const expect *e = *state;
    const char *folder = make_folder(e);
    model *m = NULL;
    nib_error err;
    if (model_open(folder, NULL, &m, &err) != NIB_OK)
        fail_msg("%s: %s", e->name, err.message);
    check(e, m);
    model_close(m);
}

/* --- values that only some families have --- */

static model *open_named(const char *name) {
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++)
        if (strcmp(models[i].name, name) == 0) {
            model *m = NULL;
            nib_error err;
            char path[1024];
            snprintf(path, sizeof path, "%s", temp_path(name));
            if (model_open(access(path, F_OK) == 0 ? path : make_folder(&models[i]), NULL, &m, &err) !=
                NIB_OK)
                fail_msg("%s: %s", name, err.message);
            return m;
        }
    fail_msg("%s is not in the table", name);
    return NULL;
}

static const op *find_op(const model *m, int block_index, op_kind kind) {
    const block *b = model_block(m, block_index);
    for (int i = 0; i < b->program.n_op; i++)
        if (b->program.ops[i].kind == kind)
            return &b->program.ops[i];
    return NULL;
}

static void scales_and_caps(void **state) {
    (void)state;
    static const struct {
        const char *name;
        double attn, attn_cap, logit_cap, embed, residual, logit;
    } rows[] = {
        {"gemma-2-27b", 1 / 12.0, 50, 30, 67.882250993908554, 1, 1}, /* 1/sqrt(144), sqrt(4608) */
        {"gemma-2-2b", 1 / 16.0, 50, 30, 48, 1, 1},
        {"gemma-3-1b", 1 / 16.0, 0, 0, 33.941125496954278, 1, 1},
        {"gemma-7b", 1 / 16.0, 0, 0, 55.42562584220407, 1, 1},
        {"granite-3.0-2b", 0.015625, 0, 0, 12, 0.22, 0.125},
        {"command-r", 0.08838834764831845, 0, 0, 1, 1, 0.0625},
        {"command-r7b", 0.08838834764831845, 0, 0, 1, 1, 0.25},
        {"mpt-30b", 0.09449111825230680, 0, 0, 1, 1, 1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        model *m = open_named(rows[i].name);
        const hparams *hp = model_hparams(m);
        const struct { const char *name; } *e = (const void *)&rows[i];
        SAME_FLOAT("attn_scale", hp->attn_scale, rows[i].attn);
        SAME_FLOAT("attn_softcap", hp->attn_softcap, rows[i].attn_cap);
        SAME_FLOAT("logit_softcap", hp->logit_softcap, rows[i].logit_cap);
        SAME_FLOAT("embed_scale", hp->embed_scale, rows[i].embed);
        SAME_FLOAT("residual_scale", hp->residual_scale, rows[i].residual);
        SAME_FLOAT("logit_scale", hp->logit_scale, rows[i].logit);
        model_close(m);
    }
}

/* Gemma's first configurations say "gelu" for the tanh form. */
static void gemma_takes_tanh(void **state) {
    (void)state;
    model *m = open_named("gemma-7b");
    assert_int_equal(find_op(m, 1, OP_GATE)->u.act.kind, ACT_GELU_TANH);
    model_close(m);
    m = open_named("galactica-1.3b");
    assert_int_equal(find_op(m, 1, OP_ACT)->u.act.kind, ACT_GELU);
    model_close(m);
    m = open_named("starcoder2-3b"); /* has "activation_function": "gelu" as well, which is not read */
    assert_int_equal(find_op(m, 1, OP_ACT)->u.act.kind, ACT_GELU_TANH);
    model_close(m);
}

static void falcon_shapes(void **state) {
    (void)state;
    model *m = open_named("falcon-rw-1b");
    assert_false(model_hparams(m)->parallel);
    assert_true(find_op(m, 1, OP_ATTENTION)->u.attn.alibi_max_bias == 8);
    model_close(m);
    m = open_named("falcon-11b");
    assert_true(model_hparams(m)->parallel);
    model_close(m);
    m = open_named("olmo-7b");
    assert_true(model_hparams(m)->qkv_clip == 8);
    model_close(m);
}

/* Gemma 3 has two tables; 4b's full layers are scaled by 8, its defaults come from the configuration class.
 */
static void rope_tables(void **state) {
    (void)state;
    float freq[128], factor;
    model *m = open_named("gemma-3-4b");
    assert_int_equal(model_n_rope(m), 2);
    model_rope_freqs(m, 0, 1, freq, &factor);
    assert_true(fabsf(freq[0] - 0.125f) < 1e-7f);
    model_rope_freqs(m, 1, 1, freq, &factor);
    assert_true(freq[0] == 1 && fabs(freq[1] - pow(10000, -2.0 / 256)) < 1e-6);
    model_close(m);
    m = open_named(
        "llama-3.2-1b"); /* the slowest frequencies are divided by 32, the fastest ones are unchanged */
    model_rope_freqs(m, 0, 1, freq, &factor);
    assert_true(freq[0] == 1 && fabs(freq[31] / (pow(500000, -62.0 / 64) / 32) - 1) < 1e-5);
    model_close(m);
    m = open_named("phi-3-mini-128k"); /* sqrt(1 + ln(32) / ln(4096)) */
    assert_true(model_rope_varies(m, 0));
    model_rope_freqs(m, 0, 100, freq, &factor);
    assert_true(fabsf(factor - 1.1902380714238083f) < 1e-6f && fabsf(freq[0] - 1 / 1.05f) < 1e-6f);
    model_rope_freqs(m, 0, 5000, freq, &factor);
    assert_true(fabsf(freq[0] - 1 / 1.03f) < 1e-6f);
    model_close(m);
    m = open_named("internlm2-7b"); /* dynamic: unchanged up to 32768 positions, then slower */
    float later[128];
    model_rope_freqs(m, 0, 32768, freq, &factor);
    model_rope_freqs(m, 0, 65536, later, &factor);
    assert_true(fabs(freq[63] / pow(1000000, -126.0 / 128) - 1) < 1e-5 && later[63] < freq[63] * 0.5f);
    model_close(m);
}

int main(void) {
    enum { N = sizeof models / sizeof models[0] };
    static const struct CMUnitTest more[] = {
        cmocka_unit_test(scales_and_caps),
        cmocka_unit_test(gemma_takes_tanh),
        cmocka_unit_test(falcon_shapes),
        cmocka_unit_test(rope_tables),
    };
    struct CMUnitTest tests[N + sizeof more / sizeof more[0]];
    memset(tests, 0, sizeof tests);
    for (size_t i = 0; i < N; i++) {
        tests[i].name = models[i].name;
        tests[i].test_func = check_one;
        tests[i].initial_state = (void *)(uintptr_t)&models[i];
    }
    memcpy(tests + N, more, sizeof more);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
