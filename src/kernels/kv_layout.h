/* kv_layout.h - the layout of keys and values in a page of a kv_view. Shared by kv.c and the attention
 * kernels.
 *
 * A page has KV_BLOCK positions. In it, the keys of a layer are contiguous, head by head (kv_head_bytes). Its
 * values are stored likewise.
 *
 * f16, f32: a head's values are [64][d_head] and its keys [4][d_head][16]. So one vector has one component of
 * 16 adjacent keys, and scores need no sums across lanes.
 *
 * kv8, kv4: a head's page is one *block* of codes:
 *
 *     keys    [d_pad][64 codes], then scales [2][d_pad] and minima [2][d_pad] in f16: a group is 32
 *             positions of one channel
 *     values  [64][d_pad codes], then scales [64][d_pad / 32] and minima [64][d_pad / 32] in f16: a group
 *             is 32 channels of one position
 *
 * d_pad is d_head rounded up to 32, and x = scale * code + min. The bytes of kv8 are the codes in order. In
 * kv4 byte i of a key channel has position i in its lower 4 bits and i + 32 in its upper 4. Byte i of a
 * value's group of 32 has channels i and i + 16. Blocks of keys and of values have equal sizes. The newest
 * block is in f16 in a page of its own (kv_view.recent).
 *
 * first (kv4s): in page 0 a key's group is the positions 1 to 63 of one channel. Its scale and minimum are in
 * the first half of scales and of minima. The second half of scales has the channels of the key at position
 * 0, and the second half of minima those of the value there: attention reads this position from here.
 *
 * rotated: a head's values are stored after the Walsh-Hadamard transform of blocks of kv_rotation channels
 * (numbers/hadamard.h), so that a channel that is far from the others costs its group less, and outputs are
 * transformed back. Keys are not: their groups are along a channel, and mixing channels costs more (measured:
 * docs/budget.md). */
#ifndef NIB_KERNELS_KV_LAYOUT_H
#define NIB_KERNELS_KV_LAYOUT_H

#include "kernels/kernels.h"
#include "numbers/hadamard.h"

enum { KV_LANES = KV_POSITIONS };

/* f16, f32: the index of an element among a head's keys, or values, in a page. */
static inline int64_t kv_key_at(int64_t d_head, int64_t position, int64_t d) {
    return (position % KV_BLOCK / KV_LANES * d_head + d) * KV_LANES + position % KV_LANES;
}
static inline int64_t kv_value_at(int64_t d_head, int64_t position, int64_t d) {
    return position % KV_BLOCK * d_head + d;
}

/* Attention goes through KV in blocks of 64 positions, at multiples of 64, for groups of up to 32 (row, head)
 * pairs. Tiles of 6 or 8 pairs are computed together. ATTEND_QUERIES is the number of queries that the tiles
 * hold, with a stride of 8. From 8 pairs on, a block is widened to floats once for all of them. */
enum { ATTEND_KV = KV_BLOCK, ATTEND_PAIRS = 32, ATTEND_MANY = 8, ATTEND_STRIDE = 8, ATTEND_QUERIES = 48 };

/* ---- sparse attention ---- */

enum { ATTEND_TOP_PAIRS = 8 }; /* heads whose scores of all positions are kept at a time */

/* Keeps the k >= 1 largest of x[n], and the last one, in their order: the earlier of equal ones. at[] gets
 * their places. Returns their number. */
int64_t attend_choose(float *x, int64_t n, int64_t k, int32_t *at);

/* ---- kv8 and kv4 ---- */

enum { KV_GROUP = 32 };

static inline int64_t kv_d_pad(int64_t d_head) {
    return (d_head + KV_GROUP - 1) / KV_GROUP * KV_GROUP;
}
/* Channels that are transformed together; 1: none. */
enum { KV_MAX_ROTATION = 256 };
static inline int64_t kv_rotation(const kv_view *kv) {
    return kv->rotated ? hadamard_block(kv->d_head, KV_MAX_ROTATION) : 1;
}
static inline int kv_code_bits(type_id type) {
    return kv_code_type(type) == TYPE_KV8 ? 8 : 4;
}
/* Bytes of a block's codes (kv_code_bytes), entries of each of its two arrays of halves (kv_scale_count), and
 * bytes of a whole block (kv_block_bytes). */
static inline int64_t kv_code_bytes(type_id type, int64_t d_head) {
    return kv_d_pad(d_head) * KV_BLOCK * kv_code_bits(type) / 8;
}
static inline int64_t kv_scale_count(int64_t d_head) {
    return kv_d_pad(d_head) * KV_BLOCK / KV_GROUP;
}
static inline int64_t kv_block_bytes(type_id type, int64_t d_head) {
    return kv_code_bytes(type, d_head) + 2 * kv_scale_count(d_head) * (int64_t)sizeof(uint16_t);
}
/* The width of heads for which a page of halves has memory: GPUs store channels in pieces of 8. */
static inline int64_t kv_d_head(int64_t d_head) {
    return (d_head + 7) / 8 * 8;
}
/* Bytes of one head's keys, or values, in a page. */
static inline int64_t kv_head_bytes(type_id type, int64_t d_head) {
    if (kv_is_coded(type))
        return kv_block_bytes(type, d_head);
    return KV_BLOCK * (type == TYPE_F16 ? kv_d_head(d_head) * 2 : d_head * 4);
}
/* A head's keys or values of one block of positions. */
static inline uint8_t *kv_block_at(const kv_view *kv, bool is_value, int64_t head, int64_t page) {
    return kv->pages[page] + (is_value ? kv->value_at : kv->key_at) +
           head * kv_head_bytes(kv->type, kv->d_head);
}
/* The first position that a row at `position` sees. */
static inline int64_t attend_first(const attend_args *a, int64_t position) {
    if (a->window <= 0)
        return 0;
    return a->chunked ? position - position % a->window
                      : (position + 1 > a->window ? position + 1 - a->window : 0);
}
/* Page 0 of a cache with the first position in f16: keys and values of that position in a block of keys. */
static inline uint16_t *kv_first_at(const kv_view *kv, bool is_value, const uint8_t *keys) {
    const int64_t n = kv_scale_count(kv->d_head);
    return (uint16_t *)(uintptr_t)(keys + kv_code_bytes(kv->type, kv->d_head)) + (is_value ? n : 0) + n / 2;
}
/* A view of the newest block as an f16 cache, whose page 0 it is. It refers to *kv. */
static inline kv_view kv_recent(const kv_view *kv) {
    return (kv_view){.pages = &kv->recent,
                     .key_at = kv->recent_key_at,
                     .value_at = kv->recent_value_at,
                     .type = TYPE_F16,
                     .n_kv_head = kv->n_kv_head,
                     .d_head = kv->d_head,
                     .shared = kv->shared};
}
/* The keys of a head that a row at `position` reads first, for attend_args.next. NULL: nothing is
 * prefetched. */
static inline const uint8_t *kv_first_keys(const kv_view *kv, int64_t window, int64_t head,
                                           int64_t position) {
    const int64_t first = window > 0 && position + 1 > window ? position + 1 - window : 0;
    const kv_view recent = kv_recent(kv);
    if (kv->type == TYPE_F32)
        return NULL;
    if (kv_is_coded(kv->type) && first / KV_BLOCK == position / KV_BLOCK)
        return kv_block_at(&recent, false, head, 0);
    return kv_block_at(kv, false, head, first / KV_BLOCK);
}

#endif
