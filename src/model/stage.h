/* stage.h - a stage of a pipeline: the consecutive blocks [first, end) that one rank computes.
 *
 * A model with a stage is still described as a whole, because what all ranks decide alike (the formats of
 * keys and values, where a sequence can continue) depends on all its layers. Its layouts have weights and
 * programs of the stage only, and model_state_bytes is that of the stage's layers: 0 only if no layer of the
 * whole model has a recurrent state. */
#ifndef NIB_MODEL_STAGE_H
#define NIB_MODEL_STAGE_H

#include "model/model.h"

/* To be called before the model's first layout is made. end 0: the whole model, as before any call. */
void model_set_stage(model *m, int first, int end);
bool model_in_stage(const model *m, int which);
/* Whether a stage may begin with this block: the stages before it leave nothing that it reads but the
 * residual stream. */
bool model_can_cut(const model *m, int which);

#endif
