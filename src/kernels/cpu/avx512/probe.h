/* probe.h - shared by the probes of 512-bit folders: enough chains of sums to hide an instruction's
 * latency. */
#ifndef NIB_KERNELS_AVX512_PROBE_H
#define NIB_KERNELS_AVX512_PROBE_H

#include "kernels/lanes/lanes.h"

#include <immintrin.h>

enum { PROBE_CHAINS = 12 };

LANES_INLINE void probe_begin(__m512i *sum) {
    LANES_UNROLL
    for (int i = 0; i < PROBE_CHAINS; i++)
        sum[i] = _mm512_set1_epi32(i);
}
LANES_INLINE int32_t probe_end(const __m512i *sum) {
    __m512i all = sum[0];
    LANES_UNROLL
    for (int i = 1; i < PROBE_CHAINS; i++)
        all = _mm512_xor_si512(all, sum[i]);
    return _mm_cvtsi128_si32(_mm512_castsi512_si128(all));
}

#endif
