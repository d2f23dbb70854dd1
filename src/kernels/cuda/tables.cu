/* tables.cu - the shared tables of formats, for the launchers (tables.cuh). */
#include "quant/tile.h"
#include "quant/tile_table.h"

const uint8_t *tile_table(int table) {
    return TILE_TABLES[table];
}
