/* kv.h - writes a row into the KV cache. Included after a folder's lanes.h. */
#ifndef NIB_KERNELS_LANES_KV_H
#define NIB_KERNELS_LANES_KV_H

#include "kernels/kv_layout.h"
#include "kernels/lanes/lanes.h"

/* Stores n channels of one head's values of a position. to: the head's values in the page; at: the index of
 * the first of them. */
static void kv_store_value(const kv_view *kv, uint8_t *to, int64_t at, const float *row, int64_t n) {
    if (kv->type == TYPE_F32) {
        memcpy((float *)(void *)to + at, row, (size_t)n * sizeof *row);
        return;
    }
    uint16_t *out = (uint16_t *)(void *)to + at;
    int64_t d = 0;
    for (; d + LANES <= n; d += LANES)
        v_store_f16(out + d, v_load(row + d));
    for (; d < n; d++)
        out[d] = half_from_float(row[d]);
}

static void kv_store_key(const kv_view *kv, uint8_t *to, int64_t at, const float *row) {
    if (kv->type == TYPE_F32) {
        for (int64_t d = 0; d < kv->d_head; d++)
            ((float *)(void *)to)[at + d * KV_LANES] = row[d];
        return;
    }
    uint16_t *out = (uint16_t *)(void *)to + at;
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

/* Stores one head's values after their transform, one block of n channels after the other. */
static void kv_store_rotated(const kv_view *kv, uint8_t *to, int64_t position, const float *row, int64_t n) {
    float turned[KV_MAX_ROTATION];
    for (int64_t d = 0; d < kv->d_head; d += n) {
        memcpy(turned, row + d, (size_t)n * sizeof *row);
        hadamard(turned, n, n);
        kv_store_value(kv, to, kv_value_at(kv->d_head, position, d), turned, n);
    }
}

static void op_kv_store(const kv_view *kv, bool is_value, int64_t position, const float *row) {
    int64_t page = position / KV_BLOCK;
    const int64_t turn = is_value ? kv_rotation(kv) : 1;
    kv_view recent;
    if (kv_is_coded(kv->type)) {
        recent = kv_recent(kv);
        kv = &recent;
        page = 0;
    }
    for (int64_t h = 0; h < kv->n_kv_head; h++, row += kv->d_head) {
        uint8_t *to = kv_block_at(kv, is_value, h, page);
        if (turn > 1)
            kv_store_rotated(kv, to, position, row, turn);
        else if (is_value)
            kv_store_value(kv, to, kv_value_at(kv->d_head, position, 0), row, kv->d_head);
        else
            kv_store_key(kv, to, kv_key_at(kv->d_head, position, 0), row);
    }
}

#endif
