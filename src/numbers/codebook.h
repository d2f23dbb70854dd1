/* codebook.h - rows with a codebook of their own (C3 and C4), and the codebook with the least error for a
 * row.
 *
 * This is SqueezeLLM's quantizer (arXiv 2306.07629, section 4.1): the entries are the centres of a weighted
 * k-means of the row's values. The paper weights a value by the diagonal of the Fisher information, the mean
 * square of its gradient. Within one row (one output channel) that is the mean square of its column's input,
 * times the mean square of the output's gradient if the two are independent; the second factor is constant in
 * a row and has no effect. With 8 entries a value's weight is also multiplied by the row's root mean square
 * plus its own magnitude, as in all searches for scales (pack_scale.c); with 16 that would lose
 * (optimisation-log.md).
 *
 * The k-means is solved exactly on up to 256 bins of the sorted values, by dynamic programming, and then
 * improved on the values themselves (Lloyd). Entries are signed bytes times one f16, so that products stay
 * sums of integers: the centres move by at most a 254th of the row's largest entry, and values are assigned
 * again.
 *
 * Types with outliers (the paper's dense-and-sparse decomposition, section 4.2) store the codebook's residual
 * of a share of the row's values as bf16. The choice of outliers and the codebook alternate: first the values
 * with the largest weighted magnitude are excluded from the k-means, then those with the largest error of its
 * codebook; the best codebook and its outliers are used. The paper takes the largest of a matrix and the most
 * sensitive; here each row has the same number, so that all rows have the same size. */
#ifndef NIB_NUMBERS_CODEBOOK_H
#define NIB_NUMBERS_CODEBOOK_H

#include "numbers/types.h"

/* Whether rows of this type begin with a codebook. */
static inline bool codebook_has(type_id type) {
    return type_get(type)->row_bytes > 0;
}
/* Encodes one row x [n] of a type with codebooks to `row`, type_row_bytes(type, n) bytes. n: a multiple of
 * the type's block; a longer row than 65,536 gets no outliers. weight: [n], 0 or more, the importance of each
 * column; NULL: all the same. Values that are not finite count as 0. Pure: threads may encode rows at the
 * same time, and every machine gives the same bytes. */
void codebook_encode(type_id type, const float *x, const float *weight, int64_t n, void *row);

#endif
