/* kv.h - writing a row into the cache. Included after a folder's lanes.h. */
#ifndef NIB_KERNELS_LANES_KV_H
#define NIB_KERNELS_LANES_KV_H

#include "kernels/kv_layout.h"
#include "kernels/lanes/lanes.h"

static void kv_store_value(const kv_view *kv, int64_t at, const float *row) {
    if (kv->type == TYPE_F32) {
        memcpy((float *)kv->v + at, row, (size_t)kv->d_head * sizeof *row);
        return;
    }
    uint16_t *out = (uint16_t *)kv->v + at;
    int64_t d = 0;
    for (; d + LANES <= kv->d_head; d += LANES)
        v_store_f16(out + d, v_load(row + d));
    for (; d < kv->d_head; d++)
        out[d] = half_from_float(row[d]);
}

static void kv_store_key(const kv_view *kv, int64_t at, const float *row) {
    if (kv->type == TYPE_F32) {
        for (int64_t d = 0; d < kv->d_head; d++)
            ((float *)kv->k)[at + d * KV_LANES] = row[d];
        return;
    }
    uint16_t *out = (uint16_t *)kv->k + at;
    int64_t d = 0;
    for (; d + LANES <= kv->d_head; d += LANES) {
        uint16_t half[LANES];
        v_store_f16(half, v_load(row + d));
        for (int i = 0; i < LANES; i++)
            out[(d + i) * KV_LANES] = half[i];
    }
    for (; d < kv->d_head; d++)
        out[d * KV_LANES] = half_from_float(row[d]);
}

static void op_kv_store(const kv_view *kv, bool is_value, int64_t position, const float *row) {
    kv_view recent;
    if (kv_is_coded(kv->type)) {
        recent = kv_recent(kv);
        kv = &recent;
        position %= KV_WINDOW;
    }
    for (int64_t h = 0; h < kv->n_kv_head; h++, row += kv->d_head) {
        if (is_value)
            kv_store_value(kv, kv_value_at(kv, h, position, 0), row);
        else
            kv_store_key(kv, kv_key_at(kv, h, position, 0), row);
    }
}

#endif
