/* The content hash: equal for the same model in any place and container, different for any other model. */
#include "base/mem.h"
#include "formats/container.h"
#include "formats/gguf_write.h"
#include "formats/safetensors_write.h"
#include "support/faults.h"
#include "support/tempdir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

typedef struct hash128 {
    uint64_t v[2];
} hash128;

static hash128 hash_of(const char *path, bool drop) {
    container *c = NULL;
    nib_error err;
    hash128 h = {{0, 0}};
    if (container_open(path, NULL, &c, &err) != NIB_OK)
        fail_msg("%s", err.message);
    if (drop)
        container_drop_vocab(c);
    if (container_content_hash(c, h.v, &err) != NIB_OK)
        fail_msg("%s", err.message);
    container_close(c);
    return h;
}

static bool same(hash128 a, hash128 b) {
    return a.v[0] == b.v[0] && a.v[1] == b.v[1];
}

/* All tensors of a container, last first, in one file. */
static void merge(const container *c, const char *path) {
    safetensors_writer *w;
    nib_error err;
    if (safetensors_writer_open(path, &w, &err) != NIB_OK)
        fail_msg("%s", err.message);
    for (size_t i = container_n_tensor(c); i-- > 0;) {
        const container_tensor *t = container_tensor_at(c, i);
        assert_int_equal(safetensors_writer_tensor(w, t->name, t->type, t->n_dim, t->shape, &err), NIB_OK);
    }
    for (size_t i = container_n_tensor(c); i-- > 0;) {
        const container_tensor *t = container_tensor_at(c, i);
        void *data = mem_alloc(t->bytes);
        assert_int_equal(file_read_at(container_file(c, t->file), data, t->offset, t->bytes, &err), NIB_OK);
        assert_int_equal(safetensors_writer_data(w, data, t->bytes, &err), NIB_OK);
        mem_free(data);
    }
    assert_int_equal(safetensors_writer_commit(w, &err), NIB_OK);
}

static void test_sharding(void **state) {
    (void)state;
    static const char sharded[] = "tests/data/arch/mistral";
    char folder[512], path[600], *config;
    size_t n;
    container *c = NULL;
    nib_error err;
    snprintf(folder, sizeof folder, "%s", temp_path("merged"));
    assert_int_equal(mkdir(folder, 0777), 0);
    assert_int_equal(container_open(sharded, NULL, &c, &err), NIB_OK);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    merge(c, path);
    container_close(c);
    assert_int_equal(file_read_all("tests/data/arch/mistral/config.json", 1 << 20, &config, &n, &err),
                     NIB_OK);
    temp_file("merged/config.json", config, n);
    assert_true(same(hash_of(sharded, false), hash_of(folder, false)));
    temp_file("merged/generation_config.json", "{\"eos_token_id\": 5}", 19);
    assert_true(same(hash_of(sharded, false), hash_of(folder, false)));
    char *theta = strstr(config, "10000"); /* the configuration counts */
    assert_non_null(theta);
    *theta = '2';
    temp_file("merged/config.json", config, n);
    assert_false(same(hash_of(sharded, false), hash_of(folder, false)));
    mem_free(config);
}

enum { N_WIDE = 20000, N_WORD = 5000 };

/* A small tensor, a tensor that is hashed by samples, and a vocabulary, which does not count. */
static const char *write_model(const char *name, uint8_t small, size_t changed_at, const char *word) {
    static uint8_t wide[N_WIDE];
    static meta_string words[N_WORD];
    static char path[512];
    static const int64_t four[] = {4}, many[] = {N_WIDE};
    gguf_writer *w;
    nib_error err;
    memset(wide, 0, sizeof wide);
    wide[changed_at] = 1;
    for (int i = 0; i < N_WORD; i++)
        words[i] = (meta_string){word, strlen(word)};
    snprintf(path, sizeof path, "%s", temp_path(name));
    nib_status s = gguf_writer_open(path, &w, &err);
    s = s ? s : gguf_writer_set_strings(w, "tokenizer.ggml.tokens", words, N_WORD, &err);
    s = s ? s : gguf_writer_tensor(w, "small", TYPE_I8, 1, four, &err);
    s = s ? s : gguf_writer_tensor(w, "wide", TYPE_I8, 1, many, &err);
    s = s ? s : gguf_writer_data(w, (uint8_t[]){1, 2, 3, small}, 4, &err);
    s = s ? s : gguf_writer_data(w, wide, sizeof wide, &err);
    s = s ? s : gguf_writer_commit(w, &err);
    if (s)
        fail_msg("%s", err.message);
    return path;
}

static void test_contents(void **state) {
    (void)state;
    const hash128 h = hash_of(write_model("a.gguf", 4, 0, "x"), false);
    assert_true(same(h, hash_of(write_model("b.gguf", 4, 0, "x"), true)));
    assert_true(same(h, hash_of(write_model("b.gguf", 4, 0, "y"), false)));
    assert_false(same(h, hash_of(write_model("b.gguf", 5, 0, "x"), false)));
    assert_false(same(h, hash_of(write_model("b.gguf", 4, CONTENT_SAMPLE - 1, "x"), false)));
    assert_false(same(h, hash_of(write_model("b.gguf", 4, N_WIDE / 2, "x"), false)));
    assert_false(same(h, hash_of(write_model("b.gguf", 4, N_WIDE - 1, "x"), false)));
}

static nib_status open_and_hash(void *path, nib_error *err) {
    container *c;
    uint64_t h[2];
    NIB_TRY(container_open(path, NULL, &c, err));
    const nib_status status = container_content_hash(c, h, err);
    if (status == NIB_OK)
        fault_made(h, sizeof h);
    container_close(c);
    return status;
}

static void test_faults(void **state) {
    (void)state;
    char path[512];
    snprintf(path, sizeof path, "%s", write_model("c.gguf", 4, 0, "x"));
    assert_true(fault_sweep(FAULT_ALLOC, 1, open_and_hash, path) > 10);
    assert_true(fault_sweep(FAULT_READ, 1, open_and_hash, path) > 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sharding),
        cmocka_unit_test(test_contents),
        cmocka_unit_test(test_faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
