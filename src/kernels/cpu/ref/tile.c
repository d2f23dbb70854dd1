/* tile.c - quantized activations times packed integer codes, one number after the other.
 *
 * For output (m, n) and each group g along K, in order, y starting at 0:
 *     dot = sum of code * activation code                      exact, in 32 bits
 *     y = fma(dot - zero * sum, scale_w * scale_a, y)          without a minimum
 *     y = fma(min, scale_a * sum, fma(dot, scale_w * scale_a, y))  with one
 * and with PACK_SCALE_TWO, where activations have one scale for the row, the sum over all groups is an
 * integer:
 *     y = fma(sum over g of u * (dot - zero * sum), scale_w * scale_a, 0)
 * then bias is added. Every kernel for PACK_TILE performs these roundings in this order. */
#include "kernels/cpu/ref/ref.h"

#include "base/num.h"
#include "kernels/act8.h"
#include "kernels/lanes/lanes.h"

#include <math.h>
#include <string.h>

/* ---- activations ---- */

/* Quantizes one group of `size` elements, of which the row has n. */
static void quantize_group(act_format f, const float *x, int64_t n, int64_t size, char *row,
                           const act8_layout *l, int64_t group) {
    int8_t *codes = (int8_t *)row + group * act_group(f, l->scale);
    const float top = max_act_at(f, group * act_group(f, l->scale));
    float max = 0, min = 0, scale = 0;
    int32_t sum[2] = {0, 0};
    bool finite = true;
    for (int64_t i = 0; i < n; i++) {
        finite = finite && isfinite(x[i]);
        max = fabsf(x[i]) > max ? fabsf(x[i]) : max;
        min = x[i] < min ? x[i] : min;
    }
    memset(codes, 0, (size_t)size);
    if (finite && max >= ACT8_TINY) {
        const float steps = act_steps(top, -min == max), inverse = steps / max;
        scale = max / steps;
        for (int64_t i = 0; i < n; i++) {
            codes[i] = (int8_t)fminf(rintf(x[i] * inverse), top);
            sum[i >= ACT8_SUM] += codes[i];
        }
    }
    if (f.group == ACT8_GROUP)
        act8_put(row, l, group, finite ? scale : NAN, sum[0], sum[1]);
    else
        act_put(row, l, group, finite ? scale : NAN, sum[0] + sum[1]);
}

void ref_act_quantize(act_format f, const float *x, int64_t k, void *out) {
    const act8_layout l = act_layout_of(f, k);
    const int64_t pad = tile_count(k) * TILE_K, group = act_group(f, k);
    for (int64_t at = 0; at < pad; at += group)
        quantize_group(f, x + at, NUM_MAX(0, NUM_MIN(k - at, group)), NUM_MIN(group, pad - at), out, &l,
                       at / group);
}

/* ---- products ---- */

enum { ROWS = 64 }; /* activation rows that share one decoding of a tile */

LANES_UNCHECKED static int32_t dot_codes(const uint8_t *w, const int8_t *x, int n) {
    int32_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += (int32_t)w[i] * x[i];
    return sum;
}

static float float_at(const char *row, int64_t offset, int64_t i) {
    return ((const float *)(const void *)(row + offset))[i];
}
static int32_t int_at(const char *row, int64_t offset, int64_t i) {
    return ((const int32_t *)(const void *)(row + offset))[i];
}

/* One weight row and up to ROWS activation rows. dot: the sums of a group that continues in the next tile;
 * total: the sums over groups of PACK_SCALE_TWO. */
typedef struct row_job {
    const linear_args *a;
    act8_layout l;
    int64_t n, group, m0, m1;
    int32_t dot[ROWS], total[ROWS];
    float y[ROWS];
} row_job;

/* Scales and adds a finished group, whose first element is `at`. scale, min: those of the weights. */
static void end_group(row_job *j, int64_t at, float scale, float min) {
    const pack_format *f = &j->a->w->format;
    const bool halves = f->group == ACT8_SUM;
    const int64_t i = at / j->group, of_act = at / act_group(j->a->q.format, j->a->w->k);
    for (int64_t m = j->m0; m < j->m1; m++) {
        const char *x = (const char *)j->a->q.data + m * j->l.bytes;
        int32_t *dot = &j->dot[m - j->m0];
        float *y = &j->y[m - j->m0];
        if (f->scale == PACK_SCALE_TWO) {
            j->total[m - j->m0] += (int32_t)scale * *dot;
        } else {
            const int32_t minus = int_at(x, halves ? j->l.minus16 : j->l.minus, halves ? i : of_act);
            *y = fmaf((float)(*dot + tile_zero(f) * minus), scale * float_at(x, j->l.scale, of_act), *y);
            if (f->asym)
                *y = fmaf(min, float_at(x, halves ? j->l.lift16 : j->l.lift, halves ? i : of_act), *y);
        }
        *dot = 0;
    }
}

/* Multiplies one tile of the weight row: whole groups, or a part of one. */
static void times_tile(row_job *j, const tile_chunk *c, int64_t tile) {
    const view *w = j->a->w;
    const pack_format *f = &w->format;
    const int row = (int)(j->n % PACK_PANEL), step = (int)NUM_MIN(j->group, TILE_K);
    const int64_t end = tile_count(w->k) * TILE_K;
    uint8_t codes[TILE_K];
    tile_read_row_codes(f, c->codes + tile % TILE_CHUNK * tile_code_bytes(f), tile_book(f, c), row, codes);
    const int zero = f->scale == PACK_SCALE_TWO ? tile_zero(f) : 0; /* `minus` has no sums for these groups */
    for (int64_t at = tile * TILE_K; at < (tile + 1) * TILE_K; at += step) {
        const uint8_t *group = codes + at % TILE_K;
        for (int64_t m = j->m0; m < j->m1; m++) {
            const int8_t *x = (const int8_t *)j->a->q.data + m * j->l.bytes + at;
            int8_t near[TILE_K];
            memcpy(near, x, (size_t)step); /* this is what a sanitizer checks, once */
            int32_t dot = dot_codes(group, near, step);
            for (int i = 0; i < step && zero; i++)
                dot -= zero * near[i];
            j->dot[m - j->m0] += dot;
        }
        if ((at + step) % j->group == 0 || at + step == end) {
            float scale, min = 0;
            const int64_t first = at / j->group * j->group;
            tile_read_scale(f, c->scales, (int)(first % TILE_CHUNK_K / j->group), row, &scale, &min);
            end_group(j, first, scale, min);
        }
    }
}

static void times_rows(row_job *j) {
    const linear_args *a = j->a;
    const view *w = a->w;
    const pack_format *f = &w->format;
    const uint8_t *panel = (const uint8_t *)w->data + j->n / PACK_PANEL * tile_panel_bytes(f, w->k);
    /* Often one row: clearing all ROWS took longer than its products. */
    for (int64_t i = 0; i < j->m1 - j->m0; i++) {
        j->dot[i] = j->total[i] = 0;
        j->y[i] = 0;
    }
    for (int64_t t = 0; t < tile_count(w->k); t++) {
        const tile_chunk c = tile_chunk_at(f, panel, w->k, t / TILE_CHUNK);
        times_tile(j, &c, t);
    }
    for (int64_t m = j->m0; m < j->m1; m++) {
        const char *x = (const char *)a->q.data + m * j->l.bytes;
        float y = j->y[m - j->m0];
        if (f->scale == PACK_SCALE_TWO)
            y = fmaf((float)j->total[m - j->m0],
                     tile_row_scale(f, panel, w->k, (int)(j->n % PACK_PANEL)) * float_at(x, j->l.scale, 0),
                     y);
        a->y[m * a->ldy + j->n] = a->bias ? y + a->bias[j->n] : y;
    }
}

static bool can(const pack_format *f, int64_t n_row) {
    (void)f, (void)n_row;
    return true;
}

static void run(const linear_args *a, int64_t n0, int64_t n1) {
    row_job j = {
        .a = a, .l = act_layout_of(a->q.format, a->w->k), .group = tile_group(&a->w->format, a->w->k)};
    for (j.n = n0; j.n < n1; j.n++)
        for (j.m0 = 0; j.m0 < a->n_row; j.m0 = j.m1) {
            j.m1 = NUM_MIN(a->n_row, j.m0 + ROWS);
            times_rows(&j);
        }
}

const strategy ref_scalar = {.name = "scalar", .can = can, .run = run, .rule_rows = STRATEGY_ANY_ROWS};
