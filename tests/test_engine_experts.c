/* A mixture of experts under every cap: the same bits as with all experts in memory, memory within the cap,
 * and only experts that were chosen are read. */
#include "base/mem.h"
#include "nib_tools.h"
#include "profile/popularity.h"
#include "support/faults.h"
#include "support/logits.h"
#include "support/process.h"
#include "support/slow.h"
#include "support/tempdir.h"
#include "support/tinymodel.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { N_VOCAB = 256, N_PROMPT = 21, N_MORE = 12 };

static const tiny_shape shape = {.type = TYPE_Q8_0,
                                 .n_layer = 4,
                                 .d_model = 128,
                                 .d_ff = 96,
                                 .n_head = 4,
                                 .n_kv_head = 2,
                                 .n_vocab = N_VOCAB,
                                 .n_ctx = 128,
                                 .n_expert = 32,
                                 .n_used = 3};

static const tiny_shape words = {.type = TYPE_Q8_0,
                                 .n_layer = 4,
                                 .d_model = 128,
                                 .d_ff = 96,
                                 .n_head = 4,
                                 .n_kv_head = 2,
                                 .n_vocab = N_VOCAB + 1, /* tiny_model_with_words wants an odd number */
                                 .n_ctx = 128,
                                 .n_expert = 32,
                                 .n_used = 3};

typedef struct way {
    uint64_t headroom; /* the cap beyond the process's memory; NIB_AUTO: no cap */
    int n_thread;
    int64_t n_batch;
    bool no_fuse;
    const char *scratch; /* folder of the packed file; NULL: none */
    bool learn;
} way;

static nib_status open_way(const char *path, const way *how, nib_engine **out, nib_error *err) {
    nib_engine_options o;
    nib_engine_options_init(&o);
    o.n_thread = how->n_thread;
    o.n_batch = how->n_batch;
    o.n_ctx = 64;
    o.no_fuse = how->no_fuse;
    o.packed = how->scratch ? NIB_PACKED_ON : NIB_PACKED_OFF;
    o.scratch = how->scratch;
    o.learn = how->learn;
    o.stream = how->headroom != NIB_AUTO;
    o.ram = o.stream ? process_bytes() + how->headroom : NIB_AUTO;
    return nib_engine_open(path, &o, out, err);
}

/* Logits after a prompt and after each of some more tokens. */
static nib_traffic walk(const char *path, const way *how, float (*logits)[N_VOCAB]) {
    int32_t tokens[N_PROMPT + N_MORE];
    nib_engine *e = NULL;
    nib_session *s = NULL;
    nib_memory m;
    nib_traffic t;
    nib_error err = {0};
    if (open_way(path, how, &e, &err) || nib_session_open(e, NULL, &s, &err))
        fail_msg("%s", err.message);
    logits_tokens(tokens, N_PROMPT + N_MORE, N_VOCAB, 1);
    for (size_t n = 0; n <= N_MORE; n++) {
        if (nib_session_sync(s, tokens, N_PROMPT + n, &err))
            fail_msg("%s", err.message);
        memcpy(logits[n], nib_session_logits(s), sizeof *logits);
    }
    nib_engine_memory(e, &m);
    assert_true(m.tier[NIB_TIER_RAM].peak <= m.tier[NIB_TIER_RAM].cap);
    nib_engine_traffic(e, &t);
    nib_session_close(s);
    nib_engine_close(e);
    return t;
}

/* The smallest headroom that works. */
static uint64_t min_headroom(const char *path, uint64_t max) {
    uint64_t low = 0, high = max;
    while (high - low > 64 << 10) {
        const way how = {(low + high) / 2, 2, 8, false};
        nib_engine *e = NULL;
        *(open_way(path, &how, &e, NULL) == NIB_OK ? &high : &low) = how.headroom;
        nib_engine_close(e);
    }
    return high;
}

static void every_cap_gives_the_same_bits(void **state) {
    static float expected[N_MORE + 1][N_VOCAB], found[N_MORE + 1][N_VOCAB];
    (void)state;
    const char *path = tiny_model("mixture.gguf", &shape);
    const uint64_t most = 16 << 20, min = min_headroom(path, most);
    uint64_t streamed = UINT64_MAX;
    bool all = false;
    const nib_traffic none = walk(path, &(way){NIB_AUTO, 2, 8, false}, expected);
    assert_int_equal(none.expert_uses, 0);
    for (uint64_t i = 0; i < 40 && !all; i += 2) {
        const way how = {min + i * (256 << 10), 1 + (int)(i / 2 % 2), 8, i % 3 == 2};
        const nib_traffic t = walk(path, &how, found);
        assert_memory_equal(expected, found, sizeof expected);
        all = t.expert_uses == 0;
        print_message("%llu KiB more than the least: %llu of %llu uses found their expert, %llu KiB read\n",
                      (unsigned long long)(i * 256), (unsigned long long)t.expert_hits,
                      (unsigned long long)t.expert_uses, (unsigned long long)t.streamed >> 10);
        assert_true(all || t.streamed <= streamed + streamed / 8); /* more memory reads less */
        streamed = t.streamed;
    }
    assert_true(all);
}

/* Changes a byte of the only file of a folder, at so many sixteenths of its length. */
static void damage(const char *folder, int at) {
    char command[1200];
    snprintf(command, sizeof command,
             "f=$(ls %s/*) && n=$(stat -c %%s \"$f\") && printf '\\125' | dd of=\"$f\" bs=1 "
             "seek=$((n * %d / 16 + 7)) conv=notrunc status=none",
             folder, at);
    assert_int_equal(system(command), 0);
}

/* Experts come from the packed file, without being packed again; a damaged one is left, and the answers are
 * the same. */
static void packed_experts(void **state) {
    static float expected[N_MORE + 1][N_VOCAB], found[N_MORE + 1][N_VOCAB];
    char scratch[512], folder[600];
    (void)state;
    const char *path = tiny_model("packed.gguf", &shape);
    snprintf(scratch, sizeof scratch, "%s", temp_path("scratch"));
    snprintf(folder, sizeof folder, "%s/packed", scratch);
    walk(path, &(way){NIB_AUTO, 2, 8, false, NULL}, expected);
    way how = {min_headroom(path, 16 << 20) + (512 << 10), 2, 8, false, NULL};
    const nib_traffic plain = walk(path, &how, found);
    how.scratch = scratch;
    for (int i = 0; i < 12;
         i++) { /* the byte may belong to an expert that is resident, read later or never */
        const nib_traffic t = walk(path, &how, found);
        assert_memory_equal(expected, found, sizeof expected);
        assert_true(t.expert_uses > t.expert_hits);
        assert_true(i != 1 || t.streamed != plain.streamed); /* packed pages and file bytes differ in size */
        if (i > 0 && i % 2 == 1)
            damage(folder, 3 + i);
    }
}

/* Experts that were counted beforehand are in memory from the beginning: more uses find theirs. */
static void popular_experts_first(void **state) {
    static float expected[N_MORE + 1][N_VOCAB], found[N_MORE + 1][N_VOCAB];
    (void)state;
    const char *path = tiny_model_with_words("popular.gguf", &words);
    const way how = {min_headroom(path, 16 << 20) + (3 << 20), 2, 8, false, NULL};
    nib_engine_options o;
    nib_error err = {0};
    char *json = NULL;
    setenv("XDG_CACHE_HOME", temp_path("cache"), 1);
    const nib_traffic before = walk(path, &how, expected);
    nib_engine_options_init(&o);
    for (int again = 0; again < 2; again++) {
        if (nib_profile_experts(path, &o, &(nib_profile_options){0}, &json, &err))
            fail_msg("%s", err.message);
        assert_non_null(strstr(json, again ? "\"found\":true" : "\"found\":false"));
        nib_free(json);
    }
    const nib_traffic after = walk(path, &how, found);
    unsetenv("XDG_CACHE_HOME");
    assert_memory_equal(expected, found, sizeof expected);
    print_message("of %llu uses %llu found their expert, %llu when popular ones were in memory first\n",
                  (unsigned long long)after.expert_uses, (unsigned long long)before.expert_hits,
                  (unsigned long long)after.expert_hits);
    assert_true(after.expert_hits > before.expert_hits);
}

static uint64_t opened_with_learning(const char *path, uint64_t headroom, float (*logits)[N_VOCAB],
                                     bool learn) {
    const way how = {headroom, 2, 8, false, NULL, learn};
    return walk(path, &how, logits).expert_hits;
}

/* Makes the experts that were chosen seldom the popular ones of a file of earlier runs. */
static void turn_round(const char *path) {
    popularity p;
    nib_error err = {0};
    if (popularity_load(path, NULL, &p, &err))
        fail_msg("%s", err.message);
    assert_in_range(p.n_token, N_PROMPT, N_PROMPT + N_MORE);
    for (int i = 0; i < p.n_layer * p.n_expert; i++)
        p.share[i] = p.share[i] > 1 ? 0 : 1 - p.share[i];
    p.n_token = POPULARITY_OLD;
    if (popularity_save(path, &p, &err))
        fail_msg("%s", err.message);
    popularity_clear(&p);
}

/* What a run has counted is kept for the next one, if it may learn and nothing was measured. */
static void runs_are_remembered(void **state) {
    static float expected[N_MORE + 1][N_VOCAB], found[N_MORE + 1][N_VOCAB];
    (void)state;
    const char *path = tiny_model_with_words("runs.gguf", &words);
    const uint64_t room = min_headroom(path, 16 << 20) + (3 << 20);
    nib_engine_options o;
    char *json = NULL, content[40];
    nib_error err = {0};
    setenv("XDG_CACHE_HOME", temp_path("cache-runs"), 1);
    nib_engine_options_init(&o);
    if (nib_profile_experts(path, &o, &(nib_profile_options){0}, &json, &err))
        fail_msg("%s", err.message);
    assert_int_equal(sscanf(strstr(json, "\"content\":\""), "\"content\":\"%39[0-9a-f]", content), 1);
    nib_free(json);
    char *runs = popularity_runs_path(content), *measured = popularity_find(content);
    assert_non_null(measured);
    const uint64_t best = opened_with_learning(path, room, expected, false);
    assert_int_not_equal(access(runs, F_OK), 0); /* it does not learn */
    opened_with_learning(path, room, found, true);
    assert_memory_equal(expected, found, sizeof expected);
    turn_round(runs);
    const uint64_t as_measured = opened_with_learning(path, room, found, true);
    assert_memory_equal(expected, found, sizeof expected);
    assert_int_equal(unlink(measured), 0);
    const uint64_t wrong = opened_with_learning(path, room, found, true);
    assert_memory_equal(expected, found, sizeof expected);
    assert_int_equal(unlink(runs), 0);
    const uint64_t first = opened_with_learning(path, room, found, true);
    const uint64_t second = opened_with_learning(path, room, found, true);
    assert_memory_equal(expected, found, sizeof expected);
    print_message("hits: %d measured, %d measured with wrong counts of runs, %d with these alone, %d and %d "
                  "in a first and a second run\n",
                  (int)best, (int)as_measured, (int)wrong, (int)first, (int)second);
    assert_true(as_measured > wrong && second > first);
    setenv("XDG_CACHE_HOME", "/dev/null", 1); /* a cache that cannot be written */
    opened_with_learning(path, room, found, true);
    assert_memory_equal(expected, found, sizeof expected);
    unsetenv("XDG_CACHE_HOME");
    mem_free(runs);
    mem_free(measured);
}

static void remember(void *user, const char *line) {
    bool *said = user;
    *said = *said || (strstr(line, "one token uses") && strstr(line, "more RAM"));
}

/* Experts of which not even one token's fit are read for each token: this is said, and what would help. */
static void too_few_are_named(void **state) {
    (void)state;
    const char *path = tiny_model("few.gguf", &shape);
    const uint64_t min = min_headroom(path, 16 << 20);
    for (int more = 0; more < 2; more++) {
        bool said = false;
        nib_engine_options o;
        nib_engine *e = NULL;
        nib_error err = {0};
        nib_engine_options_init(&o);
        o.n_thread = 2;
        o.n_batch = 8;
        o.n_ctx = 64;
        o.packed = NIB_PACKED_OFF;
        o.stream = true;
        o.ram = process_bytes() + min + (more ? 4 << 20 : 0);
        o.log = remember;
        o.user = &said;
        if (nib_engine_open(path, &o, &e, &err))
            fail_msg("%s", err.message);
        nib_engine_close(e);
        assert_int_equal(said, !more);
    }
}

typedef struct life {
    const char *path;
    way how;
} life;

static nib_status live(void *user, nib_error *err) {
    static const int32_t tokens[] = {1, 2, 3, 4, 5};
    const life *l = user;
    nib_engine *e = NULL;
    nib_session *s = NULL;
    nib_status status = open_way(l->path, &l->how, &e, err);
    if (status == NIB_OK)
        status = nib_session_open(e, NULL, &s, err);
    if (status == NIB_OK)
        status = nib_session_sync(s, tokens, 5, err);
    if (status == NIB_OK)
        fault_made(nib_session_logits(s), N_VOCAB * sizeof(float));
    nib_session_close(s);
    nib_engine_close(e);
    return status;
}

static void every_fault_is_an_error_or_changes_nothing(void **state) {
    (void)state;
    static const fault_kind kinds[] = {FAULT_READ, FAULT_DONE, FAULT_SHORT, FAULT_ALLOC};
    life l = {tiny_model("faulty.gguf", &shape), {0, 1, 8, false}};
    l.how.headroom = min_headroom(l.path, 16 << 20) + (256 << 10);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        assert_true(fault_sweep(kinds[i], kinds[i] == FAULT_ALLOC ? 29 : 7, live, &l) > 20);
}

int main(void) {
    process_counted();
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_cap_gives_the_same_bits),
                                       cmocka_unit_test(packed_experts),
                                       cmocka_unit_test(popular_experts_first),
                                       cmocka_unit_test(runs_are_remembered),
                                       cmocka_unit_test(too_few_are_named),
                                       cmocka_unit_test(every_fault_is_an_error_or_changes_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
