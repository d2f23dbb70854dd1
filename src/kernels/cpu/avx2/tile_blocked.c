/* tile_blocked.c - products of many activation rows with vpmaddubsw, and estimates of such products. */
#include "kernels/cpu/avx2/dot.h"

#include "kernels/cpu/avx2/avx2.h"
#include "kernels/cpu/avx2/blocked.h"

const strategy avx2_blocked = {.name = "padding.blocked",
                               .can = blocked_can,
                               .run = blocked_run,
                               .rule_rows = STRATEGY_ANY_ROWS,
                               .suits = blocked_suits};

/* ---- estimates: from the upper halves of 8-bit codes, at the cost of 4 bits ---- */

bool avx2_estimate_can(const pack_format *f, int64_t n_row) {
    return f->layout == PACK_TILE && f->bits == 8 && f->group == 32 && f->scale == PACK_SCALE_F16 &&
           !f->asym && f->table == PACK_TABLE_NONE && f->packing == PACK_PARTS && !f->sparse && n_row > 1;
}

/* The standard deviation of the estimates of a panel. Rounding to the upper half has an error of up to 8,
 * evenly distributed. */
static vf error_of(const view *w, int64_t panel) {
    const pack_format *f = &w->format;
    const uint8_t *at = (const uint8_t *)w->data + panel * tile_panel_bytes(f, w->k);
    vf squares = v_zero();
    int64_t n_group = 0;
    for (int64_t c = 0; c * TILE_CHUNK_K < w->k; c++) {
        const tile_chunk chunk = tile_chunk_at(f, at, w->k, c);
        const int64_t n = num_div_up(NUM_MIN(w->k - c * TILE_CHUNK_K, (int64_t)TILE_CHUNK_K), f->group);
        for (int64_t g = 0; g < n; g++) {
            const vf scale = v_load_f16((const void *)(chunk.scales + g * tile_scale_step(f)));
            squares = v_fma(scale, scale, squares);
        }
        n_group += n;
    }
    const vf mean = v_mul(squares, v_set(16.0f * 16 / 12 / (float)n_group));
    return BOTH(_mm256_sqrt_ps(mean.a), _mm256_sqrt_ps(mean.b));
}

void avx2_estimate(const linear_args *a, int64_t n0, int64_t n1, float *error) {
    run_blocks(a, true, n0, n1);
    for (int64_t n = n0; n < n1; n += PACK_PANEL)
        v_store(error + n - n0, error_of(a->w, n / PACK_PANEL));
}
