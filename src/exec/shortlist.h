/* shortlist.h - computes only the logits that can be sampled: the output head in two steps.
 *
 * A head is often the largest matrix of a small model (two thirds of Gemma 3 270M), and a sampler reads only
 * the n_best largest of its n_vocab results. The first step multiplies a rounded copy of the head, the
 * sketch, which gives an estimate and an error bound of every logit. The second step computes the rows that
 * can be among the n_best from the matrix itself, with the bits of the whole head. All other logits become
 * -infinity. This is maximum inner product search with a bound and an exact second step.
 *
 * The sketch has 5 bits in groups of 64. The sketch of a large head has 4 bits, in groups of 64 for an n_best
 * of up to SHORTLIST_FEW and of 32 for more. Its errors are twice as large and the lists two to five times as
 * long, but the saved bit of a large head gains more (docs/shortlist.md). A rounding error of step d is
 * uniform in [-d/2, d/2], with variance d*d/12. So the error of a logit has about the standard deviation |x|
 * * sqrt(mean of d*d over the row's groups / 12), and the bound is SHORTLIST_REACH of these. A uniform
 * variable is strictly sub-Gaussian, so a token among the n_best is missed with a probability of at most
 * exp(-18) = 1.5e-8 if errors and activations are unrelated (measured: docs/shortlist.md). The bound, and so
 * the tokens, do not depend on residency, threads or batches.
 *
 * The matrix itself may stay on disk: few of its rows are read for a token. */
#ifndef NIB_EXEC_SHORTLIST_H
#define NIB_EXEC_SHORTLIST_H

#include "model/layout.h"

#define SHORTLIST_REACH 6 /* standard deviations */
enum {
    SHORTLIST_WORTH = 64 << 20 /* bytes of reads that a sketch must save on a device, where the second step
                                  takes the time of reading about 30 MB (docs/shortlist.md) */
};
enum { SHORTLIST_FEW = 8 /* largest n_best that counts as few */ };
enum { MAX_SHORTLIST = 128 /* maximum n_best; with more, the lists are too long */ };

/* Gives the sketch of a model's head without data, its bytes, and the head's matrix. false: a sketch would
 * not help. */
bool shortlist_sketch(const layout *lay, int n_best, const weight **of, view *sketch, uint64_t *bytes);
/* shortlist_sketch for a device that has the whole head. asked: true if the device's kernels support it;
 * otherwise true if it also saves SHORTLIST_WORTH bytes for each token and sampling reads few logits. *sketch
 * is u4g32. */
bool shortlist_device_sketch(const layout *lay, int n_best, bool asked, const weight **of, view *sketch,
                             uint64_t *bytes);
/* Gives the bytes of the sketch, which each token reads, and its bits. Returns the predicted number of small
 * reads that a token waits for if the matrix is on disk. n_best 0: there is no sketch, and all are 0. */
double shortlist_of(const layout *lay, int n_best, uint64_t *bytes, int *bits);

#endif
