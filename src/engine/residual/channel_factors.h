/* channel_factors.h - the factors of channel choice beside a row's magnitudes (kernels/salient.h): the norm
 * of each channel's residual, or the calibrated statistics of the original's channels. */
#ifndef NIB_ENGINE_RESIDUAL_CHANNEL_FACTORS_H
#define NIB_ENGINE_RESIDUAL_CHANNEL_FACTORS_H

#include "engine/core.h"
#include "engine/residual/kinds.h"

typedef struct channel_factors {
    const float **of; /* [first[n_block]], as residual_use.by; NULL: the rule uses no factors */
    float *values;
    uint64_t charged;
} channel_factors;

/* Computes the factors for use->rule; reads use->of and use->first. original: SALIENT_STATIC needs its
 * profile; NIB_E_NOTFOUND: it has none. */
nib_status channel_factors_open(channel_factors *out, const engine_core *e, const residual_use *use,
                                const residual_kinds *kinds, const model *original, nib_error *err);
void channel_factors_close(channel_factors *by, const engine_core *e); /* zeroed is fine */

#endif
