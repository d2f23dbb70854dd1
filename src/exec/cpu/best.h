/* best.h - the best token of each of many rows, without keeping all of their logits.
 *
 * Greedy sequences that decode together need one token of each row of logits. Every thread computes some
 * panels of 16 tokens at a time for all rows and keeps the best of them while they are in its cache; no row
 * of logits is written. A streamed head is computed page by page.
 *
 * If products with the upper half of each code are much faster (kernel_table.estimate), logits are computed
 * in two steps, as with a sketch (exec/shortlist.h); the upper halves are the sketch. First every thread
 * multiplies panels with all rows, and lists the panels and rows whose upper bound reaches the row's largest
 * lower bound. Then it computes these exactly, the likeliest of each row first, as long as they can be the
 * best. A bound is SHORTLIST_REACH standard deviations of the estimate's error.
 *
 * The token, and the bits of its logit, are those of the whole head. The state is in the memory of the
 * logits, which is unused at that time. */
#ifndef NIB_EXEC_CPU_BEST_H
#define NIB_EXEC_CPU_BEST_H

#include "exec/cpu/interpreter.h"

/* The number of rows from which on this is faster than computing all logits. */
enum { BEST_MIN_ROWS = 8 };

/* Whether a cell of the head can be computed this way. */
bool best_can(const executor *e, const exec_cell *c);
/* Collects the results of such a cell, [n_row]; if all logits of a row are NaN: token 0 and -infinity.
 * Returns the number of panels that were computed exactly, for all rows together. */
uint64_t best_collect(const executor *e, int64_t n_row, int32_t *ids, float *logits);

#endif
