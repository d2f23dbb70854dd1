/* tile_value.cuh - reads a few elements of a G-tile matrix as floats, for code that reads few of them or
 * reads them once. It ignores tables (pack_format.table) and outliers. */
#ifndef NIB_KERNELS_CUDA_TILE_VALUE_CUH
#define NIB_KERNELS_CUDA_TILE_VALUE_CUH

#include "kernels/cuda/device.cuh"
#include "numbers/gtile.h"
#include "numbers/tile.h"

/* The matrix, with what the launcher computes once. */
struct tile_source {
    const uint8_t *data;
    int bits, asym, scale, zero, group, scale_start, scale_step, planes;
    int64_t panel_bytes, tail_at, chunk_bytes, k;
};
static inline tile_source tile_source_of(const view *w) {
    const pack_format *f = &w->format;
    tile_source s = {(const uint8_t *)w->data};
    s.bits = f->bits;
    s.asym = f->asym;
    s.scale = f->scale;
    s.zero = tile_zero(f);
    s.group = f->group == PACK_GROUP_ROW ? 0 : f->group;
    s.scale_start = (int)tile_scale_start(f);
    s.scale_step = (int)tile_scale_step(f);
    s.planes = f->packing == PACK_PLANES;
    s.panel_bytes = tile_panel_bytes(f, w->k);
    s.tail_at = tile_tail_at(f, w->k);
    s.chunk_bytes = tile_chunk_bytes(f, TILE_CHUNK);
    s.k = w->k;
    return s;
}

__device__ static float half_of(const uint8_t *p) {
    return __half2float(*(const __half *)p);
}

/* Codes k to k + 3 of a tile, in bytes, without the table look-up. k is a multiple of 4. */
__device__ static uint32_t tile_codes(const uint8_t *part, int bits, bool planes, int row, int k) {
    uint32_t codes = 0;
    int low = bits;
    for (int w = 8; low > 0;) {
        if (planes)
            w = 1;
        else
            while (!(bits & w))
                w /= 2;
        const int n_line = 2 * w, quad = k / 4, line = quad % n_line, at = quad / n_line * w;
        low -= w;
        codes |= (((const uint32_t *)part)[gtile_dword(n_line, line, row)] >> at & ((1u << w) - 1) * 0x01010101u)
                 << low;
        part += n_line * TILE_LINE;
        w /= 2;
    }
    return codes;
}

/* Values at to at + 3 of row r, which belong to one group. */
__device__ static float4 tile_values(const tile_source &j, int64_t r, int at) {
    const uint8_t *panel = j.data + r / PACK_PANEL * j.panel_bytes;
    const int row = (int)(r % PACK_PANEL), chunk = at / TILE_CHUNK_K, in = at % TILE_CHUNK_K;
    const int64_t left = (j.k + TILE_K - 1) / TILE_K - (int64_t)chunk * TILE_CHUNK;
    const int n_tile = left < TILE_CHUNK ? (int)left : TILE_CHUNK, tile_bytes = 128 * j.bits;
    const uint8_t *codes = panel + chunk * j.chunk_bytes, *scales = codes + n_tile * tile_bytes;
    const uint32_t four = tile_codes(codes + in / TILE_K * tile_bytes, j.bits, j.planes, row, in % TILE_K);
    float scale, min = 0.0f;
    if (!j.group) {
        scale = half_of(panel + j.tail_at + 2 * row);
        min = j.asym ? half_of(panel + j.tail_at + 32 + 2 * row) : 0.0f;
    } else {
        const uint8_t *g = scales + j.scale_start + in / j.group * j.scale_step;
        switch (j.scale) {
        case PACK_SCALE_F16:
            scale = half_of(g + 2 * row);
            min = j.asym ? half_of(g + 32 + 2 * row) : 0.0f;
            break;
        case PACK_SCALE_E8M0:
            scale = __uint_as_float(g[row] < 2 ? 0x00200000u << g[row] : (uint32_t)(g[row] - 1) << 23);
            break;
        case PACK_SCALE_TWO: scale = (float)g[row]; break;
        default:
            scale = __fmul_rn(half_of(scales + 2 * row), (float)(int8_t)g[row]);
            min = j.asym ? __fmul_rn(half_of(scales + 32 + 2 * row), (float)(int8_t)g[row + 16]) : 0.0f;
        }
    }
    const float all = j.scale == PACK_SCALE_TWO ? half_of(panel + j.tail_at + 2 * row) : 1.0f;
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[i] = __fmul_rn(scale, (float)((int)(four >> 8 * i & 255) - j.zero));
        v[i] = j.asym ? __fadd_rn(v[i], min) : v[i];
        v[i] = __fmul_rn(v[i], all);
    }
    return make_float4(v[0], v[1], v[2], v[3]);
}

#endif
