/* residual_gain.h - measures the gain of residuals: the perplexity of the calibration prompts
 * (profile/prompts.def) with different numbers of channels. The prompts have only some 460 tokens, but are
 * the same for all choices, so differences are more meaningful than values. */
#ifndef NIB_MEASURE_RESIDUAL_GAIN_H
#define NIB_MEASURE_RESIDUAL_GAIN_H

#include "engine/engine.h"
#include "measure/calibrate.h"

typedef struct residual_gain {
    nib_engine *e;
    nib_session *session; /* with at least residual_gain_positions positions; borrowed */
    int64_t n_vocab;
    const int32_t *tokens; /* [n_token]: the prompt that is being scored */
    int64_t n_token;
    double nll;
    int64_t n_scored;
    calibration prompts;
} residual_gain;

/* NIB_E_USAGE: the engine has no tokenizer, so no text. */
nib_status residual_gain_open(residual_gain *g, nib_engine *e, nib_error *err);
void residual_gain_close(residual_gain *g); /* zeroed is fine */
/* Number of positions that the session needs. */
int64_t residual_gain_positions(const residual_gain *g);
/* Perplexity with the current choice (engine_residuals_choose). *out NAN: the engine computes only the
 * largest logits. */
nib_status residual_gain_perplexity(residual_gain *g, double *out, nib_error *err);

#endif
