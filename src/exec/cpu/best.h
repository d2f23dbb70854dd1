/* best.h - the best token of each of many rows, without keeping all of their logits.
 *
 * Greedy sequences that decode together need one token of each row of logits. Every thread computes some
 * panels of 16 tokens at a time for all rows and keeps the best of them while they are in its cache; no row
 * of logits is written. A streamed head is computed page by page.
 *
 * Where products with half of each code are much faster (kernel_table.estimate), a panel is computed in two
 * steps, as with a sketch (exec/shortlist.h), but the matrix's own upper halves are the sketch. First every
 * thread multiplies panels with all rows, and lists the panels and rows whose upper bound reaches the row's
 * largest lower bound. Then it computes these exactly, the likeliest of each row first, as long as they can
 * be the best. A bound is SHORTLIST_REACH standard deviations of the estimate's error.
 *
 * The token is that of the whole head, and so are its logit's bits. The state is in the memory of the logits,
 * which nobody needs meanwhile. */
#ifndef NIB_EXEC_CPU_BEST_H
#define NIB_EXEC_CPU_BEST_H

#include "exec/cpu/interpreter.h"

/* Rows from which this is faster than all logits. */
enum { BEST_MIN_ROWS = 8 };

/* Whether the cell, which is of the head, can be computed so. */
bool best_can(const executor *e, const exec_cell *c);
/* What such a cell gave [n_row]; where no logit was a number: token 0 and -infinity. Returns how many panels
 * were computed exactly for all rows together. */
uint64_t best_collect(const executor *e, int64_t n_row, int32_t *ids, float *logits);

#endif
