/* tilecase.h - makes inputs for a product and runs it on one instruction set, with outputs between guard
 * pages. */
#ifndef NIB_TESTS_TILECASE_H
#define NIB_TESTS_TILECASE_H

#include "kernels/strategy.h"
#include "matrix.h"

/* n_row rows of k floats, random with a different size in each group of 32; seed 0: +-127 everywhere. */
float *case_rows(int64_t n_row, int64_t k, uint64_t seed);

/* y [n_row, n], exactly as large, all NaN before. x is quantized first for PACK_TILE. Freed by guard_close.
 * split: a first call computes the rows of w from split on; 0: one call. */
guarded case_linear(const kernel_table *t, const matrix *w, const float *x, int64_t n_row, const float *bias,
                    int64_t split);
/* The same by one strategy; NULL: by the rule's choice. */
guarded case_linear_by(const kernel_table *t, const strategy *s, const matrix *w, const float *x,
                       int64_t n_row, const float *bias, int64_t split);

#endif
