/* An imatrix in its file: read back equal; any damaged byte, another length, other weights or
 * another model's inputs are refused with a reason. */
#include "base/file.h"
#include "base/mem.h"
#include "profile/imatrix.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const int64_t widths[] = {5, 3, 8};
enum { N_SITE = 3, N_MEAN = 16 };

static char folder[] = "/tmp/nibble-imatrix-XXXXXX";
static char path[128];

static model_imatrix example(void) {
    model_imatrix c;
    nib_error err = {0};
    assert_int_equal(imatrix_begin(&c, widths, N_SITE, &err), NIB_OK);
    strcpy(c.content, "0123abcd");
    strcpy(c.prompts, "ffff");
    for (int i = 0; i < N_MEAN; i++)
        c.mean[i] = (float)(i * i) / 3;
    return c;
}

static void put(const char *text, size_t n_byte) {
    FILE *f = fopen(path, "wb");
    assert_true(f && fwrite(text, 1, n_byte, f) == n_byte && !fclose(f));
}

static nib_status load(nib_error *err) {
    model_imatrix c;
    const nib_status status = imatrix_load(path, "0123abcd", widths, N_SITE, &c, err);
    if (status == NIB_OK)
        imatrix_clear(&c);
    return status;
}

static void the_same_comes_back(void **state) {
    (void)state;
    model_imatrix c = example(), got;
    nib_error err = {0};
    assert_int_equal(imatrix_save(path, &c, &err), NIB_OK);
    assert_int_equal(imatrix_load(path, "0123abcd", widths, N_SITE, &got, &err), NIB_OK);
    assert_string_equal(got.content, c.content);
    assert_string_equal(got.prompts, c.prompts);
    assert_memory_equal(got.mean, c.mean, N_MEAN * sizeof *c.mean);
    imatrix_clear(&got);
    imatrix_clear(&c);
}

static void damage_is_seen(void **state) {
    (void)state;
    model_imatrix c = example();
    nib_error err = {0};
    char *text;
    size_t n;
    assert_int_equal(imatrix_save(path, &c, &err), NIB_OK);
    assert_int_equal(file_read_all(path, 1 << 20, &text, &n, &err), NIB_OK);
    for (size_t i = 0; i < n; i++) {
        text[i] = (char)(text[i] ^ 0x41);
        put(text, n);
        assert_int_equal(load(&err), NIB_E_MODEL);
        assert_non_null(strstr(err.message, path));
        text[i] = (char)(text[i] ^ 0x41);
        put(text, i);
        assert_int_equal(load(&err), NIB_E_MODEL);
    }
    text = realloc(text, n + 8);
    memset(text + n, 0, 8);
    put(text, n + 8);
    assert_int_not_equal(load(&err), NIB_OK);
    put(text, n);
    assert_int_equal(load(&err), NIB_OK);
    free(text);
    imatrix_clear(&c);
}

static void others_are_refused(void **state) {
    (void)state;
    static const int64_t wider[] = {5, 4, 7};
    model_imatrix c = example(), got;
    nib_error err = {0};
    assert_int_equal(imatrix_save(path, &c, &err), NIB_OK);
    assert_int_equal(imatrix_load(path, "4444", widths, N_SITE, &got, &err), NIB_E_MODEL);
    assert_non_null(strstr(err.message, "expected a profile of the weights"));
    assert_int_equal(imatrix_load(path, "0123abcd", wider, N_SITE, &got, &err), NIB_E_MODEL);
    assert_non_null(strstr(err.message, "widths"));
    assert_int_equal(imatrix_load(path, "0123abcd", widths, N_SITE - 1, &got, &err), NIB_E_MODEL);
    c.mean[7] = -1;
    assert_int_equal(imatrix_save(path, &c, &err), NIB_OK);
    assert_int_equal(load(&err), NIB_E_MODEL);
    assert_non_null(strstr(err.message, "place 7"));
    assert_int_equal(imatrix_load("/tmp/nibble-no-such-file", NULL, widths, N_SITE, &got, &err),
                     NIB_E_NOTFOUND);
    assert_int_equal(imatrix_begin(&got, (const int64_t[]){INT64_MAX}, 1, &err), NIB_E_MODEL);
    imatrix_clear(&c);
}

static int begin(void **state) {
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/columns", folder);
    return 0;
}

static int end(void **state) {
    (void)state;
    unlink(path);
    return rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_comes_back),
        cmocka_unit_test(damage_is_seen),
        cmocka_unit_test(others_are_refused),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
