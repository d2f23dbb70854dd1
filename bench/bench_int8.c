/* Times products with packed integers beside the peak of the processor: bench_int8 [ISA [TYPE|all
 * [rows...]]]. The register peaks (vpmaddubsw + vpaddw + vpmaddwd + vpaddd with 16-bit partial sums;
 * vpdpbusd, 256 bits), the clock, the read bandwidth and the products are measured in turn, in one thread and
 * by processor time, and the best of all rounds counts, because other load then disturbs the ratios least.
 * With few rows the weights are in no cache. A neighbour on the other thread of the core takes execution
 * units, but not the clock: run it several times.
 */
#include "product.h"

#include "base/num.h"

#include <immintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROTATE_BYTES = 320 << 20, ROUNDS = 6, MAX_CASES = 256 };

/* ---- peaks of the processor ---- */

/* Hides a value from the compiler, so that it folds nothing; costs no instruction. */
#define OPAQUE(v) __asm__ volatile("" : "+x"(v))
#define EACH_6(X) X(0) X(1) X(2) X(3) X(4) X(5)

/* Cycles a second, by a chain of multiplications of 3 cycles each. */
static double clock_rate(void) {
    const long rounds = 1 << 20;
    uint64_t x = 3;
    const double start = time_thread();
    for (long i = 0; i < rounds; i++)
        __asm__ volatile("imul %0, %0" : "+r"(x));
    return 3.0 * (double)rounds / (time_thread() - start);
}

/* Multiply-adds a second: 8 quads in 16 bits, then in 32; six accumulators. */
__attribute__((target("avx2"))) static double peak_maddubs(void) {
    const int rounds = 1 << 18;
    __m256i w = _mm256_set1_epi8(3), x = _mm256_set1_epi8(5);
    const __m256i ones = _mm256_set1_epi16(1);
#define START(i) __m256i acc##i = _mm256_setzero_si256(), sum##i;
/* The sums are hidden too: the compiler would move all products to the front and spill them. */
#define FIRST(i)                                                                                             \
    OPAQUE(x);                                                                                               \
    sum##i = _mm256_maddubs_epi16(w, x);                                                                     \
    OPAQUE(sum##i);
#define QUAD(i)                                                                                              \
    OPAQUE(x);                                                                                               \
    sum##i = _mm256_add_epi16(sum##i, _mm256_maddubs_epi16(w, x));                                           \
    OPAQUE(sum##i);
#define FLUSH(i)   acc##i = _mm256_add_epi32(acc##i, _mm256_madd_epi16(sum##i, ones));
#define KEEP(i)    OPAQUE(acc##i);
#define QUADS_7(X) X X X X X X X
    EACH_6(START)
    const double start = time_thread();
    for (int r = 0; r < rounds; r++) {
        EACH_6(FIRST)
        QUADS_7(EACH_6(QUAD))
        EACH_6(FLUSH)
    }
    const double s = time_thread() - start;
    EACH_6(KEEP)
    return (double)rounds * 6 * 8 * 32 / s;
}

__attribute__((target("avx2,avxvnni"))) static double peak_vnni(void) {
    const int rounds = 1 << 18;
    __m256i w = _mm256_set1_epi8(3), x = _mm256_set1_epi8(5);
#define START_2(i) __m256i a##i = _mm256_setzero_si256(), b##i = a##i;
#define STEP_2(i)                                                                                            \
    __asm__ volatile("%{vex%} vpdpbusd %3, %2, %0\n%{vex%} vpdpbusd %3, %2, %1"                              \
                     : "+x"(a##i), "+x"(b##i)                                                                \
                     : "x"(w), "x"(x));
    EACH_6(START_2)
    const double start = time_thread();
    for (int r = 0; r < rounds; r++) {
        EACH_6(STEP_2)
    }
    const double s = time_thread() - start;
    return (double)rounds * 12 * 32 / s;
}

/* Bytes a second of reading a buffer far larger than the caches, two streams with a prefetch. */
__attribute__((target("avx2"))) static double peak_read(const char *data, int64_t bytes) {
    const int64_t half = bytes / 2 / 256 * 256;
    __m256i sum = _mm256_setzero_si256();
    const double start = time_thread();
    for (int64_t i = 0; i < half; i += 256)
        for (const char *p = data + i; p <= data + i + half; p += half) {
#pragma GCC unroll 8
            for (int j = 0; j < 256; j += 64) {
                _mm_prefetch(p + j + 4096, _MM_HINT_T0);
                sum = _mm256_add_epi64(sum, _mm256_load_si256((const void *)(p + j)));
                sum = _mm256_add_epi64(sum, _mm256_load_si256((const void *)(p + j + 32)));
            }
        }
    const double s = time_thread() - start;
    OPAQUE(sum);
    return (double)(2 * half) / s;
}

/* ---- products ---- */

typedef struct entry {
    const char *isa;
    const strategy *s;
    product p;
    double best;
} entry;

static entry entry_open(const kernel_table *t, int at, type_id type, int64_t n, int64_t k, int64_t m) {
    entry e = {.isa = t->strategy_isa[at], .s = t->strategies[at], .best = 1e30};
    matrix w = matrix_open(type, n, k, MATRIX_RANDOM, 1);
    e.p = product_open(&w, m, m > 16 ? 0 : ROTATE_BYTES, 1);
    e.p.n_call = NUM_MIN(e.p.n_copy, 1 + (int)num_div_up(24 << 20, (int64_t)e.p.bytes));
    product_use(&e.p, e.s);
    matrix_close(&w);
    return e;
}

/* The next n_call copies in the rotation. */
static void entry_run(entry *e, int round, pool *alone) {
    e->p.first = round * e->p.n_call;
    e->best = NUM_MIN(e->best, product_time(&e->p, alone));
}

static void compare(const kernel_table *t, type_id type, int64_t n, int64_t k, int64_t m, pool *alone) {
    entry e[KERNELS_MAX_STRATEGY];
    double read = 0, mad = 0, vnni = 0, hz = 0;
    int n_entry = 0;
    pack_format f;
    pack_choose(type, k, &f);
    for (int i = 0; i < t->n_strategy; i++)
        if (strcmp(t->strategy_isa[i], "ref") && t->strategies[i]->can(&f, m))
            e[n_entry++] = entry_open(t, i, type, n, k, m);
    for (int round = 0; round < ROUNDS; round++) {
        hz = NUM_MAX(hz, clock_rate());
        mad = NUM_MAX(mad, peak_maddubs());
        vnni = NUM_MAX(vnni, cpu_get()->avx_vnni ? peak_vnni() : 0);
        if (n_entry && m <= 16)
            read = NUM_MAX(read, peak_read(e[0].p.copies->data, (int64_t)e[0].p.bytes * e[0].p.n_copy));
        for (int i = 0; i < n_entry; i++)
            entry_run(&e[i], round, alone);
    }
    for (int i = 0; i < n_entry; i++) {
        const double s = e[i].best, macs = (double)(n * k * m) / s;
        printf("%-7s %6ld x %-5ld M %-3ld %-7s %-16s %9.1f us", type_get(type)->name, (long)n, (long)k,
               (long)m, e[i].isa, e[i].s->name, s * 1e6);
        if (m <= 16)
            printf(" %6.2f GB/s, %.2f of read %.1f;", (double)e[i].p.bytes / s * 1e-9,
                   (double)e[i].p.bytes / s / read, read * 1e-9);
        printf(" %6.1f GMAC/s, %4.1f cycles for 256, %.2f of maddubs %.0f, %.2f of vnni %.0f\n", macs * 1e-9,
               256 * hz / macs, macs / mad, mad * 1e-9, vnni ? macs / vnni : 0, vnni * 1e-9);
        fflush(stdout);
        product_close(&e[i].p);
    }
}

int main(int argc, char **argv) {
    const kernel_table *t = argc > 1 ? kernels_table_for(argv[1]) : kernels_table();
    pool *alone;
    if (!t || !cpu_get()->avx2 || pool_open(1, &alone, NULL)) {
        fprintf(stderr, "usage: bench_int8 [avx2|avxvnni|avx512 [TYPE|all [rows...]]]\n");
        return 2;
    }
    static const struct {
        type_id type;
        int64_t n, k;
    } shapes[] = {{TYPE_Q4_0, 2048, 4096}, {TYPE_Q4_1, 1536, 576},  {TYPE_Q4_1, 576, 1536},
                  {TYPE_Q5_0, 2048, 640},  {TYPE_Q8_0, 8192, 640},  {TYPE_Q2_K, 2048, 2048},
                  {TYPE_Q3_K, 2048, 2048}, {TYPE_Q4_K, 2048, 2048}, {TYPE_Q6_K, 2048, 2048}};
    static const int64_t usual[] = {1, 4, 8, 128, 512};
    const char *only = argc > 2 && strcmp(argv[2], "all") ? argv[2] : NULL;
    for (int i = 0; i < (argc > 3 ? argc - 3 : (int)NUM_COUNT(usual)); i++)
        for (size_t j = 0; j < NUM_COUNT(shapes); j++)
            if (!only || !strcmp(only, type_get(shapes[j].type)->name))
                compare(t, shapes[j].type, shapes[j].n, shapes[j].k, argc > 3 ? atol(argv[3 + i]) : usual[i],
                        alone);
    pool_close(alone);
    return 0;
}
