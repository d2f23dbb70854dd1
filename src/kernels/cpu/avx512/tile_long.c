/* tile_long.c - up to 16 activation rows, 4 at a time, with weights in groups of 64, 128 or the whole row: as
 * tile_direct.c, but integers are summed over several tiles, in 4 chains for each output vector (one product
 * waits for the one before it in its chain), and scaled once at a group's end. */
#include "kernels/cpu/avx512/tile_kernels.h"

#include "base/num.h"
#include "kernels/cpu/avx512/tile.h"

enum { AHEAD = 4096, AT_ONCE = 4, LONG_ROWS = 16 };

/* What the sums of a group are worth, added to y. x: the row; g: the group; scales: where its own begin. */
LANES_INLINE __m512 end_group(const tile_job *job, const __m512i *acc, int chains, const uint8_t *scales,
                              const char *x, int64_t g, __m512 y) {
    const pack_format *f = &job->a->w->format;
    __m512i dot = acc[0];
    LANES_UNROLL
    for (int i = 1; i < chains; i++)
        dot = _mm512_add_epi32(dot, acc[i]);
    const __m512 both = _mm512_mul_ps(tile_halves(scales), tile_float(x + job->scale + 4 * g));
    if (f->asym) {
        y = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), both, y);
        return _mm512_fmadd_ps(tile_halves(scales + 2 * PACK_PANEL), tile_float(x + job->lift + 4 * g), y);
    }
    dot = _mm512_add_epi32(dot, tile_start(job, x + job->minus + 4 * g));
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), both, y);
}

/* np panels and nt rows from m on; bits, np and nt are constants. */
LANES_INLINE void long_panels(int bits, int np, int nt, const tile_job *job, const int64_t *panel,
                              int64_t m) {
    const linear_args *a = job->a;
    const pack_format *f = &a->w->format;
    const int64_t n_tile = tile_count(a->w->k), tile_bytes = 128 * bits, group = tile_group(f, a->w->k);
    const int64_t per_group = job->group_tiles, tail = job->tail;
    const int chains = nt == 1 ? 4 : nt == 2 ? 2 : 1;
    const uint8_t *base[2], *at[2];
    const char *x[AT_ONCE];
    __m512 y[2][AT_ONCE];
    __m512i acc[2][AT_ONCE][4];
    LANES_UNROLL
    for (int t = 0; t < nt; t++)
        x[t] = (const char *)a->q.data + (m + t) * job->layout.bytes;
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
        const int64_t place = chunk * job->chunk_bytes + in_chunk * tile_bytes;
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
            tile_store(job, panel[p], m + t, y[p][t]);
    }
}

typedef void (*long_fn)(const tile_job *job, const int64_t *panel, int64_t m);
#define DEFINE(bits, np, nt)                                                                                 \
    static void long_##bits##_##np##_##nt(const tile_job *job, const int64_t *panel, int64_t m) {            \
        long_panels(bits, np, nt, job, panel, m);                                                            \
    }
#define EACH(X, bits, np) X(bits, np, 1) X(bits, np, 2) X(bits, np, 3) X(bits, np, 4)
#define BITS(X, np)                                                                                          \
    EACH(X, 2, np) EACH(X, 3, np) EACH(X, 4, np) EACH(X, 5, np) EACH(X, 6, np) EACH(X, 7, np) EACH(X, 8, np)
BITS(DEFINE, 1)
BITS(DEFINE, 2)
#define NAME(bits, np, nt) [np - 1][bits][nt - 1] = long_##bits##_##np##_##nt,
static const long_fn longs[2][9][AT_ONCE] = {BITS(NAME, 1) BITS(NAME, 2)};

/* All rows with the same panels. */
static void long_rows(const tile_job *job, int np, const int64_t *panel) {
    const int n = (int)job->a->n_row, n_turn = num_div_up(n, AT_ONCE);
    for (int turn = 0, m = 0; turn < n_turn; turn++) {
        const int rows = num_div_up(n - m, n_turn - turn);
        longs[np - 1][job->a->w->format.bits][rows - 1](job, panel, m);
        m += rows;
    }
}

static bool can(const pack_format *f, int64_t n_row) {
    return n_row <= LONG_ROWS && f->layout == PACK_TILE && f->flavour == PACK_PARTS && f->group >= TILE_K &&
           f->scale == PACK_SCALE_F16;
}

/* The first half of the panels beside the second, then the odd one. */
static void run(const linear_args *a, int64_t n0, int64_t n1) {
    const tile_job job = tile_job_of(a);
    const int64_t p0 = n0 / PACK_PANEL, p1 = num_div_up(n1, PACK_PANEL), half = (p1 - p0) / 2;
    for (int64_t i = 0; i < half; i++)
        long_rows(&job, 2, (const int64_t[]){p0 + i, p0 + half + i});
    if ((p1 - p0) % 2)
        long_rows(&job, 1, (const int64_t[]){p1 - 1});
}

const strategy avx512_long = {
    .name = "padding.long", .can = can, .run = run, .rule_from = 1, .rule_rows = LONG_ROWS};
