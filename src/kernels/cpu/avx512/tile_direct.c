/* tile_direct.c - products of up to 16 activation rows. Weights are unpacked in registers and used at once,
 * so the time is the time to read them. One row reads panel after panel, as one stream. More rows read two
 * distant panels at the same time, which halves the loads of activations. More than 4 rows take turns, 256 of
 * K at a time: the first 4 prefetch, and the others find the weights in the first-level cache.
 *
 * A chunk's scales are behind its codes, and loads alternate between codes and scales. With one row,
 * prefetches do not: they are in the order of addresses, a quarter of a chunk's lines with each tile. Memory
 * then delivers 5 to 30 % more (docs/optimisation-log.md). With two streams there is no gain. */
#include "kernels/cpu/avx512/tile_kernels.h"

#include "base/num.h"
#include "kernels/cpu/avx512/tile.h"

enum { AT_ONCE = 4, DIRECT_ROWS = 16 };

/* The state between chunks: two panels, and the sums of the rows. */
typedef struct direct_state {
    const tile_job *job;
    const uint8_t *panel[2];
    __m512 y[2][DIRECT_ROWS];
} direct_state;

/* Multiplies chunks [c0, c1) with the rows from m on. */
typedef void (*direct_fn)(direct_state *s, int64_t c0, int64_t c1, int m);

/* The constants that inner loops are compiled for. */
typedef struct format {
    int bits, asym, group, scale, table;
} format;

/* Bytes of the scales and minima of one group of a panel. */
LANES_INLINE int scale_bytes(const format f) {
    return (f.asym ? 2 : 1) * (f.scale == PACK_SCALE_F16 ? 2 : 1) * PACK_PANEL;
}

/* The position of the kernel: the tiles of both panels, the scales of their groups, the rows' codes at this
 * tile. */
typedef struct cursor {
    const uint8_t *tile[2], *scales[2];
    __m512 d[2], d_min[2]; /* PACK_SCALE_SUPER */
    const char *row[AT_ONCE], *x[AT_ONCE];
} cursor;

/* Prefetches n lines to the first-level cache. One row reads one stream of panels. */
LANES_INLINE void lines_ahead(const uint8_t *at, int n) {
    LANES_UNROLL
    for (int l = 0; l < n; l++)
        _mm_prefetch((const char *)at + l * TILE_LINE, _MM_HINT_T0);
}
/* Prefetches lines [l0, l1) to the second-level cache. With several rows two panels are read beside each
 * other, and this is faster (docs/optimisation-log.md). */
LANES_INLINE void lines_ahead_of_two(const uint8_t *at, int l0, int l1) {
    LANES_UNROLL
    for (int l = l0; l < l1; l++)
        _mm_prefetch((const char *)at + l * TILE_LINE, _MM_HINT_T1);
}

/* Multiplies `quads` quads of a tile from q0 on for np panels and nt rows. ahead: distance of prefetches; 0:
 * none, because these are not the first rows. */
LANES_INLINE void direct_dot(const format f, int np, int nt, const cursor *at, int64_t ahead, __m512i table,
                             int q0, int quads, __m512i acc[2][AT_ONCE]) {
    LANES_UNROLL
    for (int q = q0; q < q0 + quads; q++) {
        LANES_UNROLL
        for (int p = 0; p < np; p++) {
            if (ahead)
                lines_ahead_of_two(at->tile[p] + ahead, q * f.bits / 8, (q + 1) * f.bits / 8);
            const __m512i w = tile_line(at->tile[p], f.bits, table, f.table != PACK_TABLE_NONE, q);
            LANES_UNROLL
            for (int t = 0; t < nt; t++)
                acc[p][t] = _mm512_dpbusd_epi32(acc[p][t], w, tile_int(at->x[t] + 4 * q));
        }
    }
}

/* Scales the sums of a finished group of the weights and adds them to y. of_act: the group of the
 * activations. */
LANES_INLINE void direct_scale(const tile_job *job, int asym, int scale, int np, int nt, const cursor *at,
                               int64_t group, int64_t of_act, __m512i acc[2][AT_ONCE], __m512 y[2][AT_ONCE]) {
    LANES_UNROLL
    for (int p = 0; p < np; p++) {
        const __m512 s = tile_scale(at->scales[p], scale, at->d[p]);
        LANES_UNROLL
        for (int t = 0; t < nt; t++) {
            const __m512 both = _mm512_mul_ps(s, tile_float(at->row[t] + job->scale + 4 * of_act));
            y[p][t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[p][t]), both, y[p][t]);
        }
        if (asym) {
            const __m512 m = tile_min(at->scales[p], scale, at->d_min[p]);
            LANES_UNROLL
            for (int t = 0; t < nt; t++)
                y[p][t] = _mm512_fmadd_ps(m, tile_float(at->row[t] + job->lift + 4 * group), y[p][t]);
        }
    }
}

/* Multiplies a tile of 4-bit codes in two groups of 32 with one row. A line's lower fields belong to the
 * first group, its upper fields to the second. A line is loaded once, and nothing is shifted: the second
 * group's sum is 16 times too large until it ends. */
LANES_INLINE void direct_tile_halves(const format f, const tile_job *job, cursor *at, int64_t tile,
                                     __m512 y[2][AT_ONCE]) {
    const int64_t step = scale_bytes(f);
    const __m512i low = _mm512_set1_epi8(0x0f), high = _mm512_set1_epi8((char)0xf0);
    const char *minus = at->row[0] + job->minus + 8 * tile;
    __m512i acc[2][2][AT_ONCE];
    acc[0][0][0] = f.asym ? _mm512_setzero_si512() : _mm512_slli_epi32(tile_int(minus), 3);
    acc[1][0][0] = f.asym ? _mm512_setzero_si512() : _mm512_slli_epi32(tile_int(minus + 4), 3 + 4);
    LANES_UNROLL
    for (int q = 0; q < 8; q++) {
        const __m512i line = _mm512_loadu_si512(at->tile[0] + q * TILE_LINE);
        acc[0][0][0] =
            _mm512_dpbusd_epi32(acc[0][0][0], _mm512_and_si512(line, low), tile_int(at->x[0] + 4 * q));
        acc[1][0][0] =
            _mm512_dpbusd_epi32(acc[1][0][0], _mm512_and_si512(line, high), tile_int(at->x[0] + 32 + 4 * q));
    }
    acc[1][0][0] = _mm512_srai_epi32(acc[1][0][0], 4);
    LANES_UNROLL
    for (int g = 0; g < 2; g++, at->scales[0] += step)
        direct_scale(job, f.asym, f.scale, 1, 1, at, tile * 2 + g, tile * 2 + g, acc[g], y);
}

/* Multiplies a tile with nt rows. */
LANES_INLINE void direct_tile(const format f, int np, int nt, const tile_job *job, cursor *at, int64_t ahead,
                              __m512i table, int64_t tile, __m512 y[2][AT_ONCE]) {
    if (nt == 1 && f.bits == 4 && f.group == 32 && !f.table) {
        direct_tile_halves(f, job, at, tile, y);
        return;
    }
    const int per_tile = TILE_K / f.group, zero_shift = f.table ? 7 : f.bits - 1;
    const int64_t step = scale_bytes(f);
    LANES_UNROLL
    for (int g = 0; g < per_tile; g++) {
        const int64_t group = tile * per_tile + g;
        __m512i acc[2][AT_ONCE];
        LANES_UNROLL
        for (int t = 0; t < nt; t++) {
            acc[0][t] = f.asym ? _mm512_setzero_si512()
                               : _mm512_slli_epi32(tile_int(at->row[t] + job->minus + 4 * group),
                                                   (unsigned)zero_shift);
            acc[1][t] = acc[0][t];
        }
        direct_dot(f, np, nt, at, ahead, table, g * f.group / 4, f.group / 4, acc);
        direct_scale(job, f.asym, f.scale, np, nt, at, group, tile * 2 + g * 2 / per_tile, acc, y);
        LANES_UNROLL
        for (int p = 0; p < np; p++)
            at->scales[p] += step;
    }
}

/* Sets the positions of the scales of a chunk of n tiles. */
LANES_INLINE void direct_scales(const format f, int np, int n, cursor *at) {
    LANES_UNROLL
    for (int p = 0; p < np; p++) {
        at->scales[p] = at->tile[p] + n * 128 * f.bits;
        at->d[p] = at->d_min[p] = _mm512_setzero_ps();
        if (f.scale == PACK_SCALE_SUPER) {
            at->d[p] = tile_supers(at->scales[p], f.table);
            if (f.asym)
                at->d_min[p] = tile_halves(at->scales[p] + 2 * PACK_PANEL);
            at->scales[p] += (f.asym ? 4 : 2) * PACK_PANEL;
        }
    }
}

/* Number of lines of a tile's scales, and of a quarter of a chunk, rounded up. */
LANES_INLINE int scale_lines(const format f) {
    return (TILE_K / f.group * scale_bytes(f) + TILE_LINE - 1) / TILE_LINE;
}
LANES_INLINE int quarter_lines(const format f) {
    const int start = f.scale == PACK_SCALE_SUPER ? (f.asym ? 4 : 2) * PACK_PANEL : 0;
    const int scales = start + TILE_CHUNK_K / f.group * scale_bytes(f);
    const int lines = TILE_CHUNK * 2 * f.bits + (scales + TILE_LINE - 1) / TILE_LINE;
    return (lines + TILE_CHUNK - 1) / TILE_CHUNK;
}

LANES_INLINE void direct_chunks(const format f, int nt, direct_state *s, int64_t c0, int64_t c1, int m) {
    const tile_job *job = s->job;
    const int64_t n_tile = tile_count(job->a->w->k), chunk_bytes = job->chunk_bytes;
    const __m512i table = f.table ? _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)tile_table(f.table)))
                                  : _mm512_setzero_si512();
    const int np = nt == 1 ? 1 : 2;
    const uint8_t *const panel[2] = {s->panel[0], s->panel[1]};
    __m512 y[2][AT_ONCE];
    cursor at;
    LANES_UNROLL
    for (int t = 0; t < nt; t++) {
        at.row[t] = (const char *)job->a->q.data + (m + t) * job->layout.bytes;
        LANES_UNROLL
        for (int p = 0; p < np; p++)
            y[p][t] = s->y[p][m + t];
    }
    for (int64_t c = c0; c < c1; c++) {
        const int64_t end = NUM_MIN(n_tile, (c + 1) * TILE_CHUNK);
        LANES_UNROLL
        for (int p = 0; p < np; p++)
            at.tile[p] = panel[p] + c * chunk_bytes;
        const uint8_t *next = at.tile[0] + job->ahead[0];
        direct_scales(f, np, (int)(end - c * TILE_CHUNK), &at);
        for (int64_t tile = c * TILE_CHUNK; tile < end; tile++) {
            LANES_UNROLL
            for (int t = 0; t < nt; t++)
                at.x[t] = at.row[t] + tile * TILE_K;
            if (nt == 1) {
                lines_ahead(next, quarter_lines(f));
                next += chunk_bytes / TILE_CHUNK;
                direct_tile(f, np, nt, job, &at, 0, table, tile, y);
            } else if (m == 0) {
                LANES_UNROLL
                for (int p = 0; p < np; p++)
                    lines_ahead_of_two(at.scales[p] + job->ahead[np - 1], 0, scale_lines(f));
                direct_tile(f, np, nt, job, &at, job->ahead[np - 1], table, tile, y);
            } else {
                direct_tile(f, np, nt, job, &at, 0, table, tile, y);
            }
            LANES_UNROLL
            for (int p = 0; p < np; p++)
                at.tile[p] += 128 * f.bits;
        }
    }
    LANES_UNROLL
    for (int t = 0; t < nt; t++) {
        LANES_UNROLL
        for (int p = 0; p < np; p++)
            s->y[p][m + t] = y[p][t];
    }
}

/* The formats of most files. */
#define DIRECT_FORMATS(X)                                                                                    \
    X(q4_0, 4, 0, 32, F16, NONE)                                                                             \
    X(q4_1, 4, 1, 32, F16, NONE)                                                                             \
    X(q5_0, 5, 0, 32, F16, NONE)                                                                             \
    X(q5_1, 5, 1, 32, F16, NONE)                                                                             \
    X(q8_0, 8, 0, 32, F16, NONE)                                                                             \
    X(q2_k, 2, 1, 16, SUPER, NONE)                                                                           \
    X(q3_k, 3, 0, 16, SUPER, NONE)                                                                           \
    X(q4_k, 4, 1, 32, SUPER, NONE)                                                                           \
    X(q5_k, 5, 1, 32, SUPER, NONE)                                                                           \
    X(q6_k, 6, 0, 16, SUPER, NONE)                                                                           \
    X(iq4_nl, 4, 0, 32, F16, IQ4NL)                                                                          \
    X(iq4_xs, 4, 0, 32, SUPER, IQ4NL)                                                                        \
    X(mxfp4, 4, 0, 32, E8M0, MXFP4)

/* Other formats in short groups, for one row only. More rows are limited by multiplications, so
 * blocks are as fast. */
#define ONE_ROW_FORMATS(X)                                                                                   \
    X(iq1_s, 3, 0, 32, SUPER, IQ1)                                                                           \
    X(iq1_m, 3, 0, 16, SUPER, IQ1)                                                                           \
    X(iq2_xxs, 3, 0, 32, SUPER, IQ2)                                                                         \
    X(iq2_s, 3, 0, 16, SUPER, IQ2)                                                                           \
    X(iq3_xxs, 4, 0, 32, SUPER, IQ3)                                                                         \
    X(iq3_s, 4, 0, 32, SUPER, ODD)                                                                           \
    X(nvfp4, 4, 0, 16, F16, MXFP4)                                                                           \
    X(u2g16_0, 2, 0, 16, F16, NONE)                                                                          \
    X(u3g16_0, 3, 0, 16, F16, NONE)                                                                          \
    X(u4g16_0, 4, 0, 16, F16, NONE)                                                                          \
    X(u5g16_0, 5, 0, 16, F16, NONE)                                                                          \
    X(u6g16_0, 6, 0, 16, F16, NONE)                                                                          \
    X(u7g16_0, 7, 0, 16, F16, NONE)                                                                          \
    X(u8g16_0, 8, 0, 16, F16, NONE)                                                                          \
    X(u2g16_1, 2, 1, 16, F16, NONE)                                                                          \
    X(u3g16_1, 3, 1, 16, F16, NONE)                                                                          \
    X(u4g16_1, 4, 1, 16, F16, NONE)                                                                          \
    X(u5g16_1, 5, 1, 16, F16, NONE)                                                                          \
    X(u6g16_1, 6, 1, 16, F16, NONE)                                                                          \
    X(u7g16_1, 7, 1, 16, F16, NONE)                                                                          \
    X(u8g16_1, 8, 1, 16, F16, NONE)                                                                          \
    X(u2g32_0, 2, 0, 32, F16, NONE)                                                                          \
    X(u3g32_0, 3, 0, 32, F16, NONE)                                                                          \
    X(u6g32_0, 6, 0, 32, F16, NONE)                                                                          \
    X(u7g32_0, 7, 0, 32, F16, NONE)                                                                          \
    X(u2g32_1, 2, 1, 32, F16, NONE)                                                                          \
    X(u3g32_1, 3, 1, 32, F16, NONE)                                                                          \
    X(u6g32_1, 6, 1, 32, F16, NONE)                                                                          \
    X(u7g32_1, 7, 1, 32, F16, NONE)                                                                          \
    X(u8g32_1, 8, 1, 32, F16, NONE)

#define DEFINE_ROWS(name, nt, bits, asym, group, scale, table)                                               \
    static void name##_##nt(direct_state *s, int64_t c0, int64_t c1, int m) {                                \
        direct_chunks((format){bits, asym, group, PACK_SCALE_##scale, PACK_TABLE_##table}, nt, s, c0, c1,    \
                      m);                                                                                    \
    }
#define DEFINE(name, ...)                                                                                    \
    DEFINE_ROWS(name, 1, __VA_ARGS__)                                                                        \
    DEFINE_ROWS(name, 2, __VA_ARGS__)                                                                        \
    DEFINE_ROWS(name, 3, __VA_ARGS__)                                                                        \
    DEFINE_ROWS(name, 4, __VA_ARGS__)
#define DEFINE_ONE(name, ...) DEFINE_ROWS(name, 1, __VA_ARGS__)
DIRECT_FORMATS(DEFINE)
ONE_ROW_FORMATS(DEFINE_ONE)

#define ROW(name, bits, asym, group, scale, table)                                                           \
    {{bits, asym, group, PACK_SCALE_##scale, PACK_TABLE_##table}, {name##_1, name##_2, name##_3, name##_4}},
#define ONE_ROW(name, bits, asym, group, scale, table)                                                       \
    {{bits, asym, group, PACK_SCALE_##scale, PACK_TABLE_##table}, {name##_1}},
static const struct {
    format f;
    direct_fn fn[AT_ONCE]; /* for 1, 2, ... rows; NULL from the second on for formats of one row */
} kernels[] = {DIRECT_FORMATS(ROW) ONE_ROW_FORMATS(ONE_ROW)};

static const direct_fn *direct_for(const pack_format *f) {
    for (size_t i = 0; i < NUM_COUNT(kernels) && f->packing == PACK_PARTS; i++) {
        const format *k = &kernels[i].f;
        if (k->bits == f->bits && k->asym == f->asym && k->group == f->group && k->scale == f->scale &&
            k->table == f->table)
            return kernels[i].fn;
    }
    return NULL;
}

/* Multiplies two panels (or the same one twice) with all rows. */
static void direct_panels(const tile_job *job, const direct_fn *fn, int64_t first, int64_t second) {
    const uint8_t *data = job->a->w->data;
    const int n = (int)job->a->n_row, n_turn = num_div_up(n, AT_ONCE);
    const int64_t n_chunk = num_div_up(tile_count(job->a->w->k), TILE_CHUNK);
    direct_state s; /* y is large: only the members that are used are set */
    s.job = job;
    s.panel[0] = data + first * job->panel_bytes;
    s.panel[1] = data + second * job->panel_bytes;
    for (int p = 0; p < 2; p++)
        for (int t = 0; t < n; t++)
            s.y[p][t] = _mm512_setzero_ps();
    if (n_turn == 1)
        fn[n - 1](&s, 0, n_chunk, 0);
    for (int64_t c = 0; c < n_chunk && n_turn > 1; c++)
        for (int turn = 0, m = 0; turn < n_turn; turn++) {
            const int rows = num_div_up(n - m, n_turn - turn);
            fn[rows - 1](&s, c, c + 1, m);
            m += rows;
        }
    for (int t = 0; t < n; t++) {
        tile_store(job, first, t, s.y[0][t]);
        tile_store(job, second, t, s.y[1][t]);
    }
}

static bool can(const pack_format *f, int64_t n_row) {
    const direct_fn *fn = direct_for(f);
    return fn && n_row <= (fn[1] ? DIRECT_ROWS : 1);
}

/* Multiplies panel after panel with one row. */
static void one_row(const tile_job *job, direct_fn fn, int64_t p0, int64_t p1) {
    const int64_t n_chunk = num_div_up(tile_count(job->a->w->k), TILE_CHUNK);
    for (int64_t p = p0; p < p1; p++) {
        direct_state s;
        s.job = job;
        s.panel[0] = s.panel[1] = (const uint8_t *)job->a->w->data + p * job->panel_bytes;
        s.y[0][0] = _mm512_setzero_ps();
        fn(&s, 0, n_chunk, 0);
        tile_store(job, p, 0, s.y[0][0]);
    }
}

/* With more rows, each panel of the first half is multiplied together with one of the second half; an odd one
 * is last. */
static void run(const linear_args *a, int64_t n0, int64_t n1) {
    const tile_job job = tile_job_of(a);
    const direct_fn *fn = direct_for(&a->w->format);
    const int64_t p0 = n0 / PACK_PANEL, p1 = num_div_up(n1, PACK_PANEL), half = (p1 - p0) / 2;
    if (a->n_row == 1) {
        one_row(&job, fn[0], p0, p1);
        return;
    }
    for (int64_t i = 0; i < half; i++)
        direct_panels(&job, fn, p0 + i, p0 + half + i);
    if ((p1 - p0) % 2)
        direct_panels(&job, fn, p1 - 1, p1 - 1);
}

const strategy avx512_direct = {.name = "padding.direct", .can = can, .run = run, .rule_rows = DIRECT_ROWS};
