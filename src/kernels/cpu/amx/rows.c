/* rows.c - products with float weights (PACK_ROWS) on the tile unit: rows of activations are cut into parts,
 * K into spans whose slices fit in half of a second-level cache, and spans into blocks of 512. rows_job.h has
 * the order of the sums, slice.h the slices. */
#include "kernels/cpu/amx/amx.h"
#include "kernels/cpu/amx/rows_job.h"
#include "kernels/lanes/rows.h"

enum {
    DIRECT_ROWS = 32, /* at most so many rows of activations multiply bf16 weights in place; more would read
                         rows that are a power of two apart again and again */
    FIRST_LINES = 256 /* lines of the first weights that are prefetched while the activations are sliced */
};

/* Steps [s0, s1) of K for rows [m0, m_end). */
typedef struct rows_span {
    int64_t m0, s0, s1;
} rows_span;

static int64_t row_bytes(const rows_job *j) {
    return rows_stride(j->a->w->k) * weight_bytes(j->type);
}

/* The tiles of activations of a span from row m and `step` on: [tile][slice][step]. */
static operand x_at(const rows_job *j, const rows_span *at, int64_t m, int64_t step) {
    const int64_t slice = (at->s1 - at->s0) * TILE_BYTES;
    return (operand){j->s->x + (m - at->m0) / TILE_ROWS * MAX_SLICES * slice + (step - at->s0) * TILE_BYTES,
                     LANES * 4, TILE_BYTES, MAX_SLICES * slice, slice};
}

/* Slices the activations of a span. wild: sets the bits of rows that the tile unit cannot compute
 * (slice_wild). */
static void slice_span(const rows_job *j, const rows_span *at, uint16_t *wild) {
    const linear_args *a = j->a;
    const int64_t k0 = at->s0 * STEP_K, k = NUM_MIN(at->s1 * STEP_K, a->w->k) - k0;
    for (int64_t m = at->m0, i = 0; m < j->m_end; m += TILE_ROWS, i++) {
        const operand x = x_at(j, at, m, at->s0);
        const float *rows = a->x + m * a->ldx + k0;
        char *to = j->s->x + (x.at - j->s->x);
        wild[i] |= slice_rows(rows, a->ldx, (int)NUM_MIN(j->m_end - m, TILE_ROWS), k, to, x.slice);
    }
}

/* nn tiles of weights from row n on, a block from `step` on: in place, or cut into slices in the scratch. */
static operand w_at(const rows_job *j, int64_t n, int nn, int64_t step, int n_step) {
    const view *w = j->a->w;
    const int64_t each = row_bytes(j), k0 = step * STEP_K;
    const char *from = (const char *)w->data + n * each + k0 * weight_bytes(j->type);
    if (j->type == TYPE_BF16 && j->a->n_row <= DIRECT_ROWS && n + nn * TILE_ROWS <= w->n && each % 64 == 0 &&
        (uintptr_t)w->data % 64 == 0)
        return (operand){from, each, STEP_K * 2, TILE_ROWS * each, 0};
    const int64_t k = NUM_MIN(n_step * STEP_K, rows_stride(w->k) - k0), slice = (int64_t)nn * W_TILE;
    for (int i = 0; i < nn; i++)
        slice_weights(j->type, from + i * TILE_ROWS * each, each,
                      (int)NUM_MIN(w->n - n - i * TILE_ROWS, TILE_ROWS), k, j->s->w + i * W_TILE, slice);
    return (operand){j->s->w, STEP_K * 2, TILE_BYTES, W_TILE, slice};
}

/* The prefetches for nn tiles of weights from row n on (none from n1 on), a block from `step` on. */
static prefetch_rows prefetch_of(const rows_job *j, int64_t n, int64_t n1, int nn, int64_t step,
                                 int64_t end) {
    const int bytes = weight_bytes(j->type);
    const int n_step = (int)NUM_MIN(end - step, BLOCK_STEPS);
    return (prefetch_rows){.at = (const char *)j->a->w->data + n * row_bytes(j) + step * STEP_K * bytes,
                           .row_bytes = row_bytes(j),
                           .n_line = n_step * STEP_K * bytes / 64,
                           .n_row = (int)NUM_MAX(NUM_MIN(n1 - n, nn * TILE_ROWS), 0)};
}

/* Multiplies nn tiles of weights from row n on with all rows of the part, over a span. */
static void weights_times_rows(rows_job *j, const rows_span *at, int64_t n, int64_t n1, int nn) {
    const int64_t n_tile = num_div_up(j->m_end - at->m0, TILE_ROWS);
    for (int64_t s = at->s0; s < at->s1; s += BLOCK_STEPS) {
        const int n_step = (int)NUM_MIN(at->s1 - s, BLOCK_STEPS);
        const operand w = w_at(j, n, nn, s, n_step);
        j->next = s + n_step < at->s1 ? prefetch_of(j, n, n1, nn, s + n_step, at->s1)
                                      : prefetch_of(j, n + nn * TILE_ROWS, n1, nn, at->s0, at->s1);
        j->next.each = (int)num_div_up((int64_t)j->next.n_row * j->next.n_line,
                                       (n_tile + 1) / 2 * passes[weight_slices(j->type) - 1].n * n_step);
        for (int64_t i = 0; i < n_tile; i += 2) {
            const int64_t m = at->m0 + i * TILE_ROWS;
            const operand x = x_at(j, at, m, s);
            const group g = {.nn = nn,
                             .nm = (int)NUM_MIN(n_tile - i, 2),
                             .n = n,
                             .m = m,
                             .is_first = s == 0,
                             .is_last = s + n_step == j->n_step};
            multiply_group(j, g, &w, &x, n_step);
        }
    }
}

/* Multiplies rows [m0, m_end) of the activations with rows [n0, n1) of the weights. */
static void multiply_part(rows_job *j, int64_t m0, int64_t n0, int64_t n1) {
    const int64_t n_tile = num_div_up(j->m_end - m0, TILE_ROWS);
    const int64_t of_step = n_tile * MAX_SLICES * TILE_BYTES;
    const int64_t max = X_BYTES / of_step / BLOCK_STEPS * BLOCK_STEPS;
    const int max_nn = n_tile > 1 ? MAX_TILES / 2 : MAX_TILES;
    uint16_t wild[MAX_ROWS / TILE_ROWS] = {0};
    rows_span at = {.m0 = m0};
    for (; at.s0 < j->n_step; at.s0 = at.s1) {
        at.s1 = NUM_MIN(at.s0 + max, j->n_step);
        j->next = prefetch_of(j, n0, n1, max_nn, at.s0, at.s1);
        j->next.each = FIRST_LINES;
        prefetch_step(&j->next);
        slice_span(j, &at, wild);
        for (int64_t n = n0; n < n1; n += max_nn * TILE_ROWS)
            weights_times_rows(j, &at, n, n1, (int)NUM_MIN(num_div_up(n1 - n, TILE_ROWS), max_nn));
    }
    finish(j);
    for (int64_t m = m0; m < j->m_end; m++)
        if (wild[(m - m0) / TILE_ROWS] >> (m - m0) % TILE_ROWS & 1) {
            linear_args one = *j->a;
            one.x += m * one.ldx;
            one.y += m * one.ldy;
            one.n_row = 1;
            op_linear_rows(&one, n0, n1);
        }
}

void amx_linear_sliced(const linear_args *a, int64_t n0, int64_t n1) {
    rows_job j = {.a = a, .s = a->scratch, .type = a->w->format.type, .n_step = num_div_up(a->w->k, STEP_K)};
    const int64_t rows = num_div_up(a->n_row, num_div_up(a->n_row, MAX_ROWS));
    const int64_t even = num_round_up(rows, TILE_ROWS);
    tiles_config config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.rows[i] = TILE_ROWS;
        config.bytes[i] = STEP_K * 2; /* or 16 floats */
    }
    tiles_configure(&config);
    for (int64_t m = 0; m < a->n_row; m += even) {
        j.m_end = NUM_MIN(m + even, a->n_row);
        multiply_part(&j, m, n0, n1);
    }
    tiles_release();
}

/* Measured on a Xeon with 16 threads (docs/kernels.md). */
bool amx_sliced_suits(type_id type, int64_t n_row) {
    return type_get(type)->block_elems == 1 && n_row >= (type == TYPE_BF16 ? 16 : 64);
}

size_t amx_sliced_scratch(void) {
    return sizeof(rows_scratch);
}
