/* direct.h - products of up to 8 activation rows, 4 at a time. Weights are unpacked in registers and used at
 * once, so one row takes the time to read the weights, if the processor can unpack as fast. Panels are read
 * one after the other, as one prefetched stream. With one row and short groups, prefetches are in the order
 * of addresses, although scales are used before the codes that precede them. Included after a dot.h, which
 * defines the integer products. */
#ifndef NIB_KERNELS_AVX2_DIRECT_H
#define NIB_KERNELS_AVX2_DIRECT_H

enum { DIRECT_ROWS = 8, SHARED_ROWS = 6 /* from here on two passes share the prefetches */ };

/* The state of a panel that is being read: the next tile, the next group's scales, the sums of the rows. */
typedef struct direct_panel {
    const uint8_t *codes, *scales;
    const uint8_t *next; /* the next quarter of a chunk that is prefetched, in short groups */
    int64_t ahead;       /* bytes from a quarter to the one that is prefetched with it */
    bool all;            /* all lines of a quarter are prefetched, not half of them */
    vf d, d_min, y[DOT_ROWS];
    __m256i open[DOT_ROWS][2]; /* sums of a long group that continues in the next tile */
} direct_panel;

typedef void (*direct_fn)(const tile_job *job, direct_panel *at, int64_t m);

/* How a format's groups are scaled: constants for one row, where every instruction counts. */
typedef struct scaling {
    int asym, scale;
} scaling;

static inline scaling direct_scaling(const tile_job *job) {
    const pack_format *f = &job->a->w->format;
    return (scaling){f->asym, f->scale};
}

/* Scales a group's integers and adds them to y. group counts from the start of K. acc lacks the zero point's
 * correction. */
LANES_INLINE void direct_scale(const kind f, const scaling c, int nt, const tile_job *job,
                               const direct_panel *at, const uint8_t *scales, const char *x, int64_t group,
                               __m256i (*acc)[2], vf *y) {
    const int64_t x_bytes = job->x_bytes, of_act = f.group == 16 ? group / 2 : group;
    const vf s = tile_scale(scales, c.scale, &at->d);
    LANES_UNROLL
    for (int t = 0; t < nt; t++) {
        if (dot_signed(f) == (bool)c.asym)
            tile_correct(dot_signed(f), job, x + t * x_bytes + job->minus + 4 * group, acc[t]);
        const __m256 xs = broadcast_float(x + t * x_bytes + job->scale + 4 * of_act);
        y[t].a = _mm256_fmadd_ps(_mm256_cvtepi32_ps(acc[t][0]), _mm256_mul_ps(s.a, xs), y[t].a);
        y[t].b = _mm256_fmadd_ps(_mm256_cvtepi32_ps(acc[t][1]), _mm256_mul_ps(s.b, xs), y[t].b);
    }
    if (c.asym) {
        const vf m = tile_min(scales, c.scale, &at->d_min);
        LANES_UNROLL
        for (int t = 0; t < nt; t++) {
            const __m256 lift = broadcast_float(x + t * x_bytes + job->lift + 4 * group);
            y[t] = v_fma(m, BOTH(lift, lift), y[t]);
        }
    }
}

/* Number of lines in a quarter of a chunk with groups of 16 or 32, rounded up. */
LANES_INLINE int quarter_lines(const kind f, const scaling c, int64_t step) {
    const int start = c.scale == PACK_SCALE_SUPER ? (c.asym ? 4 : 2) * PACK_PANEL : 0;
    const int scales = start + TILE_CHUNK_K / f.group * (int)step;
    const int lines = TILE_CHUNK * 2 * f.bits + (scales + TILE_LINE - 1) / TILE_LINE;
    return (lines + TILE_CHUNK - 1) / TILE_CHUNK;
}

/* Multiplies a tile of groups of 16 or 32 with one row, two groups at a time. */
LANES_INLINE void direct_one(const kind f, const scaling c, const tile_job *job, direct_panel *at,
                             __m256i table, const char *x, int64_t tile) {
    const int per_tile = TILE_K / f.group, quads = f.group / 4;
    const int64_t step = (c.asym ? 2 : 1) * (c.scale == PACK_SCALE_F16 ? 2 : 1) * PACK_PANEL;
    __m256i acc[4][2];
    vf y = at->y[0];
    LANES_UNROLL
    for (int g = 0; g < per_tile / 2; g++) {
        __m256i pair[2][2];
        dot_pair(f, at->codes, table, g * quads, quads, at->next, quarter_lines(f, c, step),
                 x + tile * TILE_K, pair);
        LANES_UNROLL
        for (int i = 0; i < 4; i++)
            acc[g + i / 2 * (per_tile / 2)][i % 2] = pair[i / 2][i % 2];
    }
    LANES_UNROLL
    for (int g = 0; g < per_tile; g++)
        direct_scale(f, c, 1, job, at, at->scales + g * step, x, tile * per_tile + g, acc + g, &y);
    at->scales += per_tile * step;
    at->next += job->chunk_bytes / TILE_CHUNK;
    at->y[0] = y;
}

/* Half of the lines of a quarter of a chunk, rounded up; its scales have one line for each group or fewer. */
LANES_INLINE int half_quarter_lines(const kind f) {
    return (2 * f.bits + TILE_K / f.group + 1) / 2;
}

/* Prefetches part i of n of half a quarter's lines, or of all of them, to the second-level cache, which is
 * faster with several rows (docs/optimisation-log.md). */
LANES_INLINE void direct_ahead(const kind f, const direct_panel *at, int i, int n) {
    const int half = half_quarter_lines(f);
    LANES_UNROLL
    for (int l = i * half / n; l < (i + 1) * half / n; l++)
        _mm_prefetch((const char *)at->next + l * TILE_LINE, _MM_HINT_T1);
    if (!at->all)
        return;
    LANES_UNROLL
    for (int l = i * half / n; l < (i + 1) * half / n; l++)
        _mm_prefetch((const char *)at->next + (half + l) * TILE_LINE, _MM_HINT_T1);
}

/* Multiplies a tile of groups of 16 or 32. The sums of the rows are in memory. */
LANES_INLINE void direct_short(const kind f, const scaling c, int nt, const tile_job *job, direct_panel *at,
                               __m256i table, const char *x, int64_t tile) {
    const int per_tile = TILE_K / f.group, quads = f.group / 4;
    const int64_t step = tile_scale_step(&job->a->w->format);
    LANES_UNROLL
    for (int g = 0; g < per_tile; g++) {
        __m256i acc[DOT_ROWS][2];
        direct_ahead(f, at, g, per_tile);
        dot_packed(f, at->codes, table, g * quads, quads, nt, x + tile * TILE_K, job->x_bytes, acc);
        direct_scale(f, c, nt, job, at, at->scales + g * step, x, tile * per_tile + g, acc, at->y);
        __asm__("" : : : "memory"); /* keeps these sums out of registers that the next group needs */
    }
    at->scales += per_tile * step;
}

/* Multiplies a tile of a group that ends with this tile or a later one. */
LANES_INLINE void direct_long(const kind f, const scaling c, int nt, const tile_job *job, direct_panel *at,
                              const char *x, int64_t tile, bool is_last) {
    if (nt == 1)
        dot_one(f, at->codes, at->codes + at->ahead, x + tile * TILE_K, at->open[0]);
    else
        dot_tile(f, false, nt, at->codes, x + tile * TILE_K, job->x_bytes, at->open);
    if (!is_last && (tile + 1) % job->group_tiles)
        return;
    direct_scale(f, c, nt, job, at, at->scales, x, tile / job->group_tiles, at->open, at->y);
    at->scales += tile_scale_step(&job->a->w->format);
    LANES_UNROLL
    for (int t = 0; t < nt; t++)
        at->open[t][0] = at->open[t][1] = _mm256_setzero_si256();
}

/* Sets the position of the scales of a chunk of n tiles. The scales of whole rows are behind the panel. */
static inline void direct_chunk(const tile_job *job, direct_panel *at, const uint8_t *panel, int n) {
    const pack_format *f = &job->a->w->format;
    at->next = at->codes + at->ahead;
    at->scales = f->group == PACK_GROUP_ROW ? panel + job->tail : at->codes + n * tile_code_bytes(f);
    if (f->scale == PACK_SCALE_SUPER) {
        at->d = tile_supers(at->scales, f->table);
        if (f->asym)
            at->d_min = v_load_f16((const void *)(at->scales + 2 * PACK_PANEL));
        at->scales += tile_scale_start(f);
    }
}

/* Multiplies a panel (at->codes: its start) with nt rows from row m on. Leaves the sums in at->y. */
LANES_INLINE void direct_panel_rows(const kind f, const scaling c, int nt, const tile_job *job,
                                    direct_panel *at, int64_t m) {
    const int64_t n_tile = tile_count(job->a->w->k), tile_bytes = 128 * f.bits;
    const __m256i table = dot_table(f);
    const char *x = (const char *)job->a->q.data + m * job->x_bytes;
    const uint8_t *panel = at->codes;
    for (int t = 0; t < nt; t++) {
        at->y[t] = v_zero();
        at->open[t][0] = at->open[t][1] = _mm256_setzero_si256();
    }
    for (int64_t tile0 = 0; tile0 < n_tile; tile0 += TILE_CHUNK) {
        const int n = (int)NUM_MIN(n_tile - tile0, TILE_CHUNK);
        direct_chunk(job, at, panel, n);
        for (int64_t tile = tile0; tile < tile0 + n; tile++, at->codes += tile_bytes) {
            if (nt == 1 && f.group == TILE_K) /* the codes' prefetches are among the products */
                prefetch_line(at->scales + at->ahead);
            else if (f.group == TILE_K)
                direct_ahead(f, at, 0, 1);
            if (f.group == TILE_K)
                direct_long(f, c, nt, job, at, x, tile, tile + 1 == n_tile);
            else if (nt == 1)
                direct_one(f, c, job, at, table, x, tile);
            else
                direct_short(f, c, nt, job, at, table, x, tile);
            if (nt > 1)
                at->next += job->chunk_bytes / TILE_CHUNK;
        }
        at->codes += job->chunk_bytes - n * tile_bytes;
    }
}

/* name, bits, table, group: 2 and 4 rows */
#define DIRECT_KINDS(X)                                                                                      \
    X(b2g16, 2, NONE, 16)                                                                                    \
    X(b3g16, 3, NONE, 16)                                                                                    \
    X(b6g16, 6, NONE, 16)                                                                                    \
    X(b4g32, 4, NONE, 32)                                                                                    \
    X(b5g32, 5, NONE, 32)                                                                                    \
    X(b8g32, 8, NONE, 32)                                                                                    \
    X(iq4g32, 4, IQ4NL, 32)                                                                                  \
    X(mxfp4g32, 4, MXFP4, 32)                                                                                \
    DIRECT_LONG(X)
#define DIRECT_LONG(X)                                                                                       \
    X(b2g64, 2, NONE, 64)                                                                                    \
    X(b3g64, 3, NONE, 64)                                                                                    \
    X(b4g64, 4, NONE, 64)                                                                                    \
    X(b5g64, 5, NONE, 64)                                                                                    \
    X(b6g64, 6, NONE, 64)                                                                                    \
    X(b7g64, 7, NONE, 64)                                                                                    \
    X(b8g64, 8, NONE, 64)
/* name, kind, asym, scale: one row, every format that pack_choose gives */
#define DIRECT_FORMATS(X)                                                                                    \
    X(q4_0, b4g32, 4, NONE, 32, 0, F16)                                                                      \
    X(q4_1, b4g32, 4, NONE, 32, 1, F16)                                                                      \
    X(q5_0, b5g32, 5, NONE, 32, 0, F16)                                                                      \
    X(q5_1, b5g32, 5, NONE, 32, 1, F16)                                                                      \
    X(q8_0, b8g32, 8, NONE, 32, 0, F16)                                                                      \
    X(q2_k, b2g16, 2, NONE, 16, 1, SUPER)                                                                    \
    X(q3_k, b3g16, 3, NONE, 16, 0, SUPER)                                                                    \
    X(q4_k, b4g32, 4, NONE, 32, 1, SUPER)                                                                    \
    X(q5_k, b5g32, 5, NONE, 32, 1, SUPER)                                                                    \
    X(q6_k, b6g16, 6, NONE, 16, 0, SUPER)                                                                    \
    X(iq4_nl, iq4g32, 4, IQ4NL, 32, 0, F16)                                                                  \
    X(iq4_xs, iq4g32, 4, IQ4NL, 32, 0, SUPER)                                                                \
    X(mxfp4, mxfp4g32, 4, MXFP4, 32, 0, E8M0)

/* Other uniform formats in short groups, with one row only; name, bits, group, asym. (3 bits with minima in
 * groups of 16 are faster in blocks.) */
#define DIRECT_ALONE(X)                                                                                      \
    X(u2g16_0, 2, 16, 0)                                                                                     \
    X(u3g16_0, 3, 16, 0)                                                                                     \
    X(u4g16_0, 4, 16, 0)                                                                                     \
    X(u5g16_0, 5, 16, 0)                                                                                     \
    X(u6g16_0, 6, 16, 0)                                                                                     \
    X(u7g16_0, 7, 16, 0)                                                                                     \
    X(u8g16_0, 8, 16, 0)                                                                                     \
    X(u2g16_1, 2, 16, 1)                                                                                     \
    X(u4g16_1, 4, 16, 1)                                                                                     \
    X(u5g16_1, 5, 16, 1)                                                                                     \
    X(u6g16_1, 6, 16, 1)                                                                                     \
    X(u7g16_1, 7, 16, 1)                                                                                     \
    X(u8g16_1, 8, 16, 1)                                                                                     \
    X(u2g32_0, 2, 32, 0)                                                                                     \
    X(u3g32_0, 3, 32, 0)                                                                                     \
    X(u6g32_0, 6, 32, 0)                                                                                     \
    X(u7g32_0, 7, 32, 0)                                                                                     \
    X(u2g32_1, 2, 32, 1)                                                                                     \
    X(u3g32_1, 3, 32, 1)                                                                                     \
    X(u6g32_1, 6, 32, 1)                                                                                     \
    X(u7g32_1, 7, 32, 1)                                                                                     \
    X(u8g32_1, 8, 32, 1)

/* Codes of tables, with one row only; name, bits, table, group, scale. */
#define DIRECT_TABLES(X)                                                                                     \
    X(iq1_s, 3, IQ1, 32, SUPER)                                                                              \
    X(iq1_m, 3, IQ1, 16, SUPER)                                                                              \
    X(iq2_xxs, 3, IQ2, 32, SUPER)                                                                            \
    X(iq2_s, 3, IQ2, 16, SUPER)                                                                              \
    X(iq3_xxs, 4, IQ3, 32, SUPER)                                                                            \
    X(iq3_s, 4, ODD, 32, SUPER)                                                                              \
    X(nvfp4, 4, MXFP4, 16, F16)

#define DIRECT_DEFINE_ROWS(name, nt, bits, table, group, scaling_)                                           \
    static void name##_##nt(const tile_job *job, direct_panel *at, int64_t m) {                              \
        direct_panel_rows((kind){bits, PACK_TABLE_##table, group}, scaling_, nt, job, at, m);                \
    }
#define DIRECT_DEFINE(name, bits, table, group)                                                              \
    DIRECT_DEFINE_ROWS(name, 2, bits, table, group, direct_scaling(job))                                     \
    DIRECT_DEFINE_ROWS(name, 4, bits, table, group, direct_scaling(job))
#define DIRECT_DEFINE_LONG(name, bits, table, group)                                                         \
    DIRECT_DEFINE_ROWS(name, 1, bits, table, group, direct_scaling(job))
#define DIRECT_DEFINE_ONE(name, of, bits, table, group, asym, scale)                                         \
    DIRECT_DEFINE_ROWS(name, 1, bits, table, group, ((scaling){asym, PACK_SCALE_##scale}))
#define DIRECT_DEFINE_ALONE(name, bits, group, asym)                                                         \
    DIRECT_DEFINE_ROWS(name, 1, bits, NONE, group, ((scaling){asym, PACK_SCALE_F16}))
#define DIRECT_DEFINE_TABLE(name, bits, table, group, scale)                                                 \
    DIRECT_DEFINE_ROWS(name, 1, bits, table, group, ((scaling){0, PACK_SCALE_##scale}))
DIRECT_KINDS(DIRECT_DEFINE)
DIRECT_TABLES(DIRECT_DEFINE_TABLE)
DIRECT_ALONE(DIRECT_DEFINE_ALONE)
DIRECT_LONG(DIRECT_DEFINE_LONG)
DIRECT_FORMATS(DIRECT_DEFINE_ONE)

#define DIRECT_ROW(name, of, bits, table, group, asym, scale)                                                \
    {{bits, PACK_TABLE_##table, group}, {asym, PACK_SCALE_##scale}, {name##_1, of##_2, of##_4}},
#define DIRECT_ROW_LONG(name, bits, table, group)                                                            \
    {{bits, PACK_TABLE_##table, group}, {0, PACK_SCALE_F16}, {name##_1, name##_2, name##_4}},
#define DIRECT_ROW_ALONE(name, bits, group, asym)                                                            \
    {{bits, PACK_TABLE_NONE, group}, {asym, PACK_SCALE_F16}, {name##_1, NULL, NULL}},
#define DIRECT_ROW_TABLE(name, bits, table, group, scale)                                                    \
    {{bits, PACK_TABLE_##table, group}, {0, PACK_SCALE_##scale}, {name##_1, NULL, NULL}},
static const struct {
    kind f;
    scaling c;
    direct_fn fn[3]; /* 1, 2, 4 rows; NULL: one row only */
} direct_kernels[] = {DIRECT_FORMATS(DIRECT_ROW) DIRECT_LONG(DIRECT_ROW_LONG) DIRECT_ALONE(DIRECT_ROW_ALONE)
                          DIRECT_TABLES(DIRECT_ROW_TABLE)};

static const direct_fn *direct_for(const pack_format *f) {
    const kind k = tile_kind(f);
    const scaling c = {f->asym, f->scale};
    for (size_t i = 0; i < NUM_COUNT(direct_kernels); i++)
        if (!memcmp(&direct_kernels[i].f, &k, sizeof k) &&
            (k.group == TILE_K || !memcmp(&direct_kernels[i].c, &c, sizeof c)))
            return direct_kernels[i].fn;
    return NULL;
}

static bool direct_can(const pack_format *f, int64_t n_row) {
    if (f->layout != PACK_TILE || f->packing != PACK_PARTS || f->scale == PACK_SCALE_TWO)
        return false;
    const direct_fn *fn = direct_for(f);
    return fn && n_row <= (fn[1] ? DIRECT_ROWS : 1);
}

/* Sets what a pass over a panel with n rows from row m on prefetches. From SHARED_ROWS on each of the first
 * two passes prefetches half of the lines of the next panel, so that memory is read during both. Other passes
 * prefetch the lines tile_job.ahead bytes later. */
static void direct_share(direct_panel *at, const tile_job *job, int64_t m, int64_t n) {
    const int64_t skipped = m > 0 ? half_quarter_lines(tile_kind(&job->a->w->format)) * TILE_LINE : 0;
    at->all = job->a->n_row < SHARED_ROWS;
    at->ahead = at->all || n == 1 ? job->ahead : job->panel_bytes + skipped;
}

/* Multiplies panel after panel with all rows. */
static void direct_run(const linear_args *a, int64_t n0, int64_t n1) {
    const pack_format *f = &a->w->format;
    const tile_job job = tile_job_of(a, dot_zero_shift(tile_kind(f), f->asym));
    const direct_fn *fn = direct_for(f);
    const int64_t p0 = n0 / PACK_PANEL, p1 = num_div_up(n1, PACK_PANEL);
    for (int64_t panel = p0; panel < p1; panel++) {
        for (int64_t m = 0; m < a->n_row;) {
            direct_panel at; /* large: only the members that are used are set */
            const int64_t left = a->n_row - m;
            const int step = left >= 4 ? 2 : left >= 2 ? 1 : 0;
            at.codes = (const uint8_t *)a->w->data + panel * job.panel_bytes;
            direct_share(&at, &job, m, 1 << step);
            fn[step](&job, &at, m);
            for (int t = 0; t < 1 << step; t++)
                tile_finish(&job, panel, m + t, at.y[t]);
            m += 1 << step;
        }
    }
}

#endif
