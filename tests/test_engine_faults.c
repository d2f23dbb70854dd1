/* The n-th allocation and the n-th read of a whole life of an engine fail, for every n: open, prompt, a few
 * tokens, close; resident and streamed. Also a file that is changed or truncated while its weights are
 * streamed. */
#include "base/mem.h"
#include "nib.h"
#include "support/engine.h"
#include "support/faults.h"
#include "support/process.h"
#include "support/tinymodel.h"
#include "memory/ledger.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static const tiny_shape small = {TYPE_Q4_0, 2, 64, 96, 4, 2, 300, 64, false};
static const tiny_shape large = {TYPE_Q8_0, 8, 256, 768, 8, 2, 8192, 64, true};

typedef struct life {
    const char *path;
    uint64_t headroom; /* the cap is the process's memory plus this; NIB_AUTO: no cap */
    const char *backend;
} life;

static nib_status live(void *user, nib_error *err) {
    const life *l = user;
    nib_engine_options o;
    nib_result result;
    nib_engine_options_init(&o);
    o.n_thread = 2;
    o.backend = l->backend;
    o.stream = l->headroom != NIB_AUTO;
    o.ram = o.stream ? process_bytes() + l->headroom : NIB_AUTO;
    const nib_status status = engine_life(l->path, &o, NULL, 2, &result, err);
    nib_result_clear(&result);
    return status;
}

static void every_allocation(void **state) {
    (void)state;
    life l = {tiny_model("small.gguf", &small), NIB_AUTO, "cpu"};
    assert_true(fault_sweep(FAULT_ALLOC, 1, live, &l) > 20);
    l.backend = "check";
    assert_true(fault_sweep(FAULT_ALLOC, 1, live, &l) > 20);
}

static void every_read(void **state) {
    (void)state;
    life l = {tiny_model("small.gguf", &small), NIB_AUTO, NULL}; /* one read has all its weights */
    assert_true(fault_sweep(FAULT_READ, 1, live, &l) > 2);
    l.path = tiny_model("large.gguf", &large);
    assert_true(fault_sweep(FAULT_READ, 1, live, &l) > 10);
}

/* Reads that are started, and fail or end early: by io_uring, and by threads. */
static void every_read_in_flight(void **state) {
    (void)state;
    life l = {tiny_model("large.gguf", &large), NIB_AUTO, NULL};
    const uint64_t half = tiny_model_half_bytes(l.path);
    for (int i = 0; i < 4; i++) {
        l.headroom = i & 1 ? half : NIB_AUTO;
        fault_arm(FAULT_RING, i & 2 ? FAULT_EVERY : 0);
        fault_sweep(FAULT_DONE, 16, live, &l);
        fault_sweep(FAULT_SHORT, 16, live, &l);
        fault_arm(FAULT_RING, 0);
    }
}

static void every_fault_while_streaming(void **state) {
    (void)state;
    life l = {tiny_model("large.gguf", &large), 0, NULL};
    l.headroom = tiny_model_half_bytes(l.path);
    fault_sweep(FAULT_ALLOC, 16, live, &l);
    fault_sweep(FAULT_READ, 16, live, &l);
}

static nib_engine *open_streamed(const char *path) {
    nib_engine_options o;
    nib_engine *e = NULL;
    nib_error err = {0};
    nib_engine_options_init(&o);
    o.n_thread = 2;
    o.ram = tiny_model_half_bytes(path); /* opens and closes an engine: before the process is measured */
    o.ram += process_bytes();
    o.stream = true;
    if (nib_engine_open(path, &o, &e, &err))
        fail_msg("%s", err.message);
    return e;
}

/* Reads in flight may see the old or the new file; the change is noticed within a few passes. */
static nib_status run_until_noticed(nib_session *s, nib_error *err) {
    int32_t tokens[4] = {1, 2, 3, 4};
    nib_status status = NIB_OK;
    for (int i = 0; i < 4 && status == NIB_OK; i++) {
        tokens[0] = i;
        status = nib_session_sync(s, tokens, 4, err);
    }
    return status;
}

static void a_changed_file_is_noticed(void **state) {
    (void)state;
    nib_error err = {0};
    nib_session *s = NULL;
    const char *path = tiny_model("large.gguf", &large);
    nib_engine *e = open_streamed(path);
    assert_int_equal(nib_session_open(e, NULL, &s, &err), NIB_OK);
    assert_int_equal(run_until_noticed(s, &err), NIB_OK);
    struct stat before;
    assert_int_equal(stat(path, &before), 0);
    struct timespec times[2] = {before.st_atim, {before.st_mtim.tv_sec - 5, 0}};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    assert_int_equal(run_until_noticed(s, &err), NIB_E_IO);
    assert_non_null(strstr(err.message, "changed"));
    /* the session is still usable once the file is as it was */
    times[1] = before.st_mtim;
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    assert_int_equal(run_until_noticed(s, &err), NIB_OK);
    assert_int_equal(truncate(path, 4096), 0);
    assert_true(run_until_noticed(s, &err) != NIB_OK);
    assert_true(run_until_noticed(s, &err) != NIB_OK);
    nib_session_close(s);
    nib_engine_close(e);
}

/* ---- a session lives on ---- */

enum { PROMPT = 9 };

/* Computes the prompt again. */
static nib_status prompt_again(nib_session *s, nib_error *err) {
    const int32_t other[1] = {7};
    int32_t tokens[PROMPT];
    for (int i = 0; i < PROMPT; i++)
        tokens[i] = 100 + 31 * i;
    const nib_status status = nib_session_sync(s, other, 1, err);
    return status != NIB_OK ? status : nib_session_sync(s, tokens, PROMPT, err);
}

static void a_read_error_ends_one_call_only(void **state) {
    (void)state;
    static float expected[8192];
    nib_error err = {0};
    nib_session *s = NULL;
    nib_engine *e = open_streamed(tiny_model("large.gguf", &large));
    assert_int_equal(nib_session_open(e, NULL, &s, &err), NIB_OK);
    assert_int_equal(prompt_again(s, &err), NIB_OK);
    memcpy(expected, nib_session_logits(s), sizeof expected);
    int n_error = 0;
    for (int n = 1; n < 120; n += 7) {
        fault_arm(FAULT_READ, n);
        const nib_status status = prompt_again(s, &err);
        fault_arm(FAULT_READ, 0);
        if (status != NIB_OK) {
            n_error++;
            assert_int_equal(status, NIB_E_IO);
            assert_non_null(strstr(err.message, "large.gguf"));
        }
        /* an error of a prefetched page may be returned by the next call, once */
        if (prompt_again(s, &err) != NIB_OK)
            assert_int_equal(prompt_again(s, &err), NIB_OK);
        assert_memory_equal(nib_session_logits(s), expected, sizeof expected);
    }
    assert_true(n_error > 3);
    nib_session_close(s);
    nib_engine_close(e);
}

static atomic_int stop_cancelling;

static void *cancel_often(void *arg) {
    struct timespec pause = {0, 300000};
    while (!atomic_load(&stop_cancelling)) {
        nib_session_cancel(arg);
        nanosleep(&pause, NULL);
    }
    return NULL;
}

static void a_pass_can_be_cancelled_anywhere(void **state) {
    (void)state;
    static float expected[8192];
    nib_error err = {0};
    nib_session *s = NULL;
    pthread_t thread;
    nib_engine *e = open_streamed(tiny_model("large.gguf", &large));
    assert_int_equal(nib_session_open(e, NULL, &s, &err), NIB_OK);
    assert_int_equal(prompt_again(s, &err), NIB_OK);
    memcpy(expected, nib_session_logits(s), sizeof expected);
    assert_int_equal(pthread_create(&thread, NULL, cancel_often, s), 0);
    for (int i = 0; i < 60; i++) {
        const nib_status status = prompt_again(s, &err);
        assert_true(status == NIB_OK || status == NIB_E_CANCELLED);
    }
    atomic_store(&stop_cancelling, 1);
    pthread_join(thread, NULL);
    nib_session_cancel_clear(s); /* the last fault came while nothing was computed */
    assert_int_equal(prompt_again(s, &err), NIB_OK);
    assert_memory_equal(nib_session_logits(s), expected, sizeof expected);
    nib_session_close(s);
    nib_engine_close(e);
}

int main(void) {
    process_counted();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_allocation),
        cmocka_unit_test(every_read),
        cmocka_unit_test(every_read_in_flight),
        cmocka_unit_test(every_fault_while_streaming),
        cmocka_unit_test(a_changed_file_is_noticed),
        cmocka_unit_test(a_read_error_ends_one_call_only),
        cmocka_unit_test(a_pass_can_be_cancelled_anywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
