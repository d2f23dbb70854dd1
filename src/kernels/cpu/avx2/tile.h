/* tile.h - loads packed codes and scales into registers of 32 bytes. A line (16 rows x one quad of K) is two
 * halves. Everything is inlined with constant formats. */
#ifndef NIB_KERNELS_AVX2_TILE_H
#define NIB_KERNELS_AVX2_TILE_H

#include "kernels/cpu/avx2/lanes.h"

#include "base/cpu.h"
#include "base/num.h"
#include "kernels/act8.h"
#include "kernels/prefetch.h"
#include "kernels/strategy.h"
#include "numbers/tile.h"

/* The part of a pack_format that inner loops are compiled for. group: 16, 32, or TILE_K for all that end with
 * a tile (64, 128, the row). */
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

/* Prefetches the lines of step i for n lines from `at` on in 8 steps. For quad i of a tile n is the code's
 * bits, because a tile has 16 quads and two lines a bit. */
LANES_INLINE void tile_ahead(const uint8_t *at, int n, int i) {
    LANES_UNROLL
    for (int line = i * n / 8; line < (i + 1) * n / 8; line++)
        prefetch_line(at + line * TILE_LINE);
}

LANES_INLINE vf tile_signed_bytes(const uint8_t *p) {
    return BOTH(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)p))),
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)(p + 8)))));
}

/* 2^(e - 128) for 8 bytes e; results below the smallest normal number are made by shifting the bits. */
LANES_INLINE __m256 tile_e8m0(const uint8_t *p) {
    const __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)p)), one = _mm256_set1_epi32(1);
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, one), 23);
    const __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x200000), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(small, normal, _mm256_cmpgt_epi32(e, one)));
}

/* The 16 halves of a chunk with PACK_SCALE_SUPER, in the table's unit. */
LANES_INLINE vf tile_supers(const uint8_t *p, int table) {
    const float unit = tile_table_unit(table);
    const vf d = v_load_f16((const void *)p);
    const __m256 of = _mm256_set1_ps(unit);
    return unit == 1 ? d : v_mul(d, BOTH(of, of));
}

/* The scale of a group, and (tile_min) its minimum. d, d_min: those of the chunk (SUPER only). */
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

/* A product's offsets and sizes in bytes. minus, lift: those for the weights' groups. Weights in groups of 16
 * have two for each group of the activations. */
typedef struct tile_job {
    const linear_args *a;
    int64_t x_bytes, scale, minus, lift; /* bytes of a row of activations; offsets in it */
    int64_t panel_bytes, chunk_bytes;    /* a chunk has 4 tiles */
    int64_t tail, group_tiles; /* offset of the data of whole rows in a panel; tiles of a long group */
    int64_t ahead;             /* distance of prefetches in one stream (measured, docs/optimisation-log.md) */
    __m256i zero_shift;        /* log2 of the factor in tile_correct, 8 times; 32: none */
} tile_job;

/* zero_shift: the result of dot_zero_shift. */
static inline tile_job tile_job_of(const linear_args *a, int zero_shift) {
    const view *w = a->w;
    const pack_format *f = &w->format;
    const act8_layout l = act_layout_of(a->q.format, w->k);
    const bool halves = f->group == ACT8_SUM;
    const int64_t ahead = cpu_is_intel() ? 3072 : 8192;
    return (tile_job){.a = a,
                      .x_bytes = l.bytes,
                      .scale = l.scale,
                      .minus = halves ? l.minus16 : l.minus,
                      .lift = halves ? l.lift16 : l.lift,
                      .panel_bytes = tile_panel_bytes(f, w->k),
                      .chunk_bytes = tile_chunk_bytes(f, TILE_CHUNK),
                      .tail = tile_tail_at(f, w->k),
                      .group_tiles = tile_group(f, w->k) / TILE_K,
                      .ahead = a->ahead ? a->ahead : ahead,
                      .zero_shift = _mm256_set1_epi32(zero_shift)};
}

/* Corrects the dot products of a group for the codes that dot.h multiplied: adds - zero * (sum of the
 * activations). If codes were made signed although there is a minimum, subtracts it. */
LANES_INLINE void tile_correct(bool made_signed, const tile_job *job, const char *minus, __m256i acc[2]) {
    const __m256i part = _mm256_sllv_epi32(broadcast_int(minus), job->zero_shift);
    acc[0] = made_signed ? _mm256_sub_epi32(acc[0], part) : _mm256_add_epi32(acc[0], part);
    acc[1] = made_signed ? _mm256_sub_epi32(acc[1], part) : _mm256_add_epi32(acc[1], part);
}

/* Read and write the 16 outputs of a panel for row m of the activations. Outputs beyond n are not touched. */
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
/* Adds the bias and stores 16 finished outputs. */
static inline void tile_finish(const tile_job *job, int64_t panel, int64_t m, vf y) {
    const linear_args *a = job->a;
    const int64_t n = panel * PACK_PANEL, left = a->w->n - n;
    if (a->bias)
        y = v_add(y, left >= PACK_PANEL ? v_load(a->bias + n) : v_load_part(a->bias + n, (int)left));
    tile_store(job, panel, m, y);
}

#endif
