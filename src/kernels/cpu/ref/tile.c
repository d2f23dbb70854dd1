/* tile.c - 8-bit activations times packed integer codes, one number after the other.
 *
 * For output (m, n) and each group g along K, in order, y starting at 0:
 *     dot = sum of code * activation code                      exact, in 32 bits
 *     y = fma(dot - zero * sum, scale_w * scale_a, y)          without a minimum
 *     y = fma(min, scale_a * sum, fma(dot, scale_w * scale_a, y))  with one
 * then bias is added. Every kernel for PACK_TILE performs these roundings in this order. */
#include "kernels/cpu/ref/ref.h"

#include "base/num.h"
#include "kernels/act8.h"

#include <math.h>
#include <string.h>

static void quantize_group(const float *x, int n, char *row, const act8_layout *l, int64_t group) {
    int8_t *codes = (int8_t *)row + group * ACT8_GROUP;
    float most = 0, scale = 0;
    int32_t sum[2] = {0, 0};
    bool finite = true;
    for (int i = 0; i < n; i++) {
        finite = finite && isfinite(x[i]);
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    }
    memset(codes, 0, ACT8_GROUP);
    if (finite && most >= ACT8_TINY) {
        const float inverse = 127.0f / most;
        scale = most / 127.0f;
        for (int i = 0; i < n; i++) {
            codes[i] = (int8_t)rintf(x[i] * inverse);
            sum[i / ACT8_SUM] += codes[i];
        }
    }
    act8_put(row, l, group, finite ? scale : NAN, sum[0], sum[1]);
}

void ref_act_quantize(const float *x, int64_t k, void *out) {
    const act8_layout l = act8_layout_of(k);
    for (int64_t g = 0; g < l.scale / ACT8_GROUP; g++) {
        const int64_t left = k - g * ACT8_GROUP;
        quantize_group(x + g * ACT8_GROUP, (int)NUM_MAX(0, NUM_MIN(left, ACT8_GROUP)), out, &l, g);
    }
}

static int32_t dot_codes(const uint8_t *w, const int8_t *x, int n) {
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

/* One tile of one weight row against one activation row. */
static float dot_tile(const pack_format *f, const uint8_t *codes, const float *scale, const float *min,
                      const char *x, const act8_layout *l, int64_t tile, float y) {
    const int group = f->group;
    for (int g = 0; g < TILE_K / group; g++) {
        const int64_t at = tile * TILE_K + g * group, i = at / group;
        const int32_t dot = dot_codes(codes + g * group, (const int8_t *)x + at, group);
        const int32_t minus = int_at(x, group == ACT8_SUM ? l->minus16 : l->minus32, i);
        const float both = scale[g] * float_at(x, l->scale, at / ACT8_GROUP);
        y = fmaf((float)(dot + tile_zero(f) * minus), both, y);
        if (f->asym)
            y = fmaf(min[g], float_at(x, group == ACT8_SUM ? l->lift16 : l->lift32, i), y);
    }
    return y;
}

/* One weight row against all activation rows, tile by tile; y holds the sums between tiles. */
static void row_times_all(const linear_args *a, int64_t n) {
    const view *w = a->w;
    const pack_format *f = &w->format;
    const uint8_t *panel = (const uint8_t *)w->data + n / PACK_PANEL * tile_panel_bytes(f, w->k);
    const act8_layout l = act8_layout_of(w->k);
    const int row = (int)(n % PACK_PANEL), n_group = TILE_K / f->group;
    for (int64_t t = 0; t < tile_count(w->k); t++) {
        uint8_t codes[TILE_K];
        float scale[TILE_K / 16], min[TILE_K / 16] = {0}, all[PACK_PANEL], all_min[PACK_PANEL] = {0};
        const tile_chunk c = tile_chunk_at(f, panel, w->k, t / TILE_CHUNK);
        const int in_chunk = (int)(t % TILE_CHUNK);
        tile_read_row_codes(f, c.codes + in_chunk * tile_code_bytes(f), row, codes);
        for (int g = 0; g < n_group; g++) {
            tile_read_scales(f, c.scales, in_chunk * n_group + g, all, all_min);
            scale[g] = all[row];
            min[g] = all_min[row];
        }
        for (int64_t m = 0; m < a->n_row; m++) {
            const char *x = (const char *)a->q.data + m * l.bytes;
            float *y = a->y + m * a->ldy + n;
            *y = dot_tile(f, codes, scale, min, x, &l, t, t ? *y : 0);
        }
    }
}

static bool can(const pack_format *f, int64_t n_row) {
    (void)f, (void)n_row;
    return true;
}

static void run(const linear_args *a, int64_t n0, int64_t n1) {
    for (int64_t n = n0; n < n1; n++) {
        row_times_all(a, n);
        for (int64_t m = 0; m < a->n_row && a->bias; m++)
            a->y[m * a->ldy + n] += a->bias[n];
    }
}

const strategy ref_scalar = {.name = "scalar", .can = can, .run = run, .rule_rows = STRATEGY_ANY_ROWS};
