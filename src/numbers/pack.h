/* pack.h - the packed order that weights have in memory. Weights are packed once, when they are loaded.
 *
 * Two packing layouts:
 *  - PACK_ROWS: [n, k] row-major f32, f16 or bf16, as in the file, or floats of 8 or 4 bits with f32 scales
 *    (F8G64, F4G64); multiplied with f32 activations.
 *  - PACK_TILE: the Q-tile (16 rows x 64 of K, parts of 8/4/2/1 bits, lanes are output rows; tile.h):
 *    unsigned codes of `bits` bits in groups of `group` along K, and
 *        w = scale * (value - zero)       without `asym`: zero = 2^(bits-1)
 *        w = scale * value + min          with `asym`
 *    where value is the code itself or, for formats whose codes are not uniform (IQ4_NL, MXFP4, C3, C4), what
 *    `table` has for it. Multiplied with quantized activations. PACK_TILE pads n to 16 rows and k to 64
 *    with zeros; PACK_ROWS pads k to 16 elements (F8G64, F4G64: k is a multiple of 64). A group at the end of
 * a row may be short.
 *
 * A PACK_TILE format comes from a file type (pack_choose; nothing is rounded on the way: pack_read_row gives
 * the bits that the file type's own dequantizer gives) or is uniform, u<bits>g<group> (pack_uniform): then
 * the values of whatever the file holds are rounded to the nearest code. Packing works on 16 rows at a time,
 * so that a loader needs staging for one panel only. No call allocates; threads may pack different panels at
 * the same time. */
#ifndef NIB_NUMBERS_PACK_H
#define NIB_NUMBERS_PACK_H

#include "base/status.h"
#include "numbers/types.h"

typedef enum pack_layout { PACK_ROWS, PACK_TILE } pack_layout;

/* How a group's scale (and minimum, with asym) is stored. */
typedef enum pack_scale {
    PACK_SCALE_F16,   /* one half for each group */
    PACK_SCALE_SUPER, /* one half for 256 of K times a signed byte for each group: the K-quants, exactly */
    PACK_SCALE_E8M0,  /* one byte for each group: 2^(byte - 128) */
    PACK_SCALE_ZERO,  /* one half for each group and a byte z <= 16, the code that means zero: min = -(half *
                         z) */
    PACK_SCALE_TWO /* one half for the row times a byte u >= 0 for each group, |(code - zero) * u| <= 127: so
                      the row is 8-bit integers with one scale, and groups are summed as integers (QServe) */
} pack_scale;

/* The values of non-uniform codes. BOOK: 3 or 4 bits, each row has its own 8 or 16 signed bytes. The others
 * are the same for all rows: 16 values of 4 bits (IQ4NL, MXFP4, IQ3, ODD) or 8 of 3 bits (IQ1, IQ2). */
typedef enum pack_table {
    PACK_TABLE_NONE,
    PACK_TABLE_IQ4NL,
    PACK_TABLE_MXFP4,
    PACK_TABLE_BOOK,
    PACK_TABLE_IQ1,
    PACK_TABLE_IQ2,
    PACK_TABLE_IQ3,
    PACK_TABLE_ODD /* IQ3_S */
} pack_table;

/* The packing of PACK_TILE, that is, how the bits of its codes are arranged: in as few parts as the width
 * allows (read by the strategies Padding and Split), or in one plane for each bit (read by Bitwise too). */
typedef enum pack_kind { PACK_PARTS, PACK_PLANES } pack_kind;

typedef struct pack_format {
    uint8_t layout; /* pack_layout */
    uint8_t type;   /* type_id: the element type of PACK_ROWS; the file type whose blocks PACK_TILE holds, F32
                       for uniform formats */
    uint8_t bits;   /* PACK_TILE: 2..8 */
    uint8_t asym;   /* PACK_TILE: groups have a minimum besides the scale */
    uint8_t group;  /* PACK_TILE: 16, 32, 64, 128 or PACK_GROUP_ROW */
    uint8_t scale;  /* PACK_TILE: pack_scale */
    uint8_t table;  /* PACK_TILE: pack_table */
    uint8_t packing; /* PACK_TILE: pack_kind */
    uint8_t sparse;  /* PACK_TILE with PACK_GROUP_ROW: outliers of each row, in 10,000ths of its columns */
    uint8_t
        rotated; /* uniform formats: rows are transformed (numbers/hadamard.h) before they are rounded, and
                    so are the rows that they are multiplied with; log2 of the largest block, 0: not */
} pack_format;

enum {
    PACK_PANEL = 16,
    PACK_GROUP_ROW = 255, /* the whole row is one group */
    MAX_PACK_ROW = 65536, /* the longest row that may be summed in 32 bits: 255 * 127 * 65536 < 2^31 */
};

/* The format in memory of a matrix of this file type with rows of k. Float matrices are PACK_ROWS (f8 becomes
 * bf16, f64 becomes f32). False: no kernel computes with the type, its blocks do not divide k, or the row is
 * one group and longer than MAX_PACK_ROW. */
bool pack_choose(type_id file_type, int64_t k, pack_format *out);
/* Changes a format for kernels without codebooks and zero points; the values stay the same. A format with
 * codebooks becomes 8 bits a weight, the entries themselves. PACK_SCALE_ZERO becomes symmetric codes of one
 * bit more, with the zero point subtracted. Other formats stay. */
void pack_widen(pack_format *f);

/* The uniform format of that many bits (2..8) in groups of `group` (16, 32, 64, 128, PACK_GROUP_ROW), with a
 * half for each group's scale; two: with PACK_SCALE_TWO instead (symmetric, 2..7 bits, groups of 32, 64 or
 * 128). False: there is no such format, or the row is one group and k is above MAX_PACK_ROW. */
bool pack_uniform(int bits, int group, bool asym, bool two, int64_t k, pack_format *out);
/* The same from a name: u<bits>g<group or row>, then a: asymmetric, t: two-level, p: planes, h: rotated;
 * "u4g128a".
 * False: also a name of another form. */
bool pack_from_name(const char *name, int64_t k, pack_format *out);
enum { PACK_NAME = 24, PACK_ROTATED = 8 /* blocks of up to 256, which is the packer's chunk */ };
/* Writes the name of a uniform format; of another format the file type's, with ".planes" in that packing. */
void pack_name(const pack_format *f, char out[PACK_NAME]);

/* Bytes of an [n, k] matrix in this format, a multiple of 64. False: overflow. */
bool pack_bytes(const pack_format *f, int64_t n, int64_t k, uint64_t *bytes);

/* A packed matrix, as kernels read it. Borrowed: the tier that owns the bytes pins them while the view is
 * used. data is 64-byte aligned. */
typedef struct view {
    const void *data;
    pack_format format;
    int64_t n, k; /* rows (outputs), columns (inputs) */
} view;

/* The input of packing, and what guides its rounding to a uniform format. */
typedef struct pack_from {
    type_id type;         /* of the raw rows */
    const float *imatrix; /* [k]: importance of each column, 0 or more; used where groups have scales of their
                             own; NULL: all the same */
    bool plain;       /* uniform formats: the scale covers the largest value; no search for a better one */
    pack_format over; /* bits > 0: the rounding residuals of this uniform format are packed instead of the
                         values; its groups have scales of their own */
} pack_from;

/* Packs rows [first, first + n_row) of the matrix, n_row <= 16 and first a multiple of 16, from `rows`: n_row
 * pointers to raw rows (k elements each), into dst, the start of the whole packed matrix.
 * scratch: pack_scratch_bytes(f, k). */
void pack_panel_from(const pack_format *f, const pack_from *from, int64_t k, int64_t first, int n_row,
                     const void *const *rows, void *dst, void *scratch);
/* The same with a plain pack_from of this file type. */
void pack_panel(const pack_format *f, type_id file_type, int64_t n, int64_t k, int64_t first, int n_row,
                const void *const *rows, void *dst, void *scratch);
/* Bytes of scratch that packing rows of k takes. */
size_t pack_scratch_bytes(const pack_format *f, int64_t k);

/* Dequantizes row r to out [k]: the embedding look-up, and the tests' reference. */
void pack_read_row(const view *w, int64_t r, float *out);

#endif
