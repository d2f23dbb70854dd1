/* Wrong, truncated and damaged tokenizers, and allocations that fail: a clear error or a working tokenizer.
 */
#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"
#include "formats/gguf_write.h"
#include "support/faults.h"
#include "support/tempdir.h"
#include "tokenizer/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static nib_status open_json(const char *json, size_t n, nib_error *err) {
    tokenizer *t = NULL;
    nib_status status = tokenizer_open_json(json, n, NULL, 0, &t, err);
    assert_true((status == NIB_OK) == (t != NULL));
    tokenizer_close(t);
    return status;
}

/* ---- tokenizer.json: one thing wrong at a time ---- */

#define GOOD                                                                                                 \
    "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a "                     \
    "b\"]},\"added_tokens\":[{\"id\":3,"                                                                     \
    "\"content\":\"<s>\",\"special\":true}],\"normalizer\":null,\"pre_tokenizer\":null,\"decoder\":null}"

#define WRONG_REGEX(pattern, says)                                                                           \
    {                                                                                                        \
        "\"pre_tokenizer\":null",                                                                            \
            "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" pattern                        \
            "\"},\"behavior\":\"Isolated\"}",                                                                \
            says                                                                                             \
    }

static void test_wrong_json(void **state) {
    (void)state;
    static const struct {
        const char *from, *to, *says;
    } cases[] = {
        {"\"BPE\"", "\"WordPiece\"", "unknown model 'WordPiece'"},
        {"\"BPE\"", "7", "type"},
        {"\"a\":0", "\"a\":-1", "ids from 0"},
        {"\"a\":0", "\"a\":4194304", "ids from 0"},
        {"\"a\":0", "\"a\":1e99", "ids from 0"},
        {"\"a\":0", "\"a\":0.5", "ids from 0"},
        {"\"a\":0", "\"a\":1", "found two for 1"},
        {"\"a\":0", "\"b\":0", "found 'b' twice"},
        {"\"a\":0", "\"a\":[]", "a number"},
        {"\"a\":0", "\"\\ud800\":0", "surrogate"},
        {"\"vocab\":{", "\"vocab\":[", "'{'"},
        {"\"vocab\":{", "\"words\":{", "a vocab"},
        {"\"vocab\":{", "\"merges\":[],\"vocab\":{", "found it twice"},
        {"\"a b\"", "\"ab\"", "a space between"},
        {"\"a b\"", "\"a b c\"", "a space between"},
        {"\"a b\"", "\"b a\"", "expected 'ba' and its two parts to be tokens"},
        {"\"a b\"", "[\"a\"]", "','"},
        {"\"merges\"", "\"mergers\"", "expected merges"},
        {"\"id\":3", "\"id\":\"3\"", "id"},
        {"\"id\":3", "\"id\":-3", "below"},
        {"\"id\":3", "\"id\":1", "found two for 1"},
        {"\"id\":3", "\"id\":99999999999", "below"},
        {"\"content\":\"<s>\",", "", "content"},
        {"\"normalizer\":null", "\"normalizer\":{\"type\":\"Nmt2\"}", "unknown normalizer 'Nmt2'"},
        {"\"normalizer\":null", "\"normalizer\":[]", "normalizer"},
        {"\"normalizer\":null",
         "\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AAAA!\"}", "base64"},
        {"\"normalizer\":null",
         "\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"/////w==\"}", "charsmap"},
        {"\"normalizer\":null",
         "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"(\"},\"content\":\"\"}", "regular"},
        {"\"pre_tokenizer\":null", "\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"}",
         "unknown pre-tokenizer 'UnicodeScripts'"},
        {"\"pre_tokenizer\":null",
         "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a&&b]\"},\"behavior\":"
         "\"Isolated\"}",
         "class"},
        {"\"pre_tokenizer\":null",
         "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\p{Nope}\"},\"behavior\":"
         "\"Isolated\"}",
         "p{Nope}"},
        WRONG_REGEX("(a)\\\\1", "a back reference"),
        WRONG_REGEX("(?<n>a)", "(?< in"),
        WRONG_REGEX("a(?R)?b", "(?R in"),
        WRONG_REGEX("(*NO_JIT)a", "(* in"),
        WRONG_REGEX("\\\\g<1>", "\\g in"),
        {"\"pre_tokenizer\":null",
         "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"a\"},\"behavior\":\"Sideways\"}",
         "'Sideways'"},
        {"\"pre_tokenizer\":null", "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\"}",
         "expected a replacement"},
        {"\"decoder\":null", "\"decoder\":{\"type\":\"CTC\"}", "unknown decoder 'CTC'"},
        {"\"decoder\":null", "\"post_processor\":{\"type\":\"What\"}", "unknown post_processor 'What'"},
        {"\"decoder\":null",
         "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\"}}],"
         "\"special_tokens\":{\"x\":{\"ids\":[77]}}}",
         "below 4, found 77"},
        {"\"type\":\"BPE\"", "\"type\":\"BPE\",\"continuing_subword_prefix\":\"##\"",
         "continuing_subword_prefix"},
        {"\"type\":\"BPE\"", "\"type\":\"BPE\",\"dropout\":0.1", "dropout"},
    };
    nib_error err = {0};
    assert_int_equal(open_json(GOOD, sizeof GOOD - 1, &err), NIB_OK);
    for (size_t i = 0; i < NUM_COUNT(cases); i++) {
        char json[1024];
        const char *at = strstr(GOOD, cases[i].from);
        assert_non_null(at);
        int n = snprintf(json, sizeof json, "%.*s%s%s", (int)(at - GOOD), GOOD, cases[i].to,
                         at + strlen(cases[i].from));
        if (open_json(json, (size_t)n, &err) != NIB_E_MODEL || !strstr(err.message, cases[i].says))
            fail_msg("%s: expected '%s', found status %d '%s'", json, cases[i].says, err.status, err.message);
    }
}

static void test_wrong_unigram(void **state) {
    (void)state;
    static const char *const cases[] = {
        "{\"model\":{\"type\":\"Unigram\",\"unk_id\":5,\"vocab\":[[\"a\",-1]]}}",
        "{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"a\"]]}}",
        "{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[1,\"a\"]]}}",
        "{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[]}}",
        "{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":{}}}",
        "{\"model\":{\"type\":\"Unigram\"}}",
        "{\"model\":[]}",
        "{}",
        "[]",
        "",
        "{\"model\":{\"vocab\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
    };
    for (size_t i = 0; i < NUM_COUNT(cases); i++) {
        nib_error err = {0};
        if (open_json(cases[i], strlen(cases[i]), &err) != NIB_E_MODEL)
            fail_msg("%s: status %d '%s'", cases[i], err.status, err.message);
    }
}

static void read_json(const char *name, char **json, size_t *n) {
    char path[128];
    nib_error err = {0};
    snprintf(path, sizeof path, "tests/data/tokenizer-json/%s.json", name);
    assert_int_equal(file_read_all(path, 1 << 24, json, n, &err), NIB_OK);
}

static void test_cut_and_flipped(void **state) {
    (void)state;
    static const char *const names[] = {"gpt2-prefix-template", "llama-like", "unigram-charsmap"};
    uint32_t random = 1;
    for (size_t i = 0; i < NUM_COUNT(names); i++) {
        char *json;
        size_t n;
        nib_error err = {0};
        read_json(names[i], &json, &n);
        for (size_t cut = 0; cut < n - 1; cut += 97)
            assert_int_equal(open_json(json, cut, &err), NIB_E_MODEL);
        for (int k = 0; k < 300; k++) {
            random = random * 1664525u + 1013904223u;
            size_t at = random % n;
            char saved = json[at];
            json[at] = (char)(random >> 24);
            nib_status status = open_json(json, n, &err);
            assert_true(status == NIB_OK || status == NIB_E_MODEL);
            json[at] = saved;
        }
        mem_free(json);
    }
}

/* ---- GGUF ---- */

typedef struct gguf_case {
    const char *model, *pre, *merge;
    size_t n_token, n_type, n_score;
    int64_t bos;
    const char *says;
} gguf_case;

static nib_status write_gguf(const char *path, const gguf_case *c, nib_error *err) {
    static const meta_string tokens[] = {{"a", 1}, {"b", 1}, {"ab", 2}, {"a", 1}};
    static const int64_t types[] = {1, 1, 1, 1, 1};
    static const double scores[] = {-1, -2, -3, -4, -5};
    gguf_writer *w;
    NIB_TRY(gguf_writer_open(path, &w, err));
    assert_int_equal(gguf_writer_set_string(w, "general.architecture", "llama", 5, err), NIB_OK);
    if (c->model)
        assert_int_equal(gguf_writer_set_string(w, "tokenizer.ggml.model", c->model, strlen(c->model), err),
                         NIB_OK);
    if (c->pre)
        assert_int_equal(gguf_writer_set_string(w, "tokenizer.ggml.pre", c->pre, strlen(c->pre), err),
                         NIB_OK);
    if (c->n_token)
        assert_int_equal(gguf_writer_set_strings(w, "tokenizer.ggml.tokens", tokens, c->n_token, err),
                         NIB_OK);
    if (c->n_type)
        assert_int_equal(
            gguf_writer_set_ints(w, "tokenizer.ggml.token_type", GGUF_I32, types, c->n_type, err), NIB_OK);
    if (c->n_score)
        assert_int_equal(
            gguf_writer_set_floats(w, "tokenizer.ggml.scores", GGUF_F32, scores, c->n_score, err), NIB_OK);
    if (c->merge) {
        meta_string merge = {c->merge, strlen(c->merge)};
        assert_int_equal(gguf_writer_set_strings(w, "tokenizer.ggml.merges", &merge, 1, err), NIB_OK);
    }
    if (c->bos)
        assert_int_equal(gguf_writer_set_int(w, "tokenizer.ggml.bos_token_id", GGUF_I64, c->bos, err),
                         NIB_OK);
    return gguf_writer_commit(w, err);
}

static void test_wrong_gguf(void **state) {
    (void)state;
    static const gguf_case cases[] = {
        {"gpt2", "gpt-2", "a b", 3, 3, 0, 1, NULL},
        {"gpt2", "gpt-2", "a b", 4, 0, 0, 0, NULL},
        {"gpt2", "gpt-2", "b a", 3, 0, 0, 0, NULL}, /* a merge of texts that are no tokens is left out */
        {"llama", NULL, NULL, 3, 3, 3, -1, NULL},
        {"t5", NULL, NULL, 3, 3, 3, 0, NULL},
        {NULL, NULL, NULL, 3, 3, 3, 0, "expected a tokenizer, found none"},
        {"gemma4", NULL, NULL, 3, 3, 3, 0, "found 'gemma4'"},
        {"gpt2", "nobody", "a b", 3, 3, 0, 0, "unknown pre-tokenizer 'nobody'"},
        {"gpt2", "gpt-2", NULL, 3, 3, 0, 0, "merges"},
        {"gpt2", "gpt-2", "ab", 3, 3, 0, 0, NULL}, /* and so is one without a space */
        {"gpt2", "gpt-2", "a b", 0, 3, 0, 0, "tokens"},
        {"gpt2", "gpt-2", "a b", 3, 4, 0, 0, "expected 3 elements"},
        {"gpt2", "gpt-2", "a b", 3, 3, 0, 3, "bos_token_id"},
        {"gpt2", "gpt-2", "a b", 3, 3, 0, -2, "bos_token_id"},
        {"llama", NULL, NULL, 3, 3, 2, 0, "expected 3 elements"},
        {"llama", NULL, NULL, 3, 3, 0, 0, "scores"},
        {"t5", NULL, NULL, 3, 3, 0, 0, "scores"},
        {"t5", NULL, NULL, 2, 2, 2, 0, "unknown_token_id"},
    };
    for (size_t i = 0; i < NUM_COUNT(cases); i++) {
        nib_error err = {0};
        logger silent = {0};
        container *c;
        tokenizer *t = NULL;
        const char *path = temp_path("vocab.gguf");
        assert_int_equal(write_gguf(path, &cases[i], &err), NIB_OK);
        assert_int_equal(container_open(path, &silent, &c, &err), NIB_OK);
        nib_status status = tokenizer_open(c, &silent, &t, &err);
        nib_status expected = !cases[i].says ? NIB_OK : cases[i].model ? NIB_E_MODEL : NIB_E_NOTFOUND;
        if (status != expected || (status != NIB_OK && !strstr(err.message, cases[i].says)))
            fail_msg("case %zu: expected '%s', found status %d '%s'", i,
                     cases[i].says ? cases[i].says : "success", status, err.message);
        tokenizer_close(t);
        container_close(c);
    }
}

/* As in MPT's vocabulary: merges of more than a kilobyte. One has no space: there is one warning, and the
 * other merges have the ranks that they have in llama.cpp. */
static void count_line(void *user, const char *line) {
    if (strstr(line, "1 of 3 merges"))
        ++*(int *)user;
}

static void test_odd_merges(void **state) {
    (void)state;
    enum { N = 700 };
    char once[N], twice[2 * N], merge[2 * N + 1];
    memset(once, 'a', N);
    memset(twice, 'a', 2 * N);
    memset(merge, 'a', 2 * N + 1);
    merge[N] = ' ';
    const meta_string tokens[] = {{"a", 1}, {"b", 1}, {"ab", 2}, {once, N}, {twice, 2 * N}};
    const meta_string list[] = {{"ab", 2}, {merge, 2 * N + 1}, {"a b", 3}};
    const char *path = temp_path("vocab.gguf");
    nib_error err = {0};
    gguf_writer *w;
    int n_warning = 0;
    logger log = {.fn = count_line, .user = &n_warning};
    container *c;
    tokenizer *t;
    token_list ids = {0};
    assert_int_equal(gguf_writer_open(path, &w, &err), NIB_OK);
    assert_int_equal(gguf_writer_set_string(w, "general.architecture", "llama", 5, &err), NIB_OK);
    assert_int_equal(gguf_writer_set_string(w, "tokenizer.ggml.model", "gpt2", 4, &err), NIB_OK);
    assert_int_equal(gguf_writer_set_string(w, "tokenizer.ggml.pre", "mpt", 3, &err), NIB_OK);
    assert_int_equal(gguf_writer_set_strings(w, "tokenizer.ggml.tokens", tokens, 5, &err), NIB_OK);
    assert_int_equal(gguf_writer_set_strings(w, "tokenizer.ggml.merges", list, 3, &err), NIB_OK);
    assert_int_equal(gguf_writer_commit(w, &err), NIB_OK);
    assert_int_equal(container_open(path, &log, &c, &err), NIB_OK);
    assert_int_equal(tokenizer_open(c, &log, &t, &err), NIB_OK);
    assert_int_equal(n_warning, 1);
    assert_int_equal(tokenizer_encode(t, "aab", 3, 0, &ids, &err), NIB_OK);
    assert_int_equal(ids.n, 2);
    assert_int_equal(ids.data[1], 2);
    token_list_clear(&ids);
    tokenizer_close(t);
    container_close(c);
}

/* ---- texts ---- */

static const char *const texts[] = {"Hello world, it's 1984!",
                                    "\xFF\xFE\xC3",
                                    "a\xC3(\xE2\x82",
                                    "<s>x<mask> wor</s>",
                                    "\xF0\x9F\xA6\x99\xED\xA0\x80\xF4\x90\x80\x80",
                                    ""};

typedef struct run {
    const char *json;
    size_t n;
} run;

static nib_status use(const tokenizer *t, nib_error *err) {
    nib_status status = NIB_OK;
    for (size_t i = 0; status == NIB_OK && i < NUM_COUNT(texts); i++) {
        token_list ids = {0};
        text_buffer out = {0};
        decode_state state = {0};
        status = tokenizer_encode(t, texts[i], strlen(texts[i]),
                                  TOKENIZE_BOS | (i & 1 ? TOKENIZE_SPECIAL : 0), &ids, err);
        for (size_t k = 0; status == NIB_OK && k < ids.n; k++)
            status = tokenizer_decode(t, &state, ids.data[k], true, &out, err);
        if (status == NIB_OK)
            status = tokenizer_decode_end(t, &state, &out, err);
        if (status == NIB_OK) {
            fault_made(ids.data, ids.n * sizeof *ids.data);
            fault_made(out.data, out.n);
        }
        token_list_clear(&ids);
        text_buffer_clear(&out);
    }
    return status;
}

static nib_status open_and_use(void *user, nib_error *err) {
    const run *r = user;
    tokenizer *t = NULL;
    NIB_TRY(tokenizer_open_json(r->json, r->n, NULL, 0, &t, err));
    nib_status status = use(t, err);
    tokenizer_close(t);
    return status;
}

static void test_no_memory(void **state) {
    (void)state;
    static const char *const names[] = {"gpt2-prefix-template", "gpt-4o",        "llama-like",
                                        "unigram-charsmap",     "replace-regex", "nfkc-lower"};
    for (size_t i = 0; i < NUM_COUNT(names); i++) {
        char *json;
        run r;
        read_json(names[i], &json, &r.n);
        r.json = json;
        assert_true(fault_sweep(FAULT_ALLOC, 3, open_and_use, &r) > 20);
        mem_free(json);
    }
}

static nib_status open_gguf_and_use(void *user, nib_error *err) {
    container *c;
    tokenizer *t = NULL;
    logger silent = {0};
    NIB_TRY(container_open(user, &silent, &c, err));
    nib_status status = tokenizer_open(c, &silent, &t, err);
    if (status == NIB_OK)
        status = use(t, err);
    tokenizer_close(t);
    container_close(c);
    return status;
}

static void test_no_memory_gguf(void **state) {
    (void)state;
    static const gguf_case cases[] = {{"gpt2", "gpt-2", "a b", 3, 3, 0, 1, NULL},
                                      {"gpt2", "deepseek-llm", "a b", 3, 3, 0, 1, NULL},
                                      {"llama", NULL, NULL, 3, 3, 3, 0, NULL},
                                      {"t5", NULL, NULL, 3, 3, 3, 0, NULL}};
    for (size_t i = 0; i < NUM_COUNT(cases); i++) {
        nib_error err = {0};
        const char *path = temp_path("vocab.gguf");
        assert_int_equal(write_gguf(path, &cases[i], &err), NIB_OK);
        assert_true(fault_sweep(FAULT_ALLOC, 1, open_gguf_and_use, (void *)path) > 10);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrong_json),      cmocka_unit_test(test_wrong_unigram),
        cmocka_unit_test(test_cut_and_flipped), cmocka_unit_test(test_wrong_gguf),
        cmocka_unit_test(test_no_memory),       cmocka_unit_test(test_no_memory_gguf),
        cmocka_unit_test(test_odd_merges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
