/* tile.h - where things lie in a PACK_TILE matrix. Shared by the packer and the kernels; nobody else looks inside.
 *
 * A matrix is a row of panels, one for every 16 output rows; a panel is contiguous:
 *     codes:  k_tile tiles of 128 * bits bytes
 *     scales: k_tile tiles of scales, padded to 64 bytes
 * A tile is 16 rows x 64 of K. `bits` is a sum of parts, the widest first, which hold the code's bits from the
 * top: 8=[8] 7=[4,2,1] 6=[4,2] 5=[4,1] 4=[4] 3=[2,1] 2=[2]. A part of width w is 2w lines of 64 bytes. Byte
 * (row r, c) of a line is at 4r + c, and its bit-field f (bits f*w and up) belongs to K = 4*(l + 2w*f) + c for
 * line l. So a line, masked, is 16 rows x one quad of K: one operand of a VNNI instruction, whose lanes are rows.
 *
 * Scales, 16 values (one for each row) at a time:
 *     F16:    for each group: 16 halves of scale, then 16 of min when asym
 *     E8M0:   for each group: 16 bytes
 *     SUPER:  for each 256 of K: 16 halves d (and 16 halves of d_min, negated, when asym), then for each group 16
 *             signed bytes (and 16 of the min's); scale = d * byte, min = d_min * byte */
#ifndef NIB_QUANT_TILE_H
#define NIB_QUANT_TILE_H

#include "quant/pack.h"

enum { TILE_K = 64, TILE_LINE = 64, TILE_SUPER = 256 };

/* The parts of a code of `bits` bits: part i has width TILE_PART[bits][i]; 0 ends. */
static const uint8_t TILE_PART[9][4] = {{0}, {1}, {2}, {2, 1}, {4}, {4, 1}, {4, 2}, {4, 2, 1}, {8}};

static inline int64_t tile_count(int64_t k) {
    return (k + TILE_K - 1) / TILE_K;
}
static inline int64_t tile_code_bytes(const pack_format *f) {
    return (int64_t)TILE_K * PACK_PANEL / 8 * f->bits;
}
/* Bytes of scales for one step of K: 256 with SUPER, else one group. */
static inline int64_t tile_scale_step_bytes(const pack_format *f) {
    int64_t pair = f->asym ? 2 : 1;
    if (f->scale == PACK_SCALE_SUPER)
        return pair * (2 * PACK_PANEL + TILE_SUPER / f->group * PACK_PANEL);
    return pair * PACK_PANEL * (f->scale == PACK_SCALE_E8M0 ? 1 : 2);
}
static inline int64_t tile_scale_bytes(const pack_format *f, int64_t k) {
    int64_t step = f->scale == PACK_SCALE_SUPER ? TILE_SUPER : f->group;
    int64_t n = (tile_count(k) * TILE_K + step - 1) / step;
    return (n * tile_scale_step_bytes(f) + TILE_LINE - 1) / TILE_LINE * TILE_LINE;
}
static inline int64_t tile_panel_bytes(const pack_format *f, int64_t k) {
    return tile_count(k) * tile_code_bytes(f) + tile_scale_bytes(f, k);
}
/* What is taken from a code (or from its table entry) before it is scaled. */
static inline int tile_zero(const pack_format *f) {
    return f->asym ? 0 : f->table != PACK_TABLE_NONE ? 128 : 1 << (f->bits - 1);
}
/* Table entries, +128, for each 4-bit code. */
const uint8_t *tile_table(int table);

/* One panel's scales and minima of group g, for the 16 rows. min is written only when asym. */
void tile_read_scales(const pack_format *f, const void *scales, int64_t g, float *scale, float *min);
/* One row of a tile's codes as they are multiplied (tables looked up): TILE_K of them. */
void tile_read_row_codes(const pack_format *f, const void *tile, int row, uint8_t *out);

/* PACK_ROWS: elements from one row to the next. */
static inline int64_t rows_stride(int64_t k) {
    return (k + 15) / 16 * 16;
}

#endif
