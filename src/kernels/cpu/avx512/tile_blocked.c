/* tile_blocked.c - products of many activation rows. Two panels x 512 of K, or all of K up to 768, are
 * unpacked to one byte a code and float scales, which fit the first-level cache. Then all rows of a block of
 * rows pass over them, 6 at a time, with 12 integer and 12 float accumulators. The next block of weights is
 * prefetched at the same time. Between blocks of K the sums are in y; if a group is as long as the row, they
 * are still integers. Rows are cut into blocks of up to 258, and K into spans, such that a block of rows over
 * a span stays in the second-level cache. So weights are unpacked few times, and rows are read from the
 * cache. Two-level scales are multiplied into the codes when they are unpacked, which gives one group a row
 * of 8-bit integers. */
#include "kernels/cpu/avx512/tile_kernels.h"

#include "base/num.h"
#include "kernels/cpu/avx512/unpack.h"

enum { BLOCK_CHUNKS = 3, BLOCK_TILES = BLOCK_CHUNKS * TILE_CHUNK, ROWS_AT_ONCE = 6, MAX_ROWS = 258 };
enum { BLOCK_GROUPS = BLOCK_TILES * TILE_K / 16, NEAR_BYTES = 448 * 1024 };
/* Chunks of a block if K needs several blocks: a first-level cache may have 32 KiB. */
enum { PART_CHUNKS = 2 };

/* A block: the unpacked codes (24 KiB), scales and minima (6 + 6 KiB in groups of 16, half of that in groups
 * of 32) of two panels, interleaved. */
typedef struct block {
    uint8_t lines[BLOCK_TILES * 16][2][TILE_LINE];
    float scale[BLOCK_GROUPS][2][PACK_PANEL], min[BLOCK_GROUPS][2][PACK_PANEL];
} block;
_Static_assert(sizeof(block) <= STRATEGY_SCRATCH, "a block fits linear_args.scratch");

/* Unpacks chunks [c0, c1) of one panel to panel p of the block. */
static void unpack(block *b, int p, const pack_format *f, const void *panel, int64_t k, int64_t c0,
                   int64_t c1) {
    const unpacked to = {b->lines[0][p], b->scale[0][p], b->min[0][p], sizeof b->lines[0], 2 * PACK_PANEL};
    unpack_panel(&to, f, panel, k, c0, c1, 0);
    if (f->scale == PACK_SCALE_TWO)
        unpack_two(&to, f, panel, k, c0, c1);
}

typedef struct block_job {
    const tile_job *job;
    const block *b;
    int64_t panel, tile0; /* the first of the two panels; the block's first tile */
    int n_tile;
    bool is_first, is_last; /* block of K */
} block_job;

/* Load and store the sums that y holds between blocks of K. Before the first block they are zeros; after the
 * last one finished outputs are stored. */
LANES_INLINE void load_sums(const block_job *j, int np, int nt, int64_t m, __m512 y[2][ROWS_AT_ONCE]) {
    const linear_args *a = j->job->a;
    const float *out = a->y + m * a->ldy + j->panel * PACK_PANEL;
    LANES_UNROLL
    for (int p = 0; p < np; p++) {
        const __mmask16 mask = tile_mask(j->job, j->panel + p);
        LANES_UNROLL
        for (int t = 0; t < nt; t++)
            y[p][t] = j->is_first ? _mm512_setzero_ps()
                                  : _mm512_maskz_loadu_ps(mask, out + t * a->ldy + p * PACK_PANEL);
    }
}
LANES_INLINE void store_sums(const block_job *j, int np, int nt, int64_t m, __m512 y[2][ROWS_AT_ONCE]) {
    const linear_args *a = j->job->a;
    float *out = a->y + m * a->ldy + j->panel * PACK_PANEL;
    LANES_UNROLL
    for (int p = 0; p < np; p++) {
        const __mmask16 mask = tile_mask(j->job, j->panel + p);
        LANES_UNROLL
        for (int t = 0; t < nt; t++) {
            if (j->is_last)
                tile_store(j->job, j->panel + p, m + t, y[p][t]);
            else
                _mm512_mask_storeu_ps(out + t * a->ldy + p * PACK_PANEL, mask, y[p][t]);
        }
    }
}

/* Multiplies quads [q0, q0 + quads) of the block with rows whose codes begin at `codes`. */
LANES_INLINE void multiply_quads(const block_job *j, int np, int nt, int q0, int quads, const char *codes,
                                 __m512i acc[2][ROWS_AT_ONCE]) {
    LANES_UNROLL
    for (int q = 0; q < quads; q++) {
        __m512i w[2];
        LANES_UNROLL
        for (int p = 0; p < np; p++)
            w[p] = _mm512_load_si512(j->b->lines[q0 + q][p]);
        LANES_UNROLL
        for (int t = 0; t < nt; t++) {
            const __m512i xs = tile_int(codes + t * j->job->layout.bytes + 4 * q);
            LANES_UNROLL
            for (int p = 0; p < np; p++)
                acc[p][t] = _mm512_dpbusd_epi32(acc[p][t], w[p], xs);
        }
    }
}

/* Scales the sums of group g of the block and adds them to y. scale, lift: those of the rows. */
LANES_INLINE void multiply_scale(const block_job *j, int asym, int np, int nt, int g, const char *scale,
                                 const char *lift, __m512i acc[2][ROWS_AT_ONCE], __m512 y[2][ROWS_AT_ONCE]) {
    const int64_t row = j->job->layout.bytes;
    LANES_UNROLL
    for (int t = 0; t < nt; t++) {
        const __m512 xs = tile_float(scale + t * row);
        LANES_UNROLL
        for (int p = 0; p < np; p++) {
            const __m512 both = _mm512_mul_ps(_mm512_load_ps(j->b->scale[g][p]), xs);
            y[p][t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[p][t]), both, y[p][t]);
        }
        if (asym) {
            const __m512 ls = tile_float(lift + t * row);
            LANES_UNROLL
            for (int p = 0; p < np; p++)
                y[p][t] = _mm512_fmadd_ps(_mm512_load_ps(j->b->min[g][p]), ls, y[p][t]);
        }
    }
}

/* Multiplies np panels with nt rows from row m on, over the whole block, in groups of 16 or 32. asym, group,
 * np and nt are constants. */
LANES_INLINE void multiply(const block_job *j, int asym, int group, int np, int nt, int64_t m) {
    const tile_job *job = j->job;
    const int per_tile = TILE_K / group;
    const int64_t row = job->layout.bytes, g0 = j->tile0 * per_tile;
    const char *x = (const char *)job->a->q.data + m * row;
    const char *codes = x + j->tile0 * TILE_K, *scale = x + job->scale + j->tile0 * 8;
    const char *lift = x + job->lift + g0 * 4, *minus = x + job->minus + g0 * 4;
    __m512 y[2][ROWS_AT_ONCE];
    load_sums(j, np, nt, m, y);
    for (int g = 0; g < j->n_tile * per_tile; g++, codes += group, lift += 4, minus += 4) {
        __m512i acc[2][ROWS_AT_ONCE];
        LANES_UNROLL
        for (int t = 0; t < nt; t++) {
            const __m512i start = asym ? _mm512_setzero_si512() : tile_start(job, minus + t * row);
            LANES_UNROLL
            for (int p = 0; p < np; p++)
                acc[p][t] = start;
        }
        multiply_quads(j, np, nt, g * group / 4, group / 4, codes, acc);
        multiply_scale(j, asym, np, nt, g, scale + (group == 16 ? g / 2 : g) * 4, lift, acc, y);
    }
    store_sums(j, np, nt, m, y);
}

/* multiply for groups of 64, 128 or the row, with minima or without. */
LANES_INLINE void multiply_long(const block_job *j, int np, int nt, int64_t m) {
    const tile_job *job = j->job;
    const int64_t row = job->layout.bytes, n_tile = tile_count(job->a->w->k);
    const bool whole = job->group_tiles == n_tile && n_tile > BLOCK_TILES, asym = job->a->w->format.asym;
    const char *x = (const char *)job->a->q.data + m * row;
    __m512 y[2][ROWS_AT_ONCE];
    __m512i acc[2][ROWS_AT_ONCE];
    load_sums(j, np, nt, m, y);
    LANES_UNROLL
    for (int t = 0; t < nt; t++) {
        LANES_UNROLL
        for (int p = 0; p < np; p++) {
            acc[p][t] = whole ? _mm512_castps_si512(y[p][t]) : _mm512_setzero_si512();
            y[p][t] = whole ? _mm512_setzero_ps() : y[p][t];
        }
    }
    for (int i = 0, g = 0; i < j->n_tile; i++) {
        const int64_t tile = j->tile0 + i, group = tile / job->group_tiles;
        multiply_quads(j, np, nt, i * TILE_K / 4, TILE_K / 4, x + tile * TILE_K, acc);
        if ((tile + 1) % job->group_tiles && tile + 1 < n_tile)
            continue;
        LANES_UNROLL
        for (int t = 0; t < nt; t++) {
            const __m512i start = tile_start(job, x + t * row + job->minus + 4 * group);
            LANES_UNROLL
            for (int p = 0; p < np; p++)
                acc[p][t] = _mm512_add_epi32(acc[p][t], start);
        }
        multiply_scale(j, asym, np, nt, g++, x + job->scale + 4 * group, x + job->lift + 4 * group, acc, y);
        LANES_UNROLL
        for (int t = 0; t < nt; t++)
            acc[0][t] = acc[1][t] = _mm512_setzero_si512();
    }
    if (whole && !j->is_last) {
        LANES_UNROLL
        for (int t = 0; t < nt; t++) {
            LANES_UNROLL
            for (int p = 0; p < np; p++)
                y[p][t] = _mm512_castsi512_ps(acc[p][t]);
        }
    }
    store_sums(j, np, nt, m, y);
}

typedef void (*multiply_fn)(const block_job *j, int64_t m);
#define DEFINE(asym, group, np, nt)                                                                          \
    static void multiply_##asym##_##group##_##np##_##nt(const block_job *j, int64_t m) {                     \
        multiply(j, asym, group, np, nt, m);                                                                 \
    }
#define DEFINE_LONG(asym, group, np, nt)                                                                     \
    static void multiply_##asym##_##group##_##np##_##nt(const block_job *j, int64_t m) {                     \
        multiply_long(j, np, nt, m);                                                                         \
    }
#define NAME(asym, group, np, nt) multiply_##asym##_##group##_##np##_##nt,
#define EACH_ROWS(X, asym, group, np)                                                                        \
    X(asym, group, np, 1)                                                                                    \
    X(asym, group, np, 2)                                                                                    \
    X(asym, group, np, 3) X(asym, group, np, 4) X(asym, group, np, 5) X(asym, group, np, 6)
EACH_ROWS(DEFINE, 0, 16, 1)
EACH_ROWS(DEFINE, 0, 16, 2)
EACH_ROWS(DEFINE, 0, 32, 1)
EACH_ROWS(DEFINE, 0, 32, 2)
EACH_ROWS(DEFINE, 1, 16, 1)
EACH_ROWS(DEFINE, 1, 16, 2)
EACH_ROWS(DEFINE, 1, 32, 1)
EACH_ROWS(DEFINE, 1, 32, 2)
EACH_ROWS(DEFINE_LONG, any, long, 1)
EACH_ROWS(DEFINE_LONG, any, long, 2)
/* [panels - 1][rows - 1] */
typedef multiply_fn kernels[2][ROWS_AT_ONCE];
#define BOTH(asym, group)                                                                                    \
    {                                                                                                        \
        {EACH_ROWS(NAME, asym, group, 1)}, {                                                                 \
            EACH_ROWS(NAME, asym, group, 2)                                                                  \
        }                                                                                                    \
    }
/* [asym][group is 32] */
static const kernels multiplies[2][2] = {{BOTH(0, 16), BOTH(0, 32)}, {BOTH(1, 16), BOTH(1, 32)}};
static const kernels multiplies_long = BOTH(any, long);

/* Multiplies rows [m0, m1) with a block, 6 at a time; the last two steps share their rows evenly. Between the
 * steps `ahead` bytes at each address of next are prefetched. */
static void multiply_rows(const block_job *j, const multiply_fn *fn, int64_t m0, int64_t m1,
                          const uint8_t *const *next, int64_t ahead) {
    const int64_t share = num_round_up(num_div_up(ahead * ROWS_AT_ONCE, m1 - m0), TILE_LINE);
    int64_t fetched = 0;
    for (int64_t m = m0; m < m1;) {
        const int64_t left = m1 - m;
        for (const int64_t end = NUM_MIN(fetched + share, ahead); fetched < end; fetched += TILE_LINE) {
            _mm_prefetch((const char *)next[0] + fetched, _MM_HINT_T1);
            _mm_prefetch((const char *)next[1] + fetched, _MM_HINT_T1);
        }
        const int64_t n =
            left >= 2 * ROWS_AT_ONCE || left <= ROWS_AT_ONCE ? NUM_MIN(left, ROWS_AT_ONCE) : (left + 1) / 2;
        fn[n - 1](j, m);
        m += n;
    }
}

/* A part of the work: rows [m0, m1), chunks [c0, c1) of K. */
typedef struct part {
    int64_t m0, m1, c0, c1;
    int64_t step; /* number of chunks in a block */
} part;

static void panels_times_rows(const tile_job *job, int64_t panel, int np, const part *at) {
    const view *w = job->a->w;
    const pack_format *f = &w->format;
    block *b = job->a->scratch;
    const kernels *of =
        tile_short_groups(f) ? &multiplies[f->asym ? 1 : 0][f->group == 32] : &multiplies_long;
    const int64_t n_tile = tile_count(w->k), n_chunk = num_div_up(n_tile, TILE_CHUNK);
    const int64_t chunk_bytes = tile_chunk_bytes(f, TILE_CHUNK);
    block_job j = {.job = job, .b = b, .panel = panel};
    for (int64_t c = at->c0, end; c < at->c1; c = end) {
        end = NUM_MIN(at->c1, c + at->step);
        const uint8_t *next[2] = {w->data, w->data};
        for (int p = 0; p < np; p++) {
            const uint8_t *weights = (const uint8_t *)w->data + (panel + p) * job->panel_bytes;
            unpack(b, p, f, weights, w->k, c, end);
            next[p] = end < at->c1 ? weights + end * chunk_bytes
                                   : weights + np * job->panel_bytes + at->c0 * chunk_bytes;
        }
        if (np == 1)
            next[1] = next[0];
        j.tile0 = c * TILE_CHUNK;
        j.n_tile = (int)NUM_MIN(n_tile - j.tile0, (end - c) * TILE_CHUNK);
        j.is_first = c == 0;
        j.is_last = end == n_chunk;
        multiply_rows(&j, (*of)[np - 1], at->m0, at->m1, next,
                      NUM_MIN(at->step * chunk_bytes, job->panel_bytes));
    }
}

static bool can(const pack_format *f, int64_t n_row) {
    (void)n_row;
    return f->layout == PACK_TILE;
}

static void run(const linear_args *a, int64_t n0, int64_t n1) {
    tile_job this = tile_job_of(a);
    const tile_job *job = &this;
    if (a->w->format.scale == PACK_SCALE_TWO) {
        this.group_tiles = tile_count(a->w->k);
        this.zero_shift = _mm_cvtsi32_si128(7);
    }
    const int64_t p0 = n0 / PACK_PANEL, p1 = num_div_up(n1, PACK_PANEL);
    const int64_t n_row = job->a->n_row, n_chunk = num_div_up(tile_count(job->a->w->k), TILE_CHUNK);
    const int64_t even = num_div_up(n_row, num_div_up(n_row, MAX_ROWS));
    const int64_t rows = num_round_up(even, ROWS_AT_ONCE);
    const int64_t step = n_chunk <= BLOCK_CHUNKS ? n_chunk : PART_CHUNKS;
    const int64_t fit = NEAR_BYTES / (rows * TILE_CHUNK_K * 3 / 2) / step * step;
    const int64_t chunks = NUM_MAX(fit, step);
    part at = {.step = step};
    for (at.m0 = 0; at.m0 < n_row; at.m0 = at.m1) {
        at.m1 = NUM_MIN(n_row, at.m0 + rows);
        for (at.c0 = 0; at.c0 < n_chunk; at.c0 = at.c1) {
            at.c1 = NUM_MIN(n_chunk, at.c0 + chunks);
            for (int64_t p = p0; p < p1; p += 2)
                panels_times_rows(job, p, (int)NUM_MIN(p1 - p, 2), &at);
        }
    }
}

const strategy avx512_blocked = {
    .name = "padding.blocked", .can = can, .run = run, .rule_rows = STRATEGY_ANY_ROWS};
