/* apply_plan.h - applies a plan to the blocks of a model, after the headers were opened and before weights
 * are read (sizes: settings.h). The plan is checked against the model. A block that does not agree is
 * NIB_E_USAGE and is named. A plan for other weights is NIB_E_MODEL. */
#ifndef NIB_ENGINE_APPLY_PLAN_H
#define NIB_ENGINE_APPLY_PLAN_H

#include "engine/core.h"

/* Makes the plan's layout: formats, left-out layers and, if with_places, tiers and devices. Sets the
 * activations (resolved.act_bits). To be called before back end and pager are opened. Logs once that layers
 * are missing and that weights are rounded. */
nib_status apply_blocks(engine_core *e, const plan *p, bool with_places, nib_error *err);

#endif
