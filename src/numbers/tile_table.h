/* tile_table.h - the values, + 128, of non-uniform 4-bit codes (pack_table). Included by the two files that
 * define tile_table (tile.h), for C and for CUDA's host code. */
#ifndef NIB_NUMBERS_TILE_TABLE_H
#define NIB_NUMBERS_TILE_TABLE_H

#include "numbers/pack.h"

#define SHIFTED(v) (uint8_t)((v) + 128)
static const uint8_t TILE_TABLES[][16] = {
    {0},
    {SHIFTED(-127), SHIFTED(-104), SHIFTED(-83), SHIFTED(-65), SHIFTED(-49), SHIFTED(-35), SHIFTED(-22),
     SHIFTED(-10), SHIFTED(1), SHIFTED(13), SHIFTED(25), SHIFTED(38), SHIFTED(53), SHIFTED(69), SHIFTED(89),
     SHIFTED(113)},
    {SHIFTED(0), SHIFTED(1), SHIFTED(2), SHIFTED(3), SHIFTED(4), SHIFTED(6), SHIFTED(8), SHIFTED(12),
     SHIFTED(0), SHIFTED(-1), SHIFTED(-2), SHIFTED(-3), SHIFTED(-4), SHIFTED(-6), SHIFTED(-8), SHIFTED(-12)},
    {0},
};
#undef SHIFTED

#endif
