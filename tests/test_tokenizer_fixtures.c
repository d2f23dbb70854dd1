/* The published vocabularies of tests/data/tokenizer: their test texts give exactly the published ids, and
 * the ids give the text again. */
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

static const char SEPARATOR[] = "\n__ggml_vocab_test__\n";

typedef struct fixture {
    container *c;
    tokenizer *t;
    char *texts, *ids;
    size_t n_texts, n_ids;
} fixture;

static void open_fixture(fixture *f, const char *name) {
    char path[256];
    nib_error err = {0};
    logger silent = {0};
    assert_int_equal(container_open(vocabulary_path(name), &silent, &f->c, &err), NIB_OK);
    assert_int_equal(tokenizer_open(f->c, &silent, &f->t, &err), NIB_OK);
    container_drop_vocab(f->c); /* the tokenizer must not need it any more */
    snprintf(path, sizeof path, "tests/data/tokenizer/%s.gguf.inp", name);
    assert_int_equal(file_read_all(path, 1 << 20, &f->texts, &f->n_texts, &err), NIB_OK);
    snprintf(path, sizeof path, "tests/data/tokenizer/%s.gguf.out", name);
    assert_int_equal(file_read_all(path, 1 << 20, &f->ids, &f->n_ids, &err), NIB_OK);
}

static void close_fixture(fixture *f) {
    tokenizer_close(f->t);
    container_close(f->c);
    mem_free(f->texts);
    mem_free(f->ids);
}

static void check_round_trip(const tokenizer *t, const token_list *l, const char *text, size_t n) {
    decode_state state = {0};
    text_buffer out = {0};
    nib_error err;
    for (size_t i = 0; i < l->n; i++)
        assert_int_equal(tokenizer_decode(t, &state, l->data[i], true, &out, &err), NIB_OK);
    assert_int_equal(tokenizer_decode_end(t, &state, &out, &err), NIB_OK);
    assert_int_equal(out.n, n);
    assert_memory_equal(out.data, text, n);
    text_buffer_clear(&out);
}

static void check_texts(const char *name, int n_expected) {
    fixture f;
    open_fixture(&f, name);
    const char *text = f.texts, *end = f.texts + f.n_texts;
    char *ids = f.ids;
    int n_text = 0;
    for (const char *stop; (stop = memmem(text, (size_t)(end - text), SEPARATOR, sizeof SEPARATOR - 1));
         n_text++) {
        token_list l = {0};
        nib_error err = {0};
        size_t n = (size_t)(stop - text);
        char *line_end = strchr(ids, '\n');
        assert_non_null(line_end);
        assert_int_equal(tokenizer_encode(f.t, text, n, 0, &l, &err), NIB_OK);
        for (size_t i = 0; i < l.n; i++) {
            char *after;
            assert_int_equal(strtol(ids, &after, 10), l.data[i]);
            assert_ptr_not_equal(after, ids);
            ids = after;
        }
        assert_int_equal(strspn(ids, " "), line_end - ids);
        ids = line_end + 1;
        check_round_trip(f.t, &l, text, n);
        token_list_clear(&l);
        text = stop + sizeof SEPARATOR - 1;
    }
    assert_int_equal(n_text, n_expected);
    close_fixture(&f);
}

#define FIXTURE(name, text)                                                                                  \
    static void test_##name(void **state) {                                                                  \
        (void)state;                                                                                         \
        check_texts(text, 46);                                                                               \
    }
FIXTURE(gpt2, "gpt-2")
FIXTURE(llama, "llama-spm")
FIXTURE(phi3, "phi-3")
FIXTURE(falcon, "falcon")
FIXTURE(deepseek, "deepseek-llm")

static size_t count(const tokenizer *t, const char *text, unsigned flags, int32_t *first) {
    token_list l = {0};
    nib_error err = {0};
    assert_int_equal(tokenizer_encode(t, text, strlen(text), flags, &l, &err), NIB_OK);
    size_t n = l.n;
    *first = n ? l.data[0] : -1;
    token_list_clear(&l);
    return n;
}

static void test_special(void **state) {
    (void)state;
    fixture f;
    int32_t first;
    open_fixture(&f, "llama-spm");
    assert_int_equal(tokenizer_bos(f.t), 1);
    assert_int_equal(tokenizer_eos(f.t), 2);
    assert_true(tokenizer_adds_bos(f.t));
    assert_true(tokenizer_is_end(f.t, 2));
    assert_false(tokenizer_is_end(f.t, 1));
    assert_int_equal(count(f.t, "", TOKENIZE_BOS, &first), 1);
    assert_int_equal(count(f.t, "<s>", TOKENIZE_SPECIAL, &first), 1);
    assert_int_equal(first, 1);
    assert_int_equal(count(f.t, "<s>", TOKENIZE_BOS | TOKENIZE_SPECIAL, &first), 1); /* not doubled */
    assert_true(count(f.t, "<s>", 0, &first) > 1);                                   /* plain text */
    assert_int_not_equal(first, 1);
    close_fixture(&f);
}

/* A character of three byte tokens is decoded whole, or as U+FFFD if it is incomplete. */
static void test_streaming(void **state) {
    (void)state;
    static const int32_t euro[] = {3 + 0xE2, 3 + 0x82, 3 + 0xAC};
    fixture f;
    nib_error err = {0};
    text_buffer out = {0};
    decode_state s = {0};
    open_fixture(&f, "llama-spm");
    for (int i = 0; i < 3; i++) {
        assert_int_equal(out.n, 0);
        assert_int_equal(tokenizer_decode(f.t, &s, euro[i], false, &out, &err), NIB_OK);
    }
    assert_string_equal(out.data, "\xE2\x82\xAC");
    assert_int_equal(tokenizer_decode(f.t, &s, euro[0], false, &out, &err), NIB_OK);
    assert_int_equal(tokenizer_decode(f.t, &s, euro[0], false, &out, &err), NIB_OK);
    assert_string_equal(out.data, "\xE2\x82\xAC\xEF\xBF\xBD");
    assert_int_equal(tokenizer_decode_end(f.t, &s, &out, &err), NIB_OK);
    assert_string_equal(out.data, "\xE2\x82\xAC\xEF\xBF\xBD\xEF\xBF\xBD");
    assert_int_equal(tokenizer_decode(f.t, &s, 32000, false, &out, &err), NIB_E_USAGE);
    assert_int_equal(tokenizer_decode(f.t, &s, -1, false, &out, &err), NIB_E_USAGE);
    text_buffer_clear(&out);
    close_fixture(&f);
}

/* A word of a megabyte uses the merges by heap; every vocabulary must encode and decode it. A quadratic
 * algorithm would need minutes. */
static void check_long(const char *name, const char *unit) {
    enum { N = 1 << 20 };
    fixture f;
    token_list l = {0};
    nib_error err = {0};
    size_t n_unit = strlen(unit), n = N / n_unit * n_unit;
    char *text = mem_alloc(N);
    open_fixture(&f, name);
    for (size_t i = 0; i < n; i++)
        text[i] = unit[i % n_unit];
    assert_int_equal(tokenizer_encode(f.t, text, n, 0, &l, &err), NIB_OK);
    assert_true(l.n > 0 && l.n <= n);
    check_round_trip(f.t, &l, text, n);
    token_list_clear(&l);
    mem_free(text);
    close_fixture(&f);
}

static void test_long(void **state) {
    (void)state;
    check_long("gpt-2", "abcdefghijklmnopqrstuvwxyz");
    check_long("gpt-2", " ");
    check_long("llama-spm", "a");
    check_long("llama-spm", "\xE4\xB8\xAD\xE6\x96\x87\xF0\x9F\xA6\x99");
    check_long("deepseek-llm", " \t");
    check_long("falcon", "7");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt2),      cmocka_unit_test(test_llama),    cmocka_unit_test(test_phi3),
        cmocka_unit_test(test_falcon),    cmocka_unit_test(test_deepseek), cmocka_unit_test(test_special),
        cmocka_unit_test(test_streaming), cmocka_unit_test(test_long),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
