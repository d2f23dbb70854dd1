/* encode.c - the loops of searches for scales with AVX2: 8 lanes, as in the reference, and the entries of a
 * table for 32 values at once. */
#include "numbers/encode_kernels.h"

#include "numbers/blocks.h"

#include <immintrin.h>

#define ENCODE_INLINE static inline __attribute__((always_inline))
enum { LANES = 8, TABLE = 16, TABLE_VECTORS = 4 /* 32 values */ };

/* Sums of the lanes of four vectors, each in the order of the reference. */
ENCODE_INLINE __m128 totals(__m256 a, __m256 b, __m256 c, __m256 d) {
    const __m256 quads = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    return _mm_add_ps(_mm256_castps256_ps128(quads), _mm256_extractf128_ps(quads, 1));
}

ENCODE_INLINE __m256 whole(__m256 v, float low, float high) {
    const __m256 big = _mm256_set1_ps(12582912.0f), q = _mm256_sub_ps(_mm256_add_ps(v, big), big);
    return _mm256_max_ps(_mm256_min_ps(q, _mm256_set1_ps(high)), _mm256_set1_ps(low));
}

ENCODE_INLINE __m256i in_both(__m128i v) {
    return _mm256_broadcastsi128_si256(v);
}

/* The entry of iq4_values that is nearest to each of 32 signed bytes. Among 16 bytes with the same upper half
 * there are at most two middles between entries (rounded down). So tables by that half have the number of
 * middles below it and the two that a byte is compared with (127: none is exceeded). */
ENCODE_INLINE __m256i table_entries(__m256i bytes) {
    const __m256i below = in_both(_mm_setr_epi8(8, 9, 11, 12, 13, 14, 14, 15, 0, 1, 1, 2, 3, 4, 5, 6));
    const __m256i first =
        in_both(_mm_setr_epi8(7, 19, 45, 61, 127, 127, 101, 127, -116, 127, -94, -74, -57, -42, -29, -16));
    const __m256i second =
        in_both(_mm_setr_epi8(127, 127, 127, 127, 127, 127, 127, 127, 127, 127, 127, 127, 127, 127, 127, -5));
    const __m256i half = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), _mm256_set1_epi8(15));
    __m256i at = _mm256_shuffle_epi8(below, half); /* a comparison gives -1 */
    at = _mm256_sub_epi8(at, _mm256_cmpgt_epi8(bytes, _mm256_shuffle_epi8(first, half)));
    at = _mm256_sub_epi8(at, _mm256_cmpgt_epi8(bytes, _mm256_shuffle_epi8(second, half)));
    return _mm256_shuffle_epi8(in_both(_mm_loadu_si128((const void *)iq4_values)), at);
}

/* The entries nearest to 32 whole numbers. Packing and unpacking cancel each other's order of lanes. */
ENCODE_INLINE void nearest_entries(__m256 v[TABLE_VECTORS]) {
    __m256i n[TABLE_VECTORS];
    for (int i = 0; i < TABLE_VECTORS; i++)
        n[i] = _mm256_cvtps_epi32(v[i]);
    const __m256i entries =
        table_entries(_mm256_packs_epi16(_mm256_packs_epi32(n[0], n[1]), _mm256_packs_epi32(n[2], n[3])));
    for (int i = 0; i < TABLE_VECTORS; i++) {
        const int at = 4 * i; /* of each half: bytes at ... at + 3, each to the top of a lane */
        const __m256i order = in_both(_mm_setr_epi8(-1, -1, -1, (char)at, -1, -1, -1, (char)(at + 1), -1, -1,
                                                    -1, (char)(at + 2), -1, -1, -1, (char)(at + 3)));
        v[i] = _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_shuffle_epi8(entries, order), 24));
    }
}

/* The three sums' lanes. */
typedef struct lanes {
    __m256 wq, wqq, wqx;
} lanes;

ENCODE_INLINE void add(lanes *s, __m256 weight, __m256 q, __m256 x) {
    const __m256 w = _mm256_mul_ps(weight, q);
    s->wq = _mm256_add_ps(s->wq, w);
    s->wqq = _mm256_add_ps(s->wqq, _mm256_mul_ps(w, q));
    s->wqx = _mm256_add_ps(s->wqx, _mm256_mul_ps(w, x));
}

ENCODE_INLINE lanes sum_uniform(const encode_group *g, __m256 inverse, __m256 min) {
    lanes s = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
    for (int i = 0; i < g->n; i += LANES) {
        const __m256 x = _mm256_sub_ps(_mm256_load_ps(g->x + i), min);
        add(&s, _mm256_load_ps(g->weight + i), whole(_mm256_mul_ps(x, inverse), g->low, g->high), x);
    }
    return s;
}

ENCODE_INLINE lanes sum_table(const encode_group *g, __m256 inverse, __m256 min) {
    lanes s = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
    __m256 x[TABLE_VECTORS], q[TABLE_VECTORS];
    for (int i = 0; i < TABLE_VECTORS; i++) {
        x[i] = _mm256_sub_ps(_mm256_load_ps(g->x + LANES * i), min);
        q[i] = whole(_mm256_mul_ps(x[i], inverse), g->low, g->high);
    }
    nearest_entries(q);
    for (int i = 0; i < TABLE_VECTORS; i++)
        add(&s, _mm256_load_ps(g->weight + LANES * i), q[i], x[i]);
    return s;
}

static void sums(const encode_group *g, const float *inverse, float min, int n_try, encode_sums *out) {
    const __m256 from = _mm256_set1_ps(min);
    for (int t = 0; t < n_try; t++) {
        const __m256 by = _mm256_set1_ps(inverse[t]);
        const lanes s = g->table ? sum_table(g, by, from) : sum_uniform(g, by, from);
        float all[4];
        _mm_storeu_ps(all, totals(s.wq, s.wqq, s.wqx, s.wqx));
        out[t] = (encode_sums){all[0], all[1], all[2]};
    }
}

ENCODE_INLINE __m256 error(__m256 sum, __m256 weight, __m256 x, __m256 scale, __m256 q) {
    const __m256 d = _mm256_sub_ps(x, _mm256_mul_ps(scale, q));
    return _mm256_add_ps(sum, _mm256_mul_ps(_mm256_mul_ps(weight, d), d));
}

ENCODE_INLINE __m256 error_lanes(const encode_group *g, float scale, float min) {
    const __m256 by = _mm256_set1_ps(scale == 0 ? 0 : 1 / scale), s = _mm256_set1_ps(scale),
                 from = _mm256_set1_ps(min);
    __m256 sum = _mm256_setzero_ps(), x[TABLE_VECTORS], q[TABLE_VECTORS];
    for (int i = 0; !g->table && i < g->n; i += LANES) {
        const __m256 v = _mm256_sub_ps(_mm256_load_ps(g->x + i), from);
        sum = error(sum, _mm256_load_ps(g->weight + i), v, s, whole(_mm256_mul_ps(v, by), g->low, g->high));
    }
    if (!g->table)
        return sum;
    for (int i = 0; i < TABLE_VECTORS; i++) {
        x[i] = _mm256_sub_ps(_mm256_load_ps(g->x + LANES * i), from);
        q[i] = whole(_mm256_mul_ps(x[i], by), g->low, g->high);
    }
    nearest_entries(q);
    for (int i = 0; i < TABLE_VECTORS; i++)
        sum = error(sum, _mm256_load_ps(g->weight + LANES * i), x[i], s, q[i]);
    return sum;
}

static void errors(const encode_group *g, const float *scale, const float *min, int n_try, float *out) {
    for (int t = 0; t < n_try; t += 4) {
        __m256 of[4];
        float all[4];
        const int n = n_try - t < 4 ? n_try - t : 4;
        for (int i = 0; i < 4; i++)
            of[i] = i < n ? error_lanes(g, scale[t + i], min[t + i]) : _mm256_setzero_ps();
        _mm_storeu_ps(all, totals(of[0], of[1], of[2], of[3]));
        for (int i = 0; i < n; i++)
            out[t + i] = all[i];
    }
}

static void entries(const encode_group *g, float scale, int8_t *level) {
    const __m256 by = _mm256_set1_ps(scale);
    for (int i = 0; i < g->n; i += LANES) {
        const __m256 v = _mm256_div_ps(_mm256_load_ps(g->x + i), by);
        __m256i at = _mm256_setzero_si256();
        for (int e = 0; e + 1 < TABLE; e++) {
            const __m256 middle = _mm256_set1_ps(0.5f * (float)(g->table[e] + g->table[e + 1]));
            at = _mm256_sub_epi32(at, _mm256_castps_si256(_mm256_cmp_ps(v, middle, _CMP_GT_OQ)));
        }
        const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(at), _mm256_extracti128_si256(at, 1));
        _mm_storel_epi64((void *)(level + i), _mm_packs_epi16(words, words));
    }
}

const encode_kernels avx2_encoder = {sums, errors, entries};
