/* tile.h - packed codes and scales in registers of 32 bytes: a line (16 rows x one quad of K) is two halves.
 * Everything is inlined with constant formats. */
#ifndef NIB_KERNELS_AVX2_TILE_H
#define NIB_KERNELS_AVX2_TILE_H

#include "kernels/cpu/avx2/lanes.h"

#include "base/num.h"
#include "kernels/act8.h"
#include "kernels/strategy.h"
#include "quant/tile.h"

/* What of a pack_format the inner loops are compiled for. group: 16, 32, or TILE_K for all that end with a
 * tile (64, 128, the row). */
typedef struct kind {
    int bits, table, group;
} kind;

static inline kind tile_kind(const pack_format *f) {
    return (kind){f->bits, f->table, NUM_MIN(f->group, TILE_K)};
}

/* Adds the bits of one part to half a line: field q / (2w) of line q % (2w), moved to bit `low` and up. */
LANES_INLINE __m256i tile_part(__m256i sum, const uint8_t *part, int w, int low, int q, int half) {
    const int shift = low - q / (2 * w) * w;
    __m256i x = _mm256_loadu_si256((const void *)(part + q % (2 * w) * TILE_LINE + 32 * half));
    if (shift > 0)
        x = _mm256_slli_epi16(x, shift);
    else if (shift < 0)
        x = _mm256_srli_epi16(x, -shift);
    return _mm256_or_si256(sum, _mm256_and_si256(x, _mm256_set1_epi8((char)(((1 << w) - 1) << low))));
}

/* Half of quad q of a tile: 8 rows x 4 codes. */
LANES_INLINE __m256i tile_half(const uint8_t *tile, int bits, int q, int half) {
    if (bits == 8)
        return _mm256_loadu_si256((const void *)(tile + q * TILE_LINE + 32 * half));
    __m256i sum = _mm256_setzero_si256();
    if (bits & 4) {
        sum = tile_part(sum, tile, 4, bits & 3, q, half);
        tile += 8 * TILE_LINE;
    }
    if (bits & 2) {
        sum = tile_part(sum, tile, 2, bits & 1, q, half);
        tile += 4 * TILE_LINE;
    }
    return bits & 1 ? tile_part(sum, tile, 1, 0, q, half) : sum;
}

/* Bytes that prefetches run ahead (measured, docs/optimisation-log.md), and those of n lines from `at` on
 * that go with step i of 8: with quad i of a tile n is its bits, since it has 16 quads and two lines a bit.
 */
enum { TILE_AHEAD = 8192 };
LANES_INLINE void tile_ahead(const uint8_t *at, int n, int i) {
    LANES_UNROLL
    for (int line = i * n / 8; line < (i + 1) * n / 8; line++)
        _mm_prefetch((const char *)at + TILE_AHEAD + line * TILE_LINE, _MM_HINT_T0);
}

LANES_INLINE vf tile_signed_bytes(const uint8_t *p) {
    return BOTH(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)p))),
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)(p + 8)))));
}

/* 2^(e - 128) for 8 bytes e; below the smallest normal the bits are shifted by hand. */
LANES_INLINE __m256 tile_e8m0(const uint8_t *p) {
    const __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)p)), one = _mm256_set1_epi32(1);
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, one), 23);
    const __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x200000), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(small, normal, _mm256_cmpgt_epi32(e, one)));
}

/* The scale of a group, and its minimum; d, d_min: the chunk's own (SUPER only). */
LANES_INLINE vf tile_scale(const uint8_t *at, int scale, const vf *d) {
    if (scale == PACK_SCALE_F16 || scale == PACK_SCALE_ZERO)
        return v_load_f16((const void *)at);
    if (scale == PACK_SCALE_E8M0)
        return BOTH(tile_e8m0(at), tile_e8m0(at + 8));
    return v_mul(*d, tile_signed_bytes(at));
}
LANES_INLINE vf tile_min(const uint8_t *at, int scale, const vf *d_min) {
    if (scale == PACK_SCALE_F16)
        return v_load_f16((const void *)(at + 2 * PACK_PANEL));
    if (scale == PACK_SCALE_ZERO)
        return v_sub(v_zero(), v_mul(v_load_f16((const void *)at), tile_signed_bytes(at + 2 * PACK_PANEL)));
    return v_mul(*d_min, tile_signed_bytes(at + PACK_PANEL));
}

LANES_INLINE __m256 broadcast_float(const char *p) {
    return _mm256_broadcast_ss((const float *)(const void *)p);
}
LANES_INLINE __m256i broadcast_int(const char *p) {
    return _mm256_set1_epi32(*(const int32_t *)(const void *)p);
}

/* minus, lift: of the weights' groups, which in groups of 16 are halves of the activations'. */
typedef struct tile_job {
    const linear_args *a;
    int64_t x_bytes, scale, minus, lift; /* a row of activations */
    int64_t panel_bytes, chunk_bytes;    /* chunk: of 4 tiles */
    int64_t tail, group_tiles;           /* where what belongs to whole rows stands; tiles of a long group */
    __m128i zero_shift;                  /* log2 of what tile_correct multiplies; 32: nothing */
} tile_job;

/* zero_shift: as dot_zero_shift gives it. */
static inline tile_job tile_job_of(const linear_args *a, int zero_shift) {
    const view *w = a->w;
    const pack_format *f = &w->format;
    const act8_layout l = act_layout_of(a->q.format, w->k);
    const bool halves = f->group == ACT8_SUM;
    return (tile_job){.a = a,
                      .x_bytes = l.bytes,
                      .scale = l.scale,
                      .minus = halves ? l.minus16 : l.minus,
                      .lift = halves ? l.lift16 : l.lift,
                      .panel_bytes = tile_panel_bytes(f, w->k),
                      .chunk_bytes = tile_chunk_bytes(f, TILE_CHUNK),
                      .tail = tile_tail_at(f, w->k),
                      .group_tiles = tile_group(f, w->k) / TILE_K,
                      .zero_shift = _mm_cvtsi32_si128(zero_shift)};
}

/* What the products of a group with codes as dot.h gives them lack: - zero * (sum of the activations); codes
 * that were made signed although there is a minimum lack the opposite. */
LANES_INLINE void tile_correct(bool made_signed, const tile_job *job, const char *minus, __m256i acc[2]) {
    const __m256i part = _mm256_sll_epi32(broadcast_int(minus), job->zero_shift);
    acc[0] = made_signed ? _mm256_sub_epi32(acc[0], part) : _mm256_add_epi32(acc[0], part);
    acc[1] = made_signed ? _mm256_sub_epi32(acc[1], part) : _mm256_add_epi32(acc[1], part);
}

/* The 16 outputs of a panel and a row: read, or written, rows beyond n left alone. */
static inline vf tile_load(const tile_job *job, int64_t panel, int64_t m) {
    const linear_args *a = job->a;
    const int64_t n = panel * PACK_PANEL, left = a->w->n - n;
    const float *y = a->y + m * a->ldy + n;
    return left >= PACK_PANEL ? v_load(y) : v_load_part(y, (int)left);
}
static inline void tile_store(const tile_job *job, int64_t panel, int64_t m, vf y) {
    const linear_args *a = job->a;
    const int64_t n = panel * PACK_PANEL, left = a->w->n - n;
    float *out = a->y + m * a->ldy + n;
    if (left >= PACK_PANEL)
        v_store(out, y);
    else
        v_store_part(out, y, (int)left);
}
/* The same for finished outputs: bias first. */
static inline void tile_finish(const tile_job *job, int64_t panel, int64_t m, vf y) {
    const linear_args *a = job->a;
    const int64_t n = panel * PACK_PANEL, left = a->w->n - n;
    if (a->bias)
        y = v_add(y, left >= PACK_PANEL ? v_load(a->bias + n) : v_load_part(a->bias + n, (int)left));
    tile_store(job, panel, m, y);
}

#endif
