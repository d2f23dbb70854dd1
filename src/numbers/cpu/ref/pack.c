/* pack.c - packs a tile in plain C. This is the reference: every other folder must give the same bytes. */
#include "numbers/pack_isa.h"
#include "numbers/tile.h"

#include <string.h>

enum { TILE_QUADS = TILE_K / 4 };

/* Packs a tile's 16 lines into the 2w lines of a part that holds code bits [low, low + w). */
static inline void pack_part(const uint32_t (*restrict lines)[PACK_PANEL], uint32_t *restrict out, int w,
                             int low) {
    const uint32_t mask = 0x01010101u * ((1u << w) - 1);
    for (int l = 0; l < 2 * w; l++)
        for (int r = 0; r < PACK_PANEL; r++) {
            uint32_t v = 0;
            for (int f = 0; f < 8 / w; f++)
                v |= (lines[l + 2 * w * f][r] >> low & mask) << f * w;
            out[l * PACK_PANEL + r] = v;
        }
}

static void pack_lines(const pack_format *f, const uint32_t (*lines)[PACK_PANEL], uint8_t *dst) {
    int low = f->bits;
    for (const uint8_t *w = tile_parts(f); low > 0; w++) {
        low -= *w;
        uint32_t *out = (uint32_t *)(void *)dst;
        switch (*w) { /* constant widths, so that the loops unroll */
        case 1: pack_part(lines, out, 1, low); break;
        case 2: pack_part(lines, out, 2, low); break;
        case 4: pack_part(lines, out, 4, low); break;
        default: memcpy(out, lines, TILE_QUADS * sizeof *lines); break;
        }
        dst += 2 * *w * TILE_LINE;
    }
}

static void pack_tile(const pack_format *f, const uint8_t *codes, uint8_t *tile) {
    uint32_t lines[TILE_QUADS][PACK_PANEL];
    for (int q = 0; q < TILE_QUADS; q++)
        for (int r = 0; r < PACK_PANEL; r++)
            memcpy(&lines[q][r], codes + r * PACK_CHUNK + 4 * q, 4);
    pack_lines(f, (const uint32_t(*)[PACK_PANEL])lines, tile);
}

void tile_to_parts(const pack_format *f, const void *tile, void *out) {
    uint32_t lines[TILE_QUADS][PACK_PANEL];
    const uint32_t *planes = tile; /* two lines each, the top one first */
    pack_format parts = *f;
    for (int q = 0; q < TILE_QUADS; q++)
        for (int r = 0; r < PACK_PANEL; r++) {
            uint32_t v = 0;
            for (int i = 0; i < f->bits; i++)
                v = v << 1 | (planes[(2 * i + q % 2) * PACK_PANEL + r] >> q / 2 & 0x01010101);
            lines[q][r] = v;
        }
    parts.packing = PACK_PARTS;
    pack_lines(&parts, (const uint32_t(*)[PACK_PANEL])lines, out);
}

const pack_isa packers_ref = {.name = "ref",
                              .rank = 0,
                              .needs = {NULL},
                              .tile = pack_tile,
                              .round = &pack_rounder_plain,
                              .encode = &encode_kernels_plain};
