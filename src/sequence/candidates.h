/* candidates.h - the probability of a sampled token, and the most likely tokens at its position. */
#ifndef NIB_SEQUENCE_CANDIDATES_H
#define NIB_SEQUENCE_CANDIDATES_H

#include "nib.h"

/* From logits [n_vocab] finds the probability of `token` (*drawn) and the n_top most likely tokens (at most
 * NIB_MAX_TOP and n_vocab), most likely first, with equal ones ordered by id. NaN counts as impossible. */
void candidates_find(const float *logits, int64_t n_vocab, int32_t token, nib_candidate *drawn,
                     nib_candidate *top, int32_t n_top);

#endif
