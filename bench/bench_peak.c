/* The peak of integer multiply-adds from registers, without reads from memory. Rates of products of many rows
 * are divided by it. bench_peak prints one JSON line: {"maddubs_avx2": GMAC/s of one thread, ...}; units that
 * the processor lacks are left out. Processor time, the best of many short rounds. */
#include "base/cpu.h"
#include "base/thread.h"

#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>

enum { CHAINS = 10, TURNS = 20000, ROUNDS = 200 };

/* Operands whose values are hidden from the compiler. */
static volatile int sink;

/* vpmaddubsw + vpmaddwd + vpaddd: 32 multiply-adds each time. */
__attribute__((target("avx2"))) static double maddubs(void) {
    __m256i sum[CHAINS], w = _mm256_set1_epi8((char)sink), x = _mm256_set1_epi8((char)(sink + 1));
    const __m256i ones = _mm256_set1_epi16(1);
    for (int i = 0; i < CHAINS; i++)
        sum[i] = _mm256_setzero_si256();
    for (int t = 0; t < TURNS; t++) {
        __asm__ volatile("" : "+x"(w), "+x"(x));
#pragma GCC unroll 16
        for (int i = 0; i < CHAINS; i++) {
            __m256i p = _mm256_maddubs_epi16(w, x);
            __asm__ volatile("" : "+x"(p)); /* each chain its own product */
            sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(p, ones));
        }
    }
    for (int i = 1; i < CHAINS; i++)
        sum[0] = _mm256_add_epi32(sum[0], sum[i]);
    sink = _mm256_extract_epi32(sum[0], 0) & 1;
    return 32.0 * CHAINS * TURNS;
}

/* vpdpbusd on whole registers: 64 each time. */
__attribute__((target("avx512f,avx512bw,avx512vnni"))) static double dpbusd(void) {
    __m512i sum[CHAINS], w = _mm512_set1_epi8((char)sink), x = _mm512_set1_epi8((char)(sink + 1));
    for (int i = 0; i < CHAINS; i++)
        sum[i] = _mm512_setzero_si512();
    for (int t = 0; t < TURNS; t++) {
        __asm__ volatile("" : "+v"(w), "+v"(x));
#pragma GCC unroll 16
        for (int i = 0; i < CHAINS; i++)
            sum[i] = _mm512_dpbusd_epi32(sum[i], w, x);
    }
    for (int i = 1; i < CHAINS; i++)
        sum[0] = _mm512_add_epi32(sum[0], sum[i]);
    sink = _mm512_reduce_add_epi32(sum[0]) & 1;
    return 64.0 * CHAINS * TURNS;
}

static double best_rate(double (*run)(void)) {
    double best = 0;
    for (int i = 0; i < ROUNDS; i++) {
        const double start = time_thread(), work = run(), rate = work / (time_thread() - start) * 1e-9;
        best = rate > best ? rate : best;
    }
    return best;
}

int main(void) {
    const char *comma = "";
    printf("{");
    if (cpu_get()->avx2) {
        printf("\"maddubs_avx2\": %.1f", best_rate(maddubs));
        comma = ", ";
    }
    if (cpu_get()->avx512 && cpu_get()->avx512_vnni)
        printf("%s\"dpbusd_avx512\": %.1f", comma, best_rate(dpbusd));
    printf("}\n");
    return 0;
}
