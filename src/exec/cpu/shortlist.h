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
#ifndef NIB_EXEC_CPU_SHORTLIST_H
#define NIB_EXEC_CPU_SHORTLIST_H

#include "base/cancel.h"
#include "base/thread.h"
#include "model/model.h"
#include "tiers/region.h"

#define SHORTLIST_REACH 6 /* standard deviations */
enum { SHORTLIST_FEW = 8 /* n_best up to which few rows are left */ };
enum { SHORTLIST_MOST = 128 /* n_best beyond which the lists are too long to be worth it */ };

/* A panel on disk, and what the largest of its logits may be at the most. */
typedef struct shortlist_panel {
    int32_t panel;
    float upper;
} shortlist_panel;

typedef struct shortlist {
    int n_best; /* 0: none; every logit is computed */
    view sketch;
    float *step; /* [n_vocab, rounded up to panels]: standard deviation of a row's error for |x| = 1 */
    float *best; /* [n_thread, n_best]: the largest bounds, then logits, that a thread has seen */
    shortlist_panel *missing;             /* [panels]: to be read; thread t's from its first panel on */
    int *n_seen, *n_missing, *n_computed; /* [n_thread]: of best; of missing; panels that are in memory */
    uint64_t n_row, n_exact; /* rows of logits so far; panels that were computed exactly for them */
    tier_region memory;
} shortlist;

/* What shortlist_open charges (to weights), and what else it charges while it works. False: the model's head
 * cannot have one. */
bool shortlist_bytes(const model *m, int n_thread, int n_best, uint64_t *bytes, uint64_t *staging);
/* The sketch that is read for each token; returns about how many times a small read's time a token waits for
 * rows of the matrix where that is on disk. n_best 0: nothing. */
double shortlist_of(const model *m, int n_best, uint64_t *bytes, int *bits);
/* Charges, and reads the head's rows into the sketch, which takes the threads of a pool. The model's head is
 * OP_SHORTLIST by then (model_set_shortlist). *n_read: bytes of the model's files. */
nib_status shortlist_open(shortlist *s, const model *m, pool *threads, ledger *l, int n_best,
                          const canceller *cancel, uint64_t *n_read, nib_error *err);
/* Of the matrix's rows, those that were computed exactly for a row of logits, in the mean. */
double shortlist_share(const shortlist *s);
void shortlist_close(shortlist *s); /* zeroed is fine */

#endif
