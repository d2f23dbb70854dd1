/* tile_table.h - the values, + 128, of non-uniform codes (pack_table), in units of tile_table_unit (tile.h).
 * Included by the two files that define tile_table (tile.h), for C and for CUDA's host code. */
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
    {SHIFTED(-7), SHIFTED(1), SHIFTED(9), SHIFTED(0), SHIFTED(-9), SHIFTED(-1), SHIFTED(7)},
    {SHIFTED(8), SHIFTED(25), SHIFTED(43), SHIFTED(0), SHIFTED(-8), SHIFTED(-25), SHIFTED(-43)},
    {SHIFTED(2), SHIFTED(6), SHIFTED(10), SHIFTED(14), SHIFTED(18), SHIFTED(22), SHIFTED(26), SHIFTED(31),
     SHIFTED(-2), SHIFTED(-6), SHIFTED(-10), SHIFTED(-14), SHIFTED(-18), SHIFTED(-22), SHIFTED(-26),
     SHIFTED(-31)},
    {SHIFTED(1), SHIFTED(3), SHIFTED(5), SHIFTED(7), SHIFTED(9), SHIFTED(11), SHIFTED(13), SHIFTED(15),
     SHIFTED(-1), SHIFTED(-3), SHIFTED(-5), SHIFTED(-7), SHIFTED(-9), SHIFTED(-11), SHIFTED(-13),
     SHIFTED(-15)},
};
#undef SHIFTED

#endif
