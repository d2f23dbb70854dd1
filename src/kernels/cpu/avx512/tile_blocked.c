/* tile_blocked.c - many activation rows. Two panels x 512 of K are unpacked to one byte a code and floats of
 * scales (the first-level cache holds them), then all rows of a block pass over them, 6 at a time: 12 integer
 * and 12 float accumulators. Meanwhile the next block of weights is fetched. Between blocks of K the sums
 * stand in y. Rows come in blocks of up to 258, K in spans for which such a block of rows stays in the
 * second-level cache: the weights are unpacked few times and the rows are read from near. */
#include "kernels/cpu/avx512/tile_kernels.h"

#include "base/num.h"
#include "kernels/cpu/avx512/unpack.h"

enum { BLOCK_CHUNKS = 2, BLOCK_TILES = BLOCK_CHUNKS * TILE_CHUNK, ROWS_AT_ONCE = 6, MOST_ROWS = 258 };
enum { BLOCK_GROUPS = BLOCK_TILES * TILE_K / 16, NEAR_BYTES = 448 * 1024 };

/* What is unpacked: 16 + 4 + 4 KiB. The panels stand beside each other. */
typedef struct block {
    uint8_t lines[BLOCK_TILES * 16][2][TILE_LINE];
    float scale[BLOCK_GROUPS][2][PACK_PANEL], min[BLOCK_GROUPS][2][PACK_PANEL];
} block;
_Static_assert(sizeof(block) <= STRATEGY_SCRATCH, "as linear_args.scratch is");

/* Chunks [c0, c1) of one panel. */
static void unpack(block *b, int p, const pack_format *f, const void *panel, int64_t k, int64_t c0,
                   int64_t c1) {
    const unpacked to = {b->lines[0][p], b->scale[0][p], b->min[0][p], sizeof b->lines[0], 2 * PACK_PANEL};
    unpack_panel(&to, f, panel, k, c0, c1, 0);
}

typedef struct block_job {
    const tile_job *job;
    const block *b;
    int64_t panel, tile0; /* the first of the two panels; the block's first tile */
    int n_tile, zero_shift;
    bool is_first, is_last; /* block of K */
} block_job;

LANES_INLINE __m512 broadcast_float(const char *p) {
    return _mm512_set1_ps(*(const float *)(const void *)p);
}
LANES_INLINE __m512i broadcast_int(const char *p) {
    return _mm512_set1_epi32(*(const int32_t *)(const void *)p);
}

/* np panels x nt rows from row m, over the whole block. asym, group, np and nt are constants. */
LANES_INLINE void multiply(const block_job *j, int asym, int group, int np, int nt, int64_t m) {
    const linear_args *a = j->job->a;
    const act8_layout *l = &j->job->layout;
    const int quads = group / 4, per_tile = TILE_K / group;
    const char *x = (const char *)a->q.data + m * l->bytes;
    float *out = a->y + m * a->ldy + j->panel * PACK_PANEL;
    __m512 y[2][ROWS_AT_ONCE];
    LANES_UNROLL
    for (int p = 0; p < np; p++) {
        const __mmask16 mask = tile_mask(j->job, j->panel + p);
        LANES_UNROLL
        for (int t = 0; t < nt; t++)
            y[p][t] = j->is_first ? _mm512_setzero_ps()
                                  : _mm512_maskz_loadu_ps(mask, out + t * a->ldy + p * PACK_PANEL);
    }
    const int n_group = j->n_tile * per_tile;
    const int64_t g0 = j->tile0 * per_tile;
    const char *codes = x + j->tile0 * TILE_K;
    const char *scale = x + l->scale + j->tile0 * 8;
    const char *lift = x + (group == 16 ? l->lift16 : l->lift) + g0 * 4;
    const char *minus = x + (group == 16 ? l->minus16 : l->minus) + g0 * 4;
    for (int g = 0; g < n_group; g++, codes += group, lift += 4, minus += 4) {
        __m512i acc[2][ROWS_AT_ONCE];
        LANES_UNROLL
        for (int t = 0; t < nt; t++) {
            const __m512i start = asym ? _mm512_setzero_si512()
                                       : _mm512_sll_epi32(broadcast_int(minus + t * l->bytes),
                                                          _mm_cvtsi32_si128(j->zero_shift));
            LANES_UNROLL
            for (int p = 0; p < np; p++)
                acc[p][t] = start;
        }
        LANES_UNROLL
        for (int q = 0; q < quads; q++) {
            __m512i w[2];
            LANES_UNROLL
            for (int p = 0; p < np; p++)
                w[p] = _mm512_load_si512(j->b->lines[g * quads + q][p]);
            LANES_UNROLL
            for (int t = 0; t < nt; t++) {
                const __m512i xs = broadcast_int(codes + t * l->bytes + 4 * q);
                LANES_UNROLL
                for (int p = 0; p < np; p++)
                    acc[p][t] = _mm512_dpbusd_epi32(acc[p][t], w[p], xs);
            }
        }
        const char *s = scale + (group == 16 ? g / 2 : g) * 4;
        LANES_UNROLL
        for (int t = 0; t < nt; t++) {
            const __m512 xs = broadcast_float(s + t * l->bytes);
            LANES_UNROLL
            for (int p = 0; p < np; p++) {
                const __m512 both = _mm512_mul_ps(_mm512_load_ps(j->b->scale[g][p]), xs);
                y[p][t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[p][t]), both, y[p][t]);
            }
            if (asym) {
                const __m512 ls = broadcast_float(lift + t * l->bytes);
                LANES_UNROLL
                for (int p = 0; p < np; p++)
                    y[p][t] = _mm512_fmadd_ps(_mm512_load_ps(j->b->min[g][p]), ls, y[p][t]);
            }
        }
    }
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

typedef void (*multiply_fn)(const block_job *j, int64_t m);
#define DEFINE(asym, group, np, nt)                                                                          \
    static void multiply_##asym##_##group##_##np##_##nt(const block_job *j, int64_t m) {                     \
        multiply(j, asym, group, np, nt, m);                                                                 \
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
/* [asym][group is 32][panels - 1][rows - 1] */
static const multiply_fn multiplies[2][2][2][ROWS_AT_ONCE] = {
    {{{EACH_ROWS(NAME, 0, 16, 1)}, {EACH_ROWS(NAME, 0, 16, 2)}},
     {{EACH_ROWS(NAME, 0, 32, 1)}, {EACH_ROWS(NAME, 0, 32, 2)}}},
    {{{EACH_ROWS(NAME, 1, 16, 1)}, {EACH_ROWS(NAME, 1, 16, 2)}},
     {{EACH_ROWS(NAME, 1, 32, 1)}, {EACH_ROWS(NAME, 1, 32, 2)}}},
};

/* Rows [m0, m1) over a block: by 6, the last two steps evened out. Between the steps `ahead` bytes are
 * fetched from each of the places in next. */
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
} part;

static void panels_times_rows(const tile_job *job, int64_t panel, int np, const part *at) {
    const view *w = job->a->w;
    const pack_format *f = &w->format;
    block *b = job->a->scratch;
    const multiply_fn *fn = multiplies[f->asym ? 1 : 0][f->group == 32][np - 1];
    const int64_t n_tile = tile_count(w->k), n_chunk = num_div_up(n_tile, TILE_CHUNK);
    const int64_t chunk_bytes = tile_chunk_bytes(f, TILE_CHUNK);
    block_job j = {.job = job, .b = b, .panel = panel};
    for (int z = tile_zero(f); z > 1; z /= 2)
        j.zero_shift++;
    for (int64_t c = at->c0; c < at->c1; c += BLOCK_CHUNKS) {
        const int64_t end = NUM_MIN(at->c1, c + BLOCK_CHUNKS);
        const uint8_t *next[2];
        for (int p = 0; p < np; p++) {
            const uint8_t *weights = (const uint8_t *)w->data + (panel + p) * job->panel_bytes;
            unpack(b, p, f, weights, w->k, c, end);
            next[p] = end < at->c1 ? weights + end * chunk_bytes
                                   : weights + np * job->panel_bytes + at->c0 * chunk_bytes;
        }
        if (np == 1)
            next[1] = next[0];
        j.tile0 = c * TILE_CHUNK;
        j.n_tile = (int)NUM_MIN(n_tile - j.tile0, BLOCK_TILES);
        j.is_first = c == 0;
        j.is_last = c + BLOCK_CHUNKS >= n_chunk;
        multiply_rows(&j, fn, at->m0, at->m1, next, BLOCK_CHUNKS * chunk_bytes);
    }
}

static bool can(const pack_format *f, int64_t n_row) {
    (void)n_row;
    return tile_short_groups(f);
}

static void run(const linear_args *a, int64_t n0, int64_t n1) {
    const tile_job this = tile_job_of(a), *job = &this;
    const int64_t p0 = n0 / PACK_PANEL, p1 = num_div_up(n1, PACK_PANEL);
    const int64_t n_row = job->a->n_row, n_chunk = num_div_up(tile_count(job->a->w->k), TILE_CHUNK);
    const int64_t even = num_div_up(n_row, num_div_up(n_row, MOST_ROWS));
    const int64_t rows = num_round_up(even, ROWS_AT_ONCE);
    const int64_t fit = NEAR_BYTES / (rows * TILE_CHUNK_K * 3 / 2) / BLOCK_CHUNKS * BLOCK_CHUNKS;
    const int64_t chunks = NUM_MAX(fit, BLOCK_CHUNKS);
    part at;
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
