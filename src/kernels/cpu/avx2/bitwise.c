/* bitwise.c - planes of weights AND planes of activations, 8 rows at a time; PSHUFB counts bits by tables of
 * 16. Counts stay in bytes over up to 4 planes of weights and both lines (8 * 15 * 2 fits). They are summed
 * in 32 bits over the planes of activations, from the sign down. */
#include "kernels/bitwise.h"

#include "kernels/cpu/avx2/avx2.h"
#include "kernels/cpu/avx2/lanes.h"
#include "kernels/dpr.h"

static void build(const int8_t *codes, bool by_32, int a_bits, uint64_t *out) {
    uint8_t place[TILE_K];
    for (int k = 0; k < TILE_K; k++)
        place[bitwise_place(by_32, k)] = (uint8_t)codes[k];
    __m256i low = _mm256_loadu_si256((const void *)place),
            high = _mm256_loadu_si256((const void *)(place + 32));
    low = _mm256_slli_epi16(low, 8 - a_bits); /* moves the wanted plane to the top bit of each byte */
    high = _mm256_slli_epi16(high, 8 - a_bits);
    for (int b = a_bits - 1; b >= 0; b--) {
        out[b] = (uint32_t)_mm256_movemask_epi8(low) | (uint64_t)(uint32_t)_mm256_movemask_epi8(high) << 32;
        low = _mm256_add_epi8(low, low);
        high = _mm256_add_epi8(high, high);
    }
}

/* Dword u of 8 rows (half of a line) in the plane whose two lines begin at p. */
LANES_INLINE __m256i plane_words(const uint8_t *p, bool by_32, int u) {
    if (!by_32)
        return _mm256_loadu_si256((const void *)(p + u * TILE_LINE));
    const __m256i low = _mm256_set1_epi8(0x0f), a = _mm256_loadu_si256((const void *)p);
    const __m256i b = _mm256_loadu_si256((const void *)(p + TILE_LINE));
    return u ? _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi32(a, 4), low), _mm256_andnot_si256(low, b))
             : _mm256_or_si256(_mm256_and_si256(a, low), _mm256_slli_epi32(_mm256_and_si256(b, low), 4));
}

/* The number of ones in each byte. */
LANES_INLINE __m256i count_bytes(__m256i x) {
    const __m256i count =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4));
    const __m256i low = _mm256_set1_epi8(15);
    return _mm256_add_epi8(_mm256_shuffle_epi8(count, _mm256_and_si256(x, low)),
                           _mm256_shuffle_epi8(count, _mm256_and_si256(_mm256_srli_epi16(x, 4), low)));
}

/* Multiplies dwords [u0, u1) of one tile: n planes of weights (1 to 4, the top one at `plane`) with all
 * planes of one activation row. */
LANES_INLINE __m256i dot_planes(int n, int a_bits, const uint8_t *plane, bool by_32, int u0, int u1,
                                const uint64_t *x) {
    __m256i words[4][2], dot = _mm256_setzero_si256();
    LANES_UNROLL
    for (int i = 0; i < n; i++)
        for (int u = u0; u < u1; u++)
            words[i][u - u0] = plane_words(plane + i * 2 * TILE_LINE, by_32, u);
    for (int b = a_bits - 1; b >= 0; b--) {
        __m256i sum = _mm256_setzero_si256();
        LANES_UNROLL
        for (int i = 0; i < n; i++) {
            sum = _mm256_add_epi8(sum, sum);
            for (int u = u0; u < u1; u++) {
                const __m256i bits = _mm256_set1_epi32((int32_t)(uint32_t)(x[b] >> 32 * u));
                sum = _mm256_add_epi8(sum, count_bytes(_mm256_and_si256(words[i][u - u0], bits)));
            }
        }
        const __m256i wide =
            _mm256_madd_epi16(_mm256_maddubs_epi16(sum, _mm256_set1_epi8(1)), _mm256_set1_epi16(1));
        dot = b == a_bits - 1 ? _mm256_sub_epi32(dot, wide)
                              : _mm256_add_epi32(_mm256_add_epi32(dot, dot), wide);
    }
    return dot;
}

LANES_INLINE __m256i dot_some(int n, int a_bits, const uint8_t *plane, bool by_32, int u, const uint64_t *x) {
    return by_32 ? dot_planes(n, a_bits, plane, true, u, u + 1, x)
                 : dot_planes(n, a_bits, plane, false, 0, 2, x);
}

typedef __m256i (*dot_fn)(const uint8_t *plane, bool by_32, int u, const uint64_t *x);
#define DEFINE(n, a)                                                                                         \
    static __m256i dot_##n##_##a(const uint8_t *plane, bool by_32, int u, const uint64_t *x) {               \
        return dot_some(n, a, plane, by_32, u, x);                                                           \
    }
DEFINE(1, 4)
DEFINE(2, 4)
DEFINE(3, 4)
DEFINE(4, 4)
DEFINE(1, 8)
DEFINE(2, 8)
DEFINE(3, 8)
DEFINE(4, 8)

static const dot_fn dots[2][4] = {{dot_1_4, dot_2_4, dot_3_4, dot_4_4}, {dot_1_8, dot_2_8, dot_3_8, dot_4_8}};

/* Multiplies all planes of half a tile: the planes above the lowest 4, if any, then the lowest 4. */
static __m256i dot_tile(const bit_job *j, const uint8_t *tile, int u, const uint64_t *x) {
    const int bits = j->a->w->format.bits, top = bits > 4 ? bits - 4 : 0;
    const dot_fn *fn = dots[j->a_bits == 8];
    const __m256i low = fn[bits - top - 1](tile + top * 2 * TILE_LINE, j->by_32, u, x);
    return top ? _mm256_add_epi32(_mm256_slli_epi32(fn[top - 1](tile, j->by_32, u, x), 4), low) : low;
}

static vf signed_bytes(const uint8_t *p) {
    return BOTH(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)p))),
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)(p + 8)))));
}

static void scales_at(const bit_job *j, const uint8_t *panel, int64_t at, vf *scale, vf *min) {
    const pack_format *f = &j->a->w->format;
    const uint8_t *s = bitwise_scales(j, panel, at);
    *min = v_zero();
    if (f->scale == PACK_SCALE_F16) {
        *scale = v_load_f16((const void *)s);
        if (f->asym)
            *min = v_load_f16((const void *)(s + 2 * PACK_PANEL));
        return;
    }
    const uint8_t *all = tile_chunk_at(f, panel, j->a->w->k, at / TILE_CHUNK_K).scales;
    *scale = v_mul(v_load_f16((const void *)all), signed_bytes(s));
    if (f->asym)
        *min = v_mul(v_load_f16((const void *)(all + 2 * PACK_PANEL)), signed_bytes(s + PACK_PANEL));
}

static vf end_group(const bit_job *j, const uint8_t *panel, const char *x, int64_t g, int64_t group,
                    const __m256i dot[2], vf y) {
    const pack_format *f = &j->a->w->format;
    const float step = *(const float *)(const void *)(x + j->l.scale + 4 * g);
    const float lift = *(const float *)(const void *)(x + j->l.lift + 4 * g);
    const int32_t minus = *(const int32_t *)(const void *)(x + j->l.minus + 4 * g);
    const __m256i zero = _mm256_set1_epi32(tile_zero(f) * minus);
    vf scale, min;
    scales_at(j, panel, g * group, &scale, &min);
    y = v_fma(BOTH(_mm256_cvtepi32_ps(_mm256_add_epi32(dot[0], zero)),
                   _mm256_cvtepi32_ps(_mm256_add_epi32(dot[1], zero))),
              v_mul(scale, v_set(step)), y);
    return f->asym ? v_fma(min, v_set(lift), y) : y;
}

static vf load_y(const float *y, int64_t left) {
    return left >= PACK_PANEL ? v_load(y) : v_load_part(y, (int)left);
}

static void one_row(const bit_job *j, int64_t first, int64_t m) {
    const linear_args *a = j->a;
    const view *w = a->w;
    const pack_format *f = &w->format;
    const int64_t group = tile_group(f, w->k), left = w->n - first * PACK_PANEL;
    const uint8_t *panel = (const uint8_t *)w->data + first * tile_panel_bytes(f, w->k);
    const char *x = (const char *)a->q.data + m * j->l.bytes;
    float *out = a->y + m * a->ldy + first * PACK_PANEL;
    vf y = j->tile0 ? load_y(out, left) : v_zero();
    __m256i dot[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (int64_t tile = j->tile0; tile < j->tile1; tile++) {
        const uint8_t *at = panel + tile / TILE_CHUNK * tile_chunk_bytes(f, TILE_CHUNK) +
                            tile % TILE_CHUNK * tile_code_bytes(f);
        const uint64_t *bits = bitwise_planes(j, m, tile);
        for (int u = j->by_32 ? 0 : 1; u < 2; u++) {
            for (int half = 0; half < 2; half++)
                dot[half] = _mm256_add_epi32(dot[half], dot_tile(j, at + 32 * half, u, bits));
            if (bitwise_ends(j, tile, u)) {
                y = end_group(j, panel, x, (tile * TILE_K + 32 * u) / group, group, dot, y);
                dot[0] = dot[1] = _mm256_setzero_si256();
            }
        }
    }
    if (a->bias && j->tile1 == tile_count(w->k))
        y = v_add(y, load_y(a->bias + first * PACK_PANEL, left));
    if (left >= PACK_PANEL)
        v_store(out, y);
    else
        v_store_part(out, y, (int)left);
}

static void panels(const bit_job *j, const int64_t *panel, int np) {
    for (int p = 0; p < np; p++)
        for (int64_t m = j->m0; m < j->m1; m++)
            one_row(j, panel[p], m);
}

static bool can(const pack_format *f, int64_t n_row) {
    (void)n_row;
    return bitwise_can(f);
}

static void run(const linear_args *a, int64_t n0, int64_t n1) {
    bitwise_run(a, n0, n1, build, panels);
}

/* Up to about 8 rows this takes less time than converting planes to parts first (measured, W2A8). */
const strategy avx2_bitwise = {
    .name = "bitwise", .can = can, .run = run, .rule_from = 1, .rule_rows = 8, .scratch = BITWISE_SCRATCH};
