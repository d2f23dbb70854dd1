/* candidates.h - the probability of a sampled token, and the most likely tokens in its place. */
#ifndef NIB_SEQUENCE_CANDIDATES_H
#define NIB_SEQUENCE_CANDIDATES_H

#include "nib.h"

/* logits [n_vocab]: the probability of `token` among all, and the n_top most likely tokens (at most
 * NIB_MAX_TOP and n_vocab), most likely first, of equal ones the smaller id first. NaN counts as impossible.
 */
void candidates_find(const float *logits, int64_t n_vocab, int32_t token, nib_candidate *drawn,
                     nib_candidate *top, int32_t n_top);

#endif
