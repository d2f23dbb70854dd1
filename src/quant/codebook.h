/* codebook.h - rows with a code book of their own (C3 and C4), and the book that errs least for a row.
 *
 * This is SqueezeLLM's quantizer (arXiv 2306.07629, section 4.1): the entries are the centres of a weighted
 * k-means of the row's values. The paper weights a value by the diagonal of the Fisher information, the mean
 * square of its gradient. Within one row (one output channel) that is the mean square of what its column
 * meets, times the mean square of the output's gradient as far as the two are independent; the second factor
 * is the same for the whole row and changes nothing. So columns are weighted by their inputs alone, as all
 * quantizers here do it.
 *
 * The k-means is solved exactly on up to 256 bins of the sorted values, by dynamic programming, and then
 * improved on the values themselves (Lloyd). Entries are signed bytes times one half, so that products stay
 * sums of integers: the centres move by no more than a 254th of the row's largest entry, and values are
 * assigned anew.
 *
 * Types with outliers (the paper's dense-and-sparse decomposition, section 4.2) keep what the book leaves
 * over of a share of the row's values as bf16. Which these are and the book take turns: first the largest
 * values times their weights stay out of the k-means, then those that err most with its book; at the end
 * those of the best book. The paper takes the largest of a matrix and the most sensitive; here each row has
 * as many, so that a row has the same size everywhere. */
#ifndef NIB_QUANT_CODEBOOK_H
#define NIB_QUANT_CODEBOOK_H

#include "quant/types.h"

static inline bool codebook_has(type_id type) {
    return type_get(type)->row_bytes > 0;
}
/* A row of n values, a multiple of the type's block. weight: [n], 0 or more, how much an error in each column
 * matters; NULL: all the same. Values that are not finite count as 0. The same bytes on every machine. */
void codebook_encode(type_id type, const float *x, const float *weight, int64_t n, void *row);

#endif
