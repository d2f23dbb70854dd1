/* The estimated memory of a tokenizer covers its memory while it is built, and is not much larger: for the
 * published vocabularies, from GGUF headers and from tokenizer.json. */
#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"
#include "support/tempdir.h"
#include "support/vocabulary.h"
#include "tokenizer/memory_estimate.h"
#include "tokenizer/tokenizer.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

static const logger silent = {0};

/* The heap memory that opening took, as the bound counts it. */
static uint64_t taken(const char *path, uint64_t *kept) {
    container *c = NULL;
    tokenizer *t = NULL;
    nib_error err = {0};
    mem_bound b;
    mem_bound_set(&b, UINT64_MAX);
    assert_int_equal(container_open(path, &silent, &c, &err), NIB_OK);
    if (tokenizer_open(c, &silent, &t, &err) != NIB_OK)
        fail_msg("%s: %s", path, err.message);
    mem_bound_end(&b);
    *kept = tokenizer_heap_bytes(t);
    tokenizer_close(t);
    container_close(c);
    return (uint64_t)b.peak;
}

static void check(const char *path) {
    enum { SLACK = 3 << 19 }; /* memory that does not grow with the vocabulary */
    vocabulary_sizes s = {0};
    const container_visitor v = vocabulary_visitor(&s);
    container *c = NULL;
    tokenizer_need need;
    nib_error err = {0};
    uint64_t kept;
    mem_bound b;
    mem_bound_set(&b, UINT64_MAX);
    assert_int_equal(container_open_headers(path, &silent, &v, &c, &err), NIB_OK);
    const uint64_t headers = container_heap_bytes(c);
    assert_int_equal(tokenizer_estimate(c, &s, &need, &err), NIB_OK);
    mem_bound_end(&b);
    container_close(c);
    const uint64_t peak = taken(path, &kept);
    if (peak > headers + need.peak || kept > need.kept)
        fail_msg("%s: took %llu and keeps %llu, foreseen %llu and %llu", path, (unsigned long long)peak,
                 (unsigned long long)kept, (unsigned long long)(headers + need.peak),
                 (unsigned long long)need.kept);
    if (headers + need.peak > peak + peak / 2 + SLACK || need.kept > kept + kept / 2 + SLACK)
        fail_msg("%s: takes %llu and keeps %llu, foreseen much more: %llu and %llu", path,
                 (unsigned long long)peak, (unsigned long long)kept,
                 (unsigned long long)(headers + need.peak), (unsigned long long)need.kept);
    assert_true(b.peak < (1 << 20)); /* reading the headers costs almost nothing */
}

static void gguf(void **state) {
    (void)state;
    int n = 0;
    DIR *folder = opendir("tests/data/tokenizer");
    assert_non_null(folder);
    for (const struct dirent *e; (e = readdir(folder));) {
        char name[256];
        const char *end = strstr(e->d_name, ".gguf.inp");
        if (!end)
            continue;
        snprintf(name, sizeof name, "%.*s", (int)(end - e->d_name), e->d_name);
        check(vocabulary_path(name));
        n++;
    }
    closedir(folder);
    assert_true(n > 3);
}

/* A folder with that tokenizer.json and no weights. */
static const char *folder_of(const char *json, size_t n_byte) {
    static const char config[] = "{\"model_type\": \"llama\"}", tokens[] = "{\"bos_token\": \"a\"}";
    static const unsigned char weights[10] = {2, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
    mkdir(temp_path("m"), 0777);
    temp_file("m/config.json", config, sizeof config - 1);
    temp_file("m/tokenizer_config.json", tokens, sizeof tokens - 1);
    temp_file("m/model.safetensors", weights, sizeof weights);
    temp_file("m/tokenizer.json", json, n_byte);
    return temp_path("m");
}

static void json(void **state) {
    (void)state;
    int n = 0;
    DIR *folder = opendir("tests/data/tokenizer-json");
    assert_non_null(folder);
    for (const struct dirent *e; (e = readdir(folder));) {
        char path[512], *text;
        size_t n_byte;
        nib_error err;
        if (!strstr(e->d_name, ".json"))
            continue;
        snprintf(path, sizeof path, "tests/data/tokenizer-json/%s", e->d_name);
        assert_int_equal(file_read_all(path, 1 << 20, &text, &n_byte, &err), NIB_OK);
        check(folder_of(text, n_byte));
        mem_free(text);
        n++;
    }
    closedir(folder);
    assert_true(n > 3);
}

/* As many tokens and merges as published files have. */
static void json_of_size(void **state) {
    (void)state;
    for (int kind = VOCABULARY_MERGES; kind <= VOCABULARY_SCORES; kind++) {
        size_t n_byte;
        char *text = vocabulary_json((vocabulary_kind)kind, 30000, &n_byte);
        check(folder_of(text, n_byte));
        mem_free(text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(gguf), cmocka_unit_test(json),
                                       cmocka_unit_test(json_of_size)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
