/* Small tokenizers of every kind of normalizer, pre-tokenizer, model and decoder, against the results of HF's
 * `tokenizers` for the same texts (tests/data/tokenizer-json, made by tools/make-tokenizer-data.py). With a
 * folder as argument: that one, so that more random texts can be tried. */
#include "base/file.h"
#include "base/jsonx.h"
#include "base/mem.h"
#include "tokenizer/tokenizer.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define MAX_ALL ((uint64_t)64 << 20)

static const char *folder = "tests/data/tokenizer-json";

static int check_ids(const char *name, const char *what, const json_t *expected, const token_list *found,
                     const char *text) {
    bool same = json_array_size(expected) == found->n;
    for (size_t i = 0; same && i < found->n; i++)
        same = json_integer_value(json_array_get(expected, i)) == found->data[i];
    if (same)
        return 0;
    print_message("%s, %s of \"%s\":\n expected", name, what, text);
    for (size_t i = 0; i < json_array_size(expected); i++)
        print_message(" %d", (int)json_integer_value(json_array_get(expected, i)));
    print_message("\n found   ");
    for (size_t i = 0; i < found->n; i++)
        print_message(" %d", found->data[i]);
    print_message("\n");
    return 1;
}

static int check_text(const char *name, const tokenizer *t, const json_t *expected, const token_list *ids) {
    decode_state state = {0};
    text_buffer out = {0};
    nib_error err;
    for (size_t i = 0; i < ids->n; i++)
        assert_int_equal(tokenizer_decode(t, &state, ids->data[i], false, &out, &err), NIB_OK);
    assert_int_equal(tokenizer_decode_end(t, &state, &out, &err), NIB_OK);
    int wrong =
        out.n != json_string_length(expected) || memcmp(out.data, json_string_value(expected), out.n) != 0;
    if (wrong)
        print_message("%s, decoded:\n expected \"%s\"\n found    \"%s\"\n", name, json_string_value(expected),
                      out.data);
    text_buffer_clear(&out);
    return wrong;
}

static int check_case(const char *name, const tokenizer *t, const json_t *c) {
    const json_t *text = json_object_get(c, "text");
    const char *s = json_string_value(text);
    size_t n = json_string_length(text);
    token_list ids = {0}, special = {0};
    nib_error err = {0};
    assert_non_null(s);
    assert_int_equal(tokenizer_encode(t, s, n, 0, &ids, &err), NIB_OK);
    assert_int_equal(tokenizer_encode(t, s, n, TOKENIZE_BOS | TOKENIZE_SPECIAL, &special, &err), NIB_OK);
    int wrong = check_ids(name, "ids", json_object_get(c, "ids"), &ids, s);
    wrong += check_ids(name, "special", json_object_get(c, "special"), &special, s);
    if (!wrong)
        wrong = check_text(name, t, json_object_get(c, "decoded"), &ids);
    token_list_clear(&ids);
    token_list_clear(&special);
    return wrong;
}

static int check_tokenizer(const char *name) {
    char path[1024];
    char *json, *cases_text;
    size_t n_json, n_cases, i;
    nib_error err = {0};
    tokenizer *t = NULL;
    json_t *c;
    snprintf(path, sizeof path, "%s/%s.json", folder, name);
    assert_int_equal(file_read_all(path, MAX_ALL, &json, &n_json, &err), NIB_OK);
    snprintf(path, sizeof path, "%s/%s.cases", folder, name);
    assert_int_equal(file_read_all(path, MAX_ALL, &cases_text, &n_cases, &err), NIB_OK);
    if (tokenizer_open_json(json, n_json, NULL, 0, &t, &err) != NIB_OK) {
        print_message("%s: %s\n", name, err.message);
        fail();
    }
    /* Texts hold U+0000, so jansson is asked itself. */
    json_t *cases = json_loadb(cases_text, n_cases, JSON_ALLOW_NUL, NULL);
    assert_true(json_array_size(cases) > 10);
    int wrong = 0;
    json_array_foreach(cases, i, c) {
        wrong += check_case(name, t, c);
        if (wrong > 5)
            break;
    }
    json_decref(cases);
    tokenizer_close(t);
    mem_free(json);
    mem_free(cases_text);
    return wrong;
}

static void test_all(void **state) {
    (void)state;
    DIR *d = opendir(folder);
    int n = 0, wrong = 0;
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        char *dot = strrchr(e->d_name, '.');
        if (!dot || strcmp(dot, ".json") != 0)
            continue;
        *dot = 0;
        wrong += check_tokenizer(e->d_name);
        n++;
    }
    closedir(d);
    assert_int_equal(wrong, 0);
    assert_true(n >= 30);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all)};
    if (argc > 1)
        folder = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
