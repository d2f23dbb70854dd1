/* The CUDA kernels for attention of a few rows against sums in double, and rows stored together against rows
 * stored alone; skipped without a device.
 *   test_kernels_cuda_attend [PATTERN]: the tests with such names */
#include "support/gpu.h"

#include "kernels/kv_layout.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

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

/* Keys and values that `store` stored, several rows of one sequence, give what attention of one row after the
 * other gives, bit by bit. */
static void test_store(void **state) {
    (void)state;
    enum { HEADS = 4, KV = 2, D = 64, NQ = HEADS * D, NK = KV * D, LD = NQ + 2 * NK, ROWS = 16, PAGES = 5 };
    const size_t cache = (size_t)PAGES * CUDA_PAGE * NK * 2,
                 scratch_bytes = cuda->attend_scratch(ROWS, HEADS, D);
    float *rows = random_rows(PAGES * CUDA_PAGE * LD, 5, 1), *there = device_new(sizeof(float) * ROWS * LD);
    float *table = device_copy(rows, sizeof(float) * ROWS * D); /* any factors do */
    void *k[2], *v[2], *scratch = device_new(scratch_bytes);
    float *out = device_new(sizeof(float) * ROWS * NQ), *alone = malloc(sizeof(float) * ROWS * NQ),
          *together = malloc(sizeof(float) * ROWS * NQ);
    int32_t at[ROWS], *position = device_new(sizeof at);
    int32_t *pages = device_copy((const int32_t[]){3, 0, 4, 1, 2}, sizeof(int32_t) * PAGES);
    int32_t *first = device_new(sizeof at);
    OK(cuda->fill(first, 0, sizeof at, stream));
    OK(cuda->fill(scratch, 0, scratch_bytes, stream));
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

/* Pages go up in the GPU's order of keys, and come down as they were. */
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
    cuda_move a = {.here = {here, here + half, n_kv, d, page},
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

static void test_move(void **state) {
    (void)state;
    check_move(8, 128);
    check_move(3, 64);
    check_move(1, 256);
    check_move(2, 80);
    check_move(2, 8);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attend),
        cmocka_unit_test(test_store),
        cmocka_unit_test(test_move),
    };
    if (gpu_open(argc, argv))
        return cmocka_run_group_tests(tests, NULL, NULL);
    return gpu_missing();
}
