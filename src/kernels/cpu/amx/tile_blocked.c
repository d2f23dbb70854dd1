/* tile_blocked.c - products on AMX tiles: rows of activations in parts, panels of weights by two, K in
 * blocks; the loops are in short.h (groups of 16 and 32) and long.h (longer ones), the memory they share in
 * job.h.
 *
 * Codes of formats without a minimum are made signed when they are unpacked, which is exact and needs no
 * correction for the zero point. */
#include "kernels/cpu/amx/amx.h"
#include "kernels/cpu/amx/copy.h"
#include "kernels/cpu/amx/long.h"
#include "kernels/cpu/amx/short.h"

enum { ASYM_FROM = 65 };

static bool is_short(const pack_format *f) {
    return f->group == 16 || f->group == 32;
}

static void unpack_block(const block_job *j, int p, const void *panel, int64_t c0, int64_t c1) {
    const linear_args *a = j->job->a;
    const pack_format *f = &a->w->format;
    weights_block *w = &j->s->w;
    const unpacked to = {w->lines[p][0], w->scale[p][j->scale_at], w->min[p][j->scale_at], TILE_LINE,
                         PACK_PANEL};
    if (f->asym)
        unpack_panel(&to, f, panel, a->w->k, c0, c1, 0);
    else
        unpack_panel(&to, f, panel, a->w->k, c0, c1, 1);
}

/* ---- outputs ---- */

static void ask_ahead(const block_job *j, int64_t m, const float *y) {
    if (m + TILE_ROWS < j->at->m1)
        _mm_prefetch((const char *)(y + TILE_ROWS * j->job->a->ldy), _MM_HINT_T0);
}

/* What stands in y between two spans of K: as it stood in sums, integers too. y's rows lie far apart, so they
 * are asked for a tile ahead. */
static void begin_panels(const block_job *j, int64_t panel) {
    const linear_args *a = j->job->a;
    for (int64_t m = j->at->m0; m < j->at->m1; m++) {
        const float *y = a->y + m * a->ldy + panel * PACK_PANEL;
        const int64_t i = (m - j->at->m0) / TILE_ROWS, t = (m - j->at->m0) % TILE_ROWS;
        ask_ahead(j, m, y);
        for (int p = 0; p < j->np; p++)
            _mm512_store_ps(j->s->sums[i][p][t],
                            _mm512_maskz_loadu_ps(tile_mask(j->job, panel + p), y + p * PACK_PANEL));
    }
}

/* One finished vector: of whole rows it is integers still. */
static __m512 finished(const block_job *j, int64_t i, int p, int t) {
    const pack_format *f = &j->job->a->w->format;
    const float *sums = j->s->sums[i][p][t];
    if (f->group != PACK_GROUP_ROW)
        return _mm512_load_ps(sums);
    const copied x = copied_at(j, i, PACK_GROUP_ROW);
    const weights_block *w = &j->s->w;
    __m512 y = _mm512_setzero_ps();
    scale_group(f->asym, 1, (const int32_t(*)[PACK_PANEL])(const void *)sums, w->scale[p][0], w->min[p][0],
                x.scale + t, x.lift + t, &y);
    return y;
}

static void end_panels(const block_job *j, int64_t panel, bool is_last) {
    const linear_args *a = j->job->a;
    for (int64_t m = j->at->m0; m < j->at->m1; m++) {
        float *y = a->y + m * a->ldy + panel * PACK_PANEL;
        const int64_t i = (m - j->at->m0) / TILE_ROWS, t = (m - j->at->m0) % TILE_ROWS;
        ask_ahead(j, m, y);
        for (int p = 0; p < j->np; p++) {
            if (is_last)
                tile_store(j->job, panel + p, m, finished(j, i, p, (int)t));
            else
                _mm512_mask_storeu_ps(y + p * PACK_PANEL, tile_mask(j->job, panel + p),
                                      _mm512_load_ps(j->s->sums[i][p][t]));
        }
    }
}

/* ---- blocks ---- */

/* All rows of the part over the block that is unpacked. */
static void multiply_block(block_job *j, waiting *u) {
    const pack_format *f = &j->job->a->w->format;
    const int n_step = is_short(f) ? short_steps(f, j->n_tile) : j->n_tile;
    j->n_next = (int)num_div_up(BLOCK_CHUNKS * j->job->chunk_bytes, n_step * TILE_LINE);
    for (int64_t i = 0; i * TILE_ROWS < j->at->m1 - j->at->m0; j->n_next = 0)
        if (is_short(f))
            block_short(j, i++);
        else
            i += block_long(j, i, u);
}

/* Two panels (np 1: one) x all rows of the part. */
static void panels_times_rows(const tile_job *job, int64_t panel, int np, const part *at) {
    const view *w = job->a->w;
    const pack_format *f = &w->format;
    const int64_t n_tile = tile_count(w->k), n_chunk = num_div_up(n_tile, TILE_CHUNK);
    const uint8_t *weights = (const uint8_t *)w->data + panel * job->panel_bytes;
    block_job j = {.job = job, .at = at, .s = job->a->scratch, .np = np};
    waiting under_way = {.half = 0};
    if (at->c0 > 0)
        begin_panels(&j, panel);
    for (int64_t c = at->c0; c < at->c1; c += BLOCK_CHUNKS) {
        const int64_t end = NUM_MIN(at->c1, c + BLOCK_CHUNKS);
        const uint8_t *next = end < at->c1 ? weights + end * job->chunk_bytes
                                           : weights + np * job->panel_bytes + at->c0 * job->chunk_bytes;
        if (!is_short(f) && f->group != PACK_GROUP_ROW)
            j.scale_at = LONG_GROUPS - j.scale_at; /* those of the block before are needed still */
        for (int p = 0; p < np; p++) {
            unpack_block(&j, p, weights + p * job->panel_bytes, c, end);
            j.next[p] = next + p * job->panel_bytes;
        }
        j.tile0 = c * TILE_CHUNK;
        j.n_tile = (int)NUM_MIN(n_tile - j.tile0, BLOCK_CHUNKS * TILE_CHUNK);
        j.is_first = c == 0;
        multiply_block(&j, &under_way);
    }
    take_all(f->asym, &under_way);
    end_panels(&j, panel, at->c1 >= n_chunk);
}

/* Sums, activations, weights: two of each, or in long groups 4, 2, 2. */
static tiles_config config_for(const pack_format *f) {
    const int each = tile_codes(f), n_sum = is_short(f) ? 2 : 4;
    tiles_config c = {.palette = 1};
    for (int i = 0; i < n_sum + 4; i++) {
        c.rows[i] = (uint8_t)(i >= n_sum + 2 ? each / 4 : TILE_ROWS);
        c.bytes[i] = (uint16_t)(i >= n_sum && i < n_sum + 2 ? each : TILE_LINE);
    }
    return c;
}

static bool can(const pack_format *f, int64_t n_row) {
    (void)n_row;
    return f->scale != PACK_SCALE_TWO;
}

/* With groups of 16 and with minima for groups of 32 the vector units have so much to do for each tile
 * instruction that the tiles gain little or nothing (docs/kernels.md). */
static bool suits(const pack_format *f, int64_t n_row) {
    return f->group > 32 || (f->group == 32 && (!f->asym || n_row >= ASYM_FROM));
}

static void run(const linear_args *a, int64_t n0, int64_t n1) {
    const tile_job job = tile_job_of(a);
    const tiles_config config = config_for(&a->w->format);
    const int64_t p0 = n0 / PACK_PANEL, p1 = num_div_up(n1, PACK_PANEL);
    const int64_t n_chunk = num_div_up(tile_count(a->w->k), TILE_CHUNK);
    const int64_t rows = num_div_up(a->n_row, num_div_up(a->n_row, MOST_ROWS));
    const int64_t even = num_round_up(rows, TILE_ROWS);
    const int64_t chunks = CODE_BYTES / (even * BLOCK_K) * BLOCK_CHUNKS;
    part at;
    tiles_configure(&config);
    for (at.m0 = 0; at.m0 < a->n_row; at.m0 = at.m1) {
        at.m1 = NUM_MIN(a->n_row, at.m0 + even);
        for (at.c0 = 0; at.c0 < n_chunk; at.c0 = at.c1) {
            at.c1 = NUM_MIN(n_chunk, at.c0 + chunks);
            copy_part(&job, &at, a->scratch);
            for (int64_t p = p0; p < p1; p += 2)
                panels_times_rows(&job, p, (int)NUM_MIN(p1 - p, 2), &at);
        }
    }
    tiles_release();
}

const strategy amx_blocked = {.name = "padding.tiles",
                              .can = can,
                              .run = run,
                              .rule_from = 17,
                              .rule_rows = STRATEGY_ANY_ROWS,
                              .suits = suits,
                              .scratch = sizeof(scratch)};
