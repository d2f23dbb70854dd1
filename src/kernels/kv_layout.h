/* kv_layout.h - where keys and values lie in a kv_view. Shared by kv.c and the attention kernels.
 *
 * Values: [n_kv_head][positions][d_head]. Keys: [n_kv_head][positions / 16][d_head][16], so that one vector
 * holds one component of 16 neighbouring keys and scores need no sums across lanes. Positions are padded
 * to 16. */
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

/* Attention walks KV in blocks of 64 positions, at multiples of 64, for groups of up to 8 (row, head) pairs.
 */
enum { ATTEND_KV = 64, ATTEND_PAIRS = 8 };

#endif
