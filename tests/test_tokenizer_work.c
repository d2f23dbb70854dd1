/* Tokenizers that would work for hours on a short text, or expand it to gigabytes: each ends with the name of
 * the step, and published tokenizers stay within the bounds on a long text. No time is asserted: without the
 * bounds these tests do not end. */
#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"
#include "formats/gguf_write.h"
#include "support/slow.h"
#include "support/tempdir.h"
#include "tokenizer/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define BPE            "{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[]}"
#define NORMALIZERS(x) "{\"type\":\"Sequence\",\"normalizers\":[" x "]}"
#define SPLITS(x)      "{\"type\":\"Sequence\",\"pretokenizers\":[" x "]}"
#define DECODERS(x)    "{\"type\":\"Sequence\",\"decoders\":[" x "]}"
#define FOUR(x)        x "," x "," x "," x
#define TWELVE(x)      FOUR(x) "," FOUR(x) "," FOUR(x)
#define REPLACE(a, b)  "{\"type\":\"Replace\",\"pattern\":{\"String\":\"" a "\"},\"content\":\"" b "\"}"
#define REGEX(a, b)    "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"" a "\"},\"content\":\"" b "\"}"
#define PREPEND(a)     "{\"type\":\"Prepend\",\"prepend\":\"" a "\"}"
#define SPLIT(a)       "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" a "\"},\"behavior\":\"Isolated\"}"
#define SIGNS(a)                                                                                             \
    "{\"type\":\"Metaspace\",\"replacement\":\"" a "\",\"prepend_scheme\":\"always\",\"split\":false}"
#define EIGHT "aaaaaaaa"
#define LONG  EIGHT EIGHT EIGHT EIGHT EIGHT EIGHT EIGHT EIGHT

typedef struct hostile {
    const char *normalizer, *splits, *decoder; /* NULL: none */
    size_t n;                                  /* a's in the text */
    const char *says;
} hostile;

static tokenizer *open_parts(const char *model, const char *normalizer, const char *splits,
                             const char *decoder) {
    char json[8192];
    nib_error err = {0};
    tokenizer *t = NULL;
    int n =
        snprintf(json, sizeof json,
                 "{\"model\":%s,\"normalizer\":%s,\"pre_tokenizer\":%s,\"decoder\":%s,\"added_tokens\":[]}",
                 model, normalizer ? normalizer : "null", splits ? splits : "null",
                 decoder ? decoder : "{\"type\":\"Fuse\"}");
    assert_true(n > 0 && (size_t)n < sizeof json);
    if (tokenizer_open_json(json, (size_t)n, NULL, 0, &t, &err) != NIB_OK)
        fail_msg("%s: %s", json, err.message);
    return t;
}

/* unit, again and again. */
static char *repeated(const char *unit, size_t n) {
    const size_t n_unit = strlen(unit);
    char *text = mem_alloc(n * n_unit + 1);
    for (size_t i = 0; i < n * n_unit; i++)
        text[i] = unit[i % n_unit];
    text[n * n_unit] = 0;
    return text;
}

static nib_status encode(const tokenizer *t, const char *unit, size_t n, token_list *out, nib_error *err) {
    char *text = repeated(unit, n);
    nib_status status = tokenizer_encode(t, text, strlen(text), 0, out, err);
    mem_free(text);
    return status;
}

static nib_status decode(const tokenizer *t, const token_list *ids, text_buffer *out, nib_error *err) {
    decode_state state = {0};
    nib_status status = NIB_OK;
    for (size_t i = 0; i < ids->n && status == NIB_OK; i++)
        status = tokenizer_decode(t, &state, ids->data[i], true, out, err);
    return status;
}

static void test_hostile(void **state) {
    (void)state;
    static const hostile cases[] = {
        {NORMALIZERS(TWELVE(REPLACE("a", EIGHT))), NULL, NULL, 35,
         "normalizer 3 (Replace): expected a text that grows"},
        {NORMALIZERS(TWELVE(REPLACE("a", EIGHT))), NULL, NULL, 100000,
         "normalizer 2 (Replace): expected a text that grows"},
        {NORMALIZERS(TWELVE(REGEX("", "aaa"))), NULL, NULL, 1000,
         "normalizer 3 (Replace): expected a text that grows"},
        {NORMALIZERS(PREPEND("bb") "," TWELVE(REPLACE("b", "bb"))), NULL, NULL, 1, "normalizer 13 (Replace)"},
        {NORMALIZERS(REPLACE("a", "\\u00e9") "," TWELVE(REPLACE("\\u00e9", "\\u00e9\\u00e9"))), NULL, NULL,
         5000, "normalizer 5 (Replace)"},
        {NULL, SPLITS(TWELVE(SIGNS("    "))), NULL, 35,
         "pre-tokenizer 7 (Metaspace): expected a text that grows"},
        {NULL, SPLITS(FOUR(SIGNS(LONG))), NULL, 0, NULL},
        {NULL, SPLIT("(a+)+[bc]"), NULL, 35,
         "pre-tokenizer 1 (Split): its regular expression: expected at most"},
        {NULL, SPLIT("((a*)*)*[bc]"), NULL, 100000, "pre-tokenizer 1 (Split): its regular expression"},
        {NULL, SPLIT("[^x]+x"), NULL, 1000000, "pre-tokenizer 1 (Split): its regular expression"},
        {NULL, SPLIT("(?:a(?=[^x]*[xy])|a)+[bc]"), NULL, 100000,
         "pre-tokenizer 1 (Split): its regular expression"},
        {NULL, SPLITS(SPLIT("b+") "," SPLIT("a(?=.*x)")), NULL, 1000000,
         "pre-tokenizer 2 (Split): its regular"},
        {NULL, SPLIT("(?=(\\\\w{3})+(?!\\\\w))"), NULL, 1000000, "pre-tokenizer 1 (Split)"},
        {REGEX("a*?a*?a*?[bc]", ""), NULL, NULL, 100000, "normalizer 1 (Replace): its regular expression"},
        {REGEX("\\\\w+\\\\b\\\\W", ""), NULL, NULL, 1000000,
         "normalizer 1 (Replace): its regular expression"},
        {NULL, NULL, DECODERS(TWELVE(REPLACE("a", EIGHT))), 1,
         "decoder 5 (Replace): expected a text that grows"},
    };
    for (size_t i = 0; i < NUM_COUNT(cases);
         i += SANITIZED || slow_is_quick() ? 3 : 1) { /* each kind of step */
        const hostile *c = &cases[i];
        tokenizer *t = open_parts(BPE, c->normalizer, c->splits, c->decoder);
        token_list ids = {0};
        text_buffer out = {0};
        nib_error err = {0};
        nib_status status = encode(t, "a", c->n, &ids, &err);
        if (status == NIB_OK)
            status = decode(t, &ids, &out, &err);
        if (c->says ? status != NIB_E_MODEL || !strstr(err.message, c->says) : status != NIB_OK)
            fail_msg("case %zu: expected '%s', found status %d '%s'", i, c->says, status, err.message);
        token_list_clear(&ids);
        text_buffer_clear(&out);
        tokenizer_close(t);
    }
}

/* Letters of a text that takes more steps than it may; a sanitizer takes several times the time for each. */
static size_t endless(void) {
    return SANITIZED || slow_is_quick() ? 100000 : 1000000;
}

/* {"type":"Unigram"...} with the tokens a, aa, aaa, ... */
static char *unigram_of(size_t n_token) {
    const size_t cap = n_token * (n_token + 32) + 100;
    char *json = mem_alloc(cap), *at = json;
    at += snprintf(at, cap, "{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"?\",0]");
    for (size_t i = 1; i <= n_token; i++) {
        at += snprintf(at, cap - (size_t)(at - json), ",[\"");
        memset(at, 'a', i);
        at += i;
        at += snprintf(at, cap - (size_t)(at - json), "\",-1]");
    }
    snprintf(at, cap - (size_t)(at - json), "]}}");
    return json;
}

static void test_unigram(void **state) {
    (void)state;
    char *json = unigram_of(3000);
    nib_error err = {0};
    tokenizer *t = NULL;
    token_list ids = {0};
    assert_int_equal(tokenizer_open_json(json, strlen(json), NULL, 0, &t, &err), NIB_OK);
    assert_int_equal(encode(t, "a", 2000, &ids, &err), NIB_OK); /* within the work that any text may take */
    assert_int_equal(ids.n, 1);
    assert_int_equal(encode(t, "a", endless(), &ids, &err), NIB_E_MODEL);
    assert_non_null(strstr(err.message, "the Unigram model: expected at most"));
    token_list_clear(&ids);
    tokenizer_close(t);
    mem_free(json);
}

/* Added tokens ab, aab, aaab, ... `normalized`: each goes through the normalizer when the file is opened. */
static nib_status open_added(size_t n_token, bool normalized, const char *normalizer, tokenizer **out,
                             nib_error *err) {
    const size_t cap = n_token * (n_token + 100) + 1000;
    char *json = mem_alloc(cap), *at = json;
    at += snprintf(at, cap, "{\"model\":%s,\"normalizer\":%s,\"added_tokens\":[", BPE, normalizer);
    for (size_t i = 1; i <= n_token; i++) {
        at += snprintf(at, cap - (size_t)(at - json), "%s{\"id\":%zu,\"normalized\":%s,\"content\":\"",
                       i == 1 ? "" : ",", i + 1, normalized ? "true" : "false");
        memset(at, 'a', i);
        at += i;
        at += snprintf(at, cap - (size_t)(at - json), "b\"}");
    }
    snprintf(at, cap - (size_t)(at - json), "]}");
    nib_status status = tokenizer_open_json(json, strlen(json), NULL, 0, out, err);
    mem_free(json);
    return status;
}

static void test_added(void **state) {
    (void)state;
    nib_error err = {0};
    tokenizer *t = NULL;
    token_list ids = {0};
    assert_int_equal(open_added(3000, false, "null", &t, &err), NIB_OK);
    assert_int_equal(encode(t, "a", endless(), &ids, &err), NIB_E_MODEL);
    assert_non_null(strstr(err.message, "the search for added tokens: expected at most"));
    token_list_clear(&ids);
    tokenizer_close(t);
    assert_int_equal(open_added(1000, true, REGEX("(a+)+[cd]", ""), &t, &err), NIB_E_MODEL);
    assert_non_null(strstr(err.message, "normalizer 1 (Replace): its regular expression"));
}

/* A character map whose trie goes round in a circle, so that every place in the text leads to its end. */
static void test_charsmap(void **state) {
    (void)state;
    enum { N_UNIT = 0x180 };
    static uint32_t units[1 + N_UNIT];
    static int64_t map[4 * (1 + N_UNIT)];
    static const meta_string tokens[] = {{"?", 1}, {"a", 1}, {"</s>", 4}};
    static const double scores[] = {0, -1, -2};
    units[0] = 4 * N_UNIT;
    units[1] = 0x100 << 10;                       /* the root */
    units[1 + (0x100 ^ 'a')] = 'a' | ('a' << 10); /* from where 'a' leads back to it */
    for (size_t i = 0; i < NUM_COUNT(map); i++)
        map[i] = ((const uint8_t *)units)[i];
    const char *path = temp_path("circle.gguf");
    nib_error err = {0};
    logger silent = {0};
    gguf_writer *w;
    container *c;
    tokenizer *t;
    token_list ids = {0};
    assert_int_equal(gguf_writer_open(path, &w, &err), NIB_OK);
    assert_int_equal(gguf_writer_set_string(w, "general.architecture", "t5", 2, &err), NIB_OK);
    assert_int_equal(gguf_writer_set_string(w, "tokenizer.ggml.model", "t5", 2, &err), NIB_OK);
    assert_int_equal(gguf_writer_set_strings(w, "tokenizer.ggml.tokens", tokens, 3, &err), NIB_OK);
    assert_int_equal(gguf_writer_set_floats(w, "tokenizer.ggml.scores", GGUF_F32, scores, 3, &err), NIB_OK);
    assert_int_equal(gguf_writer_set_int(w, "tokenizer.ggml.unknown_token_id", GGUF_I64, 0, &err), NIB_OK);
    assert_int_equal(
        gguf_writer_set_ints(w, "tokenizer.ggml.precompiled_charsmap", GGUF_I32, map, NUM_COUNT(map), &err),
        NIB_OK);
    assert_int_equal(gguf_writer_commit(w, &err), NIB_OK);
    assert_int_equal(container_open(path, &silent, &c, &err), NIB_OK);
    assert_int_equal(tokenizer_open(c, &silent, &t, &err), NIB_OK);
    assert_int_equal(encode(t, "a", 1000000, &ids, &err), NIB_OK);
    assert_int_equal(ids.n, 1000001); /* U+2581 in front is unknown */
    token_list_clear(&ids);
    tokenizer_close(t);
    container_close(c);
}

/* A normalized token is decoded to the text that it matched, also among many. */
static void test_normalized_back(void **state) {
    (void)state;
    nib_error err = {0};
    tokenizer *t = NULL;
    text_buffer out = {0};
    decode_state s = {0};
    assert_int_equal(open_added(500, true, REPLACE("b", "c"), &t, &err), NIB_OK);
    for (int32_t id = 2; id < 502; id += 100) {
        out.n = 0;
        assert_int_equal(tokenizer_decode(t, &s, id, true, &out, &err), NIB_OK);
        const size_t space = id > 2; /* no decoder at all: tokens are words */
        assert_int_equal(out.n, (size_t)id + space);
        assert_int_equal(out.data[out.n - 1], 'c');
    }
    text_buffer_clear(&out);
    tokenizer_close(t);
}

/* A decoder that does not change a text must not write to its memory. */
static void test_decoders_in_turn(void **state) {
    (void)state;
    tokenizer *t = open_parts(BPE, NULL, NULL,
                              DECODERS(REPLACE("a", "\\u4e2d") ",{\"type\":\"ByteLevel\"}," REPLACE(
                                  "\\u4e2d", "\\u4e2d\\u4e2d\\u4e2d\\u4e2d") "," REPLACE("\\u4e2d", "x")));
    token_list ids = {0};
    text_buffer out = {0};
    nib_error err = {0};
    assert_int_equal(encode(t, "a", 1, &ids, &err), NIB_OK);
    assert_int_equal(decode(t, &ids, &out, &err), NIB_OK);
    assert_string_equal(out.data, "xxxx");
    text_buffer_clear(&out);
    token_list_clear(&ids);
    tokenizer_close(t);
}

/* Patterns that no engine matches in linear time, by hand. */
static void test_by_hand(void **state) {
    (void)state;
    static const struct {
        const char *splits, *unit;
        size_t n, expected;
    } cases[] = {
        {SPLIT("(?=(\\\\d{3})+(?!\\\\d))"), "7", 1000000, 333334},
        {SPLIT("(?=(\\\\d{3})+(?!\\\\d))"), "7", 3, 1},
        {SPLIT("(?=(\\\\d{3})+(?!\\\\d))"), "12a1234b", 1, 2},
        {SPLIT("(?=(\\\\d{3})+(?!\\\\d))"), "1234567 12 123456", 1, 5},
        {SPLIT("\\\\s*[\\\\r\\\\n]+"), " ", 1000000, 1},
        {SPLIT("\\\\s*[\\\\r\\\\n]"), "x \n", 1000, 2000},
        {SPLIT("\\\\s+$"), "a ", 1000, 2},
    };
    /* every piece becomes one unknown token */
    static const char model[] = "{\"type\":\"BPE\",\"vocab\":{\"?\":0},\"merges\":[],\"unk_token\":\"?\","
                                "\"fuse_unk\":true}";
    for (size_t i = 0; i < NUM_COUNT(cases); i++) {
        tokenizer *t = open_parts(model, NULL, cases[i].splits, NULL);
        token_list ids = {0};
        nib_error err = {0};
        assert_int_equal(encode(t, cases[i].unit, cases[i].n, &ids, &err), NIB_OK);
        if (ids.n != cases[i].expected)
            fail_msg("case %zu: expected %zu pieces, found %zu", i, cases[i].expected, ids.n);
        token_list_clear(&ids);
        tokenizer_close(t);
    }
}

/* What the published kinds do to long texts of one sort is allowed. U+FDFA grows as far as any character. */
static void test_published(void **state) {
    (void)state;
    static const char *const names[] = {"gpt-4o",          "deepseek3", "deepseek-coder", "qwen2-nfc",
                                        "groups-of-three", "falcon",    "nfkc-lower",     "unigram",
                                        "unigram-bytes",   "llama-like"};
    static const char *const units[] = {"a",  "A", " ", "7", "\n", "\x01", "\xF0\x9F\xA6\x99", "\xEF\xB7\xBA",
                                        "aB "};
    for (size_t i = 0; i < NUM_COUNT(names); i++) {
        char path[128], *json;
        size_t n;
        nib_error err = {0};
        tokenizer *t = NULL;
        snprintf(path, sizeof path, "tests/data/tokenizer-json/%s.json", names[i]);
        assert_int_equal(file_read_all(path, 1 << 24, &json, &n, &err), NIB_OK);
        assert_int_equal(tokenizer_open_json(json, n, NULL, 0, &t, &err), NIB_OK);
        for (size_t u = 0; u < NUM_COUNT(units); u++) {
            token_list ids = {0};
            if (encode(t, units[u], SANITIZED || slow_is_quick() ? 20000 : 100000, &ids, &err) != NIB_OK)
                fail_msg("%s, '%s': %s", names[i], units[u], err.message);
            token_list_clear(&ids);
        }
        tokenizer_close(t);
        mem_free(json);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hostile),         cmocka_unit_test(test_unigram),
        cmocka_unit_test(test_added),           cmocka_unit_test(test_charsmap),
        cmocka_unit_test(test_normalized_back), cmocka_unit_test(test_decoders_in_turn),
        cmocka_unit_test(test_by_hand),         cmocka_unit_test(test_published),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
