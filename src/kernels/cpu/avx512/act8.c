/* act8.c - activations to integers, a group of 32 in two registers, longer ones in two passes. Rounding and
 * order as in cpu/ref. */
#include "kernels/cpu/avx512/avx512.h"

#include "base/num.h"
#include "kernels/act8.h"

#include <float.h>
#include <immintrin.h>
#include <math.h>

/* top: the largest code. */
static inline void quantize_group(__m512 a, __m512 b, float top, char *row, const act8_layout *l,
                                  int64_t group) {
    int8_t *codes = (int8_t *)row + group * ACT8_GROUP;
    const __m512 abs_a = _mm512_abs_ps(a), abs_b = _mm512_abs_ps(b), limit = _mm512_set1_ps(FLT_MAX);
    /* NaN and infinity are not <= FLT_MAX */
    const bool finite = _kortestz_mask16_u8(_mm512_cmp_ps_mask(abs_a, limit, _CMP_NLE_UQ),
                                            _mm512_cmp_ps_mask(abs_b, limit, _CMP_NLE_UQ));
    const float max = _mm512_reduce_max_ps(_mm512_max_ps(abs_a, abs_b));
    const bool used = finite && max >= ACT8_TINY;
    const __m512 inverse = _mm512_set1_ps(used ? top / max : 0.0f);
    __m512i ia = _mm512_cvtps_epi32(_mm512_mul_ps(a, inverse)),
            ib = _mm512_cvtps_epi32(_mm512_mul_ps(b, inverse));
    if (!finite) /* a NaN times 0 is none */
        ia = ib = _mm512_setzero_si512();
    _mm_storeu_si128((void *)codes, _mm512_cvtepi32_epi8(ia));
    _mm_storeu_si128((void *)(codes + 16), _mm512_cvtepi32_epi8(ib));
    act8_put(row, l, group, finite ? (used ? max / top : 0.0f) : NAN, _mm512_reduce_add_epi32(ia),
             _mm512_reduce_add_epi32(ib));
}

static inline __m512 load_part(const float *x, int64_t n) {
    return _mm512_maskz_loadu_ps(n >= 16 ? 0xffff : n <= 0 ? 0 : (__mmask16)((1u << n) - 1), x);
}

/* A group of `size` elements (a multiple of 16), n of which exist. */
static void quantize_long(const float *x, int64_t n, int64_t size, float top, char *row, const act8_layout *l,
                          int64_t at, int64_t group) {
    const __m512 limit = _mm512_set1_ps(FLT_MAX);
    __m512 max = _mm512_setzero_ps();
    __m512i sum = _mm512_setzero_si512();
    __mmask16 bad = 0;
    for (int64_t i = 0; i < n; i += 16) {
        const __m512 v = _mm512_abs_ps(load_part(x + i, n - i));
        bad |= _mm512_cmp_ps_mask(v, limit, _CMP_NLE_UQ);
        max = _mm512_max_ps(max, v);
    }
    const float largest = _mm512_reduce_max_ps(max);
    const bool used = !bad && largest >= ACT8_TINY;
    const __m512 inverse = _mm512_set1_ps(used ? top / largest : 0.0f);
    for (int64_t i = 0; i < size; i += 16) {
        __m512i code = _mm512_setzero_si512();
        if (!bad && i < n)
            code = _mm512_cvtps_epi32(_mm512_mul_ps(load_part(x + i, n - i), inverse));
        sum = _mm512_add_epi32(sum, code);
        _mm_storeu_si128((void *)(row + at + i), _mm512_cvtepi32_epi8(code));
    }
    act_put(row, l, group, bad ? NAN : used ? largest / top : 0.0f, _mm512_reduce_add_epi32(sum));
}

static void quantize_32(const float *x, int64_t k, float top, const act8_layout *l, void *out) {
    for (int64_t g = 0; g < l->scale / ACT8_GROUP; g++) {
        const int64_t left = k - g * ACT8_GROUP;
        const __m512 a = load_part(x + g * ACT8_GROUP, left),
                     b = load_part(x + g * ACT8_GROUP + 16, left - 16);
        quantize_group(a, b, top, out, l, g);
    }
}

void avx512_act_quantize(act_format f, const float *x, int64_t k, void *out) {
    const act8_layout l = act_layout_of(f, k);
    if (f.group == ACT8_GROUP)
        quantize_32(x, k, (float)max_act(f), &l, out);
    else
        act_each_group(f, x, k, out, quantize_long);
}
