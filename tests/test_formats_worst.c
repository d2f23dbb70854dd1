/* The worst documents that fit the size caps: each ends within the limits below, opened or refused with exit
 * code 4. A child process opens each, so that its time and memory are its own. */
#include "base/num.h"
#include "nib.h"
#include "support/slow.h"
#include "support/tempdir.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* The promise is 10 s by the clock on any machine; half of it in processor time. A sanitizer takes several
 * times the time, and more memory for red zones, shadow and quarantined blocks; documents of a sixth show it
 * as much. */
#if SANITIZED
enum { MAX_SECONDS = 30, MAX_MIB = 1200 };
#else
enum { MAX_SECONDS = 5, MAX_MIB = 200 };
#endif

/* Documents are so many times smaller. */
static size_t smaller(void) {
    return SANITIZED ? 6 : slow_is_quick() ? 5 : 1;
}

enum { EXIT_OTHER = 200 };

static nib_status open_it(const char *path, nib_error *err) {
    nib_engine_options o;
    nib_engine *e = NULL;
    nib_engine_options_init(&o);
    o.vocab_only = true;
    nib_status status = nib_engine_open(path, &o, &e, err);
    nib_engine_close(e);
    return status;
}

static void child(const char *path) {
    nib_error err = {NIB_OK, ""};
    struct rlimit seconds = {3 * MAX_SECONDS, 3 * MAX_SECONDS}, none = {0, 0};
    setrlimit(RLIMIT_CPU, &seconds);
    setrlimit(RLIMIT_CORE, &none);
    if (!SANITIZED) { /* a sanitizer reserves terabytes of addresses */
        struct rlimit bytes = {(rlim_t)2 * MAX_MIB << 20, (rlim_t)2 * MAX_MIB << 20};
        setrlimit(RLIMIT_AS, &bytes);
    }
    nib_status status = open_it(path, &err);
    if (status != NIB_OK && !err.message[0])
        _exit(EXIT_OTHER);
    if (getenv("NIBBLE_WORST_SHOW"))
        fprintf(stderr, "    %.150s\n", err.message);
    _exit(nib_status_exit_code(status));
}

static void check(const char *what, const char *path) {
    struct rusage before, used;
    int how;
    getrusage(RUSAGE_SELF, &before);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        child(path);
    assert_int_equal(wait4(pid, &how, 0, &used), pid);
    double seconds = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
                     (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
    long mib = used.ru_maxrss >> 10;
    if (getenv("NIBBLE_WORST_SHOW"))
        fprintf(stderr, "%-24s %5.2f s %5ld MiB, ends with %d\n", what, seconds, mib, how);
    if (!WIFEXITED(how))
        fail_msg("%s: ended by signal %d", what, WTERMSIG(how));
    if (WEXITSTATUS(how) != 0 && WEXITSTATUS(how) != 4)
        fail_msg("%s: exit code %d", what, WEXITSTATUS(how));
    if (seconds > MAX_SECONDS || mib > MAX_MIB)
        fail_msg("%s: %.2f s of at most %d, %ld MiB of at most %d", what, seconds, MAX_SECONDS, mib, MAX_MIB);
}

/* ---- JSON ---- */

typedef struct json_bomb {
    const char *what, *open, *unit,
        *close;  /* unit: repeated as often as fits, separated by commas; %d counts */
    size_t n[2]; /* sizes to try: mostly about the largest that is not refused */
} json_bomb;

#define TEN(x)   x x x x x x x x x x
#define SIXTY(x) TEN(x) TEN(x) TEN(x) TEN(x) TEN(x) TEN(x)
#define KIB      (1 << 10)
#define MIB      (1 << 20)

static const json_bomb any[] = {
    {"objects", "{\"a\":[", "{}", "]}", {740 * KIB, 16 * MIB}},
    {"arrays", "{\"a\":[", "[]", "]}", {1150 * KIB}},
    {"numbers", "{\"a\":[", "1", "]}", {2300 * KIB}},
    {"wide numbers", "{\"a\":[", "99999999999999999999", "]}", {16 * MIB}},
    {"many digits", "{\"a\":1", "1111111111111111111", "}", {16 * MIB}},
    {"nulls", "{\"a\":[", "null", "]}", {13 * MIB}},
    {"strings", "{\"a\":[", "\"\"", "]}", {1600 * KIB}},
    {"a long string", "{\"a\":\"", "abcdefghij", "\"}", {16000 * KIB}},
    {"escapes", "{\"a\":\"", "\\u0041\\n", "\"}", {16000 * KIB}},
    {"keys", "{", "\"%x\":0", "}", {3400 * KIB}},
    {"keys of objects", "{", "\"%x\":{\"a\":{}}", "}", {1500 * KIB}},
    {"one key", "{", "\"a\":0", "}", {2 * MIB}},
    {"deep", "{\"a\":" SIXTY("["), "[[1]]", SIXTY("]") "}", {1 * MIB}},
    {"too deep", "{\"a\":", "[[[[[[[[[[[[[[[[", "}", {16 * MIB}},
    {"never closed", "{\"a\":[", "{\"b\":0},{", "", {600 * KIB}},
    {"deep objects", SIXTY("{\"a\":") "{", "\"%x\":{}", "}" SIXTY("}"), {1500 * KIB}},
    {"long names", "{\"" TEN(TEN(TEN("a"))) "\":{", "\"%x\":0", "}}", {3400 * KIB}},
    {"quotes", "{\"a\":[", "\"\\\"\"", "]}", {2 * MIB}},
    {"zeros", "{\"a\":[", "0.0e0", "]}", {5 * MIB}},
};

/* Fills out[0..n) with the bomb and spaces; the long string has no commas. */
static void write_bomb(const json_bomb *b, char *out, size_t n) {
    size_t at = strlen(b->open), n_close = strlen(b->close);
    memcpy(out, b->open, at);
    char unit[128];
    int n_unit = snprintf(unit, sizeof unit, b->unit, 0, 0, 0);
    for (int i = 0;; i++) {
        if (i && strchr(b->unit, '%'))
            n_unit = snprintf(unit, sizeof unit, b->unit, i, i, i);
        if (at + (size_t)n_unit + 1 + n_close > n)
            break;
        const char *last = b->open + strlen(b->open) - 1;
        if (i && *last != '"' && *last != '1')
            out[at++] = ',';
        memcpy(out + at, unit, (size_t)n_unit);
        at += (size_t)n_unit;
    }
    memcpy(out + at, b->close, n_close);
    memset(out + at + n_close, ' ', n - at - n_close);
}

static char *make_bomb(const json_bomb *b, size_t n) {
    char *text = malloc(n);
    assert_non_null(text);
    write_bomb(b, text, n);
    return text;
}

static const char no_tensors[] = "\2\0\0\0\0\0\0\0{}";

/* A folder with one file replaced. */
static const char *folder_with(const char *name, const char *text, size_t n) {
    const char *folder = temp_path("model");
    mkdir(folder, 0700);
    unlink(temp_path("model/model.safetensors"));
    temp_file("model/config.json", "{}", 2);
    temp_file("model/tokenizer.json", "{}", 2);
    if (strcmp(name, "model.safetensors.index.json"))
        temp_file("model/model.safetensors", no_tensors, sizeof no_tensors - 1);
    char inside[300];
    snprintf(inside, sizeof inside, "model/%s", name);
    temp_file(inside, text, n);
    return folder;
}

static void check_folder(const json_bomb *b, const char *name, size_t n) {
    char what[128];
    char *text = make_bomb(b, n);
    const char *folder = folder_with(name, text, n);
    free(text);
    snprintf(what, sizeof what, "%s: %s", name, b->what);
    check(what, folder);
    char inside[300];
    snprintf(inside, sizeof inside, "model/%s", name);
    unlink(temp_path(inside));
}

static void check_header(const json_bomb *b, size_t n) {
    char what[128];
    char *file = malloc(n + 8);
    assert_non_null(file);
    uint64_t length = n;
    memcpy(file, &length, 8);
    write_bomb(b, file + 8, n);
    const char *path = temp_file("worst.safetensors", file, n + 8);
    free(file);
    snprintf(what, sizeof what, "header: %s", b->what);
    check(what, path);
}

static void check_sizes(const json_bomb *b, const char *name) {
    for (size_t k = 0; k < NUM_COUNT(b->n); k++) {
        const size_t n = b->n[k] / smaller();
        if (!n)
            continue;
        if (name)
            check_folder(b, name, n);
        else
            check_header(b, n);
    }
}

static void any_json(void **state) {
    (void)state;
    for (size_t i = 0; i < NUM_COUNT(any); i += SANITIZED ? 3 : 1) { /* a sanitizer sees each parser */
        check_sizes(&any[i], NULL);
        if (any[i].n[0] > 800 * KIB && any[i].n[0] < 4 * MIB) /* a configuration may have 4 MiB */
            check_sizes(&any[i], "config.json");
    }
}

static void headers(void **state) {
    (void)state;
    static const json_bomb bombs[] = {
        {"tensors",
         "{",
         "\"%d\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}",
         "}",
         {2700 * KIB, 16 * MIB}},
        {"tensors in one place",
         "{",
         "\"t%d\":{\"dtype\":\"F16\",\"shape\":[],\"data_offsets\":[0,2]}",
         "}",
         {3 * MIB}},
        {"dimensions",
         "{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,0],\"shape\":[",
         "0",
         "]}}",
         {2300 * KIB}},
    };
    for (size_t i = 0; i < NUM_COUNT(bombs); i++)
        check_sizes(&bombs[i], NULL);
    static const json_bomb maps[] = {
        {"shards", "{\"weight_map\":{", "\"%d\":\"%d.safetensors\"", "}}", {7 * MIB, 16 * MIB}},
        {"one shard", "{\"weight_map\":{", "\"%d\":\"model.safetensors\"", "}}", {7 * MIB}},
    };
    for (size_t i = 0; i < NUM_COUNT(maps); i++)
        check_sizes(&maps[i], "model.safetensors.index.json");
}

#define BPE "{\"model\":{\"type\":\"BPE\","

static void tokenizers(void **state) {
    (void)state;
    static const json_bomb bombs[] = {
        {"vocabulary", BPE "\"merges\":[],\"vocab\":{", "\"%x\":%d", "}}}", {16 * MIB}},
        {"ids", BPE "\"merges\":[],\"vocab\":{\"a\":1048574,", "\"z%x\":%d", "}}}", {15 * MIB}},
        {"merges", BPE "\"vocab\":{\"a\":0,\"aa\":1},\"merges\":[", "\"a a\"", "]}}", {12 * MIB}},
        {"pairs", BPE "\"vocab\":{\"a\":0,\"aa\":1},\"merges\":[", "[\"a\",\"a\"]", "]}}", {20 * MIB}},
        {"unigram",
         "{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[",
         "[\"%x\",0]",
         "]}}",
         {11500 * KIB}},
        {"alike",
         "{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[",
         "[\"" TEN("aaaaa") "%d\",0]",
         "]}}",
         {60 * MIB}},
        {"added",
         BPE "\"merges\":[],\"vocab\":{}},\"added_tokens\":[",
         "{\"id\":%d,\"content\":\"%x\"}",
         "]}",
         {3 * MIB}},
        {"models", "{", "\"model\":{\"vocab\":{},\"merges\":[]}", "}", {MIB}},
        {"members", "{", "\"a\":0", "}", {16 * MIB}},
        {"pre-tokenizers",
         BPE "\"merges\":[],\"vocab\":{\"a\":0}},\"pre_tokenizer\":{\"type\":\"Sequence\","
             "\"pretokenizers\":[",
         "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\p{L}+%d\"},\"behavior\":\"Isolated\"}",
         "]}}",
         {3 * MIB}},
        {"a long string", "{\"a\":\"", "abcdefghij", "\"}", {15 * MIB}},
        {"a long key", "{\"", "abcdefghij", "\":0}", {64 * MIB}},
        {"escapes in a key", "{\"", "\\u00e9\\n", "\":0}", {30 * MIB}},
        {"a long token", BPE "\"merges\":[],\"vocab\":{\"", "abcdefghij", "\":0}}}", {60 * MIB}},
    };
    for (size_t i = 0; i < NUM_COUNT(bombs); i += SANITIZED ? 2 : 1)
        check_sizes(&bombs[i], "tokenizer.json");
}

/* The longest pattern of a step, in the maximum number of steps. */
static void patterns(void **state) {
    (void)state;
    static const char *const units[] = {"\\\\p{L}",        "(?:a|b)*", "[^\\\\s\\\\p{L}]",
                                        "(a{1,50}){1,50}", "(?=a)",    "a?"};
    for (size_t i = 0; i < NUM_COUNT(units); i++)
        for (size_t max = 600; max<16000; max *= smaller()> 1 ? 25 : 5) {
            enum { STEPS = 16 };
            char *text = malloc(STEPS * (2 * max + 200) + 1000), *at = text;
            assert_non_null(text);
            at += sprintf(at, "{\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{\"a\":0}},"
                              "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[");
            for (int s = 0; s < STEPS; s++) {
                at += sprintf(at, "%s{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{\"Regex\":\"",
                              s ? "," : "");
                for (size_t n = 0; n + strlen(units[i]) < max; n += strlen(units[i]))
                    at += sprintf(at, "%s", units[i]);
                at += sprintf(at, "\"}}");
            }
            at += sprintf(at, "]}}");
            check(units[i], folder_with("tokenizer.json", text, (size_t)(at - text)));
            free(text);
        }
}

/* ---- GGUF ---- */

typedef struct gguf_bomb {
    const char *what;
    uint64_t n_tensor, n_key;
    const char *unit; /* repeated to the end of the header; a '#' counts in 4 bytes */
    size_t n_unit;
    uint32_t array_type; /* not 0: one key "a", an array of that type and this many elements */
    uint64_t n_element;
} gguf_bomb;

#define UNIT(bytes) bytes, sizeof bytes - 1
#define U64(c)      c "\0\0\0\0\0\0\0"
#define U32(c)      c "\0\0\0"

static void check_gguf(const gguf_bomb *b, size_t n) {
    uint8_t *file = malloc(n);
    size_t at = 0;
    assert_non_null(file);
    const uint32_t head[2] = {0x46554747, 3};
    const uint64_t counts[2] = {b->n_tensor, b->n_key};
    memcpy(file, head, 8);
    memcpy(file + 8, counts, 16);
    at = 24;
    if (b->array_type) {
        const struct {
            uint64_t n_name;
            char name[4];
        } key = {1, "a"};
        memcpy(file + at, &key, 9);
        const uint32_t type[2] = {9, b->array_type};
        memcpy(file + at + 9, type, 8);
        memcpy(file + at + 17, &b->n_element, 8);
        at += 25;
    }
    for (uint32_t i = 0; at + b->n_unit <= n; i++, at += b->n_unit) {
        memcpy(file + at, b->unit, b->n_unit);
        char *count = memchr(file + at, '#', b->n_unit);
        for (int k = 0; count && k < 4; k++)
            count[k] = (char)('0' + (i >> 6 * k) % 64);
    }
    memset(file + at, 0, n - at);
    const char *path = temp_file("worst.gguf", file, n);
    free(file);
    check(b->what, path);
}

static void gguf_headers(void **state) {
    (void)state;
    const gguf_bomb bombs[] = {
        {"gguf: bytes", 0, 1, UNIT("\1"), 1, (64 << 20) - 100},
        {"gguf: 4M bytes", 0, 1, UNIT("\1"), 1, 1 << 22},
        {"gguf: strings", 0, 1, UNIT(U64("\0")), 8, (64 << 17) - 100},
        {"gguf: 4M strings", 0, 1, UNIT(U64("\0")), 8, 1 << 22},
        {"gguf: arrays in arrays", 0, 1, UNIT(U32("\0") U64("\0")), 9, 5 << 20},
        {"gguf: keys", 0, 1 << 20, UNIT(U64("\4") "####" U32("\0") "\1"), 0, 0},
        {"gguf: 64K keys", 0, 1 << 16, UNIT(U64("\4") "####" U32("\0") "\1"), 0, 0},
        {"gguf: small arrays", 0, 1 << 16, UNIT(U64("\4") "####" U32("\11") U32("\0") U64("\1") "\1"), 0, 0},
        {"gguf: left out", 0, 1 << 16, UNIT(U64("\4") "####" U32("\11") U32("\11") U64("\0")), 0, 0},
        {"gguf: tensors", 1 << 19, 0, UNIT(U64("\4") "####" U32("\1") U64("\1") U32("\0") U64("\0")), 0, 0},
        {"gguf: empty tensors", 1 << 19, 0, UNIT(U64("\4") "####" U32("\1") U64("\0") U32("\0") U64("\0")), 0,
         0},
    };
    for (size_t i = 0; i < NUM_COUNT(bombs); i += SANITIZED ? 2 : 1)
        check_gguf(&bombs[i], bombs[i].array_type && !slow_is_quick() ? 64 * MIB : 20 * MIB / smaller());
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_json), cmocka_unit_test(headers),      cmocka_unit_test(tokenizers),
        cmocka_unit_test(patterns), cmocka_unit_test(gguf_headers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
