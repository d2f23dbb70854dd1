/* bench_bf16 - products with float weights on the AMX unit, beside the unit's peak in registers and the
 * AVX-512 kernels, measured in turns in the same run.
 *
 *   bench_bf16 [threads]
 * Multiply-adds are those of the product; the unit does 3 (bf16), 5 (f16) or 6 (f32) for each, and `unit` is
 * the share of its rate in registers that these keep it busy for. Weights rotate over more than the caches
 * hold. One thread: processor time. More: wall clock, each thread with a share of the outputs. */
#include "kernels/cpu/amx/tiles.h"
#include "product.h"

#include "base/mem.h"
#include "base/num.h"
#include "quant/types.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    ROTATE_BYTES = 256 << 20,
    MAX_THREADS = 64,
    ROUNDS = 5,
    TURNS = 100000,
    MAX_ROWS = 512,
    THREAD_BYTES = 65536
};

/* ---- the unit ---- */

static void configure(void) {
    tiles_config c = {.palette = 1};
    for (int i = 0; i < 8; i++)
        c.rows[i] = 16, c.bytes[i] = 64;
    tiles_configure(&c);
}
static void in_registers(void *arg, int thread, int n_thread) {
    const char *at = (const char *)arg + (int64_t)thread * THREAD_BYTES;
    (void)n_thread;
    configure();
    TILES_LOAD(6, at, 64);
    TILES_LOAD(7, at + 1024, 64);
    TILES_LOAD(4, at + 2048, 64);
    TILES_LOAD(5, at + 3072, 64);
    for (int i = 0; i < TURNS; i++) {
        TILES_DOT_BF16(0, 4, 6);
        TILES_DOT_BF16(1, 4, 7);
        TILES_DOT_BF16(2, 5, 6);
        TILES_DOT_BF16(3, 5, 7);
    }
    tiles_release();
}
static void with_loads(void *arg, int thread, int n_thread) { /* 2 x 2, each operand loaded for two uses */
    const char *bytes = (const char *)arg + (int64_t)thread * THREAD_BYTES;
    (void)n_thread;
    configure();
    for (int i = 0; i < TURNS; i++) {
        const char *at = bytes + i % 8 * 4096;
        TILES_LOAD(6, at, 64);
        TILES_LOAD(7, at + 1024, 64);
        TILES_LOAD(4, at + 2048, 64);
        TILES_DOT_BF16(0, 4, 6);
        TILES_DOT_BF16(1, 4, 7);
        TILES_LOAD(5, at + 3072, 64);
        TILES_DOT_BF16(2, 5, 6);
        TILES_DOT_BF16(3, 5, 7);
    }
    tiles_release();
}

/* Multiply-adds a second of all threads. */
static double unit_rate(pool *threads, const char *name, pool_fn fn, void *arg) {
    const double macs = 4.0 * TURNS * 16 * 16 * 32 * pool_size(threads);
    double best = 1e30;
    for (int r = 0; r < ROUNDS; r++) {
        const double start = product_clock(threads);
        pool_run(threads, fn, arg);
        best = NUM_MIN(best, product_clock(threads) - start);
    }
    printf("%-28s %8.1f GMAC/s, %5.2f ns each\n", name, macs / best * 1e-9, best / (4.0 * TURNS) * 1e9);
    return macs / best;
}

/* ---- products ---- */

static void by_slices(const void *table, const linear_args *a, int64_t n0, int64_t n1) {
    ((const kernel_table *)table)->linear_sliced(a, n0, n1);
}
static void by_rows(const void *table, const linear_args *a, int64_t n0, int64_t n1) {
    ((const kernel_table *)table)->linear_rows(a, n0, n1);
}

/* Seconds of a product with both kernels, in turns. */
static void time_both(product *p, pool *threads, double best[2]) {
    best[0] = best[1] = 1e30;
    for (int r = 0; r < 2 * ROUNDS; r++) {
        p->run = r % 2 ? by_rows : by_slices;
        p->by = kernels_table_for(r % 2 ? "avx512" : "amx");
        best[r % 2] = NUM_MIN(best[r % 2], product_time(p, threads));
    }
}

static void time_shape(product *p, pool *threads, type_id type, int64_t m, int64_t columns, double peak) {
    const int64_t n = p->copies->n, k = p->copies->k;
    const double macs = (double)(columns * k * m), bytes = (double)(columns * k) * (type == TYPE_F32 ? 4 : 2);
    const int slices = type == TYPE_BF16 ? 3 : type == TYPE_F16 ? 5 : 6;
    double best[2];
    p->args.n_row = m;
    p->n_output = columns;
    p->n_call = m > 16 ? 2 : p->n_copy;
    time_both(p, threads, best);
    printf("%-5s %5ld x %-5ld M %-4ld", type_get(type)->name, (long)columns, (long)k, (long)m);
    printf(" amx %8.1f us %7.1f GMAC/s %6.2f GB/s unit %.2f", best[0] * 1e6, macs / best[0] * 1e-9,
           bytes / best[0] * 1e-9, slices * macs / best[0] / peak);
    printf("   avx512 %8.1f us %6.1f GMAC/s %6.2f GB/s   %.2f x%s\n", best[1] * 1e6, macs / best[1] * 1e-9,
           bytes / best[1] * 1e-9, best[1] / best[0], columns < n ? "  (a share of the columns)" : "");
    fflush(stdout);
}

static void time_matrix(pool *threads, type_id type, int64_t n, int64_t k, double peak) {
    static const int64_t rows[] = {1, 2, 4, 8, 16, 32, 64, 256, 512};
    matrix w = matrix_open(type, n, k, MATRIX_RANDOM, 1);
    product p = product_open(&w, MAX_ROWS, ROTATE_BYTES, pool_size(threads));
    for (size_t i = 0; i < NUM_COUNT(rows); i++)
        time_shape(&p, threads, type, rows[i], n, peak);
    /* the pieces that threads take from each other at the end of a product: the cost of preparing the rows */
    time_shape(&p, threads, type, 256, 64 * (int64_t)pool_size(threads), peak);
    product_close(&p);
    matrix_close(&w);
}

int main(int argc, char **argv) {
    static const type_id types[] = {TYPE_BF16, TYPE_F16, TYPE_F32};
    const int n_thread = argc > 1 ? atoi(argv[1]) : 1;
    pool *threads;
    if (!kernels_table_for("amx") || n_thread < 1 || n_thread > MAX_THREADS ||
        pool_open(n_thread, &threads, NULL)) {
        fprintf(stderr, "usage: bench_bf16 [threads], on a processor with AMX\n");
        return 2;
    }
    const size_t n_number = (size_t)n_thread * THREAD_BYTES / 2;
    uint16_t *bytes = mem_alloc_aligned(64, 2 * n_number);
    uint64_t seed = 9; /* random numbers: with zeros the clock is higher */
    for (size_t i = 0; i < n_number; i++)
        bytes[i] = bf16_from_float(random_float(&seed));
    const double peak = unit_rate(threads, "tdpbf16ps, registers", in_registers, bytes);
    unit_rate(threads, "tdpbf16ps, 2 x 2 with loads", with_loads, bytes);
    mem_free(bytes);
    for (size_t i = 0; i < NUM_COUNT(types); i++) {
        time_matrix(threads, types[i], 2048, 2048, peak);
        time_matrix(threads, types[i], 4096, 4096, peak);
    }
    pool_close(threads);
    return 0;
}
