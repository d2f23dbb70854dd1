/* column.h - one column of a packed matrix as floats, with the bits of pack_read_row, for the products of
 * outliers. Lanes are rows. Included after a folder's lanes.h. */
#ifndef NIB_KERNELS_LANES_COLUMN_H
#define NIB_KERNELS_LANES_COLUMN_H

#include "base/num.h"
#include "kernels/kernels.h"
#include "numbers/tile.h"

#include <string.h>

/* The codes of one column of a tile, minus the zero point. q: its quad; c: its byte in the quad. */
static void column_codes(const pack_format *f, const uint8_t *tile, const uint8_t *book, int q, int c,
                         float out[LANES]) {
    const uint8_t *part = tile, *table = book ? book : f->table ? tile_table(f->table) : NULL;
    const uint32_t own = book ? 1u << f->bits : 0; /* entries of a row's own book */
    uint32_t code[LANES] = {0}, line[LANES];
    int low = f->bits;
    for (const uint8_t *w = tile_parts(f); low > 0; w++) {
        const int n_line = 2 * *w, shift = 8 * c + q / n_line * *w;
        const uint32_t mask = (1u << *w) - 1;
        low -= *w;
        memcpy(line, part + q % n_line * TILE_LINE, sizeof line);
        for (int r = 0; r < LANES; r++)
            code[r] |= (line[r] >> shift & mask) << low;
        part += n_line * TILE_LINE;
    }
    for (int r = 0; r < LANES && table; r++)
        code[r] = table[(uint32_t)r * own + code[r]];
    for (int r = 0; r < LANES; r++)
        out[r] = (float)((int32_t)code[r] - tile_zero(f));
}

static void column_scales(const pack_format *f, const uint8_t *base, int g, vf *scale, vf *min) {
    const uint8_t *at = base + tile_scale_start(f) + g * tile_scale_step(f);
    float scales[LANES], mins[LANES];
    *min = v_zero();
    if (f->scale == PACK_SCALE_F16) {
        *scale = v_load_f16((const uint16_t *)(const void *)at);
        if (f->asym)
            *min = v_load_f16((const uint16_t *)(const void *)at + PACK_PANEL);
    } else if (f->scale == PACK_SCALE_SUPER) {
        const uint16_t *d = (const uint16_t *)(const void *)base;
        for (int r = 0; r < LANES; r++)
            scales[r] = (float)(int8_t)at[r] * tile_table_unit(f->table);
        *scale = v_mul(v_load_f16(d), v_load(scales));
        for (int r = 0; r < LANES && f->asym; r++)
            mins[r] = (float)(int8_t)at[PACK_PANEL + r];
        if (f->asym)
            *min = v_mul(v_load_f16(d + PACK_PANEL), v_load(mins));
    } else {
        tile_read_scales(f, base, g, scales, mins);
        *scale = v_load(scales);
        if (f->asym)
            *min = v_load(mins);
    }
}

/* Adds the outlier of column k to `value` in the rows that have one there. */
static vf column_outliers(const pack_format *f, const uint8_t *panel, int64_t n_column, int64_t k, vf value) {
    const uint16_t *at = tile_outliers_at(f, panel, n_column);
    float out[LANES];
    v_store(out, value);
    for (int64_t i = 0; i < tile_outliers(f, n_column); i++, at += 2 * PACK_PANEL)
        for (int r = 0; r < LANES; r++)
            if (at[r] == k)
                out[r] += bf16_to_float(at[PACK_PANEL + r]);
    return v_load(out);
}

/* Rows [n0, n1) of column k of a PACK_TILE matrix; n0 is a multiple of 16. */
static void op_column(const view *w, int64_t k, int64_t n0, int64_t n1, float *out) {
    const pack_format *f = &w->format;
    const int in_chunk = (int)(k % TILE_CHUNK_K), quad = in_chunk % TILE_K / 4;
    const int64_t panel_bytes = tile_panel_bytes(f, w->k), group = tile_group(f, w->k);
    const int g = f->group == PACK_GROUP_ROW ? 0 : (int)(in_chunk / group);
    for (int64_t n = n0; n < n1; n += PACK_PANEL, out += PACK_PANEL) {
        const uint8_t *panel = (const uint8_t *)w->data + n / PACK_PANEL * panel_bytes;
        const tile_chunk chunk = tile_chunk_at(f, panel, w->k, k / TILE_CHUNK_K);
        float codes[LANES], all[LANES];
        vf scale, min;
        column_codes(f, chunk.codes + in_chunk / TILE_K * tile_code_bytes(f), tile_book(f, &chunk), quad,
                     in_chunk % 4, codes);
        column_scales(f, chunk.scales, g, &scale, &min);
        vf value = v_mul(scale, v_load(codes));
        if (f->asym)
            value = v_add(value, min);
        for (int r = 0; r < LANES && f->scale == PACK_SCALE_TWO; r++)
            all[r] = tile_row_scale(f, panel, w->k, r);
        if (f->scale == PACK_SCALE_TWO)
            value = v_mul(value, v_load(all));
        if (f->sparse)
            value = column_outliers(f, panel, w->k, k, value);
        if (n + PACK_PANEL <= n1)
            v_store(out, value);
        else
            v_store_part(out, value, (int)(n1 - n));
    }
}

#endif
