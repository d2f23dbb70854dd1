/* tile_long.c - up to 4 activation rows with weights in groups of 64, 128 or the whole row: as tile_direct.c,
 * but integers are summed over several tiles, in 4 chains for each output vector (one product waits for the
 * one before it in its chain), and scaled once at a group's end. */
#include "kernels/cpu/avx512/tile_kernels.h"

#include "base/num.h"
#include "kernels/cpu/avx512/tile.h"

enum { AHEAD = 4096, LONG_ROWS = 4 };

LANES_INLINE __m512 broadcast_float(const char *p) {
    return _mm512_set1_ps(*(const float *)(const void *)p);
}

/* What the sums of a group are worth, added to y. x: the row; g: the group; scales: where its own begin. */
LANES_INLINE __m512 end_group(const tile_job *job, const __m512i *acc, int chains, const uint8_t *scales,
                              const char *x, int64_t g, __m512 y) {
    const pack_format *f = &job->a->w->format;
    const act8_layout *l = &job->layout;
    __m512i dot = acc[0];
    LANES_UNROLL
    for (int i = 1; i < chains; i++)
        dot = _mm512_add_epi32(dot, acc[i]);
    const __m512 both = _mm512_mul_ps(tile_halves(scales), broadcast_float(x + l->scale + 4 * g));
    if (f->asym) {
        y = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), both, y);
        return _mm512_fmadd_ps(tile_halves(scales + 2 * PACK_PANEL), broadcast_float(x + l->lift + 4 * g), y);
    }
    const int32_t minus = *(const int32_t *)(const void *)(x + l->minus + 4 * g);
    dot = _mm512_add_epi32(dot, _mm512_set1_epi32(tile_zero(f) * minus));
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), both, y);
}

/* np panels and nt rows; bits, np and nt are constants. */
LANES_INLINE void long_panels(int bits, int np, int nt, const tile_job *job, const int64_t *panel) {
    const linear_args *a = job->a;
    const pack_format *f = &a->w->format;
    const int64_t n_tile = tile_count(a->w->k), tile_bytes = 128 * bits, group = tile_group(f, a->w->k);
    const int64_t per_group = group / TILE_K, tail = tile_tail_at(f, a->w->k);
    const int chains = nt == 1 ? 4 : nt == 2 ? 2 : 1;
    const uint8_t *base[2], *at[2];
    const char *x[LONG_ROWS];
    __m512 y[2][LONG_ROWS];
    __m512i acc[2][LONG_ROWS][4];
    LANES_UNROLL
    for (int t = 0; t < nt; t++)
        x[t] = (const char *)a->q.data + t * job->layout.bytes;
    LANES_UNROLL
    for (int p = 0; p < np; p++) {
        base[p] = (const uint8_t *)a->w->data + panel[p] * job->panel_bytes;
        LANES_UNROLL
        for (int t = 0; t < nt; t++) {
            y[p][t] = _mm512_setzero_ps();
            LANES_UNROLL
            for (int i = 0; i < chains; i++)
                acc[p][t][i] = _mm512_setzero_si512();
        }
    }
    int64_t left = NUM_MIN(per_group, n_tile);
    for (int64_t tile = 0; tile < n_tile; tile++) {
        const int64_t chunk = tile / TILE_CHUNK, in_chunk = tile % TILE_CHUNK;
        const int64_t place = chunk * tile_chunk_bytes(f, TILE_CHUNK) + in_chunk * tile_bytes;
        LANES_UNROLL
        for (int p = 0; p < np; p++) {
            at[p] = base[p] + place;
            LANES_UNROLL
            for (int line = 0; line < 2 * bits; line++)
                _mm_prefetch((const char *)at[p] + AHEAD + line * TILE_LINE, _MM_HINT_T0);
        }
        LANES_UNROLL
        for (int q = 0; q < TILE_K / 4; q++) {
            LANES_UNROLL
            for (int p = 0; p < np; p++) {
                const __m512i w = tile_line(at[p], bits, _mm512_setzero_si512(), false, q);
                LANES_UNROLL
                for (int t = 0; t < nt; t++) {
                    const int32_t quad = *(const int32_t *)(const void *)(x[t] + tile * TILE_K + 4 * q);
                    acc[p][t][q % chains] =
                        _mm512_dpbusd_epi32(acc[p][t][q % chains], w, _mm512_set1_epi32(quad));
                }
            }
        }
        if (--left > 0)
            continue;
        const int64_t g = tile / per_group, n_in_chunk = NUM_MIN(n_tile - chunk * TILE_CHUNK, TILE_CHUNK);
        LANES_UNROLL
        for (int p = 0; p < np; p++) {
            const uint8_t *scales = f->group == PACK_GROUP_ROW
                                        ? base[p] + tail
                                        : at[p] + (n_in_chunk - in_chunk) * tile_bytes +
                                              g * group % TILE_CHUNK_K / group * tile_scale_step(f);
            LANES_UNROLL
            for (int t = 0; t < nt; t++) {
                y[p][t] = end_group(job, acc[p][t], chains, scales, x[t], g, y[p][t]);
                LANES_UNROLL
                for (int i = 0; i < chains; i++)
                    acc[p][t][i] = _mm512_setzero_si512();
            }
        }
        left = NUM_MIN(per_group, n_tile - tile - 1);
    }
    LANES_UNROLL
    for (int p = 0; p < np; p++) {
        LANES_UNROLL
        for (int t = 0; t < nt; t++)
            tile_store(job, panel[p], t, y[p][t]);
    }
}

/* Panels [p0, p1): the first half beside the second, then the odd one. */
LANES_INLINE void long_rows(int bits, int nt, const tile_job *job, int64_t p0, int64_t p1) {
    const int64_t half = (p1 - p0) / 2;
    for (int64_t i = 0; i < half; i++)
        long_panels(bits, 2, nt, job, (const int64_t[]){p0 + i, p0 + half + i});
    if ((p1 - p0) % 2)
        long_panels(bits, 1, nt, job, (const int64_t[]){p1 - 1});
}

typedef void (*long_fn)(const tile_job *job, int64_t p0, int64_t p1);
#define DEFINE(bits, nt)                                                                                     \
    static void long_##bits##_##nt(const tile_job *job, int64_t p0, int64_t p1) {                            \
        long_rows(bits, nt, job, p0, p1);                                                                    \
    }
#define EACH(X, bits) X(bits, 1) X(bits, 2) X(bits, 3) X(bits, 4)
EACH(DEFINE, 2)
EACH(DEFINE, 3)
EACH(DEFINE, 4) EACH(DEFINE, 5) EACH(DEFINE, 6) EACH(DEFINE, 7) EACH(DEFINE, 8)
#define NAME(bits, nt) long_##bits##_##nt,
    static const long_fn longs[7][LONG_ROWS] = {{EACH(NAME, 2)}, {EACH(NAME, 3)}, {EACH(NAME, 4)},
                                                {EACH(NAME, 5)}, {EACH(NAME, 6)}, {EACH(NAME, 7)},
                                                {EACH(NAME, 8)}};

static bool can(const pack_format *f, int64_t n_row) {
    return n_row <= LONG_ROWS && f->layout == PACK_TILE && f->flavour == PACK_PARTS && f->group >= TILE_K &&
           f->scale == PACK_SCALE_F16;
}

static void run(const linear_args *a, int64_t n0, int64_t n1) {
    tile_job job = tile_job_of(a);
    job.layout = act_layout_of(a->q.format, a->w->k);
    longs[a->w->format.bits - 2][a->n_row - 1](&job, n0 / PACK_PANEL, num_div_up(n1, PACK_PANEL));
}

const strategy avx512_long = {
    .name = "padding.long", .can = can, .run = run, .rule_from = 1, .rule_rows = LONG_ROWS};
