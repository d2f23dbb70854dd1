/* draft_model.h - speculative decoding with a draft model (Leviathan et al. 2023, Chen et al. 2023). The
 * draft model proposes its most probable tokens, the next ones of all slots in one pass. The target model
 * computes them as rows of one pass and samples as it would without them (driver.h), so answers do not depend
 * on the draft model.
 *
 * The draft model may be the target's own head that predicts later tokens (model_is_ahead).
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

/* Number of tokens, at most n_max, that it can propose after the slot's text. */
int64_t draft_model_can(const draft_model *g, const driver_slot *of, int64_t n_max);
/* Proposes draft.n tokens, as many as draft_model_can allows, after the text of each of the n slots whose
 * draft is of the kind DRAFT_MODEL. New tokens of the texts are computed first. */
nib_status draft_model_follow(draft_model *g, driver_slot *const *slots, int n, nib_error *err);
/* Seconds of one more token for one of n slots that propose together; 0: unknown. */
double draft_model_cost(const draft_model *g, int n);
int64_t draft_model_free(const draft_model *g); /* number of first proposals that take no time */

/* ---- a head that predicts later tokens ---- */
/* Whether it is one, which reads the states of the target's rows. NULL: no. */
bool draft_model_reads_states(const draft_model *g);
/* Keeps the states of a slot's rows in a pass of the target, from the stream after its last layer, x [n_row,
 * d_model]; segment by segment, in their order. */
void draft_model_keep(draft_model *g, const driver_slot *of, const segment *rows, const float *x);
/* After that pass, when its slots have their new tokens: computes the head's rows of them. The errors of
 * step_pass. */
nib_status draft_model_learn(draft_model *g, driver_slot *const *slots, int n, nib_error *err);

#endif
