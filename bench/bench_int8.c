/* Products with packed integers beside what the processor could do: bench_int8 [ISA [TYPE|all [rows...]]].
 * The register peaks (vpmaddubsw + vpaddw + vpmaddwd + vpaddd with 16-bit partial sums; vpdpbusd, 256 bits),
 * the read bandwidth and the products are measured in turn, in one thread and by processor time, and the best
 * of all rounds counts: neighbours then disturb the ratios least. Weights with few rows are not in any cache.
 */
#include "../tests/support/matrix.h"
#include "base/mem.h"
#include "base/num.h"
#include "kernels/strategy.h"

#include <immintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROTATE_BYTES = 320 << 20, ROUNDS = 6, MOST_CASES = 256 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- what the processor could do ---- */

/* Not known to the compiler, so that nothing is folded; costs no instruction. */
#define OPAQUE(v) __asm__ volatile("" : "+x"(v))
#define EACH_6(X) X(0) X(1) X(2) X(3) X(4) X(5)

/* Multiply-adds a second: 8 quads in 16 bits, then in 32; six accumulators. */
__attribute__((target("avx2"))) static double peak_maddubs(void) {
    const int rounds = 1 << 18;
    __m256i w = _mm256_set1_epi8(3), x = _mm256_set1_epi8(5);
    const __m256i ones = _mm256_set1_epi16(1);
#define START(i) __m256i acc##i = _mm256_setzero_si256(), sum##i;
#define FIRST(i)                                                                                             \
    OPAQUE(x);                                                                                               \
    sum##i = _mm256_maddubs_epi16(w, x);
#define QUAD(i)                                                                                              \
    OPAQUE(x);                                                                                               \
    sum##i = _mm256_add_epi16(sum##i, _mm256_maddubs_epi16(w, x));
#define FLUSH(i)   acc##i = _mm256_add_epi32(acc##i, _mm256_madd_epi16(sum##i, ones));
#define KEEP(i)    OPAQUE(acc##i);
#define QUADS_7(X) X X X X X X X
    EACH_6(START)
    const double start = now();
    for (int r = 0; r < rounds; r++) {
        EACH_6(FIRST)
        QUADS_7(EACH_6(QUAD))
        EACH_6(FLUSH)
    }
    const double s = now() - start;
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
    const double start = now();
    for (int r = 0; r < rounds; r++) {
        EACH_6(STEP_2)
    }
    const double s = now() - start;
    return (double)rounds * 12 * 32 / s;
}

/* Bytes a second of reading a buffer far larger than the caches, two streams with a prefetch. */
__attribute__((target("avx2"))) static double peak_read(const char *data, int64_t bytes) {
    const int64_t half = bytes / 2 / 256 * 256;
    __m256i sum = _mm256_setzero_si256();
    const double start = now();
    for (int64_t i = 0; i < half; i += 256)
        for (const char *p = data + i; p <= data + i + half; p += half) {
#pragma GCC unroll 8
            for (int j = 0; j < 256; j += 64) {
                _mm_prefetch(p + j + 4096, _MM_HINT_T0);
                sum = _mm256_add_epi64(sum, _mm256_load_si256((const void *)(p + j)));
                sum = _mm256_add_epi64(sum, _mm256_load_si256((const void *)(p + j + 32)));
            }
        }
    const double s = now() - start;
    OPAQUE(sum);
    return (double)(2 * half) / s;
}

/* ---- products ---- */

typedef struct product {
    const strategy *s;
    const char *isa;
    type_id type;
    int n_copy, n_call;
    uint64_t bytes;
    view *copies;
    void *memory, *q;
    float *y;
    linear_args args;
    double best;
} product;

static product product_open(const kernel_table *t, int at, type_id type, int64_t n, int64_t k, int64_t m) {
    product p = {.s = t->strategies[at], .isa = t->strategy_isa[at], .type = type, .best = 1e30};
    matrix w = matrix_open(type, n, k, MATRIX_RANDOM, 1);
    pack_bytes(&w.view.format, n, k, &p.bytes);
    p.n_copy = m > 16 ? 1 : (int)num_div_up(ROTATE_BYTES, (int64_t)p.bytes);
    p.n_call = NUM_MIN(p.n_copy, 1 + (int)num_div_up(24 << 20, (int64_t)p.bytes));
    p.memory = mem_map((size_t)p.bytes * (size_t)p.n_copy);
    p.copies = mem_array((size_t)p.n_copy, sizeof *p.copies);
    for (int i = 0; i < p.n_copy; i++) {
        p.copies[i] = w.view;
        p.copies[i].data = memcpy((char *)p.memory + (size_t)i * p.bytes, w.view.data, (size_t)p.bytes);
    }
    const act_format f = act_format_for(&w.view.format, 8);
    const size_t each = act_row_bytes(f, k);
    uint64_t seed = 5;
    float *x = mem_array((size_t)k, sizeof *x);
    p.q = mem_alloc_aligned(64, each * (size_t)m);
    p.y = mem_array((size_t)(m * n), sizeof *p.y);
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < k; j++)
            x[j] = random_float(&seed);
        t->act_quantize(f, x, k, (char *)p.q + (size_t)i * each);
    }
    p.args = (linear_args){.q = {p.q, m, k, f}, .y = p.y, .ldy = n, .n_row = m};
    mem_free(x);
    matrix_close(&w);
    return p;
}

static void product_close(product *p) {
    mem_free(p->q);
    mem_free(p->y);
    mem_free(p->copies);
    mem_unmap(p->memory, (size_t)p->bytes * (size_t)p->n_copy);
}

/* The next n_call copies in the rotation. */
static void product_run(product *p, int round, void *scratch) {
    linear_args a = p->args;
    a.scratch = scratch;
    const double start = now();
    for (int i = 0; i < p->n_call; i++) {
        a.w = &p->copies[(round * p->n_call + i) % p->n_copy];
        p->s->run(&a, 0, a.w->n);
    }
    p->best = NUM_MIN(p->best, (now() - start) / p->n_call);
}

static void compare(const kernel_table *t, type_id type, int64_t n, int64_t k, int64_t m, void *scratch) {
    product p[KERNELS_MAX_STRATEGY];
    double read = 0, mad = 0, vnni = 0;
    int n_product = 0;
    pack_format f;
    pack_choose(type, k, &f);
    for (int i = 0; i < t->n_strategy; i++)
        if (strcmp(t->strategy_isa[i], "ref") && t->strategies[i]->can(&f, m))
            p[n_product++] = product_open(t, i, type, n, k, m);
    for (int round = 0; round < ROUNDS; round++) {
        mad = NUM_MAX(mad, peak_maddubs());
        vnni = NUM_MAX(vnni, cpu_get()->avx_vnni ? peak_vnni() : 0);
        if (n_product && m <= 16)
            read = NUM_MAX(read, peak_read(p[0].memory, (int64_t)p[0].bytes * p[0].n_copy));
        for (int i = 0; i < n_product; i++)
            product_run(&p[i], round, scratch);
    }
    for (int i = 0; i < n_product; i++) {
        const double s = p[i].best, macs = (double)(n * k * m) / s;
        printf("%-7s %6ld x %-5ld M %-3ld %-7s %-16s %9.1f us", type_get(type)->name, (long)n, (long)k,
               (long)m, p[i].isa, p[i].s->name, s * 1e6);
        if (m <= 16)
            printf(" %6.2f GB/s, %.2f of read %.1f;", (double)p[i].bytes / s * 1e-9,
                   (double)p[i].bytes / s / read, read * 1e-9);
        printf(" %6.1f GMAC/s, %.2f of maddubs %.0f, %.2f of vnni %.0f\n", macs * 1e-9, macs / mad,
               mad * 1e-9, vnni ? macs / vnni : 0, vnni * 1e-9);
        fflush(stdout);
        product_close(&p[i]);
    }
}

int main(int argc, char **argv) {
    const kernel_table *t = argc > 1 ? kernels_table_for(argv[1]) : kernels_table();
    if (!t || !cpu_get()->avx2) {
        fprintf(stderr, "usage: bench_int8 [avx2|avxvnni|avx512 [TYPE|all [rows...]]]\n");
        return 2;
    }
    void *scratch = mem_alloc_aligned(64, linear_scratch_bytes());
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
                        scratch);
    mem_free(scratch);
    return 0;
}
