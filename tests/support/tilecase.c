/* tilecase.c - see tilecase.h. */
#include "tilecase.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

float *case_rows(int64_t n_row, int64_t k, uint64_t seed) {
    uint64_t s = seed * 0x9e3779b97f4a7c15u | 1;
    float *x = malloc((size_t)(n_row * k) * sizeof *x);
    float size = 1;
    for (int64_t i = 0; i < n_row * k; i++) {
        if (i % k % 32 == 0)
            size = ldexpf(1, (int)(random_next(&s) >> 40) % 9 - 5);
        x[i] = seed ? random_float(&s) * size : random_next(&s) >> 63 ? 127.0f : -127.0f;
    }
    return x;
}

static void product(const kernel_table *t, const strategy *s, const linear_args *a, int64_t n0, int64_t n1) {
    if (!s)
        linear_run(t, a, n0, n1);
    else
        s->run(a, n0, n1);
    if (s && a->w->format.sparse)
        linear_sparse(a, n0, n1);
}

guarded case_linear(const kernel_table *t, const matrix *w, const float *x, int64_t n_row, const float *bias,
                    int64_t split) {
    return case_linear_by(t, NULL, w, x, n_row, bias, split);
}

/* Checks that a strategy writes to no more scratch memory than it declares. */
static void check_scratch(const strategy *s, const guarded *scratch, int64_t n_row, int64_t k) {
    size_t written = 0;
    if (!s || !s->scratch_of)
        return;
    for (size_t i = 0; i < s->scratch; i++)
        written += ((const uint8_t *)scratch->data)[i] != GUARD_FILL;
    if (written > s->scratch_of(n_row, k))
        fail_msg("%d rows of %d: %zu bytes of scratch are written, expected %zu at most", (int)n_row, (int)k,
                 written, s->scratch_of(n_row, k));
}

guarded case_linear_by(const kernel_table *t, const strategy *s, const matrix *w, const float *x,
                       int64_t n_row, const float *bias, int64_t split) {
    const bool tile = w->view.format.layout == PACK_TILE;
    const act_format f = act_format_for(&w->view.format, w->act_bits, 0);
    const size_t each = act_row_bytes(f, w->k);
    guarded y = guard_open((size_t)(n_row * w->n) * sizeof(float));
    guarded q = guard_open(tile ? each * (size_t)n_row : 64);
    guarded rows = guard_open((size_t)(n_row * w->k) * sizeof(float));
    const size_t min = linear_scratch_bytes(true);
    guarded scratch = guard_open(s && s->scratch > min ? s->scratch : min);
    for (int64_t i = 0; i < n_row * w->n; i++)
        ((float *)y.data)[i] = NAN;
    for (int64_t i = 0; i < n_row * w->k; i++)
        ((float *)rows.data)[i] = x[i];
    for (int64_t m = 0; m < n_row && tile; m++)
        t->act_quantize(f, (float *)rows.data + m * w->k, w->k, (char *)q.data + (size_t)m * each);
    guard_read_only(&q);
    const linear_args a = {.w = &w->view,
                           .x = rows.data,
                           .ldx = w->k,
                           .q = {q.data, n_row, w->k, f},
                           .bias = bias,
                           .y = y.data,
                           .ldy = w->n,
                           .n_row = n_row,
                           .scratch = scratch.data};
    if (split)
        product(t, s, &a, split, w->n);
    product(t, s, &a, 0, split ? split : w->n);
    check_scratch(s, &scratch, n_row, w->k);
    guard_close(&scratch);
    guard_close(&rows);
    guard_close(&q);
    return y;
}
