/* A model in several GGUF files: shards are found and joined; missing or wrong shards are refused. */
#include "base/file.h"
#include "formats/container.h"
#include "formats/gguf.h"
#include "support/bytes.h"
#include "support/faults.h"
#include "support/made.h"
#include "support/tempdir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void put_u16(bytes *b, const char *key, int value) {
    bytes_text(b, key);
    bytes_u32(b, GGUF_U16);
    bytes_put(b, &(uint16_t){(uint16_t)value}, 2);
}

static const char *write_part(const char *name, int no, int count, int n_tensor_all, const char *tensor) {
    bytes b = {0};
    bytes_put(&b, GGUF_MAGIC, 4);
    bytes_u32(&b, 3);
    bytes_u64(&b, 1);
    bytes_u64(&b, 3);
    put_u16(&b, "split.no", no);
    put_u16(&b, "split.count", count);
    bytes_text(&b, "split.tensors.count"), bytes_u32(&b, GGUF_I32), bytes_u32(&b, (uint32_t)n_tensor_all);
    bytes_text(&b, tensor);
    bytes_u32(&b, 1), bytes_u64(&b, 4), bytes_u32(&b, 0), bytes_u64(&b, 0);
    bytes_align(&b, 32);
    for (int i = 0; i < 4; i++)
        bytes_f32(&b, (float)no);
    return temp_file(name, b.data, b.n);
}

static void refuse_split(const char *path, const char *words) {
    container *c;
    nib_error err = {0};
    char copy[512];
    snprintf(copy, sizeof copy, "%s", path);
    assert_int_equal(container_open(copy, NULL, &c, &err), NIB_E_MODEL);
    if (!strstr(err.message, words))
        fail_msg("expected '%s' in: %s", words, err.message);
}

static nib_status open_and_close(void *path, nib_error *err) {
    container *c;
    NIB_TRY(container_open(path, NULL, &c, err));
    made_container(c);
    container_close(c);
    return NIB_OK;
}

static void test_split(void **state) {
    (void)state;
    container *c;
    nib_error err;
    char first[512];
    snprintf(first, sizeof first, "%s", write_part("m-00001-of-00003.gguf", 0, 3, 3, "a"));
    write_part("m-00002-of-00003.gguf", 1, 3, 3, "b");
    refuse_split(first, "m-00003-of-00003.gguf: not found");
    const char *third = write_part("m-00003-of-00003.gguf", 2, 3, 3, "c");
    refuse_split(third, "part 3 of 3");
    if (container_open(first, NULL, &c, &err) != NIB_OK)
        fail_msg("%s", err.message);
    assert_int_equal(container_n_file(c), 3);
    assert_int_equal(container_n_tensor(c), 3);
    float value = 0;
    const container_tensor *t = container_find(c, "c");
    assert_int_equal(t->file, 2);
    assert_int_equal(file_read_at(container_file(c, 2), &value, t->offset, sizeof value, &err), NIB_OK);
    assert_true(value == 2);
    assert_null(container_file(c, 3));
    container_close(c);
    assert_true(fault_sweep(FAULT_ALLOC, 1, open_and_close, first) > 10);
    assert_true(fault_sweep(FAULT_READ, 1, open_and_close, first) >= 3);
}

static void test_split_lies(void **state) {
    (void)state;
    char first[512];
    snprintf(first, sizeof first, "%s", write_part("s-00001-of-00002.gguf", 0, 2, 2, "a"));
    write_part("s-00002-of-00002.gguf", 0, 2, 2, "b");
    refuse_split(first, "expected part number 1 of 2");
    write_part("s-00002-of-00002.gguf", 1, 3, 2, "b");
    refuse_split(first, "found 1 of 3");
    write_part("s-00002-of-00002.gguf", 1, 2, 2, "a");
    refuse_split(first, "twice");
    write_part("s-00001-of-00002.gguf", 0, 2, 5, "a");
    write_part("s-00002-of-00002.gguf", 1, 2, 5, "b");
    refuse_split(first, "expected 5 tensors");
    refuse_split(write_part("other.gguf", 0, 2, 2, "a"), "expected a name");
    refuse_split(write_part("s-00001-of-00007.gguf", 0, 65535, 2, "a"), "expected a name");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_split), cmocka_unit_test(test_split_lies)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
