/* act8.c - quantizes activations in groups of more than 32, in two passes. Rounding and order are those of
 * cpu/ref. Groups of 32 use the AVX2 code, which takes four at a time. */
#include "kernels/cpu/avx2/avx2.h"
#include "kernels/cpu/avx512/avx512.h"

#include "base/num.h"
#include "kernels/act8.h"

#include <float.h>
#include <immintrin.h>
#include <math.h>

static inline __m512 load_part(const float *x, int64_t n) {
    return _mm512_maskz_loadu_ps(n >= 16 ? 0xffff : n <= 0 ? 0 : (__mmask16)((1u << n) - 1), x);
}

/* Quantizes a group of `size` elements (a multiple of 16), of which the row has n. */
static void quantize_long(const float *x, int64_t n, int64_t size, float top, char *row, const act8_layout *l,
                          int64_t at, int64_t group) {
    const __m512 limit = _mm512_set1_ps(FLT_MAX);
    __m512 max = _mm512_setzero_ps(), min = _mm512_setzero_ps();
    __m512i sum = _mm512_setzero_si512();
    __mmask16 bad = 0;
    for (int64_t i = 0; i < n; i += 16) {
        const __m512 v = load_part(x + i, n - i), magnitude = _mm512_abs_ps(v);
        bad |= _mm512_cmp_ps_mask(magnitude, limit, _CMP_NLE_UQ);
        max = _mm512_max_ps(max, magnitude);
        min = _mm512_min_ps(min, v);
    }
    const float largest = _mm512_reduce_max_ps(max);
    const bool used = !bad && largest >= ACT8_TINY;
    const float steps = act_steps(top, -_mm512_reduce_min_ps(min) == largest);
    const __m512 inverse = _mm512_set1_ps(used ? steps / largest : 0.0f);
    const __m512i last = _mm512_set1_epi32((int)top);
    for (int64_t i = 0; i < size; i += 16) {
        __m512i code = _mm512_setzero_si512();
        if (!bad && i < n)
            code =
                _mm512_min_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(load_part(x + i, n - i), inverse)), last);
        sum = _mm512_add_epi32(sum, code);
        _mm_storeu_si128((void *)(row + at + i), _mm512_cvtepi32_epi8(code));
    }
    act_put(row, l, group, bad ? NAN : used ? largest / steps : 0.0f, _mm512_reduce_add_epi32(sum));
}

void avx512_act_quantize(act_format f, const float *x, int64_t k, void *out) {
    if (f.group == ACT8_GROUP)
        avx2_act_quantize(f, x, k, out);
    else
        act_each_group(f, x, k, out, quantize_long);
}
