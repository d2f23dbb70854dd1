/* Files: whole and partial reads, direct reads at every alignment, faults, writers that leave a whole file or
 * none, paths. */
#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"
#include "support/faults.h"
#include "support/tempdir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static unsigned char pattern_at(uint64_t offset) {
    return (unsigned char)(offset * 2654435761u >> 13);
}

static const char *pattern_file(const char *name, size_t n) {
    unsigned char *data = malloc(n + 1);
    assert_non_null(data);
    for (size_t i = 0; i < n; i++)
        data[i] = pattern_at(i);
    const char *path = temp_file(name, data, n);
    free(data);
    return path;
}

static void check_read(file *f, unsigned char *out, uint64_t offset, size_t n) {
    nib_error err = {NIB_OK, ""};
    memset(out, 0, n);
    if (file_read_at(f, out, offset, n, &err) != NIB_OK)
        fail_msg("%zu bytes at %llu: %s", n, (unsigned long long)offset, err.message);
    for (size_t i = 0; i < n; i++)
        if (out[i] != pattern_at(offset + i))
            fail_msg("%zu bytes at %llu: byte %zu differs", n, (unsigned long long)offset, i);
}

static void reads_at_every_alignment(void **state) {
    (void)state;
    enum { SIZE = 3 * 1024 * 1024 + 777 };
    const char *path = pattern_file("pattern", SIZE);
    unsigned char *buffer = mem_alloc_aligned(FILE_ALIGN, SIZE + 2 * FILE_ALIGN);
    static const uint64_t offsets[] = {0, 1, 4095, 4096, 8192, 100000, SIZE - 5000, SIZE - 1, SIZE};
    static const size_t sizes[] = {0, 1, 100, 4096, 4097, 8192, 70000, 2 * 1024 * 1024 + 5};
    for (unsigned flags = 0; flags <= FILE_DIRECT; flags++) {
        file *f;
        nib_error err;
        assert_int_equal(file_open(path, flags, &f, &err), NIB_OK);
        assert_int_equal(file_size(f), SIZE);
        assert_string_equal(file_path(f), path);
        for (size_t i = 0; i < NUM_COUNT(offsets); i++)
            for (size_t j = 0; j < NUM_COUNT(sizes); j++)
                for (size_t shift = 0; shift < 2; shift++)
                    if (offsets[i] + sizes[j] <= SIZE)
                        check_read(f, buffer + shift, offsets[i], sizes[j]);
        check_read(f, buffer, 0, SIZE);
        check_read(f, buffer + 1, 0, SIZE);
        file_will_need(f, 0, SIZE);
        file_close(f);
    }
    mem_free(buffer);
    file_close(NULL);
}

static void reads_beyond_the_end_say_so(void **state) {
    (void)state;
    const char *path = pattern_file("short", 10000);
    char *buffer = mem_alloc_aligned(FILE_ALIGN, 65536);
    static const struct {
        uint64_t offset, n;
    } cases[] = {{0, 10001},      {9999, 2},           {10000, 1},     {8192, 4096}, {65536, 10},
                 {UINT64_MAX, 2}, {UINT64_MAX - 5, 3}, {INT64_MAX, 1}, {4096, 8192}};
    for (unsigned flags = 0; flags <= FILE_DIRECT; flags++) {
        file *f;
        assert_int_equal(file_open(path, flags, &f, NULL), NIB_OK);
        for (size_t i = 0; i < NUM_COUNT(cases); i++) {
            nib_error err = {NIB_OK, ""};
            assert_int_equal(file_read_at(f, buffer, cases[i].offset, cases[i].n, &err), NIB_E_MODEL);
            assert_non_null(strstr(err.message, path));
            assert_non_null(strstr(err.message, "expected"));
        }
        file_close(f);
    }
    mem_free(buffer);
}

static void wrong_things_are_not_opened(void **state) {
    (void)state;
    file *f = NULL;
    nib_error err;
    assert_int_equal(file_open(temp_path("not there"), 0, &f, &err), NIB_E_NOTFOUND);
    assert_non_null(strstr(err.message, "not there"));
    assert_int_equal(file_open("/", 0, &f, &err), NIB_E_MODEL);
    assert_non_null(strstr(err.message, "folder"));
    const char *pipe_path = temp_path("pipe");
    assert_int_equal(mkfifo(pipe_path, 0600), 0);
    assert_int_equal(file_open(pipe_path, 0, &f, &err), NIB_E_MODEL); /* and does not wait for a writer */
    assert_int_equal(file_open(pipe_path, FILE_DIRECT, &f, &err), NIB_E_MODEL);
    assert_null(f);
}

typedef struct read_job {
    const char *path;
    unsigned flags;
} read_job;

static nib_status read_step(void *user, nib_error *err) {
    const read_job *job = user;
    static char out[300000];
    file *f;
    memset(out, 0, sizeof out); /* not in the page cache from an earlier run */
    NIB_TRY(file_open(job->path, job->flags, &f, err));
    nib_status status = file_read_at(f, out + 1, 5, sizeof out - 10, err);
    if (status == NIB_OK)
        status = file_read_at(f, out, 0, 100, err);
    if (status == NIB_OK)
        fault_made(out, sizeof out);
    file_close(f);
    return status;
}

static nib_status read_all_step(void *user, nib_error *err) {
    char *text;
    size_t n;
    NIB_TRY(file_read_all(user, 1 << 20, &text, &n, err));
    fault_made(text, n);
    mem_free(text);
    return NIB_OK;
}

static void every_fault_is_reported(void **state) {
    (void)state;
    const char *path = pattern_file("faults", 300000);
    for (unsigned flags = 0; flags <= FILE_DIRECT; flags++) {
        read_job job = {path, flags};
        assert_true(fault_sweep(FAULT_ALLOC, 1, read_step, &job) >= 2);
        assert_true(fault_sweep(FAULT_READ, 1, read_step, &job) >= 2);
    }
    assert_true(fault_sweep(FAULT_ALLOC, 1, read_all_step, (void *)path) >= 1);
    assert_true(fault_sweep(FAULT_READ, 1, read_all_step, (void *)path) >= 1);
}

static void whole_files_are_read_within_a_limit(void **state) {
    (void)state;
    char *text;
    size_t n;
    nib_error err;
    const char *path = temp_file("text", "hello\n", 6);
    assert_int_equal(file_read_all(path, 6, &text, &n, &err), NIB_OK);
    assert_int_equal(n, 6);
    assert_string_equal(text, "hello\n");
    mem_free(text);
    assert_int_equal(file_read_all(path, 5, &text, &n, &err), NIB_E_MODEL);
    assert_non_null(strstr(err.message, "at most 5"));
    assert_int_equal(file_read_all("/dev/zero", 100000, &text, &n, &err), NIB_E_MODEL);
    assert_int_equal(file_read_all(temp_file("empty", "", 0), 5, &text, &n, &err), NIB_OK);
    assert_int_equal(n, 0);
    assert_string_equal(text, "");
    mem_free(text);
    assert_int_equal(file_read_all("/", 5, &text, &n, &err), NIB_E_IO);
    assert_int_equal(file_read_all("/nowhere/at/all", 5, &text, &n, &err), NIB_E_NOTFOUND);
    /* a file whose size the system does not say */
    assert_int_equal(file_read_all("/proc/self/status", 1 << 20, &text, &n, &err), NIB_OK);
    assert_non_null(strstr(text, "VmHWM"));
    mem_free(text);
}

static void a_writer_leaves_all_or_nothing(void **state) {
    (void)state;
    nib_error err;
    file_writer *w;
    char *text;
    size_t n;
    const char *path = temp_path("written");
    char *big = mem_alloc(200000);
    memset(big, 'b', 200000);
    assert_int_equal(file_writer_open(path, &w, &err), NIB_OK);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(file_writer_write(w, "0123456789", 10, &err), NIB_OK);
    assert_int_equal(file_writer_write(w, big, 200000, &err), NIB_OK);
    assert_int_equal(file_writer_write(w, NULL, 0, &err), NIB_OK);
    assert_false(path_exists(path)); /* not before the file is whole */
    assert_int_equal(file_writer_commit(w, &err), NIB_OK);
    assert_int_equal(file_read_all(path, 1 << 20, &text, &n, &err), NIB_OK);
    assert_int_equal(n, 210000);
    assert_memory_equal(text + 10000 - 10, "0123456789b", 11);
    mem_free(text);
    mem_free(big);

    assert_int_equal(file_writer_open(path, &w, &err), NIB_OK);
    assert_int_equal(file_writer_write(w, "other", 5, &err), NIB_OK);
    file_writer_abort(w);
    file_writer_abort(NULL);
    assert_int_equal(file_read_all(path, 1 << 20, &text, &n, &err), NIB_OK); /* the old file stays */
    assert_int_equal(n, 210000);
    mem_free(text);
}

static bool yes(void *user) {
    (void)user;
    return true;
}

static void a_writer_asks_before_the_file_appears(void **state) {
    (void)state;
    nib_error err = {NIB_OK, ""};
    file_writer *w;
    const canceller cancelled = {yes, NULL};
    const char *path = temp_path("asked");
    assert_int_equal(file_writer_open(path, &w, &err), NIB_OK);
    file_writer_set_cancel(w, &cancelled);
    assert_int_equal(file_writer_write(w, "text", 4, &err), NIB_OK);
    assert_int_equal(file_writer_commit(w, &err), NIB_E_CANCELLED);
    assert_false(path_exists(path));
}

static void a_writer_ends_as_its_status_says(void **state) {
    (void)state;
    nib_error err;
    file_writer *w;
    char *text;
    size_t n;
    const char *path = temp_path("ended");
    assert_int_equal(file_write_all(path, "first", 5, &err), NIB_OK);
    assert_int_equal(file_writer_open(path, &w, &err), NIB_OK);
    assert_int_equal(file_writer_end(w, file_writer_write(w, "second", 6, &err), &err), NIB_OK);
    assert_int_equal(file_writer_open(path, &w, &err), NIB_OK);
    assert_int_equal(file_writer_write(w, "third", 5, &err), NIB_OK);
    assert_int_equal(file_writer_end(w, NIB_E_MODEL, &err), NIB_E_MODEL);
    assert_int_equal(file_write_all("/dev/full", "x", 1, &err), NIB_E_IO);
    fault_arm(FAULT_WRITE, 1);
    assert_int_equal(file_write_all(path, "fourth", 6, &err), NIB_E_IO);
    fault_arm(FAULT_WRITE, 0);
    assert_int_equal(file_read_all(path, 100, &text, &n, &err), NIB_OK);
    assert_string_equal(text, "second");
    mem_free(text);
}

static void a_writer_follows_links_and_keeps_devices(void **state) {
    (void)state;
    nib_error err;
    file_writer *w;
    struct stat info;
    const char *target = temp_file("target", "old", 3), *link_path = temp_path("link");
    assert_int_equal(symlink(target, link_path), 0);
    assert_int_equal(file_writer_open(link_path, &w, &err), NIB_OK);
    assert_int_equal(file_writer_write(w, "new!", 4, &err), NIB_OK);
    assert_int_equal(file_writer_commit(w, &err), NIB_OK);
    assert_int_equal(lstat(link_path, &info), 0);
    assert_true(S_ISLNK(info.st_mode));
    assert_int_equal(stat(target, &info), 0);
    assert_int_equal(info.st_size, 4);

    assert_int_equal(file_writer_open("/dev/full", &w, &err), NIB_OK);
    assert_int_equal(file_writer_write(w, "x", 1, &err), NIB_OK); /* buffered */
    assert_int_equal(file_writer_commit(w, &err), NIB_E_IO);
    assert_non_null(strstr(err.message, "/dev/full"));
    assert_int_equal(stat("/dev/full", &info), 0);
    assert_true(S_ISCHR(info.st_mode));
    assert_int_equal(file_writer_open("/nowhere/at/all", &w, &err), NIB_E_IO);
    assert_int_equal(file_writer_open("/", &w, &err), NIB_E_IO);
}

/* Larger than one write to the disk, with a hole in the middle. */
static void a_large_file_is_whole(void **state) {
    (void)state;
    enum { PART = 19 << 20, HOLE = 9 << 20, ONCE = 700001 };
    nib_error err = {NIB_OK, ""};
    file_writer *w;
    file *f;
    unsigned char *data = malloc(PART), *seen = malloc(PART), zeros[64] = {0};
    const char *path = temp_path("large");
    assert_true(data && seen);
    for (size_t i = 0; i < PART; i++)
        data[i] = pattern_at(i);
    assert_int_equal(file_writer_open(path, &w, &err), NIB_OK);
    for (int part = 0; part < 2; part++) {
        for (size_t at = 0; at < PART; at += ONCE)
            assert_int_equal(file_writer_write(w, data + at, NUM_MIN(PART - at, (size_t)ONCE), &err), NIB_OK);
        if (part == 0)
            assert_int_equal(file_writer_hole(w, HOLE, &err), NIB_OK);
    }
    assert_int_equal(file_writer_commit(w, &err), NIB_OK);
    assert_int_equal(file_open(path, 0, &f, &err), NIB_OK);
    assert_int_equal(file_size(f), 2 * (uint64_t)PART + HOLE);
    for (int part = 0; part < 2; part++) {
        assert_int_equal(file_read_at(f, seen, part * ((uint64_t)PART + HOLE), PART, &err), NIB_OK);
        assert_memory_equal(seen, data, PART);
    }
    assert_int_equal(file_read_at(f, seen, PART + HOLE - sizeof zeros, sizeof zeros, &err), NIB_OK);
    assert_memory_equal(seen, zeros, sizeof zeros);
    file_close(f);
    assert_int_equal(unlink(path), 0);
    free(data);
    free(seen);
}

static void paths_are_joined(void **state) {
    (void)state;
    static const char *const cases[][3] = {
        {"a", "b", "a/b"}, {"a/", "b", "a/b"}, {"a//", "b", "a/b"}, {"/", "b", "/b"}, {"", "b", "b"}};
    for (size_t i = 0; i < NUM_COUNT(cases); i++) {
        char *path = path_join(cases[i][0], cases[i][1]);
        assert_string_equal(path, cases[i][2]);
        mem_free(path);
    }
    assert_true(path_is_dir("/"));
    assert_false(path_is_dir("/etc/passwd"));
    assert_false(path_exists(temp_path("nothing here")));
    setenv("XDG_CACHE_HOME", "/x/cache", 1);
    char *path = path_cache_dir();
    assert_string_equal(path, "/x/cache/nibble");
    mem_free(path);
    setenv("XDG_CACHE_HOME", "relative", 1); /* counts as not set */
    setenv("HOME", "/home/me", 1);
    path = path_cache_dir();
    assert_string_equal(path, "/home/me/.cache/nibble");
    mem_free(path);
    unsetenv("XDG_DATA_HOME");
    path = path_data_dir();
    assert_string_equal(path, "/home/me/.local/share/nibble");
    mem_free(path);
    unsetenv("HOME");
    path = path_data_dir();
    assert_non_null(path);
    mem_free(path);
}

/* In a process of its own: root, which may write everywhere, becomes a user that may not. */
static bool is_refused(const char *path, const char *reason) {
    fflush(NULL);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        nib_error err = {NIB_OK, ""};
        const bool nobody = geteuid() || (setegid(65534) == 0 && seteuid(65534) == 0);
        const nib_status status = path_make_folders(path, &err);
        _exit(!(nobody && status == NIB_E_IO && strstr(err.message, "cannot make the folder") &&
                strstr(err.message, reason)));
    }
    int how;
    assert_int_equal(waitpid(pid, &how, 0), pid);
    return WIFEXITED(how) && WEXITSTATUS(how) == 0;
}

static void folders_that_cannot_be_made_say_why(void **state) {
    (void)state;
    char path[1024];
    assert_int_equal(mkdir(temp_path("locked"), 0555), 0);
    snprintf(path, sizeof path, "%s/a/b/file", temp_path("locked"));
    assert_true(is_refused(path, "Permission denied"));
    nib_error err;
    snprintf(path, sizeof path, "%s/a/b", temp_file("plain", "x", 1));
    assert_int_equal(path_make_folders(path, &err), NIB_E_IO);
    assert_non_null(strstr(err.message, "plain/a: cannot make the folder: Not a directory"));
    snprintf(path, sizeof path, "%s/made/twice/file", temp_path("some"));
    assert_int_equal(path_make_folders(path, &err), NIB_OK);
    assert_int_equal(path_make_folders(path, &err), NIB_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_at_every_alignment),
        cmocka_unit_test(reads_beyond_the_end_say_so),
        cmocka_unit_test(wrong_things_are_not_opened),
        cmocka_unit_test(every_fault_is_reported),
        cmocka_unit_test(whole_files_are_read_within_a_limit),
        cmocka_unit_test(a_writer_leaves_all_or_nothing),
        cmocka_unit_test(a_writer_asks_before_the_file_appears),
        cmocka_unit_test(a_writer_ends_as_its_status_says),
        cmocka_unit_test(a_writer_follows_links_and_keeps_devices),
        cmocka_unit_test(a_large_file_is_whole),
        cmocka_unit_test(paths_are_joined),
        cmocka_unit_test(folders_that_cannot_be_made_say_why),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
