/* tile.c - chooses how a product with packed weights is done here. */
#include "kernels/cpu/avx512/avx512.h"

#include "base/num.h"
#include "kernels/cpu/avx512/tile_kernels.h"

void avx512_linear_tile(const linear_args *a, int64_t n0, int64_t n1) {
    const tile_job job = {
        .a = a, .layout = act8_layout_of(a->w->k), .panel_bytes = tile_panel_bytes(&a->w->format, a->w->k)};
    const int64_t p0 = n0 / PACK_PANEL, p1 = num_div_up(n1, PACK_PANEL);
    if (a->n_row <= 0 || p0 >= p1)
        return;
    const tile_direct_fn direct = tile_direct_for(&a->w->format, a->n_row);
    if (direct)
        direct(&job, p0, p1);
    else
        tile_blocked(&job, p0, p1);
}
