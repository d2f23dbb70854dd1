/* bitwise.c - the scalar Bitwise product, AND and popcount of one dword after the other: the reference of the
 * vector kernels for planes. */
#include "kernels/bitwise.h"

#include "kernels/cpu/ref/ref.h"

#include <math.h>
#include <string.h>

static void build(const int8_t *codes, bool by_32, int a_bits, uint64_t *out) {
    memset(out, 0, (size_t)a_bits * sizeof *out);
    for (int k = 0; k < TILE_K; k++)
        for (int b = 0; b < a_bits; b++)
            out[b] |= (uint64_t)((uint8_t)codes[k] >> b & 1) << bitwise_place(by_32, k);
}

/* Dword u of a weight row in the plane whose two lines begin at `plane`. */
static uint32_t plane_word(const uint8_t *plane, int row, bool by_32, int u) {
    uint32_t line[2];
    for (int l = 0; l < 2; l++) {
        const uint8_t *p = plane + l * TILE_LINE + 4 * row;
        line[l] = (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
    }
    if (!by_32)
        return line[u];
    const uint32_t low = 0x0f0f0f0f;
    return u ? (line[0] >> 4 & low) | (line[1] & ~low) : (line[0] & low) | (line[1] & low) << 4;
}

static int32_t dot_planes(const uint8_t *tile, int bits, int row, bool by_32, int u, const uint64_t *x,
                          int a_bits) {
    int32_t sum = 0;
    for (int i = 0; i < bits; i++) { /* the top plane is first */
        const uint32_t w = plane_word(tile + (bits - 1 - i) * 2 * TILE_LINE, row, by_32, u);
        for (int b = 0; b < a_bits; b++) {
            const int32_t part = __builtin_popcount(w & (uint32_t)(x[b] >> 32 * u)) << (i + b);
            sum += b == a_bits - 1 ? -part : part;
        }
    }
    return sum;
}

static float one_output(const bit_job *j, const uint8_t *panel, int row, int64_t m, float y) {
    const view *w = j->a->w;
    const pack_format *f = &w->format;
    const char *x = (const char *)j->a->q.data + m * j->l.bytes;
    const int64_t group = tile_group(f, w->k);
    int32_t dot = 0;
    for (int64_t t = j->tile0; t < j->tile1; t++) {
        const tile_chunk c = tile_chunk_at(f, panel, w->k, t / TILE_CHUNK);
        const uint8_t *tile = c.codes + t % TILE_CHUNK * tile_code_bytes(f);
        for (int u = 0; u < 2; u++) {
            dot += dot_planes(tile, f->bits, row, j->by_32, u, bitwise_planes(j, m, t), j->a_bits);
            if (!bitwise_ends(j, t, u))
                continue;
            const int64_t g = (t * TILE_K + 32 * u) / group;
            float scale, min = 0;
            tile_read_scale(f, c.scales, (int)(g * group % TILE_CHUNK_K / group), row, &scale, &min);
            const int32_t minus = ((const int32_t *)(const void *)(x + j->l.minus))[g];
            const float step = ((const float *)(const void *)(x + j->l.scale))[g];
            y = fmaf((float)(dot + tile_zero(f) * minus), scale * step, y);
            if (f->asym)
                y = fmaf(min, ((const float *)(const void *)(x + j->l.lift))[g], y);
            dot = 0;
        }
    }
    return y;
}

static void panels(const bit_job *j, const int64_t *panel, int np) {
    const linear_args *a = j->a;
    const view *w = a->w;
    const bool last = j->tile1 == tile_count(w->k);
    for (int i = 0; i < np * PACK_PANEL; i++) {
        const int64_t p = panel[i / PACK_PANEL], n = p * PACK_PANEL + i % PACK_PANEL;
        const uint8_t *weights = (const uint8_t *)w->data + p * tile_panel_bytes(&w->format, w->k);
        for (int64_t m = j->m0; m < j->m1 && n < w->n; m++) {
            float *y = a->y + m * a->ldy + n;
            *y = one_output(j, weights, i % PACK_PANEL, m, j->tile0 ? *y : 0);
            if (last && a->bias)
                *y += a->bias[n];
        }
    }
}

static bool can(const pack_format *f, int64_t n_row) {
    (void)n_row;
    return bitwise_can(f);
}

static void run(const linear_args *a, int64_t n0, int64_t n1) {
    bitwise_run(a, n0, n1, build, panels);
}

const strategy ref_bitwise = {.name = "bitwise", .can = can, .run = run, .rule_rows = 0};
