/* bench_amx - AMX products beside the peak of the tile unit in registers, measured in the same run.
 *
 *   bench_amx [threads [quick]]
 * quick: one shape, three formats. One thread: rates of the instructions, then products over rows of
 * activations, with the AMX strategy and the fastest AVX-512 one; weights rotate over more than the caches
 * hold. More threads: the products only, each thread with a share of the outputs, wall clock. */
#include "kernels/cpu/amx/tiles.h"
#include "product.h"
#include "support/isas.h"

#include "base/mem.h"
#include "base/num.h"

#include <immintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROTATE_BYTES = 384 << 20, MAX_THREADS = 64, ROUNDS = 9, INSTRUCTION_ROUNDS = 50 };

/* ---- instructions ---- */

enum { TURNS = 50000 };

static void tiles_in_registers(void) { /* on the codes that the registers hold */
    for (int i = 0; i < TURNS; i++) {
        TILES_DOT_SIGNED(0, 4, 6);
        TILES_DOT_SIGNED(1, 4, 7);
        TILES_DOT_SIGNED(2, 5, 6);
        TILES_DOT_SIGNED(3, 5, 7);
    }
}
static char *near_bytes;
static void tiles_of_codes(void) { /* on codes that are not zero, with which the unit is slower */
    TILES_LOAD(4, near_bytes, 64);
    TILES_LOAD(5, near_bytes + 1024, 64);
    TILES_LOAD(6, near_bytes + 2048, 64);
    TILES_LOAD(7, near_bytes + 3072, 64);
    tiles_in_registers();
}
static void tiles_loaded(void) { /* 2 x 2, every operand loaded once for two uses */
    for (int i = 0; i < TURNS; i++) {
        TILES_LOAD(4, near_bytes, 64);
        TILES_LOAD(6, near_bytes + 1024, 64);
        TILES_DOT_SIGNED(0, 4, 6);
        TILES_LOAD(7, near_bytes + 2048, 64);
        TILES_DOT_SIGNED(1, 4, 7);
        TILES_LOAD(5, near_bytes + 3072, 64);
        TILES_DOT_SIGNED(2, 5, 6);
        TILES_DOT_SIGNED(3, 5, 7);
    }
}
static void
tiles_alone(void) { /* every operand loaded for one use, every sum stored: the cost of one group */
    for (int i = 0; i < 2 * TURNS; i++) {
        TILES_ZERO(0);
        TILES_LOAD(4, near_bytes, 64);
        TILES_LOAD(6, near_bytes + 1024, 64);
        TILES_DOT_SIGNED(0, 4, 6);
        TILES_STORE(0, near_bytes + 4096, 64);
        TILES_ZERO(1);
        TILES_LOAD(5, near_bytes + 2048, 64);
        TILES_LOAD(7, near_bytes + 3072, 64);
        TILES_DOT_SIGNED(1, 5, 7);
        TILES_STORE(1, near_bytes + 5120, 64);
    }
}
static void tiles_stored(void) {
    for (int i = 0; i < 2 * TURNS; i++) {
        TILES_STORE(0, near_bytes + 4096, 64);
        TILES_STORE(1, near_bytes + 5120, 64);
    }
}
static void vnni_in_registers(void) {
    const __m512i a = _mm512_set1_epi32(0x01020304);
    __m512i s0 = a, s1 = a, s2 = a, s3 = a, s4 = a, s5 = a, s6 = a, s7 = a, s8 = a, s9 = a;
    for (int i = 0; i < 16 * TURNS / 10; i++)
        __asm__ volatile("vpdpbusd %10, %10, %0\n vpdpbusd %10, %10, %1\n vpdpbusd %10, %10, %2\n"
                         "vpdpbusd %10, %10, %3\n vpdpbusd %10, %10, %4\n vpdpbusd %10, %10, %5\n"
                         "vpdpbusd %10, %10, %6\n vpdpbusd %10, %10, %7\n vpdpbusd %10, %10, %8\n"
                         "vpdpbusd %10, %10, %9"
                         : "+v"(s0), "+v"(s1), "+v"(s2), "+v"(s3), "+v"(s4), "+v"(s5), "+v"(s6), "+v"(s7),
                           "+v"(s8), "+v"(s9)
                         : "v"(a));
}

/* name; tile instructions, or vectors, of how many multiply-adds */
static double time_instruction(const char *name, void (*fn)(void), double macs) {
    double best = 1e30;
    for (int r = 0; r < INSTRUCTION_ROUNDS;
         r++) { /* many short samples, because another hardware thread uses the same unit */
        const double start = time_thread();
        fn();
        best = NUM_MIN(best, time_thread() - start);
    }
    printf("%-44s %8.1f GMAC/s, %6.2f ns each of %d\n", name, macs / best * 1e-9, best / (4.0 * TURNS) * 1e9,
           4 * TURNS);
    return macs / best;
}

static double tile_peak; /* multiply-adds a second in registers; 0: not measured (more threads) */

static void time_instructions(void) {
    tiles_config c = {.palette = 1};
    for (int i = 0; i < 8; i++)
        c.rows[i] = 16, c.bytes[i] = 64;
    near_bytes = mem_alloc_aligned(64, 8192);
    for (int i = 0; i < 8192; i++)
        near_bytes[i] = (char)(i * 7 % 251);
    tiles_configure(&c);
    const double each = 4.0 * TURNS * 16 * 16 * 64;
    time_instruction("tdpbssd, registers of zeros", tiles_in_registers, each);
    tile_peak = time_instruction("tdpbssd, registers of codes (the peak)", tiles_of_codes, each);
    time_instruction("tdpbssd, 2 x 2 with loads", tiles_loaded, each);
    time_instruction("tdpbssd, 2 loads, zero and store for each", tiles_alone, each);
    time_instruction("tilestored", tiles_stored, 0);
    for (int i = 4; i < 8; i++) {
        c.rows[i] = i < 6 ? 16 : 8;
        c.bytes[i] = i < 6 ? 32 : 64;
    }
    tiles_configure(&c);
    time_instruction("tdpbssd, 32 of K, 2 loads, zero and store", tiles_alone, each / 2);
    tiles_release();
    time_instruction("vpdpbusd, registers", vnni_in_registers, 16.0 * TURNS * 64);
    mem_free(near_bytes);
}

/* ---- products ---- */

static double time_strategy(product *p, pool *threads, const strategy *s) {
    double best = 1e30;
    product_use(p, s);
    for (int r = 0; r < ROUNDS; r++)
        best = NUM_MIN(best, product_time(p, threads));
    return best;
}

/* The fastest AVX-512 strategy. */
static double time_avx512(product *p, pool *threads, const pack_format *f, int64_t n_row) {
    const kernel_table *t = kernels_table_for("amx");
    double best = 1e30;
    for (int i = 0; i < t->n_strategy; i++)
        if (!strcmp(t->strategy_isa[i], "avx512") && t->strategies[i]->can(f, n_row))
            best = NUM_MIN(best, time_strategy(p, threads, t->strategies[i]));
    return best;
}

/* name of a file type or of a uniform format */
static void time_products(pool *threads, const char *name, int64_t n, int64_t k) {
    static const int64_t rows[] = {1, 4, 8, 16, 32, 64, 128, 256, 512};
    const kernel_table *t = kernels_table_for("amx");
    type_id type;
    matrix w = type_from_name(name, &type) ? matrix_open(type, n, k, MATRIX_RANDOM, 1)
                                           : matrix_open_uniform(name, n, k, MATRIX_RANDOM, 1);
    product p = product_open(&w, rows[NUM_COUNT(rows) - 1], ROTATE_BYTES, pool_size(threads));
    const strategy *tiles = isas_strategy(t, "amx", "padding.tiles");
    for (size_t i = 0; i < NUM_COUNT(rows); i++) {
        p.args.n_row = rows[i];
        p.n_call = rows[i] > 16 ? (int)NUM_MIN(p.n_copy, 3) : p.n_copy;
        const double amx = time_strategy(&p, threads, tiles);
        const double other = time_avx512(&p, threads, &w.view.format, rows[i]);
        const double macs = (double)(n * k * rows[i]);
        printf(
            "%-8s %5ld x %-5ld M %-4ld amx %9.1f us %7.1f GMAC/s %6.2f GB/s   avx512 %9.1f us %7.1f GMAC/s",
            name, (long)n, (long)k, (long)rows[i], amx * 1e6, macs / amx * 1e-9, (double)p.bytes / amx * 1e-9,
            other * 1e6, macs / other * 1e-9);
        if (tile_peak > 0)
            printf("   amx %.2f of the peak", macs / amx / tile_peak);
        printf("\n");
        fflush(stdout);
    }
    product_close(&p);
    matrix_close(&w);
}

int main(int argc, char **argv) {
    const int n_thread = argc > 1 ? atoi(argv[1]) : 1;
    pool *threads;
    if (!kernels_table_for("amx") || n_thread < 1 || n_thread > MAX_THREADS ||
        pool_open(n_thread, &threads, NULL)) {
        fprintf(stderr, "usage: bench_amx [threads [quick]], on a processor with AMX\n");
        return 2;
    }
    if (n_thread == 1)
        time_instructions();
    time_products(threads, "q4_0", 4096, 4096);
    time_products(threads, "u4g128", 4096, 4096);
    time_products(threads, "u4grow", 4096, 4096);
    if (argc > 2) {
        pool_close(threads);
        return 0;
    }
    time_products(threads, "u4g64", 4096, 4096);
    time_products(threads, "u4g128a", 4096, 4096);
    time_products(threads, "q4_k", 4096, 4096);
    time_products(threads, "q6_k", 4096, 4096);
    time_products(threads, "q8_0", 4096, 4096);
    time_products(threads, "q4_0", 4096, 14336);
    time_products(threads, "q4_0", 1024, 4096);
    pool_close(threads);
    return 0;
}
