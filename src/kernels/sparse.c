/* sparse.c - products of the outliers of weights (pack_format.sparse): a few columns of each row.
 *
 * For output (m, n), sum starts at 0. For each outlier of the row in order, sum = sum + value * activation
 * code. Then y = y + sum * scale_a. Values and codes have 8 bits of precision each, so products are exact,
 * and a fused operation would give the same bits. */
#include "base/num.h"
#include "kernels/act8.h"
#include "kernels/strategy.h"
#include "numbers/tile.h"

void linear_sparse(const linear_args *a, int64_t n0, int64_t n1) {
    const view *w = a->w;
    const act8_layout l = act_layout_of(a->q.format, w->k);
    const int64_t n_outlier = tile_outliers(&w->format, w->k), bytes = tile_panel_bytes(&w->format, w->k);
    for (int64_t n = n0; n < n1; n += PACK_PANEL) {
        const uint8_t *panel = (const uint8_t *)w->data + n / PACK_PANEL * bytes;
        for (int64_t m = 0; m < a->n_row; m++) {
            const char *x = (const char *)a->q.data + m * l.bytes;
            const int8_t *codes = (const int8_t *)x;
            const uint16_t *at = tile_outliers_at(&w->format, panel, w->k);
            float sum[PACK_PANEL] = {0};
            for (int64_t i = 0; i < n_outlier; i++, at += 2 * PACK_PANEL)
                for (int r = 0; r < PACK_PANEL; r++)
                    sum[r] += bf16_to_float(at[PACK_PANEL + r]) * (float)codes[at[r]];
            const float scale = *(const float *)(const void *)(x + l.scale);
            float *y = a->y + m * a->ldy + n;
            for (int64_t r = 0; r < NUM_MIN(n1 - n, (int64_t)PACK_PANEL); r++)
                y[r] += sum[r] * scale;
        }
    }
}
