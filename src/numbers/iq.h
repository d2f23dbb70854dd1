/* iq.h - the blocks of the IQ types with grids: 256 weights, chosen 4 or 8 at a time from a list of vectors
 * (grids.h), with signs and scales beside them. They are read into codes and scales, which the dequantizers
 * and the packer share:
 *     w = d * scale of the group * entry of the code * unit
 * The entries of a code are a shared table of the packed order (pack_table), its unit is tile_unit (tile.h).
 */
#ifndef NIB_NUMBERS_IQ_H
#define NIB_NUMBERS_IQ_H

#include <stdint.h>

enum { IQ_MAX_GROUPS = 16 };

typedef struct iq_block {
    uint16_t d;                   /* a half */
    uint8_t scale[IQ_MAX_GROUPS]; /* of each group, odd */
    uint8_t code[256];
} iq_block;

typedef void iq_read(const uint8_t *block, iq_block *out);
iq_read iq_read_iq1_s, iq_read_iq1_m, iq_read_iq2_xxs, iq_read_iq2_xs, iq_read_iq2_s, iq_read_iq3_xxs,
    iq_read_iq3_s;

#endif
