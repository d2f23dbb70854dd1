/* The CUDA kernels against the scalar reference, on whatever device is there; skipped without one.
 *   test_kernels_cuda [PATTERN]: the tests with such names */
#include "support/matrix.h"
#include "support/tilecase.h"

#include "kernels/cuda_load.h"
#include "kernels/kernels.h"
#include "quant/tile.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const cuda_kernels *cuda;
static cuda_stream stream;
static cuda_device_info device;

static void ok(int error, const char *what) {
    if (error)
        fail_msg("%s: %s", what, cuda->error_text(error));
}
#define OK(call) ok(call, #call)

/* ---- memory ---- */

static void *device_new(size_t bytes) {
    void *p = NULL;
    OK(cuda->alloc(&p, bytes + 256));
    return p;
}
static void *device_copy(const void *data, size_t bytes) {
    void *p = device_new(bytes);
    OK(cuda->to_device(p, data, bytes, stream));
    OK(cuda->stream_sync(stream));
    return p;
}
static void read_back(void *host, const void *p, size_t bytes) {
    OK(cuda->to_host(host, p, bytes, stream));
    OK(cuda->stream_sync(stream));
}

/* A copy of the matrix on the device, in its order. */
static view matrix_there(const matrix *m) {
    uint64_t bytes;
    view w = m->view;
    assert_true(pack_bytes(&w.format, w.n, w.k, &bytes));
    w.data = device_copy(m->view.data, bytes);
    OK(cuda->gtile(&w, true, stream));
    return w;
}
static void drop(const void *p) {
    OK(cuda->release((void *)(uintptr_t)p));
}

/* ---- products ---- */

typedef struct product {
    int n_row;
    bool two, adds, gated, norm;
    act_kind act;
} product;

/* One launch; y is [n_row, ldy], with `before` in it. Poisoned otherwise. */
static float *run_linear(const matrix *m, int n_w, const view *w, const float *x, int64_t ldx,
                         const float *norm, const float *bias, product p, const float *before) {
    const int64_t n = m->n, k = m->k;
    const size_t y_bytes = (size_t)(p.n_row * n) * sizeof(float);
    float *host = malloc(n_w * y_bytes), *x_there = device_copy(x, (size_t)(p.n_row * ldx) * sizeof(float));
    float *y = device_new(n_w * y_bytes),
          *norm_there = norm ? device_copy(norm, (size_t)k * sizeof(float)) : NULL;
    float *bias_there = bias ? device_copy(bias, (size_t)n * sizeof(float)) : NULL;
    void *scratch = device_new(cuda->linear_scratch(p.n_row, k, p.two));
    OK(cuda->fill(y, 0xff, n_w * y_bytes, stream));
    if (before)
        OK(cuda->to_device(y, before, y_bytes, stream));
    cuda_linear a = {.n_w = n_w,
                     .n_row = p.n_row,
                     .x = x_there,
                     .ldx = ldx,
                     .norm = norm_there,
                     .eps = 1e-5f,
                     .two = p.two,
                     .gated = p.gated,
                     .act = p.act,
                     .adds = p.adds,
                     .scratch = scratch};
    for (int i = 0; i < n_w; i++) {
        a.w[i] = w[i];
        a.bias[i] = i == 0 ? bias_there : NULL;
        a.y[i] = y + i * p.n_row * n;
        a.ldy[i] = n;
    }
    ok(cuda->linear(&a, stream), "linear");
    OK(cuda->stream_sync(stream));
    read_back(host, y, n_w * y_bytes);
    drop(x_there), drop(y), drop(scratch);
    if (norm_there)
        drop(norm_there);
    if (bias_there)
        drop(bias_there);
    return host;
}

/* Exact products of the codes: y in double, and the sum of sizes that bounds its rounding. */
static void reference(const matrix *m, const float *x, bool two, double *y, double *size) {
    const kernel_table *t = kernels_table_for("ref");
    const act_format f = act_format_for(&m->view.format, 8);
    const int64_t k = m->k, group = f.group == PACK_GROUP_ROW ? tile_count(k) * TILE_K : f.group;
    char *row = aligned_alloc(64, act_row_bytes(f, k));
    float *left = malloc((size_t)k * sizeof(float)), *w = malloc((size_t)k * sizeof(float));
    double *a = calloc((size_t)k, sizeof(double)), *as = calloc((size_t)k, sizeof(double));
    memcpy(left, x, (size_t)k * sizeof(float));
    for (int turn = 0; turn < (two ? 2 : 1); turn++) {
        t->act_quantize(f, left, k, row);
        const float *scale = (const float *)(const void *)(row + tile_count(k) * TILE_K);
        for (int64_t i = 0; i < k; i++) {
            const double v = (double)scale[i / group] * (int8_t)row[i];
            a[i] += v;
            as[i] += fabs(v);
            left[i] -= scale[i / group] * (float)(int8_t)row[i];
        }
    }
    for (int64_t n = 0; n < m->n; n++) {
        pack_read_row(&m->view, n, w);
        y[n] = size[n] = 0;
        for (int64_t i = 0; i < k; i++) {
            y[n] += a[i] * (double)w[i];
            size[n] += as[i] * fabs((double)w[i]);
        }
    }
    free(row), free(left), free(w), free(a), free(as);
}

/* A wrong code or sum is one unit of the smallest scale: far above 2e-6 of the terms of the rows here, which
 * is what the order of float sums may cost. Minima cancel against codes and may cost more. */
static double bound_of(const matrix *m, double size) {
    return (m->view.format.asym ? 6e-6 : 2e-6) * size + 1e-30;
}

static void check_rows(const matrix *m, const float *x, const float *y, product p, const float *bias,
                       const float *before, const char *what) {
    double *expected = malloc((size_t)m->n * sizeof(double)), *size = malloc((size_t)m->n * sizeof(double));
    for (int r = 0; r < p.n_row; r++) {
        reference(m, x + r * m->k, p.two, expected, size);
        for (int64_t n = 0; n < m->n; n++) {
            const double more = (bias ? (double)bias[n] : 0) + (before ? (double)before[r * m->n + n] : 0);
            const double found = (double)y[r * m->n + n], bound = bound_of(m, size[n] + fabs(more));
            if (!(fabs(found - expected[n] - more) <= bound))
                fail_msg("%s %dx%d, %d rows%s: row %d output %d: %.9g, expected %.9g +- %.2g", what,
                         (int)m->n, (int)m->k, p.n_row, p.two ? " of two" : "", r, (int)n, found,
                         expected[n] + more, bound);
        }
    }
    free(expected), free(size);
}

/* counts: rows of launches, 0 at the end. */
static void check_counts(matrix *m, const char *what, const int *counts) {
    enum { MOST = CUDA_MAX_ROWS };
    const view w = matrix_there(m);
    float *x = case_rows(MOST, m->k, 3), *bias = random_rows(m->n, 4, 1),
          *before = random_rows(MOST * m->n, 5, 1);
    float *alone[MOST] = {NULL};
    for (; *counts; counts++) {
        const product p = {.n_row = *counts}, one = {.n_row = 1};
        float *y = run_linear(m, 1, &w, x, m->k, NULL, NULL, p, NULL);
        for (int r = 0; r < p.n_row; r++) {
            if (!alone[r]) {
                alone[r] = run_linear(m, 1, &w, x + r * m->k, m->k, NULL, NULL, one, NULL);
                if (r < 2)
                    check_rows(m, x + r * m->k, alone[r], one, NULL, NULL, what);
            }
            if (memcmp(y + r * m->n, alone[r], (size_t)m->n * sizeof(float)))
                fail_msg("%s %dx%d: row %d of %d has other bits than alone", what, (int)m->n, (int)m->k, r,
                         p.n_row);
        }
        free(y);
    }
    for (int n_row = 1; n_row <= 9; n_row += 8) {
        const product p = {.n_row = n_row, .two = true, .adds = true};
        float *y = run_linear(m, 1, &w, x, m->k, NULL, bias, p, before);
        check_rows(m, x, y, p, bias, before, what);
        free(y);
    }
    for (int r = 0; r < MOST; r++)
        free(alone[r]);
    drop(w.data);
    free(x), free(bias), free(before);
    matrix_close(m);
}

static void check_matrix(matrix *m, const char *what) {
    check_counts(m, what, (const int[]){2, 5, 8, 9, 16, 0});
}

static const int64_t shapes[][2] = {{1, 32}, {15, 64}, {17, 576}, {48, 1000}, {33, 4096}};

static void test_uniform(void **state) {
    (void)state;
    static const char *const ends[] = {"g32",  "g32a",  "g64",  "g128",  "g128a",
                                       "grow", "growa", "g32t", "g128t", "g16"};
    int n_checked = 0;
    for (int bits = 2; bits <= 8; bits++)
        for (size_t e = 0; e < sizeof ends / sizeof *ends; e++) {
            const int64_t *s = shapes[(bits + (int)e) % 5];
            char name[PACK_NAME];
            pack_format f;
            snprintf(name, sizeof name, "u%d%s", bits, ends[e]);
            if (!pack_from_name(name, s[1], &f) || (f.group == 16 && bits != 2 && bits != 3 && bits != 6))
                continue;
            matrix m = matrix_open_uniform(name, s[0], s[1], MATRIX_RANDOM, (uint64_t)n_checked + 1);
            check_matrix(&m, name);
            n_checked++;
        }
    assert_true(n_checked > 50);
}

/* Up to 64 rows, on whatever kernels are for them: sizes with and without a chunk for every block of eight,
 * with more panels than there are teams, with a short last chunk. */
static void test_many_rows(void **state) {
    (void)state;
    static const struct {
        const char *format;
        int64_t n, k;
        int counts[8];
    } cases[] = {{"u4g32", 40, 96, {3, 33, 64}},
                 {"u4g32", 4500, 1000, {2, 24}},
                 {"u4g32", 17, 4160, {8, 16, 17, 32, 48, 64}},
                 {"u4g64", 100, 2048, {4, 64}},
                 {"u4g128", 33, 2304, {12, 31, 50}},
                 {"u4g32", 33, 14336, {16, 64}},
                 {"u4g32a", 20, 576, {17, 64}},
                 {"u6g16", 20, 512, {40}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        matrix m = matrix_open_uniform(cases[i].format, cases[i].n, cases[i].k, MATRIX_RANDOM, 60 + i);
        check_counts(&m, cases[i].format, cases[i].counts);
    }
}

static void test_file_types(void **state) {
    (void)state;
    static const type_id types[] = {TYPE_Q4_0, TYPE_Q4_1, TYPE_Q5_0, TYPE_Q5_1, TYPE_Q8_0,
                                    TYPE_Q2_K, TYPE_Q3_K, TYPE_Q4_K, TYPE_Q5_K, TYPE_Q6_K};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        for (int big = 0; big < 2; big++) {
            matrix m = matrix_open(types[i], big ? 37 : 16, big ? 2304 : 256, MATRIX_RANDOM, 11 + i);
            check_matrix(&m, type_get(types[i])->name);
        }
}

static void test_refused(void **state) {
    (void)state;
    matrix m = matrix_open(TYPE_IQ4_NL, 16, 64, MATRIX_RANDOM, 1);
    cuda_linear a = {.w = {m.view}, .n_w = 1, .n_row = 1};
    assert_int_equal(cuda->linear(&a, stream), CUDA_UNSUPPORTED);
    a.n_row = CUDA_MAX_ROWS + 1;
    assert_int_equal(cuda->linear(&a, stream), CUDA_UNSUPPORTED);
    matrix_close(&m);
}

/* Gate and up of one launch against two plain ones; three matrices of one launch; a norm in front. */
static void test_together(void **state) {
    (void)state;
    const int64_t n = 100, k = 1100;
    matrix m[3];
    view w[3];
    for (int i = 0; i < 3; i++) {
        m[i] = matrix_open_uniform("u4g32", n, k, MATRIX_RANDOM, (uint64_t)(20 + i));
        w[i] = matrix_there(&m[i]);
    }
    float *x = random_rows(40 * k, 6, 3), *norm = random_rows(k, 7, 2),
          *plain = malloc((size_t)(40 * k) * sizeof(float));
    const kernel_table *t = kernels_table_for("ref");
    for (int r = 0; r < 40; r++)
        t->norm(NORM_RMS, x + r * k, norm, NULL, plain + r * k, k, 1, true, 1e-5f);
    static const int counts[] = {1, 3, 16, 20, 40};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        const int rows = counts[c];
        float *three = run_linear(m, 3, w, x, k, norm, NULL, (product){.n_row = rows}, NULL);
        for (int i = 0; i < 3; i++) {
            float *one = run_linear(&m[i], 1, &w[i], x, k, norm, NULL, (product){.n_row = rows}, NULL);
            assert_memory_equal(one, three + i * rows * n, (size_t)(rows * n) * sizeof(float));
            free(one);
        }
        double *expected = malloc((size_t)n * sizeof(double)), *size = malloc((size_t)n * sizeof(double));
        for (int act = ACT_SILU; act <= ACT_RELU2; act++) {
            float *gated = run_linear(m, 2, w, x, k, norm, NULL,
                                      (product){.n_row = rows, .gated = true, .act = (act_kind)act}, NULL);
            for (int i = 0; i < rows * n; i++) {
                float g;
                t->act((act_kind)act, three + i, &g, 1);
                const float u = g * three[rows * n + i];
                if (!(fabsf(gated[i] - u) <= 1e-5f * fabsf(u) + 1e-6f))
                    fail_msg("activation %d, element %d: %g, expected %g", act, i, (double)gated[i],
                             (double)u);
            }
            free(gated);
        }
        /* Codes of x * norm may differ from those of the normed row where a value stands between two. */
        for (int r = 0; r < rows; r++) {
            reference(&m[0], plain + r * k, false, expected, size);
            for (int64_t i = 0; i < n; i++)
                if (!(fabs((double)three[r * n + i] - expected[i]) <= 2e-4 * size[i]))
                    fail_msg("normed row %d output %d: %g, expected %g", r, (int)i, (double)three[r * n + i],
                             expected[i]);
        }
        free(expected), free(size), free(three);
    }
    for (int i = 0; i < 3; i++) {
        drop(w[i].data);
        matrix_close(&m[i]);
    }
    free(x), free(norm), free(plain);
}

/* A launch of one row of k floats, with or without what another left of them, has the same bits. */
static void check_left(const char *name, const float *x, const void *codes, const float *norm, int64_t k) {
    enum { N = 40 };
    matrix m = matrix_open_uniform(name, N, k, MATRIX_RANDOM, 31);
    const view w = matrix_there(&m);
    uint32_t found[2][N]; /* bits of floats */
    float *y = device_new(sizeof found[0]);
    for (int i = 0; i < 2; i++) {
        OK(cuda->fill(y, 0xff, sizeof found[0], stream));
        const cuda_linear a = {.w = {w},
                               .n_w = 1,
                               .n_row = 1,
                               .x = x,
                               .ldx = k,
                               .norm = norm,
                               .eps = 1e-5f,
                               .codes = i ? codes : NULL,
                               .y = {y},
                               .ldy = {N}};
        OK(cuda->linear(&a, stream));
        read_back(found[i], y, sizeof found[i]);
    }
    if (memcmp(found[0], found[1], sizeof found[0]))
        fail_msg("%s, rows of %d: codes that were left give other bits", name, (int)k);
    drop(y), drop(w.data);
    matrix_close(&m);
}

/* A product leaves its outputs' codes: plain, added to something, gated; with a norm, and with a NaN. */
static void test_left(void **state) {
    (void)state;
    static const int64_t sizes[] = {32, 96, 1120, 4096, 14336};
    const int64_t k = 320;
    for (size_t c = 0; c < 5 * sizeof sizes / sizeof *sizes; c++) {
        const int64_t n = sizes[c / 5];
        const bool gated = c % 5 == 1, adds = c % 5 == 2, nan = c % 5 == 4;
        matrix m[2];
        view w[2];
        for (int i = 0; i < 2; i++) {
            m[i] = matrix_open_uniform("u4g32", n, k, MATRIX_RANDOM, 40 + (uint64_t)i);
            w[i] = matrix_there(&m[i]);
        }
        float *x = random_rows(k, c, 3), *norm = random_rows(n, 7, 2), *before = random_rows(n, 8, 3),
              *plain = malloc((size_t)n * sizeof(float));
        if (nan)
            before[n / 2] = NAN;
        float *x_there = device_copy(x, (size_t)k * 4), *y = device_copy(before, (size_t)n * 4);
        float *norm_there = c % 5 > 1 ? device_copy(norm, (size_t)n * 4) : NULL;
        void *codes = device_new(cuda->codes_bytes(n));
        OK(cuda->fill(codes, 0, cuda->codes_bytes(n), stream));
        cuda_linear a = {.w = {w[0], w[1]},
                         .n_w = gated ? 2 : 1,
                         .n_row = 1,
                         .x = x_there,
                         .ldx = k,
                         .gated = gated,
                         .adds = adds || nan,
                         .y = {y},
                         .ldy = {n},
                         .leaves = {codes, norm_there}};
        OK(cuda->linear(&a, stream));
        float *left = malloc((size_t)n * sizeof(float));
        read_back(left, y, (size_t)n * 4);
        check_left("u4g32", y, codes, norm_there, n);
        check_left("u8g32a", y, codes, norm_there, n);
        check_left("u4g128", y, codes, norm_there, n);
        OK(cuda->to_device(y, before, (size_t)n * 4, stream));
        a.leaves.data = NULL;
        OK(cuda->linear(&a, stream));
        read_back(plain, y, (size_t)n * 4);
        assert_memory_equal(plain, left, (size_t)n * 4);
        free(x), free(norm), free(before), free(plain), free(left);
        drop(x_there), drop(y), drop(codes);
        if (norm_there)
            drop(norm_there);
        for (int i = 0; i < 2; i++) {
            drop(w[i].data);
            matrix_close(&m[i]);
        }
    }
}

/* Keys and values that `store` stored, several rows of one sequence, give what attention of one row after the
 * other gives, bit by bit. */
static void test_store(void **state) {
    (void)state;
    enum { HEADS = 4, KV = 2, D = 64, NQ = HEADS * D, NK = KV * D, LD = NQ + 2 * NK, ROWS = 16, PAGES = 5 };
    const size_t cache = (size_t)PAGES * CUDA_PAGE * NK * 2, room = cuda->attend_scratch(ROWS, HEADS, D);
    float *rows = random_rows(PAGES * CUDA_PAGE * LD, 5, 1), *there = device_new(sizeof(float) * ROWS * LD);
    float *table = device_copy(rows, sizeof(float) * ROWS * D); /* any factors do */
    void *k[2], *v[2], *scratch = device_new(room);
    float *out = device_new(sizeof(float) * ROWS * NQ), *alone = malloc(sizeof(float) * ROWS * NQ),
          *together = malloc(sizeof(float) * ROWS * NQ);
    int32_t at[ROWS], *position = device_new(sizeof at);
    int32_t *pages = device_copy((const int32_t[]){3, 0, 4, 1, 2}, sizeof(int32_t) * PAGES);
    int32_t *first = device_new(sizeof at);
    OK(cuda->fill(first, 0, sizeof at, stream));
    OK(cuda->fill(scratch, 0, room, stream));
    for (int i = 0; i < 2; i++) {
        k[i] = device_new(cache), v[i] = device_new(cache);
        OK(cuda->fill(k[i], 0xff, cache, stream));
        OK(cuda->fill(v[i], 0xff, cache, stream));
    }
    for (int p = 0; p + ROWS <= PAGES * CUDA_PAGE; p += ROWS) {
        cuda_attend a = {.q = there,
                         .k = there + NQ,
                         .v = there + NQ + NK,
                         .ldq = LD,
                         .ldk = LD,
                         .ldv = LD,
                         .out = out,
                         .ldo = NQ,
                         .n_row = ROWS,
                         .n_head = HEADS,
                         .position = position,
                         .pages = pages,
                         .first_page = first,
                         .cos_sin = table,
                         .cos_sin_by_row = true,
                         .stored = true,
                         .n_rot = D,
                         .scale = 0.125f,
                         .scratch = scratch};
        for (int r = 0; r < ROWS; r++)
            at[r] = p + r;
        OK(cuda->to_device(there, rows + p * LD, sizeof(float) * ROWS * LD, stream));
        OK(cuda->to_device(position, at, sizeof at, stream));
        a.kv = (cuda_kv){k[0], v[0], KV, D, CUDA_PAGE * NK};
        OK(cuda->store(&a, stream));
        OK(cuda->attend(&a, stream));
        read_back(together, out, sizeof(float) * ROWS * NQ);
        a.kv = (cuda_kv){k[1], v[1], KV, D, CUDA_PAGE * NK};
        a.n_row = 1;
        a.stored = false;
        for (int r = 0; r < ROWS; r++) {
            OK(cuda->stream_sync(stream));
            OK(cuda->attend(&a, stream));
            a.q += LD, a.k += LD, a.v += LD, a.out += NQ, a.position++, a.cos_sin += D;
        }
        read_back(alone, out, sizeof(float) * ROWS * NQ);
        assert_true(isfinite(alone[0]));
        assert_memory_equal(alone, together, sizeof(float) * ROWS * NQ);
    }
    for (int i = 0; i < 2; i++)
        drop(k[i]), drop(v[i]);
    drop(there), drop(table), drop(scratch), drop(out), drop(position), drop(pages), drop(first);
    free(rows), free(alone), free(together);
}

static void test_each(void **state) {
    (void)state;
    enum { N = 300, LD = 320, ROWS = 3 };
    static const cuda_each cases[] = {
        {.kind = OP_ACT, .act = ACT_GELU_TANH}, {.kind = OP_GATE, .act = ACT_SILU},
        {.kind = OP_ADD, .value = 0.75f},       {.kind = OP_SCALE, .value = -3},
        {.kind = OP_CLAMP, .value = 0.5f},      {.kind = OP_SOFTCAP, .value = 0.8f}};
    const kernel_table *t = kernels_table_for("ref");
    float *x = random_rows(ROWS * LD, 1, 1), *y = random_rows(ROWS * LD, 2, 1);
    float *x_there = device_copy(x, sizeof(float) * ROWS * LD),
          *y_there = device_copy(y, sizeof(float) * ROWS * LD);
    float *out = device_new(sizeof(float) * ROWS * LD), found[ROWS * LD], expected[N];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cuda_each a = cases[i];
        a.x = x_there, a.y = y_there, a.out = out, a.n_row = ROWS, a.n = N;
        a.ldx = a.ldy = a.ldo = LD;
        OK(cuda->each(&a, stream));
        read_back(found, out, sizeof found);
        for (int64_t at = 0; at < ROWS * LD; at += LD) {
            switch (a.kind) {
            case OP_ACT: t->act(a.act, x + at, expected, N); break;
            case OP_GATE: t->gate(a.act, x + at, y + at, expected, N); break;
            case OP_ADD: t->add(x + at, y + at, a.value, expected, N); break;
            case OP_SCALE: t->scale(x + at, a.value, expected, N); break;
            case OP_CLAMP: t->clamp(x + at, a.value, expected, N); break;
            default: t->softcap(x + at, a.value, expected, N);
            }
            for (int n = 0; n < N; n++)
                if (!(fabsf(found[at + n] - expected[n]) <= 1e-6f))
                    fail_msg("op %d, element %d: %g, expected %g", (int)a.kind, n, (double)found[at + n],
                             (double)expected[n]);
        }
    }
    drop(x_there), drop(y_there), drop(out);
    free(x), free(y);
}

/* Attention does, on one block's pages and on several's. */
static void test_attend_left(void **state) {
    (void)state;
    enum { HEADS = 4, D = 64, K = HEADS * D, PAGES = 4 };
    const size_t cache = (size_t)PAGES * CUDA_PAGE * K * 2, room = cuda->attend_scratch(1, HEADS, D);
    float *rows = random_rows(3 * K, 5, 1), *there = device_copy(rows, sizeof(float) * 3 * K);
    void *keys = device_new(cache), *values = device_new(cache), *scratch = device_new(room),
         *codes = device_new(cuda->codes_bytes(K));
    float *out = device_new(sizeof(float) * K);
    int32_t *pages = device_copy((const int32_t[]){0, 1, 2, 3}, sizeof(int32_t) * PAGES);
    int32_t *first = device_copy((const int32_t[]){0}, sizeof(int32_t));
    OK(cuda->fill(keys, 0, cache, stream));
    OK(cuda->fill(values, 0, cache, stream));
    OK(cuda->fill(scratch, 0, room, stream));
    OK(cuda->fill(codes, 0, cuda->codes_bytes(K), stream));
    for (int32_t at = 5; at < PAGES * CUDA_PAGE; at += 100) {
        int32_t *position = device_copy(&at, sizeof at);
        const cuda_attend a = {.kv = {keys, values, HEADS, D, CUDA_PAGE * K},
                               .q = there,
                               .k = there + K,
                               .v = there + 2 * K,
                               .ldq = K,
                               .ldk = K,
                               .ldv = K,
                               .out = out,
                               .ldo = K,
                               .n_row = 1,
                               .n_head = HEADS,
                               .position = position,
                               .pages = pages,
                               .first_page = first,
                               .scale = 0.125f,
                               .scratch = scratch,
                               .leaves = {.data = codes}};
        OK(cuda->attend(&a, stream));
        check_left("u4g32", out, codes, NULL, K);
        drop(position);
    }
    free(rows);
    drop(there), drop(keys), drop(values), drop(scratch), drop(codes), drop(out), drop(pages), drop(first);
}

/* A NaN or an infinity poisons its own row. */
static void test_poison(void **state) {
    (void)state;
    matrix m = matrix_open_uniform("u4g32", 40, 300, MATRIX_RANDOM, 9);
    const view w = matrix_there(&m);
    float *x = random_rows(4 * 300, 8, 1);
    x[300 + 17] = NAN;
    x[600 + 299] = INFINITY;
    float *y = run_linear(&m, 1, &w, x, 300, NULL, NULL, (product){.n_row = 4}, NULL);
    for (int i = 0; i < 4 * 40; i++)
        assert_true((i / 40 == 1 || i / 40 == 2) == (bool)isnan(y[i]));
    float *one = run_linear(&m, 1, &w, x + 300, 300, NULL, NULL, (product){.n_row = 1}, NULL);
    for (int i = 0; i < 40; i++)
        assert_true(isnan(one[i]));
    free(x), free(y), free(one);
    drop(w.data);
    matrix_close(&m);
}

/* ---- the order of matrices ---- */

static void test_gtile(void **state) {
    (void)state;
    static const char *const names[] = {"u2g32",  "u3g128a", "u4g32",  "u5grow",
                                        "u6g32t", "u7g64",   "u8g128", "u5g32p"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        matrix m = matrix_open_uniform(names[i], 35, 700, MATRIX_RANDOM, i + 1);
        view w = matrix_there(&m);
        uint64_t bytes;
        assert_true(pack_bytes(&w.format, w.n, w.k, &bytes));
        uint8_t *host = malloc(bytes);
        OK(cuda->gtile(&w, false, stream));
        read_back(host, w.data, bytes);
        assert_memory_equal(host, m.view.data, bytes);
        free(host);
        drop(w.data);
        matrix_close(&m);
    }
}

/* ---- rows ---- */

static void check_close(const float *found, const float *expected, int64_t n, float bound, const char *what) {
    float max = 0;
    for (int64_t i = 0; i < n; i++)
        max = fmaxf(max, fabsf(expected[i]));
    for (int64_t i = 0; i < n; i++)
        if (!(fabsf(found[i] - expected[i]) <= bound * max))
            fail_msg("%s, element %d: %.9g, expected %.9g", what, (int)i, (double)found[i],
                     (double)expected[i]);
}

static void test_norm(void **state) {
    (void)state;
    const kernel_table *t = kernels_table_for("ref");
    for (int i = 0; i < 8; i++) {
        const int64_t k = i & 1 ? 576 : 4096, groups = i & 2 ? 8 : 1;
        const bool layer = i & 4;
        float *x = random_rows(3 * k, (uint64_t)i + 1, 4), *w = random_rows(k, 5, 1),
              *b = layer ? random_rows(k, 6, 1) : NULL;
        float *expected = malloc((size_t)(3 * k) * sizeof(float)),
              *found = malloc((size_t)(3 * k) * sizeof(float));
        float *there = device_copy(x, (size_t)(3 * k) * sizeof(float)),
              *w_there = device_copy(w, (size_t)k * sizeof(float));
        float *b_there = b ? device_copy(b, (size_t)k * sizeof(float)) : NULL;
        for (int r = 0; r < 3; r++)
            t->norm(layer ? NORM_LAYER : NORM_RMS, x + r * k, w, b, expected + r * k, k, groups, i & 1,
                    1e-5f);
        const cuda_norm a = {
            layer ? NORM_LAYER : NORM_RMS, there, w_there, b_there, there, 3, k, k, k, groups, i & 1, 1e-5f};
        OK(cuda->norm(&a, stream));
        read_back(found, there, (size_t)(3 * k) * sizeof(float));
        check_close(found, expected, 3 * k, 2e-6f, "norm");
        drop(there), drop(w_there);
        if (b)
            drop(b_there);
        free(x), free(w), free(b), free(expected), free(found);
    }
}

static void test_embed(void **state) {
    (void)state;
    static const char *const names[] = {"u4g32", "u6g128a", "u3grow", "u5g32t"};
    static const type_id types[] = {TYPE_Q4_K, TYPE_Q6_K, TYPE_F16, TYPE_BF16, TYPE_F32, TYPE_Q8_0};
    for (size_t i = 0; i < 10; i++) {
        matrix m = i < 4 ? matrix_open_uniform(names[i], 50, 512, MATRIX_RANDOM, i + 1)
                         : matrix_open(types[i - 4], 50, 512, MATRIX_RANDOM, i + 1);
        const int32_t tokens[3] = {0, 49, 17};
        float expected[512], found[3 * 512];
        const view w = matrix_there(&m);
        int32_t *there = device_copy(tokens, sizeof tokens);
        float *out = device_new(sizeof found);
        OK(cuda->embed(&w, there, 2.0f, out, 3, stream));
        read_back(found, out, sizeof found);
        for (int r = 0; r < 3; r++) {
            pack_read_row(&m.view, tokens[r], expected);
            for (int c = 0; c < 512; c++)
                if (found[r * 512 + c] != expected[c] * 2.0f)
                    fail_msg("embedding %d, row %d column %d: %a, expected %a", (int)i, r, c,
                             (double)found[r * 512 + c], (double)expected[c] * 2);
        }
        drop(w.data), drop(there), drop(out);
        matrix_close(&m);
    }
}

/* ---- attention ---- */

typedef struct attention {
    int64_t n_head, n_kv, d, n_rot, window;
    rope_style style;
    float softcap;
} attention;

/* Two sequences side by side, token after token, pages scattered; the reference keeps plain caches. */
static void check_attention(attention c, const int *lengths) {
    enum { PAGES = 12, ROWS = 2 };
    const int max = lengths[0] > lengths[1] ? lengths[0] : lengths[1];
    const int64_t nq = c.n_head * c.d, nk = c.n_kv * c.d, page = c.n_kv * CUDA_PAGE * c.d;
    const size_t cache = (size_t)(ROWS * PAGES * page) * 2;
    float *table = malloc((size_t)(PAGES * CUDA_PAGE * (c.n_rot + 1)) * sizeof(float));
    for (int p = 0; p < PAGES * CUDA_PAGE; p++)
        for (int i = 0; i < c.n_rot / 2; i++) {
            table[p * c.n_rot + i] = cosf((float)p * powf(10000, -2.0f * (float)i / (float)c.n_rot));
            table[p * c.n_rot + c.n_rot / 2 + i] =
                sinf((float)p * powf(10000, -2.0f * (float)i / (float)c.n_rot));
        }
    int32_t pages[ROWS * PAGES];
    for (int i = 0; i < ROWS * PAGES; i++)
        pages[i] = (i * 7 + 3) % (ROWS * PAGES);
    void *k_there = device_new(cache), *v_there = device_new(cache);
    OK(cuda->fill(k_there, 0xff, cache, stream)); /* NaNs: nothing that was not written may count */
    OK(cuda->fill(v_there, 0xff, cache, stream));
    const size_t scratch_bytes = cuda->attend_scratch(ROWS, c.n_head, c.d);
    void *scratch = device_new(scratch_bytes), *qkv = device_new((size_t)(ROWS * (nq + 2 * nk)) * 4);
    OK(cuda->fill(scratch, 0, scratch_bytes, stream));
    float *out = device_new((size_t)(ROWS * nq) * 4),
          *table_there = device_copy(table, (size_t)(PAGES * CUDA_PAGE * c.n_rot) * 4);
    int32_t *pages_there = device_copy(pages, sizeof pages), *position = device_new(ROWS * 4),
            *first_there = device_copy((const int32_t[]){0, PAGES}, sizeof(int32_t) * ROWS);
    float *ks = calloc((size_t)(ROWS * max * nk), 4), *vs = calloc((size_t)(ROWS * max * nk), 4);
    float *rows = malloc((size_t)(ROWS * (nq + 2 * nk)) * 4), *found = malloc((size_t)(ROWS * nq) * 4);
    double *score = malloc((size_t)max * sizeof(double)), *expected = malloc((size_t)c.d * sizeof(double));
    const kernel_table *t = kernels_table_for("ref");
    const float scale = 1.0f / sqrtf((float)c.d);
    const int64_t ld = nq + 2 * nk;
    for (int step = 0; step < max; step++) {
        int32_t at[ROWS];
        float *fresh = random_rows(ROWS * ld, (uint64_t)step + 1, 1);
        memcpy(rows, fresh, (size_t)(ROWS * ld) * 4);
        for (int r = 0; r < ROWS; r++) {
            at[r] = step < lengths[r] ? step : lengths[r] - 1;
            float *q = rows + r * ld;
            if (c.n_rot) {
                t->rope(c.style, q, c.n_head, c.d, c.n_rot, table + at[r] * c.n_rot);
                t->rope(c.style, q + nq, c.n_kv, c.d, c.n_rot, table + at[r] * c.n_rot);
            }
            for (int64_t i = 0; i < nk; i++) {
                ks[(r * max + at[r]) * nk + i] = half_to_float(half_from_float(q[nq + i]));
                vs[(r * max + at[r]) * nk + i] = half_to_float(half_from_float(q[nq + nk + i]));
            }
        }
        OK(cuda->to_device(qkv, fresh, (size_t)(ROWS * ld) * 4, stream));
        OK(cuda->to_device(position, at, sizeof at, stream));
        const cuda_attend a = {.kv = {k_there, v_there, c.n_kv, c.d, page},
                               .q = qkv,
                               .k = (float *)qkv + nq,
                               .v = (float *)qkv + nq + nk,
                               .ldq = ld,
                               .ldk = ld,
                               .ldv = ld,
                               .out = out,
                               .ldo = nq,
                               .n_row = ROWS,
                               .n_head = c.n_head,
                               .position = position,
                               .pages = pages_there,
                               .first_page = first_there,
                               .cos_sin = c.n_rot ? table_there : NULL,
                               .style = c.style,
                               .n_rot = c.n_rot,
                               .window = c.window,
                               .scale = scale,
                               .softcap = c.softcap,
                               .scratch = scratch};
        OK(cuda->attend(&a, stream));
        OK(cuda->stream_sync(stream));
        free(fresh);
        if (step % 37 && step != max - 1 && step % 64)
            continue;
        read_back(found, out, (size_t)(ROWS * nq) * 4);
        for (int r = 0; r < ROWS; r++)
            for (int64_t h = 0; h < c.n_head; h++) {
                const int64_t kh = h / (c.n_head / c.n_kv);
                const int low = c.window && at[r] >= c.window ? at[r] - (int)c.window + 1 : 0;
                double largest = -INFINITY, sum = 0;
                for (int p = low; p <= at[r]; p++) {
                    score[p] = 0;
                    for (int64_t i = 0; i < c.d; i++)
                        score[p] += (double)rows[r * ld + h * c.d + i] *
                                    (double)ks[(r * max + p) * nk + kh * c.d + i];
                    score[p] *= (double)scale;
                    if (c.softcap > 0)
                        score[p] = (double)c.softcap * tanh(score[p] / (double)c.softcap);
                    largest = fmax(largest, score[p]);
                }
                memset(expected, 0, (size_t)c.d * sizeof(double));
                for (int p = low; p <= at[r]; p++) {
                    const double e = exp(score[p] - largest);
                    sum += e;
                    for (int64_t i = 0; i < c.d; i++)
                        expected[i] += e * (double)vs[(r * max + p) * nk + kh * c.d + i];
                }
                for (int64_t i = 0; i < c.d; i++)
                    if (!(fabs((double)found[r * nq + h * c.d + i] - expected[i] / sum) <= 5e-6))
                        fail_msg(
                            "d %d, window %d, position %d, row %d head %d channel %d: %.8g, expected %.8g",
                            (int)c.d, (int)c.window, at[r], r, (int)h, (int)i,
                            (double)found[r * nq + h * c.d + i], expected[i] / sum);
            }
    }
    drop(k_there), drop(v_there), drop(scratch), drop(qkv), drop(out), drop(table_there), drop(pages_there),
        drop(position), drop(first_there);
    free(table), free(ks), free(vs), free(rows), free(found), free(score), free(expected);
}

static void test_attend(void **state) {
    (void)state;
    check_attention((attention){32, 8, 128, 128, 0, ROPE_HALF, 0}, (const int[]){300, 66});
    check_attention((attention){9, 3, 64, 64, 0, ROPE_INTERLEAVED, 0}, (const int[]){130, 1});
    check_attention((attention){8, 1, 256, 256, 70, ROPE_HALF, 0}, (const int[]){200, 64});
    check_attention((attention){4, 4, 80, 20, 0, ROPE_HALF, 30}, (const int[]){70, 65});
    check_attention((attention){12, 2, 96, 0, 33, ROPE_HALF, 0}, (const int[]){140, 129});
}

/* ---- sampling ---- */

static void test_sample(void **state) {
    (void)state;
    enum { VOCAB = 50257, ROWS = 3, TOP = 40 };
    float *logits = random_rows(ROWS * VOCAB, 12, 20), uniform[ROWS] = {0, 0.999999f, 0.5f};
    logits[777] = logits[40000] = 30; /* the first of two equals */
    logits[VOCAB + 3] = NAN;
    logits[2 * VOCAB + VOCAB - 1] = 21;
    void *there = device_copy(logits, (size_t)(ROWS * VOCAB) * 4), *u = device_copy(uniform, sizeof uniform);
    int32_t *token = device_new(ROWS * 4), *ids = device_new((size_t)ROWS * TOP * 4),
            *position = device_new(ROWS * 4);
    float *values = device_new((size_t)ROWS * TOP * 4);
    void *scratch = device_new(cuda->sample_scratch(ROWS));
    OK(cuda->fill(scratch, 0, cuda->sample_scratch(ROWS), stream));
    OK(cuda->fill(position, 0, ROWS * 4, stream));
    cuda_sample a = {.logits = there,
                     .n_row = ROWS,
                     .ld = VOCAB,
                     .n_vocab = VOCAB,
                     .top = 1,
                     .token = token,
                     .scratch = scratch};
    int32_t found[ROWS], found_ids[ROWS * TOP], positions[ROWS];
    float found_values[ROWS * TOP];
    OK(cuda->sample(&a, stream));
    read_back(found, token, sizeof found);
    assert_int_equal(found[0], 777);
    assert_int_equal(found[2], VOCAB - 1);
    a.top = TOP;
    a.temperature = 5;
    a.top_p = 1;
    a.uniform = u;
    a.top_ids = ids;
    a.top_logits = values;
    a.position = position;
    for (int turn = 0; turn < 2; turn++) { /* the counters are ready again */
        OK(cuda->sample(&a, stream));
        read_back(found, token, sizeof found);
        read_back(found_ids, ids, sizeof found_ids);
        read_back(found_values, values, sizeof found_values);
        read_back(positions, position, sizeof positions);
        for (int r = 0; r < ROWS; r++) {
            assert_int_equal(positions[r], turn + 1);
            for (int i = 0; i < TOP; i++) {
                const int32_t id = found_ids[r * TOP + i];
                int larger = 0;
                assert_true(logits[r * VOCAB + id] == found_values[r * TOP + i]);
                for (int v = 0; v < VOCAB; v++)
                    larger += logits[r * VOCAB + v] > logits[r * VOCAB + id] ||
                              (logits[r * VOCAB + v] == logits[r * VOCAB + id] && v < id);
                assert_int_equal(larger, i);
            }
        }
        assert_int_equal(found[0], 777);
        assert_int_equal(found[1], found_ids[TOP + TOP - 1]);
    }
    free(logits);
    drop(there), drop(u), drop(token), drop(ids), drop(position), drop(values), drop(scratch);
}

static int open_device(void **state) {
    (void)state;
    return cuda->device_open(0, &device) || cuda->stream_new(&stream);
}
static int close_device(void **state) {
    (void)state;
    return cuda->stream_free(stream);
}
static void test_without(void **state) {
    (void)state;
    skip();
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gtile),     cmocka_unit_test(test_uniform), cmocka_unit_test(test_file_types),
        cmocka_unit_test(test_many_rows), cmocka_unit_test(test_refused), cmocka_unit_test(test_together),
        cmocka_unit_test(test_poison),    cmocka_unit_test(test_norm),    cmocka_unit_test(test_embed),
        cmocka_unit_test(test_attend),    cmocka_unit_test(test_store),   cmocka_unit_test(test_each),
        cmocka_unit_test(test_sample),    cmocka_unit_test(test_left),    cmocka_unit_test(test_attend_left),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest none[] = {cmocka_unit_test(test_without)};
    nib_error err;
    if (cuda_load(&cuda, &err) == NIB_OK)
        return cmocka_run_group_tests(tests, open_device, close_device);
    print_message("skipped: %s\n", err.message);
    return cmocka_run_group_tests(none, NULL, NULL);
}
