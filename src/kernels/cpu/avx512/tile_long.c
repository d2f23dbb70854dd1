/* tile_long.c - products of up to 16 activation rows, 4 at a time, with weights in groups of 64, 128 or the
 * whole row. Like tile_direct.c, but integers are summed over several tiles and scaled once at a group's end.
 * Each output vector has several chains of sums, because a product waits for the one before it in its chain.
 * With one row and few bits, the fields of a line are not shifted. Each field has its own chain, which is 4,
 * 16, ... times too large and is shifted once, at the group's end. */
#include "kernels/cpu/avx512/tile_kernels.h"

#include "base/num.h"
#include "kernels/cpu/avx512/tile.h"

enum { AT_ONCE = 4, LONG_ROWS = 16 };

/* By how many bits the sum of chain i is too large. */
LANES_INLINE int chain_shift(int bits, int chains, int i) {
    return chains < 4 ? 0 : bits == 2 ? 2 * i : bits == 3 ? (i & 1) + i / 2 * 4 : bits == 4 ? i / 2 * 4 : 0;
}

LANES_INLINE __m512i line_at(const uint8_t *tile, int line) {
    return _mm512_loadu_si512(tile + line * TILE_LINE);
}
LANES_INLINE __m512i line_mask(__m512i line, int mask) {
    return _mm512_and_si512(line, _mm512_set1_epi8((char)mask));
}
/* The bits of a where the mask has ones, otherwise those of b. */
LANES_INLINE __m512i line_select(int mask, __m512i a, __m512i b) {
    return _mm512_ternarylogic_epi32(_mm512_set1_epi8((char)mask), a, b, 0xCA);
}
LANES_INLINE __m512i line_dot(__m512i acc, __m512i codes, const char *x, int q) {
    return _mm512_dpbusd_epi32(acc, codes, tile_int(x + 4 * q));
}

/* Multiplies a tile of 2 or 3 bits with one row in four chains, one for each of the four fields of a line.
 * With 3 bits the lowest bit is in another line than the upper two. Two fields that are 4 bits apart are
 * joined at once. */
LANES_INLINE void tile_one_few(int bits, const uint8_t *tile, const uint8_t *next, const char *x,
                               __m512i acc[4]) {
    LANES_UNROLL
    for (int l = 0; l < 4; l++) {
        const __m512i v = line_at(tile, l);
        __m512i field[2] = {v, v};
        if (bits == 3) {
            const __m512i low = line_at(tile, 4 + l % 2);
            field[0] = line_select(0x66, _mm512_slli_epi32(v, 1), l / 2 ? _mm512_srli_epi32(low, 1) : low);
            field[1] = line_select(0xcc, v, _mm512_srli_epi32(low, 1 + (unsigned)l / 2));
        }
        LANES_UNROLL
        for (int i = 0; i < 4; i++) {
            const int mask = (bits == 2 ? 3 : 7) << chain_shift(bits, 4, i);
            tile_ahead(next, bits, 4 * l + i);
            acc[i] = line_dot(acc[i], line_mask(field[i % 2], mask), x, l + 4 * i);
        }
    }
}
/* Prefetches the tile at `next`. */
LANES_INLINE void tile_one(int bits, const uint8_t *tile, const uint8_t *next, const char *x,
                           __m512i acc[4]) {
    if (bits <= 3) {
        tile_one_few(bits, tile, next, x, acc);
        return;
    }
    LANES_UNROLL
    for (int q = 0; q < TILE_K / 4; q++) {
        const __m512i w = bits == 4 ? line_mask(line_at(tile, q % 8), q < 8 ? 15 : 0xf0)
                                    : tile_line(tile, bits, _mm512_setzero_si512(), false, q);
        tile_ahead(next, bits, q);
        const int chain = bits == 4 ? q / 8 * 2 + q % 2 : q % 4;
        acc[chain] = line_dot(acc[chain], w, x, q);
    }
}

/* Multiplies a tile of np panels with nt rows, in `chains` chains for each. An activation is loaded once for
 * both panels. ahead: distance of prefetches. */
LANES_INLINE void tile_rows(int bits, int np, int nt, int chains, const uint8_t *const *tile, int64_t ahead,
                            const char *const *x, int64_t at, __m512i acc[2][AT_ONCE][4]) {
    LANES_UNROLL
    for (int q = 0; q < TILE_K / 4; q++) {
        LANES_UNROLL
        for (int p = 0; p < np; p++) {
            const __m512i w = tile_line(tile[p], bits, _mm512_setzero_si512(), false, q);
            tile_ahead(tile[p] + ahead, bits, q);
            LANES_UNROLL
            for (int t = 0; t < nt; t++)
                acc[p][t][q % chains] = line_dot(acc[p][t][q % chains], w, x[t] + at, q);
        }
    }
}

/* Scales the sums of a group and adds them to y. x: the activations' row; g: the group; scales: the group's
 * scales. */
LANES_INLINE __m512 end_group(const tile_job *job, int bits, int chains, const __m512i *acc,
                              const uint8_t *scales, const char *x, int64_t g, __m512 y) {
    const pack_format *f = &job->a->w->format;
    __m512i dot = acc[0];
    LANES_UNROLL
    for (int i = 1; i < chains; i++)
        dot = _mm512_add_epi32(dot, _mm512_srai_epi32(acc[i], (unsigned)chain_shift(bits, chains, i)));
    const __m512 both = _mm512_mul_ps(tile_halves(scales), tile_float(x + job->scale + 4 * g));
    if (f->asym) {
        y = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), both, y);
        const __m512 min = tile_min(scales, f->scale, _mm512_setzero_ps());
        return _mm512_fmadd_ps(min, tile_float(x + job->lift + 4 * g), y);
    }
    dot = _mm512_add_epi32(dot, tile_start(job, x + job->minus + 4 * g));
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), both, y);
}

/* Multiplies np panels with nt rows from m on; bits, np and nt are constants. With one row, np is 1. */
LANES_INLINE void long_panels(int bits, int np, int nt, const tile_job *job, const int64_t *panel,
                              int64_t m) {
    const linear_args *a = job->a;
    const pack_format *f = &a->w->format;
    const int64_t n_tile = tile_count(a->w->k), tile_bytes = 128 * bits, step = tile_scale_step(f);
    const bool row = f->group == PACK_GROUP_ROW;
    const int chains = nt == 1 ? 4 : nt == 2 ? 2 : 1;
    const uint8_t *at[2], *scales[2];
    const char *x[AT_ONCE];
    __m512 y[2][AT_ONCE];
    __m512i acc[2][AT_ONCE][4];
    LANES_UNROLL
    for (int t = 0; t < nt; t++)
        x[t] = (const char *)a->q.data + (m + t) * job->layout.bytes;
    LANES_UNROLL
    for (int p = 0; p < np; p++) {
        at[p] = (const uint8_t *)a->w->data + panel[p] * job->panel_bytes;
        LANES_UNROLL
        for (int t = 0; t < nt; t++) {
            y[p][t] = _mm512_setzero_ps();
            LANES_UNROLL
            for (int i = 0; i < chains; i++)
                acc[p][t][i] = _mm512_setzero_si512();
        }
    }
    const int64_t ahead = job->ahead[np - 1];
    int64_t left = job->group_tiles, g = 0; /* remaining tiles of the current group */
    for (int64_t tile0 = 0; tile0 < n_tile; tile0 += TILE_CHUNK) {
        const int64_t n = NUM_MIN(n_tile - tile0, TILE_CHUNK);
        LANES_UNROLL
        for (int p = 0; p < np; p++)
            scales[p] = row ? (const uint8_t *)a->w->data + panel[p] * job->panel_bytes + job->tail
                            : at[p] + n * tile_bytes;
        for (int64_t tile = tile0; tile < tile0 + n; tile++) {
            if (nt == 1)
                tile_one(bits, at[0], at[0] + ahead, x[0] + tile * TILE_K, acc[0][0]);
            else
                tile_rows(bits, np, nt, chains, at, ahead, x, tile * TILE_K, acc);
            LANES_UNROLL
            for (int p = 0; p < np; p++)
                at[p] += tile_bytes;
            if (--left > 0 && tile + 1 < n_tile)
                continue;
            LANES_UNROLL
            for (int p = 0; p < np; p++) {
                LANES_UNROLL
                for (int t = 0; t < nt; t++) {
                    y[p][t] = end_group(job, bits, chains, acc[p][t], scales[p], x[t], g, y[p][t]);
                    LANES_UNROLL
                    for (int i = 0; i < chains; i++)
                        acc[p][t][i] = _mm512_setzero_si512();
                }
                scales[p] += step;
            }
            left = job->group_tiles;
            g++;
        }
        const int64_t rest = job->chunk_bytes - TILE_CHUNK * tile_bytes; /* the chunk's scales */
        LANES_UNROLL
        for (int p = 0; p < np; p++) {
            for (int64_t i = 0; i < rest; i += TILE_LINE) /* the tiles' prefetches leave these lines out */
                _mm_prefetch((const char *)at[p] + ahead + i, _MM_HINT_T0);
            at[p] += rest;
        }
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
#define ROWS(X, bits, np) X(bits, np, 2) X(bits, np, 3) X(bits, np, 4)
#define EACH(X, bits)     X(bits, 1, 1) ROWS(X, bits, 1) ROWS(X, bits, 2)
#define BITS(X)           EACH(X, 2) EACH(X, 3) EACH(X, 4) EACH(X, 5) EACH(X, 6) EACH(X, 7) EACH(X, 8)
BITS(DEFINE)
#define NAME(bits, np, nt) [np - 1][bits][nt - 1] = long_##bits##_##np##_##nt,
/* [np - 1][bits][nt - 1]; there is none for two panels with one row. */
static const long_fn longs[2][9][AT_ONCE] = {BITS(NAME)};

/* Multiplies all rows with the same panels. A turn has at least two rows, if there are two. */
static void long_rows(const tile_job *job, int np, const int64_t *panel) {
    const int n = (int)job->a->n_row, n_turn = num_div_up(n, AT_ONCE);
    for (int turn = 0, m = 0; turn < n_turn; turn++) {
        const int rows = num_div_up(n - m, n_turn - turn);
        longs[np - 1][job->a->w->format.bits][rows - 1](job, panel, m);
        m += rows;
    }
}

static bool can(const pack_format *f, int64_t n_row) {
    return n_row <= LONG_ROWS && f->layout == PACK_TILE && f->packing == PACK_PARTS && f->group >= TILE_K &&
           (f->scale == PACK_SCALE_F16 || f->scale == PACK_SCALE_ZERO) && f->table == PACK_TABLE_NONE;
}

/* One row is multiplied panel after panel. With more rows, each panel of the first half is multiplied
 * together with one of the second half; an odd one is last. */
static void run(const linear_args *a, int64_t n0, int64_t n1) {
    const tile_job job = tile_job_of(a);
    const int64_t p0 = n0 / PACK_PANEL, p1 = num_div_up(n1, PACK_PANEL), half = (p1 - p0) / 2;
    for (int64_t p = p0; p < p1 && a->n_row == 1; p++)
        long_rows(&job, 1, (const int64_t[]){p});
    if (a->n_row == 1)
        return;
    for (int64_t i = 0; i < half; i++)
        long_rows(&job, 2, (const int64_t[]){p0 + i, p0 + half + i});
    if ((p1 - p0) % 2)
        long_rows(&job, 1, (const int64_t[]){p1 - 1});
}

const strategy avx512_long = {
    .name = "padding.long", .can = can, .run = run, .rule_from = 1, .rule_rows = LONG_ROWS};
