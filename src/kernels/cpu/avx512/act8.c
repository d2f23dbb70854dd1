/* act8.c - activations to 8 bits, a group of 32 in two registers. Rounding and order as in cpu/ref. */
#include "kernels/cpu/avx512/avx512.h"

#include "base/num.h"
#include "kernels/act8.h"

#include <float.h>
#include <immintrin.h>
#include <math.h>

static inline void quantize_group(__m512 a, __m512 b, char *row, const act8_layout *l, int64_t group) {
    int8_t *codes = (int8_t *)row + group * ACT8_GROUP;
    const __m512 abs_a = _mm512_abs_ps(a), abs_b = _mm512_abs_ps(b), limit = _mm512_set1_ps(FLT_MAX);
    /* NaN and infinity are not <= FLT_MAX */
    const bool finite = _kortestz_mask16_u8(_mm512_cmp_ps_mask(abs_a, limit, _CMP_NLE_UQ),
                                            _mm512_cmp_ps_mask(abs_b, limit, _CMP_NLE_UQ));
    const float most = _mm512_reduce_max_ps(_mm512_max_ps(abs_a, abs_b));
    const bool used = finite && most >= ACT8_TINY;
    const __m512 inverse = _mm512_set1_ps(used ? 127.0f / most : 0.0f);
    __m512i ia = _mm512_cvtps_epi32(_mm512_mul_ps(a, inverse)),
            ib = _mm512_cvtps_epi32(_mm512_mul_ps(b, inverse));
    if (!finite) /* a NaN times 0 is none */
        ia = ib = _mm512_setzero_si512();
    _mm_storeu_si128((void *)codes, _mm512_cvtepi32_epi8(ia));
    _mm_storeu_si128((void *)(codes + 16), _mm512_cvtepi32_epi8(ib));
    act8_put(row, l, group, finite ? (used ? most / 127.0f : 0.0f) : NAN, _mm512_reduce_add_epi32(ia),
             _mm512_reduce_add_epi32(ib));
}

void avx512_act_quantize(const float *x, int64_t k, void *out) {
    const act8_layout l = act8_layout_of(k);
    for (int64_t g = 0; g < l.scale / ACT8_GROUP; g++) {
        const int64_t left = NUM_MAX(0, NUM_MIN(k - g * ACT8_GROUP, ACT8_GROUP));
        const __mmask32 mask = (__mmask32)((UINT64_C(1) << left) - 1);
        const __m512 a = _mm512_maskz_loadu_ps((__mmask16)mask, x + g * ACT8_GROUP);
        const __m512 b = _mm512_maskz_loadu_ps((__mmask16)(mask >> 16), x + g * ACT8_GROUP + 16);
        quantize_group(a, b, out, &l, g);
    }
}
