/* pack_codes.h - extracts codes and scales from the blocks of a file, one row and at most 256 of K at a time.
 * Used by pack.c only. */
#ifndef NIB_NUMBERS_PACK_CODES_H
#define NIB_NUMBERS_PACK_CODES_H

#include "numbers/pack_isa.h"

/* Where one row's scales go, in the panel's own layout (tile.h): value i of a group is step elements after
 * value i - 1, its minimum 16 elements after it. */
typedef struct pack_sink {
    uint16_t *wide;  /* F16: the first group's scale; SUPER: d, then d_min 16 after it */
    uint8_t *narrow; /* E8M0, SUPER: the first group's byte */
    int step;
    const uint8_t *head; /* the bytes in front of the row's blocks (type_info.row_bytes): its codebook */
} pack_sink;

typedef struct pack_reader {
    type_id type;
    pack_format format;
    int block_elems; /* of the file type */
    /* Reads n blocks (up to 256 elements) into one code a byte. */
    void (*read)(const void *blocks, int n, uint8_t *codes, const pack_sink *sink);
} pack_reader;

/* The reader of a file type's blocks, static; NULL: it has no blocks. */
const pack_reader *pack_reader_for(type_id file_type);
/* The reader that gives this format from the blocks of f->type: it keeps codebooks or looks codes up. */
const pack_reader *pack_reader_of(const pack_format *f);

#endif
