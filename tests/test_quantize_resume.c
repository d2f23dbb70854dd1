/* A model in smaller formats, by a run that ends before it is done: whatever ends it, the next run completes
 * the file with the bytes of an uninterrupted run. */
#include "base/file.h"
#include "base/mem.h"
#include "quantize/lapack.h"
#include "support/engine.h"
#include "support/faults.h"
#include "support/made.h"
#include "support/quantized.h"
#include "support/sanitized.h"
#include "support/slow.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static int n_left; /* calls of progress until it says no */

static bool count_down(void *user, const char *what, uint64_t done, uint64_t total) {
    (void)user, (void)what, (void)done, (void)total;
    return --n_left != 0;
}

static void test_goes_on(void **state) {
    (void)state;
    const nib_quantize_options q = {.out = small.out, .type = "q4_k_m", .imatrix = "none"};
    nib_engine_options o = engine_usual();
    nib_quantize_report r;
    nib_error err;
    size_t n, m;
    small_choose();
    small_must_make(&q, &r);
    assert_int_equal(r.n_resumed, 0);
    char *wanted = small_read(small.out, &n);
    o.progress = count_down;
    int n_run = 0;
    for (int stop = 1;; stop += slow_is_thinned() ? 9 : 3) {
        unlink(small.out);
        n_left = stop;
        const nib_status status = small_make(&q, &o, &r, &err);
        if (status == NIB_OK)
            break;
        assert_int_equal(status, NIB_E_CANCELLED);
        assert_false(path_exists(small.out));
        assert_true(path_exists(small.part) == (stop > 1)); /* without a finished tensor nothing stays */
        if (n_run++ == (slow_is_thinned() ? 1 : 3)) { /* bytes that disagree with the log are made again */
            FILE *f = fopen(small.part, "r+b");
            fseek(f, -200, SEEK_END);
            fputs("damage", f);
            fclose(f);
        }
    }
    assert_true(n_run > (slow_is_thinned() ? 1 : 3) && r.n_resumed > 0);
    char *found = small_read(small.out, &m);
    assert_int_equal(n, m);
    assert_memory_equal(found, wanted, n);
    /* work of other settings is not continued */
    n_left = 9;
    unlink(small.out);
    assert_int_equal(small_make(&q, &o, &r, &err), NIB_E_CANCELLED);
    const nib_quantize_options other = {.out = small.out, .type = "q8_0", .imatrix = "none"};
    small_must_make(&other, &r);
    assert_int_equal(r.n_resumed, 0);
    mem_free(wanted);
    mem_free(found);
}

static bool all_written; /* but the file has no name yet */

static bool kill_at(void *user, const char *what, uint64_t done, uint64_t total) {
    (void)user;
    if (!strcmp(what, "quantizing")) {
        all_written = done == total;
        if (--n_left == 0)
            kill(getpid(), SIGKILL);
    }
    return true;
}

static bool kill_in_the_end(void *user) {
    (void)user;
    if (all_written)
        kill(getpid(), SIGKILL);
    return false;
}

/* Runs in a process of its own that dies at the n-th piece of rows, or (0) before the finished file gets its
 * name, so its memory is lost. False: it ended by itself. */
static bool killed_at(const nib_quantize_options *q, int n) {
    nib_engine_options o = engine_usual();
    nib_quantize_report r;
    nib_error err;
    int status;
    o.progress = kill_at;
    o.cancel = n ? NULL : kill_in_the_end;
    n_left = n;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(small_make(q, &o, &r, &err) == NIB_OK ? 0 : 1);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status))
        assert_int_equal(WEXITSTATUS(status), 0);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

static void must_equal(const char *wanted, size_t n) {
    size_t m;
    char *found = small_read(small.out, &m);
    assert_int_equal(n, m);
    assert_memory_equal(found, wanted, n);
    mem_free(found);
}

/* Killed at each piece, in single runs and one after the other, and at the end: the bytes are those of one
 * run. The methods differ before the pieces, so they are killed at some pieces only. A sanitizer reports
 * nothing of a killed process, so under it one method is enough for the runs that continue. */
static void test_killed(void **state) {
    (void)state;
    static const tiny_shape one_layer = {TYPE_F32, 1, 256, 288, 4, 2, 128, 64, false};
    const char *const methods[] = {"rtn", "awq", "gptq"};
    small_choose();
    snprintf(small.model, sizeof small.model, "%s", tiny_model("killed.gguf", &one_layer));
    const int n_method = SANITIZED ? 1 : lapack_check(NULL) == NIB_OK ? 3 : 2;
    for (int i = 0; i < n_method; i++) {
        const nib_quantize_options q = {.out = small.out, .type = "q4_k_m", .method = methods[i]};
        nib_quantize_report r;
        size_t n;
        int n_run = 0, n_resumed = 0;
        small_must_make(&q, &r);
        char *wanted = small_read(small.out, &n);
        for (int at = 1;; at += slow_is_thinned() ? 6 : i > 0 ? 5 : 1) {
            unlink(small.out);
            if (!killed_at(&q, at))
                break;
            n_run++;
            assert_false(path_exists(small.out));
            if (at % 2)
                (void)killed_at(&q, 1); /* again, at once */
            small_must_make(&q, &r);
            assert_true(r.n_resumed >= n_resumed && r.n_resumed < r.n_tensor);
            n_resumed = r.n_resumed;
            must_equal(wanted, n);
        }
        assert_true(n_run > (slow_is_thinned() || i > 0 ? 1 : 4) && n_resumed > 5);
        unlink(small.out);
        assert_true(killed_at(&q, 0));
        assert_false(path_exists(small.out));
        small_must_make(&q, &r);
        assert_int_equal(r.n_resumed, r.n_tensor);
        must_equal(wanted, n);
        mem_free(wanted);
    }
}

static nib_status full_disk_step(void *user, nib_error *err) {
    const nib_quantize_options q = {.out = small.out, .type = "q4_0", .imatrix = "none"};
    nib_quantize_report r;
    (void)user;
    unlink(small.part);
    unlink(small.log);
    const nib_status status = small_make(&q, NULL, &r, err);
    assert_true((status == NIB_OK) == path_exists(small.out));
    if (status == NIB_OK) {
        made_file(small.out);
        unlink(small.out);
    }
    return status;
}

static void test_faults(void **state) {
    (void)state;
    small_choose();
    assert_true(fault_sweep(FAULT_WRITE, 5, full_disk_step, NULL) > 10);
    assert_true(fault_sweep(FAULT_READ, 5, full_disk_step, NULL) > 10);
    assert_true(fault_sweep(FAULT_ALLOC, 7, full_disk_step, NULL) > 20);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_goes_on), cmocka_unit_test(test_killed),
                                       cmocka_unit_test(test_faults)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
