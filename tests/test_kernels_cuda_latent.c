/* The CUDA kernels of latent attention against sums in double: products of parts of rows with a matrix each,
 * and attention of heads that share one row of keys, which are the values too; skipped without a device.
 *   test_kernels_cuda_latent [PATTERN]: the tests with such names */
#include "support/gpu_attend.h"
#include "support/paged_kv.h"

#include "base/num.h"
#include "kernels/kv_layout.h"
#include "numbers/types.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- products of parts ---- */

typedef struct parts_case {
    int64_t n_group, n, k; /* of a part */
    bool spread;
} parts_case;

enum { MAX_PARTS_ROWS = 130 };

static matrix parts_matrix(const parts_case *c, const char *name, type_id type, uint64_t seed) {
    const int64_t n = c->n_group * (c->spread ? c->k : c->n), k = c->spread ? c->n : c->k;
    return name ? matrix_open_uniform(name, n, k, MATRIX_RANDOM, seed)
                : matrix_open(type, n, k, MATRIX_RANDOM, seed);
}

/* The parts of a row in doubles, and the sums of magnitudes. */
static void parts_expect(const parts_case *c, const matrix *m, const float *x, double *out, double *size) {
    float *w = malloc((size_t)m->k * sizeof *w);
    memset(out, 0, (size_t)(c->n_group * c->n) * sizeof *out);
    memset(size, 0, (size_t)(c->n_group * c->n) * sizeof *size);
    for (int64_t r = 0; r < m->n; r++) {
        pack_read_row(&m->view, r, w);
        for (int64_t i = 0; i < m->k; i++) {
            const int64_t to = c->spread ? r / c->k * c->n + i : r;
            const double y = (double)w[i] * (double)x[c->spread ? r : r / c->n * c->k + i];
            out[to] += y;
            size[to] += fabs(y);
        }
    }
    free(w);
}

/* Rows together, and each of some alone; part of the memory of a row belongs to others. */
static void check_parts(const parts_case *c, const matrix *m, const char *what, bool many, int64_t n_row) {
    enum { APART = 8 };
    const int64_t ldx = c->n_group * (c->k + APART) + 1, ldy = c->n_group * (c->n + APART) + 2;
    const pack_format *f = &m->view.format;
    const double bound = many && (f->layout != PACK_ROWS || f->type != TYPE_F32) ? 1e-3 : 3e-6;
    float *x = random_rows(n_row * ldx, (uint64_t)n_row + 7, 3), *found = malloc((size_t)(n_row * ldy) * 4),
          *again = malloc((size_t)(n_row * ldy) * 4), *row = malloc((size_t)(c->n_group * c->k) * 4);
    double *should = malloc((size_t)(c->n_group * c->n) * 8), *size = malloc((size_t)(c->n_group * c->n) * 8);
    for (int64_t i = 0; i < n_row * ldx; i++) /* rows of other magnitudes */
        x[i] *= i / ldx % 5 == 3 ? 1e-12f : i / ldx % 5 == 4 ? 1e7f : 1;
    float *there = device_copy(x, (size_t)(n_row * ldx) * 4), *y = device_new((size_t)(n_row * ldy) * 4);
    cuda_groups a = {.w = matrix_there(m),
                     .spread = c->spread,
                     .many = many,
                     .n_group = c->n_group,
                     .n = c->n,
                     .k = c->k,
                     .n_row = n_row,
                     .x = there + 1,
                     .ldx = ldx,
                     .step_x = c->k + APART,
                     .y = y,
                     .ldy = ldy,
                     .step_y = c->n + APART};
    OK(cuda->fill(y, 0, (size_t)(n_row * ldy) * 4, stream));
    OK(cuda->groups(&a, stream));
    read_back(found, y, (size_t)(n_row * ldy) * 4);
    for (int64_t r = 0; r<n_row; r += n_row> 20 ? 13 : 1) {
        for (int64_t g = 0; g < c->n_group; g++)
            memcpy(row + g * c->k, x + r * ldx + 1 + g * a.step_x, (size_t)c->k * 4);
        parts_expect(c, m, row, should, size);
        for (int64_t i = 0; i < c->n_group * c->n; i++) {
            const double is = (double)found[r * ldy + i / c->n * a.step_y + i % c->n];
            if (!(fabs(is - should[i]) <= bound * size[i]))
                fail_msg("%s, %s, %d rows, row %d, output %d: %.9g, expected %.9g, sum of magnitudes %.4g",
                         what, many ? "many" : "few", (int)n_row, (int)r, (int)i, is, should[i], size[i]);
        }
        assert_true(found[r * ldy + c->n] == 0); /* not its own */
        cuda_groups one = a;
        one.n_row = 1;
        one.x += r * ldx;
        one.y += r * ldy;
        OK(cuda->groups(&one, stream));
    }
    read_back(again, y, (size_t)(n_row * ldy) * 4);
    assert_memory_equal(found, again, (size_t)(n_row * ldy) * 4);
    a.adds = true;
    OK(cuda->groups(&a, stream));
    read_back(again, y, (size_t)(n_row * ldy) * 4);
    for (int64_t i = 0; i < n_row * ldy; i++)
        assert_true(again[i] == 2 * found[i]);
    drop(a.w.data), drop(there), drop(y);
    free(x), free(found), free(again), free(row), free(should), free(size);
}

static void test_parts(void **state) {
    (void)state;
    static const parts_case cases[] = {{3, 512, 128, true}, {3, 128, 512, false}, {5, 96, 20, true},
                                       {5, 20, 96, false},  {2, 320, 64, true},   {2, 33, 160, false}};
    static const char *const names[] = {"u4g32", "u6g128a", "u3grow", "u5g32t", "u2g16", "u8g64"};
    static const type_id types[] = {TYPE_Q4_0, TYPE_Q8_0, TYPE_Q4_K, TYPE_Q6_K,   TYPE_IQ4_NL, TYPE_IQ3_S,
                                    TYPE_F16,  TYPE_BF16, TYPE_F32,  TYPE_IQ2_XS, TYPE_MXFP4,  TYPE_Q3_K};
    for (size_t i = 0; i < NUM_COUNT(cases); i++)
        for (size_t f = 0; f < NUM_COUNT(names) + NUM_COUNT(types); f++) {
            const char *name = f < NUM_COUNT(names) ? names[f] : NULL;
            const type_id type = name ? TYPE_F32 : types[f - NUM_COUNT(names)];
            const int64_t k = cases[i].spread ? cases[i].n : cases[i].k;
            if (!name && k % type_get(type)->block_elems)
                continue;
            matrix m = parts_matrix(&cases[i], name, type, 10 * i + f + 1);
            static const int64_t rows[] = {1, 3, 9, 33};
            for (size_t r = 0; r < NUM_COUNT(rows); r++)
                check_parts(&cases[i], &m, name ? name : type_get(type)->name, false, rows[r]);
            check_parts(&cases[i], &m, name ? name : type_get(type)->name, true, 2);
            check_parts(&cases[i], &m, name ? name : type_get(type)->name, true, MAX_PARTS_ROWS);
            matrix_close(&m);
        }
}

/* ---- attention ---- */

/* A launch whose keys are the values. */
typedef struct shared_attention {
    gpu_attention g;
    void *v; /* not used */
} shared_attention;
static shared_attention shared_open(const attend_case *c, int64_t n_row, bool apart, int n_page) {
    shared_attention s = {.g = gpu_attention_open(c, n_row, apart, n_page)};
    s.v = s.g.a.kv.v;
    s.g.a.kv.v = NULL;
    s.g.a.v = NULL;
    s.g.a.stored = true;
    return s;
}
static void shared_close(shared_attention *s) {
    s->g.a.kv.v = s->v;
    gpu_attention_close(&s->g);
}

/* A sequence's keys as floats, [n, d]: the values of halves, and of codes, which the GPU rounds to halves
 * too. */
typedef struct plain_keys {
    float *halves, *codes;
} plain_keys;

static void half_row(float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        x[i] = half_to_float(half_from_float(x[i]));
}

/* rows: those of the launch. */
static plain_keys plain_open(const attend_case *c, const gpu_attention *g, const float *rows, int n) {
    const kernel_table *t = kernels_table_for("ref");
    const size_t bytes = (size_t)(n * c->d) * sizeof(float);
    plain_keys k = {malloc(bytes), calloc(1, bytes)};
    paged_kv kv;
    if (c->code_bits)
        kv = paged_kv_open(c->code_bits == 8 ? TYPE_KV8 : TYPE_KV4, n, 1, c->d);
    for (int r = 0; r < n; r++) {
        const float *key = rows + r * g->ld + g->nq;
        memcpy(k.halves + r * c->d, key, (size_t)c->d * sizeof *key);
        half_row(k.halves + r * c->d, c->d);
        if (c->code_bits)
            t->kv_store(&kv.view, false, r, key);
        if (!c->code_bits || r % KV_BLOCK != KV_BLOCK - 1)
            continue;
        t->kv_pack(&kv.view, false, 0, r / KV_BLOCK);
        for (int i = r - KV_BLOCK + 1; i <= r; i++) {
            kv_read(&kv.view, false, 0, i, k.codes + i * c->d);
            half_row(k.codes + i * c->d, c->d);
        }
    }
    if (c->code_bits)
        paged_kv_close(&kv);
    return k;
}

/* Of one head in doubles. */
static void expect(const attend_case *c, const plain_keys *k, const float *q, int64_t head, int at,
                   double *out) {
    const int low = c->window && at >= c->window ? at - (int)c->window + 1 : 0;
    const double scale = (double)(1.0f / sqrtf((float)c->d));
    double *score = malloc((size_t)(at + 1) * sizeof *score), largest = -INFINITY, sum = 0;
    for (int n = low; n <= at; n++) {
        const float *key = (c->code_bits && n / KV_BLOCK < at / KV_BLOCK ? k->codes : k->halves) + n * c->d;
        score[n] = 0;
        for (int64_t i = 0; i < c->d; i++)
            score[n] += (double)q[i] * (double)key[i];
        score[n] *= scale;
        if (c->softcap > 0)
            score[n] = (double)c->softcap * tanh(score[n] / (double)c->softcap);
        largest = fmax(largest, score[n]);
    }
    if (c->sink > 0) {
        const double sink = (double)(c->sink * gpu_sink_size(head));
        largest = fmax(largest, sink);
        sum = exp(sink - largest);
    }
    memset(out, 0, (size_t)c->d * sizeof *out);
    for (int n = low; n <= at; n++) {
        const float *key = (c->code_bits && n / KV_BLOCK < at / KV_BLOCK ? k->codes : k->halves) + n * c->d;
        const double e = exp(score[n] - largest);
        sum += e;
        for (int64_t i = 0; i < c->d; i++)
            out[i] += e * (double)key[i];
    }
    for (int64_t i = 0; i < c->d; i++)
        out[i] /= sum;
    free(score);
}

static void check_row(const attend_case *c, const plain_keys *k, const float *q, const float *found, int at,
                      bool prompt) {
    const double bound = prompt ? 2e-3 : 8e-6;
    double *should = malloc((size_t)c->d * sizeof *should);
    for (int64_t h = 0; h<c->n_head; h += c->n_head> 4 ? 5 : 1) {
        expect(c, k, q + h * c->d, h, at, should);
        for (int64_t i = 0; i < c->d; i++)
            if (!(fabs((double)found[h * c->d + i] - should[i]) <= bound))
                fail_msg("%s, d %d, %d bits, window %d, position %d, head %d channel %d: %.8g, expected %.8g",
                         prompt ? "prompt" : "rows", (int)c->d, c->code_bits, (int)c->window, at, (int)h,
                         (int)i, (double)found[h * c->d + i], should[i]);
    }
    free(should);
}

/* A sequence of n rows, stored and computed `each` at a time, as a prompt or as generated rows; then some
 * rows again, alone. With codes only the last blocks have the halves of their own rows. */
static void check_sequence(attend_case c, int n, int each, bool prompt) {
    shared_attention s = shared_open(&c, n, false, n / CUDA_PAGE + 1);
    gpu_attention *g = &s.g;
    const size_t bytes = (size_t)(n * g->nq) * sizeof(float);
    float *rows = random_rows(n * g->ld, (uint64_t)n + 1, 1), *found = malloc(bytes), *again = malloc(bytes);
    plain_keys k = plain_open(&c, g, rows, n);
    OK(cuda->to_device((void *)(uintptr_t)g->a.q, rows, (size_t)(n * g->ld) * sizeof(float), stream));
    for (int r = 0; r < n; r += each)
        gpu_attention_run(g, r, n - r < each ? n - r : each, prompt);
    read_back(found, g->a.out, bytes);
    for (int r = 0; r < n; r += r % 64 == 62 ? 1 : r + 31 < n ? 31 : 1) {
        check_row(&c, &k, rows + r * g->ld, found + r * g->nq, r, prompt);
        if (c.code_bits && r / CUDA_PAGE < (n - 1) / CUDA_PAGE)
            continue;
        const cuda_attend a = gpu_attention_rows(g, r, 1);
        OK(prompt ? cuda->attend_prompt(&a, stream) : cuda->attend(&a, stream));
    }
    read_back(again, g->a.out, bytes);
    assert_memory_equal(found, again, bytes);
    shared_close(&s);
    free(rows), free(k.halves), free(k.codes), free(found), free(again);
}

static void check_cases(bool prompt, int bits) {
    const int each[] = {64, prompt ? 200 : 13, 1};
    check_sequence((attend_case){16, 1, 576, 0, 0, ROPE_HALF, 0, bits, 0, 0}, 300, each[0], prompt);
    check_sequence((attend_case){20, 1, 576, 0, 0, ROPE_HALF, 0, bits, 0, 0}, 330, each[1], prompt);
    check_sequence((attend_case){128, 1, 576, 0, 0, ROPE_HALF, 0, bits, 0, 0}, 140, each[1], prompt);
    check_sequence((attend_case){3, 1, 40, 0, 0, ROPE_HALF, 0, bits, 0, 3}, 200, each[2], prompt);
    check_sequence((attend_case){33, 1, 288, 0, 70, ROPE_HALF, 0, bits, 0, 0}, 290, each[0], prompt);
    check_sequence((attend_case){4, 1, 8, 0, 33, ROPE_HALF, 20, bits, 0, 5}, 150, each[1], prompt);
}
static void test_rows(void **state) {
    (void)state;
    check_cases(false, 0);
    /* as many spans as there can be */
    check_sequence((attend_case){2, 1, 64, 0, 0, ROPE_HALF, 0, 0, 0, 0}, 9000, 64, false);
}
static void test_prompts(void **state) {
    (void)state;
    if (cuda->has_wide())
        check_cases(true, 0);
}
static void test_codes(void **state) {
    (void)state;
    for (int bits = 4; bits <= 8; bits += 4) {
        check_cases(false, bits);
        if (cuda->has_wide())
            check_cases(true, bits);
    }
}

/* Pages of keys are copied to the GPU in its order, and come back unchanged. */
static void test_move(void **state) {
    (void)state;
    enum { PAGES = 4, N_MOVED = 3, D = 576, PAGE = CUDA_PAGE * D };
    static const int32_t pairs[N_MOVED][2] = {{1, 3}, {0, 0}, {3, 2}};
    const size_t bytes = (size_t)PAGES * PAGE * sizeof(uint16_t), mapped = (2 * bytes + 4095) / 4096 * 4096;
    uint16_t *host = aligned_alloc(4096, mapped), *back = host + PAGES * PAGE, *found = malloc(bytes), *there,
             *here = device_new(bytes);
    int32_t *pairs_there = device_copy(pairs, sizeof pairs);
    for (int64_t i = 0; i < PAGES * PAGE; i++)
        host[i] = (uint16_t)(i * 7919 >> 3);
    memset(back, 0, bytes);
    OK(cuda->map(host, mapped, (void **)&there));
    cuda_move a = {.here = {.k = here, .n_kv_head = 1, .d_head = D, .page = PAGE},
                   .host_k = there,
                   .pairs = pairs_there,
                   .n_page = N_MOVED,
                   .up = true};
    OK(cuda->move(&a, stream));
    read_back(found, here, bytes);
    a.host_k = there + PAGES * PAGE;
    a.up = false;
    OK(cuda->move(&a, stream));
    OK(cuda->stream_sync(stream));
    for (int p = 0; p < N_MOVED; p++) {
        const uint16_t *from = host + pairs[p][1] * PAGE, *to = found + pairs[p][0] * PAGE;
        for (int64_t i = 0; i < PAGE; i++)
            assert_int_equal(to[i], from[kv_key_at(D, i / D, i % D)]);
        assert_memory_equal(from, back + pairs[p][1] * PAGE, PAGE * sizeof *from);
    }
    OK(cuda->unpin(host));
    drop(here), drop(pairs_there);
    free(host), free(found);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts), cmocka_unit_test(test_rows), cmocka_unit_test(test_prompts),
        cmocka_unit_test(test_codes), cmocka_unit_test(test_move),
    };
    if (gpu_open(argc, argv))
        return cmocka_run_group_tests(tests, NULL, NULL);
    return gpu_missing();
}
