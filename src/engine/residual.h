/* residual.h - QDEC on the processor: every product of a layer gets back, for the channels that a row meets
 * most strongly, what rounding took from its matrix (quant/residual.h, kernels/salient.h). */
#ifndef NIB_ENGINE_RESIDUAL_H
#define NIB_ENGINE_RESIDUAL_H

#include "engine/core.h"

typedef struct residuals residuals;

/* From the original that asked.residual names, which must be the same model in finer formats. Charged to
 * the ledger as weights. NIB_E_MODEL: it is another model. */
nib_status residuals_open(const engine_core *e, residuals **out, nib_error *err);
void residuals_close(residuals *r); /* NULL is fine */
const probe *residuals_probe(const residuals *r);

#endif
