/* tile_blocked.c - products on AMX tiles: rows of activations in parts, panels of weights in pairs, K in
 * blocks. The loops are in groups.h, and in whole.h for rows that are one group. job.h has the memory that
 * they share.
 *
 * Codes of formats without a minimum are made signed when they are unpacked, which is exact and needs no
 * correction for the zero point. */
#include "kernels/cpu/amx/amx.h"
#include "kernels/cpu/amx/copy.h"
#include "kernels/cpu/amx/groups.h"
#include "kernels/cpu/amx/whole.h"

enum { ASYM_FROM = 65 };

static void unpack_block(const block_job *j, int p, const void *panel, int64_t c0, int64_t c1) {
    const linear_args *a = j->job->a;
    const pack_format *f = &a->w->format;
    weights_block *w = &j->s->w;
    const unpacked to = {w->lines[p][0], w->scale[p][0], w->min[p][0], TILE_LINE, PACK_PANEL};
    if (f->asym)
        unpack_panel(&to, f, panel, a->w->k, c0, c1, 0);
    else
        unpack_panel(&to, f, panel, a->w->k, c0, c1, 1);
}

/* ---- outputs ---- */

/* Loads the sums that y holds between two spans of K; they may be integers. The rows of y are far apart, so
 * they are prefetched one tile early. */
static void begin_panels(const block_job *j, int64_t panel) {
    const linear_args *a = j->job->a;
    for (int64_t m = j->at->m0; m < j->at->m1; m++) {
        const float *y = a->y + m * a->ldy + panel * PACK_PANEL;
        const int64_t i = (m - j->at->m0) / TILE_ROWS, t = (m - j->at->m0) % TILE_ROWS;
        for (int p = 0; p < j->np; p++)
            _mm512_store_ps(j->s->sums[i][p][t],
                            _mm512_maskz_loadu_ps(tile_mask(j->job, panel + p), y + p * PACK_PANEL));
    }
}

/* A finished vector of outputs. If rows are one group, it is scaled here. */
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

/* Sets the prefetches for the time in which the block up to chunk `end` is multiplied: the weights after it,
 * and after the last block the rows of y, which are far apart. */
static void set_prefetches(block_job *j, int64_t panel, int64_t end) {
    const tile_job *job = j->job;
    const linear_args *a = job->a;
    const bool more = end < j->at->c1;
    const char *weights = (const char *)a->w->data + (panel + (more ? 0 : j->np)) * job->panel_bytes +
                          (more ? end : j->at->c0) * job->chunk_bytes;
    j->next = j->prefetches;
    for (int p = 0; p < j->np; p++)
        j->prefetches[p] = (prefetch_lines){weights + p * job->panel_bytes, TILE_LINE,
                                            (int)num_div_up(BLOCK_CHUNKS * job->chunk_bytes, TILE_LINE)};
    j->prefetches[j->np] =
        (prefetch_lines){(const char *)(a->y + j->at->m0 * a->ldy + panel * PACK_PANEL),
                         a->ldy * (int64_t)sizeof *a->y, more ? 0 : (int)(j->at->m1 - j->at->m0)};
    j->prefetches[j->np + 1] = (prefetch_lines){0};
}
/* Sets the number of lines at each of n_step steps, so that all lines are prefetched at the end. */
static void spread_prefetches(block_job *j, int64_t n_step) {
    int64_t left = 0;
    for (int i = 0; i < PREFETCHES; i++)
        left += j->prefetches[i].left;
    j->per_step = (int)num_div_up(left, NUM_MAX(n_step - PREFETCHES, 1));
}

/* Multiplies all rows of the part with the unpacked block and prefetches. */
static void multiply_block(block_job *j) {
    const bool whole = j->job->a->w->format.group == PACK_GROUP_ROW;
    const int64_t n_tile_row = num_div_up(j->at->m1 - j->at->m0, TILE_ROWS);
    const int64_t n_step = whole ? (n_tile_row + 1) / 2 * j->n_tile : groups_steps(j);
    spread_prefetches(j, n_step);
    if (!whole)
        block_groups(j);
    for (int64_t i = 0; whole && i < n_tile_row;)
        i += block_whole(j, i);
}

/* Multiplies two panels (np 1: one) with all rows of the part. */
static void panels_times_rows(const tile_job *job, int64_t panel, int np, const part *at) {
    const view *w = job->a->w;
    const int64_t n_tile = tile_count(w->k), n_chunk = num_div_up(n_tile, TILE_CHUNK);
    const uint8_t *weights = (const uint8_t *)w->data + panel * job->panel_bytes;
    block_job j = {.job = job, .at = at, .s = job->a->scratch, .np = np};
    if (at->c0 > 0)
        begin_panels(&j, panel);
    for (int64_t c = at->c0; c < at->c1; c += BLOCK_CHUNKS) {
        const int64_t end = NUM_MIN(at->c1, c + BLOCK_CHUNKS);
        for (int p = 0; p < np; p++)
            unpack_block(&j, p, weights + p * job->panel_bytes, c, end);
        set_prefetches(&j, panel, end);
        j.tile0 = c * TILE_CHUNK;
        j.n_tile = (int)NUM_MIN(n_tile - j.tile0, BLOCK_CHUNKS * TILE_CHUNK);
        j.is_first = c == 0;
        multiply_block(&j);
    }
    end_panels(&j, panel, at->c1 >= n_chunk);
}

/* The shapes of the tile registers: four of sums, two of activations, two of weights. */
static tiles_config config_for(const pack_format *f) {
    const int each = tile_codes(f);
    tiles_config c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        c.rows[i] = (uint8_t)(i >= 6 ? each / 4 : TILE_ROWS);
        c.bytes[i] = (uint16_t)(i == 4 || i == 5 ? each : TILE_LINE);
    }
    return c;
}

static bool can(const pack_format *f, int64_t n_row) {
    (void)n_row;
    return f->scale != PACK_SCALE_TWO;
}

/* With groups of 16, and with minima in groups of 32, the vector units have so much work for each tile
 * instruction that tiles gain little or nothing (docs/kernels.md). */
static bool suits(const pack_format *f, int64_t n_row) {
    return f->group > 32 || (f->group == 32 && (!f->asym || n_row >= ASYM_FROM));
}

static void run(const linear_args *a, int64_t n0, int64_t n1) {
    const tile_job job = tile_job_of(a);
    const tiles_config config = config_for(&a->w->format);
    const int64_t p0 = n0 / PACK_PANEL, p1 = num_div_up(n1, PACK_PANEL);
    const int64_t n_chunk = num_div_up(tile_count(a->w->k), TILE_CHUNK);
    const int64_t max = CODE_BYTES / (n_chunk * TILE_CHUNK_K) < MAX_ROWS ? FEW_ROWS : MAX_ROWS;
    const int64_t rows = num_div_up(a->n_row, num_div_up(a->n_row, max));
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

/* The codes of the rows of a part with their scales and lifts, and as many sums. */
static size_t scratch_of(int64_t n_row, int64_t k) {
    const size_t rows = (size_t)NUM_MIN(num_round_up(n_row, TILE_ROWS), (int64_t)MAX_ROWS);
    const size_t codes = NUM_MIN(rows * (size_t)num_round_up(k, TILE_CHUNK_K), (size_t)CODE_BYTES);
    const size_t factors = codes / ACT8_GROUP * sizeof(float) + codes / ACT8_SUM * sizeof(float);
    return sizeof(weights_block) + RING * sizeof(tile_sums) + rows / TILE_ROWS * 2 * sizeof(tile_floats) +
           codes + factors;
}

const strategy amx_blocked = {.name = "padding.tiles",
                              .can = can,
                              .run = run,
                              .rule_from = 13,
                              .rule_rows = STRATEGY_ANY_ROWS,
                              .suits = suits,
                              .scratch = sizeof(scratch),
                              .scratch_of = scratch_of};
