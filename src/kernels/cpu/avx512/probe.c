/* probe.c - measures how fast VPDPBUSD multiplies, on registers. */
#include "kernels/cpu/avx512/avx512.h"
#include "kernels/cpu/avx512/probe.h"

static int64_t dpbusd(int64_t rounds, int32_t *sink) {
    __m512i sum[PROBE_CHAINS], w = _mm512_set1_epi32(0x01020304 + (int)rounds),
                               x = _mm512_set1_epi32(0x7f8103ff);
    probe_begin(sum);
    for (int64_t r = 0; r < rounds; r++) {
        __asm__("" : "+v"(w), "+v"(x)); /* the compiler must assume new operands each round */
        LANES_UNROLL
        for (int i = 0; i < PROBE_CHAINS; i++)
            sum[i] = _mm512_dpbusd_epi32(sum[i], w, x);
    }
    *sink ^= probe_end(sum);
    return rounds * PROBE_CHAINS * 64;
}

const dpr_probe avx512_probes[] = {{"vpdpbusd", 8, 8, dpbusd}, {NULL, 0, 0, NULL}};
