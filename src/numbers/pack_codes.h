/* pack_codes.h - how pack.c reads codes and scales from the blocks of a file, one row and at most 256 of K at
 * a time. */
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
    pack_format format; /* type is not set */
    /* Reads n blocks (up to 256 elements) into one code a byte. */
    void (*read)(const void *blocks, int n, uint8_t *codes, const pack_sink *sink);
} pack_reader;

#endif
