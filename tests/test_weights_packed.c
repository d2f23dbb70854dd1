/* The packed file: written, found again, never trusted. Whatever is wrong with it or with the disk, the
 * answers are those of the model, no file is left over, and the log reports it. */
#include "base/file.h"
#include "base/mem.h"
#include "nib.h"
#include "support/faults.h"
#include "support/process.h"
#include "support/slow.h"
#include "support/tempdir.h"
#include "support/tinymodel.h"
#include "memory/ledger.h"

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { N_VOCAB = 8192 };

static const tiny_shape tied = {TYPE_Q8_0, 8, 256, 768, 8, 2, N_VOCAB, 64, true};
static const tiny_shape untied = {TYPE_Q4_0, 3, 256, 512, 4, 4, N_VOCAB, 64, false};

typedef struct life {
    const char *path, *scratch;
    uint64_t headroom, disk; /* headroom: cap beyond the process's memory; NIB_AUTO: no cap */
    char log[4096];
    float logits[N_VOCAB];
    uint64_t disk_peak;
    bool die_when_keeping;
    void (*between)(struct life *l); /* after opening, before the first token */
} life;

static void note(void *user, const char *line) {
    life *l = user;
    size_t n = strlen(l->log);
    snprintf(l->log + n, sizeof l->log - n, "%s\n", line);
}

static bool progress(void *user, const char *what, uint64_t done, uint64_t total) {
    const life *l = user;
    if (l->die_when_keeping && !strcmp(what, "keep") && done > total / 3)
        raise(SIGKILL);
    return true;
}

static nib_status live(void *user, nib_error *err) {
    life *l = user;
    nib_engine_options o;
    nib_engine *e = NULL;
    nib_session *s = NULL;
    nib_memory m;
    int32_t tokens[] = {1, 2, 3, 4, 5, 6};
    nib_engine_options_init(&o);
    l->log[0] = 0;
    o.n_thread = 2;
    o.scratch = l->scratch;
    o.disk = l->disk;
    o.packed = l->scratch ? NIB_PACKED_AUTO : NIB_PACKED_OFF;
    o.stream = l->headroom != NIB_AUTO;
    o.ram = o.stream ? process_bytes() + l->headroom : NIB_AUTO;
    o.log = note;
    o.progress = progress;
    o.user = l;
    nib_status status = nib_engine_open(l->path, &o, &e, err);
    if (status == NIB_OK && l->between)
        l->between(l);
    if (status == NIB_OK)
        status = nib_session_open(e, NULL, &s, err);
    for (size_t i = 4; i <= 6 && status == NIB_OK; i++) /* several passes: streamed parts come again */
        status = nib_session_sync(s, tokens, i, err);
    if (status == NIB_OK) {
        memcpy(l->logits, nib_session_logits(s), sizeof l->logits);
        fault_made(l->logits, sizeof l->logits);
        nib_engine_memory(e, &m);
        l->disk_peak = m.tier[NIB_TIER_DISK].peak;
    }
    nib_session_close(s);
    nib_engine_close(e);
    return status;
}

/* In the packed folder: files whose name ends so; the last one's path. */
static int find(const char *scratch, const char *end, char *path) {
    char folder[800];
    int n = 0;
    snprintf(folder, sizeof folder, "%s/packed", scratch);
    DIR *dir = opendir(folder);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        size_t a = strlen(e->d_name), b = strlen(end);
        if (a < b || strcmp(e->d_name + a - b, end))
            continue;
        n++;
        if (path)
            snprintf(path, 1100, "%s/%s", folder, e->d_name);
    }
    if (dir)
        closedir(dir);
    return n;
}

static const char *fresh_scratch(void) {
    static int n;
    char name[32];
    snprintf(name, sizeof name, "scratch-%d", n++);
    const char *path = temp_path(name);
    assert_int_equal(mkdir(path, 0777), 0);
    return path;
}

static life *start(const tiny_shape *shape, bool streamed) {
    static life l;
    static char path[768], scratch[768];
    memset(&l, 0, sizeof l);
    strcpy(path, tiny_model("model.gguf", shape));
    strcpy(scratch, fresh_scratch());
    l.path = path;
    l.scratch = scratch;
    l.disk = NIB_AUTO;
    l.headroom = NIB_AUTO;
    if (streamed)
        l.headroom = tiny_model_half_bytes(path);
    return &l;
}

static void must_live(life *l) {
    nib_error err = {NIB_OK, ""};
    if (live(l, &err) != NIB_OK)
        fail_msg("%s", err.message);
}

/* The model's logits without a packed file. */
static void expect(const life *l, float *logits) {
    static life plain;
    plain = *l;
    plain.scratch = NULL;
    plain.headroom = NIB_AUTO;
    plain.between = NULL;
    must_live(&plain);
    memcpy(logits, plain.logits, sizeof plain.logits);
}

static void written_once_and_found_again(const tiny_shape *shape, bool streamed) {
    static float expected[N_VOCAB];
    char path[1100];
    life *l = start(shape, streamed);
    struct stat info;
    expect(l, expected);
    must_live(l);
    assert_non_null(strstr(l->log, "are stored"));
    assert_memory_equal(l->logits, expected, sizeof expected);
    assert_int_equal(find(l->scratch, ".nibpack", path), 1);
    assert_int_equal(find(l->scratch, ".tmp", NULL), 0);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(l->disk_peak, info.st_size);
    must_live(l);
    assert_null(strstr(l->log, "packed"));
    assert_memory_equal(l->logits, expected, sizeof expected);
    assert_int_equal(l->disk_peak, info.st_size);
}

static void is_found_again(void **state) {
    (void)state;
    written_once_and_found_again(&tied, false);
    written_once_and_found_again(&untied, false);
    written_once_and_found_again(&tied, true);
    written_once_and_found_again(&untied, true);
}

/* One file serves every budget. */
static void made_resident_used_streamed(void **state) {
    (void)state;
    static float expected[N_VOCAB];
    life *l = start(&tied, false);
    expect(l, expected);
    must_live(l);
    l->headroom = tiny_model_half_bytes(l->path);
    must_live(l);
    assert_null(strstr(l->log, "packed"));
    assert_memory_equal(l->logits, expected, sizeof expected);
}

static void change_byte(const char *path, off_t at) {
    int fd = open(path, O_RDWR);
    uint8_t byte = 0;
    assert_true(fd >= 0 && pread(fd, &byte, 1, at) == 1);
    byte ^= 0x10;
    assert_true(pwrite(fd, &byte, 1, at) == 1 && close(fd) == 0);
}

static void damage(const char *path, int how) {
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    switch (how) {
    case 0: change_byte(path, 100); break;                    /* the head */
    case 1: change_byte(path, 4096 + 10); break;              /* a vector */
    case 2: change_byte(path, info.st_size / 2); break;       /* a matrix */
    case 3: change_byte(path, info.st_size - 20); break;      /* a checksum */
    case 4: assert_int_equal(truncate(path, 5000), 0); break; /* cut short */
    case 5: assert_int_equal(truncate(path, 0), 0); break;    /* empty */
    case 6: assert_int_equal(truncate(path, info.st_size + 1), 0); break;
    default: assert_non_null(temp_file("x", "foreign", 7)); assert_int_equal(rename(temp_path("x"), path), 0);
    }
}

static void damaged_is_made_anew(void **state) {
    (void)state;
    static float expected[N_VOCAB];
    char path[1100];
    for (int streamed = 0; streamed < 2; streamed++) {
        life *l = start(&tied, streamed);
        expect(l, expected);
        must_live(l);
        assert_int_equal(find(l->scratch, ".nibpack", path), 1);
        for (int how = 0; how < 8; how += (streamed ? 3 : 1) * slow_step(2)) {
            damage(path, how);
            must_live(l);
            assert_memory_equal(l->logits, expected, sizeof expected);
            assert_non_null(strstr(l->log, "packed file"));
            must_live(l); /* while streaming it is found out too late to be replaced at once */
            must_live(l);
            assert_null(strstr(l->log, "packed"));
            assert_memory_equal(l->logits, expected, sizeof expected);
        }
    }
}

static void damage_the_matrices(life *l) {
    char path[1100];
    assert_int_equal(find(l->scratch, ".nibpack", path), 1);
    int fd = open(path, O_WRONLY);
    char zeros[4096] = {0};
    struct stat info;
    assert_int_equal(fstat(fd, &info), 0);
    for (off_t at = 8192; at < info.st_size - 8192; at += 4096)
        assert_int_equal(pwrite(fd, zeros, sizeof zeros, at), sizeof zeros);
    close(fd);
}

static void damaged_while_it_is_streamed(void **state) {
    (void)state;
    static float expected[N_VOCAB];
    life *l = start(&tied, true);
    expect(l, expected);
    must_live(l);
    l->between = damage_the_matrices; /* two parts may have been read by then */
    must_live(l);
    l->between = NULL;
    assert_memory_equal(l->logits, expected, sizeof expected);
    assert_non_null(strstr(l->log, "model's files are read instead"));
    assert_int_equal(find(l->scratch, ".nibpack", NULL), 0);
}

static void another_model_makes_another_file(void **state) {
    (void)state;
    static float expected[N_VOCAB];
    char path[1100];
    life *l = start(&tied, false);
    must_live(l);
    /* the same bytes with another date: the file is made again, under its name */
    struct timespec times[2] = {{0, UTIME_OMIT}, {1000000000, 0}};
    assert_int_equal(utimensat(AT_FDCWD, l->path, times, 0), 0);
    must_live(l);
    assert_non_null(strstr(l->log, "not used"));
    assert_non_null(strstr(l->log, "are stored"));
    assert_int_equal(find(l->scratch, ".nibpack", path), 1);
    /* other weights: another name */
    int fd = open(l->path, O_RDWR);
    struct stat info;
    assert_int_equal(fstat(fd, &info), 0);
    close(fd);
    change_byte(l->path, info.st_size - 1000);
    expect(l, expected);
    must_live(l);
    assert_memory_equal(l->logits, expected, sizeof expected);
    assert_int_equal(find(l->scratch, ".nibpack", path), 2);
}

static void the_disk_tiers_cap_holds(void **state) {
    (void)state;
    char path[1100], other[1100];
    life *l = start(&tied, false);
    l->disk = 100000;
    must_live(l);
    assert_non_null(strstr(l->log, "the cap of 97.7 KiB (--disk) is too small: the file takes "));
    assert_int_equal(find(l->scratch, ".nibpack", NULL), 0);
    l->disk = 16 << 20;
    must_live(l);
    assert_int_equal(find(l->scratch, ".nibpack", path), 1);
    /* a second one takes its place */
    char scratch[768];
    strcpy(scratch, l->scratch);
    l = start(&untied, false);
    l->scratch = scratch;
    l->disk = 10 << 20;
    must_live(l);
    assert_non_null(strstr(l->log, "to free space"));
    assert_int_equal(find(scratch, ".nibpack", other), 1);
    assert_string_not_equal(path, other);
}

static void a_full_disk_leaves_nothing(void **state) {
    (void)state;
    static float expected[N_VOCAB];
    for (int streamed = 0; streamed < 2; streamed++) {
        life *l = start(&tied, streamed);
        expect(l, expected);
        for (int n = 1; n < 12; n += 3 * slow_step(2)) {
            fault_arm(FAULT_WRITE, n);
            must_live(l);
            bool hit = fault_count(FAULT_WRITE) >= n;
            fault_arm(FAULT_WRITE, 0);
            assert_memory_equal(l->logits, expected, sizeof expected);
            assert_true(hit);
            assert_non_null(strstr(l->log, "not stored"));
            assert_int_equal(find(l->scratch, "", NULL), 2); /* . and .. */
        }
    }
}

static pid_t live_elsewhere(life *l) {
    pid_t child = fork();
    if (child == 0) {
        nib_error err;
        _exit(live(l, &err) != NIB_OK);
    }
    assert_true(child > 0);
    return child;
}

static void killed_while_it_is_written(void **state) {
    (void)state;
    char path[1100];
    int status;
    life *l = start(&tied, false);
    l->die_when_keeping = true;
    assert_int_equal(waitpid(live_elsewhere(l), &status, 0) > 0 && WIFSIGNALED(status), 1);
    l->die_when_keeping = false;
    assert_int_equal(find(l->scratch, ".nibpack", NULL), 0);
    assert_int_equal(find(l->scratch, ".tmp", path), 1);
    struct timespec times[2] = {{0, UTIME_OMIT}, {time(NULL) - 3600, 0}}; /* an hour later */
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    must_live(l);
    assert_int_equal(find(l->scratch, ".nibpack", NULL), 1);
    assert_int_equal(find(l->scratch, ".tmp", NULL), 0);
}

static void two_processes_at_once(void **state) {
    (void)state;
    int a = 1, b = 1;
    life *l = start(&tied, false);
    pid_t first = live_elsewhere(l), second = live_elsewhere(l);
    assert_true(waitpid(first, &a, 0) == first && waitpid(second, &b, 0) == second);
    assert_int_equal(a | b, 0);
    assert_int_equal(find(l->scratch, ".nibpack", NULL), 1);
    must_live(l);
    assert_null(strstr(l->log, "packed"));
}

static void every_fault(void **state) {
    (void)state;
    /* both kinds with both ways to load, without a packed file: test_engine_faults */
    life *l = start(&untied, false);
    must_live(l);
    fault_sweep(FAULT_ALLOC, 64, live, l);
    l = start(&tied, true);
    must_live(l);
    fault_sweep(FAULT_READ, 64, live, l);
}

static void without_io_uring(void **state) {
    (void)state;
    static float expected[N_VOCAB];
    life *l = start(&untied, true);
    expect(l, expected);
    for (int i = 0; i < 2; i++) {
        fault_arm(FAULT_RING, 1);
        must_live(l);
        fault_arm(FAULT_RING, 0);
        assert_memory_equal(l->logits, expected, sizeof expected);
    }
}

/* Nothing is written anywhere unless disk was given. */
static void nothing_is_written_unasked(void **state) {
    (void)state;
    nib_engine_options o;
    nib_engine *e;
    const char *cache = fresh_scratch();
    char folder[800];
    snprintf(folder, sizeof folder, "%s/nibble", cache);
    assert_int_equal(setenv("XDG_CACHE_HOME", cache, 1), 0);
    const char *path = tiny_model("model.gguf", &untied);
    nib_engine_options_init(&o);
    assert_int_equal(nib_engine_open(path, &o, &e, NULL), NIB_OK);
    nib_engine_close(e);
    assert_false(path_exists(folder));
    o.packed = NIB_PACKED_ON;
    assert_int_equal(nib_engine_open(path, &o, &e, NULL), NIB_OK);
    nib_engine_close(e);
    assert_int_equal(find(folder, ".nibpack", NULL), 1);
    o.packed = 7;
    assert_int_equal(nib_engine_open(path, &o, &e, NULL), NIB_E_USAGE);
}

int main(void) {
    process_counted();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_found_again),
        cmocka_unit_test(made_resident_used_streamed),
        cmocka_unit_test(damaged_is_made_anew),
        cmocka_unit_test(damaged_while_it_is_streamed),
        cmocka_unit_test(another_model_makes_another_file),
        cmocka_unit_test(the_disk_tiers_cap_holds),
        cmocka_unit_test(a_full_disk_leaves_nothing),
        cmocka_unit_test(killed_while_it_is_written),
        cmocka_unit_test(two_processes_at_once),
        cmocka_unit_test(every_fault),
        cmocka_unit_test(without_io_uring),
        cmocka_unit_test(nothing_is_written_unasked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
