/* kv_pack.h - quantizes a whole block of the KV cache from f16 to codes. Included after a folder's lanes.h.
 *
 * The minimum of a group of 32 is its smallest value, which is already an f16, and the largest code stands
 * for its largest value. The scale is rounded to f16 before codes are computed, so that codes compensate the
 * rounding. A group with a NaN or an infinity gets a NaN scale, which reaches every row that attends to one
 * of its positions. Plain C, in order: the same bits for every instruction set. */
#ifndef NIB_KERNELS_LANES_KV_PACK_H
#define NIB_KERNELS_LANES_KV_PACK_H

#include "base/num.h"
#include "kernels/kv_layout.h"
#include "kernels/lanes/lanes.h"

enum { KV_HALF_NAN = 0x7e00 };

typedef struct kv_group {
    uint16_t scale, min; /* halves */
} kv_group;

/* Quantizes n values to codes of one byte each. */
static kv_group kv_pack_group(const float *x, int n, int max, uint8_t *codes) {
    float low = x[0], high = x[0], bad = 0;
    for (int i = 0; i < n; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
        bad += x[i] - x[i]; /* NaN, unless all are finite */
    }
    memset(codes, 0, (size_t)n);
    if (bad != 0)
        return (kv_group){KV_HALF_NAN, 0};
    const kv_group g = {half_from_float((high - low) / (float)max), half_from_float(low)};
    const float step = half_to_float(g.scale), inverse = step > 0 ? 1 / step : 0, top = (float)max;
    for (int i = 0; i < n; i++) {
        const float q = (x[i] - low) * inverse;
        codes[i] = (uint8_t)((q < top ? q : top) + 0.5f);
    }
    return g;
}

/* Packs one channel of a block of keys. apart: all but position 0 in one group. */
static void kv_pack_channel(const kv_view *kv, const uint16_t *from, int64_t d, bool apart, uint8_t *block) {
    const int bits = kv_code_bits(kv->type);
    const int64_t d_pad = kv_d_pad(kv->d_head), n = kv_scale_count(kv->d_head);
    uint16_t *scales = (uint16_t *)(void *)(block + kv_code_bytes(kv->type, kv->d_head));
    uint8_t codes[KV_BLOCK], *out = block + d * (KV_BLOCK * bits / 8);
    float x[KV_BLOCK];
    for (int v = 0; v < KV_BLOCK / KV_LANES; v++)
        v_store(x + v * KV_LANES, v_load_f16(from + v * kv->d_head * KV_LANES));
    if (apart) {
        const kv_group g = kv_pack_group(x + 1, KV_BLOCK - 1, (1 << bits) - 1, codes + 1);
        codes[0] = 0;
        scales[d] = g.scale;
        scales[n + d] = g.min;
    }
    for (int i = 0; i < KV_BLOCK / KV_GROUP && !apart; i++) {
        const kv_group g = kv_pack_group(x + i * KV_GROUP, KV_GROUP, (1 << bits) - 1, codes + i * KV_GROUP);
        scales[i * d_pad + d] = g.scale;
        scales[n + i * d_pad + d] = g.min;
    }
    for (int i = 0; i < KV_BLOCK * bits / 8; i++)
        out[i] = bits == 8 ? codes[i] : (uint8_t)(codes[i] | codes[i + KV_BLOCK / 2] << 4);
}

/* Packs one group of one position of a block of values. The last group of a head may have n < 32 channels. */
static void kv_pack_channels(const kv_view *kv, const uint16_t *from, int64_t position, int64_t group, int n,
                             uint8_t *block) {
    const int bits = kv_code_bits(kv->type), bytes = KV_GROUP * bits / 8;
    const int64_t n_group = kv_d_pad(kv->d_head) / KV_GROUP, at = position * n_group + group;
    uint16_t *scales = (uint16_t *)(void *)(block + kv_code_bytes(kv->type, kv->d_head));
    uint8_t codes[KV_GROUP], *out = block + at * bytes;
    float x[KV_GROUP] = {0};
    for (int v = 0; v < n; v += KV_LANES)
        v_store(x + v, v_load_f16_part(from + v, NUM_MIN(n - v, KV_LANES)));
    for (int i = n; i < KV_GROUP; i++) /* padding does not affect the range */
        x[i] = x[0];
    const kv_group g = kv_pack_group(x, KV_GROUP, (1 << bits) - 1, codes);
    scales[at] = g.scale;
    scales[kv_scale_count(kv->d_head) + at] = g.min;
    for (int i = 0; i < bytes; i++)
        out[i] = bits == 8 ? codes[i] : (uint8_t)(codes[i] | codes[i + KV_GROUP / 2] << 4);
}

static void op_kv_pack(const kv_view *kv, bool is_value, int64_t head, int64_t block) {
    const kv_view recent = kv_recent(kv);
    const uint16_t *from = (const uint16_t *)(const void *)kv_block_at(&recent, is_value, head, 0);
    uint8_t *to = kv_block_at(kv, is_value, head, block);
    if (!is_value) {
        const bool apart = kv->first && block == 0;
        const uint16_t *value = (const uint16_t *)(const void *)kv_block_at(&recent, true, head, 0);
        for (int64_t d = 0; d < kv->d_head; d++) {
            kv_pack_channel(kv, from + d * KV_LANES, d, apart, to);
            if (apart) {
                kv_first_at(kv, false, to)[d] = from[d * KV_LANES];
                kv_first_at(kv, true, to)[d] = value[d];
            }
        }
        return;
    }
    for (int64_t i = 0; i < KV_BLOCK; i++, from += kv->d_head)
        for (int64_t d = 0; d < kv->d_head; d += KV_GROUP)
            kv_pack_channels(kv, from + d, i, d / KV_GROUP, (int)NUM_MIN(KV_GROUP, kv->d_head - d), to);
}

#endif
