/* draft_model.h - speculative decoding with a draft model (Leviathan et al. 2023, Chen et al. 2023). The
 * draft model proposes its most probable tokens, the next ones of all slots in one pass. The target model
 * computes them as rows of one pass and samples as it would without them (driver.h), so answers do not depend
 * on the draft model.
 *
 * Each slot of the batch has a sequence of its own in the draft model's engine. The sequence keeps what was
 * computed; the next call computes only the tokens that were drawn meanwhile. One thread at a time. */
#ifndef NIB_SESSION_DRAFT_MODEL_H
#define NIB_SESSION_DRAFT_MODEL_H

#include "session/driver.h"

typedef struct draft_model draft_model;

/* Opens n_slot sequences of at most n_ctx positions (or the draft model's maximum) in the engine `with`, for
 * answers of `target`. Both engines are borrowed. NIB_E_USAGE: their vocabularies differ. NIB_E_NOFIT: the
 * draft model's engine has no memory for so many sequences. */
nib_status draft_model_open(nib_engine *with, nib_engine *target, int32_t n_slot, int64_t n_ctx,
                            draft_model **out, nib_error *err);
void draft_model_close(draft_model *g); /* NULL is fine */

/* Number of tokens, at most n_max, that fit its context after n tokens. */
int64_t draft_model_can(const draft_model *g, int64_t n, int64_t n_max);
/* Proposes draft.n tokens, as many as draft_model_can allows, after the text of each of the n slots whose
 * draft is of the kind DRAFT_MODEL. New tokens of the texts are computed first. */
nib_status draft_model_follow(draft_model *g, driver_slot *const *slots, int n, nib_error *err);
/* Seconds of one more token for one of n slots that propose together; 0: unknown. */
double draft_model_cost(const draft_model *g, int n);

#endif
