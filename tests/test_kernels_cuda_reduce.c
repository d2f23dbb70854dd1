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

enum {
    N = 4096 + 64,
    MAX_ROWS = 301 /* many: reduce_many.cu */,
    MAX_RANK = 4,
    MAX_PAIR = 1 << 14 /* about 8 rows */
};

typedef struct ranks {
    int n;
    cuda_stream streams[MAX_RANK];
    void *places[MAX_RANK];
    float *x[MAX_RANK], *x_there[MAX_RANK], *out[MAX_RANK];
    float *before;                     /* [MAX_ROWS, N], of out */
    int64_t *pass[MAX_RANK], *numbers; /* numbers: 0, 1, ... */
    int64_t *failed, *failed_there;    /* a page of the host */
} ranks;

enum { ROWS = MAX_ROWS * N, PAGE = 4096, MAX_PASS = 100 };

static ranks ranks_open(int n) {
    ranks r = {.n = n};
    const size_t bytes = (size_t)cuda_ranks_bytes(n, MAX_PAIR);
    void *there;
    r.before = random_rows(ROWS, 9, 1);
    int64_t numbers[MAX_PASS];
    for (int i = 0; i < MAX_PASS; i++)
        numbers[i] = i;
    r.numbers = device_copy(numbers, sizeof numbers);
    r.failed = aligned_alloc(PAGE, PAGE);
    memset(r.failed, 0, PAGE);
    OK(cuda->map(r.failed, PAGE, &there));
    r.failed_there = there;
    for (int i = 0; i < n; i++) {
        cuda_handle handle;
        OK(cuda->stream_new(&r.streams[i]));
        r.pass[i] = device_new(sizeof *r.pass[i]);
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
        drop(r->x_there[i]), drop(r->out[i]), drop(r->pass[i]);
    }
    OK(cuda->unpin(r->failed));
    free(r->failed), free(r->before);
    drop(r->numbers);
}

static cuda_ranks of_rank(const ranks *r, int rank, int64_t first) {
    cuda_ranks of = {.rank = rank,
                     .n_rank = r->n,
                     .max_pair = MAX_PAIR,
                     .pass = r->pass[rank],
                     .first = first,
                     .failed = r->failed_there};
    memcpy(of.places, r->places, (size_t)r->n * sizeof *of.places);
    return of;
}

static cuda_reduce ask(const ranks *r, int rank, int64_t n_row, bool adds, int64_t first) {
    return (cuda_reduce){.x = r->x_there[rank],
                         .out = r->out[rank],
                         .ldx = N,
                         .ldo = N,
                         .n_row = n_row,
                         .n = N,
                         .adds = adds,
                         .of = of_rank(r, rank, first)};
}

/* Begins a pass on all ranks, which have ended the one before. */
static void set_pass(const ranks *r, int64_t pass) {
    for (int i = 0; i < r->n; i++)
        OK(cuda->on_device(r->pass[i], r->numbers + pass, sizeof *r->pass[i], r->streams[i]));
}
static void wait_all(const ranks *r) {
    for (int i = 0; i < r->n; i++)
        OK(cuda->stream_sync(r->streams[i]));
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
    static const int64_t rows[] = {1, 2, 7, 16, 17, 37, 150, MAX_ROWS};
    (void)state;
    for (int n = 2; n <= MAX_RANK; n++) {
        ranks r = ranks_open(n);
        for (size_t t = 0; t < NUM_COUNT(rows); t++) {
            const int64_t parts = cuda_ranks_parts(rows[t], N, MAX_PAIR);
            set_pass(&r, (int64_t)t + 1);
            for (int i = 0; i < n; i++) {
                const cuda_reduce a = ask(&r, i, rows[t], false, 0);
                OK(cuda->reduce(&a, r.streams[i]));
            }
            wait_all(&r);
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
            wait_all(&r);
            check(&r, rows[t], TIMES);
            assert_int_equal(*r.failed, 0);
        }
        ranks_close(&r);
    }
}

/* Sums of many and of few rows in turn, without waiting: also behind a short last part no line is stored
 * again before it has been read. */
static void test_turns(void **state) {
    static const int64_t rows[] = {MAX_ROWS, 1, 9, 1, 37, 2, 1, 160};
    enum { TIMES = 25 };
    (void)state;
    ranks r = ranks_open(2);
    float *got = malloc(ROWS * sizeof *got);
    int64_t first = 0;
    set_pass(&r, 1);
    for (int i = 0; i < r.n; i++)
        OK(cuda->to_device(r.out[i], r.before, ROWS * sizeof *r.before, r.streams[i]));
    for (size_t t = 0; t < TIMES * NUM_COUNT(rows); t++) {
        const int64_t n_row = rows[t % NUM_COUNT(rows)];
        for (int i = 0; i < r.n; i++) {
            const cuda_reduce a = ask(&r, i, n_row, true, first);
            OK(cuda->reduce(&a, r.streams[i]));
        }
        first += cuda_ranks_parts(n_row, N, MAX_PAIR);
    }
    wait_all(&r);
    assert_int_equal(*r.failed, 0);
    for (int i = 0; i < r.n; i++) {
        read_back(got, r.out[i], ROWS * sizeof *got);
        for (int64_t e = 0; e < ROWS; e++) {
            const float sum = r.x[0][e] + r.x[1][e];
            float want = r.before[e];
            for (size_t t = 0; t < TIMES * NUM_COUNT(rows); t++)
                want += e < rows[t % NUM_COUNT(rows)] * N ? sum : 0;
            assert_memory_equal(&got[e], &want, sizeof want);
        }
    }
    free(got);
    ranks_close(&r);
}

/* All ranks get the columns of all, of rows of odd widths too. */
static void test_gather(void **state) {
    static const int64_t rows[] = {1, 7, 37};
    static const int64_t first[MAX_RANK - 1][MAX_RANK + 1] = {
        {0, 2064, N - 1}, {0, 16, 3000, N}, {0, 0, 2048, 2050, N - 5}};
    (void)state;
    for (int n = 2; n <= MAX_RANK; n++) {
        ranks r = ranks_open(n);
        int64_t at = 0;
        set_pass(&r, 1);
        for (size_t t = 0; t < NUM_COUNT(rows); t++) {
            float *got = malloc(ROWS * sizeof *got);
            for (int i = 0; i < n; i++)
                OK(cuda->to_device(r.x_there[i], r.x[i], ROWS * sizeof *r.x[i], r.streams[i]));
            wait_all(&r);
            for (int i = 0; i < n; i++) {
                cuda_gather a = {.x = r.x_there[i], .ld = N, .n_row = rows[t], .of = of_rank(&r, i, at)};
                memcpy(a.first, first[n - 2], sizeof first[0]);
                OK(cuda->gather(&a, r.streams[i]));
                at += i < n - 1 ? 0 : cuda_ranks_parts(rows[t], cuda_gather_width(&a), MAX_PAIR);
            }
            wait_all(&r);
            assert_int_equal(*r.failed, 0);
            for (int i = 0; i < n; i++) {
                read_back(got, r.x_there[i], ROWS * sizeof *got);
                for (int64_t e = 0; e < ROWS; e++) {
                    int from = 0;
                    while (from < n && first[n - 2][from + 1] <= e % N)
                        from++;
                    from = from < n && e / N < rows[t] ? from : i;
                    assert_memory_equal(&got[e], &r.x[from][e], sizeof *got);
                }
            }
            free(got);
        }
        ranks_close(&r);
    }
}

/* ---- products that add over ranks ---- */

/* A rank's product: its row, whose codes the launch before leaves, and its part of the sum. */
typedef struct part {
    matrix m[2];
    view w[2];
    float *row, *x, *y, *alone, *norm;
    void *taken, *left[2], *scratch;
} part;

enum { K0 = 256, MAX_N = 1088 };

static part part_open(const char *format, int64_t n, int64_t k, int rank) {
    part p;
    float *row = random_rows(K0, 70 + (uint64_t)rank, 1), *norm = random_rows(n, 80, 1);
    p.m[0] = matrix_open_uniform(format, k, K0, MATRIX_RANDOM, 60 + (uint64_t)rank);
    p.m[1] = matrix_open_uniform(format, n, k, MATRIX_RANDOM, 90 + (uint64_t)rank);
    for (int i = 0; i < 2; i++) {
        p.w[i] = matrix_there(&p.m[i]);
        p.left[i] = device_new(cuda->codes_bytes(n));
        OK(cuda->fill(p.left[i], 0, cuda->codes_bytes(n), stream));
    }
    p.row = device_copy(row, K0 * sizeof *row);
    p.norm = device_copy(norm, (size_t)n * sizeof *norm);
    p.x = device_new((size_t)k * sizeof *p.x);
    p.y = device_new((size_t)n * sizeof *p.y);
    p.alone = device_new((size_t)n * sizeof *p.y);
    p.taken = device_new(cuda->codes_bytes(k));
    OK(cuda->fill(p.taken, 0, cuda->codes_bytes(k), stream));
    p.scratch = device_new(cuda->linear_scratch(1, k > K0 ? k : K0, false));
    const cuda_linear first = {.w = {p.w[0]},
                               .n_w = 1,
                               .n_row = 1,
                               .x = p.row,
                               .ldx = K0,
                               .y = {p.x},
                               .ldy = {k},
                               .scratch = p.scratch,
                               .leaves = {p.taken, NULL, p.m[1].view.format.group}};
    OK(cuda->linear(&first, stream));
    OK(cuda->stream_sync(stream));
    free(row), free(norm);
    return p;
}

static void part_close(part *p) {
    for (int i = 0; i < 2; i++) {
        matrix_close(&p->m[i]);
        drop(p->w[i].data), drop(p->left[i]);
    }
    drop(p->row), drop(p->x), drop(p->y), drop(p->alone), drop(p->norm), drop(p->taken), drop(p->scratch);
}

/* The rank's product into p->y, with a sum if it has ranks; leaves: it leaves codes in groups of 32. */
static cuda_linear product_of(const part *p, cuda_ranks of, bool adds, bool leaves) {
    const view *w = &p->w[1];
    cuda_linear a = {.w = {*w},
                     .n_w = 1,
                     .n_row = 1,
                     .x = p->x,
                     .ldx = w->k,
                     .adds = adds,
                     .y = {p->y},
                     .ldy = {w->n},
                     .scratch = p->scratch,
                     .codes = p->taken,
                     .sum = of};
    if (leaves)
        a.leaves = (cuda_codes){p->left[0], p->norm, 32};
    return a;
}

/* The same by two launches each time: the bits of the sum, and of the codes. */
static void check_product(const char *format, int n, int64_t n_out, bool adds, bool leaves) {
    enum { TIMES = 40 };
    ranks r = ranks_open(n);
    part p[MAX_RANK];
    for (int i = 0; i < n; i++)
        p[i] = part_open(format, n_out, 256 * (i + 1), i);
    for (int way = 0; way < 2; way++) {
        for (int i = 0; i < n; i++)
            OK(cuda->to_device(p[i].y, r.before, (size_t)n_out * sizeof(float), r.streams[i]));
        wait_all(&r);
        for (int64_t pass = 0; pass < TIMES; pass++) {
            set_pass(&r, 1 + way * TIMES + pass);
            for (int64_t t = 0; t < 3; t++)
                for (int i = 0; i < n; i++) {
                    const cuda_ranks of = of_rank(&r, i, t);
                    cuda_linear a = product_of(&p[i], way ? of : (cuda_ranks){0}, adds && way, leaves && way);
                    cuda_reduce sum = {.x = p[i].alone,
                                       .out = p[i].y,
                                       .ldx = n_out,
                                       .ldo = n_out,
                                       .n_row = 1,
                                       .n = n_out,
                                       .adds = adds,
                                       .of = of};
                    if (leaves)
                        sum.leaves = (cuda_codes){p[i].left[1], p[i].norm, 32};
                    a.y[0] = way ? p[i].y : p[i].alone;
                    assert_true(!way || cuda->sums(&a));
                    OK(cuda->linear(&a, r.streams[i]));
                    if (!way)
                        OK(cuda->reduce(&sum, r.streams[i]));
                }
            wait_all(&r);
            assert_int_equal(*r.failed, 0);
        }
        for (int i = 0; i < n; i++) {
            static float first[MAX_N], got[MAX_N];
            read_back(i || way ? got : first, p[i].y, (size_t)n_out * sizeof *got);
            if ((i || way) && memcmp(first, got, (size_t)n_out * sizeof *got))
                fail_msg("%s, %d ranks, %d outputs: rank %d has other bits", format, n, (int)n_out, i);
        }
    }
    const size_t bytes = cuda->codes_bytes(n_out);
    uint8_t *codes[2] = {malloc(bytes), malloc(bytes)};
    for (int i = 0; i < n; i++) {
        for (int way = 0; way < 2; way++)
            read_back(codes[way], p[i].left[way], bytes);
        assert_memory_equal(codes[0], codes[1], bytes);
        part_close(&p[i]);
    }
    free(codes[0]), free(codes[1]);
    ranks_close(&r);
}

static void test_products(void **state) {
    static const char *const formats[] = {"u4g32", "u2g32", "u3g32", "u5g32", "u6g64", "u7g128", "u4g64"};
    (void)state;
    cuda_device_info info;
    OK(cuda->device_open(0, &info));
    if (info.major < 9)
        skip(); /* there is no such kernel */
    for (size_t f = 0; f < NUM_COUNT(formats); f++)
        for (int n = 2; n <= MAX_RANK; n++) {
            check_product(formats[f], n, 512, true, true);
            check_product(formats[f], n, f ? 34 : 1000, n % 2, false);
        }
    check_product("u4g32", 2, MAX_N, true, true);
}

/* A rank that waits ends when another says that it has failed, and by itself after some seconds. */
static void test_failures(void **state) {
    (void)state;
    ranks r = ranks_open(2);
    const cuda_reduce a = ask(&r, 0, 1, false, 0);
    set_pass(&r, 1);
    wait_all(&r);
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sums), cmocka_unit_test(test_turns),
                                       cmocka_unit_test(test_gather), cmocka_unit_test(test_products),
                                       cmocka_unit_test(test_failures)};
    if (!gpu_open(argc, argv))
        return gpu_missing();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
