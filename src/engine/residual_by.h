/* residual_by.h - the factors of channel choice beside a row's magnitudes (kernels/salient.h): the norm of
 * each channel's residual, or the calibrated statistics of the original's channels. */
#ifndef NIB_ENGINE_RESIDUAL_BY_H
#define NIB_ENGINE_RESIDUAL_BY_H

#include "engine/core.h"
#include "engine/residual_kinds.h"

typedef struct residual_by {
    const float **of; /* [first[n_block]], as residual_use.by; NULL: the rule uses no factors */
    float *values;
    uint64_t charged;
} residual_by;

/* Computes the factors for use->rule; reads use->of and use->first. original: SALIENT_STATIC needs its
 * profile; NIB_E_NOTFOUND: it has none. */
nib_status residual_by_open(residual_by *out, const engine_core *e, const residual_use *use,
                            const residual_kinds *kinds, const model *original, nib_error *err);
void residual_by_close(residual_by *by, const engine_core *e); /* zeroed is fine */

#endif
