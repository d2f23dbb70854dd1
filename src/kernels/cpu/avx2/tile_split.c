/* tile_split.c - Split (kernels/dpr.h): weights of 8 bits as two halves of 4.
 *
 * vpmaddubsw multiplies weights of up to 7 bits exactly, so Padding makes 8-bit codes signed, moves their
 * signs to the activations, and adds in 32 bits after every quad (dot.h). Halves of 4 bits need two products
 * but no signs, and sums of 8 quads of them fit 16 bits. The sum of the upper halves is shifted left by 4 at
 * the end. The sums are the same integers, and floats are added in the same order, so the bits are those of
 * every other strategy. */
#include "kernels/cpu/avx2/tile.h"

#include "kernels/cpu/avx2/avx2.h"

enum { SPLIT_QUADS = 8, /* 2 * 15 * 127 * 8 < 2^15 */ SPLIT_ROWS = 4, TILE_QUADS = TILE_K / 4 };

/* Hides a sum from the compiler (dot_opaque in dot.h). */
LANES_INLINE __m256i split_kept(__m256i sum) {
    __asm__("" : "+x"(sum));
    return sum;
}

/* acc[t][half] += the dot products of SPLIT_QUADS quads from quad q0 on with nt rows. */
LANES_INLINE void split_quads(const uint8_t *tile, int q0, int nt, const char *x, int64_t x_bytes,
                              __m256i (*acc)[2]) {
    const __m256i nibble = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
    LANES_UNROLL
    for (int half = 0; half < 2; half++) {
        __m256i low[SPLIT_ROWS], high[SPLIT_ROWS];
        LANES_UNROLL
        for (int t = 0; t < nt; t++)
            low[t] = high[t] = _mm256_setzero_si256();
        LANES_UNROLL
        for (int q = q0; q < q0 + SPLIT_QUADS; q++) {
            const __m256i w = tile_half(tile, 8, q, half);
            const __m256i w0 = _mm256_and_si256(w, nibble);
            const __m256i w1 = _mm256_and_si256(_mm256_srli_epi16(w, 4), nibble);
            LANES_UNROLL
            for (int t = 0; t < nt; t++) {
                const __m256i xs = broadcast_int(x + t * x_bytes + 4 * q);
                low[t] = split_kept(_mm256_add_epi16(low[t], _mm256_maddubs_epi16(w0, xs)));
                high[t] = split_kept(_mm256_add_epi16(high[t], _mm256_maddubs_epi16(w1, xs)));
            }
        }
        LANES_UNROLL
        for (int t = 0; t < nt; t++) {
            const __m256i up = _mm256_slli_epi32(_mm256_madd_epi16(high[t], ones), 4);
            acc[t][half] =
                _mm256_add_epi32(acc[t][half], _mm256_add_epi32(_mm256_madd_epi16(low[t], ones), up));
        }
    }
}

/* Scales a group's integers and adds them to y. group counts from the start of K. */
LANES_INLINE void split_scale(bool asym, int nt, const tile_job *job, const uint8_t *scales, const char *x,
                              int64_t group, __m256i (*acc)[2], vf *y) {
    const vf s = tile_scale(scales, PACK_SCALE_F16, NULL);
    LANES_UNROLL
    for (int t = 0; t < nt; t++) {
        const char *row = x + t * job->x_bytes;
        if (!asym)
            tile_correct(false, job, row + job->minus + 4 * group, acc[t]);
        const __m256 xs = broadcast_float(row + job->scale + 4 * group);
        y[t].a = _mm256_fmadd_ps(_mm256_cvtepi32_ps(acc[t][0]), _mm256_mul_ps(s.a, xs), y[t].a);
        y[t].b = _mm256_fmadd_ps(_mm256_cvtepi32_ps(acc[t][1]), _mm256_mul_ps(s.b, xs), y[t].b);
        if (asym) {
            const vf m = tile_min(scales, PACK_SCALE_F16, NULL);
            const __m256 lift = broadcast_float(row + job->lift + 4 * group);
            y[t] = v_fma(m, BOTH(lift, lift), y[t]);
        }
        acc[t][0] = acc[t][1] = _mm256_setzero_si256();
    }
}

/* Multiplies a panel with nt rows from row m on. quads: number of quads after which a group may end, those of
 * a tile or of half a tile. */
LANES_INLINE void split_panel(bool asym, int quads, int nt, const tile_job *job, int64_t panel, int64_t m) {
    const view *w = job->a->w;
    const pack_format *f = &w->format;
    const int64_t n_tile = tile_count(w->k), group = tile_group(f, w->k), step = tile_scale_step(f);
    const uint8_t *data = (const uint8_t *)w->data + panel * job->panel_bytes;
    const char *x = (const char *)job->a->q.data + m * job->x_bytes;
    __m256i acc[SPLIT_ROWS][2];
    vf y[SPLIT_ROWS];
    LANES_UNROLL
    for (int t = 0; t < nt; t++) {
        y[t] = v_zero();
        acc[t][0] = acc[t][1] = _mm256_setzero_si256();
    }
    for (int64_t tile0 = 0; tile0 < n_tile; tile0 += TILE_CHUNK) {
        const tile_chunk c = tile_chunk_at(f, data, w->k, tile0 / TILE_CHUNK);
        const uint8_t *scales = c.scales;
        for (int64_t i = 0; i < c.n_tile; i++) {
            const uint8_t *codes = c.codes + i * TILE_K * PACK_PANEL;
            LANES_UNROLL
            for (int q = 0; q < TILE_QUADS; q += SPLIT_QUADS) {
                const int64_t end = (tile0 + i) * TILE_K + 4 * (q + SPLIT_QUADS);
                LANES_UNROLL
                for (int line = q; line < q + SPLIT_QUADS; line++)
                    tile_ahead(codes + job->ahead, 8, line);
                split_quads(codes, q, nt, x + (tile0 + i) * TILE_K, job->x_bytes, acc);
                if ((q + SPLIT_QUADS) % quads || (end % group && end < n_tile * TILE_K))
                    continue;
                split_scale(asym, nt, job, scales, x, (end - 1) / group, acc, y);
                scales += step;
            }
        }
    }
    LANES_UNROLL
    for (int t = 0; t < nt; t++)
        tile_finish(job, panel, m + t, y[t]);
}

#define SPLIT_DEFINE(name, asym, quads)                                                                      \
    static void name##_1(const tile_job *job, int64_t panel, int64_t m) {                                    \
        split_panel(asym, quads, 1, job, panel, m);                                                          \
    }                                                                                                        \
    static void name##_4(const tile_job *job, int64_t panel, int64_t m) {                                    \
        split_panel(asym, quads, SPLIT_ROWS, job, panel, m);                                                 \
    }
SPLIT_DEFINE(short_0, false, SPLIT_QUADS)
SPLIT_DEFINE(short_1, true, SPLIT_QUADS)
SPLIT_DEFINE(long_0, false, TILE_QUADS)
SPLIT_DEFINE(long_1, true, TILE_QUADS)

typedef void (*split_fn)(const tile_job *job, int64_t panel, int64_t m);

/* [long groups][asym][many rows] */
static const split_fn split_kernels[2][2][2] = {{{short_0_1, short_0_4}, {short_1_1, short_1_4}},
                                                {{long_0_1, long_0_4}, {long_1_1, long_1_4}}};

static bool can(const pack_format *f, int64_t n_row) {
    (void)n_row;
    return f->layout == PACK_TILE && f->packing == PACK_PARTS && f->bits == 8 &&
           f->table == PACK_TABLE_NONE && f->scale == PACK_SCALE_F16 && f->group >= 4 * SPLIT_QUADS;
}

/* Multiplies panel after panel with all rows, so that a panel is read from memory once. */
static void run(const linear_args *a, int64_t n0, int64_t n1) {
    const pack_format *f = &a->w->format;
    const tile_job job = tile_job_of(a, f->asym ? 32 : f->bits - 1);
    const split_fn *fn = split_kernels[f->group > 4 * SPLIT_QUADS][f->asym != 0];
    for (int64_t panel = n0 / PACK_PANEL; panel < num_div_up(n1, PACK_PANEL); panel++)
        for (int64_t m = 0; m < a->n_row;) {
            const bool many = a->n_row - m >= SPLIT_ROWS;
            fn[many](&job, panel, m);
            m += many ? SPLIT_ROWS : 1;
        }
}

/* The rule never takes it; the map does where it was measured to be faster. */
const strategy avx2_split = {.name = "split", .can = can, .run = run};
