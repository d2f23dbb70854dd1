/* GGUF tensors with all of their four dimensions, of which the last ones are one: the same model. */
#include "formats/gguf_copy.h"
#include "support/engine.h"
#include "support/logits.h"
#include "support/tempdir.h"
#include "support/tinymodel.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_TOKEN = 5 };
static const int32_t tokens[N_TOKEN] = {5, 17, 3, 99, 4};
static const tiny_shape shape = {TYPE_F32, 2, 64, 96, 4, 2, 256, 64, false};

static bool every_key(void *user, const char *key) {
    (void)user;
    (void)key;
    return true;
}

static void copy_data(const container *c, const container_tensor *t, gguf_writer *w) {
    uint8_t *data = malloc(t->bytes);
    assert_non_null(data);
    assert_int_equal(file_read_at(container_file(c, t->file), data, t->offset, t->bytes, NULL), NIB_OK);
    assert_int_equal(gguf_writer_data(w, data, t->bytes, NULL), NIB_OK);
    free(data);
}

/* Copies a model; its tensors get n_dim dimensions. */
static void write_with(const char *from, const char *to, int n_dim) {
    container *c;
    gguf_writer *w;
    assert_int_equal(container_open(from, NULL, &c, NULL), NIB_OK);
    assert_int_equal(gguf_writer_open(to, &w, NULL), NIB_OK);
    assert_int_equal(gguf_copy_keys(container_file(c, 0), 1 << 24, every_key, NULL, w, NULL), NIB_OK);
    for (size_t i = 0; i < container_n_tensor(c); i++) {
        const container_tensor *t = container_tensor_at(c, i);
        int64_t dims[4] = {1, 1, 1, 1};
        memcpy(dims + n_dim - t->n_dim, t->shape, (size_t)t->n_dim * sizeof *dims);
        assert_int_equal(gguf_writer_tensor(w, t->name, t->type, n_dim, dims, NULL), NIB_OK);
    }
    for (size_t i = 0; i < container_n_tensor(c); i++)
        copy_data(c, container_tensor_at(c, i), w);
    assert_int_equal(gguf_writer_commit(w, NULL), NIB_OK);
    container_close(c);
}

static logits_rows logits_with(const char *path) {
    const nib_engine_options o = engine_usual();
    nib_engine *e = engine_must_open(path, &o, NULL);
    const logits_rows rows = logits_of(e, tokens, N_TOKEN);
    nib_engine_close(e);
    return rows;
}

static void test_trailing_ones(void **state) {
    (void)state;
    char plain[512], padded[512];
    snprintf(plain, sizeof plain, "%s", tiny_model("plain.gguf", &shape));
    const logits_rows expected = logits_with(plain);
    for (int n_dim = 2; n_dim <= 4; n_dim++) {
        snprintf(padded, sizeof padded, "%s", temp_path("padded.gguf"));
        write_with(plain, padded, n_dim);
        const logits_rows found = logits_with(padded);
        assert_memory_equal(found.data, expected.data,
                            (size_t)(N_TOKEN * found.n_vocab) * sizeof *found.data);
        free(found.data);
    }
    free(expected.data);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_trailing_ones)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
