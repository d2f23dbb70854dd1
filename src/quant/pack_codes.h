/* pack_codes.h - extracts codes and scales from the blocks of a file, one row and at most 256 of K at a time.
 * Used by pack.c only. */
#ifndef NIB_QUANT_PACK_CODES_H
#define NIB_QUANT_PACK_CODES_H

#include "quant/pack_isa.h"

/* Where one row's scales go, in the panel's own layout (tile.h): value i of a group is step elements after
 * value i - 1, its minimum 16 elements after it. */
typedef struct pack_sink {
    uint16_t *wide;  /* F16: the first group's scale; SUPER: d, then d_min 16 after it */
    uint8_t *narrow; /* E8M0, SUPER: the first group's byte */
    int step;
    const uint8_t *head; /* what the row begins with (type_info.row_bytes); to look codes up in */
} pack_sink;

typedef struct pack_reader {
    type_id type;
    pack_format format;
    int block_elems; /* of the file type */
    /* Reads n blocks (up to 256 elements) into one code a byte. */
    void (*read)(const void *blocks, int n, uint8_t *codes, const pack_sink *sink);
} pack_reader;

const pack_reader *pack_reader_for(type_id file_type); /* NULL: not a block type */
/* The reader that makes this format of its file type's blocks: code books may be kept or looked up. */
const pack_reader *pack_reader_of(const pack_format *f);

#endif
