/* tile.c - products with packed weights. 512 of K of one panel are unpacked to one byte a code and floats of
 * scales (the first-level cache holds them), then all activation rows of a block pass over them, 3 at a time.
 *
 * The products of unsigned codes and signed activations are summed in 16 bits for as many quads as cannot
 * overflow: 2 * 15 * 127 * 8, 2 * 31 * 127 * 4 and 2 * 63 * 127 * 2 are below 2^15. Codes of 8 bits would not
 * fit even once, so they are unpacked as signed numbers (the zero point is gone then) and the sign moves to
 * the activation. */
#include "kernels/cpu/avx2/lanes.h"

#include "base/num.h"
#include "kernels/act8.h"
#include "kernels/cpu/avx2/avx2.h"

enum { BLOCK_CHUNKS = 2, BLOCK_TILES = BLOCK_CHUNKS * TILE_CHUNK, ROWS_AT_ONCE = 3, MOST_ROWS = 96 };
enum { BLOCK_GROUPS = BLOCK_TILES * TILE_K / 16, NEAR_BYTES = 160 * 1024, AHEAD = 2048 };

/* What is unpacked of one panel: 8 + 2 + 2 KiB. */
typedef struct block {
    uint8_t lines[BLOCK_TILES * 16][TILE_LINE];
    float scale[BLOCK_GROUPS][PACK_PANEL], min[BLOCK_GROUPS][PACK_PANEL];
} block;
_Static_assert(sizeof(block) <= 48 * 1024, "linear_scratch_bytes is 64 KiB");

typedef struct tile_job {
    const linear_args *a;
    act8_layout layout;
    block *b;
    int64_t panel_bytes, panel, tile0; /* the block's panel and first tile */
    int n_tile, zero_shift;
    bool is_first, is_last; /* block of K */
} tile_job;

/* ---- unpacking ---- */

/* Adds the bits of one part to half a line: field q / (2w) of line q % (2w), moved to bit `low` and up. */
LANES_INLINE __m256i tile_part(__m256i sum, const uint8_t *part, int w, int low, int q, int half) {
    const int shift = low - q / (2 * w) * w;
    __m256i x = _mm256_loadu_si256((const void *)(part + q % (2 * w) * TILE_LINE + 32 * half));
    if (shift > 0)
        x = _mm256_slli_epi32(x, shift);
    else if (shift < 0)
        x = _mm256_srli_epi32(x, -shift);
    return _mm256_or_si256(sum, _mm256_and_si256(x, _mm256_set1_epi8((char)(((1 << w) - 1) << low))));
}

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

/* is_signed: as code - 128. */
LANES_INLINE void unpack_codes(block *b, int first, const tile_chunk *c, int bits, int table,
                               bool is_signed) {
    const __m256i look = table ? _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)tile_table(table)))
                               : _mm256_setzero_si256();
    const uint8_t *codes = c->codes;
    for (int t = 0; t < c->n_tile; t++, codes += 128 * bits) {
        for (int line = 0; line < 2 * bits; line++)
            _mm_prefetch((const char *)codes + AHEAD + line * TILE_LINE, _MM_HINT_T0);
        LANES_UNROLL
        for (int q = 0; q < 16; q++) {
            LANES_UNROLL
            for (int half = 0; half < 2; half++) {
                __m256i v = tile_half(codes, bits, q, half);
                if (table)
                    v = _mm256_shuffle_epi8(look, v);
                if (is_signed)
                    v = _mm256_xor_si256(v, _mm256_set1_epi8((char)0x80));
                _mm256_store_si256((void *)(b->lines[(first + t) * 16 + q] + 32 * half), v);
            }
        }
    }
}

static vf signed_bytes(const uint8_t *p) {
    return BOTH(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)p))),
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)(p + 8)))));
}

/* 2^(e - 128) for 8 bytes e; below the smallest normal the bits are shifted by hand. */
static __m256 e8m0_8(const uint8_t *p) {
    const __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)p)), one = _mm256_set1_epi32(1);
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, one), 23);
    const __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x200000), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(small, normal, _mm256_cmpgt_epi32(e, one)));
}

static void unpack_scales(block *b, int first, const tile_chunk *c, const pack_format *f) {
    const int n = c->n_tile * TILE_K / f->group;
    const uint8_t *at = c->scales + tile_scale_start(f);
    vf d = v_zero(), d_min = v_zero();
    if (f->scale == PACK_SCALE_SUPER) {
        d = v_load_f16((const void *)c->scales);
        if (f->asym)
            d_min = v_load_f16((const void *)(c->scales + 2 * PACK_PANEL));
    }
    for (int g = first; g < first + n; g++, at += tile_scale_step(f)) {
        if (f->scale == PACK_SCALE_F16)
            v_store(b->scale[g], v_load_f16((const void *)at));
        else if (f->scale == PACK_SCALE_E8M0)
            v_store(b->scale[g], BOTH(e8m0_8(at), e8m0_8(at + 8)));
        else
            v_store(b->scale[g], v_mul(d, signed_bytes(at)));
        if (f->asym)
            v_store(b->min[g], f->scale == PACK_SCALE_F16 ? v_load_f16((const void *)(at + 2 * PACK_PANEL))
                                                          : v_mul(d_min, signed_bytes(at + PACK_PANEL)));
    }
}

/* Chunks [c0, c1) of the job's panel. */
static void unpack(const tile_job *j, int64_t c0, int64_t c1) {
    const view *w = j->a->w;
    const pack_format *f = &w->format;
    const void *panel = (const uint8_t *)w->data + j->panel * j->panel_bytes;
    for (int64_t i = c0; i < c1; i++) {
        const tile_chunk c = tile_chunk_at(f, panel, w->k, i);
        const int first = (int)(i - c0) * TILE_CHUNK;
        switch (f->bits) {
        case 2: unpack_codes(j->b, first, &c, 2, 0, false); break;
        case 3: unpack_codes(j->b, first, &c, 3, 0, false); break;
        case 4:
            if (f->table)
                unpack_codes(j->b, first, &c, 4, f->table, true);
            else
                unpack_codes(j->b, first, &c, 4, 0, false);
            break;
        case 5: unpack_codes(j->b, first, &c, 5, 0, false); break;
        case 6: unpack_codes(j->b, first, &c, 6, 0, false); break;
        default: unpack_codes(j->b, first, &c, 8, 0, true); break;
        }
        unpack_scales(j->b, first * (TILE_K / f->group), &c, f);
    }
}

/* ---- multiplying ---- */

LANES_INLINE __m256 broadcast_float(const char *p) {
    return _mm256_broadcast_ss((const float *)(const void *)p);
}
LANES_INLINE __m256i broadcast_int(const char *p) {
    return _mm256_set1_epi32(*(const int32_t *)(const void *)p);
}

/* One group of nt rows with half a panel: the integer part. run: quads for which 16 bits suffice; 1: signed
 * codes. */
LANES_INLINE void dot_group(const uint8_t *lines, const char *codes, int64_t row_bytes, int quads, int run,
                            int nt, __m256i acc[ROWS_AT_ONCE][2]) {
    const __m256i ones = _mm256_set1_epi16(1);
    LANES_UNROLL
    for (int q = 0; q < quads; q += run) {
        __m256i sum[ROWS_AT_ONCE][2];
        LANES_UNROLL
        for (int i = 0; i < run; i++) {
            LANES_UNROLL
            for (int half = 0; half < 2; half++) {
                const __m256i w = _mm256_load_si256((const void *)(lines + (q + i) * TILE_LINE + 32 * half));
                const __m256i size = run == 1 ? _mm256_abs_epi8(w) : w;
                LANES_UNROLL
                for (int t = 0; t < nt; t++) {
                    __m256i x = broadcast_int(codes + t * row_bytes + 4 * (q + i));
                    if (run == 1)
                        x = _mm256_sign_epi8(x, w);
                    const __m256i p = _mm256_maddubs_epi16(size, x);
                    sum[t][half] = i ? _mm256_add_epi16(sum[t][half], p) : p;
                }
            }
        }
        LANES_UNROLL
        for (int t = 0; t < nt; t++) {
            LANES_UNROLL
            for (int half = 0; half < 2; half++)
                acc[t][half] = _mm256_add_epi32(acc[t][half], _mm256_madd_epi16(sum[t][half], ones));
        }
    }
}

static vf load_y(const tile_job *j, int64_t m) {
    const linear_args *a = j->a;
    const int64_t left = a->w->n - j->panel * PACK_PANEL;
    const float *y = a->y + m * a->ldy + j->panel * PACK_PANEL;
    return left >= PACK_PANEL ? v_load(y) : v_load_part(y, (int)left);
}

static void store_y(const tile_job *j, int64_t m, vf y) {
    const linear_args *a = j->a;
    const int64_t n = j->panel * PACK_PANEL, left = a->w->n - n;
    float *out = a->y + m * a->ldy + n;
    if (j->is_last && a->bias)
        y = v_add(y, left >= PACK_PANEL ? v_load(a->bias + n) : v_load_part(a->bias + n, (int)left));
    if (left >= PACK_PANEL)
        v_store(out, y);
    else
        v_store_part(out, y, (int)left);
}

/* nt rows from row m over the whole block. asym, group, run and nt are constants. */
LANES_INLINE void multiply(const tile_job *j, int asym, int group, int run, int nt, int64_t m) {
    const act8_layout *l = &j->layout;
    const int per_tile = TILE_K / group, n_group = j->n_tile * per_tile;
    const char *x = (const char *)j->a->q.data + m * l->bytes, *codes = x + j->tile0 * TILE_K;
    const int64_t g0 = j->tile0 * per_tile;
    const char *scale = x + l->scale + j->tile0 * 8;
    const char *lift = x + (group == 16 ? l->lift16 : l->lift) + g0 * 4;
    const char *minus = x + (group == 16 ? l->minus16 : l->minus) + g0 * 4;
    const uint8_t *lines = j->b->lines[0];
    const __m128i shift = _mm_cvtsi32_si128(j->zero_shift);
    vf y[ROWS_AT_ONCE];
    LANES_UNROLL
    for (int t = 0; t < nt; t++)
        y[t] = j->is_first ? v_zero() : load_y(j, m + t);
    for (int g = 0; g < n_group; g++, codes += group, lift += 4, minus += 4, lines += group / 4 * TILE_LINE) {
        __m256i acc[ROWS_AT_ONCE][2];
        LANES_UNROLL
        for (int t = 0; t < nt; t++)
            acc[t][0] = acc[t][1] = asym || run == 1
                                        ? _mm256_setzero_si256()
                                        : _mm256_sll_epi32(broadcast_int(minus + t * l->bytes), shift);
        dot_group(lines, codes, l->bytes, group / 4, run, nt, acc);
        const char *s = scale + (group == 16 ? g / 2 : g) * 4;
        const vf ws = v_load(j->b->scale[g]);
        LANES_UNROLL
        for (int t = 0; t < nt; t++) {
            const __m256 xs = broadcast_float(s + t * l->bytes);
            y[t].a = _mm256_fmadd_ps(_mm256_cvtepi32_ps(acc[t][0]), _mm256_mul_ps(ws.a, xs), y[t].a);
            y[t].b = _mm256_fmadd_ps(_mm256_cvtepi32_ps(acc[t][1]), _mm256_mul_ps(ws.b, xs), y[t].b);
            if (asym) {
                const __m256 ls = broadcast_float(lift + t * l->bytes);
                y[t] = v_fma(v_load(j->b->min[g]), BOTH(ls, ls), y[t]);
            }
        }
    }
    LANES_UNROLL
    for (int t = 0; t < nt; t++)
        store_y(j, m + t, y[t]);
}

typedef void (*multiply_fn)(const tile_job *j, int64_t m);
#define DEFINE(asym, group, run, nt)                                                                         \
    static void multiply_##asym##_##group##_##run##_##nt(const tile_job *j, int64_t m) {                     \
        multiply(j, asym, group, run, nt, m);                                                                \
    }
#define NAMES(asym, group, run)                                                                              \
    {                                                                                                        \
        multiply_##asym##_##group##_##run##_1, multiply_##asym##_##group##_##run##_2,                        \
            multiply_##asym##_##group##_##run##_3                                                            \
    }
/* clang-format off */
#define EACH(X, nt) \
    X(0, 16, 4, nt) X(0, 16, 2, nt) X(0, 16, 1, nt) X(0, 32, 8, nt) \
    X(0, 32, 4, nt) X(0, 32, 2, nt) X(0, 32, 1, nt) X(1, 16, 4, nt) \
    X(1, 16, 2, nt) X(1, 32, 8, nt) X(1, 32, 4, nt) X(1, 32, 2, nt)
/* clang-format on */
EACH(DEFINE, 1)
EACH(DEFINE, 2)
EACH(DEFINE, 3)
/* [asym][group is 32][run 1, 2, 4, 8]; there are no signed codes with a minimum. */
static const multiply_fn multiplies[2][2][4][ROWS_AT_ONCE] = {
    {{NAMES(0, 16, 1), NAMES(0, 16, 2), NAMES(0, 16, 4), NAMES(0, 16, 4)},
     {NAMES(0, 32, 1), NAMES(0, 32, 2), NAMES(0, 32, 4), NAMES(0, 32, 8)}},
    {{{NULL}, NAMES(1, 16, 2), NAMES(1, 16, 4), NAMES(1, 16, 4)},
     {{NULL}, NAMES(1, 32, 2), NAMES(1, 32, 4), NAMES(1, 32, 8)}},
};

static const multiply_fn *multiply_for(const pack_format *f) {
    const int run = f->table != PACK_TABLE_NONE || f->bits == 8 ? 0 : f->bits == 6 ? 1 : f->bits == 5 ? 2 : 3;
    return multiplies[f->asym ? 1 : 0][f->group == 32][run];
}

static void panel_times_rows(tile_job *j, const multiply_fn *fn, int64_t c0, int64_t c1, int64_t m0,
                             int64_t m1) {
    const int64_t n_tile = tile_count(j->a->w->k), n_chunk = num_div_up(n_tile, TILE_CHUNK);
    for (int64_t c = c0; c < c1; c += BLOCK_CHUNKS) {
        unpack(j, c, NUM_MIN(c1, c + BLOCK_CHUNKS));
        j->tile0 = c * TILE_CHUNK;
        j->n_tile = (int)NUM_MIN(n_tile - j->tile0, BLOCK_TILES);
        j->is_first = c == 0;
        j->is_last = c + BLOCK_CHUNKS >= n_chunk;
        for (int64_t m = m0; m < m1; m += ROWS_AT_ONCE)
            fn[NUM_MIN(m1 - m, ROWS_AT_ONCE) - 1](j, m);
    }
}

static bool can(const pack_format *f, int64_t n_row) {
    (void)n_row;
    return tile_short_groups(f) && f->flavour == PACK_PARTS && f->bits != 7 && !(f->bits == 8 && f->asym);
}

static void run(const linear_args *a, int64_t n0, int64_t n1) {
    const pack_format *f = &a->w->format;
    const int64_t n_chunk = num_div_up(tile_count(a->w->k), TILE_CHUNK), rows = NUM_MIN(a->n_row, MOST_ROWS);
    /* K in spans for which a block of rows stays in the second-level cache */
    const int64_t fit = NEAR_BYTES / (rows * TILE_CHUNK_K * 3 / 2) / BLOCK_CHUNKS * BLOCK_CHUNKS;
    const int64_t chunks = NUM_MAX(fit, BLOCK_CHUNKS);
    const multiply_fn *fn = multiply_for(f);
    tile_job j = {.a = a,
                  .layout = act8_layout_of(a->w->k),
                  .b = a->scratch,
                  .panel_bytes = tile_panel_bytes(f, a->w->k)};
    for (int z = tile_zero(f); z > 1; z /= 2)
        j.zero_shift++;
    for (int64_t m = 0; m < a->n_row; m += rows)
        for (int64_t c = 0; c < n_chunk; c += chunks)
            for (j.panel = n0 / PACK_PANEL; j.panel < num_div_up(n1, PACK_PANEL); j.panel++)
                panel_times_rows(&j, fn, c, NUM_MIN(n_chunk, c + chunks), m, NUM_MIN(a->n_row, m + rows));
}

const strategy avx2_blocked = {
    .name = "padding.blocked", .can = can, .run = run, .rule_rows = STRATEGY_ANY_ROWS};
