/* Sums over ranks on a CUDA device, which stands for all GPUs: each rank has a stream and memory of its own.
 * Skipped without a device.
 *   test_kernels_cuda_reduce [PATTERN]: the tests with such names */
#include "support/gpu.h"
#include "support/matrix.h"

#include "base/num.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N = 4096 + 64, MAX_ROWS = 37, MAX_RANK = 4, MAX_PAIR = 1 << 14 /* about 8 rows */ };

typedef struct ranks {
    int n;
    cuda_stream streams[MAX_RANK];
    void *places[MAX_RANK];
    float *x[MAX_RANK], *x_there[MAX_RANK], *out[MAX_RANK];
    float *before; /* [MAX_ROWS, N], of out */
    int64_t *pass;
    int64_t *failed, *failed_there; /* a page of the host */
} ranks;

enum { ROWS = MAX_ROWS * N, PAGE = 4096 };

static ranks ranks_open(int n) {
    ranks r = {.n = n};
    const size_t bytes = (size_t)cuda_reduce_bytes(n, MAX_PAIR);
    void *there;
    r.before = random_rows(ROWS, 9, 1);
    r.pass = device_new(sizeof *r.pass);
    r.failed = aligned_alloc(PAGE, PAGE);
    memset(r.failed, 0, PAGE);
    OK(cuda->map(r.failed, PAGE, &there));
    r.failed_there = there;
    for (int i = 0; i < n; i++) {
        cuda_handle handle;
        OK(cuda->stream_new(&r.streams[i]));
        OK(cuda->share_new(&r.places[i], bytes, &handle));
        r.x[i] = random_rows(ROWS, (uint64_t)i + 1, 1);
        r.x_there[i] = device_copy(r.x[i], ROWS * sizeof(float));
        r.out[i] = device_new(ROWS * sizeof(float));
    }
    return r;
}

static void ranks_close(ranks *r) {
    for (int i = 0; i < r->n; i++) {
        OK(cuda->stream_free(r->streams[i]));
        OK(cuda->release(r->places[i]));
        free(r->x[i]);
        drop(r->x_there[i]), drop(r->out[i]);
    }
    OK(cuda->unpin(r->failed));
    free(r->failed), free(r->before);
    drop(r->pass);
}

static cuda_reduce ask(const ranks *r, int rank, int64_t n_row, bool adds, int64_t first) {
    cuda_reduce a = {.x = r->x_there[rank],
                     .out = r->out[rank],
                     .ldx = N,
                     .ldo = N,
                     .n_row = n_row,
                     .n = N,
                     .adds = adds,
                     .rank = rank,
                     .n_rank = r->n,
                     .max_pair = MAX_PAIR,
                     .pass = r->pass,
                     .first = first,
                     .failed = r->failed_there};
    memcpy(a.places, r->places, (size_t)r->n * sizeof *a.places);
    return a;
}

static void set_pass(const ranks *r, int64_t pass) {
    OK(cuda->to_device(r->pass, &pass, sizeof pass, stream));
    OK(cuda->stream_sync(stream));
}

static void check(const ranks *r, int64_t n_row, int n_times) {
    float *got = malloc(ROWS * sizeof *got);
    for (int i = 0; i < r->n; i++) {
        read_back(got, r->out[i], (size_t)(n_row * N) * sizeof *got);
        for (int64_t e = 0; e < n_row * N; e++) {
            float sum = r->x[0][e], want = n_times ? r->before[e] : 0;
            for (int k = 1; k < r->n; k++)
                sum += r->x[k][e];
            want = n_times ? want : sum;
            for (int t = 0; t < n_times; t++)
                want += sum;
            assert_memory_equal(&got[e], &want, sizeof want);
        }
    }
    free(got);
}

/* All ranks have the sum in the order of the ranks, for any number of rows, and time after time. */
static void test_sums(void **state) {
    static const int64_t rows[] = {1, 2, 7, 16, 17, MAX_ROWS};
    (void)state;
    for (int n = 2; n <= MAX_RANK; n++) {
        ranks r = ranks_open(n);
        for (size_t t = 0; t < NUM_COUNT(rows); t++) {
            const int64_t parts = cuda_reduce_parts(rows[t], N, MAX_PAIR);
            set_pass(&r, (int64_t)t + 1);
            for (int i = 0; i < n; i++) {
                const cuda_reduce a = ask(&r, i, rows[t], false, 0);
                OK(cuda->reduce(&a, r.streams[i]));
            }
            for (int i = 0; i < n; i++)
                OK(cuda->stream_sync(r.streams[i]));
            check(&r, rows[t], 0);
            enum { TIMES = 5 };
            for (int i = 0; i < n; i++)
                OK(cuda->to_device(r.out[i], r.before, ROWS * sizeof *r.before, stream));
            OK(cuda->stream_sync(stream));
            for (int time = 0; time < TIMES; time++)
                for (int i = 0; i < n; i++) {
                    const cuda_reduce a = ask(&r, i, rows[t], true, (time + 1) * parts);
                    OK(cuda->reduce(&a, r.streams[i]));
                }
            for (int i = 0; i < n; i++)
                OK(cuda->stream_sync(r.streams[i]));
            check(&r, rows[t], TIMES);
            assert_int_equal(*r.failed, 0);
        }
        ranks_close(&r);
    }
}

/* A rank that waits ends when another says that it has failed, and by itself after some seconds. */
static void test_failures(void **state) {
    (void)state;
    ranks r = ranks_open(2);
    const cuda_reduce a = ask(&r, 0, 1, false, 0);
    set_pass(&r, 1);
    OK(cuda->reduce(&a, r.streams[0]));
    *(volatile int64_t *)r.failed = 1;
    OK(cuda->stream_sync(r.streams[0]));
    set_pass(&r, 2);
    OK(cuda->reduce(&a, r.streams[0]));
    OK(cuda->stream_sync(r.streams[0]));
    assert_int_equal(*(volatile int64_t *)r.failed, 2);
    ranks_close(&r);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sums), cmocka_unit_test(test_failures)};
    if (!gpu_open(argc, argv))
        return gpu_missing();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
