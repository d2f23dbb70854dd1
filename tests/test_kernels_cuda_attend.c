/* The CUDA kernels for attention of a few rows against sums in double, and rows stored together against rows
 * stored alone; skipped without a device.
 *   test_kernels_cuda_attend [PATTERN]: the tests with such names */
#include "support/gpu_attend.h"
#include "support/paged_kv.h"

#include "kernels/cuda/code_order.h"
#include "kernels/kv_layout.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A sequence's cache as floats, [max, nk] of keys and values: the values of halves, and of codes, which the
 * GPU rounds to halves too. */
typedef struct plain_cache {
    float *halves[2], *codes[2];
    paged_kv kv; /* codes alone */
} plain_cache;

static plain_cache plain_open(const attend_case *c, int max) {
    plain_cache p = {0};
    for (int i = 0; i < 2; i++) {
        p.halves[i] = calloc((size_t)(max * c->n_kv * c->d), sizeof(float));
        p.codes[i] = calloc((size_t)(max * c->n_kv * c->d), sizeof(float));
    }
    if (c->code_bits)
        p.kv = paged_kv_open(c->code_bits == 8 ? TYPE_KV8 : TYPE_KV4, max, c->n_kv, c->d);
    return p;
}
static void plain_close(const attend_case *c, plain_cache *p) {
    for (int i = 0; i < 2; i++)
        free(p->halves[i]), free(p->codes[i]);
    if (c->code_bits)
        paged_kv_close(&p->kv);
}

/* A row at a position, rotated; a block that it ends. */
static void plain_put(const attend_case *c, plain_cache *p, int at, const float *rows[2]) {
    const kernel_table *t = kernels_table_for("ref");
    const int64_t nk = c->n_kv * c->d;
    for (int i = 0; i < 2; i++) {
        for (int64_t e = 0; e < nk; e++)
            p->halves[i][at * nk + e] = half_to_float(half_from_float(rows[i][e]));
        if (c->code_bits)
            t->kv_store(&p->kv.view, i, at, rows[i]);
        for (int64_t h = 0; c->code_bits && at % KV_BLOCK == KV_BLOCK - 1 && h < c->n_kv; h++) {
            t->kv_pack(&p->kv.view, i, h, at / KV_BLOCK);
            for (int n = at - KV_BLOCK + 1; n <= at; n++) {
                float *const x = p->codes[i] + n * nk + h * c->d;
                kv_read(&p->kv.view, i, h, n, x);
                for (int64_t e = 0; e < c->d; e++)
                    x[e] = half_to_float(half_from_float(x[e]));
            }
        }
    }
}
/* A head's key or value as a row at `at` sees it. */
static const float *plain_get(const attend_case *c, const plain_cache *p, int is_value, int64_t head, int n,
                              int at) {
    const bool coded = c->code_bits && n / KV_BLOCK < at / KV_BLOCK;
    return (coded ? p->codes : p->halves)[is_value] + (n * c->n_kv + head) * c->d;
}

/* ALiBi's slope of a head, times 0.5 (gpu_attend.c). */
static double slope_of(const attend_case *c, int64_t head) {
    int64_t n = 1;
    while (2 * n <= c->n_head)
        n *= 2;
    const double step = head < n ? (double)(head + 1) : (double)(2 * (head - n) + 1) / 2;
    return c->alibi > 0 ? 0.5 * exp2(-(double)c->alibi * step / (double)n) : 0;
}

/* Of one head in doubles. */
static void expect(const attend_case *c, const plain_cache *p, const float *q, int64_t head, int at,
                   double *out) {
    const int64_t kv_head = head / (c->n_head / c->n_kv);
    const int low = c->window && at >= c->window ? at - (int)c->window + 1 : 0;
    const double scale = (double)(1.0f / sqrtf((float)c->d));
    double *score = malloc((size_t)(at + 1) * sizeof *score), largest = -INFINITY, sum = 0;
    for (int n = low; n <= at; n++) {
        const float *k = plain_get(c, p, 0, kv_head, n, at);
        score[n] = 0;
        for (int64_t i = 0; i < c->d; i++)
            score[n] += (double)q[i] * (double)k[i];
        score[n] *= scale;
        if (c->softcap > 0)
            score[n] = (double)c->softcap * tanh(score[n] / (double)c->softcap);
        score[n] += slope_of(c, head) * (n - at);
        largest = fmax(largest, score[n]);
    }
    if (c->sink > 0) {
        const double sink = (double)(c->sink * gpu_sink_size(head));
        largest = fmax(largest, sink);
        sum = exp(sink - largest);
    }
    memset(out, 0, (size_t)c->d * sizeof *out);
    for (int n = low; n <= at; n++) {
        const double e = exp(score[n] - largest);
        sum += e;
        for (int64_t i = 0; i < c->d; i++)
            out[i] += e * (double)plain_get(c, p, 1, kv_head, n, at)[i];
    }
    for (int64_t i = 0; i < c->d; i++)
        out[i] /= sum;
    free(score);
}

static void check_row(const attend_case *c, const plain_cache *p, const float *q, const float *found,
                      int at) {
    double *should = malloc((size_t)c->d * sizeof *should);
    for (int64_t h = 0; h < c->n_head; h++) {
        expect(c, p, q + h * c->d, h, at, should);
        for (int64_t i = 0; i < c->d; i++)
            if (!(fabs((double)found[h * c->d + i] - should[i]) <= 5e-6))
                fail_msg("d %d, %d bits, window %d, position %d, head %d channel %d: %.8g, expected %.8g",
                         (int)c->d, c->code_bits, (int)c->window, at, (int)h, (int)i,
                         (double)found[h * c->d + i], should[i]);
    }
    free(should);
}

/* Two sequences side by side, token after token, pages scattered; the reference keeps plain caches. */
static void check_rows(attend_case c, const int *lengths, bool many) {
    enum { PAGES = 12, ROWS = 2 };
    const int max = lengths[0] > lengths[1] ? lengths[0] : lengths[1];
    gpu_attention g = gpu_attention_open(&c, ROWS, true, PAGES);
    g.a.many = many;
    plain_cache plain[ROWS] = {plain_open(&c, max), plain_open(&c, max)};
    float *found = malloc((size_t)(ROWS * g.nq) * sizeof *found);
    const kernel_table *t = kernels_table_for("ref");
    for (int step = 0; step < max; step++) {
        int32_t at[ROWS];
        float *rows = random_rows(ROWS * g.ld, (uint64_t)step + 1, 1);
        OK(cuda->to_device((void *)(uintptr_t)g.a.q, rows, (size_t)(ROWS * g.ld) * 4, stream));
        for (int r = 0; r < ROWS; r++) {
            float *q = rows + r * g.ld;
            at[r] = step < lengths[r] ? step : lengths[r] - 1;
            if (c.n_rot) {
                t->rope(c.style, q, c.n_head, c.d, c.n_rot, g.table + at[r] * c.n_rot);
                t->rope(c.style, q + g.nq, c.n_kv, c.d, c.n_rot, g.table + at[r] * c.n_rot);
            }
            plain_put(&c, &plain[r], at[r], (const float *[]){q + g.nq, q + g.nq + g.nk});
        }
        OK(cuda->to_device((void *)(uintptr_t)g.a.position, at, sizeof at, stream));
        OK(cuda->attend(&g.a, stream));
        OK(cuda->stream_sync(stream));
        if (step % 37 == 0 || step == max - 1 || step % 64 == 0 || step % 64 == 63) {
            read_back(found, g.a.out, (size_t)(ROWS * g.nq) * 4);
            for (int r = 0; r < ROWS; r++)
                check_row(&c, &plain[r], rows + r * g.ld, found + r * g.nq, at[r]);
        }
        free(rows);
    }
    gpu_attention_close(&g);
    plain_close(&c, &plain[0]), plain_close(&c, &plain[1]);
    free(found);
}

static void check_attention(attend_case c, const int *lengths) {
    check_rows(c, lengths, false);
    check_rows(c, lengths, true);
}

static void check_all(int code_bits) {
    check_attention((attend_case){32, 8, 128, 128, 0, ROPE_HALF, 0, code_bits, 0, 0}, (const int[]){300, 66});
    check_attention((attend_case){9, 3, 64, 64, 0, ROPE_INTERLEAVED, 0, code_bits, 0, 0},
                    (const int[]){130, 1});
    check_attention((attend_case){8, 1, 256, 256, 70, ROPE_HALF, 0, code_bits, 0, 0}, (const int[]){200, 64});
    check_attention((attend_case){16, 2, 256, 64, 0, ROPE_HALF, 0, code_bits, 0, 0}, (const int[]){700, 300});
    check_attention((attend_case){12, 1, 192, 192, 0, ROPE_HALF, 0, code_bits, 8, 4}, (const int[]){330, 65});
    check_attention((attend_case){6, 2, 256, 0, 90, ROPE_HALF, 0, code_bits, 0, 0}, (const int[]){500, 130});
    check_attention((attend_case){4, 4, 80, 20, 0, ROPE_HALF, 30, code_bits, 0, 0}, (const int[]){70, 65});
    check_attention((attend_case){12, 2, 96, 0, 33, ROPE_HALF, 0, code_bits, 0, 0}, (const int[]){140, 129});
    check_attention((attend_case){20, 2, 64, 64, 0, ROPE_HALF, 0, code_bits, 0, 0}, (const int[]){700, 400});
    check_attention((attend_case){12, 3, 64, 0, 0, ROPE_HALF, 0, code_bits, 8, 0}, (const int[]){330, 65});
    check_attention((attend_case){4, 4, 16, 0, 50, ROPE_HALF, 20, code_bits, 4, 0}, (const int[]){140, 70});
    check_attention((attend_case){15, 3, 64, 64, 0, ROPE_HALF, 0, code_bits, 0, 4}, (const int[]){130, 66});
    check_attention((attend_case){20, 2, 128, 0, 0, ROPE_HALF, 0, code_bits, 0, 5}, (const int[]){520, 300});
    check_attention((attend_case){5, 5, 80, 20, 70, ROPE_HALF, 20, code_bits, 8, 3}, (const int[]){140, 65});
}
static void test_attend(void **state) {
    (void)state;
    check_all(0);
}
static void test_codes(void **state) {
    (void)state;
    check_all(8);
    check_all(4);
}

/* Keys and values that `store` stored and `pack` packed, several rows of one sequence, give the results of
 * attention of one row after the other, bit by bit. */
static void check_store(int64_t n_head, int64_t n_kv, int64_t d, int code_bits) {
    enum { ROWS = 16, PAGES = 5, ALL = PAGES * CUDA_PAGE };
    const attend_case c = {n_head, n_kv, d, d, 0, ROPE_HALF, 0, code_bits, 0, 3};
    gpu_attention g[2] = {gpu_attention_open(&c, ALL, false, PAGES),
                          gpu_attention_open(&c, ALL, false, PAGES)};
    const size_t bytes = sizeof(float) * (size_t)(ALL * g[0].nq);
    float *rows = random_rows(ALL * g[0].ld, 5, 1), *found[2] = {malloc(bytes), malloc(bytes)};
    for (int i = 0; i < 2; i++) {
        OK(cuda->to_device((void *)(uintptr_t)g[i].a.q, rows, sizeof(float) * (size_t)(ALL * g[i].ld),
                           stream));
        for (int64_t r = 0; r < ALL; r += i ? 1 : ROWS) {
            cuda_attend a = gpu_attention_rows(&g[i], r, 1);
            a.stored = false;
            if (i)
                OK(cuda->stream_sync(stream));
            if (i)
                OK(cuda->attend(&a, stream));
            else
                gpu_attention_run(&g[i], r, ROWS, false);
        }
        read_back(found[i], g[i].a.out, bytes);
    }
    assert_true(isfinite(found[0][0]));
    assert_memory_equal(found[0], found[1], bytes);
    for (int i = 0; i < 2; i++) {
        gpu_attention_close(&g[i]);
        free(found[i]);
    }
    free(rows);
}
static void test_store(void **state) {
    (void)state;
    for (int bits = 0; bits <= 8; bits += 4) {
        check_store(4, 2, 64, bits);
        check_store(8, 1, 256, bits);
        check_store(3, 1, 256, bits);
    }
}

/* Norms of heads in the launch of attention give the bits of a launch of their own before it. */
static void check_norms(int64_t n_head, int64_t n_kv, int64_t d, int code_bits) {
    enum { ROWS = 3, PAGES = 2, STEPS = 70 };
    const attend_case c = {n_head, n_kv, d, d, 0, ROPE_HALF, 0, code_bits, 0, 0};
    gpu_attention g[2] = {gpu_attention_open(&c, ROWS, true, PAGES),
                          gpu_attention_open(&c, ROWS, true, PAGES)};
    const size_t bytes = sizeof(float) * (size_t)(ROWS * g[0].nq);
    float *found[2] = {malloc(bytes), malloc(bytes)}, *w[2];
    for (int i = 0; i < 2; i++) {
        float *norm = random_rows(d, 9 + (uint64_t)i, 1);
        w[i] = device_copy(norm, (size_t)d * sizeof *norm);
        free(norm);
    }
    g[1].a.q_norm = w[0], g[1].a.k_norm = w[1], g[1].a.norm_eps = 1e-5f;
    for (int step = 0; step < STEPS; step++) {
        float *rows = random_rows(ROWS * g[0].ld, (uint64_t)step + 1, 2);
        for (int i = 0; i < 2; i++) {
            const cuda_attend *a = &g[i].a;
            float *q = (void *)(uintptr_t)a->q, *k = (void *)(uintptr_t)a->k;
            const cuda_norm norm = {NORM_RMS, q,       w[0],    NULL,    q,     ROWS, g[i].ld,
                                    g[i].ld,  g[i].nq, n_head,  false,   1e-5f, k,    w[1],
                                    NULL,     k,       g[i].ld, g[i].ld, n_kv};
            const int32_t at[ROWS] = {step, step, step / 2};
            OK(cuda->to_device(q, rows, (size_t)(ROWS * g[i].ld) * 4, stream));
            OK(cuda->to_device((void *)(uintptr_t)a->position, at, sizeof at, stream));
            if (i == 0)
                OK(cuda->norm(&norm, stream));
            OK(cuda->attend(a, stream));
            OK(cuda->stream_sync(stream));
            read_back(found[i], a->out, bytes);
        }
        assert_true(isfinite(found[0][0]));
        assert_memory_equal(found[0], found[1], bytes);
        free(rows);
    }
    for (int i = 0; i < 2; i++) {
        gpu_attention_close(&g[i]);
        drop(w[i]);
        free(found[i]);
    }
}
static void test_norms(void **state) {
    (void)state;
    for (int bits = 0; bits <= 8; bits += 4) {
        check_norms(32, 4, 128, bits);
        check_norms(9, 3, 64, bits);
        check_norms(5, 1, 256, bits);
        check_norms(16, 2, 256, bits);
        check_norms(20, 2, 128, bits);
    }
}

/* Pages are copied to the GPU in its order of keys, and come back unchanged. */
static void check_move(int64_t n_kv, int64_t d) {
    enum { PAGES = 4, N_MOVED = 3 };
    static const int32_t pairs[N_MOVED][2] = {{1, 3}, {0, 0}, {3, 2}};
    const int64_t half = n_kv * CUDA_PAGE * d, page = 2 * half;
    const size_t bytes = (size_t)(PAGES * page) * sizeof(uint16_t), mapped = (2 * bytes + 4095) / 4096 * 4096;
    uint16_t *host = aligned_alloc(4096, mapped), *back = host + PAGES * page, *found = malloc(bytes), *there,
             *here = device_new(bytes);
    int32_t *pairs_there = device_copy(pairs, sizeof pairs);
    for (int64_t i = 0; i < PAGES * page; i++)
        host[i] = (uint16_t)(i * 7919 >> 3);
    memset(back, 0, bytes);
    OK(cuda->map(host, mapped, (void **)&there));
    cuda_move a = {.here = {.k = here, .v = here + half, .n_kv_head = n_kv, .d_head = d, .page = page},
                   .host_k = there,
                   .host_v = there + half,
                   .pairs = pairs_there,
                   .n_page = N_MOVED,
                   .up = true};
    OK(cuda->move(&a, stream));
    read_back(found, here, bytes);
    a.host_k = there + PAGES * page;
    a.host_v = there + PAGES * page + half;
    a.up = false;
    OK(cuda->move(&a, stream));
    OK(cuda->stream_sync(stream));
    for (int p = 0; p < N_MOVED; p++) {
        const uint16_t *from = host + pairs[p][1] * page, *to = found + pairs[p][0] * page;
        for (int64_t i = 0; i < half; i++) {
            const int64_t head = i / (CUDA_PAGE * d) * CUDA_PAGE * d, position = i % (CUDA_PAGE * d) / d;
            assert_int_equal(to[i], from[head + kv_key_at(d, position, i % d)]);
            assert_int_equal(to[half + i], from[half + i]);
        }
        assert_memory_equal(from, back + pairs[p][1] * page, (size_t)page * sizeof *from);
    }
    assert_int_equal(back[page], 0); /* nobody's */
    OK(cuda->unpin(host));
    drop(here), drop(pairs_there);
    free(host), free(found);
}

/* A head's block in the GPU's order, as its kernels write it (attend.cuh), from the processor's. */
static void order_block(code_block b, const uint8_t *host, uint8_t *out) {
    const int n = b.d_pad * CUDA_PAGE * b.bits / 8, n_scale = 2 * b.d_pad, n_group = b.d_pad / 32;
    memset(out, 0, (size_t)n);
    for (int c = 0; c < b.d_pad; c++)
        for (int p = 0; p < CUDA_PAGE; p++) {
            const int from = code_host_place(b, (code_at){c, p});
            const int i = b.is_value ? (p / 32 * b.d_pad + c) * 32 + p % 32 : p * b.d_pad + c;
            if (b.bits == 8) {
                out[i] = host[from];
                continue;
            }
            uint32_t *const dword = (uint32_t *)(void *)(out + i / 8 * 4);
            *dword |= (uint32_t)(host[from / 2] >> from % 2 * 4 & 15) << (i % 8 / 2 * 4 + i % 2 * 16);
        }
    const uint16_t *scales = (const uint16_t *)(const void *)(host + n);
    for (int i = 0; i < 2 * n_scale; i++) {
        const int group = i % n_scale / CUDA_PAGE, p = i % CUDA_PAGE;
        ((uint16_t *)(void *)(out + n))[i] =
            scales[b.is_value ? i / n_scale * n_scale + p * n_group + group : i];
    }
}

/* The places of code_order.h are permutations, and those of the kernels and of the processor. */
static void test_orders(void **state) {
    (void)state;
    for (int i = 0; i < 16; i++) {
        const code_block b = {i % 2 ? 8 : 4, i / 4 % 4 * 64 + 32, i / 2 % 2};
        const int n = b.d_pad * CUDA_PAGE;
        for (int place = 0; place < n; place++) {
            const code_at here = code_device_at(b, place), there = code_host_at(b, place);
            assert_int_equal(code_device_place(b, here), place);
            assert_int_equal(code_host_place(b, there), place);
            assert_in_range(here.channel, 0, b.d_pad - 1);
            assert_in_range(there.position, 0, CUDA_PAGE - 1);
        }
        const code_at x = {37 % b.d_pad, 41};
        const int byte =
            b.is_value ? (41 * b.d_pad / 32 + x.channel / 32) * 16 + x.channel % 16 : x.channel * 32 + 9;
        if (b.bits == 4)
            assert_int_equal(code_host_place(b, x), 2 * byte + (b.is_value ? x.channel / 16 % 2 : 1));
    }
}

/* Codes change their order on the way, and come back unchanged. */
static void check_move_codes(int bits, int64_t n_kv, int64_t d) {
    enum { PAGES = 3 };
    static const int32_t pairs[PAGES][2] = {{1, 2}, {0, 0}, {2, 1}};
    const int64_t each = kv_block_bytes(bits == 8 ? TYPE_KV8 : TYPE_KV4, d), half = n_kv * each,
                  page = 2 * half;
    const size_t bytes = (size_t)(PAGES * page), mapped = (2 * bytes + 4095) / 4096 * 4096;
    uint8_t *host = aligned_alloc(4096, mapped), *back = host + bytes, *found = malloc(bytes), *there,
            *here = device_new(bytes), *want = malloc((size_t)each);
    int32_t *pairs_there = device_copy(pairs, sizeof pairs);
    for (size_t i = 0; i < bytes; i++)
        host[i] = (uint8_t)(i * 7919 >> 3);
    memset(back, 0, bytes);
    OK(cuda->map(host, mapped, (void **)&there));
    cuda_move a = {.here = {.k = here,
                            .v = here + half,
                            .n_kv_head = n_kv,
                            .d_head = d,
                            .page = page / 2,
                            .code_bits = bits},
                   .host_k = there,
                   .host_v = there + half,
                   .pairs = pairs_there,
                   .n_page = PAGES,
                   .up = true};
    OK(cuda->move(&a, stream));
    read_back(found, here, bytes);
    a.host_k = there + bytes;
    a.host_v = there + bytes + half;
    a.up = false;
    OK(cuda->move(&a, stream));
    OK(cuda->stream_sync(stream));
    for (int64_t i = 0; i < PAGES * 2 * n_kv; i++) {
        const int64_t p = i / (2 * n_kv), at = i % (2 * n_kv) * each;
        const code_block b = {bits, (int)kv_d_pad(d), i / n_kv % 2};
        order_block(b, host + pairs[p][1] * page + at, want);
        assert_memory_equal(found + pairs[p][0] * page + at, want, (size_t)each);
    }
    assert_memory_equal(host, back, bytes);
    OK(cuda->unpin(host));
    drop(here), drop(pairs_there);
    free(host), free(found), free(want);
}

static void test_move(void **state) {
    (void)state;
    for (int bits = 4; bits <= 8; bits += 4) {
        check_move_codes(bits, 3, 128);
        check_move_codes(bits, 2, 80);
        check_move_codes(bits, 1, 256);
        check_move_codes(bits, 2, 64);
    }
    check_move(8, 128);
    check_move(3, 64);
    check_move(1, 256);
    check_move(2, 80);
    check_move(2, 8);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attend), cmocka_unit_test(test_codes), cmocka_unit_test(test_store),
        cmocka_unit_test(test_norms),  cmocka_unit_test(test_move),
    };
    const struct CMUnitTest anywhere[] = {cmocka_unit_test(test_orders)};
    if (cmocka_run_group_tests(anywhere, NULL, NULL))
        return 1;
    if (gpu_open(argc, argv))
        return cmocka_run_group_tests(tests, NULL, NULL);
    return gpu_missing();
}
