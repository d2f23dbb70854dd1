/* The pool: every thread runs, barriers hold, work is split without gaps; the number of processors.
 */
#include "base/mem.h"
#include "base/num.h"
#include "base/thread.h"
#include "support/faults.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <sys/resource.h>
#include <unistd.h>

enum { MAX = 5 };

typedef struct job {
    int64_t runs[MAX];
    int64_t stage[MAX]; /* plain memory: only the barriers keep threads from racing */
    int64_t wrong;
} job;

static void count_stages(void *arg, int thread, int n_thread, pool *p) {
    job *j = arg;
    j->runs[thread]++;
    for (int64_t s = 1; s <= 20; s++) {
        j->stage[thread] = s;
        pool_barrier(p);
        for (int t = 0; t < n_thread; t++)
            if (j->stage[t] != s)
                __atomic_fetch_add(&j->wrong, 1, __ATOMIC_RELAXED);
        pool_barrier(p);
    }
}

static pool *current;

static void stages(void *arg, int thread, int n_thread) {
    count_stages(arg, thread, n_thread, current);
}

static void every_thread_runs_and_barriers_hold(void **state) {
    (void)state;
    for (int n = 1; n <= MAX; n++) {
        nib_error err;
        job j = {0};
        assert_int_equal(pool_open(n, &current, &err), NIB_OK);
        assert_int_equal(pool_size(current), n);
        for (int i = 0; i < 50; i++) {
            if (i % 25 == 24)
                usleep(3000); /* the threads have gone to sleep by then */
            pool_run(current, stages, &j);
        }
        for (int t = 0; t < n; t++)
            assert_int_equal(j.runs[t], 50);
        assert_int_equal(j.wrong, 0);
        pool_close(current);
    }
    pool_close(NULL);
}

static void add_part(void *arg, int thread, int n_thread) {
    int64_t *sums = arg, begin, end;
    pool_split(1000, 1, thread, n_thread, &begin, &end);
    sums[thread] = 0;
    for (int64_t i = begin; i < end; i++)
        sums[thread] += i;
}

static void results_are_there_when_run_returns(void **state) {
    (void)state;
    assert_int_equal(pool_open(3, &current, NULL), NIB_OK);
    for (int i = 0; i < 500; i++) {
        int64_t sums[3] = {0};
        pool_run(current, add_part, sums);
        assert_int_equal(sums[0] + sums[1] + sums[2], 999 * 1000 / 2);
    }
    pool_close(current);
}

static nib_status open_step(void *user, nib_error *err) {
    (void)user;
    pool *p;
    NIB_TRY(pool_open(3, &p, err));
    pool_close(p);
    return NIB_OK;
}

static void opening_fails_cleanly(void **state) {
    (void)state;
    pool *p = NULL;
    nib_error err;
    assert_int_equal(pool_open(0, &p, &err), NIB_E_USAGE);
    assert_int_equal(pool_open(-4, &p, &err), NIB_E_USAGE);
    assert_int_equal(pool_open(1 << 20, &p, &err), NIB_E_USAGE);
    assert_null(p);
    assert_true(fault_sweep(FAULT_ALLOC, 1, open_step, NULL) >= 2);
}

static void splits_cover_everything_once(void **state) {
    (void)state;
    static const int64_t counts[] = {0, 1, 15, 16, 17, 100, 576, 49152, INT64_C(1) << 40};
    static const int64_t units[] = {1, 16, 64};
    for (size_t c = 0; c < NUM_COUNT(counts); c++)
        for (size_t u = 0; u < NUM_COUNT(units); u++)
            for (int n = 1; n <= 33; n++) {
                int64_t at = 0, max = 0, min = INT64_MAX;
                for (int t = 0; t < n; t++) {
                    int64_t begin, end;
                    pool_split(counts[c], units[u], t, n, &begin, &end);
                    assert_true(begin == at && end >= begin);
                    assert_true(begin % units[u] == 0 || begin == counts[c]);
                    at = end;
                    max = NUM_MAX(max, end - begin);
                    min = NUM_MIN(min, end - begin);
                }
                assert_true(at == counts[c]);
                assert_true(max - min < 2 * units[u]); /* fair to one unit */
            }
}

static void count_one(void *arg, int thread, int n_thread) {
    int *cpus = arg;
    (void)n_thread;
    cpus[thread] = sched_getcpu();
}

/* With a thread for each core no two threads share a core. Afterwards the caller has its former affinity, and
 * a caller with a restricted affinity keeps it. */
static void the_caller_stays_on_its_core_for_a_while(void **state) {
    (void)state;
    const int n = thread_physical_cores();
    cpu_set_t before, within, after, one;
    int *cpus = calloc((size_t)n, sizeof *cpus);
    pool *p = NULL;
    assert_int_equal(pool_open(n, &p, NULL), NIB_OK);
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    pool_pin_caller(p);
    assert_int_equal(sched_getaffinity(0, sizeof within, &within), 0);
    for (int turn = 0; turn < 20; turn++)
        pool_run(p, count_one, cpus);
    for (int i = 0; i < n && CPU_COUNT(&within) == 1; i++)
        for (int j = 0; j < i; j++)
            assert_int_not_equal(cpus[i], cpus[j]);
    pool_unpin_caller(p);
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&before, &after));

    int last = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        last = CPU_ISSET(cpu, &before) ? cpu : last;
    CPU_ZERO(&one);
    CPU_SET(last, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    pool_pin_caller(p);
    assert_int_equal(sched_getaffinity(0, sizeof within, &within), 0);
    assert_true(CPU_EQUAL(&one, &within));
    pool_unpin_caller(p);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    pool_close(p);
    free(cpus);
}

static void short_turns_keep_the_thread_as_it_was(void **state) {
    (void)state;
    const int policy = sched_getscheduler(0), nice = getpriority(PRIO_PROCESS, 0);
    thread_short_slices();
    assert_int_equal(sched_getscheduler(0), policy);
    assert_int_equal(getpriority(PRIO_PROCESS, 0), nice);
}

static void cores_and_time(void **state) {
    (void)state;
    assert_true(thread_physical_cores() >= 1);
    double a = time_now(), b = time_now();
    assert_true(b >= a && a > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_thread_runs_and_barriers_hold),
        cmocka_unit_test(results_are_there_when_run_returns),
        cmocka_unit_test(opening_fails_cleanly),
        cmocka_unit_test(splits_cover_everything_once),
        cmocka_unit_test(the_caller_stays_on_its_core_for_a_while),
        cmocka_unit_test(short_turns_keep_the_thread_as_it_was),
        cmocka_unit_test(cores_and_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
