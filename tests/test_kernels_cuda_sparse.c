/* The outliers of weights on a CUDA device: alone against their definition, bit by bit, for any number of
 * rows, and after products of every kind against sums in double; skipped without a device.
 *   test_kernels_cuda_sparse [PATTERN]: the tests with such names */
#include "support/fakecuda.h"
#include "support/gpu.h"

#include "base/num.h"
#include "kernels/kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_ROWS = 100 /* rows */, MAX_MATRIX = 3 };
#define EPS 1e-5f

static const type_id types[] = {TYPE_C3O45, TYPE_C4O45, TYPE_C3O100, TYPE_C4O100};

/* Matrices of one input here and there; rows, and outputs before: [MAX_ROWS, k], [MAX_MATRIX][MAX_ROWS, n].
 */
typedef struct sparse_case {
    int n_w;
    int64_t n, k;
    matrix m[MAX_MATRIX];
    view w[MAX_MATRIX];
    float *x, *norm, *before;
    float *x_there, *norm_there, *y;
} sparse_case;

static size_t outputs(const sparse_case *c) {
    return (size_t)(MAX_MATRIX * MAX_ROWS * c->n);
}

static sparse_case case_open(type_id type, int n_w, int64_t n, int64_t k) {
    sparse_case c = {.n_w = n_w, .n = n, .k = k};
    for (int i = 0; i < n_w; i++) {
        c.m[i] = matrix_open(type, n, k, MATRIX_RANDOM, (uint64_t)(n + i));
        c.w[i] = matrix_there(&c.m[i]);
    }
    c.x = random_rows(MAX_ROWS * k, 3, 1);
    c.norm = random_rows(k, 4, 2);
    c.before = random_rows((int64_t)outputs(&c), 5, 1);
    c.x_there = device_copy(c.x, (size_t)(MAX_ROWS * k) * sizeof *c.x);
    c.norm_there = device_copy(c.norm, (size_t)k * sizeof *c.norm);
    c.y = device_new(outputs(&c) * sizeof *c.y);
    return c;
}

static void case_close(sparse_case *c) {
    for (int i = 0; i < c->n_w; i++) {
        drop(c->w[i].data);
        matrix_close(&c->m[i]);
    }
    drop(c->x_there), drop(c->norm_there), drop(c->y);
    free(c->x), free(c->norm), free(c->before);
}

static cuda_sparse ask(const sparse_case *c, int64_t first, int64_t n_row, bool norm) {
    cuda_sparse a = {.n_w = c->n_w,
                     .n_row = n_row,
                     .x = c->x_there + first * c->k,
                     .ldx = c->k,
                     .norm = norm ? c->norm_there : NULL,
                     .eps = EPS};
    for (int i = 0; i < c->n_w; i++) {
        a.w[i] = c->w[i];
        a.y[i] = c->y + (i * MAX_ROWS + first) * c->n;
        a.ldy[i] = c->n;
    }
    return a;
}

/* All outputs after the outliers of rows [first, first + n_row) were added; free(). */
static float *added(const sparse_case *c, int64_t first, int64_t n_row, bool norm) {
    const size_t bytes = outputs(c) * sizeof(float);
    const cuda_sparse a = ask(c, first, n_row, norm);
    float *host = malloc(bytes);
    OK(cuda->to_device(c->y, c->before, bytes, stream));
    OK(cuda->sparse(&a, stream));
    read_back(host, c->y, bytes);
    return host;
}

/* ---- the outliers alone ---- */

/* Rows without a norm have the bits of the definition; the others stay as they were. */
static void must_be_as_defined(const sparse_case *c, int64_t n_row) {
    float *found = added(c, 0, n_row, false), *part = malloc((size_t)c->n * sizeof *part);
    for (int i = 0; i < MAX_MATRIX; i++)
        for (int64_t r = 0; r < MAX_ROWS; r++) {
            const int64_t at = (i * MAX_ROWS + r) * c->n;
            const bool has = i < c->n_w && r < n_row;
            if (has)
                fake_cuda_outliers(&c->m[i].view, c->x + r * c->k, part);
            for (int64_t o = 0; o < c->n; o++) {
                const float expected = has ? c->before[at + o] + part[o] : c->before[at + o];
                if (memcmp(&found[at + o], &expected, sizeof expected))
                    fail_msg("%dx%d, %d rows: matrix %d row %d output %d: %.9g, expected %.9g", (int)c->n,
                             (int)c->k, (int)n_row, i, (int)r, (int)o, (double)found[at + o],
                             (double)expected);
            }
        }
    free(found), free(part);
}

/* With a norm: near the definition, and a row has the bits that it has alone. */
static void must_be_as_alone(const sparse_case *c, int64_t n_row) {
    const kernel_table *t = kernels_table_for("ref");
    float *found = added(c, 0, n_row, true), *normed = malloc((size_t)c->k * sizeof *normed),
          *part = malloc((size_t)c->n * sizeof *part);
    for (int64_t r = n_row - 1; r >= 0; r -= 1 + n_row / 3) {
        float *alone = added(c, r, 1, true);
        t->norm(NORM_RMS, c->x + r * c->k, c->norm, NULL, normed, c->k, 1, false, EPS);
        for (int i = 0; i < c->n_w; i++) {
            const int64_t at = (i * MAX_ROWS + r) * c->n;
            fake_cuda_outliers(&c->m[i].view, normed, part);
            assert_memory_equal(found + at, alone + at, (size_t)c->n * sizeof *alone);
            for (int64_t o = 0; o < c->n; o++)
                if (!(fabsf(found[at + o] - c->before[at + o] - part[o]) <= 2e-5f * (1 + fabsf(part[o]))))
                    fail_msg("%dx%d, row %d of %d, output %d: %.9g, not %.9g", (int)c->n, (int)c->k, (int)r,
                             (int)n_row, (int)o, (double)found[at + o],
                             (double)(c->before[at + o] + part[o]));
        }
        free(alone);
    }
    free(found), free(normed), free(part);
}

/* Rows that are staged eight, four, two and one at a time, and one that is too long for it. */
static void test_alone(void **state) {
    (void)state;
    static const int64_t shapes[][2] = {{17, 64}, {200, 4096}, {33, 14336}, {48, 28672}, {16, 60032}};
    static const int64_t rows[] = {1, 2, 3, 4, 5, 8, 9, 64, MAX_ROWS};
    for (size_t s = 0; s < NUM_COUNT(shapes); s++)
        for (size_t t = s % 2; t < NUM_COUNT(types); t += 2) {
            sparse_case c = case_open(types[t], 1 + (int)s % 3, shapes[s][0], shapes[s][1]);
            for (size_t r = 0; r < NUM_COUNT(rows); r++) {
                must_be_as_defined(&c, rows[r]);
                must_be_as_alone(&c, rows[r]);
            }
            case_close(&c);
        }
}

static void test_gate(void **state) {
    (void)state;
    sparse_case c = case_open(TYPE_C4O45, 2, 72, 512);
    float *apart = added(&c, 0, MAX_ROWS, false), *found = malloc(outputs(&c) * sizeof *found);
    cuda_sparse a = ask(&c, 0, MAX_ROWS, false);
    a.gated = true;
    a.act = ACT_RELU;
    a.out = a.y[0];
    a.ldo = a.ldy[0];
    OK(cuda->to_device(c.y, c.before, outputs(&c) * sizeof *found, stream));
    OK(cuda->sparse(&a, stream));
    read_back(found, c.y, outputs(&c) * sizeof *found);
    for (int64_t i = 0; i < MAX_ROWS * c.n; i++) {
        const float gate = apart[i] > 0 ? apart[i] : 0, up = apart[MAX_ROWS * c.n + i];
        assert_true(found[i] == gate * up);
    }
    free(apart), free(found);
    case_close(&c);
}

/* ---- after products ---- */

typedef int (*product_fn)(const cuda_linear *a, cuda_stream s);

static void check_product(const sparse_case *c, product_fn multiply, int64_t n_row, bool two, double share) {
    const size_t scratch_bytes =
        NUM_MAX(cuda->linear_scratch(n_row, c->k, two), cuda->wide_scratch(n_row, c->k));
    float *found = malloc(outputs(c) * sizeof *found), *row = malloc((size_t)c->k * sizeof *row);
    void *scratch = device_new(scratch_bytes);
    cuda_linear a = {
        .n_w = c->n_w, .n_row = n_row, .x = c->x_there, .ldx = c->k, .two = two, .scratch = scratch};
    const cuda_sparse b = ask(c, 0, n_row, false);
    for (int i = 0; i < c->n_w; i++) {
        a.w[i] = b.w[i];
        a.y[i] = b.y[i];
        a.ldy[i] = b.ldy[i];
    }
    OK(multiply(&a, stream));
    OK(cuda->sparse(&b, stream));
    read_back(found, c->y, outputs(c) * sizeof *found);
    for (int i = 0; i < c->n_w; i++)
        for (int64_t o = 0; o < c->n; o++) {
            pack_read_row(&c->m[i].view, o, row);
            for (int64_t r = 0; r < n_row; r += 1 + n_row / 4) {
                double sum = 0, size = 0;
                for (int64_t k = 0; k < c->k; k++) {
                    sum += (double)row[k] * (double)c->x[r * c->k + k];
                    size += fabs((double)row[k]);
                }
                const double is = (double)found[(i * MAX_ROWS + r) * c->n + o];
                if (!(fabs(is - sum) <= share * size))
                    fail_msg("%dx%d, %d rows: matrix %d row %d output %d: %.9g, expected %.9g +- %.2g",
                             (int)c->n, (int)c->k, (int)n_row, i, (int)r, (int)o, is, sum, share * size);
            }
        }
    drop(scratch);
    free(found), free(row);
}

/* Products leave outliers out, and find the next panel after them. */
static void test_products(void **state) {
    (void)state;
    for (size_t t = 0; t < NUM_COUNT(types); t++) {
        sparse_case c = case_open(types[t], 3, 80, t % 2 ? 1024 : 4096);
        for (int64_t n_row = 1; n_row <= CUDA_MAX_ROWS; n_row = 3 * n_row + 1) {
            check_product(&c, cuda->linear, n_row, true, 3e-5);
            check_product(&c, cuda->linear, n_row, false, 5e-3);
            if (cuda->has_batch())
                check_product(&c, cuda->batch, n_row, false, 1e-3);
        }
        if (cuda->has_wide())
            check_product(&c, cuda->wide, MAX_ROWS, false, 1e-3);
        case_close(&c);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_alone), cmocka_unit_test(test_gate),
                                       cmocka_unit_test(test_products)};
    if (gpu_open(argc, argv))
        return cmocka_run_group_tests(tests, NULL, NULL);
    return gpu_missing();
}
