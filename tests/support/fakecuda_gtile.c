/* fakecuda_gtile.c - see fakecuda_gtile.h. */
#include "support/fakecuda_gtile.h"

#include "numbers/gtile.h"
#include "numbers/tile.h"

#include <string.h>

/* Moves one part of a tile; the widest part has 16 lines. */
static void move_part(int n_line, bool to_gpu, const uint8_t *from, uint8_t *to) {
    uint8_t in[16 * TILE_LINE];
    memcpy(in, from, (size_t)n_line * TILE_LINE);
    for (int l = 0; l < n_line; l++)
        for (int r = 0; r < PACK_PANEL; r++) {
            const int q = l * PACK_PANEL + r, g = gtile_dword(n_line, l, r);
            memcpy(to + (size_t)4 * (to_gpu ? g : q), in + (size_t)4 * (to_gpu ? q : g), 4);
        }
}

static void move_tile(const pack_format *f, bool to_gpu, const uint8_t *from, uint8_t *to) {
    int64_t at = 0;
    for (const uint8_t *w = tile_parts(f); at < tile_code_bytes(f); w++) {
        move_part(2 * *w, to_gpu, from + at, to + at);
        at += 2 * *w * TILE_LINE;
    }
}

static void move_panel(const pack_format *f, int64_t k, bool to_gpu, const uint8_t *from, uint8_t *to) {
    if (to != from)
        memcpy(to, from, (size_t)tile_panel_bytes(f, k));
    for (int64_t t = 0; t < tile_count(k); t++) {
        const tile_chunk c = tile_chunk_at(f, from, k, t / TILE_CHUNK);
        const int64_t at = c.codes - from + t % TILE_CHUNK * tile_code_bytes(f);
        move_tile(f, to_gpu, from + at, to + at);
    }
}

void gtile_from_qtile(const pack_format *f, int64_t k, const void *from, void *to) {
    move_panel(f, k, true, from, to);
}

void gtile_to_qtile(const pack_format *f, int64_t k, const void *from, void *to) {
    move_panel(f, k, false, from, to);
}
