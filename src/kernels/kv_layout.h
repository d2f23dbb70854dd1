/* kv_layout.h - where keys and values lie in a kv_view. Shared by kv.c and the attention kernels.
 *
 * f16, f32: values are [n_kv_head][positions][d_head], keys [n_kv_head][positions / 16][d_head][16], so that
 * one vector holds one component of 16 neighbouring keys and scores need no sums across lanes. Positions are
 * padded to 16.
 *
 * kv8, kv4: first the *recent* positions, a cache in f16 as above of KV_WINDOW positions in which position p
 * stands at p % KV_WINDOW; then, for each head, one *block* for every KV_BLOCK positions:
 *     keys    [d_pad][64 codes], then scales [2][d_pad] and minima [2][d_pad] in halves: a group is 32
 *             positions of one channel
 *     values  [64][d_pad codes], then scales [64][d_pad / 32] and minima [64][d_pad / 32] in halves: a group
 *             is 32 channels of one position
 * where d_pad is d_head rounded up to 32. x = scale * code + min. Bytes of
 * kv8 are codes in order; of kv4, a key's byte i has position i in its lower half and i + 32 in the upper,
 * and byte i of a value's group of 32 has channel i and i + 16. Blocks of keys and of values are equally
 * large. */
#ifndef NIB_KERNELS_KV_LAYOUT_H
#define NIB_KERNELS_KV_LAYOUT_H

#include "kernels/kernels.h"

enum { KV_LANES = 16 };

static inline int64_t kv_blocks(int64_t n_ctx) {
    return (n_ctx + KV_LANES - 1) / KV_LANES;
}
static inline int64_t kv_key_at(const kv_view *kv, int64_t head, int64_t position, int64_t d) {
    return ((head * kv_blocks(kv->n_ctx) + position / KV_LANES) * kv->d_head + d) * KV_LANES +
           position % KV_LANES;
}
static inline int64_t kv_value_at(const kv_view *kv, int64_t head, int64_t position, int64_t d) {
    return (head * kv_blocks(kv->n_ctx) * KV_LANES + position) * kv->d_head + d;
}

/* Attention walks KV in blocks of 64 positions, at multiples of 64, for groups of up to 32 (row, head) pairs.
 * Tiles of 6 or 8 of them are computed together; ATTEND_QUERIES is room for their queries with a stride of 8.
 * From 8 pairs on a block is widened to floats once for all of them. */
enum { ATTEND_KV = KV_BLOCK, ATTEND_PAIRS = 32, ATTEND_MANY = 8, ATTEND_STRIDE = 8, ATTEND_QUERIES = 48 };

/* ---- kv8 and kv4 ---- */

enum { KV_GROUP = 32 };

static inline int64_t kv_d_pad(int64_t d_head) {
    return (d_head + KV_GROUP - 1) / KV_GROUP * KV_GROUP;
}
static inline int kv_code_bits(type_id type) {
    return type == TYPE_KV8 ? 8 : 4;
}
/* Bytes of a block's codes, and of one of its two arrays of halves. */
static inline int64_t kv_code_bytes(type_id type, int64_t d_head) {
    return kv_d_pad(d_head) * KV_BLOCK * kv_code_bits(type) / 8;
}
static inline int64_t kv_scale_count(int64_t d_head) {
    return kv_d_pad(d_head) * KV_BLOCK / KV_GROUP;
}
static inline int64_t kv_block_bytes(type_id type, int64_t d_head) {
    return kv_code_bytes(type, d_head) + 2 * kv_scale_count(d_head) * (int64_t)sizeof(uint16_t);
}
static inline int64_t kv_recent_bytes(int64_t n_kv_head, int64_t d_head) {
    return n_kv_head * d_head * KV_WINDOW * (int64_t)sizeof(uint16_t);
}
/* The recent positions as a cache of their own; position p is p % KV_WINDOW in it. */
static inline kv_view kv_recent(const kv_view *kv) {
    return (kv_view){kv->k, kv->v, TYPE_F16, KV_WINDOW, kv->n_kv_head, kv->d_head};
}
static inline uint8_t *kv_block_at(const kv_view *kv, bool is_value, int64_t head, int64_t block) {
    return (uint8_t *)(is_value ? kv->v : kv->k) + kv_recent_bytes(kv->n_kv_head, kv->d_head) +
           (head * (kv->n_ctx / KV_BLOCK) + block) * kv_block_bytes(kv->type, kv->d_head);
}

#endif
