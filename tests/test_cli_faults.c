/* Faults in whole runs of the command: the n-th allocation of the process (also of its libraries), the n-th
 * read, the n-th read in flight, the n-th write. A run that ends with exit 0, or a reply with status 200, has
 * the answer of a run without a fault; nothing crashes or hangs. Each run is a fork of this program, which
 * contains the command. NIBBLE_FAULTS: how many faults at least (`make faults`: 15,000). */
#include "base/file.h"
#include "base/num.h"
#include "faults/run.h"
#include "server/web.h"
#include "support/sanitized.h"
#include "support/tempdir.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char model[1024], requests[1024], gguf[1024];

static const run_case cases[] = {
    {.name = "run",
     .args = {"run", model, "Why \"so\"?", "-n", "8", "--temp", "0", "--ignore-eos", "-t", "2"}},
    {.name = "run --json-schema",
     .args = {"run", model, "Why?", "-n", "24", "--temp", "0", "-t", "1", "--json-schema",
              "{\"properties\":{\"a\":{\"enum\":[1,\"b\"]}},\"required\":[\"a\"],"
              "\"additionalProperties\":false}"}},
    {.name = "tokenize", .args = {"tokenize", model, "some words"}},
    {.name = "quantize",
     .args = {"quantize", gguf, "-o", "out.gguf", "--type", "q4_0", "--imatrix", "none"},
     .made = "out.gguf"},
    {.name = "batch",
     .args = {"batch", model, "-i", requests, "-o", "out.jsonl", "-t", "1"},
     .made = "out.jsonl",
     .ids = {"\"custom_id\":\"a\"", "\"custom_id\":\"b\""}},
    {.name = "serve", .args = {"serve", model, "--port", "0", "-t", "1", "--parallel", "2"}, .serves = true},
};
static const char *const kinds[N_FAULT] = {[FAULT_ALLOC] = "allocation by mem.h",
                                           [FAULT_READ] = "read",
                                           [FAULT_WRITE] = "write",
                                           [FAULT_RING] = "ring",
                                           [FAULT_DONE] = "read in flight",
                                           [FAULT_SHORT] = "short read in flight",
                                           [FAULT_MALLOC] = "allocation of the process"};

/* ---- files ---- */

static void copy(const char *name, const char *from, const char *folder) {
    char path[1200];
    char *text;
    size_t n;
    snprintf(path, sizeof path, "%s/%s", from, name);
    assert_int_equal(file_read_all(path, 64 << 20, &text, &n, NULL), NIB_OK);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(file_write_all(path, text, n, NULL), NIB_OK);
    mem_free(text);
}

/* A tokenizer whose tokens are the bytes, as GPT-2 spells them. */
static void write_tokenizer(const char *folder) {
    static char text[16 << 10];
    char *p = text;
    p += sprintf(p,
                 "{\"added_tokens\":[],\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                 "\"trim_offsets\":true,\"use_regex\":true},\"decoder\":{\"type\":\"ByteLevel\","
                 "\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true},"
                 "\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{");
    for (int b = 0, other = 256; b < 256; b++) {
        const bool shown = (b > 32 && b < 127) || (b > 160 && b != 173);
        p += sprintf(p, "%s\"\\u%04x\":%d", b ? "," : "", shown ? b : other++, b);
    }
    sprintf(p, "}}}");
    char path[1200];
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    assert_int_equal(file_write_all(path, text, strlen(text), NULL), NIB_OK);
}

static void write_files(void) {
    static const char chat[] = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
    static const char lines[] =
        "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/chat/completions\",\"body\":{\"messages\":"
        "[{\"role\":\"user\",\"content\":\"Why \\\"so\\\"?\"}],\"max_tokens\":3,\"temperature\":0}}\n"
        "{\"custom_id\":\"b\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":"
        "\"\\u00e9t\\u00e9\",\"max_tokens\":3,\"temperature\":0,\"logprobs\":1}}\n";
    char path[1200];
    assert_non_null(realpath("tests/data/arch-gguf/gemma3.gguf", gguf));
    snprintf(requests, sizeof requests, "%s", temp_file("requests.jsonl", lines, sizeof lines - 1));
    snprintf(model, sizeof model, "%s", temp_path("model"));
    assert_true(mkdir(model, 0700) == 0 || access(model, W_OK) == 0);
    copy("config.json", "tests/data/arch/llama", model);
    copy("model.safetensors", "tests/data/arch/llama", model);
    write_tokenizer(model);
    snprintf(path, sizeof path, "%s/chat_template.jinja", model);
    assert_int_equal(file_write_all(path, chat, sizeof chat - 1, NULL), NIB_OK);
}

/* ---- runs ---- */

enum { AT_ONCE = 4 };

static run_result *expected, *found;
static char folder[1024];
static int64_t n_fault, n_survived;

static bool same_part(const run_result *a, const run_result *b, int i) {
    return a->n_byte[i] == b->n_byte[i] && !memcmp(a->text + a->part[i], b->text + b->part[i], a->n_byte[i]);
}

/* Whether all that is there of an answer is right. An answer of the command with exit 0 is all there. Lost
 * memory is not wrong usage. */
static bool is_right(const run_case *c, int kind, const run_result *r) {
    const bool memory = kind == FAULT_ALLOC || kind == FAULT_MALLOC;
    if (r->whole && memory && r->code == nib_status_exit_code(NIB_E_USAGE))
        return false;
    for (int i = 0; i < r->n_part; i++)
        if (c->serves ? r->n_byte[i] != SIZE_MAX && !same_part(r, expected, i)
                      : r->code == 0 && !same_part(r, expected, i))
            return false;
    return r->whole;
}

static void show(const run_case *c, int kind, int64_t nth, int slot, const run_result *r) {
    fprintf(stderr, "%s, fault %lld of kind '%s' (%s/%d): %s %d\n", c->name, (long long)nth, kinds[kind],
            folder, slot, r->whole ? "exit" : "ended by", r->code);
    for (int i = 0; i < r->n_part && r->whole; i++)
        if (r->n_byte[i] == SIZE_MAX)
            fprintf(stderr, " answer %d is missing\n", i);
        else if (!same_part(r, expected, i))
            fprintf(stderr, " expected %.*s\n found    %.*s\n", (int)NUM_MIN(expected->n_byte[i], 1500),
                    expected->text + expected->part[i], (int)NUM_MIN(r->n_byte[i], 1500),
                    r->text + r->part[i]);
}

/* Tries every step-th fault of a kind, beginning at `from`; how many were wrong. */
static int sweep(const run_case *c, int kind, int64_t from, int64_t step, int64_t n_call) {
    int n_wrong = 0;
    for (int64_t at = from; at <= n_call; at += AT_ONCE * step) {
        int64_t nth[AT_ONCE];
        int n = 0;
        for (; n < AT_ONCE && at + n * step <= n_call; n++)
            nth[n] = at + n * step;
        run_with_faults(c, folder, (fault_kind)kind, nth, n, found);
        for (int i = 0; i < n; i++) {
            n_fault++;
            n_survived += found[i].whole && found[i].code == 0;
            if (is_right(c, kind, &found[i]))
                continue;
            n_wrong++;
            show(c, kind, nth[i], i, &found[i]);
        }
    }
    return n_wrong;
}

/* The calls of a kind in a run without a fault, whose answer is kept. */
static int64_t calls_of(const run_case *c, int kind) {
    const int64_t none = 0;
    run_with_faults(c, folder, (fault_kind)kind, &none, 1, expected);
    if (!expected->whole || expected->code)
        fail_msg("%s without a fault: exit %d (%s/0)", c->name, expected->code, folder);
    for (int i = 0; i < expected->n_part; i++)
        if (expected->n_byte[i] == SIZE_MAX)
            fail_msg("%s without a fault: answer %d is missing", c->name, i);
    return expected->n_call;
}

static int64_t wanted(void) {
    const char *text = getenv("NIBBLE_FAULTS");
    return text ? atoll(text) : SANITIZED ? 60 : 400;
}

static void no_fault_changes_an_answer(void **state) {
    (void)state;
    int64_t calls[NUM_COUNT(cases)][N_FAULT], all = 0;
    int n_wrong = 0;
    const char *only = getenv("NIBBLE_FAULTS_OF");
    for (size_t i = 0; i < NUM_COUNT(cases); i++)
        for (int k = 0; k < N_FAULT; k++)
            all += calls[i][k] = only && strcmp(only, cases[i].name) ? 0 : calls_of(&cases[i], k);
    const int64_t step = NUM_MAX(all / wanted(), 1);
    for (size_t i = 0; i < NUM_COUNT(cases); i++)
        for (int k = 0; k < N_FAULT; k++) {
            if (!calls[i][k])
                continue;
            calls_of(&cases[i], k);
            print_message("%s, '%s': %lld calls\n", cases[i].name, kinds[k], (long long)calls[i][k]);
            n_wrong += sweep(&cases[i], k, 1 + (int64_t)i % step, step, calls[i][k]);
        }
    print_message("%lld faults; %lld runs ended with exit 0\n", (long long)n_fault, (long long)n_survived);
    assert_int_equal(n_wrong, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_fault_changes_an_answer)};
    nib_error err;
    if (web_load(&err)) {
        puts("skipped: no libmicrohttpd");
        return 77;
    }
    expected = run_results(1);
    found = run_results(AT_ONCE);
    snprintf(folder, sizeof folder, "%s", temp_path("runs"));
    mkdir(folder, 0700);
    setenv("HOME", folder, 1); /* nothing is learned from run to run, or known from elsewhere */
    setenv("XDG_CACHE_HOME", folder, 1);
    setenv("XDG_DATA_HOME", folder, 1);
    setenv("NIBBLE_MODELS", folder, 1);
    write_files();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
