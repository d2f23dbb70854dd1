/* tile_value.cuh - reads a few elements of a G-tile matrix as floats, for code that reads few of them or
 * reads them once. It ignores outliers. */
#ifndef NIB_KERNELS_CUDA_TILE_VALUE_CUH
#define NIB_KERNELS_CUDA_TILE_VALUE_CUH

#include "kernels/cuda/device.cuh"
#include "numbers/gtile.h"
#include "numbers/tile.h"

/* The matrix, with what the launcher computes once. */
struct tile_source {
    const uint8_t *data;
    int bits, asym, scale, zero, group_shift, scale_start, scale_step, planes;
    int64_t panel_bytes, tail_at, chunk_bytes, k;
    int table;           /* pack_table */
    uint8_t entries[16]; /* of a table of all rows */
    float unit;          /* tile_table_unit */
};
static inline tile_source tile_source_of(const view *w) {
    const pack_format *f = &w->format;
    tile_source s = {(const uint8_t *)w->data};
    s.bits = f->bits;
    s.asym = f->asym;
    s.scale = f->scale;
    s.zero = tile_zero(f);
    for (s.group_shift = f->group == PACK_GROUP_ROW ? -1 : 0;
         s.group_shift >= 0 && f->group >> s.group_shift > 1;)
        s.group_shift++;
    s.scale_start = (int)tile_scale_start(f);
    s.scale_step = (int)tile_scale_step(f);
    s.planes = f->packing == PACK_PLANES;
    s.panel_bytes = tile_panel_bytes(f, w->k);
    s.tail_at = tile_tail_at(f, w->k);
    s.chunk_bytes = tile_chunk_bytes(f, TILE_CHUNK);
    s.k = w->k;
    s.table = f->table;
    s.unit = tile_table_unit(f->table);
    if (s.table != PACK_TABLE_NONE && s.table != PACK_TABLE_BOOK)
        memcpy(s.entries, tile_table(f->table), sizeof s.entries);
    return s;
}

__device__ static float half_of(const uint8_t *p) {
    return __half2float(*(const __half *)p);
}

/* Codes k to k + 3 of a tile, in bytes, without the table look-up. k is a multiple of 4. */
__device__ __forceinline__ static uint32_t tile_codes(const uint8_t *part, int bits, bool planes, int row,
                                                      int k) {
    uint32_t codes = 0;
    int low = bits;
    for (int w = 8; low > 0;) {
        if (planes)
            w = 1;
        else
            while (!(bits & w))
                w /= 2;
        const int n_line = 2 * w, quad = k / 4, line = quad & (n_line - 1),
                  at = (quad >> (32 - __clz(w))) * w;
        low -= w;
        codes |=
            (((const uint32_t *)part)[gtile_dword(n_line, line, row)] >> at & ((1u << w) - 1) * 0x01010101u)
            << low;
        part += n_line * TILE_LINE;
        w /= 2;
    }
    return codes;
}

/* The entry of a code of row `row` of a panel. */
__device__ __forceinline__ static int tile_entry(const tile_source &j, const uint8_t *panel, int row,
                                                 int code) {
    if (j.table == PACK_TABLE_NONE)
        return code;
    return j.table == PACK_TABLE_BOOK ? panel[j.tail_at + TILE_LINE + (row << j.bits) + code]
                                      : j.entries[code];
}

/* A row's group: where its tile's codes are, and w = all * (scale * (code - zero) + min). */
struct tile_run {
    const uint8_t *panel, *tile;
    int row;
    float scale, min, all;
};
/* The group with element `at` of row r. */
__device__ __forceinline__ static tile_run tile_run_at(const tile_source &j, int64_t r, int at) {
    tile_run x;
    x.panel = j.data + r / PACK_PANEL * j.panel_bytes;
    x.row = (int)(r % PACK_PANEL);
    const int chunk = at / TILE_CHUNK_K, in = at % TILE_CHUNK_K;
    const int n_left = (int)((j.k + TILE_K - 1) / TILE_K) - chunk * TILE_CHUNK;
    const int n_tile = n_left < TILE_CHUNK ? n_left : TILE_CHUNK, tile_bytes = 128 * j.bits;
    const uint8_t *codes = x.panel + chunk * j.chunk_bytes, *scales = codes + n_tile * tile_bytes;
    x.tile = codes + in / TILE_K * tile_bytes;
    x.min = 0.0f;
    x.all = j.scale == PACK_SCALE_TWO ? half_of(x.panel + j.tail_at + 2 * x.row) : 1.0f;
    if (j.group_shift < 0) {
        x.scale = half_of(x.panel + j.tail_at + 2 * x.row);
        x.min = j.asym ? half_of(x.panel + j.tail_at + 32 + 2 * x.row) : 0.0f;
        return x;
    }
    const uint8_t *g = scales + j.scale_start + (in >> j.group_shift) * j.scale_step;
    switch (j.scale) {
    case PACK_SCALE_F16:
        x.scale = half_of(g + 2 * x.row);
        x.min = j.asym ? half_of(g + 32 + 2 * x.row) : 0.0f;
        break;
    case PACK_SCALE_E8M0:
        x.scale = __uint_as_float(g[x.row] < 2 ? 0x00200000u << g[x.row] : (uint32_t)(g[x.row] - 1) << 23);
        break;
    case PACK_SCALE_TWO: x.scale = (float)g[x.row]; break;
    default:
        x.scale = __fmul_rn(__fmul_rn(half_of(scales + 2 * x.row), j.unit), (float)(int8_t)g[x.row]);
        x.min = j.asym ? __fmul_rn(half_of(scales + 32 + 2 * x.row), (float)(int8_t)g[x.row + 16]) : 0.0f;
    }
    return x;
}
/* Four values of the group, from element `at` of the row on. */
__device__ __forceinline__ static float4 tile_run_values(const tile_source &j, const tile_run &x, int at) {
    const uint32_t four = tile_codes(x.tile, j.bits, j.planes, x.row, at % TILE_K);
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[i] = __fmul_rn(x.scale, (float)(tile_entry(j, x.panel, x.row, four >> 8 * i & 255) - j.zero));
        v[i] = j.asym ? __fadd_rn(v[i], x.min) : v[i];
        v[i] = __fmul_rn(v[i], x.all);
    }
    return make_float4(v[0], v[1], v[2], v[3]);
}
/* Values at to at + 3 of row r, which belong to one group. */
__device__ static float4 tile_values(const tile_source &j, int64_t r, int at) {
    return tile_run_values(j, tile_run_at(j, r, at), at);
}

#endif
