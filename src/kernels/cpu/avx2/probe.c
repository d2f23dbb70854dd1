/* probe.c - measures how fast VPMADDUBSW multiplies on registers (exactly, so weights of up to 7 bits). */
#include "kernels/cpu/avx2/avx2.h"
#include "kernels/lanes/lanes.h"

#include <immintrin.h>

/* 16-bit sums of 4 quads, as for 5-bit codes: between the 8 and 2 quads of other widths. */
enum { CHAINS = 6, QUADS = 4 };

static int32_t fold(const __m256i *sum) {
    int32_t lane[8], all = 0;
    for (int i = 0; i < CHAINS; i++) {
        _mm256_storeu_si256((void *)lane, sum[i]);
        for (int l = 0; l < 8; l++)
            all ^= lane[l];
    }
    return all;
}

static int64_t maddubs(int64_t rounds, int32_t *sink) {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i sum[CHAINS], w = _mm256_set1_epi32(0x01020304 + (int)(rounds & 7)),
                         x = _mm256_set1_epi32(0x7f8103ff);
    LANES_UNROLL
    for (int i = 0; i < CHAINS; i++)
        sum[i] = _mm256_setzero_si256();
    for (int64_t r = 0; r < rounds; r++) {
        LANES_UNROLL
        for (int i = 0; i < CHAINS; i++) {
            __m256i narrow = _mm256_setzero_si256();
            LANES_UNROLL
            for (int q = 0; q < QUADS; q++) {
                __asm__("" : "+x"(w), "+x"(x)); /* the compiler must assume new operands */
                narrow = _mm256_add_epi16(narrow, _mm256_maddubs_epi16(w, x));
            }
            sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(narrow, ones));
        }
    }
    *sink ^= fold(sum);
    return rounds * CHAINS * QUADS * 32;
}

const dpr_probe avx2_probes[] = {{"vpmaddubsw", 7, 8, maddubs}, {NULL, 0, 0, NULL}};
