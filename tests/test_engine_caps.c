/* A cap is kept in every case: runs of many kinds of models under many caps, answered or refused, never
 * exceed the cap, and the cap that a refusal names works. Each run is a process of the command itself, so
 * that everything it has counts. */
#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"
#include "hub/find.h"
#include "support/slow.h"
#include "support/tempdir.h"
#include "support/tinyfolder.h"
#include "support/tinymodel.h"
#include "support/vocabulary.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define KIB UINT64_C(1024)
#define MIB (1024 * KIB)

typedef struct outcome {
    int code;
    uint64_t peak; /* peak of resident bytes */
    char said[4096];
} outcome;

static const char *nibble(void) {
    const char *path = getenv("NIBBLE");
    return path ? path : "build/nibble";
}

static void become(const char *const *args, const char *err) {
    if (!freopen(err, "w", stderr) || !freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "r", stdin))
        _exit(126);
    execv(nibble(), (char *const *)(uintptr_t)args);
    _exit(127);
}

static outcome run(const char *const *args) {
    static char err[1024];
    outcome out = {0};
    struct rusage used;
    int how;
    if (!err[0])
        snprintf(err, sizeof err, "%s", temp_path("err"));
    fflush(NULL);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        become(args, err);
    assert_int_equal(wait4(pid, &how, 0, &used), pid);
    assert_true(WIFEXITED(how));
    out.code = WEXITSTATUS(how);
    out.peak = (uint64_t)used.ru_maxrss * KIB;
    FILE *f = fopen(err, "r");
    assert_non_null(f);
    out.said[fread(out.said, 1, sizeof out.said - 1, f)] = 0;
    fclose(f);
    return out;
}

static outcome run_capped(const char *model, uint64_t cap, const char *const *more) {
    char size[32];
    const char *args[24] = {"nibble", "run", model, "--ram",  size, "--tokens",
                            "1,2,3",  "-n",  "2",   "--temp", "0",  "--ignore-eos"};
    snprintf(size, sizeof size, "%lluK", (unsigned long long)(cap / KIB));
    for (size_t n = 12; more && *more; more++)
        args[n++] = *more;
    const outcome out = run(args);
    if (out.code != 0 && out.code != 3)
        fail_msg("%s, %s: exit code %d: %s", model, size, out.code, out.said);
    if (out.peak > cap)
        fail_msg("%s, %s: %llu KiB resident, exit code %d: %s", model, size,
                 (unsigned long long)(out.peak / KIB), out.code, out.said);
    return out;
}

/* "...; 18.2 MiB is the smallest that works": 0 where none is named. */
static uint64_t named(const outcome *o) {
    const char *end = strstr(o->said, " is the smallest that works"), *begin = end;
    char size[32];
    uint64_t bytes = 0;
    if (!end)
        return 0;
    while (begin > o->said && begin[-1] != ';')
        begin--;
    snprintf(size, sizeof size, "%.*s", (int)(end - begin - 1), begin + 1);
    if (!num_parse_size(size, &bytes))
        fail_msg("no size in \"%s\"", o->said);
    return bytes;
}

/* The named cap works; *min is the smallest of the named caps. */
static void check_refusal(const char *model, const outcome *o, const char *const *more, uint64_t *min) {
    const uint64_t cap = named(o);
    if (!cap)
        fail_msg("%s: no cap is named: %s", model, o->said);
    *min = NUM_MIN(*min, cap);
    const outcome again = run_capped(model, cap, more);
    if (again.code)
        fail_msg("%s: %s\nbut with that cap: %s", model, o->said, again.said);
}

/* The process's memory before it reads a model: no smaller cap can be kept. */
static uint64_t floor_bytes(void) {
    static const char *const args[] = {"nibble", "run", "/nonexistent", "--ram", "1G", NULL};
    return run(args).peak;
}

enum { N_CAP = 7, NAMED_FROM = 3 }; /* MiB above the floor: headers fit, so a cap is named */
/* The variation of a refused run's resident memory: some 500 KiB with many threads. */
#define VARIES (768 * KIB)

static void try_model(const char *path, const char *const *more, uint64_t *state) {
    char model[1024]; /* a temporary path lasts for eight others */
    snprintf(model, sizeof model, "%s", path);
    const uint64_t start = floor_bytes();
    uint64_t min = 4096 * MIB;
    int n_refused = 0;
    /* first from below, to find where refusals end */
    outcome o = run_capped(model, start + NAMED_FROM * MIB, more);
    if (o.code == 3)
        check_refusal(model, &o, more, &min);
    const uint64_t max = o.code == 3 ? min + 4 * MIB : start + 16 * MIB;
    const uint64_t min_cap = (o.code == 3 ? NUM_MAX(start, o.peak) : start) + VARIES; /* can be kept */
    for (int i = 0; i < N_CAP; i++) {
        *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        const uint64_t part = (max - min_cap) / N_CAP; /* one cap in each */
        const uint64_t cap = min_cap + (uint64_t)i * part + (*state >> 33) % part;
        o = run_capped(model, cap, more);
        n_refused += o.code == 3;
        if (o.code == 3 && cap >= start + NAMED_FROM * MIB)
            check_refusal(model, &o, more, &min);
        assert_true(o.code == 0 || cap < min); /* the cap was not larger than needed */
    }
    assert_true(n_refused > 0);
}

static void synthetic(void **state) {
    (void)state;
    static const tiny_shape shapes[] = {{TYPE_Q8_0, 3, 256, 640, 8, 2, 513, 128, false},
                                        {TYPE_Q4_0, 12, 256, 768, 8, 8, 4097, 512, true},
                                        {TYPE_F16, 2, 128, 256, 4, 4, 40001, 2048, true},
                                        {TYPE_Q8_0, 24, 64, 128, 4, 1, 60001, 4096, true}};
    static const char *const whole[] = {"--no-stream", NULL}, *const targets[] = {"--quality", "high", NULL},
                             *const context[] = {"-c", "100", "-b", "32", NULL};
    static const char *const *const more[] = {NULL, whole, context, targets};
    uint64_t seed = 20;
    for (size_t i = 0; i < NUM_COUNT(shapes); i++) {
        char name[32];
        snprintf(name, sizeof name, "words%zu.gguf", i);
        try_model(tiny_model_with_words(name, &shapes[i]), NULL, &seed);
        snprintf(name, sizeof name, "bare%zu.gguf", i);
        try_model(tiny_model(name, &shapes[i]), more[i % NUM_COUNT(more)], &seed);
    }
}

static void folders(void **state) {
    (void)state;
    uint64_t seed = 30;
    for (int kind = VOCABULARY_MERGES; kind <= VOCABULARY_SCORES; kind++) {
        const char *model = tiny_folder_mistral(64);
        size_t n_byte;
        char name[256], *text = vocabulary_json((vocabulary_kind)kind, 25000, &n_byte);
        snprintf(name, sizeof name, "%.200s/tokenizer.json", strrchr(model, '/') + 1);
        temp_file(name, text, n_byte);
        mem_free(text);
        try_model(model, NULL, &seed);
    }
}

/* A plan that is followed: the rows of a prompt are reduced in favour of its resident pages. */
static void plans(void **state) {
    (void)state;
    static const tiny_shape shape = {TYPE_Q8_0, 8, 256, 1024, 8, 2, 8001, 512, true};
    char model[1024], path[1024];
    uint64_t seed = 50;
    snprintf(model, sizeof model, "%s", tiny_model_with_words("planned.gguf", &shape));
    snprintf(path, sizeof path, "%s", temp_path("plan.json"));
    const char *const make[] = {"nibble", "plan", model, "--ram", "18M", "-c",
                                "256",    "-t",   "2",   "-o",    path,  NULL};
    const char *const follow[] = {"--plan", path, "-t", "2", NULL};
    assert_int_equal(run(make).code, 0);
    try_model(model, follow, &seed);
}

/* Memory of each thread exceeds the model: staging, scratch, the sketch's reads. */
static void many_threads(void **state) {
    (void)state;
    static const tiny_shape shapes[] = {{TYPE_Q8_0, 3, 256, 640, 8, 2, 513, 128, false},
                                        {TYPE_Q8_0, 8, 256, 1024, 8, 2, 8001, 512, true}};
    static const char *const alone[] = {"-t", "100", NULL};
    char model[1024], path[1024];
    uint64_t seed = 60;
    try_model(tiny_model("threads.gguf", &shapes[0]), alone, &seed);
    if (slow_is_quick())
        return;
    snprintf(model, sizeof model, "%s", tiny_model_with_words("planned-threads.gguf", &shapes[1]));
    snprintf(path, sizeof path, "%s", temp_path("plan-threads.json"));
    const char *const make[] = {"nibble", "plan", model, "--ram", "120M", "-c",
                                "256",    "-t",   "100", "-o",    path,   NULL};
    const char *const follow[] = {"--plan", path, "-t", "100", NULL};
    assert_int_equal(run(make).code, 0);
    try_model(model, follow, &seed);
}

/* Commands with several sequences: what they keep beside the engine counts in the named cap. */
static void several(void **state) {
    (void)state;
    static const tiny_shape shape = {TYPE_Q8_0, 12, 256, 768, 8, 8, 4097, 2048, true};
    static const char lines[] = "{\"custom_id\": \"a\", \"method\": \"POST\", \"url\": "
                                "\"/v1/completions\", \"body\": {\"prompt\": \"t1\", \"max_tokens\": 2}}\n";
    static const char *const kinds[] = {"f16", "kv8", "kv4"}, *const contexts[] = {"256", "2048"};
    char model[1024], in[1024], out[1024], cap[32];
    snprintf(model, sizeof model, "%s", tiny_model_with_words("several.gguf", &shape));
    snprintf(in, sizeof in, "%s", temp_file("several.jsonl", lines, sizeof lines - 1));
    snprintf(out, sizeof out, "%s", temp_path("several.out"));
    for (size_t i = 0; i < NUM_COUNT(kinds) * NUM_COUNT(contexts) * 2; i++) {
        const char *kv = kinds[i / 4], *n_ctx = contexts[i / 2 % 2];
        const char *const batch[] = {"nibble", "batch", model,  "-i", in,   "-o", out,     "-np", "8",
                                     "-c",     n_ctx,   "--kv", kv,   "-t", "2",  "--ram", cap,   NULL};
        const char *const bench[] = {"nibble", "bench", model,  "-np", "1,8", "-p", "9",     "-n", "2",
                                     "-r",     "1",     "--kv", kv,    "-t",  "2",  "--ram", cap,  NULL};
        const char *const *const args = i % 2 ? bench : batch;
        snprintf(cap, sizeof cap, "%lluK", (unsigned long long)(floor_bytes() + 8 * MIB) / 1024);
        const outcome o = run(args);
        assert_int_equal(o.code, 3);
        const uint64_t bytes = named(&o);
        snprintf(cap, sizeof cap, "%lluK", (unsigned long long)(bytes / KIB));
        const outcome again = run(args);
        if (again.code || again.peak > bytes)
            fail_msg("%s -c %s --kv %s: %s\nbut with that cap: %llu KiB, exit code %d: %s", args[1], n_ctx,
                     kv, o.said, (unsigned long long)(again.peak / KIB), again.code, again.said);
        unlink(out);
    }
}

/* A text is read only as far as the cap allows. */
static void long_texts(void **state) {
    (void)state;
    static const tiny_shape shape = {TYPE_Q8_0, 3, 256, 640, 8, 2, 513, 128, false};
    enum { BYTES = 24 << 20 };
    char model[1024], name[1024], cap[32];
    snprintf(model, sizeof model, "%s", tiny_model_with_words("short.gguf", &shape));
    char *text = mem_alloc(BYTES);
    assert_non_null(text);
    for (size_t i = 0; i < BYTES; i++)
        text[i] = "t0 1 t2 "[i % 8];
    snprintf(name, sizeof name, "%s", temp_file("long.txt", text, BYTES));
    mem_free(text);
    const uint64_t bytes = floor_bytes() + 10 * MIB; /* a new program's pages take some 400 KiB more */
    snprintf(cap, sizeof cap, "%lluK", (unsigned long long)(bytes / KIB));
    const char *const args[] = {"nibble", "run", model, "--ram", cap, "-t", "2", "-f", name, "-n", "2", NULL};
    const outcome o = run(args);
    assert_int_equal(o.code, 2);
    assert_non_null(strstr(o.said, "too long for the context"));
    if (o.peak > bytes)
        fail_msg("%s: %llu KiB resident: %s", cap, (unsigned long long)(o.peak / KIB), o.said);
}

/* The models that `nibble models pull` has fetched, if any. */
static void real(void **state) {
    (void)state;
    static const char *const names[] = {"smollm2", "gemma3-270m"};
    uint64_t seed = 40;
    int n = 0;
    for (size_t i = 0; i < NUM_COUNT(names); i++) {
        char *path = NULL;
        if (model_find(names[i], &path, NULL) == NIB_OK) {
            try_model(path, NULL, &seed);
            n++;
        }
        mem_free(path);
    }
    if (!n)
        skip();
}

static void none(void **state) {
    (void)state;
    print_message("the command is not there, or a sanitizer's memory would count\n");
    skip();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(synthetic), cmocka_unit_test(folders),
                                       cmocka_unit_test(plans),     cmocka_unit_test(many_threads),
                                       cmocka_unit_test(several),   cmocka_unit_test(long_texts),
                                       cmocka_unit_test(real)},
                            nothing[] = {cmocka_unit_test(none)};
    if (SANITIZED || access(nibble(), X_OK)) /* a sanitizer's own memory does not fit */
        return cmocka_run_group_tests(nothing, NULL, NULL);
    setenv("XDG_CACHE_HOME", temp_path("cache"), 1);
    setenv("NIBBLE_NO_LEARN", "1", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
