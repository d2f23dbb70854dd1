/* The output head in two steps on a CUDA device: every computed logit has the bits of the whole head, all
 * logits that may be among the largest are computed, estimates keep their bound, and most panels are skipped;
 * skipped without a device. test_kernels_cuda_shortlist [PATTERN]: the tests with such names */
#include "support/gpu.h"

#include "base/num.h"
#include "exec/shortlist.h"
#include "kernels/kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_ROWS = CUDA_MAX_SHORT, N_CHANGE = 5 };
#define EPS 1e-5f

/* A head on the host and on the device with its sketch, rows, and memory for their logits. */
typedef struct short_case {
    int64_t n, k;
    matrix m;
    view head, sketch;
    float *x, *norm, *x_there, *norm_there, *step, *y, *logits;
    void *scratch, *work;
} short_case;

static short_case case_open(matrix m, int64_t n, int64_t k) {
    short_case c = {.n = n, .k = k, .m = m};
    uint64_t bytes = 0;
    c.head = matrix_there(&c.m);
    c.sketch = (view){.n = n, .k = k};
    assert_true(pack_from_name("u4g32", k, &c.sketch.format) && pack_bytes(&c.sketch.format, n, k, &bytes));
    c.sketch.data = device_new(bytes);
    c.step = device_new((size_t)num_round_up(n, PACK_PANEL) * sizeof *c.step);
    c.x = random_rows(MAX_ROWS * k, 3, 1);
    c.norm = random_rows(k, 4, 2);
    c.x_there = device_copy(c.x, (size_t)(MAX_ROWS * k) * sizeof *c.x);
    c.norm_there = device_copy(c.norm, (size_t)k * sizeof *c.norm);
    c.y = device_new((size_t)(MAX_ROWS * n) * sizeof *c.y);
    c.logits = malloc((size_t)(MAX_ROWS * n) * sizeof *c.logits);
    c.scratch = device_new(cuda->shortlist_scratch());
    c.work = device_new(cuda->linear_scratch(MAX_ROWS, k, false));
    OK(cuda->fill(c.scratch, 0, CUDA_SHORT_HEAD, stream));
    assert_true(cuda->sketch_takes(&c.head));
    OK(cuda->sketch(&c.head, &c.sketch, c.step, stream));
    OK(cuda->stream_sync(stream));
    return c;
}

static void case_close(short_case *c) {
    drop(c->head.data), drop(c->sketch.data), drop(c->step), drop(c->x_there), drop(c->norm_there);
    drop(c->y), drop(c->scratch), drop(c->work);
    free(c->x), free(c->norm), free(c->logits);
    matrix_close(&c->m);
}

static cuda_linear product(const short_case *c, const view *w, int64_t n_row, bool norm) {
    cuda_linear a = {.n_w = 1,
                     .n_row = n_row,
                     .x = c->x_there,
                     .ldx = c->k,
                     .norm = norm ? c->norm_there : NULL,
                     .eps = EPS,
                     .scratch = c->work};
    a.w[0] = *w;
    a.y[0] = c->y;
    a.ldy[0] = c->n;
    return a;
}

/* The logits of all of the head, and the estimates; free(). */
static float *multiply(const short_case *c, cuda_linear a, const view *w) {
    const size_t bytes = (size_t)(a.n_row * c->n) * sizeof(float);
    float *host = malloc(bytes);
    a.w[0] = *w;
    OK(cuda->linear(&a, stream));
    read_back(host, c->y, bytes);
    return host;
}

/* ---- a row's changes ---- */

typedef struct changes {
    logit_row rows[MAX_ROWS];
    logit_change list[MAX_ROWS * N_CHANGE];
    logit_row *rows_there;
    logit_change *list_there;
} changes;

static void changes_open(changes *g, int64_t n) {
    uint64_t state = 9;
    memset(g, 0, sizeof *g);
    for (int r = 0; r < MAX_ROWS; r++) {
        g->rows[r].first = r * N_CHANGE;
        g->rows[r].n = N_CHANGE;
        for (int i = 0; i < N_CHANGE; i++)
            g->list[r * N_CHANGE + i].token = (int32_t)(random_next(&state) % (uint64_t)n);
    }
    g->rows_there = device_copy(g->rows, sizeof g->rows);
    g->list_there = device_copy(g->list, sizeof g->list);
}

static bool is_changed(const changes *g, int64_t row, int64_t token) {
    for (int i = 0; g && i < g->rows[row].n; i++)
        if (g->list[g->rows[row].first + i].token == token)
            return true;
    return false;
}

/* ---- what must hold ---- */

static int descending(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* The top-th largest of the row's logits that are not changed. */
static float min_of_best(const float *whole, int64_t row, int64_t n, int top, const changes *g) {
    float *sorted = malloc((size_t)n * sizeof *sorted);
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++)
        if (!is_changed(g, row, i))
            sorted[count++] = whole[i];
    qsort(sorted, (size_t)count, sizeof *sorted, descending);
    const float min_best = sorted[NUM_MIN((int64_t)top, count) - 1];
    free(sorted);
    return min_best;
}

/* Returns the panels that were computed. */
static int64_t check_row(const short_case *c, const float *found, const float *whole, int64_t row, int top,
                         const changes *g) {
    const float min_best = min_of_best(whole, row, c->n, top, g);
    int64_t n_panel = 0;
    for (int64_t p = 0; p < c->n; p += PACK_PANEL) {
        const int64_t end = NUM_MIN(p + PACK_PANEL, c->n);
        const bool computed = found[p] != -INFINITY;
        n_panel += computed;
        for (int64_t i = p; i < end; i++) {
            const bool must = whole[i] >= min_best || is_changed(g, row, i);
            if (computed ? memcmp(&found[i], &whole[i], sizeof *found) != 0 : must || found[i] != -INFINITY)
                fail_msg("row %d, logit %d of %d, top %d: %.9g, the whole head has %.9g", (int)row, (int)i,
                         (int)c->n, top, (double)found[i], (double)whole[i]);
        }
    }
    return n_panel;
}

static void counters(const short_case *c, uint64_t of[2]) {
    read_back(of, (const uint8_t *)c->scratch + 8, 2 * sizeof *of);
}

/* The second step of a product; returns its panels. */
static int64_t check(const short_case *c, const cuda_linear *a, int top, const changes *g) {
    float *whole = multiply(c, *a, &c->head), *estimates = multiply(c, *a, &c->sketch);
    cuda_shortlist s = {.head = *a, .step = c->step, .top = top, .scratch = c->scratch};
    uint64_t before[2], after[2];
    int64_t n_panel = 0;
    s.head.w[0] = c->head;
    s.rows = g ? g->rows_there : NULL;
    s.changes = g ? g->list_there : NULL;
    counters(c, before);
    OK(cuda->shortlist(&s, stream));
    read_back(c->logits, c->y, (size_t)(a->n_row * c->n) * sizeof(float));
    counters(c, after);
    for (int64_t r = 0; r < a->n_row; r++)
        n_panel += check_row(c, c->logits + r * c->n, whole + r * c->n, r, top, g);
    assert_int_equal(after[0] - before[0], a->n_row);
    assert_int_equal(after[1] - before[1], n_panel);
    free(whole), free(estimates);
    return n_panel;
}

/* No estimate exceeds its bound, and some come near a third of it. */
static void check_bound(const short_case *c, bool norm) {
    const kernel_table *t = kernels_table_for("ref");
    const cuda_linear a = product(c, &c->head, MAX_ROWS, norm);
    float *whole = multiply(c, a, &c->head), *estimates = multiply(c, a, &c->sketch);
    float *step = malloc((size_t)c->n * sizeof *step), *row = malloc((size_t)c->k * sizeof *row);
    double worst = 0;
    read_back(step, c->step, (size_t)c->n * sizeof *step);
    for (int64_t r = 0; r < MAX_ROWS; r++) {
        double square = 0;
        memcpy(row, c->x + r * c->k, (size_t)c->k * sizeof *row);
        if (norm)
            t->norm(NORM_RMS, c->x + r * c->k, c->norm, NULL, row, c->k, 1, false, EPS);
        for (int64_t i = 0; i < c->k; i++)
            square += (double)row[i] * (double)row[i];
        for (int64_t i = 0; i < c->n; i++) {
            const double off = fabs((double)whole[r * c->n + i] - (double)estimates[r * c->n + i]);
            worst = fmax(worst, off / (sqrt(square) * (double)step[i]));
        }
    }
    if (!(worst > SHORTLIST_REACH / 3.0 && worst < SHORTLIST_REACH))
        fail_msg("%dx%d: an estimate is %g standard deviations off", (int)c->n, (int)c->k, worst);
    free(whole), free(estimates), free(step), free(row);
}

/* ---- tests ---- */

static void check_head(matrix m, int64_t n, int64_t k, const char *name) {
    static const int tops[] = {1, 2, 8, 40, CUDA_MAX_TOP};
    short_case c = case_open(m, n, k);
    changes g;
    int64_t greedy = 0, n_row = 0;
    changes_open(&g, n);
    for (int norm = 0; norm < 2; norm++) {
        check_bound(&c, norm);
        for (int rows = 1; rows <= MAX_ROWS; rows += 1 + rows / 2)
            for (size_t t = 0; t < sizeof tops / sizeof *tops; t++) {
                const cuda_linear a = product(&c, &c.head, rows, norm);
                const int64_t n_panel = check(&c, &a, tops[t], NULL);
                check(&c, &a, tops[t], &g);
                greedy += tops[t] == 1 ? n_panel : 0;
                n_row += tops[t] == 1 ? rows : 0;
            }
    }
    const double share = (double)greedy / (double)n_row / (double)num_div_up(n, PACK_PANEL);
    printf("%s, %d x %d: greedy computes %.2f %% of the panels\n", name, (int)n, (int)k, 100 * share);
    if (n > 10000 && !(share < 0.1))
        fail_msg("%s: %g of the panels are computed", name, share);
    drop(g.rows_there), drop(g.list_there);
    case_close(&c);
}

static void heads(void **state) {
    (void)state;
    static const struct {
        int64_t n, k;
    } shapes[] = {{40000, 640}, {20005, 1024}, {300, 256}, {4099, 96}, {17, 2048}};
    static const char *const names[] = {"u8g32", "u7g32", "u6g32", "u8g64", "u8grow", "u8g32a"};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        const int64_t n = shapes[s].n, k = shapes[s].k;
        check_head(matrix_open(TYPE_Q8_0, n, k, MATRIX_RANDOM, s + 1), n, k, "Q8_0");
        if (k % 256 == 0)
            check_head(matrix_open(TYPE_Q6_K, n, k, MATRIX_RANDOM, s + 2), n, k, "Q6_K");
        for (size_t i = 0; i < sizeof names / sizeof *names && s > 1; i++)
            check_head(matrix_open_uniform(names[i], n, k, MATRIX_RANDOM, s + i + 3), n, k, names[i]);
    }
}

/* A row that the launch before has left as codes. */
static void codes(void **state) {
    (void)state;
    enum { N = 30000, K = 640, BEFORE = 256 };
    matrix m = matrix_open(TYPE_Q4_0, K, BEFORE, MATRIX_RANDOM, 5);
    const view w = matrix_there(&m);
    short_case c = case_open(matrix_open(TYPE_Q8_0, N, K, MATRIX_RANDOM, 6), N, K);
    float *rows = random_rows(BEFORE, 7, 1), *x = device_copy(rows, BEFORE * sizeof *rows);
    void *left = device_new(cuda->codes_bytes(K)), *work = device_new(cuda->linear_scratch(1, K, false));
    OK(cuda->fill(left, 0, cuda->codes_bytes(K), stream));
    for (int norm = 0; norm < 2; norm++) {
        cuda_linear a = {.n_w = 1, .n_row = 1, .x = x, .ldx = BEFORE, .scratch = work};
        a.w[0] = w;
        a.y[0] = c.x_there;
        a.ldy[0] = K;
        a.leaves = (cuda_codes){left, norm ? c.norm_there : NULL, 32};
        OK(cuda->linear(&a, stream));
        cuda_linear head = product(&c, &c.head, 1, norm);
        float *without = multiply(&c, head, &c.head);
        head.codes = left;
        float *with = multiply(&c, head, &c.head);
        assert_memory_equal(with, without, N * sizeof *with);
        assert_true(check(&c, &head, 1, NULL) < N / PACK_PANEL / 10);
        free(with), free(without);
    }
    drop(x), drop(left), drop(work), drop(w.data);
    free(rows);
    matrix_close(&m);
    case_close(&c);
}

/* Of a row with a NaN every logit may be the largest. */
static void not_a_number(void **state) {
    (void)state;
    enum { N = 5000, K = 640 };
    short_case c = case_open(matrix_open(TYPE_Q8_0, N, K, MATRIX_RANDOM, 6), N, K);
    c.x[K + 17] = NAN;
    OK(cuda->to_device(c.x_there, c.x, MAX_ROWS * K * sizeof *c.x, stream));
    const cuda_linear a = product(&c, &c.head, 2, true);
    cuda_shortlist s = {.head = a, .step = c.step, .top = 8, .scratch = c.scratch};
    float *whole = multiply(&c, a, &c.head), *estimates = multiply(&c, a, &c.sketch);
    OK(cuda->shortlist(&s, stream));
    read_back(c.logits, c.y, (size_t)(2 * N) * sizeof(float));
    check_row(&c, c.logits, whole, 0, 8, NULL);
    for (int i = N; i < 2 * N; i++)
        assert_true(isnan(c.logits[i]) == isnan(whole[i]) && c.logits[i] != -INFINITY);
    free(whole), free(estimates);
    case_close(&c);
}

/* Unsupported calls are refused, and nothing is written. */
static void refused(void **state) {
    (void)state;
    enum { N = 500, K = 256 };
    short_case c = case_open(matrix_open(TYPE_Q8_0, N, K, MATRIX_RANDOM, 6), N, K);
    const cuda_linear a = product(&c, &c.head, 1, true);
    const cuda_shortlist good = {.head = a, .step = c.step, .top = 1, .scratch = c.scratch};
    cuda_shortlist s = good;
    s.top = CUDA_MAX_TOP + 1;
    assert_int_equal(cuda->shortlist(&s, stream), CUDA_UNSUPPORTED);
    s = good, s.head.n_row = MAX_ROWS + 1;
    assert_int_equal(cuda->shortlist(&s, stream), CUDA_UNSUPPORTED);
    s = good, s.head.two = true;
    assert_int_equal(cuda->shortlist(&s, stream), CUDA_UNSUPPORTED);
    s = good, s.head.w[0].format.bits = 4;
    assert_int_equal(cuda->shortlist(&s, stream), CUDA_UNSUPPORTED);
    assert_int_equal(cuda->sketch(&c.sketch, &c.sketch, c.step, stream), CUDA_UNSUPPORTED);
    case_close(&c);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(heads), cmocka_unit_test(codes),
                                       cmocka_unit_test(not_a_number), cmocka_unit_test(refused)};
    return gpu_open(argc, argv) ? cmocka_run_group_tests(tests, NULL, NULL) : gpu_missing();
}
