/* tile.h - the memory layout of a PACK_TILE matrix. Only the packer and the kernels use it. Sizes and offsets
 * are in bytes, k in elements; all functions are pure.
 *
 * A matrix is a row of panels, one for every 16 output rows. A panel is a row of chunks, one for every 256 of
 * K, and contiguous: to multiply with it is to read it from one end to the other. A chunk is
 *     codes:  up to 4 tiles (fewer in the last chunk) of 128 * bits bytes
 *     scales: of the groups that begin in these tiles, padded to 64 bytes; none when the row is one group
 * After the last chunk is the tail, padded to 64 bytes, with the data of whole rows: the one group's scale,
 * or the first level of PACK_SCALE_TWO; then the 16 rows' codebooks (PACK_TABLE_BOOK) of 2^bits bytes, for
 * each code its entry plus 128; then the rows' outliers (pack_format.sparse): for each of a row's, 16 u16
 * columns and 16 bf16 values, ascending columns.
 *
 * A tile is 16 rows x 64 of K. `bits` is a sum of parts, the widest first, which hold the code's bits from
 * the top: 8=[8] 7=[4,2,1] 6=[4,2] 5=[4,1] 4=[4] 3=[2,1] 2=[2]; in the planes packing all parts are 1. A part
 * of width w is 2w lines of 64 bytes. Byte (row r, c) of a line is at 4r + c, and its bit-field f (bits f*w
 * and up) belongs to K = 4*(l + 2w*f) + c for line l. So a line, masked, is 16 rows x one quad of K: one
 * operand of a VNNI instruction, whose lanes are rows. A line of a plane is 32 bits of K for each row: one
 * operand of an AND whose bits are counted. Bit 8c + f of a row's dword in line l is K = 4*(l + 2f) + c: the
 * even quads in line 0, the odd ones in line 1, and a tile's first 32 of K in the lower halves of the bytes.
 *
 * Scales, 16 values (one for each row) at a time:
 *     F16:    for each group: 16 halves of scale, then 16 of min when asym
 *     ZERO:   for each group: 16 halves of scale, then 16 bytes of zero; min = -(scale * zero)
 *     E8M0:   for each group: 16 bytes
 *     SUPER:  16 halves d for the chunk (and 16 halves of d_min, negated, when asym), then for each group 16
 *             signed bytes (and 16 of the min's); scale = d * byte, min = d_min * byte
 *     TWO:    for each group: 16 bytes u; after the panel 16 halves S; scale = S * u */
#ifndef NIB_NUMBERS_TILE_H
#define NIB_NUMBERS_TILE_H

#include "numbers/pack.h"

enum { TILE_K = 64, TILE_LINE = 64, TILE_CHUNK = 4 /* tiles */, TILE_CHUNK_K = 256 };

/* The parts of a code of `bits` bits: part i has width TILE_PART[bits][i]; 0 ends. */
static const uint8_t TILE_PART[9][4] = {{0}, {1}, {2}, {2, 1}, {4}, {4, 1}, {4, 2}, {4, 2, 1}, {8}};
static const uint8_t TILE_PLANES[8] = {1, 1, 1, 1, 1, 1, 1, 1};

/* The widths of the parts of a format's codes; they add up to its bits. */
static inline const uint8_t *tile_parts(const pack_format *f) {
    return f->packing == PACK_PLANES ? TILE_PLANES : TILE_PART[f->bits];
}

static inline int64_t tile_count(int64_t k) {
    return (k + TILE_K - 1) / TILE_K;
}
static inline int64_t tile_code_bytes(const pack_format *f) {
    return (int64_t)TILE_K * PACK_PANEL / 8 * f->bits;
}
/* Elements of a group, with the padding of the row's last group. */
static inline int64_t tile_group(const pack_format *f, int64_t k) {
    return f->group == PACK_GROUP_ROW ? tile_count(k) * TILE_K : f->group;
}
/* Bytes of one group's scales (and minima); with SUPER and TWO, its bytes without the halves that it shares.
 */
static inline int64_t tile_scale_step(const pack_format *f) {
    if (f->scale == PACK_SCALE_ZERO)
        return 3 * PACK_PANEL;
    return (f->asym ? 2 : 1) * (f->scale == PACK_SCALE_F16 ? 2 : 1) * PACK_PANEL;
}
/* Offset of the first group's scales in a chunk's scales. */
static inline int64_t tile_scale_start(const pack_format *f) {
    return f->scale == PACK_SCALE_SUPER ? (f->asym ? 4 : 2) * PACK_PANEL : 0;
}
/* Groups that begin in a chunk of n_tile tiles: 0 when the row is one group. */
static inline int64_t tile_chunk_groups(const pack_format *f, int64_t n_tile) {
    return f->group == PACK_GROUP_ROW ? 0 : (n_tile * TILE_K + f->group - 1) / f->group;
}
static inline int64_t tile_chunk_bytes(const pack_format *f, int64_t n_tile) {
    const int64_t scales = tile_scale_start(f) + tile_chunk_groups(f, n_tile) * tile_scale_step(f);
    return n_tile * tile_code_bytes(f) + (scales + TILE_LINE - 1) / TILE_LINE * TILE_LINE;
}
/* Bytes of all chunks of a panel: the offset of the tail. */
static inline int64_t tile_tail_at(const pack_format *f, int64_t k) {
    const int64_t n = tile_count(k), rest = n % TILE_CHUNK;
    return n / TILE_CHUNK * tile_chunk_bytes(f, TILE_CHUNK) + (rest ? tile_chunk_bytes(f, rest) : 0);
}
/* Outliers of each row. */
static inline int64_t tile_outliers(const pack_format *f, int64_t k) {
    return outliers_of_row(f->sparse, k);
}
/* Bytes of a panel's codebooks; 0: the format has none. */
static inline int64_t tile_book_bytes(const pack_format *f) {
    return f->table == PACK_TABLE_BOOK ? (int64_t)PACK_PANEL << f->bits : 0;
}
static inline int64_t tile_panel_bytes(const pack_format *f, int64_t k) {
    return tile_tail_at(f, k) + (f->group == PACK_GROUP_ROW || f->scale == PACK_SCALE_TWO ? TILE_LINE : 0) +
           tile_book_bytes(f) + tile_outliers(f, k) * TILE_LINE;
}

/* One chunk of a panel. scales: its groups'; if the row is one group, that group's, with the codebooks after
 * them. Points into the panel. */
typedef struct tile_chunk {
    const uint8_t *codes, *scales;
    int n_tile;
} tile_chunk;

static inline tile_chunk tile_chunk_at(const pack_format *f, const void *panel, int64_t k, int64_t chunk) {
    const int64_t left = tile_count(k) - chunk * TILE_CHUNK;
    tile_chunk c = {.n_tile = left < TILE_CHUNK ? (int)left : TILE_CHUNK};
    c.codes = (const uint8_t *)panel + chunk * tile_chunk_bytes(f, TILE_CHUNK);
    c.scales = f->group == PACK_GROUP_ROW ? (const uint8_t *)panel + tile_tail_at(f, k)
                                          : c.codes + c.n_tile * tile_code_bytes(f);
    return c;
}
/* The panel's codebooks, row after row; NULL: the format has none. */
static inline const uint8_t *tile_book(const pack_format *f, const tile_chunk *c) {
    return f->table == PACK_TABLE_BOOK ? c->scales + TILE_LINE : NULL;
}
/* A panel's outliers: a line for each of a row's, with its 16 columns and its 16 values. */
static inline const uint16_t *tile_outliers_at(const pack_format *f, const void *panel, int64_t k) {
    return (const uint16_t *)(const void *)((const uint8_t *)panel + tile_panel_bytes(f, k) -
                                            tile_outliers(f, k) * TILE_LINE);
}
/* The zero point: subtracted from a code (or from its table entry) before it is scaled. */
static inline int tile_zero(const pack_format *f) {
    return f->asym ? 0 : f->table != PACK_TABLE_NONE ? 128 : 1 << f->bits >> 1;
}
/* Table entries, +128, for each code; not for PACK_TABLE_BOOK. */
const uint8_t *tile_table(int table);
/* Bits of a table's entries when half of their range is added to make them unsigned. */
static inline int tile_table_bits(int table) {
    return table == PACK_TABLE_IQ2 ? 7 : table == PACK_TABLE_IQ3 ? 6 : table == PACK_TABLE_IQ4NL ? 8 : 5;
}
/* The value of an entry of 1, a power of two. Where it is not 1 the scales are PACK_SCALE_SUPER, whose halves
 * are multiplied by it after they became floats: as a half, a small product could not be exact. */
static inline float tile_table_unit(int table) {
    return table == PACK_TABLE_IQ1 || table == PACK_TABLE_IQ2 ? 0.125f : table == PACK_TABLE_IQ3 ? 0.5f : 1;
}

/* Whether a tile has several groups, each with its own scale, as file types have them. */
static inline bool tile_short_groups(const pack_format *f) {
    return f->group <= TILE_K / 2 && f->scale != PACK_SCALE_TWO;
}
/* Reads scales [16] and minima [16] of a chunk's group g; of PACK_SCALE_TWO the second level. Minima are 0
 * where the format has none; E8M0 and TWO do not write min. */
void tile_read_scales(const pack_format *f, const void *scales, int g, float *scale, float *min);
/* The same for one row. */
void tile_read_scale(const pack_format *f, const void *scales, int g, int row, float *scale, float *min);
/* PACK_SCALE_TWO: row r's first level. */
float tile_row_scale(const pack_format *f, const void *panel, int64_t k, int r);
/* Converts a tile of the planes packing to the parts packing; out has the same size and does not overlap. */
void tile_to_parts(const pack_format *f, const void *tile, void *out);
/* The same for a chunk: returns c unchanged if it has parts, else a chunk whose converted codes are in
 * `codes`. */
static inline tile_chunk tile_chunk_parts(const pack_format *f, tile_chunk c,
                                          uint8_t codes[TILE_CHUNK_K * PACK_PANEL]) {
    if (f->packing == PACK_PARTS)
        return c;
    for (int t = 0; t < c.n_tile; t++)
        tile_to_parts(f, c.codes + t * tile_code_bytes(f), codes + t * tile_code_bytes(f));
    c.codes = codes;
    return c;
}
/* One row of a tile's codes as they are multiplied, after the table look-up, to out [TILE_K]; book is
 * tile_book's. */
void tile_read_row_codes(const pack_format *f, const void *tile, const uint8_t *book, int row, uint8_t *out);

/* PACK_ROWS: elements from one row to the next, of plain numbers. */
static inline int64_t rows_stride(int64_t k) {
    return (k + 15) / 16 * 16;
}
/* The same in bytes, for every type: blocks of 64 have 68 and 40 bytes. */
static inline int64_t rows_bytes(int type, int64_t k) {
    return type == TYPE_F8G64   ? k / 64 * 68
           : type == TYPE_F4G64 ? k / 64 * 40
                                : rows_stride(k) * (type == TYPE_F32 ? 4 : 2);
}

#endif
