/* Folders: the fixtures, configurations in all their shapes, and the errors for incomplete folders. */
#include "base/num.h"
#include "base/jsonx.h"
#include "formats/container.h"
#include "support/faults.h"
#include "support/made.h"
#include "support/tempdir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { MAX_PATH = 512 };

/* A new empty folder of the test. */
static const char *make_folder(char out[MAX_PATH]) {
    static int n;
    char name[32];
    snprintf(name, sizeof name, "folder-%d", n++);
    snprintf(out, MAX_PATH, "%s", temp_path(name));
    assert_int_equal(mkdir(out, 0777), 0);
    return out;
}

static void put_file(const char *folder, const char *name, const void *data, size_t n) {
    char path[MAX_PATH + 64];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void put_text(const char *folder, const char *name, const char *text) {
    put_file(folder, name, text, strlen(text));
}

/* A safetensors file: this header, then n_data zeros. */
static void put_safetensors(const char *folder, const char *name, const char *header, size_t n_data) {
    uint8_t b[4096] = {0};
    const uint64_t n = strlen(header);
    assert_true(8 + n + n_data <= sizeof b);
    memcpy(b, &n, 8);
    memcpy(b + 8, header, n);
    put_file(folder, name, b, 8 + n + n_data);
}

static container *open_ok(const char *path) {
    container *c = NULL;
    nib_error err;
    if (container_open(path, NULL, &c, &err) != NIB_OK)
        fail_msg("%s", err.message);
    return c;
}

static void refuse(const char *path, const char *words) {
    container *c = NULL;
    nib_error err = {0};
    const nib_status status = container_open(path, NULL, &c, &err);
    if (status != NIB_E_MODEL || !strstr(err.message, words) || !strstr(err.message, path))
        fail_msg("expected '%s' and '%s', found status %d: %s", words, path, (int)status, err.message);
}

static int64_t int_of(const container *c, const char *key) {
    int64_t v = -999;
    container_meta_i64(c, key, &v);
    return v;
}

static double float_of(const container *c, const char *key) {
    double v = -999;
    container_meta_f64(c, key, &v);
    return v;
}

static const char *const fixtures[] = {"falcon", "gemma", "gemma2",   "gemma3",    "gpt2", "gpt_neox",
                                       "gptj",   "llama", "mistral",  "opt",       "phi",  "phi3",
                                       "qwen2",  "qwen3", "stablelm", "starcoder2"};

static void test_fixtures(void **state) {
    (void)state;
    for (size_t i = 0; i < NUM_COUNT(fixtures); i++) {
        char path[MAX_PATH];
        snprintf(path, sizeof path, "tests/data/arch/%s", fixtures[i]);
        container *c = open_ok(path);
        assert_int_equal(container_get_kind(c), CONTAINER_SAFETENSORS);
        assert_int_equal(container_n_file(c), strcmp(fixtures[i], "mistral") ? 1 : 4);
        assert_int_equal(int_of(c, "vocab_size"), 320);
        assert_non_null(container_meta_str(c, "model_type"));
        assert_true(container_n_tensor(c) > 20);
        container_close(c);
        strcat(path, "/expected.safetensors");
        c = open_ok(path);
        const container_tensor *t = container_find(c, "logits");
        assert_true(t && t->type == TYPE_F32 && t->n_dim == 2 && t->shape[0] == 48 && t->shape[1] == 320);
        assert_int_equal(t->bytes, 48 * 320 * 4);
        assert_int_equal(container_find(c, "input_ids")->type, TYPE_I32);
        assert_int_equal(container_n_meta(c), 0);
        container_close(c);
    }
}

static const char config_text[] =
    "{\"int\": 7, \"whole\": 4096.0, \"float\": 1e-5, \"yes\": true, \"text\": \"a\\u0000b\", \"none\": null,"
    " \"wide\": 1000000000000000019884624838656,"
    " \"rope_scaling\": {\"factor\": 8.0, \"short_factor\": [1, 1.5], \"deeper\": {\"x\": 1}},"
    " \"ints\": [1, -2], \"flags\": [true, false], \"words\": [\"x\", \"\"], \"odd\": [1, \"x\"],"
    " \"objects\": [{\"a\": 1}], \"nulls\": [null], \"empty\": [], \"hole\": {},"
    " \"limits\": [0.5, Infinity], \"named\": [-Infinity, {\"__float__\" :\"Infinity\"}], \"said\": \"\\\" "
    "Infinity\"}";
static const char weights[] =
    "{\"__metadata__\":{\"format\":\"pt\"},\"w\":{\"dtype\":\"F32\",\"shape\":[2,2],"
    "\"data_offsets\":[0,16]}}";

static void test_config(void **state) {
    (void)state;
    char folder[MAX_PATH];
    bool flag = false;
    make_folder(folder);
    put_text(folder, "config.json", config_text);
    put_safetensors(folder, "model.safetensors", weights, 16);
    container *c = open_ok(folder);
    assert_true(int_of(c, "int") == 7 && int_of(c, "whole") == 4096 && float_of(c, "float") == 1e-5);
    assert_true(float_of(c, "int") == 7 && float_of(c, "wide") == 1e30);
    assert_true(container_meta_bool(c, "yes", &flag) && flag);
    assert_int_equal(container_meta(c, "text")->v.s.n_byte, 3);
    assert_true(container_meta(c, "limits")->v.floats[0] == 0.5 &&
                container_meta(c, "limits")->v.floats[1] == 1e30);
    assert_true(container_meta(c, "named")->v.floats[0] == -1e30 &&
                container_meta(c, "named")->v.floats[1] == 1e30);
    assert_string_equal(container_meta_str(c, "said"), "\" Infinity");
    assert_null(container_meta(c, "none"));
    assert_true(container_meta_is_null(c, "none"));
    assert_false(container_meta_is_null(c, "int"));
    assert_false(container_meta_is_null(c, "nothing"));
    assert_true(float_of(c, "rope_scaling.factor") == 8 && int_of(c, "rope_scaling.deeper.x") == 1);
    const meta_value *v = container_meta(c, "rope_scaling.short_factor");
    assert_true(v->elem == META_FLOAT && v->n == 2 && v->v.floats[0] == 1 && v->v.floats[1] == 1.5);
    v = container_meta(c, "ints");
    assert_true(v->elem == META_INT && v->n == 2 && v->v.ints[1] == -2);
    v = container_meta(c, "flags");
    assert_true(v->elem == META_BOOL && v->n == 2 && v->v.ints[0] == 1 && v->v.ints[1] == 0);
    v = container_meta(c, "words");
    assert_true(v->elem == META_STRING && v->n == 2 && !strcmp(v->v.strings[0].data, "x"));
    assert_true(container_meta(c, "empty")->n == 0);
    assert_null(container_meta(c, "odd"));
    assert_null(container_meta(c, "objects"));
    assert_null(container_meta(c, "nulls"));
    assert_null(container_meta(c, "hole"));
    container_close(c);
}

static void test_wrapped_config(void **state) {
    (void)state;
    char folder[MAX_PATH];
    make_folder(folder);
    put_text(folder, "config.json",
             "{\"model_type\": \"outer\", \"only_outer\": 1, \"window\": 5, \"eos_token_id\": [1, 2], "
             "\"text_config\": "
             "{\"model_type\": \"inner\", \"hidden\": 64, \"window\": null, \"rope\": {\"theta\": 2.0}}}");
    put_safetensors(folder, "model.safetensors", weights, 16);
    container *c = open_ok(folder);
    assert_string_equal(container_meta_str(c, "model_type"), "inner");
    assert_string_equal(container_meta_str(c, "text_config.model_type"), "inner");
    assert_true(int_of(c, "hidden") == 64 && int_of(c, "text_config.hidden") == 64 &&
                int_of(c, "only_outer") == 1);
    assert_true(float_of(c, "rope.theta") == 2);
    assert_null(container_meta(c, "window"));
    assert_true(container_meta_is_null(c, "window"));
    assert_int_equal(container_meta(c, "eos_token_id")->n, 2);
    container_close(c);
}

static void test_side_files(void **state) {
    (void)state;
    char folder[MAX_PATH];
    make_folder(folder);
    put_text(folder, "config.json", "{\"eos_token_id\": 1}");
    put_text(folder, "generation_config.json", "{\"eos_token_id\": [1, 106]}");
    put_text(
        folder, "tokenizer_config.json",
        "{\"bos_token\": {\"content\": \"<s>\"}, \"added_tokens_decoder\": {\"0\": {\"content\": \"x\"}},"
        " \"chat_template\": [{\"name\": \"default\", \"template\": \"A\"}, {\"name\": \"rag\", "
        "\"template\": \"B\"}]}");
    put_safetensors(folder, "model.safetensors", weights, 16);
    container *c = open_ok(folder);
    assert_int_equal(int_of(c, "eos_token_id"), 1);
    assert_int_equal(container_meta(c, "generation.eos_token_id")->n, 2);
    assert_string_equal(container_meta_str(c, "tokenizer_config.bos_token.content"), "<s>");
    assert_null(container_meta(c, "tokenizer_config.added_tokens_decoder.0.content"));
    assert_string_equal(container_meta_str(c, "tokenizer_config.chat_template"), "A");
    assert_string_equal(container_meta_str(c, "tokenizer_config.chat_template.rag"), "B");
    container_close(c);
    put_text(folder, "chat_template.jinja", "C");
    c = open_ok(folder);
    assert_string_equal(container_meta_str(c, "tokenizer_config.chat_template"), "C");
    container_close(c);
}

static void test_bad_config(void **state) {
    (void)state;
    static const char *const bad[] = {
        "", "[]", "7", "{\"a\": 1", "{\"a\": 1, \"a\": 2}", "{\"a.b\": 1, \"a\": {\"b\": 2}}"};
    char folder[MAX_PATH];
    make_folder(folder);
    refuse(folder, "config.json");
    put_safetensors(folder, "model.safetensors", weights, 16);
    for (size_t i = 0; i < NUM_COUNT(bad); i++) {
        put_text(folder, "config.json", bad[i]);
        refuse(folder, "config.json");
    }
    put_text(folder, "config.json", "{}");
    put_text(folder, "generation_config.json", "[");
    refuse(folder, "generation_config.json");
}

static void test_weights_elsewhere(void **state) {
    (void)state;
    char folder[MAX_PATH];
    make_folder(folder);
    put_text(folder, "config.json", "{}");
    refuse(folder, "found no weights");
    put_text(folder, "tf_model.h5", "");
    refuse(folder, "tf_model.h5, which is not supported");
    put_text(folder, "pytorch_model.bin", "");
    refuse(folder, "only pytorch_model.bin");
    put_text(folder, "model-q4.gguf", "");
    refuse(folder, "give that file");
    put_safetensors(folder, "weights.safetensors", weights, 16);
    container_close(open_ok(folder)); /* the only one will do */
    put_safetensors(folder, "consolidated.safetensors", weights, 16);
    refuse(folder, "2 other .safetensors files (consolidated.safetensors");
}

static void test_shards(void **state) {
    (void)state;
    char folder[MAX_PATH];
    static const char other[] = "{\"v\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[0,6]}}";
    static const char index[] = "model.safetensors.index.json";
    make_folder(folder);
    put_text(folder, "config.json", "{}");
    put_safetensors(folder, "s1.safetensors", weights, 16);
    put_text(folder, index, "{\"weight_map\": {\"w\": \"s1.safetensors\", \"v\": \"s2.safetensors\"}}");
    container *c = open_ok(folder); /* who needs no tensor of the absent file is not refused */
    assert_true(container_n_file(c) == 1 && container_find(c, "w"));
    assert_string_equal(container_absent_file(c, "v"), "s2.safetensors");
    assert_null(container_absent_file(c, "w"));
    container_close(c);
    put_safetensors(folder, "s2.safetensors", weights, 16);
    refuse(folder, "'w' occurs twice");
    put_safetensors(folder, "s2.safetensors", other, 6);
    c = open_ok(folder);
    assert_true(container_n_file(c) == 2 && container_n_tensor(c) == 2);
    assert_int_equal(container_find(c, "v")->file, 1);
    container_close(c);
    static const struct {
        const char *index, *words;
    } lies[] = {
        {"{\"weight_map\": {\"w\": \"s2.safetensors\", \"v\": \"s1.safetensors\"}}", "does not have it"},
        {"{\"weight_map\": {\"w\": \"s1.safetensors\", \"z\": \"s1.safetensors\"}}", "'z'"},
        {"{\"weight_map\": {\"w\": \"s3.safetensors\"}}", "s3.safetensors: not found"},
        {"{\"weight_map\": {\"w\": \"../s1.safetensors\"}}", "beside it"},
        {"{\"weight_map\": {\"w\": \"/etc/passwd\"}}", "beside it"},
        {"{\"weight_map\": {\"w\": \".safetensors\"}}", "beside it"},
        {"{\"weight_map\": {\"w\": 1}}", "beside it"},
        {"{\"weight_map\": []}", "weight_map"},
        {"{}", "weight_map"},
        {"[", "index.json"},
    };
    for (size_t i = 0; i < NUM_COUNT(lies); i++) {
        put_text(folder, index, lies[i].index);
        refuse(folder, lies[i].words);
    }
}

static nib_status open_and_close(void *path, nib_error *err) {
    container *c;
    NIB_TRY(container_open(path, NULL, &c, err));
    made_container(c);
    container_close(c);
    return NIB_OK;
}

static void test_faults(void **state) {
    (void)state;
    char folder[MAX_PATH], sharded[] = "tests/data/arch/mistral";
    make_folder(folder);
    put_text(folder, "config.json", config_text);
    put_text(folder, "generation_config.json", "{\"a\": [1, 2]}");
    put_text(folder, "tokenizer_config.json",
             "{\"chat_template\": [{\"name\": \"x\", \"template\": \"y\"}]}");
    put_text(folder, "chat_template.jinja", "z");
    put_safetensors(folder, "other-name.safetensors", weights, 16);
    json_malloc_t alloc;
    json_free_t release;
    json_get_alloc_funcs(&alloc, &release);
    json_set_alloc_funcs(mem_alloc, mem_free);
    const int64_t n_alloc = fault_sweep(FAULT_ALLOC, 1, open_and_close, folder);
    const int64_t n_sharded = fault_sweep(FAULT_ALLOC, 7, open_and_close, sharded);
    json_set_alloc_funcs(alloc, release);
    assert_true(n_alloc > 100 && n_sharded > 100);
    assert_true(fault_sweep(FAULT_READ, 1, open_and_close, folder) >= 5);
    assert_true(fault_sweep(FAULT_READ, 1, open_and_close, sharded) >= 9);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fixtures),       cmocka_unit_test(test_config),
        cmocka_unit_test(test_wrapped_config), cmocka_unit_test(test_side_files),
        cmocka_unit_test(test_bad_config),     cmocka_unit_test(test_weights_elsewhere),
        cmocka_unit_test(test_shards),         cmocka_unit_test(test_faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
