/* tables.cu - the shared tables of formats, for the launchers (tables.cuh). */
#include "numbers/tile.h"
#include "numbers/tile_table.h"

const uint8_t *tile_table(int table) {
    return TILE_TABLES[table];
}
