/* probe.c - how fast VPDPBUSD multiplies, on registers. */
#include "kernels/cpu/avx512/avx512.h"
#include "kernels/lanes/lanes.h"

#include <immintrin.h>

enum { CHAINS = 12 };

static int64_t dpbusd(int64_t rounds, int32_t *sink) {
    __m512i sum[CHAINS], w = _mm512_set1_epi32(0x01020304 + (int)rounds), x = _mm512_set1_epi32(0x7f8103ff);
    LANES_UNROLL
    for (int i = 0; i < CHAINS; i++)
        sum[i] = _mm512_set1_epi32(i);
    for (int64_t r = 0; r < rounds; r++) {
        __asm__("" : "+v"(w), "+v"(x)); /* another operand each round, for all that the compiler knows */
        LANES_UNROLL
        for (int i = 0; i < CHAINS; i++)
            sum[i] = _mm512_dpbusd_epi32(sum[i], w, x);
    }
    LANES_UNROLL
    for (int i = 1; i < CHAINS; i++)
        sum[0] = _mm512_xor_si512(sum[0], sum[i]);
    *sink ^= _mm_cvtsi128_si32(_mm512_castsi512_si128(sum[0]));
    return rounds * CHAINS * 64;
}

const dpr_probe avx512_probes[] = {{"vpdpbusd", 8, 8, dpbusd}, {NULL, 0, 0, NULL}};
