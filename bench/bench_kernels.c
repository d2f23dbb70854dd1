/* Times the kernels alone: bench_kernels [ISA] [threads]. Products with one row use weights that are not in
 * any cache (copies in rotation) and are shown beside the measured read bandwidth; the best of several rounds
 * counts. With one thread processor time is measured, which other load disturbs less. */
#include "product.h"

#include "base/mem.h"
#include "base/num.h"
#include "kernels/kernel_map.h"
#include "base/rate.h"
#include "support/paged_kv.h"

#include <stdio.h>
#include <stdlib.h>

enum { ROTATE_BYTES = 384 << 20, MAX_THREADS = 64 };

typedef struct bench {
    const kernel_table *t;
    pool *threads;
    int n_thread;
    rate read;
    void *scratch[MAX_THREADS]; /* of attention */
} bench;

static double now(const bench *b) {
    return product_clock(b->threads);
}

static double best_of(const bench *b, pool_fn fn, void *arg, int rounds) {
    double best = 1e30;
    for (int i = 0; i < rounds; i++) {
        const double start = now(b);
        pool_run(b->threads, fn, arg);
        best = NUM_MIN(best, now(b) - start);
    }
    return best;
}

static void by_rule(const void *table, const linear_args *a, int64_t n0, int64_t n1) {
    linear_run(table, a, n0, n1);
}

static void time_product(const bench *b, type_id type, int64_t n, int64_t k, int64_t m) {
    matrix w = matrix_open(type, n, k, MATRIX_RANDOM, 1);
    product p = product_open(&w, m, m > 16 ? 0 : ROTATE_BYTES, b->n_thread);
    p.run = by_rule;
    p.by = b->t;
    p.n_call = m > 16 ? 4 : p.n_copy;
    const double s = best_of(b, product_run, &p, 5) / p.n_call;
    printf("%-7s %7ld x %-5ld M %-4ld %9.1f us %7.2f GB/s %5.2f of read %8.1f GMAC/s\n", type_get(type)->name,
           (long)n, (long)k, (long)m, s * 1e6, (double)p.bytes / s * 1e-9, (double)p.bytes / s / b->read.best,
           (double)(n * k * m) / s * 1e-9);
    fflush(stdout);
    product_close(&p);
    matrix_close(&w);
}

typedef struct packing {
    const matrix *w;
    void *dst;
} packing;

static void run_packing(void *arg, int thread, int n_thread) {
    const packing *p = arg;
    const matrix *w = p->w;
    int64_t n0, n1;
    char scratch[64 * 1024];
    pool_split(w->n, PACK_PANEL, thread, n_thread, &n0, &n1);
    for (int64_t first = n0; first < n1; first += PACK_PANEL) {
        const void *rows[PACK_PANEL];
        const int n_row = (int)NUM_MIN(n1 - first, PACK_PANEL);
        for (int i = 0; i < n_row; i++)
            rows[i] = w->raw + (size_t)(first + i) * w->raw_row_bytes;
        pack_panel(&w->view.format, w->type, w->n, w->k, first, n_row, rows, p->dst, scratch);
    }
}

static void time_packing(const bench *b, type_id type) {
    matrix w = matrix_open(type, 16384, 1024, MATRIX_RANDOM, 1);
    uint64_t bytes = 0;
    pack_bytes(&w.view.format, w.n, w.k, &bytes);
    packing p = {&w, mem_map((size_t)bytes)};
    const double s = best_of(b, run_packing, &p, 4);
    printf("pack %-7s %6.2f GB/s of file\n", type_get(type)->name,
           (double)w.raw_row_bytes * (double)w.n / s * 1e-9);
    mem_unmap(p.dst, (size_t)bytes);
    matrix_close(&w);
}

typedef struct attention {
    const bench *b;
    attend_args args;
    bool by_rows;
} attention;

static void run_attention(void *arg, int thread, int n_thread) {
    const attention *p = arg;
    attend_args a = p->args;
    a.scratch = p->b->scratch[thread];
    for (int64_t i = thread; i < a.n_head; i += n_thread)
        p->b->t->attend(&a, i, i + 1, 0, a.n_row);
}

/* Position i, and its block if i is the last position of a block. */
static void store(const kernel_table *t, const kv_view *kv, int64_t i, const float *row) {
    for (int is_value = 0; is_value < 2; is_value++) {
        t->kv_store(kv, is_value, i, row);
        for (int64_t h = 0; kv_is_coded(kv->type) && i % KV_BLOCK == KV_BLOCK - 1 && h < kv->n_kv_head; h++)
            t->kv_pack(kv, is_value, h, i / KV_BLOCK);
    }
}

static void time_attention(const bench *b, type_id type, int64_t n_head, int64_t n_kv, int64_t d,
                           int64_t n_row, int64_t past) {
    paged_kv pages = paged_kv_open(type, past + n_row, n_kv, d);
    const kv_view kv = pages.view;
    uint64_t seed = 3;
    float *q = mem_array((size_t)(n_row * n_head * d), sizeof *q),
          *out = mem_array((size_t)(n_row * n_head * d), sizeof *q);
    for (int64_t i = 0; i < n_row * n_head * d; i++)
        q[i] = random_float(&seed);
    float *row = mem_array((size_t)(n_kv * d), sizeof *row);
    const double start = time_now();
    for (int64_t i = 0; i < past + n_row; i++) {
        for (int64_t j = 0; j < n_kv * d; j++)
            row[j] = (float)((i * 31 + j * 7) & 255) / 256;
        store(b->t, &kv, i, row);
    }
    const double stored = (time_now() - start) / (double)(past + n_row);
    attention p = {.b = b};
    p.args = (attend_args){.kv = kv,
                           .q = q,
                           .out = out,
                           .n_row = n_row,
                           .first_position = past,
                           .n_head = n_head,
                           .scale = 0.125f};
    const double s = best_of(b, run_attention, &p, 5);
    const double pairs = (double)n_row * ((double)past + (double)(n_row + 1) / 2) * (double)(n_head * d * 2);
    printf("attend %s, %ld/%ld heads of %ld, %ld rows after %ld: %9.1f us %7.1f GMAC/s; kv_store %.2f us\n",
           type_get(type)->name, (long)n_head, (long)n_kv, (long)d, (long)n_row, (long)past, s * 1e6,
           pairs / s * 1e-9, stored * 1e6);
    mem_free(q);
    mem_free(out);
    mem_free(row);
    paged_kv_close(&pages);
}

static void time_rows(const bench *b) {
    enum { N = 1536 };
    static float x[N], y[N];
    const act_format af = {.bits = 8, .group = 32};
    char *q = mem_alloc_aligned(64, act_row_bytes(af, N));
    uint64_t seed = 9;
    for (int i = 0; i < N; i++)
        x[i] = random_float(&seed);
    const int rounds = 2000;
#define TIME(what, call)                                                                                     \
    do {                                                                                                     \
        const double start = now(b);                                                                         \
        for (int i = 0; i < rounds; i++)                                                                     \
            call;                                                                                            \
        printf("%-12s %6.3f ns an element\n", what, (now(b) - start) / rounds / N * 1e9);                    \
    } while (0)
    TIME("act_quantize", b->t->act_quantize(af, x, N, q));
    outlier found[ACT_OUTLIERS];
    TIME("outliers", b->t->outliers(x, N, 0.3f, found));
    TIME("norm", b->t->norm(NORM_RMS, x, x, NULL, y, N, 1, false, 1e-5f));
    TIME("gate silu", b->t->gate(ACT_SILU, x, x, y, N));
    TIME("gate gelu", b->t->gate(ACT_GELU_TANH, x, x, y, N));
    TIME("act erf", b->t->act(ACT_GELU, x, y, N));
    TIME("add", b->t->add(x, x, 1, y, N));
    mem_free(q);
}

/* The cost of choosing a kernel: a look-up in the matrix's choice, beside the rule each time. */
static void time_dispatch(const bench *b) {
    enum { LOOKS = 1 << 20 };
    pack_format f;
    kernel_choice r;
    uint64_t seed = 1;
    uintptr_t sum = 0;
    if (!pack_choose(TYPE_Q4_0, 64, &f))
        return;
    kernel_map_choice(NULL, b->t, 64, 64, &f, 8, &r);
    static int64_t rows[1024];
    for (int i = 0; i < 1024; i++)
        rows[i] = (int64_t)(random_next(&seed) % 512) + 1;
    double start = now(b);
    for (int i = 0; i < LOOKS; i++)
        sum +=
            (uintptr_t)choice_pick(&r, rows[(i + (int)(sum & 1)) & 1023]); /* each waits for the one before */
    const double choice_s = now(b) - start;
    start = now(b);
    for (int i = 0; i < LOOKS; i++)
        sum += (uintptr_t)strategy_by_rule(b->t, &f, rows[(i + (int)(sum & 1)) & 1023]);
    printf("dispatch: %.1f ns by the choice, %.1f ns by the rule%s\n", choice_s / LOOKS * 1e9,
           (now(b) - start) / LOOKS * 1e9, sum ? "" : " ");
}

enum { BARRIERS = 1000 };

static void barrier_only(void *arg, int thread, int n_thread) {
    const bench *b = arg;
    (void)thread;
    (void)n_thread;
    for (int i = 0; i < BARRIERS; i++)
        pool_barrier(b->threads);
}

static void nothing(void *arg, int thread, int n_thread) {
    (void)arg;
    (void)thread;
    (void)n_thread;
}

/* By the wall clock: on a busy machine this is mostly the time of other programs. */
static void time_pool(bench *b) {
    double dispatch = 1e30, barrier = 1e30;
    for (int round = 0; round < 20; round++) {
        double start = time_now();
        for (int i = 0; i < BARRIERS; i++)
            pool_run(b->threads, nothing, b);
        dispatch = NUM_MIN(dispatch, (time_now() - start) / BARRIERS);
        start = time_now();
        pool_run(b->threads, barrier_only, b);
        barrier = NUM_MIN(barrier, (time_now() - start) / BARRIERS);
    }
    printf("pool of %d: dispatch %.0f ns, barrier %.0f ns\n", b->n_thread, dispatch * 1e9, barrier * 1e9);
}

int main(int argc, char **argv) {
    bench b = {.t = argc > 1 ? kernels_table_for(argv[1]) : kernels_table()};
    b.n_thread = argc > 2 ? atoi(argv[2]) : thread_physical_cores();
    if (!b.t || b.n_thread < 1 || b.n_thread > MAX_THREADS || pool_open(b.n_thread, &b.threads, NULL) ||
        rate_memory_read(b.n_thread, 512 << 20, 0.5, NULL, &b.read, NULL)) {
        fprintf(stderr, "usage: bench_kernels [ref|avx2|avx512|amx] [threads]\n");
        return 2;
    }
    for (int i = 0; i < b.n_thread; i++)
        b.scratch[i] = mem_alloc_aligned(64, attend_scratch_bytes(512, true));
    printf("%s, %d threads, read %.1f GB/s\n", b.t->isa, b.n_thread, b.read.best * 1e-9);
    static const struct {
        type_id type;
        int64_t n, k;
    } shapes[] = {{TYPE_Q4_1, 1536, 576},   {TYPE_Q4_1, 576, 1536},   {TYPE_Q4_1, 192, 576},
                  {TYPE_Q8_0, 49152, 576},  {TYPE_Q5_0, 2048, 640},   {TYPE_Q4_K, 640, 2048},
                  {TYPE_Q6_K, 640, 2048},   {TYPE_Q8_0, 262144, 640}, {TYPE_Q4_0, 4096, 14336},
                  {TYPE_Q4_K, 4096, 14336}, {TYPE_F16, 2048, 2048}};
    static const int64_t rows[] = {1, 4, 8, 512};
    for (size_t j = 0; j < NUM_COUNT(rows); j++)
        for (size_t i = 0; i < NUM_COUNT(shapes); i++)
            if (rows[j] < 512 || shapes[i].n < 100000)
                time_product(&b, shapes[i].type, shapes[i].n, shapes[i].k, rows[j]);
    time_attention(&b, TYPE_F16, 9, 3, 64, 512, 0);
    time_attention(&b, TYPE_F16, 4, 1, 256, 512, 0);
    static const type_id caches[] = {TYPE_F16, TYPE_KV8, TYPE_KV4};
    for (size_t i = 0; i < NUM_COUNT(caches); i++) {
        time_attention(&b, caches[i], 9, 3, 64, 1, 512);
        time_attention(&b, caches[i], 9, 3, 64, 1, 16384);
        time_attention(&b, caches[i], 9, 3, 64, KV_BLOCK, 4096);
        time_attention(&b, caches[i], 4, 1, 256, 1, 512);
        time_attention(&b, caches[i], 32, 32, 128, 1, 4096);
    }
    time_pool(&b);
    time_rows(&b);
    time_dispatch(&b);
    static const type_id packed[] = {TYPE_Q4_1, TYPE_Q5_0, TYPE_Q8_0, TYPE_Q4_K, TYPE_Q6_K};
    for (size_t i = 0; i < NUM_COUNT(packed); i++)
        time_packing(&b, packed[i]);
    for (int i = 0; i < b.n_thread; i++)
        mem_free(b.scratch[i]);
    pool_close(b.threads);
    return 0;
}
