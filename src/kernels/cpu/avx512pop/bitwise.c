/* bitwise.c - the Bitwise strategy (DPR with all slices of width 1, dpr.h): planes of weights AND planes of
 * activations, 16 rows x 32 of K at a time; VPOPCNTD counts bits.
 *
 * A plane of activations is 64 bits for each tile (64 of K), in the order of a plane of weights
 * (numbers/tile.h): two dwords, each ANDed with the dword of a weight row. Weights in groups of 32 are
 * rearranged in registers so that a dword is one group; activations are laid out for that. The top plane of
 * the activations is their sign, so its counts are subtracted.
 *
 * The counts of all pairs of planes (i, j) with the same i + j are added in one register, so w + a - 1
 * registers hold the sums of a group. At its end they are joined from the top (twice the sum plus the next
 * one), scaled and added to y. So reconstruction and dequantization are done in registers. With up to 4 bits,
 * two panels or two rows are computed at the same time. Wider weights leave no registers for that. */
#include "kernels/cpu/avx512/tile.h"
#include "kernels/cpu/avx512pop/avx512pop.h"

#include "base/num.h"
#include "kernels/act8.h"

enum { ROWS = 4, SCRATCH = STRATEGY_SCRATCH, AHEAD = 4096, MAX_SUMS = 15 };
_Static_assert((int)SCRATCH >= (int)MAX_PACK_ROW, "the longest row that is one group must fit as 8 planes");

typedef struct bit_job {
    const linear_args *a;
    act8_layout l;
    const uint64_t *planes; /* [row - m0][tile - tile0][a_bits] */
    int a_bits;
    bool by_32; /* groups of 32: a dword of a plane is one group */
    int64_t m0, m1, tile0, tile1;
} bit_job;

static const uint64_t *planes_at(const bit_job *j, int64_t m, int64_t tile) {
    return j->planes + ((m - j->m0) * (j->tile1 - j->tile0) + tile - j->tile0) * j->a_bits;
}

/* Makes words of 64 codes: sorts the quads into the order of the lines, then the bytes of 8 quads to
 * [c][f]. */
static void build(const int8_t *codes, bool by_32, int a_bits, uint64_t *out) {
    const __m512i by_line = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    const __m512i by_group = _mm512_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
    const __m512i turn =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    const __m512i join = _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
    __m512i x = _mm512_permutexvar_epi32(by_32 ? by_group : by_line, _mm512_loadu_si512(codes));
    x = _mm512_permutexvar_epi32(join, _mm512_shuffle_epi8(x, turn));
    for (int b = 0; b < a_bits; b++)
        out[b] = _mm512_test_epi8_mask(x, _mm512_set1_epi8((char)(1 << b)));
}

/* Dword u of 16 rows in the plane whose two lines begin at p. */
LANES_INLINE __m512i plane_words(const uint8_t *p, bool by_32, int u) {
    if (!by_32)
        return _mm512_loadu_si512(p + u * TILE_LINE);
    const __m512i low = _mm512_set1_epi8(0x0f), a = _mm512_loadu_si512(p),
                  b = _mm512_loadu_si512(p + TILE_LINE);
    /* the bits of the first operand where the mask has ones, otherwise those of the second */
    return u ? _mm512_ternarylogic_epi32(low, _mm512_srli_epi32(a, 4), b, 0xca)
             : _mm512_ternarylogic_epi32(low, a, _mm512_slli_epi32(b, 4), 0xca);
}

LANES_INLINE __m512 broadcast_float(const char *p) {
    return _mm512_set1_ps(*(const float *)(const void *)p);
}

typedef struct group_scales {
    __m512 scale, min;
} group_scales;

/* The scales of a group at `at`; shared: the address of the chunk's own scales (SUPER). */
LANES_INLINE group_scales scales_at(const pack_format *f, const uint8_t *at, const uint8_t *shared) {
    __m512 d = _mm512_setzero_ps(), d_min = d;
    if (f->scale == PACK_SCALE_SUPER) {
        d = tile_halves(shared);
        d_min = f->asym ? tile_halves(shared + 2 * PACK_PANEL) : d;
    }
    return (group_scales){tile_scale(at, f->scale, d), f->asym ? tile_min(at, f->scale, d_min) : d};
}

/* Joins the sums of one group, scales them and adds them to y. */
LANES_INLINE __m512 end_group(const bit_job *j, int n_sum, const __m512i *sum, const group_scales *s,
                              const char *x, int64_t g, __m512 y) {
    const pack_format *f = &j->a->w->format;
    __m512i dot = sum[n_sum - 1];
    LANES_UNROLL
    for (int i = n_sum - 2; i >= 0; i--)
        dot = _mm512_add_epi32(_mm512_add_epi32(dot, dot), sum[i]);
    const __m512 both = _mm512_mul_ps(s->scale, broadcast_float(x + j->l.scale + 4 * g));
    if (f->asym) {
        y = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), both, y);
        return _mm512_fmadd_ps(s->min, broadcast_float(x + j->l.lift + 4 * g), y);
    }
    const int32_t minus = *(const int32_t *)(const void *)(x + j->l.minus + 4 * g);
    dot = _mm512_add_epi32(dot, _mm512_set1_epi32(minus * tile_zero(f)));
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), both, y);
}

LANES_INLINE __mmask16 rows_of(const view *w, int64_t panel) {
    const int64_t left = w->n - panel * PACK_PANEL;
    return left >= PACK_PANEL ? 0xffff : (__mmask16)((1u << left) - 1);
}

/* Multiplies np panels with nt rows from m on; bits, a_bits, np and nt are constants. */
LANES_INLINE void multiply(int bits, int a_bits, int np, int nt, const bit_job *j, const int64_t *at,
                           int64_t m) {
    const linear_args *a = j->a;
    const view *w = a->w;
    const pack_format *f = &w->format;
    const int64_t panel_bytes = tile_panel_bytes(f, w->k), group = tile_group(f, w->k),
                  tile_bytes = 128 * bits;
    const int n_sum = bits + a_bits - 1;
    const uint8_t *panel[2];
    const char *x[2];
    __m512i sum[2][2][MAX_SUMS];
    __m512 y[2][2];
    LANES_UNROLL
    for (int t = 0; t < nt; t++)
        x[t] = (const char *)a->q.data + (m + t) * j->l.bytes;
    LANES_UNROLL
    for (int p = 0; p < np; p++) {
        panel[p] = (const uint8_t *)w->data + at[p] * panel_bytes;
        LANES_UNROLL
        for (int t = 0; t < nt; t++) {
            const float *out = a->y + (m + t) * a->ldy + at[p] * PACK_PANEL;
            y[p][t] = j->tile0 ? _mm512_maskz_loadu_ps(rows_of(w, at[p]), out) : _mm512_setzero_ps();
            LANES_UNROLL
            for (int i = 0; i < n_sum; i++)
                sum[p][t][i] = _mm512_setzero_si512();
        }
    }
    const bool by_32 = j->by_32, by_row = f->group == PACK_GROUP_ROW;
    const int64_t chunk_bytes = tile_chunk_bytes(f, TILE_CHUNK), n_tile = tile_count(w->k);
    const int64_t per_group = group / TILE_K, step = tile_scale_step(f), start = tile_scale_start(f);
    const int64_t in_chunk =
        by_row ? 0 : TILE_CHUNK_K / group - 1; /* masks the number of a group to its number in the chunk */
    const int64_t tail = tile_tail_at(f, w->k);
    int64_t g = j->tile0 * TILE_K / group, left = NUM_MIN(per_group, n_tile - j->tile0);
    for (int64_t tile = j->tile0; tile < j->tile1; tile++) {
        const int64_t place = tile / TILE_CHUNK * chunk_bytes + tile % TILE_CHUNK * tile_bytes;
        const uint64_t *bit[2];
        LANES_UNROLL
        for (int t = 0; t < nt; t++)
            bit[t] = planes_at(j, m + t, tile);
        LANES_UNROLL
        for (int p = 0; p < np; p++)
            for (int line = 0; line < 2 * bits; line++)
                _mm_prefetch((const char *)panel[p] + place + AHEAD + line * TILE_LINE, _MM_HINT_T0);
        for (int u = 0; u < 2; u++) {
            LANES_UNROLL
            for (int i = 0; i < bits; i++) {
                LANES_UNROLL
                for (int p = 0; p < np; p++) {
                    const __m512i words =
                        plane_words(panel[p] + place + (bits - 1 - i) * 2 * TILE_LINE, by_32, u);
                    LANES_UNROLL
                    for (int t = 0; t < nt; t++) {
                        LANES_UNROLL
                        for (int b = 0; b < a_bits; b++) {
                            const int32_t *one = (const int32_t *)(const void *)(bit[t] + b) + u;
                            const __m512i n =
                                _mm512_popcnt_epi32(_mm512_and_si512(words, _mm512_set1_epi32(*one)));
                            sum[p][t][i + b] = b == a_bits - 1 ? _mm512_sub_epi32(sum[p][t][i + b], n)
                                                               : _mm512_add_epi32(sum[p][t][i + b], n);
                        }
                    }
                }
            }
            if (!by_32 && (u == 0 || --left > 0))
                continue;
            const int64_t chunk = tile / TILE_CHUNK * chunk_bytes;
            const int64_t codes = NUM_MIN(n_tile - tile / TILE_CHUNK * TILE_CHUNK, TILE_CHUNK) * tile_bytes;
            const int64_t shared = by_row ? tail : chunk + codes,
                          own = shared + start + (g & in_chunk) * step;
            LANES_UNROLL
            for (int p = 0; p < np; p++) {
                const group_scales s = scales_at(f, panel[p] + own, panel[p] + shared);
                LANES_UNROLL
                for (int t = 0; t < nt; t++) {
                    y[p][t] = end_group(j, n_sum, sum[p][t], &s, x[t], g, y[p][t]);
                    LANES_UNROLL
                    for (int i = 0; i < n_sum; i++)
                        sum[p][t][i] = _mm512_setzero_si512();
                }
            }
            g++;
            left = NUM_MIN(per_group, n_tile - tile - 1);
        }
    }
    LANES_UNROLL
    for (int p = 0; p < np; p++) {
        const __mmask16 mask = rows_of(w, at[p]);
        const bool biased = a->bias && j->tile1 == tile_count(w->k);
        LANES_UNROLL
        for (int t = 0; t < nt; t++) {
            if (biased)
                y[p][t] = _mm512_add_ps(y[p][t], _mm512_maskz_loadu_ps(mask, a->bias + at[p] * PACK_PANEL));
            _mm512_mask_storeu_ps(a->y + (m + t) * a->ldy + at[p] * PACK_PANEL, mask, y[p][t]);
        }
    }
}

typedef void (*multiply_fn)(const bit_job *j, const int64_t *at, int64_t m);
#define DEFINE(bits, a_bits, np, nt)                                                                         \
    static void multiply_##bits##_##a_bits##_##np##_##nt(const bit_job *j, const int64_t *at, int64_t m) {   \
        multiply(bits, a_bits, np, nt, j, at, m);                                                            \
    }
#define NARROW(bits)                                                                                         \
    DEFINE(bits, 4, 1, 1)                                                                                    \
    DEFINE(bits, 4, 1, 2)                                                                                    \
    DEFINE(bits, 4, 2, 1) DEFINE(bits, 8, 1, 1) DEFINE(bits, 8, 1, 2) DEFINE(bits, 8, 2, 1)
#define WIDE(bits) DEFINE(bits, 4, 1, 1) DEFINE(bits, 8, 1, 1)
NARROW(2)
NARROW(3)
NARROW(4)
WIDE(5)
WIDE(6)
WIDE(7)
WIDE(8)

typedef struct kernels {
    multiply_fn one, two_rows, two_panels; /* NULL: there are no registers for two */
} kernels;
#define ROW_NARROW(bits, a)                                                                                  \
    { multiply_##bits##_##a##_1_1, multiply_##bits##_##a##_1_2, multiply_##bits##_##a##_2_1 }
#define ROW_WIDE(bits, a)                                                                                    \
    { multiply_##bits##_##a##_1_1, NULL, NULL }
/* [activations of 8 bits][bits - 2] */
static const kernels all[2][7] = {
    {ROW_NARROW(2, 4), ROW_NARROW(3, 4), ROW_NARROW(4, 4), ROW_WIDE(5, 4), ROW_WIDE(6, 4), ROW_WIDE(7, 4),
     ROW_WIDE(8, 4)},
    {ROW_NARROW(2, 8), ROW_NARROW(3, 8), ROW_NARROW(4, 8), ROW_WIDE(5, 8), ROW_WIDE(6, 8), ROW_WIDE(7, 8),
     ROW_WIDE(8, 8)},
};

static void panels(const bit_job *j, const int64_t *panel, int np) {
    const kernels *k = &all[j->a_bits == 8][j->a->w->format.bits - 2];
    if (j->m1 - j->m0 == 1 && np == 2 && k->two_panels) {
        k->two_panels(j, panel, j->m0);
        return;
    }
    for (int p = 0; p < np; p++)
        for (int64_t m = j->m0; m < j->m1;) {
            const bool two = k->two_rows && j->m1 - m >= 2;
            (two ? k->two_rows : k->one)(j, panel + p, m);
            m += two ? 2 : 1;
        }
}

static bool can(const pack_format *f, int64_t n_row) {
    (void)n_row;
    return f->packing == PACK_PLANES && f->group >= 32 && f->table == PACK_TABLE_NONE &&
           f->scale != PACK_SCALE_TWO && f->scale != PACK_SCALE_ZERO;
}

/* Computes rows [n0, n1) of the weights. It cuts the activation rows and K so that the planes of a part fit
 * the scratch; sums are in y between two spans of K. */
static void run(const linear_args *a, int64_t n0, int64_t n1) {
    const view *w = a->w;
    uint64_t *planes = a->scratch;
    bit_job j = {.a = a,
                 .l = act_layout_of(a->q.format, w->k),
                 .planes = planes,
                 .a_bits = a->q.format.bits,
                 .by_32 = w->format.group == 32};
    const int64_t n_tile = tile_count(w->k), fit = SCRATCH / 8 / j.a_bits;
    const int64_t rows = NUM_MAX(1, NUM_MIN(ROWS, fit / n_tile));
    const int64_t span = n_tile <= fit / rows ? n_tile : fit / TILE_CHUNK * TILE_CHUNK;
    for (j.m0 = 0; j.m0 < a->n_row; j.m0 = j.m1) {
        j.m1 = NUM_MIN(a->n_row, j.m0 + rows);
        for (j.tile0 = 0; j.tile0 < n_tile; j.tile0 = j.tile1) {
            j.tile1 = NUM_MIN(n_tile, j.tile0 + span);
            for (int64_t m = j.m0; m < j.m1; m++)
                for (int64_t t = j.tile0; t < j.tile1; t++)
                    build((const int8_t *)a->q.data + m * j.l.bytes + t * TILE_K, j.by_32, j.a_bits,
                          planes + (planes_at(&j, m, t) - planes));
            const int64_t p0 = n0 / PACK_PANEL, p1 = num_div_up(n1, PACK_PANEL), half = (p1 - p0) / 2;
            for (int64_t p = p0; p < p0 + half; p++)
                panels(&j, (const int64_t[]){p, p + half}, 2);
            if ((p1 - p0) % 2)
                panels(&j, (const int64_t[]){p1 - 1}, 1);
        }
    }
}

const strategy avx512pop_bitwise = {
    .name = "bitwise", .can = can, .run = run, .rule_from = 1, .rule_rows = 32, .scratch = SCRATCH};
