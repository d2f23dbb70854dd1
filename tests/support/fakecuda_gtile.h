/* fakecuda_gtile.h - the order of numbers/gtile.h, made on the host. */
#ifndef NIB_TESTS_FAKECUDA_GTILE_H
#define NIB_TESTS_FAKECUDA_GTILE_H

#include "numbers/pack.h"

/* Reorders one panel (tile_panel_bytes(f, k) bytes) of a PACK_TILE matrix with rows of k, to the G-tile or
 * back. `to` may be `from`; otherwise they do not overlap. */
void gtile_from_qtile(const pack_format *f, int64_t k, const void *from, void *to);
void gtile_to_qtile(const pack_format *f, int64_t k, const void *from, void *to);

#endif
