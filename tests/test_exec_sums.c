/* test_exec_sums.c - sums over ranks (exec/sums.h): threads stand for the processes. */
#include "exec/sums.h"

#include "base/mem.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { N_RANK = 3, WIDTH = 48, N_PASS = 4, N_SUM = 5, MAX_ROWS = 3 };

typedef struct rank {
    rank_sums *s;
    int number;
    float out[N_PASS][N_SUM][MAX_ROWS * WIDTH];
    nib_status status;
} rank;

static struct {
    void *memory;
    uint64_t n_byte;
    rank ranks[N_RANK];
    pthread_barrier_t between; /* passes */
} all;

static atomic_bool ended;

static bool has_ended(void *user) {
    (void)user;
    return ended;
}

static void open_all(void) {
    const canceller gone = {has_ended, NULL};
    ended = false;
    all.n_byte = sums_bytes(N_RANK, WIDTH);
    all.memory = mem_map(all.n_byte);
    assert_non_null(all.memory);
    for (int r = 0; r < N_RANK; r++) {
        all.ranks[r].number = r;
        assert_int_equal(sums_open(all.memory, r, N_RANK, WIDTH, &gone, &all.ranks[r].s, NULL), NIB_OK);
    }
}

static void close_all(void) {
    for (int r = 0; r < N_RANK; r++)
        sums_close(all.ranks[r].s);
    mem_unmap(all.memory, all.n_byte);
}

/* What a rank adds: large and small numbers, so that their order counts. */
static float part(int pass, int sum, int i, int r) {
    const float x = (float)((i * 37 + sum * 11 + pass * 5 + r * 101) % 97) - 48;
    return r == 1 ? x * 1e6f : x / 3;
}

static nib_status add(const rank *r, uint64_t tag, const float *in, float *out, int n, nib_error *err) {
    const uint64_t now = sums_now(r->s);
    memcpy(sums_own(r->s, now), in, (size_t)n * sizeof *in);
    sums_publish(r->s, now, tag);
    NIB_TRY(sums_wait(r->s, now, tag, err));
    for (int i = 0; i < n; i++) {
        out[i] = sums_of(r->s, now, 0)[i];
        for (int from = 1; from < N_RANK; from++)
            out[i] += sums_of(r->s, now, from)[i];
    }
    return NIB_OK;
}

static void *compute(void *user) {
    rank *r = user;
    float in[MAX_ROWS * WIDTH];
    for (int pass = 0; pass < N_PASS; pass++) {
        pthread_barrier_wait(&all.between);
        sums_begin(r->s, pass + 1);
        for (int sum = 0; sum < N_SUM && r->status == NIB_OK; sum++) {
            const int n = (1 + sum % MAX_ROWS) * WIDTH;
            for (int i = 0; i < n; i++)
                in[i] = part(pass, sum, i, r->number);
            r->status = add(r, (uint64_t)sum, in, r->out[pass][sum], n, NULL);
        }
    }
    return NULL;
}

/* All ranks have the same bits: those of the sum in the order of the ranks. */
static void test_order(void **state) {
    pthread_t threads[N_RANK];
    (void)state;
    open_all();
    assert_true(sums_max_rows(all.ranks[0].s) >= MAX_ROWS);
    pthread_barrier_init(&all.between, NULL, N_RANK);
    for (int r = 0; r < N_RANK; r++)
        assert_int_equal(pthread_create(&threads[r], NULL, compute, &all.ranks[r]), 0);
    for (int r = 0; r < N_RANK; r++)
        pthread_join(threads[r], NULL);
    pthread_barrier_destroy(&all.between);
    for (int r = 0; r < N_RANK; r++) {
        assert_int_equal(all.ranks[r].status, NIB_OK);
        for (int pass = 0; pass < N_PASS; pass++)
            for (int sum = 0; sum < N_SUM; sum++)
                for (int i = 0; i < (1 + sum % MAX_ROWS) * WIDTH; i++) {
                    const float want = part(pass, sum, i, 0) + part(pass, sum, i, 1) + part(pass, sum, i, 2);
                    assert_memory_equal(&all.ranks[r].out[pass][sum][i], &want, sizeof want);
                }
    }
    close_all();
}

/* Rank 0 waits alone. */
static nib_status wait_alone(int64_t pass, nib_error *err) {
    rank_sums *s = all.ranks[0].s;
    sums_begin(s, pass);
    const uint64_t now = sums_now(s);
    sums_publish(s, now, 7);
    return sums_wait(s, now, 7, err);
}

static void *fail_later(void *user) {
    sums_fail(user, 1);
    return NULL;
}

static void test_failures(void **state) {
    pthread_t other;
    nib_error err;
    (void)state;
    open_all();
    for (int r = 1; r < N_RANK; r++)
        sums_begin(all.ranks[r].s, 1);
    assert_int_equal(pthread_create(&other, NULL, fail_later, all.ranks[2].s), 0);
    assert_int_equal(wait_alone(1, &err), NIB_E_CANCELLED);
    pthread_join(other, NULL);
    ended = true;
    assert_int_equal(wait_alone(2, &err), NIB_E_IO); /* the failure was of the pass before */
    ended = false;
    for (int r = 1; r < N_RANK; r++) {
        sums_begin(all.ranks[r].s, 3);
        sums_publish(all.ranks[r].s, sums_now(all.ranks[r].s), 6 + (uint64_t)r);
    }
    assert_int_equal(wait_alone(3, &err), NIB_E_FAILED);
    assert_string_equal(err.message, "expected rows 7 of rank 2, found rows 8");
    close_all();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_order), cmocka_unit_test(test_failures)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
