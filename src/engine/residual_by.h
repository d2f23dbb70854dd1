/* residual_by.h - the factors of channel choice beside a row's magnitudes (kernels/salient.h): the norm of
 * each channel's residual, or the calibrated statistics of the original's channels. */
#ifndef NIB_ENGINE_RESIDUAL_BY_H
#define NIB_ENGINE_RESIDUAL_BY_H

#include "engine/core.h"
#include "engine/residual_kinds.h"

typedef struct residual_by {
    const float **of; /* [first[n_block]], as residual_use.by; NULL: the rule takes none */
    float *values;
    uint64_t charged;
} residual_by;

/* use: of, first and rule. original: its profile is what SALIENT_STATIC needs; NIB_E_NOTFOUND: there is none.
 */
nib_status residual_by_open(residual_by *out, const engine_core *e, const residual_use *use,
                            const residual_kinds *kinds, const model *original, nib_error *err);
void residual_by_close(residual_by *by, const engine_core *e); /* zeroed is fine */

#endif
