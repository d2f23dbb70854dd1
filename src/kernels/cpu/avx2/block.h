/* block.h - blocks of weights, which many activation rows pass over. One panel x up to 768 of K is unpacked
 * to one byte a code, which fits the first-level cache. Then all rows of a block of rows pass over it, a few
 * at a time. The next block of weights, and some lines of prefetch_list, are prefetched at the same time.
 * Between blocks of K the sums are in y. Rows are cut into blocks, and K into spans, such that a block of
 * rows over a span stays in the second-level cache.
 *
 * Included after a dot.h. */
#ifndef NIB_KERNELS_AVX2_BLOCK_H
#define NIB_KERNELS_AVX2_BLOCK_H

#include "kernels/cpu/avx2/tile.h"

enum { BLOCK_CHUNKS = 3, BLOCK_TILES = BLOCK_CHUNKS * TILE_CHUNK, MAX_ROWS = 132 };
enum { BLOCK_GROUPS = BLOCK_TILES * TILE_K / 16, NEAR_BYTES = 160 * 1024 };

/* A block: codes (12 KiB; 24 where codes of 8 bits take two lines, dot_two_lines), scales and minima of one
 * panel (3 + 3 KiB in groups of 16, half of that in groups of 32). For the rows that are being multiplied it
 * also has the integers of the current group and the float sums. */
typedef struct block {
    uint8_t lines[BLOCK_TILES * 16 * 2][TILE_LINE];
    float scale[BLOCK_GROUPS][PACK_PANEL], min[BLOCK_GROUPS][PACK_PANEL];
    __m256i open[DOT_BLOCK_ROWS][2];
    vf y[DOT_BLOCK_ROWS];
} block;
_Static_assert(sizeof(block) <= STRATEGY_SCRATCH, "as linear_args.scratch is");

typedef struct block_job {
    const tile_job *job;
    block *b;
    int64_t panel, tile0; /* the block's panel and first tile */
    int n_tile;
    bool is_first, is_last; /* block of K */
    /* Successive lines that are prefetched during the next call, one of each for each step (a group, or a
     * tile if there are fewer): of prefetch_list, and of the next block of weights or of the list again.
     * Where there are none, the block's own lines, which are in the cache already. */
    const char *ahead, *next;
} block_job;

/* How blocks are unpacked and multiplied. */
typedef void (*multiply_fn)(const block_job *j, int64_t m); /* some rows, from row m on */
typedef struct block_kernel {
    void (*unpack)(const block_job *j, int64_t c0, int64_t c1); /* chunks [c0, c1) of the job's panel */
    const multiply_fn *multiply;                                /* [max_rows]: n - 1 multiplies n rows */
    int max_rows;
    int group; /* elements of K in a step, in which lines are prefetched */
} block_kernel;

/* Takes the next n lines of prefetch_list. False: it has ended. */
static bool take_ahead(prefetch_list *s, int n, const char **out) {
    if (!s || s->run >= s->n_run)
        return false;
    *out = (const char *)s->runs[s->run].at + s->done;
    s->done += n * TILE_LINE;
    if (s->done >= s->runs[s->run].bytes) {
        s->bytes -= s->runs[s->run++].bytes;
        s->done = 0;
    }
    return true;
}

/* Takes the next n lines of [*at, end), as far as there are any. */
static const char *take_next(const block_job *j, int n, const char **at, const char *end) {
    if (*at >= end)
        return (const char *)j->b->lines;
    const char *const taken = *at;
    *at += n * TILE_LINE;
    return taken;
}

/* Multiplies rows [m0, m1) with a block and prefetches `bytes` bytes at `at`: during the products, and the
 * rest between them. */
static void multiply_rows(block_job *j, const block_kernel *k, int64_t m0, int64_t m1, const char *at,
                          int64_t bytes) {
    const int64_t max = k->max_rows;
    const int n_step = j->n_tile * TILE_K / k->group;
    const char *const begin = at, *const end = at + bytes;
    const int64_t each = bytes / (m1 - m0);
    prefetch_list *const list = j->job->a->prefetch;
    for (int64_t m = m0; m < m1;) {
        const int64_t left = m1 - m, n = left >= 2 * max || left <= max ? NUM_MIN(left, max) : (left + 1) / 2;
        const char *const share = begin + each * (m + n - m0);
        if (!take_ahead(list, n_step, &j->ahead))
            j->ahead = take_next(j, n_step, &at, end);
        if (at < end || !list || !list->twice || !take_ahead(list, n_step, &j->next))
            j->next = take_next(j, n_step, &at, end);
        for (; at < share; at += TILE_LINE)
            _mm_prefetch(at, _MM_HINT_T1);
        k->multiply[n - 1](j, m);
        m += n;
    }
}

/* A part of the work: rows [m0, m1) and blocks [b0, b1) of K, which is cut into n_block even blocks. */
typedef struct part {
    int64_t m0, m1, b0, b1, n_block;
} part;

static void panel_times_rows(const tile_job *job, const block_kernel *k, int64_t panel, const part *at) {
    const view *w = job->a->w;
    const int64_t n_tile = tile_count(w->k), n_chunk = num_div_up(n_tile, TILE_CHUNK);
    const int64_t chunk_bytes = tile_chunk_bytes(&w->format, TILE_CHUNK);
    block_job j = {.job = job, .b = job->a->scratch, .panel = panel};
    int64_t c = n_chunk * at->b0 / at->n_block;
    for (int64_t b = at->b0, end; b < at->b1; b++, c = end) {
        const int64_t next = b + 1 < at->b1 ? panel : panel + 1, first = b + 1 < at->b1 ? b + 1 : at->b0;
        end = n_chunk * (b + 1) / at->n_block;
        k->unpack(&j, c, end);
        j.tile0 = c * TILE_CHUNK;
        j.n_tile = (int)NUM_MIN(n_tile - j.tile0, (end - c) * TILE_CHUNK);
        j.is_first = b == 0;
        j.is_last = b + 1 == at->n_block;
        multiply_rows(&j, k, at->m0, at->m1,
                      (const char *)w->data + next * job->panel_bytes +
                          n_chunk * first / at->n_block * chunk_bytes,
                      num_div_up(n_chunk, at->n_block) * chunk_bytes);
    }
}

/* Multiplies the job's rows with rows [n0, n1) of the weights. */
static void run_blocks(const tile_job *job, const block_kernel *k, int64_t n0, int64_t n1) {
    const linear_args *a = job->a;
    const int64_t n_chunk = num_div_up(tile_count(a->w->k), TILE_CHUNK);
    const int64_t n_block = num_div_up(n_chunk, BLOCK_CHUNKS);
    const int64_t p1 = num_div_up(n1, PACK_PANEL);
    const int64_t even = num_div_up(a->n_row, num_div_up(a->n_row, MAX_ROWS));
    const int64_t rows = num_round_up(even, 12);
    const int64_t near = NEAR_BYTES / (rows * TILE_CHUNK_K * 3 / 2) / num_div_up(n_chunk, n_block);
    part at = {.n_block = n_block};
    for (at.m0 = 0; at.m0 < a->n_row; at.m0 = at.m1) {
        at.m1 = NUM_MIN(a->n_row, at.m0 + rows);
        for (at.b0 = 0; at.b0 < n_block; at.b0 = at.b1) {
            at.b1 = NUM_MIN(n_block, at.b0 + NUM_MAX(near, 1));
            for (int64_t p = n0 / PACK_PANEL; p < p1; p++)
                panel_times_rows(job, k, p, &at);
        }
    }
}

#endif
