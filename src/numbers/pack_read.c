/* pack_read.c - reads packed matrices back to codes, scales and floats; the reference for the layout. */
#include "numbers/tile.h"
#include "numbers/tile_table.h"

#include "numbers/blocks.h"
#include "numbers/hadamard.h"

#include <string.h>

const uint8_t *tile_table(int table) {
    return TILE_TABLES[table];
}

void tile_read_scale(const pack_format *f, const void *scales, int g, int row, float *scale, float *min) {
    const uint8_t *base = scales, *at = base + tile_scale_start(f) + g * tile_scale_step(f);
    const int r = row, m = row + PACK_PANEL;
    switch (f->scale) {
    case PACK_SCALE_E8M0: *scale = block_mxfp4_scale(at[r]); break;
    case PACK_SCALE_TWO: *scale = at[r]; break;
    case PACK_SCALE_F16:
        *scale = block_half(at + 2 * r);
        *min = f->asym ? block_half(at + 2 * m) : 0;
        break;
    case PACK_SCALE_ZERO:
        *scale = block_half(at + 2 * r);
        *min = 0 - *scale * (float)at[2 * PACK_PANEL + r]; /* never -0 */
        break;
    default:
        *scale = block_half(base + 2 * r) * tile_table_unit(f->table) * (float)(int8_t)at[r];
        *min = f->asym ? block_half(base + 2 * m) * (float)(int8_t)at[m] : 0;
    }
}

void tile_read_scales(const pack_format *f, const void *scales, int g, float *scale, float *min) {
    for (int r = 0; r < PACK_PANEL; r++)
        tile_read_scale(f, scales, g, r, scale + r, min + r);
}

float tile_row_scale(const pack_format *f, const void *panel, int64_t k, int r) {
    return block_half((const uint8_t *)panel + tile_tail_at(f, k) + 2 * r);
}

void tile_read_row_codes(const pack_format *f, const void *tile, const uint8_t *book, int row, uint8_t *out) {
    const uint8_t *part = tile, *look = book ? book + ((size_t)row << f->bits) : TILE_TABLES[f->table];
    uint32_t quads[TILE_K / 4] = {0}; /* of codes */
    int low = f->bits;
    for (const uint8_t *w = tile_parts(f); low > 0; w++) {
        low -= *w;
        const int n_line = 2 * *w;
        const uint32_t mask = ((1u << *w) - 1) * 0x01010101u;
        uint32_t *to = quads;
        for (int shift = 0; shift < 8; shift += *w)
            for (int line = 0; line < n_line; line++) {
                const void *of_row = part + line * TILE_LINE + 4 * row; /* lines are aligned */
                uint32_t quad;
                memcpy(&quad, __builtin_assume_aligned(of_row, sizeof quad), sizeof quad);
                *to++ |= (quad >> shift & mask) << low;
            }
        part += n_line * TILE_LINE;
    }
    memcpy(out, quads, TILE_K);
    if (f->table != PACK_TABLE_NONE)
        for (int i = 0; i < TILE_K; i++)
            out[i] = look[out[i]];
}

/* The factor and the addend of a group of a row. */
typedef struct row_group {
    float scale, min;
} row_group;

/* Converts n codes of one group, or of a part of it, to floats. */
static void read_codes(const pack_format *f, const uint8_t *codes, int64_t n, row_group g, float *out) {
    const int zero = tile_zero(f);
    for (int64_t i = 0; i < n; i++)
        out[i] = g.scale * (float)(codes[i] - zero);
    if (f->asym)
        for (int64_t i = 0; i < n; i++)
            out[i] += g.min;
}

static void read_tile_row(const view *w, int64_t r, float *out) {
    const pack_format *f = &w->format;
    const int row = (int)(r % PACK_PANEL);
    const uint8_t *panel = (const uint8_t *)w->data + r / PACK_PANEL * tile_panel_bytes(f, w->k);
    const int64_t group = tile_group(f, w->k), step = group < TILE_K ? group : TILE_K;
    uint8_t codes[TILE_K];
    row_group of = {0, 0};
    for (int64_t start = 0; start < w->k; start += TILE_K) {
        const tile_chunk c = tile_chunk_at(f, panel, w->k, start / TILE_CHUNK_K);
        const int64_t in_chunk = start % TILE_CHUNK_K, end = w->k - start < TILE_K ? w->k : start + TILE_K;
        tile_read_row_codes(f, c.codes + in_chunk / TILE_K * tile_code_bytes(f), tile_book(f, &c), row,
                            codes);
        for (int64_t at = start; at < end; at += step) {
            if (at % group == 0)
                tile_read_scale(f, c.scales, (int)(at % TILE_CHUNK_K / group), row, &of.scale, &of.min);
            read_codes(f, codes + (at - start), end - at < step ? end - at : step, of, out + at);
        }
    }
    if (f->scale == PACK_SCALE_TWO) {
        const float all = tile_row_scale(f, panel, w->k, row);
        for (int64_t at = 0; at < w->k; at++)
            out[at] *= all; /* exact: 11 significant bits times 7 */
    }
    const uint16_t *outlier = tile_outliers_at(f, panel, w->k) + row;
    for (int64_t i = 0; i < tile_outliers(f, w->k); i++, outlier += 2 * PACK_PANEL)
        out[*outlier] += bf16_to_float(outlier[PACK_PANEL]);
}

void pack_read_row(const view *w, int64_t r, float *out) {
    if (w->format.layout == PACK_TILE) {
        read_tile_row(w, r, out);
        if (w->format.rotated) /* back to the matrix's own columns */
            hadamard(out, w->k, hadamard_block(w->k, INT64_C(1) << w->format.rotated));
        return;
    }
    const type_info *info = type_get((type_id)w->format.type);
    info->dequantize((const uint8_t *)w->data + r * rows_bytes(w->format.type, w->k), out, w->k);
}
