/* predict.h - predictions for an open engine. */
#ifndef NIB_ENGINE_PREDICT_H
#define NIB_ENGINE_PREDICT_H

#include "engine/core.h"
#include "profile/learned.h"

/* The result of nib_engine_predict. weights, by: of the core's engine, which is open. */
nib_status predict(const engine_core *e, const pager *weights, const backend *by, int64_t n_prompt,
                   int64_t n_gen, nib_prediction *out, nib_error *err);
/* The prediction as a run, with a cache that is filled up to n_position. */
nib_status predict_run(const engine_core *e, const pager *weights, const backend *by, int64_t n_position,
                       learned_run *out, nib_error *err);

#endif
