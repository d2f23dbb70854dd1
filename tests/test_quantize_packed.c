/* Checkpoints in the packed forms of the hub: every value is the one that tools/make-packed-data.py computed
 * from the form's definition, bit for bit, and damaged ones are refused by name. */
#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"
#include "formats/container.h"
#include "formats/gguf_copy.h"
#include "nib_tools.h"
#include "numbers/blocks.h"
#include "support/engine.h"
#include "support/faults.h"
#include "support/made.h"
#include "support/quantized.h"
#include "support/logits.h"
#include "support/matrix.h"
#include "support/tempdir.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char out_path[512];

static nib_status make(const char *folder, const char *type, const char *method, nib_error *err) {
    const nib_engine_options o = engine_usual();
    const nib_quantize_options q = {.out = out_path, .type = type, .method = method};
    nib_quantize_report r;
    unlink(out_path);
    return nib_quantize(folder, &o, &q, &r, err);
}

/* bf16 has 8 bits. */
static bool near_bf16(float exact, float rounded) {
    return fabsf(exact - rounded) <= 0x1p-8f * fabsf(exact);
}

/* turned: rows of a head stand as pairs of halves. exact: without the rounding to bf16 of the expected ones.
 */
static void check_values(const char *folder, const container *made, const container *expected, bool turned,
                         bool exact) {
    char name[96];
    int64_t n, m;
    snprintf(name, sizeof name, "blk.0.attn_%c.weight", turned ? 'k' : 'v');
    const int64_t rows = container_find(made, name)->shape[0], k = container_find(made, name)->shape[1];
    float *found = small_values(made, name, &n);
    snprintf(name, sizeof name, "model.layers.0.self_attn.%c_proj.weight", turned ? 'k' : 'v');
    float *wanted = small_values(expected, name, &m);
    assert_true(n == m && container_find(expected, name)->shape[0] == rows);
    for (int64_t r = 0; r < rows; r++) {
        const int64_t from = turned ? r / 2 + r % 2 * (rows / 2) : r; /* one head */
        for (int64_t i = 0; i < k; i++)
            if (exact ? !near_bf16(found[r * k + i], wanted[from * k + i])
                      : memcmp(&found[r * k + i], &wanted[from * k + i], sizeof *found))
                fail_msg("%s: %s [%d, %d] is %.9g, expected %.9g", folder, name, (int)from, (int)i,
                         (double)found[r * k + i], (double)wanted[from * k + i]);
    }
    free(found);
    free(wanted);
}

static void test_same_values(void **state) {
    (void)state;
    static const struct {
        const char *name, *type; /* NULL: it stays as it is */
        type_id becomes;
    } cases[] = {{"awq", NULL, TYPE_Q5_0},
                 {"gptq-4", NULL, TYPE_Q4_0},
                 {"gptq-4-asym", NULL, TYPE_Q5_0},
                 {"gptq-act", "f32", TYPE_F32},
                 {"gptq-3", NULL, TYPE_Q4_0},
                 {"gptq-2", NULL, TYPE_Q4_0},
                 {"gptq-8", NULL, TYPE_Q8_0},
                 {"w4a16", NULL, TYPE_Q4_0},
                 {"w4a16-asym", NULL, TYPE_Q5_0},
                 {"w8a16", NULL, TYPE_Q8_0},
                 {"w8a8", NULL, TYPE_Q8_0},
                 {"nf4", NULL, TYPE_BF16},
                 {"nf4-nested", NULL, TYPE_BF16},
                 {"awq", "packed", TYPE_N4G32},
                 {"awq-128", NULL, TYPE_Q5_0},
                 {"awq-128", "packed", TYPE_N4G128},
                 {"gptq-64", "packed", TYPE_N4G64},
                 {"gptq-4", "packed", TYPE_Q4_0},
                 {"w4a16-asym", "packed", TYPE_N4G32},
                 {"gptq-2", "packed", TYPE_Q4_0},
                 {"fp8-block", NULL, TYPE_BF16},
                 {"fp8-tensor", NULL, TYPE_BF16},
                 {"fp8-row", NULL, TYPE_BF16},
                 {"fp8-row", "f32", TYPE_F32}, /* not rounded */
                 {"nvfp4", NULL, TYPE_BF16},
                 {"nvfp4", "f32", TYPE_F32},
                 {"nvfp4-packed", NULL, TYPE_BF16},
                 {"mxfp4-packed", NULL, TYPE_MXFP4}};
    for (size_t i = 0; i < NUM_COUNT(cases); i++) {
        char folder[200], path[300];
        container *made, *expected;
        nib_error err;
        snprintf(folder, sizeof folder, "tests/data/packed/%s", cases[i].name);
        snprintf(path, sizeof path, "%s/expected.safetensors", folder);
        if (make(folder, cases[i].type, NULL, &err) != NIB_OK)
            fail_msg("%s: %s", folder, err.message);
        assert_int_equal(container_open(out_path, NULL, &made, &err), NIB_OK);
        assert_int_equal(container_open(path, NULL, &expected, &err), NIB_OK);
        assert_int_equal(container_find(made, "blk.0.attn_v.weight")->type, cases[i].becomes);
        const bool exact = cases[i].becomes == TYPE_F32 && strncmp(cases[i].name, "gptq", 4) != 0;
        check_values(folder, made, expected, true, exact);
        check_values(folder, made, expected, false, exact);
        container_close(made);
        container_close(expected);
        nib_engine_options o = engine_usual();
        nib_engine_close(engine_must_open(out_path, &o, NULL)); /* and it runs */
    }
}

/* Folders run as from a file in f32, exactly where activations stay floats, and take a third of its memory or
 * less: embedding and norms are f16 in both. */
static void test_runs_as_it_is(void **state) {
    (void)state;
    static const struct {
        const char *name;
        float near;
        bool wide; /* held in 16 bits or more */
    } cases[] = {
        {"fp8-block", 1e-5f, true},   {"fp8-row", 1e-5f, false},        {"fp8-tensor", 1e-5f, true},
        {"nvfp4", 1e-5f, false},      {"nvfp4-packed", 1e-5f, false},   {"nf4", 1e-5f, true},
        {"gptq-act", 1e-5f, true},    {"awq-128", 1e-3f, false},        {"gptq-4", 1e-3f, false},
        {"gptq-64", 1e-3f, false},    {"gptq-128", 1e-3f, false},       {"gptq-2", 1e-3f, false},
        {"gptq-8", 1e-3f, false},     {"w4a16-64", 1e-3f, false},       {"w4a16-128-asym", 1e-3f, false},
        {"w8a8", 1e-3f, false},       {"moe-gptq", 1e-3f, false},       {"moe-awq", 1e-3f, false},
        {"moe-w4a16", 1e-3f, true},   {"moe-fp8", 1e-5f, false},        {"moe-nvfp4", 1e-5f, false},
        {"moe-router", 1e-3f, false}, {"w4a16-64-small", 1e-5f, false}, {"moe-64-small", 1e-3f, false}};
    for (size_t i = 0; i < NUM_COUNT(cases); i++) {
        enum { N = 16, N_VOCAB = 24 };
        int32_t tokens[N];
        char folder[200];
        nib_error err;
        nib_engine_options o = engine_usual();
        o.activation = 16;
        logits_tokens(tokens, N, N_VOCAB, 5);
        snprintf(folder, sizeof folder, "tests/data/packed/%s", cases[i].name);
        if (make(folder, "f32", NULL, &err) != NIB_OK)
            fail_msg("%s: %s", folder, err.message);
        logits_rows rows[2];
        uint64_t bytes[2];
        for (int k = 0; k < 2; k++) {
            nib_engine *e = engine_must_open(k ? out_path : folder, &o, NULL);
            bytes[k] = nib_engine_info(e)->token_bytes;
            rows[k] = logits_of(e, tokens, N);
            nib_engine_close(e);
        }
        for (int64_t r = 0; r < N * N_VOCAB; r++)
            if (fabsf(rows[0].data[r] - rows[1].data[r]) > cases[i].near * (fabsf(rows[1].data[r]) + 1))
                fail_msg("%s: %g, expected %g", folder, (double)rows[0].data[r], (double)rows[1].data[r]);
        assert_true(cases[i].wide || bytes[0] < bytes[1] / 3);
        free(rows[0].data);
        free(rows[1].data);
    }
}

/* The same values in bf16. */
static void test_exponents_run(void **state) {
    (void)state;
    enum { N = 24, N_VOCAB = 24 };
    int32_t tokens[N];
    nib_engine_options o = engine_usual();
    logits_rows rows[2];
    o.activation = 16;
    logits_tokens(tokens, N, N_VOCAB, 5);
    for (int k = 0; k < 2; k++) {
        nib_engine *e = engine_must_open(
            k ? "tests/data/packed/deepseek-v4-bf16" : "tests/data/packed/deepseek-v4", &o, NULL);
        rows[k] = logits_of(e, tokens, N);
        nib_engine_close(e);
    }
    for (int64_t r = 0; r < N * N_VOCAB; r++)
        assert_true(fabsf(rows[0].data[r] - rows[1].data[r]) <= 1e-3f * (fabsf(rows[1].data[r]) + 1));
    free(rows[0].data);
    free(rows[1].data);
}

static void must(nib_status status) {
    assert_int_equal(status, NIB_OK);
}

static bool every_key(void *user, const char *key) {
    (void)user, (void)key;
    return true;
}

/* Declares (data false) or writes one tensor. ffn_down has random blocks of NVFP4 and a factor, or their
 * values. */
static void put_tensor(gguf_writer *w, const container *c, const container_tensor *t, bool data,
                       bool blocks) {
    static const float factor = 1 / 3000.0f;
    const bool down = !strcmp(t->name, "blk.0.ffn_down.weight");
    const int64_t n = (int64_t)(t->bytes / sizeof(float)), one = 1;
    block_nvfp4 *random = mem_calloc((size_t)n / 64 + 1, sizeof *random);
    float *values = mem_array((size_t)n, sizeof *values);
    uint64_t s = 7;
    nib_error err;
    for (int64_t i = 0; i < n / 64; i++)
        for (int j = 0; j < 36; j++)
            ((uint8_t *)&random[i])[j] = (uint8_t)(random_next(&s) >> 40) & (j < 4 ? 0x7f : 0xff);
    if (!data) {
        must(gguf_writer_tensor(w, t->name, down && blocks ? TYPE_NVFP4 : t->type, t->n_dim, t->shape, &err));
        if (down && blocks)
            must(gguf_writer_tensor(w, "blk.0.ffn_down.scale", TYPE_F32, 1, &one, &err));
    } else if (down && blocks) {
        must(gguf_writer_data(w, random, (size_t)n / 64 * sizeof *random, &err));
        must(gguf_writer_data(w, &factor, sizeof factor, &err));
    } else {
        type_get(TYPE_NVFP4)->dequantize(random, values, n);
        for (int64_t i = 0; i < n; i++)
            values[i] *= factor;
        if (!down)
            must(file_read_at(container_file(c, t->file), values, t->offset, t->bytes, &err));
        must(gguf_writer_data(w, values, (size_t)t->bytes, &err));
    }
    mem_free(values);
    mem_free(random);
}

/* A GGUF file's NVFP4 matrix is multiplied by the factor beside it, in five bits a weight. */
static void test_factor_in_gguf(void **state) {
    (void)state;
    enum { N = 16, N_VOCAB = 24 };
    int32_t tokens[N];
    nib_error err;
    nib_engine_options o = engine_usual();
    logits_rows rows[2];
    container *c;
    logits_tokens(tokens, N, N_VOCAB, 5);
    must(make("tests/data/packed/nvfp4", "f32", NULL, &err));
    must(container_open(out_path, NULL, &c, &err));
    for (int k = 0; k < 2; k++) {
        const char *path = temp_path(k ? "blocks.gguf" : "floats.gguf");
        gguf_writer *w;
        must(gguf_writer_open(path, &w, &err));
        must(gguf_copy_keys(container_file(c, 0), 1 << 20, every_key, NULL, w, &err));
        for (int data = 0; data < 2; data++)
            for (size_t i = 0; i < container_n_tensor(c); i++)
                put_tensor(w, c, container_tensor_at(c, i), data, k);
        must(gguf_writer_commit(w, &err));
        nib_engine *e = engine_must_open(path, &o, NULL);
        rows[k] = logits_of(e, tokens, N);
        nib_engine_close(e);
    }
    container_close(c);
    for (int64_t r = 0; r < N * N_VOCAB; r++)
        assert_true(fabsf(rows[0].data[r] - rows[1].data[r]) <= 1e-5f * fabsf(rows[1].data[r]) + 1e-5f);
    free(rows[0].data);
    free(rows[1].data);
}

static void test_refused(void **state) {
    (void)state;
    nib_error err;
    assert_int_equal(make("tests/data/packed/gptq-act", NULL, NULL, &err), NIB_E_USAGE);
    assert_non_null(strstr(err.message, "act-order"));
    assert_int_equal(make("tests/data/packed/awq", "q4_0", "awq", &err), NIB_E_USAGE);
    assert_non_null(strstr(err.message, "packed by awq"));
    assert_int_equal(make("tests/data/packed/awq", "q4_0", NULL, &err), NIB_OK);
}

/* ---- damage ---- */

static void copy_file(const char *from, const char *to, const char *what, const char *instead) {
    char *data;
    size_t n;
    nib_error err;
    assert_int_equal(file_read_all(from, 1 << 20, &data, &n, &err), NIB_OK);
    char *at = what ? memmem(data, n, what, strlen(what)) : NULL;
    if (what && !at)
        fail_msg("%s: no '%s'", from, what);
    if (at)
        memcpy(at, instead, strlen(instead));
    assert_int_equal(file_write_all(to, data, n, &err), NIB_OK);
    mem_free(data);
}

static char damaged[400];

/* Copies a checkpoint to the folder `damaged`. One text, of the header or of the configuration, becomes
 * another of its length. */
static void damage(const char *name, bool config, const char *what, const char *instead) {
    char from[512], to[512];
    snprintf(damaged, sizeof damaged, "%s", temp_path("damaged"));
    mkdir(damaged, 0700);
    for (int f = 0; f < 2; f++) {
        const char *part = f ? "config.json" : "model.safetensors";
        snprintf(from, sizeof from, "tests/data/packed/%s/%s", name, part);
        snprintf(to, sizeof to, "%s/%s", damaged, part);
        copy_file(from, to, config == (f == 1) ? what : NULL, instead);
    }
}

static void test_damaged(void **state) {
    (void)state;
    static const struct {
        const char *name, *what, *instead, *says;
        bool config;
    } cases[] = {
        {"awq", "k_proj.qzeros", "k_proj.qzerox", "has no 'qzeros'", false},
        {"awq", "k_proj.scales\":{\"dtype\":\"F16\"", "k_proj.scales\":{\"dtype\":\"I16\"", "scales", false},
        {"awq", "[64,4],\"", "[4,64],\"", "expected [", false},
        {"awq", "\"gemm\"", "\"gemv\"", "gemv", true},
        {"gptq-4", "v_proj.qzeros\":{\"dtype\":\"I32\",\"shape\":[2,4]", /* */
         "v_proj.qzeros\":{\"dtype\":\"I32\",\"shape\":[4,2]", "qzeros", false},
        {"gptq-4", "\"bits\": 4", "\"bits\": 5", "expected 2, 3, 4 or 8 bits", true},
        {"gptq-4", "\"bits\": 4", "\"bits\": 8", "g_idx", true},
        {"gptq-4", "k_proj.scales", "k_proj.scalex", "has no 'scales'", false},
        {"auto-round", "auto_round:auto_gptq", "auto_round:auto_pptq", "packing_format", true},
        {"w4a16", "k_proj.weight_shape", "k_proj.weight_shapx", "has no 'weight_shape'", false},
        {"w4a16", "k_proj.weight_scale", "k_proj.weight_scalx", "has no 'weight_scale'", false},
        {"w8a8", "{\"dtype\":\"I8\"", "{\"dtype\":\"U8\"", "expected int8", false},
        {"nf4", "k_proj.weight.absmax", "k_proj.weight.absmay", "has no 'weight.absmax'", false},
        {"nf4", "\"blocksize\": 64", "\"blocksize\": 32", "absmax", false},
        {"nf4", "\"shape\": [64, 64]", "\"shape\": [64, 96]", "shape", false},
        {"nf4", "\"shape\": [64, 64]", "\"shape\": [64, -4]", "shape", false},
        {"fp8-block", "\"weight_block_size\": [\n   32,", "\"weight_block_size\": [\n   16,",
         "weight_block_size", true},
        {"fp8-row", "k_proj.weight_scale", "k_proj.weight_scalx", "k_proj.input_scale", false},
        {"nvfp4", "k_proj.weight_scale_2", "k_proj.weight_scale_3", "has no 'weight_scale_2'", false},
        {"nvfp4", "[32,32]", "[16,64]", "scale", false},
        {"nvfp4-packed", "k_proj.weight_global_scale", "k_proj.weight_global_scalx", "global_scale'", false},
        {"deepseek-v4", "experts.0.w1.scale", "experts.0.w1.scalx", "layers.0.ffn.experts.0.w1", false},
        {"deepseek-v4", "attn.wq_a.scale\":{\"dtype\":\"F8_E8M0", "attn.wq_a.scale\":{\"dtype\":\"F8_E4M3",
         "scales for the tensor", false},
        {"nf4-nested", "\"nested_blocksize\": 16", "\"nested_blocksize\": -1", "nested_blocksize", false},
    };
    nib_error err;
    for (size_t i = 0; i < NUM_COUNT(cases); i++) {
        damage(cases[i].name, cases[i].config, cases[i].what, cases[i].instead);
        assert_int_equal(make(damaged, NULL, NULL, &err), NIB_E_MODEL);
        if (!strstr(err.message, cases[i].says))
            fail_msg("%s, %s: expected '%s' in '%s'", cases[i].name, cases[i].instead, cases[i].says,
                     err.message);
    }
}

/* What only a look at the values shows is an error of opening the model. */
static void test_lying(void **state) {
    (void)state;
    nib_engine_options o = engine_usual();
    nib_engine *e;
    nib_error err;
    char path[512];
    damage("gptq-4-asym", true, "\"sym\": false", "\"sym\":  true");
    assert_int_equal(nib_engine_open(damaged, &o, &e, &err), NIB_E_MODEL);
    assert_non_null(strstr(err.message, "q4_0 cannot hold the code"));
    damage("gptq-4", true, "\"sym\": true", "\"sim\": true"); /* not said: the zeros are read */
    e = engine_must_open(damaged, &o, NULL);
    nib_engine_close(e);
    damage("gptq-4", false, NULL, NULL);
    snprintf(path, sizeof path, "%s/model.safetensors", damaged);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(truncate(path, st.st_size - 100), 0);
    assert_int_equal(nib_engine_open(damaged, &o, &e, &err), NIB_E_MODEL);
    assert_non_null(strstr(err.message, "model.safetensors"));
}

static void note_line(void *user, const char *line) {
    *(bool *)user |= strstr(line, "7 matrices are held in f32") && strstr(line, "act-order");
}

/* The tensors of the file are counted, not those that are computed from them. What is held in f32 is said. */
static void test_told(void **state) {
    (void)state;
    bool told = false;
    nib_error err;
    char *data;
    size_t n;
    uint64_t header;
    nib_engine_options o = engine_usual();
    o.log = note_line;
    o.user = &told;
    must(file_read_all("tests/data/packed/gptq-act/model.safetensors", 1 << 20, &data, &n, &err));
    memcpy(&header, data, sizeof header);
    mem_free(data);
    nib_engine *e = engine_must_open("tests/data/packed/gptq-act", &o, NULL);
    assert_int_equal(nib_engine_info(e)->bytes, n - header - sizeof header);
    assert_true(told);
    nib_engine_close(e);
}

/* ---- faults ---- */

static nib_status make_step(void *folder, nib_error *err) {
    char part[600];
    snprintf(part, sizeof part, "%s.part", out_path);
    unlink(part);
    snprintf(part, sizeof part, "%s.part.log", out_path);
    unlink(part);
    const nib_status status = make(folder, NULL, NULL, err);
    assert_true((status == NIB_OK) == path_exists(out_path));
    if (status == NIB_OK)
        made_file(out_path);
    return status;
}

static nib_status run_step(void *folder, nib_error *err) {
    const nib_engine_options o = engine_usual();
    nib_result result = {0};
    const nib_status status = engine_life(folder, &o, NULL, 2, &result, err);
    nib_result_clear(&result);
    return status;
}

static void test_faults(void **state) {
    (void)state;
    assert_true(fault_sweep(FAULT_READ, 29, make_step, (void *)"tests/data/packed/awq") > 10);
    assert_true(fault_sweep(FAULT_ALLOC, 17, make_step, (void *)"tests/data/packed/gptq-3") > 10);
    assert_true(fault_sweep(FAULT_ALLOC, 17, make_step, (void *)"tests/data/packed/nf4-nested") > 10);
    assert_true(fault_sweep(FAULT_READ, 7, run_step, (void *)"tests/data/packed/moe-w4a16") > 10);
    assert_true(fault_sweep(FAULT_ALLOC, 31, run_step, (void *)"tests/data/packed/gptq-64") > 10);
}

int main(void) {
    snprintf(out_path, sizeof out_path, "%s", temp_path("made.gguf"));
    setenv("XDG_CACHE_HOME", temp_path("cache"), 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_values),    cmocka_unit_test(test_runs_as_it_is),
        cmocka_unit_test(test_factor_in_gguf), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_damaged),        cmocka_unit_test(test_lying),
        cmocka_unit_test(test_told),           cmocka_unit_test(test_exponents_run),
        cmocka_unit_test(test_faults)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
