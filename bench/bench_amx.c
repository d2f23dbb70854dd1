/* bench_amx - AMX products beside what the tile unit itself does in registers, measured in the same run.
 *
 *   bench_amx [threads [quick]]
 * quick: one shape, three formats. One thread: rates of the instructions, then products over rows of
 * activations, with the AMX strategy and the fastest AVX-512 one; weights rotate over more than the caches
 * hold. More threads: the products only, each thread with a share of the outputs, wall clock. */
#include "kernels/cpu/amx/tiles.h"
#include "support/matrix.h"

#include "base/mem.h"
#include "base/num.h"
#include "base/thread.h"
#include "kernels/strategy.h"

#include <immintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROTATE_BYTES = 384 << 20, MOST_THREADS = 64, ROUNDS = 9, INSTRUCTION_ROUNDS = 50 };

typedef struct product {
    const strategy *s;
    const view *copies;
    int n_copy, n_call;
    linear_args args;
    void *scratch[MOST_THREADS];
} product;

/* ---- instructions ---- */

enum { TURNS = 50000 };

static void tiles_in_registers(void) { /* of what the registers hold */
    for (int i = 0; i < TURNS; i++) {
        TILES_DOT_SIGNED(0, 4, 6);
        TILES_DOT_SIGNED(1, 4, 7);
        TILES_DOT_SIGNED(2, 5, 6);
        TILES_DOT_SIGNED(3, 5, 7);
    }
}
static char *near_bytes;
static void tiles_of_codes(void) { /* of codes that are not zero: the unit is slower then */
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
static void tiles_alone(void) { /* every operand loaded for one use, every sum stored: what one group costs */
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
    for (int r = 0; r < INSTRUCTION_ROUNDS; r++) { /* many and short: a neighbour uses the same unit */
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

static void run_product(void *arg, int thread, int n_thread) {
    const product *p = arg;
    for (int i = 0; i < p->n_call; i++) {
        linear_args a = p->args;
        int64_t n0, n1;
        a.w = &p->copies[i % p->n_copy];
        a.scratch = p->scratch[thread];
        pool_split(a.w->n, PACK_PANEL, thread, n_thread, &n0, &n1);
        if (n0 < n1)
            p->s->run(&a, n0, n1);
    }
}

static double time_strategy(product *p, pool *threads, const strategy *s) {
    double best = 1e30;
    p->s = s;
    for (int r = 0; r < ROUNDS; r++) {
        const double start = pool_size(threads) > 1 ? time_now() : time_thread();
        pool_run(threads, run_product, p);
        const double end = pool_size(threads) > 1 ? time_now() : time_thread();
        best = NUM_MIN(best, (end - start) / p->n_call);
    }
    return best;
}

/* The fastest of the AVX-512 ones. */
static double time_avx512(product *p, pool *threads, const pack_format *f, int64_t n_row) {
    const kernel_table *t = kernels_table_for("amx");
    double best = 1e30;
    for (int i = 0; i < t->n_strategy; i++)
        if (!strcmp(t->strategy_isa[i], "avx512") && t->strategies[i]->can(f, n_row))
            best = NUM_MIN(best, time_strategy(p, threads, t->strategies[i]));
    return best;
}

/* name: of a file type or of a uniform format */
static void time_products(pool *threads, const char *name, int64_t n, int64_t k) {
    static const int64_t rows[] = {1, 4, 8, 16, 32, 64, 128, 256, 512};
    const kernel_table *t = kernels_table_for("amx");
    type_id type;
    matrix w = type_from_name(name, &type) ? matrix_open(type, n, k, MATRIX_RANDOM, 1)
                                           : matrix_open_uniform(name, n, k, MATRIX_RANDOM, 1);
    uint64_t bytes = 0, seed = 5;
    pack_bytes(&w.view.format, n, k, &bytes);
    product p = {.n_copy = (int)num_div_up(ROTATE_BYTES, (int64_t)bytes)};
    char *memory = mem_map((size_t)bytes * (size_t)p.n_copy);
    view *copies = mem_array((size_t)p.n_copy, sizeof *copies);
    for (int i = 0; i < p.n_copy; i++) {
        copies[i] = w.view;
        copies[i].data = memcpy(memory + (size_t)i * bytes, w.view.data, (size_t)bytes);
    }
    p.copies = copies;
    const int64_t most = rows[NUM_COUNT(rows) - 1];
    const act_format af = act_format_for(&w.view.format, 8);
    float *x = mem_array((size_t)k, sizeof *x), *y = mem_array((size_t)(most * n), sizeof *y);
    char *q = mem_alloc_aligned(64, act_row_bytes(af, k) * (size_t)most);
    for (int64_t m = 0; m < most; m++) {
        for (int64_t i = 0; i < k; i++)
            x[i] = random_float(&seed);
        t->act_quantize(af, x, k, q + (size_t)m * act_row_bytes(af, k));
    }
    for (int i = 0; i < pool_size(threads); i++)
        p.scratch[i] = mem_alloc_aligned(64, linear_scratch_bytes());
    const strategy *tiles = strategy_find(t, "amx", "padding.tiles");
    for (size_t i = 0; i < NUM_COUNT(rows); i++) {
        p.args = (linear_args){.q = {q, rows[i], k, af}, .y = y, .ldy = n, .n_row = rows[i]};
        p.n_call = rows[i] > 16 ? (int)NUM_MIN(p.n_copy, 3) : p.n_copy;
        const double amx = time_strategy(&p, threads, tiles);
        const double other = time_avx512(&p, threads, &w.view.format, rows[i]);
        const double macs = (double)(n * k * rows[i]);
        printf(
            "%-8s %5ld x %-5ld M %-4ld amx %9.1f us %7.1f GMAC/s %6.2f GB/s   avx512 %9.1f us %7.1f GMAC/s",
            name, (long)n, (long)k, (long)rows[i], amx * 1e6, macs / amx * 1e-9, (double)bytes / amx * 1e-9,
            other * 1e6, macs / other * 1e-9);
        if (tile_peak > 0)
            printf("   amx %.2f of the peak", macs / amx / tile_peak);
        printf("\n");
        fflush(stdout);
    }
    for (int i = 0; i < pool_size(threads); i++)
        mem_free(p.scratch[i]);
    mem_free(q);
    mem_free(x);
    mem_free(y);
    mem_free(copies);
    mem_unmap(memory, (size_t)bytes * (size_t)p.n_copy);
    matrix_close(&w);
}

int main(int argc, char **argv) {
    const int n_thread = argc > 1 ? atoi(argv[1]) : 1;
    pool *threads;
    if (!kernels_table_for("amx") || n_thread < 1 || n_thread > MOST_THREADS ||
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
