/* probe.c - measures how fast AND and VPOPCNTD count bits, on registers. */
#include "kernels/cpu/avx512pop/avx512pop.h"
#include "kernels/cpu/avx512/probe.h"

static int64_t and_popcount(int64_t rounds, int32_t *sink) {
    __m512i sum[PROBE_CHAINS], w = _mm512_set1_epi32(0x5a5a3c3c + (int)rounds),
                               x = _mm512_set1_epi32(0x0ff0f00f);
    probe_begin(sum);
    for (int64_t r = 0; r < rounds; r++) {
        __asm__("" : "+v"(w), "+v"(x)); /* the compiler must assume new operands each round */
        LANES_UNROLL
        for (int i = 0; i < PROBE_CHAINS; i++)
            sum[i] = _mm512_add_epi32(sum[i],
                                      _mm512_popcnt_epi32(_mm512_and_si512(w, _mm512_xor_si512(x, sum[i]))));
    }
    *sink ^= probe_end(sum);
    return rounds * PROBE_CHAINS * 512;
}

const dpr_probe avx512pop_probes[] = {{"and+vpopcntd", 1, 1, and_popcount}, {NULL, 0, 0, NULL}};
