/* The readers read the writers' files; misuse and a full disk are errors. */
#include "base/jsonx.h"
#include "base/num.h"
#include "formats/gguf_write.h"
#include "formats/safetensors_write.h"
#include "support/faults.h"
#include "support/made.h"
#include "support/skip.h"
#include "support/tempdir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static nib_status write_gguf(void *path, nib_error *err) {
    gguf_writer *w;
    NIB_TRY(gguf_writer_open(path, &w, err));
    static const meta_string words[] = {{"one", 3}, {"", 0}, {"a\0b", 3}};
    static const int64_t ints[] = {1, -2, 3}, matrix[] = {2, 32}, vector[] = {3}, none[] = {0, 4};
    static const double floats[] = {0.5, -1};
    uint8_t data[36 + 12];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i + 1);
    nib_status s = gguf_writer_set_string(w, "general.architecture", "test", 4, err);
    s = s ? s : gguf_writer_set_int(w, "i", GGUF_I16, -3, err);
    s = s ? s : gguf_writer_set_int(w, "b", GGUF_BOOL, 1, err);
    s = s ? s : gguf_writer_set_float(w, "f", GGUF_F32, 0.25, err);
    s = s ? s : gguf_writer_set_float(w, "d", GGUF_F64, 0.1, err);
    s = s ? s : gguf_writer_set_strings(w, "words", words, 3, err);
    s = s ? s : gguf_writer_set_ints(w, "ints", GGUF_I8, ints, 3, err);
    s = s ? s : gguf_writer_set_floats(w, "floats", GGUF_F32, floats, 2, err);
    s = s ? s : gguf_writer_tensor(w, "none", TYPE_F32, 2, none, err);
    s = s ? s : gguf_writer_tensor(w, "q", TYPE_Q4_0, 2, matrix, err);
    s = s ? s : gguf_writer_tensor(w, "v", TYPE_F32, 1, vector, err);
    s = s ? s : gguf_writer_data(w, data, 7, err);
    s = s ? s : gguf_writer_data(w, data + 7, sizeof data - 7, err);
    if (s == NIB_OK)
        return gguf_writer_commit(w, err);
    gguf_writer_abort(w);
    return s;
}

static nib_status gguf_step(void *path, nib_error *err) {
    NIB_TRY(write_gguf(path, err));
    made_file(path);
    return NIB_OK;
}

static void check_bytes(const container *c, const char *name, uint8_t first, size_t n) {
    const container_tensor *t = container_find(c, name);
    uint8_t data[64];
    assert_non_null(t);
    assert_int_equal(t->bytes, n);
    assert_int_equal(t->offset % 32, 0);
    assert_int_equal(file_read_at(container_file(c, t->file), data, t->offset, n, NULL), NIB_OK);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(data[i], first + i);
}

static void test_gguf(void **state) {
    (void)state;
    char path[512];
    snprintf(path, sizeof path, "%s", temp_path("written.gguf"));
    nib_error err;
    container *c = NULL;
    if (write_gguf(path, &err) != NIB_OK || container_open(path, NULL, &c, &err) != NIB_OK)
        fail_msg("%s", err.message);
    int64_t i = 0;
    double d = 0;
    bool b = false;
    assert_int_equal(container_n_meta(c), 8);
    assert_string_equal(container_meta_str(c, "general.architecture"), "test");
    assert_true(container_meta_i64(c, "i", &i) && i == -3);
    assert_true(container_meta_bool(c, "b", &b) && b);
    assert_true(container_meta_f64(c, "f", &d) && d == 0.25);
    assert_true(container_meta_f64(c, "d", &d) && d == 0.1);
    assert_memory_equal(container_meta(c, "words")->v.strings[2].data, "a\0b", 4);
    assert_int_equal(container_meta(c, "ints")->v.ints[1], -2);
    assert_true(container_meta(c, "floats")->v.floats[0] == 0.5);
    assert_int_equal(container_n_tensor(c), 3);
    assert_int_equal(container_find(c, "none")->bytes, 0);
    assert_int_equal(container_find(c, "q")->shape[1], 32);
    check_bytes(c, "q", 1, 36);
    check_bytes(c, "v", 37, 12);
    container_close(c);
    assert_true(fault_sweep(FAULT_ALLOC, 1, gguf_step, path) > 10);
}

static void test_gguf_misuse(void **state) {
    (void)state;
    char path[512];
    snprintf(path, sizeof path, "%s", temp_path("misused.gguf"));
    static const int64_t shape[] = {4}, odd[] = {33};
    gguf_writer *w;
    assert_int_equal(gguf_writer_open(path, &w, NULL), NIB_OK);
    assert_int_equal(gguf_writer_set_int(w, "k", GGUF_U8, 256, NULL), NIB_E_USAGE);
    gguf_writer_abort(w);
    assert_int_equal(gguf_writer_open(path, &w, NULL), NIB_OK);
    assert_int_equal(gguf_writer_set_int(w, "k", GGUF_U8, 255, NULL), NIB_OK);
    assert_int_equal(gguf_writer_set_int(w, "k", GGUF_U8, 255, NULL), NIB_E_USAGE);
    assert_int_equal(gguf_writer_tensor(w, "f8", TYPE_F8_E4M3, 1, shape, NULL), NIB_E_USAGE);
    assert_int_equal(gguf_writer_tensor(w, "odd", TYPE_Q8_0, 1, odd, NULL), NIB_E_MODEL);
    assert_int_equal(gguf_writer_tensor(w, "v", TYPE_F32, 1, shape, NULL), NIB_OK);
    assert_int_equal(gguf_writer_data(w, "1234567", 8, NULL), NIB_OK);
    assert_int_equal(gguf_writer_set_int(w, "late", GGUF_U8, 1, NULL), NIB_E_USAGE);
    assert_int_equal(gguf_writer_tensor(w, "late", TYPE_F32, 1, shape, NULL), NIB_E_USAGE);
    assert_int_equal(gguf_writer_commit(w, NULL), NIB_E_USAGE); /* 8 of 16 bytes */
    assert_false(path_exists(path));
    assert_int_equal(gguf_writer_open(path, &w, NULL), NIB_OK);
    assert_int_equal(gguf_writer_tensor(w, "v", TYPE_F32, 1, shape, NULL), NIB_OK);
    assert_int_equal(gguf_writer_data(w, "0123456789abcdefg", 17, NULL), NIB_E_USAGE);
    gguf_writer_abort(w);
    gguf_writer_abort(NULL);
    assert_false(path_exists(path));
    nib_error err;
    assert_int_equal(gguf_writer_open("/nowhere/x.gguf", &w, &err), NIB_E_IO);
}

static nib_status write_safetensors(void *path, nib_error *err) {
    static const int64_t matrix[] = {2, 3}, vector[] = {4};
    static const float values[] = {0, 1, 2, 3, 4, 5};
    static const int32_t ids[] = {7, 8, 9, 10};
    safetensors_writer *w;
    NIB_TRY(safetensors_writer_open(path, &w, err));
    nib_status s = safetensors_writer_tensor(w, "logits", TYPE_F32, 2, matrix, err);
    s = s ? s : safetensors_writer_tensor(w, "a \"quoted\" name", TYPE_I32, 1, vector, err);
    s = s ? s : safetensors_writer_data(w, values, 8, err);
    s = s ? s : safetensors_writer_data(w, values + 2, 16, err);
    s = s ? s : safetensors_writer_data(w, ids, sizeof ids, err);
    if (s == NIB_OK)
        return safetensors_writer_commit(w, err);
    safetensors_writer_abort(w);
    return s;
}

static nib_status safetensors_step(void *path, nib_error *err) {
    NIB_TRY(write_safetensors(path, err));
    made_file(path);
    return NIB_OK;
}

static void test_safetensors(void **state) {
    (void)state;
    char path[512];
    snprintf(path, sizeof path, "%s", temp_path("written.safetensors"));
    nib_error err;
    container *c = NULL;
    if (write_safetensors(path, &err) != NIB_OK || container_open(path, NULL, &c, &err) != NIB_OK)
        fail_msg("%s", err.message);
    const container_tensor *t = container_find(c, "logits");
    float last;
    assert_true(t && t->type == TYPE_F32 && t->shape[0] == 2 && t->shape[1] == 3 && t->offset % 8 == 0);
    assert_int_equal(file_read_at(container_file(c, 0), &last, t->offset + 20, 4, &err), NIB_OK);
    assert_true(last == 5);
    t = container_find(c, "a \"quoted\" name");
    int32_t id;
    assert_int_equal(file_read_at(container_file(c, 0), &id, t->offset, 4, &err), NIB_OK);
    assert_int_equal(id, 7);
    container_close(c);
    json_malloc_t alloc;
    json_free_t release;
    json_get_alloc_funcs(&alloc, &release);
    json_set_alloc_funcs(mem_alloc, mem_free);
    const int64_t n = fault_sweep(FAULT_ALLOC, 1, safetensors_step, path);
    json_set_alloc_funcs(alloc, release);
    assert_true(n > 10);
}

static void test_safetensors_misuse(void **state) {
    (void)state;
    char path[512];
    snprintf(path, sizeof path, "%s", temp_path("misused.safetensors"));
    static const int64_t shape[] = {4}, big[] = {INT64_MAX / 4};
    safetensors_writer *w;
    assert_int_equal(safetensors_writer_open(path, &w, NULL), NIB_OK);
    assert_int_equal(safetensors_writer_tensor(w, "q", TYPE_Q4_0, 1, shape, NULL), NIB_E_USAGE);
    assert_int_equal(safetensors_writer_tensor(w, "v", TYPE_F32, 1, shape, NULL), NIB_OK);
    assert_int_equal(safetensors_writer_tensor(w, "v", TYPE_F32, 1, shape, NULL), NIB_E_MODEL);
    assert_int_equal(safetensors_writer_tensor(w, "huge", TYPE_F32, 1, big, NULL), NIB_E_USAGE);
    assert_int_equal(safetensors_writer_data(w, "0123456789abcdefg", 17, NULL), NIB_E_USAGE);
    assert_int_equal(safetensors_writer_commit(w, NULL), NIB_E_USAGE);
    assert_false(path_exists(path));
}

/* A full disk is an error. */
static void test_full_disk(void **state) {
    (void)state;
    nib_error err = {0};
    char path[] = "/dev/full";
    if (!path_exists(path))
        skip_because("no /dev/full here");
    assert_int_equal(write_gguf(path, &err), NIB_E_IO);
    assert_non_null(strstr(err.message, "/dev/full"));
    assert_int_equal(write_safetensors(path, &err), NIB_E_IO);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gguf),        cmocka_unit_test(test_gguf_misuse),
        cmocka_unit_test(test_safetensors), cmocka_unit_test(test_safetensors_misuse),
        cmocka_unit_test(test_full_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
