/* The CUDA kernels for many rows; skipped without a device that has them.
 *   test_kernels_cuda_wide [PATTERN]: the tests with such names
 *
 * Every weight of every format is checked with rows that are 1 at one place. Sums are compared with sums in
 * double of the same numbers, under a bound for halves. */
#include "support/gpu_attend.h"

#include "kernels/kernels.h"
#include "numbers/tile.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* `wide` for all rows at once, or `batch` for pieces of them, which are of every size in turn. */
static const struct by { bool batch; } by_wide = {false}, by_batch = {true};
static const struct by *by = &by_wide;

static void launch(cuda_linear a) {
    const int64_t n_row = a.n_row;
    if (!by->batch)
        OK(cuda->wide(&a, stream));
    for (int64_t first = 0, piece = 1; by->batch && first < n_row;
         first += piece, piece = piece % CUDA_MAX_ROWS + 1) {
        cuda_linear b = a;
        b.n_row = piece = n_row - first < piece ? n_row - first : piece;
        b.x += first * a.ldx;
        for (int i = 0; i < a.n_w; i++)
            b.y[i] = a.y[i] ? a.y[i] + first * a.ldy[i] : NULL;
        OK(cuda->batch(&b, stream));
    }
}

/* One product; its outputs, poisoned before or as `before` has them: [n_w][n_row, n]. */
static float *multiply(cuda_linear a, const view *w, int n_w, const float *x, const float *norm,
                       const float *bias, const float *before) {
    const int64_t n = w[0].n, k = w[0].k, ldx = (k + 3) / 4 * 4;
    const size_t y_bytes = (size_t)(a.n_row * n) * sizeof(float);
    float *rows = calloc((size_t)(a.n_row * ldx), sizeof *rows), *host = malloc((size_t)n_w * y_bytes);
    for (int64_t r = 0; r < a.n_row; r++)
        memcpy(rows + r * ldx, x + r * k, (size_t)k * sizeof *rows);
    float *x_there = device_copy(rows, (size_t)(a.n_row * ldx) * sizeof *rows);
    float *y = device_new((size_t)n_w * y_bytes);
    float *norm_there = norm ? device_copy(norm, (size_t)k * sizeof *norm) : NULL;
    float *bias_there = bias ? device_copy(bias, (size_t)n * sizeof *bias) : NULL;
    const size_t scratch_bytes = cuda->wide_scratch(a.n_row, k);
    void *scratch = device_new(scratch_bytes);
    OK(cuda->fill(y, 0xff, (size_t)n_w * y_bytes, stream));
    OK(cuda->fill(scratch, 0xff, scratch_bytes, stream));
    if (before)
        OK(cuda->to_device(y, before, y_bytes, stream));
    OK(cuda->stream_sync(stream));
    a.n_w = n_w;
    a.x = x_there;
    a.ldx = ldx;
    a.norm = norm_there;
    a.shift = a.centred ? norm_there : NULL;
    a.eps = 1e-5f;
    a.scratch = scratch;
    for (int i = 0; i < n_w; i++) {
        a.w[i] = w[i];
        a.bias[i] = i ? NULL : bias_there;
        a.y[i] = y + i * a.n_row * n;
        a.ldy[i] = n;
    }
    launch(a);
    OK(cuda->stream_sync(stream));
    OK(cuda->to_host(host, y, (size_t)n_w * y_bytes, stream));
    OK(cuda->stream_sync(stream));
    drop(x_there), drop(y), drop(scratch);
    if (norm)
        drop(norm_there);
    if (bias)
        drop(bias_there);
    free(rows);
    return host;
}

/* Each weight alone, in half precision; a minimum is added to the rounded value. */
static void check_each(matrix *m, const char *what) {
    const view w = matrix_there(m);
    const int64_t n = m->n, k = m->k;
    float *x = calloc((size_t)(k * k), sizeof *x), *row = malloc((size_t)k * sizeof *row);
    for (int64_t i = 0; i < k; i++)
        x[i * k + i] = 16;
    float *y = multiply((cuda_linear){.n_row = k}, &w, 1, x, NULL, NULL, NULL);
    for (int64_t o = 0; o < n; o++) {
        float largest = 0;
        pack_read_row(&m->view, o, row);
        for (int64_t i = 0; i < k; i++)
            largest = fmaxf(largest, fabsf(row[i]));
        for (int64_t i = 0; i < k; i++) {
            const float is = y[i * n + o], should = 16 * row[i];
            if (!(fabsf(is - should) <= 16 * (2e-3f * largest + 1e-6f)))
                fail_msg("%s %dx%d: weight %d of row %d is %g, not %g", what, (int)n, (int)k, (int)i, (int)o,
                         (double)is / 16, (double)row[i]);
        }
    }
    drop(w.data);
    free(x), free(y), free(row);
    matrix_close(m);
}

static void every_format(void **state) {
    by = *state;
    static const int64_t shapes[][2] = {{17, 32}, {48, 64}, {130, 576}, {300, 320}, {33, 1000}};
    static const char *const ends[] = {"g32",  "g32a",  "g64",  "g128",  "g128a",
                                       "grow", "growa", "g32t", "g128t", "g16"};
    int n = 0;
    for (int bits = 2; bits <= 8; bits++)
        for (size_t e = 0; e < sizeof ends / sizeof *ends; e++) {
            const int64_t *s = shapes[(bits + (int)e) % 5];
            char name[PACK_NAME];
            pack_format f;
            snprintf(name, sizeof name, "u%d%s", bits, ends[e]);
            if (!pack_from_name(name, s[1], &f) || (f.group == 16 && bits != 2 && bits != 3 && bits != 6))
                continue;
            matrix m = matrix_open_uniform(name, s[0], s[1], MATRIX_RANDOM, (uint64_t)n + 1);
            check_each(&m, name);
            n++;
        }
    assert_true(n > 50);
    static const type_id types[] = {TYPE_Q4_0, TYPE_Q4_1, TYPE_Q5_0, TYPE_Q5_1, TYPE_Q8_0,
                                    TYPE_Q2_K, TYPE_Q3_K, TYPE_Q4_K, TYPE_Q5_K, TYPE_Q6_K};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        matrix m = matrix_open(types[i], 37, 512, MATRIX_RANDOM, 11 + i);
        check_each(&m, type_get(types[i])->name);
    }
}

/* Tables and floats. */
static void other_formats(void **state) {
    by = *state;
    static const type_id types[] = {TYPE_F16,    TYPE_BF16,  TYPE_F32, TYPE_IQ4_NL,
                                    TYPE_IQ4_XS, TYPE_MXFP4, TYPE_C3,  TYPE_C4};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        for (int big = 0; big < 2; big++) {
            matrix m = matrix_open(types[i], big ? 300 : 37, big ? 512 : 256, MATRIX_RANDOM, 41 + i);
            check_each(&m, type_get(types[i])->name);
        }
}

static void check_sums(const char *what, double found, double expected, double size) {
    if (!(fabs(found - expected) <= 6e-4 * size + 1e-6))
        fail_msg("%s: %g, expected %g +- %g", what, found, expected, 6e-4 * size);
}

/* The relative error that rounding of float sums may cause. */
#define ROUNDING 1e-5

/* One of each kernel: packed weights, halves, bf16. */
enum { KINDS = 3 };
static matrix matrix_of(int kind, int64_t n, int64_t k, uint64_t seed) {
    return kind == 0 ? matrix_open_uniform("u4g32", n, k, MATRIX_RANDOM, seed)
                     : matrix_open(kind == 1 ? TYPE_F16 : TYPE_BF16, n, k, MATRIX_RANDOM, seed);
}

/* The activations of sums with a bias, beside the sums themselves. */
static void check_activated(int n_row, int n, const view *w, const float *x, const float *bias,
                            act_kind act) {
    const kernel_table *t = kernels_table_for("ref");
    float *plain = multiply((cuda_linear){.n_row = n_row}, w, 1, x, NULL, bias, NULL),
          *found =
              multiply((cuda_linear){.n_row = n_row, .acts = true, .act = act}, w, 1, x, NULL, bias, NULL);
    t->act(act, plain, plain, (int64_t)n_row * n);
    for (int i = 0; i < n_row * n; i++)
        if (!(fabsf(found[i] - plain[i]) <= 1e-5f * fabsf(plain[i]) + 1e-6f))
            fail_msg("activation %d of output %d of row %d: %g, not %g", act, i % n, i / n, (double)found[i],
                     (double)plain[i]);
    free(plain), free(found);
}

/* Sums of long rows: plain, with a bias, added, of packed matrices with a LayerNorm; with a norm; three
 * matrices; gated. */
static void check_kind(int kind) {
    enum { N = 140, K = 2300, MAX_ROWS = 300, SOME = 40 };
    const kernel_table *t = kernels_table_for("ref");
    matrix m[3];
    view w[3];
    for (int i = 0; i < 3; i++) {
        m[i] = matrix_of(kind, N, K, (uint64_t)(20 + i));
        w[i] = matrix_there(&m[i]);
    }
    float *x = random_rows(MAX_ROWS * K, 6, 3), *norm = random_rows(K, 7, 2), *bias = random_rows(N, 8, 1),
          *before = random_rows(MAX_ROWS * N, 9, 1), *row = malloc(K * sizeof *row),
          *plain = malloc(K * sizeof *plain), *centred = malloc(K * sizeof *centred);
    static const int counts[] = {17, 64, 65, 128, 300};
    for (int c = 0; c < 5; c++) {
        const int n = counts[c];
        float *three = multiply((cuda_linear){.n_row = n}, w, 3, x, norm, NULL, NULL);
        float *added =
            multiply((cuda_linear){.n_row = n, .adds = true, .centred = true}, w, 1, x, norm, bias, before);
        const act_kind act = c % 2 ? ACT_GELU_TANH : ACT_SILU;
        float *gated =
            multiply((cuda_linear){.n_row = n, .gated = true, .act = act}, w, 2, x, norm, NULL, NULL);
        check_activated(n, N, w, x, bias, c % 2 ? ACT_GELU_TANH : ACT_RELU);
        for (int r = 0; r < n; r += n / 8) {
            t->norm(NORM_RMS, x + r * K, norm, NULL, plain, K, 1, true, 1e-5f);
            t->norm(NORM_LAYER, x + r * K, norm, norm, centred, K, 1, true, 1e-5f);
            for (int o = 0; o < N; o++) {
                double sum[3] = {0}, size[3] = {0}, of_x = 0, size_x = 0;
                for (int i = 0; i < 3; i++) {
                    pack_read_row(&m[i].view, o, row);
                    for (int k = 0; k < K; k++) {
                        sum[i] += (double)row[k] * (double)plain[k];
                        size[i] += fabs((double)row[k] * (double)plain[k]);
                        of_x += i ? 0 : (double)row[k] * (double)centred[k];
                        size_x += i ? 0 : fabs((double)row[k] * (double)centred[k]);
                    }
                    check_sums("three", three[(i * n + r) * N + o], sum[i], size[i]);
                }
                check_sums("added", added[r * N + o], of_x + (double)bias[o] + (double)before[r * N + o],
                           size_x);
                float g = three[r * N + o];
                t->act(act, &g, &g, 1);
                /* silu is a faster one */
                const double up = (double)three[(n + r) * N + o], should = (double)g * up;
                const double bound = ROUNDING * (1.2 * size[0] * fabs(up) + fabs((double)g) * size[1]) + 1e-5;
                if (!(fabs((double)gated[r * N + o] - should) <= bound))
                    fail_msg("gated: %g, expected %g +- %g", (double)gated[r * N + o], should, bound);
            }
        }
        /* the same rows among fewer */
        float *fewer = multiply((cuda_linear){.n_row = n - 1}, w, 1, x + K, norm, NULL, NULL);
        assert_memory_equal(fewer, three + N, (size_t)((n - 1) * N) * sizeof *three);
        free(three), free(added), free(gated), free(fewer);
    }
    for (int i = 0; i < 3; i++) {
        drop(w[i].data);
        matrix_close(&m[i]);
    }
    free(x), free(norm), free(bias), free(before), free(row), free(plain), free(centred);
}

static void sums(void **state) {
    by = *state;
    for (int kind = 0; kind < (by->batch ? 1 : KINDS); kind++)
        check_kind(kind);
}

/* Rows and outputs of many blocks, the last ones of half of the rows. */
static void check_many(int kind, int rows) {
    enum { N = 3100, K = 2100, ROWS = 600 };
    matrix m = matrix_of(kind, N, K, 40);
    const view w = matrix_there(&m);
    float *x = random_rows(ROWS * K, 6, 3), *row = malloc(K * sizeof *row);
    float *y = multiply((cuda_linear){.n_row = rows}, &w, 1, x, NULL, NULL, NULL);
    for (int o = 0; o < N; o += 103) {
        pack_read_row(&m.view, o, row);
        for (int r = 0; r < rows; r += 67) {
            double sum = 0, size = 0;
            for (int k = 0; k < K; k++) {
                sum += (double)row[k] * (double)x[r * K + k];
                size += fabs((double)row[k] * (double)x[r * K + k]);
            }
            check_sums("one of many", y[r * N + o], sum, size);
        }
    }
    float *fewer = multiply((cuda_linear){.n_row = 100}, &w, 1, x + 150 * K, NULL, NULL, NULL);
    assert_memory_equal(fewer, y + 150 * N, 100 * N * sizeof *y);
    drop(w.data);
    matrix_close(&m);
    free(x), free(row), free(y), free(fewer);
}

static void many_outputs(void **state) {
    by = *state;
    for (int kind = 0; kind < (by->batch ? 1 : KINDS); kind++) {
        check_many(kind, 270);
        check_many(kind, 600);
    }
}

/* Rows of any size: a power of two that multiplies a row multiplies its sums, bit by bit; zeros stay. */
static void check_sizes(int kind) {
    enum { N = 40, K = 300, ROWS = 70 };
    matrix m = matrix_of(kind, N, K, 30);
    const view w = matrix_there(&m);
    float *x = random_rows(ROWS * K, 6, 3), *scaled = malloc(ROWS * K * sizeof *scaled);
    float *is = multiply((cuda_linear){.n_row = ROWS}, &w, 1, x, NULL, NULL, NULL);
    for (int r = 0; r < ROWS; r++)
        for (int k = 0; k < K; k++)
            scaled[r * K + k] = r ? ldexpf(x[r * K + k], r * 2 - ROWS) : 0;
    float *found = multiply((cuda_linear){.n_row = ROWS}, &w, 1, scaled, NULL, NULL, NULL);
    for (int i = 0; i < ROWS * N; i++)
        if (found[i] != (i < N ? 0 : ldexpf(is[i], i / N * 2 - ROWS)))
            fail_msg("row %d: %g instead of %g * 2^%d", i / N, (double)found[i], (double)is[i],
                     i / N * 2 - ROWS);
    drop(w.data);
    matrix_close(&m);
    free(x), free(scaled), free(is), free(found);
}

static void sizes(void **state) {
    by = *state;
    for (int kind = 0; kind < (by->batch ? 1 : KINDS); kind++)
        check_sizes(kind);
}

static uint16_t bf16_of(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return (uint16_t)(u >> 16);
}

/* Weights of bf16 beyond the range of halves: output o has one of 2^(5 o - 30), where rows are zero (the sums
 * then need the small ones beside it) or not. Those of a warp of the kernel (16) are near each other. */
static void large_weights(void **state) {
    by = *state;
    enum { BLOCKS = 18, N = 16 * BLOCKS, K = 448, ROWS = 33, AT = 200 };
    uint16_t *weights = calloc(N * K, sizeof *weights);
    float *x = random_rows(ROWS * K, 6, 3), *w = random_rows(N * K, 7, 1);
    for (int r = 0; r < ROWS; r += 2)
        x[r * K + AT] = 0;
    for (int i = 0; i < N * K; i++) {
        const int o = i / K, large = 5 * (o / 16) - 30;
        weights[i] = bf16_of(i % K == AT ? ldexpf(1, large) : w[i]);
        const uint32_t back = (uint32_t)weights[i] << 16;
        memcpy(&w[i], &back, sizeof back);
    }
    view there = {.n = N, .k = K, .format = {.layout = PACK_ROWS, .type = TYPE_BF16}};
    there.data = device_copy(weights, N * K * sizeof *weights);
    float *y = multiply((cuda_linear){.n_row = ROWS}, &there, 1, x, NULL, NULL, NULL);
    for (int o = 0; o < N; o++)
        for (int r = 0; r < ROWS; r++) {
            double sum = 0, size = 0;
            for (int k = 0; k < K; k++) {
                sum += (double)w[o * K + k] * (double)x[r * K + k];
                size += fabs((double)w[o * K + k] * (double)x[r * K + k]);
            }
            if (o / 16 <= 10 || r % 2) /* up to 2^20 beside 1 */
                check_sums("large", y[r * N + o], sum, size);
        }
    drop(there.data);
    free(weights), free(x), free(w), free(y);
}

/* `batch`: the bits of a row do not depend on how many there are, on its place, or on the run; with K in one
 * share, and in several. */
static void alone(void **state) {
    (void)state;
    by = &by_batch;
    static const int64_t shapes[][2] = {{300, 1100}, {4096, 1024}, {34000, 256}, {70, 192}};
    for (int i = 0; i < 4; i++) {
        const int64_t n = shapes[i][0], k = shapes[i][1];
        matrix m = matrix_open_uniform(i % 2 ? "u4g128" : "u4g32", n, k, MATRIX_RANDOM, (uint64_t)(50 + i));
        const view w = matrix_there(&m);
        float *x = random_rows(CUDA_MAX_ROWS * k, 6, 3),
              *y = device_new(sizeof(float) * (size_t)(CUDA_MAX_ROWS * n)),
              *x_there = device_copy(x, sizeof(float) * (size_t)(CUDA_MAX_ROWS * k)),
              *all = malloc(sizeof(float) * (size_t)(CUDA_MAX_ROWS * n)),
              *some = malloc(sizeof(float) * (size_t)(CUDA_MAX_ROWS * n));
        void *scratch = device_new(cuda->wide_scratch(CUDA_MAX_ROWS, k));
        for (int rows = CUDA_MAX_ROWS; rows >= 1; rows--) {
            const int first = rows == CUDA_MAX_ROWS ? 0 : rows * 7 % (CUDA_MAX_ROWS - rows);
            OK(cuda->batch(&(cuda_linear){.w = {w},
                                          .n_w = 1,
                                          .n_row = rows,
                                          .x = x_there + first * k,
                                          .ldx = k,
                                          .y = {y},
                                          .ldy = {n},
                                          .scratch = scratch},
                           stream));
            read_back(rows == CUDA_MAX_ROWS ? all : some, y, sizeof(float) * (size_t)(rows * n));
            if (rows < CUDA_MAX_ROWS)
                assert_memory_equal(some, all + first * n, sizeof(float) * (size_t)(rows * n));
        }
        OK(cuda->batch(&(cuda_linear){.w = {w},
                                      .n_w = 1,
                                      .n_row = CUDA_MAX_ROWS,
                                      .x = x_there,
                                      .ldx = k,
                                      .y = {y},
                                      .ldy = {n},
                                      .scratch = scratch},
                       stream));
        read_back(some, y, sizeof(float) * (size_t)(CUDA_MAX_ROWS * n));
        assert_memory_equal(some, all, sizeof(float) * (size_t)(CUDA_MAX_ROWS * n));
        drop(w.data), drop(y), drop(x_there), drop(scratch);
        matrix_close(&m);
        free(x), free(all), free(some);
    }
}

/* ---- attention ---- */

/* Prompts in pieces against `attend`, which takes the queries as floats. */
static void check_attention(const attend_case *c) {
    enum { PAGES = 6, ROWS = 300, AHEAD = 37, ALL = AHEAD + ROWS, FEW = 16 };
    static const int pieces[] = {FEW, ROWS, 77};
    gpu_attention g = gpu_attention_open(c, ALL, false, PAGES);
    const size_t bytes = sizeof(float) * (size_t)(ROWS * g.nq);
    float *rows = random_rows(ALL * g.ld, 5, 1), *found[3];
    OK(cuda->to_device((void *)(uintptr_t)g.a.q, rows, sizeof(float) * (size_t)(ALL * g.ld), stream));
    for (int i = 0; i < 3; i++) {
        found[i] = malloc(bytes);
        gpu_attention_run(&g, 0, AHEAD, false);
        for (int64_t r = AHEAD; r < ALL; r += pieces[i])
            gpu_attention_run(&g, r, ALL - r < pieces[i] ? ALL - r : pieces[i], i > 0);
        read_back(found[i], g.a.out + AHEAD * g.nq, bytes);
        OK(cuda->fill(g.a.out, 0xff, sizeof(float) * (size_t)(ALL * g.nq), stream));
    }
    assert_memory_equal(found[1], found[2], bytes);
    for (int64_t i = 0; i < ROWS * g.nq; i++)
        if (!(fabsf(found[0][i] - found[1][i]) <= 2e-3f))
            fail_msg("%d heads of %d, %d bits, window %d: row %d, element %d is %g, not %g", (int)c->n_head,
                     (int)c->d, c->code_bits, (int)c->window, (int)(i / g.nq), (int)(i % g.nq),
                     (double)found[1][i], (double)found[0][i]);
    gpu_attention_close(&g);
    for (int i = 0; i < 3; i++)
        free(found[i]);
    free(rows);
}

static void prompts(void **state) {
    (void)state;
    static const attend_case all[] = {
        {4, 2, 64, 32, 0, ROPE_HALF, 0, 0, 0, 0},   {6, 2, 128, 64, 0, ROPE_HALF, 0, 0, 0, 0},
        {2, 1, 256, 128, 0, ROPE_HALF, 0, 0, 0, 0}, {2, 2, 80, 40, 0, ROPE_HALF, 0, 0, 0, 0},
        {2, 1, 96, 0, 70, ROPE_HALF, 0, 0, 0, 0},   {4, 1, 128, 64, 100, ROPE_HALF, 20, 0, 0, 0},
        {2, 1, 40, 20, 0, ROPE_HALF, 0, 0, 0, 0},   {2, 1, 64, 32, 1, ROPE_HALF, 0, 0, 0, 0},
        {6, 3, 64, 0, 0, ROPE_HALF, 0, 0, 8, 0},    {3, 1, 128, 0, 90, ROPE_HALF, 0, 0, 8, 0},
        {4, 4, 16, 0, 0, ROPE_HALF, 20, 0, 4, 0},   {10, 5, 64, 32, 0, ROPE_HALF, 0, 0, 0, 4},
        {5, 5, 128, 64, 90, ROPE_HALF, 0, 0, 0, 5}, {5, 1, 80, 0, 0, ROPE_HALF, 20, 0, 8, 3}};
    for (size_t i = 0; i < 3 * sizeof all / sizeof *all; i++) {
        attend_case c = all[i / 3];
        c.code_bits = i % 3 == 0 ? 0 : i % 3 == 1 ? 8 : 4;
        check_attention(&c);
    }
}

#define BY_BATCH(f)                                                                                          \
    { "batch_" #f, f, NULL, NULL, (void *)(uintptr_t)&by_batch }
#define BY_WIDE(f)                                                                                           \
    { #f, f, NULL, NULL, (void *)(uintptr_t)&by_wide }

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        BY_WIDE(every_format),    BY_BATCH(every_format),  BY_WIDE(other_formats),
        BY_BATCH(other_formats),  BY_WIDE(sums),           BY_BATCH(sums),
        BY_WIDE(many_outputs),    BY_BATCH(many_outputs),  BY_WIDE(sizes),
        BY_BATCH(sizes),          cmocka_unit_test(alone), BY_WIDE(large_weights),
        cmocka_unit_test(prompts)};
    if (gpu_open(argc, argv) && cuda->has_wide() && cuda->has_batch())
        return cmocka_run_group_tests(tests, NULL, NULL);
    return gpu_missing();
}
