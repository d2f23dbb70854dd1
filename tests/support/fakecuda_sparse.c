/* fakecuda_sparse.c - the fake table's outliers of weights, by their definition, row by row. */
#include "support/fakecuda_parts.h"

#include "base/num.h"
#include "numbers/tile.h"

#include <math.h>
#include <stdlib.h>

void fake_cuda_outliers(const view *w, const float *x, float *out) {
    const pack_format *f = &w->format;
    for (int64_t n = 0; n < w->n; n++) {
        const uint8_t *panel = (const uint8_t *)w->data + n / PACK_PANEL * tile_panel_bytes(f, w->k);
        const uint16_t *at = tile_outliers_at(f, panel, w->k) + n % PACK_PANEL;
        float sum[2] = {0, 0};
        for (int64_t i = 0; i < tile_outliers(f, w->k); i++, at += 2 * PACK_PANEL)
            sum[i % 2] = fmaf(bf16_to_float(at[PACK_PANEL]), x[at[0]], sum[i % 2]);
        out[n] = sum[0] + sum[1];
    }
}

static void add_to_row(const cuda_sparse *a, int64_t row) {
    const kernel_table *t = kernels_table();
    const float *x = (const float *)real(a->x) + row * a->ldx;
    float *normed = malloc((size_t)a->w[0].k * sizeof *normed), *y[3];
    if (a->norm)
        t->norm(NORM_RMS, x, real(a->norm), NULL, normed, a->w[0].k, 1, false, a->eps);
    for (int i = 0; i < a->n_w; i++) {
        view w = a->w[i];
        float *part = malloc((size_t)w.n * sizeof *part);
        w.data = real(w.data);
        y[i] = (float *)real(a->y[i]) + row * a->ldy[i];
        fake_cuda_outliers(&w, a->norm ? normed : x, part);
        t->add(y[i], part, 1, y[i], w.n);
        free(part);
    }
    if (a->gated)
        t->gate(a->act, y[0], y[1], (float *)real(a->out) + row * a->ldo, a->w[0].n);
    free(normed);
}

int fake_sparse(const cuda_sparse *a, cuda_stream s) {
    LAUNCH(s);
    KEEP(sparse, fake_sparse);
    if (fake_is_put_in_order(a->w, a->n_w))
        return fake_misuse("outliers of a matrix that is still put in order may be read");
    if (a->n_row < 1 || !a->w[0].format.sparse || (a->gated && a->n_w != 2))
        return fake_misuse("no rows, no outliers, or a gate of other than two products");
    fake.n_sparse += a->n_row;
    for (int64_t r = 0; r < a->n_row; r++)
        add_to_row(a, r);
    return 0;
}
