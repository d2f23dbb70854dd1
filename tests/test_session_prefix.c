/* Keys and values on disk: another engine reads computed pages, with the same tokens, for every cache type.
 * Damaged, truncated and foreign files, a full disk, a small limit, two writers and a killed writer cost at
 * most a repeated computation. The same for a back end whose memory the host cannot read. */
#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"
#include "engine/engine.h"
#include "session/batch_parts.h"
#include "support/engine.h"
#include "support/slow.h"
#include "support/tempdir.h"
#include "support/tinymodel.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { N_VOCAB = 300, N_CTX = 320, N_PROMPT = 200, N_PREDICT = 12 };

static const tiny_shape packed = {TYPE_Q4_0, 2, 64, 96, 4, 2, N_VOCAB, N_CTX, true};

/* ---- a folder ---- */

static char folder[256];

static void empty_folder(void) {
    char command[300];
    snprintf(folder, sizeof folder, "%s", temp_path("prefix-XXXXXX"));
    assert_non_null(mkdtemp(folder));
    snprintf(command, sizeof command, "chmod 755 %s", folder);
    assert_int_equal(system(command), 0);
}

static void remove_folder(void) {
    char command[300];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    assert_int_equal(system(command), 0);
}

/* Calls fn for each page; returns how many there are. */
static int each_page(void (*fn)(const char *path)) {
    DIR *dir = opendir(folder);
    int n = 0;
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        char path[600];
        const size_t len = strlen(e->d_name);
        if (len < 6 || strcmp(e->d_name + len - 6, ".nibkv") != 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        n++;
        if (fn)
            fn(path);
    }
    closedir(dir);
    return n;
}

static uint64_t folder_bytes(void) {
    uint64_t sum = 0;
    DIR *dir = opendir(folder);
    for (struct dirent *e; (e = readdir(dir));) {
        struct stat info;
        if (!fstatat(dirfd(dir), e->d_name, &info, 0) && S_ISREG(info.st_mode))
            sum += (uint64_t)info.st_size;
    }
    closedir(dir);
    return sum;
}

/* ---- one run ---- */

typedef struct run {
    int kv;
    uint64_t max;
    int64_t n_prompt; /* 0: N_PROMPT */
    int text;         /* which prompt */
    int64_t nth_write;
} run;

typedef struct outcome {
    int32_t tokens[N_PREDICT];
    int64_t computed; /* of the prompt */
    nib_batch_counts counts;
    uint64_t disk; /* charged */
} outcome;

static nib_generate_options request_of(const run *r, int32_t *prompt) {
    nib_generate_options o;
    nib_generate_options_init(&o);
    o.n_prompt = (size_t)(r->n_prompt ? r->n_prompt : N_PROMPT);
    for (size_t i = 0; i < o.n_prompt; i++)
        prompt[i] = (int32_t)((i * 7 + (size_t)r->text * 11 + 1) % N_VOCAB);
    o.prompt = prompt;
    o.n_predict = N_PREDICT;
    o.ignore_eos = true;
    o.sampling.seed = 5;
    return o;
}

static const char *backend_name = "cpu";

/* Written once: a file that changed has other keys and values. */
static nib_engine *open_engine(const run *r) {
    static char path[256];
    if (!path[0])
        snprintf(path, sizeof path, "%s", tiny_model("prefix.gguf", &packed));
    nib_engine_options o = engine_usual();
    o.n_thread = 1;
    o.n_ctx = N_CTX;
    o.n_batch = 64;
    o.kv_type = r->kv;
    o.backend = backend_name;
    return engine_must_open(path, &o, NULL);
}

static nib_batch *open_batch(nib_engine *e, const run *r, const char *at) {
    return batch_must_open(e,
                           &(nib_batch_options){.n_sequence = 2, .prefix_cache = at, .prefix_bytes = r->max});
}

static void answer(nib_batch *b, const run *r, outcome *out) {
    int32_t prompt[N_CTX], n_left = 1;
    nib_error err = {0};
    nib_result result;
    int64_t id;
    const nib_generate_options o = request_of(r, prompt);
    assert_int_equal(nib_batch_add(b, &o, &id, &err), NIB_OK);
    while (n_left > 0)
        if (nib_batch_step(b, &n_left, &err))
            fail_msg("%s", err.message);
    assert_true(nib_batch_take(b, &id, &result, &err));
    assert_int_equal(result.n_token, N_PREDICT);
    memcpy(out->tokens, result.tokens, sizeof out->tokens);
    out->computed = result.prompt_n;
    nib_result_clear(&result);
}

/* An engine that begins with nothing but the folder. */
static outcome begin_anew(const run *r, const char *at) {
    outcome out;
    nib_memory memory;
    nib_engine *e = open_engine(r);
    nib_batch *b = open_batch(e, r, at);
    fault_arm(FAULT_WRITE, r->nth_write);
    answer(b, r, &out);
    nib_batch_count(b, &out.counts); /* first: a file may be written meanwhile */
    nib_engine_memory(e, &memory);
    out.disk = memory.tier[NIB_TIER_DISK].peak;
    nib_batch_close(b);
    fault_arm(FAULT_WRITE, 0);
    nib_engine_close(e);
    return out;
}

static void same_tokens(const outcome *a, const outcome *b) {
    assert_memory_equal(a->tokens, b->tokens, sizeof a->tokens);
}

/* ---- what holds ---- */

static void read_instead_of_computed(void **state) {
    (void)state;
    static const int kinds[] = {NIB_KV_F16, NIB_KV_F32, NIB_KV_8, NIB_KV_4, NIB_KV_4H, NIB_KV_4S};
    empty_folder();
    for (size_t k = 0; k < NUM_COUNT(kinds); k++) {
        const run r = {.kv = kinds[k]};
        const outcome plain = begin_anew(&r, NULL), first = begin_anew(&r, folder);
        const outcome second = begin_anew(&r, folder);
        same_tokens(&plain, &first);
        same_tokens(&plain, &second);
        assert_int_equal(first.computed, N_PROMPT);
        assert_int_equal(first.counts.disk_read, 0);
        /* whole pages, and in f16 and f32 the one that the prompt ends in */
        assert_int_equal(second.computed, k < 2 ? 1 : N_PROMPT - 192);
        assert_int_equal(second.counts.disk_read, k < 2 ? 4 : 3);
        assert_true(second.counts.disk_bytes > 0 && second.disk >= second.counts.disk_bytes);
    }
    remove_folder();
}

/* Another prompt with a common prefix reads the common pages; a longer one continues from the answer. */
static void what_is_common(void **state) {
    (void)state;
    empty_folder();
    const run r = {.kv = NIB_KV_F16}, shorter = {.kv = NIB_KV_F16, .n_prompt = 150};
    begin_anew(&r, folder);
    const outcome plain = begin_anew(&shorter, NULL), out = begin_anew(&shorter, folder);
    same_tokens(&plain, &out);
    assert_int_equal(out.computed, 150 - 128);
    const run other = {.kv = NIB_KV_F16, .text = 1};
    assert_int_equal(begin_anew(&other, folder).computed, N_PROMPT);
    const run coded = {.kv = NIB_KV_8};
    assert_int_equal(begin_anew(&coded, folder).computed, N_PROMPT);
    remove_folder();
}

static int damage_at; /* which way */

static void damage(const char *path) {
    struct stat info;
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(stat(path, &info), 0);
    static const int64_t places[] = {0, 12, 30, 40, 60, 64, 100, 2000, -1, -8};
    const int64_t at = places[damage_at % 10];
    assert_int_equal(fseek(f, at, at < 0 ? SEEK_END : SEEK_SET), 0);
    const int c = fgetc(f);
    assert_int_equal(fseek(f, -1, SEEK_CUR), 0);
    fputc(c ^ 0x10, f);
    fclose(f);
}

static void truncate_page(const char *path) {
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(truncate(path, damage_at == 0 ? 0 : damage_at == 1 ? 63 : info.st_size - 1), 0);
}

/* Every page has the content of the one before. */
static void mix_up(const char *path) {
    static char last[600];
    char command[1300];
    if (access(last, F_OK) == 0) {
        snprintf(command, sizeof command, "cp %s %s", last, path);
        assert_int_equal(system(command), 0);
    }
    snprintf(last, sizeof last, "%s", path);
}

static void make_other(const char *path) {
    assert_int_equal(unlink(path), 0);
    assert_int_equal(damage_at ? mkfifo(path, 0600) : mkdir(path, 0700), 0);
}

static void nothing_is_believed(void **state) {
    (void)state;
    const run r = {.kv = NIB_KV_F16};
    const outcome plain = begin_anew(&r, NULL);
    static const struct {
        void (*how)(const char *path);
        int n;
        bool counted;
    } all[] = {{damage, 10, true}, {truncate_page, 3, true}, {mix_up, 1, false}, {make_other, 2, false}};
    for (size_t i = 0; i < NUM_COUNT(all); i++)
        for (damage_at = 0; damage_at < all[i].n; damage_at += SANITIZED_THREADS   ? 9
                                                               : slow_is_thinned() ? 3
                                                                                   : 1) {
            empty_folder();
            begin_anew(&r, folder);
            assert_true(each_page(all[i].how) >= 4);
            const outcome out = begin_anew(&r, folder);
            same_tokens(&plain, &out);
            if (all[i].counted) {
                assert_int_equal(out.counts.disk_damaged, 1); /* the first one; later ones are not read */
                assert_int_equal(out.computed, N_PROMPT);
            }
            remove_folder();
        }
}

static void a_full_disk(void **state) {
    (void)state;
    empty_folder();
    const run r = {.kv = NIB_KV_F16};
    const outcome plain = begin_anew(&r, NULL);
    for (int64_t nth = 1; nth < 12; nth += slow_is_thinned() ? 2 : 1) {
        const run full = {.kv = NIB_KV_F16, .nth_write = nth};
        const outcome out = begin_anew(&full, folder);
        same_tokens(&plain, &out);
        const outcome after = begin_anew(&r, folder);
        same_tokens(&plain, &after);
        remove_folder();
        empty_folder();
    }
    remove_folder();
}

/* The least recently used pages are removed, of a sequence its end first. */
static void within_its_limit(void **state) {
    (void)state;
    empty_folder();
    run r = {.kv = NIB_KV_F16};
    const outcome first = begin_anew(&r, folder);
    const uint64_t one = folder_bytes();
    assert_true(one > 0 && first.counts.disk_missed == 0);
    r.max = one * 3 / 2;
    for (int i = 1; i < 4; i++) {
        r.text = i;
        begin_anew(&r, folder);
        assert_true(folder_bytes() <= r.max);
        assert_int_equal(begin_anew(&r, folder).computed, 1);
    }
    r.max = 100;
    r.text = 9;
    assert_int_equal(begin_anew(&r, folder).counts.disk_read, 0);
    assert_int_equal(each_page(NULL), 0);
    remove_folder();
}

static void two_with_one_folder(void **state) {
    (void)state;
    empty_folder();
    const run r = {.kv = NIB_KV_F16}, s = {.kv = NIB_KV_F16, .text = 3};
    const outcome plain_r = begin_anew(&r, NULL), plain_s = begin_anew(&s, NULL);
    nib_engine *e = open_engine(&r), *f = open_engine(&s);
    nib_batch *b = open_batch(e, &r, folder), *c = open_batch(f, &s, folder);
    outcome out;
    for (int i = 0; i < 2; i++) {
        answer(b, i ? &s : &r, &out);
        same_tokens(i ? &plain_s : &plain_r, &out);
        answer(c, i ? &r : &s, &out);
        same_tokens(i ? &plain_r : &plain_s, &out);
    }
    nib_batch_close(b);
    nib_batch_close(c);
    nib_engine_close(e);
    nib_engine_close(f);
    assert_int_equal(begin_anew(&r, folder).computed, 1);
    assert_int_equal(begin_anew(&s, folder).computed, 1);
    remove_folder();
}

static void killed_while_writing(void **state) {
    (void)state;
    const run r = {.kv = NIB_KV_F16};
    const outcome plain = begin_anew(&r, NULL);
    for (int wait_us = 0; wait_us < 4; wait_us++) {
        empty_folder();
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            begin_anew(&r, folder);
            _exit(0);
        }
        for (int i = 0; i < 2000 && each_page(NULL) <= wait_us; i++)
            usleep(500);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        const outcome out = begin_anew(&r, folder), again = begin_anew(&r, folder);
        same_tokens(&plain, &out);
        same_tokens(&plain, &again);
        assert_int_equal(out.counts.disk_damaged, 0);
        assert_int_equal(again.computed, 1);
        remove_folder();
    }
}

/* Where a page takes longer to read than to compute, prompts are computed, and a few are read to measure
 * again. */
static void a_slow_disk(void **state) {
    (void)state;
    enum { N_ROUND = SANITIZED ? 16 : 32 };
    const run r = {.kv = NIB_KV_F16};
    outcome out, plain;
    empty_folder();
    plain = begin_anew(&r, folder);
    int n_read = 0;
    for (int i = 0; i < N_ROUND; i++) {
        nib_engine *e = open_engine(&r);
        nib_batch *b = open_batch(e, &r, folder);
        b->load_s = 1e9;
        b->prefill.row_s = 1e-9;
        b->n_not_loaded = (uint64_t)i;
        answer(b, &r, &out);
        same_tokens(&plain, &out);
        nib_batch_count(b, &out.counts);
        n_read += out.counts.disk_read > 0;
        nib_batch_close(b);
        nib_engine_close(e);
    }
    assert_int_equal(n_read, N_ROUND / 16);
    remove_folder();
}

/* A path that cannot be a folder is an error when the batch opens. */
static void no_folder(void **state) {
    (void)state;
    const run r = {.kv = NIB_KV_F16};
    nib_engine *e = open_engine(&r);
    nib_batch *b;
    nib_error err;
    const nib_batch_options o = {.prefix_cache = "/dev/null/x"};
    assert_int_equal(nib_batch_open(e, &o, &b, &err), NIB_E_IO);
    nib_engine_close(e);
}

/* A context that ends within a block: a prompt in its last positions has all full pages, and none is left to
 * read. */
static void all_pages_are_there(void **state) {
    (void)state;
    static const int kinds[] = {NIB_KV_8, NIB_KV_4, NIB_KV_F16};
    for (int k = 0; k < 3; k++) {
        const run how = {.kv = kinds[k], .n_prompt = 140};
        int32_t prompt[N_CTX];
        nib_generate_options o = request_of(&how, prompt);
        nib_batch *b;
        nib_result r;
        nib_error err = {0};
        int64_t id;
        int n_step = 0, n_done = 0;
        empty_folder();
        nib_engine *e = open_engine(&how);
        const nib_batch_options bo = {.n_ctx = 150, .kv_type = how.kv, .prefix_cache = folder};
        assert_int_equal(nib_batch_open(e, &bo, &b, &err), NIB_OK);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(nib_batch_add(b, &o, &id, &err), NIB_OK);
            for (int32_t n_left = 1; n_left > 0 && n_step < 100; n_step++)
                assert_int_equal(nib_batch_step(b, &n_left, &err), NIB_OK);
        }
        for (; nib_batch_take(b, &id, &r, &err); n_done++)
            nib_result_clear(&r);
        assert_int_equal(n_done, 2);
        nib_batch_close(b);
        nib_engine_close(e);
        remove_folder();
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_pages_are_there), cmocka_unit_test(read_instead_of_computed),
        cmocka_unit_test(what_is_common),      cmocka_unit_test(nothing_is_believed),
        cmocka_unit_test(a_full_disk),         cmocka_unit_test(within_its_limit),
        cmocka_unit_test(two_with_one_folder), cmocka_unit_test(killed_while_writing),
        cmocka_unit_test(no_folder),           cmocka_unit_test(a_slow_disk),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    backend_name = "check"; /* its pages go through RAM in both directions */
    return failed + cmocka_run_group_tests_name("check", tests, NULL, NULL);
}
