/* pack_read.c - packed matrices back to codes, scales and floats: the plain meaning of the layout. */
#include "quant/tile.h"

#include "quant/blocks.h"

#include <string.h>

#define SHIFTED(v) (uint8_t)((v) + 128)
static const uint8_t tables[3][16] = {
    {0},
    {SHIFTED(-127), SHIFTED(-104), SHIFTED(-83), SHIFTED(-65), SHIFTED(-49), SHIFTED(-35), SHIFTED(-22),
     SHIFTED(-10), SHIFTED(1), SHIFTED(13), SHIFTED(25), SHIFTED(38), SHIFTED(53), SHIFTED(69), SHIFTED(89),
     SHIFTED(113)},
    {SHIFTED(0), SHIFTED(1), SHIFTED(2), SHIFTED(3), SHIFTED(4), SHIFTED(6), SHIFTED(8), SHIFTED(12), SHIFTED(0),
     SHIFTED(-1), SHIFTED(-2), SHIFTED(-3), SHIFTED(-4), SHIFTED(-6), SHIFTED(-8), SHIFTED(-12)},
};

const uint8_t *tile_table(int table) {
    return tables[table];
}

void tile_read_scales(const pack_format *f, const void *scales, int64_t g, float *scale, float *min) {
    const int64_t step = tile_scale_step_bytes(f);
    const int pair = f->asym ? 2 * PACK_PANEL : PACK_PANEL;
    const uint8_t *base = scales;
    if (f->scale == PACK_SCALE_E8M0) {
        for (int r = 0; r < PACK_PANEL; r++)
            scale[r] = block_mxfp4_scale(base[g * step + r]);
        return;
    }
    const bool super = f->scale == PACK_SCALE_SUPER;
    const int64_t per_step = super ? TILE_SUPER / f->group : 1;
    base += g / per_step * step;
    const int8_t *bytes = (const int8_t *)base + 2 * pair + g % per_step * pair;
    for (int r = 0; r < PACK_PANEL; r++) {
        scale[r] = block_half(base + 2 * r) * (super ? (float)bytes[r] : 1.0f);
        if (f->asym)
            min[r] = block_half(base + 2 * (r + PACK_PANEL)) * (super ? (float)bytes[r + PACK_PANEL] : 1.0f);
    }
}

void tile_read_row_codes(const pack_format *f, const void *tile, int row, uint8_t *out) {
    const uint8_t *part = tile;
    int low = f->bits;
    memset(out, 0, TILE_K);
    for (const uint8_t *w = TILE_PART[f->bits]; low > 0; w++) {
        low -= *w;
        const int n_line = 2 * *w, mask = (1 << *w) - 1;
        for (int q = 0; q < TILE_K / 4; q++)
            for (int c = 0; c < 4; c++) {
                int byte = part[q % n_line * TILE_LINE + 4 * row + c];
                out[4 * q + c] |= (uint8_t)((byte >> (q / n_line * *w) & mask) << low);
            }
        part += n_line * TILE_LINE;
    }
    if (f->table != PACK_TABLE_NONE)
        for (int i = 0; i < TILE_K; i++)
            out[i] = tables[f->table][out[i]];
}

static void read_tile_row(const view *w, int64_t r, float *out) {
    const pack_format *f = &w->format;
    const int row = (int)(r % PACK_PANEL), zero = tile_zero(f);
    const uint8_t *panel = (const uint8_t *)w->data + r / PACK_PANEL * tile_panel_bytes(f, w->k);
    const uint8_t *scales = panel + tile_count(w->k) * tile_code_bytes(f);
    uint8_t codes[TILE_K];
    float scale[PACK_PANEL], min[PACK_PANEL];
    for (int64_t at = 0; at < w->k; at++) {
        if (at % TILE_K == 0)
            tile_read_row_codes(f, panel + at / TILE_K * tile_code_bytes(f), row, codes);
        if (at % f->group == 0)
            tile_read_scales(f, scales, at / f->group, scale, min);
        out[at] = scale[row] * (float)(codes[at % TILE_K] - zero);
        if (f->asym)
            out[at] += min[row];
    }
}

void pack_read_row(const view *w, int64_t r, float *out) {
    if (w->format.layout == PACK_TILE) {
        read_tile_row(w, r, out);
        return;
    }
    const type_info *info = type_get((type_id)w->format.type);
    info->dequantize((const uint8_t *)w->data + r * rows_stride(w->k) * info->block_bytes, out, w->k);
}
