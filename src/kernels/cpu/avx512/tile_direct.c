/* tile_direct.c - up to 4 activation rows: weights are unpacked in registers and used at once, so that the
 * time is the time to read them. Two panels far apart are read beside each other, each with a prefetch ahead.
 */
#include "kernels/cpu/avx512/tile_kernels.h"

#include "base/num.h"
#include "kernels/cpu/avx512/tile.h"

/* Bytes that the prefetches run ahead of each of the two panels: measured, docs/optimisation-log.md. */
enum { AHEAD = 4096, DIRECT_ROWS = 4 };

typedef void (*direct_fn)(const tile_job *job, int64_t p0, int64_t p1);

typedef struct format {
    int bits, asym, group, scale, table;
} format;

LANES_INLINE __m512 broadcast_float(const char *p) {
    return _mm512_set1_ps(*(const float *)(const void *)p);
}
LANES_INLINE __m512i broadcast_int(const char *p) {
    return _mm512_set1_epi32(*(const int32_t *)(const void *)p);
}

/* One group of one tile for np panels and nt rows; g counts groups in the tile. x: the rows' codes at the
 * tile's start. */
LANES_INLINE void direct_group(const format f, int np, int nt, const uint8_t *const *tile, __m512i table,
                               int g, const char *const *x, __m512i acc[2][4]) {
    const int quads = f.group / 4;
    LANES_UNROLL
    for (int i = 0; i < quads; i++) {
        const int q = g * quads + i;
        LANES_UNROLL
        for (int p = 0; p < np; p++) {
            const __m512i w = tile_line(tile[p], f.bits, table, f.table != PACK_TABLE_NONE, q);
            LANES_UNROLL
            for (int t = 0; t < nt; t++)
                acc[p][t] = _mm512_dpbusd_epi32(acc[p][t], w, broadcast_int(x[t] + 4 * q));
        }
    }
}

LANES_INLINE void direct_panels(const format f, int np, int nt, const tile_job *job, const int64_t *panel) {
    const linear_args *a = job->a;
    const pack_format *pf = &a->w->format;
    const act8_layout *l = &job->layout;
    const int zero_shift = f.asym                       ? 0
                           : f.table != PACK_TABLE_NONE ? 7
                                                        : f.bits - 1,
              per_tile = TILE_K / f.group;
    const int64_t n_tile = tile_count(a->w->k), tile_bytes = 128 * f.bits;
    const int64_t step = (f.asym ? 2 : 1) * (f.scale == PACK_SCALE_F16 ? 2 : 1) * PACK_PANEL;
    const __m512i table = f.table ? _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)tile_table(f.table)))
                                  : _mm512_setzero_si512();
    const char *base[4];
    const uint8_t *at[2];
    __m512 y[2][4];
    LANES_UNROLL
    for (int t = 0; t < nt; t++)
        base[t] = (const char *)a->q.data + t * l->bytes;
    LANES_UNROLL
    for (int p = 0; p < np; p++) {
        at[p] = (const uint8_t *)a->w->data + panel[p] * job->panel_bytes;
        LANES_UNROLL
        for (int t = 0; t < nt; t++)
            y[p][t] = _mm512_setzero_ps();
    }
    for (int64_t tile0 = 0; tile0 < n_tile; tile0 += TILE_CHUNK) {
        const int n = (int)(n_tile - tile0 < TILE_CHUNK ? n_tile - tile0 : TILE_CHUNK);
        const uint8_t *scales[2];
        __m512 d[2], d_min[2];
        LANES_UNROLL
        for (int p = 0; p < np; p++) {
            scales[p] = at[p] + n * tile_bytes;
            d[p] = d_min[p] = _mm512_setzero_ps();
            if (f.scale == PACK_SCALE_SUPER) {
                d[p] = tile_halves(scales[p]);
                if (f.asym)
                    d_min[p] = tile_halves(scales[p] + 2 * PACK_PANEL);
                scales[p] += (f.asym ? 4 : 2) * PACK_PANEL;
            }
        }
        for (int i = 0; i < n; i++) {
            const int64_t tile = tile0 + i;
            const char *x[4];
            LANES_UNROLL
            for (int t = 0; t < nt; t++)
                x[t] = base[t] + tile * TILE_K;
            LANES_UNROLL
            for (int p = 0; p < np; p++) {
                LANES_UNROLL
                for (int line = 0; line < 2 * f.bits; line++)
                    _mm_prefetch((const char *)at[p] + AHEAD + line * TILE_LINE, _MM_HINT_T0);
                _mm_prefetch((const char *)scales[p] + AHEAD, _MM_HINT_T0);
            }
            LANES_UNROLL
            for (int g = 0; g < per_tile; g++) {
                const int64_t group = tile * per_tile + g, group32 = tile * 2 + g * 2 / per_tile;
                __m512i acc[2][4];
                LANES_UNROLL
                for (int t = 0; t < nt; t++) {
                    const int64_t minus = (f.group == 16 ? l->minus16 : l->minus) + 4 * group;
                    const __m512i start =
                        f.asym ? _mm512_setzero_si512()
                               : _mm512_slli_epi32(broadcast_int(base[t] + minus), (unsigned)zero_shift);
                    LANES_UNROLL
                    for (int p = 0; p < np; p++)
                        acc[p][t] = start;
                }
                direct_group(f, np, nt, at, table, g, x, acc);
                LANES_UNROLL
                for (int p = 0; p < np; p++) {
                    const __m512 s = tile_scale(scales[p] + g * step, f.scale, d[p]);
                    LANES_UNROLL
                    for (int t = 0; t < nt; t++) {
                        const __m512 both =
                            _mm512_mul_ps(s, broadcast_float(base[t] + l->scale + 4 * group32));
                        y[p][t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[p][t]), both, y[p][t]);
                    }
                    if (f.asym) {
                        const __m512 m = tile_min(scales[p] + g * step, f.scale, d_min[p]);
                        LANES_UNROLL
                        for (int t = 0; t < nt; t++) {
                            const int64_t lift = (f.group == 16 ? l->lift16 : l->lift) + 4 * group;
                            y[p][t] = _mm512_fmadd_ps(m, broadcast_float(base[t] + lift), y[p][t]);
                        }
                    }
                }
            }
            LANES_UNROLL
            for (int p = 0; p < np; p++) {
                at[p] += tile_bytes;
                scales[p] += per_tile * step;
            }
        }
        LANES_UNROLL
        for (int p = 0; p < np; p++)
            at[p] += tile_chunk_bytes(pf, n) - n * tile_bytes;
    }
    LANES_UNROLL
    for (int p = 0; p < np; p++) {
        LANES_UNROLL
        for (int t = 0; t < nt; t++)
            tile_store(job, panel[p], t, y[p][t]);
    }
}

/* Panels [p0, p1): the first half beside the second, then the odd one. */
LANES_INLINE void direct_rows(const format f, int nt, const tile_job *job, int64_t p0, int64_t p1) {
    const int64_t half = (p1 - p0) / 2;
    for (int64_t i = 0; i < half; i++)
        direct_panels(f, 2, nt, job, (const int64_t[]){p0 + i, p0 + half + i});
    if ((p1 - p0) % 2)
        direct_panels(f, 1, nt, job, (const int64_t[]){p1 - 1});
}

/* Every format that pack_choose gives, with 1 to 4 rows. */
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

#define CONSTANT(bits_, asym_, group_, scale_, table_)                                                       \
    (const format) {                                                                                         \
        bits_, asym_, group_, PACK_SCALE_##scale_, PACK_TABLE_##table_                                       \
    }
#define DEFINE(name, bits, asym, group, scale, table)                                                        \
    static void name##_1(const tile_job *job, int64_t p0, int64_t p1) {                                      \
        direct_rows(CONSTANT(bits, asym, group, scale, table), 1, job, p0, p1);                              \
    }                                                                                                        \
    static void name##_2(const tile_job *job, int64_t p0, int64_t p1) {                                      \
        direct_rows(CONSTANT(bits, asym, group, scale, table), 2, job, p0, p1);                              \
    }                                                                                                        \
    static void name##_3(const tile_job *job, int64_t p0, int64_t p1) {                                      \
        direct_rows(CONSTANT(bits, asym, group, scale, table), 3, job, p0, p1);                              \
    }                                                                                                        \
    static void name##_4(const tile_job *job, int64_t p0, int64_t p1) {                                      \
        direct_rows(CONSTANT(bits, asym, group, scale, table), 4, job, p0, p1);                              \
    }
DIRECT_FORMATS(DEFINE)

#define ROW(name, bits, asym, group, scale, table)                                                           \
    {{bits, asym, group, PACK_SCALE_##scale, PACK_TABLE_##table}, {name##_1, name##_2, name##_3, name##_4}},
static const struct {
    format f;
    direct_fn fn[DIRECT_ROWS];
} kernels[] = {DIRECT_FORMATS(ROW)};

static direct_fn direct_for(const pack_format *f, int64_t n_row) {
    if (n_row > DIRECT_ROWS || f->flavour != PACK_PARTS)
        return NULL;
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        const format *k = &kernels[i].f;
        if (k->bits == f->bits && k->asym == f->asym && k->group == f->group && k->scale == f->scale &&
            k->table == f->table)
            return kernels[i].fn[n_row - 1];
    }
    return NULL;
}

static bool can(const pack_format *f, int64_t n_row) {
    return direct_for(f, n_row);
}

static void run(const linear_args *a, int64_t n0, int64_t n1) {
    const tile_job job = tile_job_of(a);
    direct_for(&a->w->format, a->n_row)(&job, n0 / PACK_PANEL, num_div_up(n1, PACK_PANEL));
}

const strategy avx512_direct = {.name = "padding.direct", .can = can, .run = run, .rule_rows = DIRECT_ROWS};
