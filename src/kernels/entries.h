/* entries.h - compressed attention (DeepSeek V4): entries that stand for several positions each, and rows
 * that choose some of them. An entry is pooled from the rows of its positions, and is stored by the row of
 * its last one, in the page of that row, as f32 or f16. Rows from that one on see it.
 *
 * Plain C for all back ends in host memory. Attention to entries itself uses the kernels for keys and values:
 * entries_gather makes pages of those that a row sees. A row has the same bits in one call or in several. */
#ifndef NIB_KERNELS_ENTRIES_H
#define NIB_KERNELS_ENTRIES_H

#include "kernels/kernels.h"

/* Rows of one sequence in the order of their positions. An entry is the sum of the x of its `every`
 * positions, weighted channel by channel by the softmax of gate + bias. k = 2 * n: of two halves of x, the
 * second is of the row's own entry, and the first is of the next one, which therefore overlaps. */
typedef struct pool_args {
    const float *x, *gate; /* [n_row, k] */
    const float *bias;     /* [every, k] */
    float *out;            /* [n_row, n]: the entry that ends at the row, or zeros */
    int64_t n_row, n, k, every, position;
    float *state; /* [3 * k / n, n]: of the entry, and of the next one: largest logit, sum of weights, sum */
} pool_args;
void entries_pool(const pool_args *a, int64_t c0, int64_t c1); /* channels [c0, c1) */

/* Entries that a row at `position` may see: those that end at it or before. */
static inline int64_t entries_seen(const kv_view *kv, int64_t position) {
    return (position + 1) / kv->every;
}
/* Bytes of entries of `width` channels in a page's first `n_position` positions; the cache's type is f32 or
 * f16. */
uint64_t entries_page_bytes(type_id type, int64_t every, int64_t width, int64_t n_position);
/* Stores the entry, or the index key, that ends at the position, if one does. row: d_head, or d_index floats
 */
void entries_store(const kv_view *kv, bool is_index, int64_t position, const float *row);

/* Chooses at most n_used of the entries that the row sees: those with the largest sums over heads h of w[h] *
 * relu(q[h] . key) * scale. Writes their number, then their numbers in ascending order. Among equal sums the
 * earlier entry is chosen. scratch: entries_select_floats(). */
void entries_select(const kv_view *kv, const op *o, int64_t position, const float *q, const float *w,
                    float *scratch, float *out);
static inline int64_t entries_select_floats(const op *o) {
    return o->u.select.n_used + o->u.select.d_head;
}

/* Copies entries to f32 pages `to` as keys that are the values: the n from `first` on of those that `chosen`
 * lists; NULL: of all. */
void entries_gather(const kernel_table *t, const kv_view *kv, const float *chosen, int64_t first, int64_t n,
                    float *row, const kv_view *to);

#endif
