/* Texts that are no UTF-8: the vocabularies of tests/data/tokenizer give llama.cpp's ids (NAME.damaged, made
 * by tools/make-damaged-data.py), and those of tokenizer.json follow the same rule. */
#include "base/file.h"
#include "base/mem.h"
#include "support/vocabulary.h"
#include "tokenizer/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static size_t read_hex(const char *line, char *out) {
    size_t n = 0;
    for (unsigned byte; sscanf(line + 2 * n, "%2x", &byte) == 1 && line[2 * n] != ':';)
        out[n++] = (char)byte;
    return n;
}

/* One line "HEX: ID ID"; sets *at to its end. */
static void check_line(const char *name, const tokenizer *t, char **at) {
    char text[256];
    token_list ids = {0};
    nib_error err = {0};
    char *end = strchr(*at, '\n'), *id = strchr(*at, ':');
    assert_non_null(end);
    assert_true(id && (size_t)(id - *at) < 2 * sizeof text);
    size_t n = read_hex(*at, text), i = 0;
    assert_int_equal(n, (id - *at) / 2);
    assert_int_equal(tokenizer_encode(t, text, n, 0, &ids, &err), NIB_OK);
    for (id++; id < end; i++) {
        long expected = strtol(id, &id, 10);
        if (i >= ids.n || ids.data[i] != expected)
            fail_msg("%s, %.*s: id %zu is not %ld", name, (int)(end - *at), *at, i, expected);
    }
    assert_int_equal(ids.n, i);
    token_list_clear(&ids);
    *at = end + 1;
}

static void check_vocabulary(const char *name) {
    char path[256], *lines;
    size_t n, n_line = 0;
    nib_error err = {0};
    logger silent = {0};
    container *c;
    tokenizer *t;
    assert_int_equal(container_open(vocabulary_path(name), &silent, &c, &err), NIB_OK);
    assert_int_equal(tokenizer_open(c, &silent, &t, &err), NIB_OK);
    snprintf(path, sizeof path, "tests/data/tokenizer/%s.damaged", name);
    assert_int_equal(file_read_all(path, 1 << 20, &lines, &n, &err), NIB_OK);
    for (char *at = lines; *at; n_line++)
        check_line(name, t, &at);
    assert_int_equal(n_line, 122);
    mem_free(lines);
    tokenizer_close(t);
    container_close(c);
}

#define VOCABULARY(name, file)                                                                               \
    static void test_##name(void **state) {                                                                  \
        (void)state;                                                                                         \
        check_vocabulary(file);                                                                              \
    }
VOCABULARY(gpt2, "gpt-2")
VOCABULARY(llama, "llama-spm")
VOCABULARY(phi3, "phi-3")
VOCABULARY(falcon, "falcon")
VOCABULARY(deepseek, "deepseek-llm")
VOCABULARY(unigram, "unigram")

static void encode(const char *name, const char *text, size_t n, token_list *out) {
    char path[256], *json;
    size_t n_json;
    nib_error err = {0};
    tokenizer *t;
    snprintf(path, sizeof path, "tests/data/tokenizer-json/%s.json", name);
    assert_int_equal(file_read_all(path, 1 << 24, &json, &n_json, &err), NIB_OK);
    assert_int_equal(tokenizer_open_json(json, n_json, NULL, 0, &t, &err), NIB_OK);
    assert_int_equal(tokenizer_encode(t, text, n, 0, out, &err), NIB_OK);
    tokenizer_close(t);
    mem_free(json);
}

/* If the steps and the model work on characters: U+FFFD for each byte, and overlong forms as their
 * characters. */
static void test_json_characters(void **state) {
    (void)state;
    static const char *const names[] = {"gpt2", "gpt-4o", "qwen2-nfc", "metaspace-first", "unigram-bytes"};
    static const char damaged[] = "a\xFF \xC1\x81"
                                  "b \xE2\x82",
                      repaired[] = "a\xEF\xBF\xBD Ab \xEF\xBF\xBD\xEF\xBF\xBD";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        token_list ids = {0}, expected = {0};
        encode(names[i], damaged, sizeof damaged - 1, &ids);
        encode(names[i], repaired, sizeof repaired - 1, &expected);
        assert_int_equal(ids.n, expected.n);
        assert_memory_equal(ids.data, expected.data, ids.n * sizeof *ids.data);
        token_list_clear(&ids);
        token_list_clear(&expected);
    }
}

/* llama-like's byte tokens are ids 1 to 256; a lead byte takes the bytes that it claims with it. */
static void test_json_bytes(void **state) {
    (void)state;
    static const unsigned char damaged[] = {'a', 0xFF, 0xC3, '('};
    token_list ids = {0};
    encode("llama-like", (const char *)damaged, sizeof damaged, &ids);
    assert_true(ids.n >= 3);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(ids.data[ids.n - 3 + i], 1 + damaged[1 + i]);
    token_list_clear(&ids);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt2),
        cmocka_unit_test(test_llama),
        cmocka_unit_test(test_phi3),
        cmocka_unit_test(test_falcon),
        cmocka_unit_test(test_deepseek),
        cmocka_unit_test(test_unigram),
        cmocka_unit_test(test_json_characters),
        cmocka_unit_test(test_json_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
