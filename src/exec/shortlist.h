/* shortlist.h - only the logits that can be drawn: the output head in two steps.
 *
 * A head is often the largest matrix of a small model (two thirds of Gemma 3 270M), and of its n_vocab
 * results a sampler wants the n_best largest. So a rounded copy of it, the sketch, is multiplied first; it
 * says of every logit where it is and how far off that may be; and the rows that can be among the n_best are
 * then computed from the matrix itself, in the way in which all of them would have been, to the same bits.
 * The others become -infinity. That is maximum inner product search with a bound, in which the second step is
 * exact.
 *
 * The sketch is 5 bits in groups of 64; of a large head 4 bits, in groups of 64 for few and of 32 for more.
 * Its errors are twice as large then and the lists two to five times as long, but a large head's bit is worth
 * more than these (docs/shortlist.md). A rounding error of step d is uniform in [-d/2, d/2], its variance
 * d*d/12, so the error of a logit has about the standard deviation |x| * sqrt(mean of d*d over the row's
 * groups / 12), and SHORTLIST_REACH of these are allowed for: a uniform variable is strictly sub-Gaussian, so
 * a token among the n_best is missed with a probability of at most exp(-18) = 1.5e-8 if errors and
 * activations have nothing to do with each other (measured: docs/shortlist.md). The bound does not depend on
 * what is resident, on threads or on batches, and neither do the tokens.
 *
 * The matrix itself may then stay on disk: few of its rows are read for a token. */
#ifndef NIB_EXEC_SHORTLIST_H
#define NIB_EXEC_SHORTLIST_H

#include "model/layout.h"

#define SHORTLIST_REACH 6 /* standard deviations */
enum { SHORTLIST_FEW = 8 /* n_best up to which few rows are left */ };
enum { MAX_SHORTLIST = 128 /* n_best beyond which the lists are too long to be worth it */ };

/* The sketch that a model's head gets, without data, its bytes, and the matrix; false: it cannot have one
 * that helps. */
bool shortlist_sketch(const layout *lay, int n_best, const weight **of, view *sketch, uint64_t *bytes);
/* The sketch that is read for each token; returns about how many times a small read's time a token waits for
 * rows of the matrix where that is on disk. n_best 0: nothing. */
double shortlist_of(const layout *lay, int n_best, uint64_t *bytes, int *bits);

#endif
