/* One safetensors file: valid ones, wrong ones, truncated at each byte. */
#include "base/num.h"
#include "formats/container.h"
#include "support/memfile.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { N_DATA = 64, MAX_BYTES = 4096 };

/* Header and N_DATA bytes after it, as a file in memory; `length` replaces the true one if it is not 0. */
static const char *make(const char *header, uint64_t length) {
    static memfile memory;
    uint8_t b[MAX_BYTES] = {0};
    const uint64_t n = length ? length : strlen(header);
    memcpy(b, &n, 8);
    memcpy(b + 8, header, strlen(header));
    return memfile_set(&memory, b, 8 + strlen(header) + N_DATA);
}

static void refuse_path(const char *path, const char *words) {
    container *c = NULL;
    nib_error err = {0};
    const nib_status status = container_open(path, NULL, &c, &err);
    if (status != NIB_E_MODEL || !strstr(err.message, words) || !strstr(err.message, path))
        fail_msg("expected '%s', found status %d: %s", words, (int)status, err.message);
}

static void test_valid(void **state) {
    (void)state;
    static const char header[] = "{\"a\":{\"dtype\":\"F16\",\"shape\":[2,3],\"data_offsets\":[4,16]},"
                                 "\"s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
                                 "\"e\":{\"dtype\":\"I64\",\"shape\":[0,5],\"data_offsets\":[9,9]},"
                                 "\"f\":{\"dtype\":\"F8_E4M3\",\"shape\":[48],\"data_offsets\":[16,64]}}   ";
    container *c = NULL;
    nib_error err;
    if (container_open(make(header, 0), NULL, &c, &err) != NIB_OK)
        fail_msg("%s", err.message);
    assert_int_equal(container_get_kind(c), CONTAINER_SAFETENSORS);
    const uint64_t data = 8 + strlen(header);
    const container_tensor *t = container_find(c, "a");
    assert_true(t->type == TYPE_F16 && t->n_dim == 2 && t->shape[0] == 2 && t->shape[1] == 3);
    assert_true(t->offset == data + 4 && t->bytes == 12);
    t = container_find(c, "s");
    assert_true(t->n_dim == 0 && t->bytes == 4 && t->offset == data);
    t = container_find(c, "e");
    assert_true(t->bytes == 0 && t->shape[1] == 5);
    t = container_find(c, "f");
    assert_true(t->type == TYPE_F8_E4M3 && t->bytes == 48);
    container_close(c);
}

static void test_lies(void **state) {
    (void)state;
    static const struct {
        const char *entry, *words;
    } lies[] = {
        {"7", "expected an object"},
        {"{}", "dtype"},
        {"{\"dtype\":\"F5\",\"shape\":[4],\"data_offsets\":[0,16]}", "'F5'"},
        {"{\"dtype\":5,\"shape\":[4],\"data_offsets\":[0,16]}", "dtype"},
        {"{\"dtype\":\"F32\",\"data_offsets\":[0,16]}", "shape"},
        {"{\"dtype\":\"F32\",\"shape\":4,\"data_offsets\":[0,16]}", "shape"},
        {"{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,4],\"data_offsets\":[0,16]}", "at most 8"},
        {"{\"dtype\":\"F32\",\"shape\":[-4],\"data_offsets\":[0,16]}", "dimension 0"},
        {"{\"dtype\":\"F32\",\"shape\":[4.0],\"data_offsets\":[0,16]}", "dimension 0"},
        {"{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,16]}", "shape"},
        {"{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,16]}", "shape"},
        {"{\"dtype\":\"F32\",\"shape\":[4]}", "data_offsets"},
        {"{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0]}", "data_offsets"},
        {"{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[16,0]}", "data_offsets"},
        {"{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[-16,0]}", "data_offsets"},
        {"{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,\"16\"]}", "data_offsets"},
        {"{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,12]}",
         "needs 16 bytes, its data_offsets span 12"},
        {"{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[52,68]}", "the file ends"},
        {"{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[9223372036854775791,9223372036854775807]}",
         "the file ends"},
        {"{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]},\"x\":{\"dtype\":\"U8\",\"shape\":[2],"
         "\"data_offsets\":[15,17]}",
         "overlap"},
        {"{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]},\"w\":{}", "uplicate"},
    };
    for (size_t i = 0; i < NUM_COUNT(lies); i++) {
        char header[1024];
        snprintf(header, sizeof header, "{\"w\":%s}", lies[i].entry);
        refuse_path(make(header, 0), lies[i].words);
    }
}

static void test_lying_length(void **state) {
    (void)state;
    static const char header[] = "{\"w\":{\"dtype\":\"F32\",\"shape\":[16],\"data_offsets\":[0,64]}}";
    refuse_path(make(header, UINT64_MAX), "header of");
    refuse_path(make(header, 1ull << 60), "header of");
    refuse_path(make(header, strlen(header) + N_DATA + 1), "header of");
    refuse_path(make(header, strlen(header) - 1), "JSON");
    refuse_path(make(header, strlen(header) + 1), ""); /* a NUL after the JSON, and the data a byte short */
    refuse_path(make("{}", 1), "JSON");
    refuse_path(make("{\"\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 0), "tensor name");
}

static void test_truncated(void **state) {
    (void)state;
    static const char header[] = "{\"w\":{\"dtype\":\"F32\",\"shape\":[16],\"data_offsets\":[0,64]}}";
    static memfile memory;
    uint8_t b[MAX_BYTES] = {0};
    const uint64_t n = strlen(header);
    memcpy(b, &n, 8);
    memcpy(b + 8, header, n);
    for (size_t k = 0; k < 8 + n + N_DATA; k++)
        refuse_path(memfile_set(&memory, b, k), "");
    container *c = NULL;
    assert_int_equal(container_open(memfile_set(&memory, b, 8 + n + N_DATA), NULL, &c, NULL), NIB_OK);
    container_close(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_valid),
        cmocka_unit_test(test_lies),
        cmocka_unit_test(test_lying_length),
        cmocka_unit_test(test_truncated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
