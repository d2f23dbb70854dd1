/* apply_plan.h - applies a plan to the blocks of a model, after the headers were opened and before weights
 * are read (sizes: settings.h). The plan is checked against the model. A block that does not agree is
 * NIB_E_USAGE and is named. A plan for other weights is NIB_E_MODEL. */
#ifndef NIB_ENGINE_APPLY_PLAN_H
#define NIB_ENGINE_APPLY_PLAN_H

#include "engine/core.h"

/* Formats, layers that are left out, activations (set.act_bits) and what is kept (set.kept), in the layout,
 * before back end and pager are opened. Says once, in the log, that layers are missing and that weights are
 * rounded.
 */
nib_status apply_blocks(engine_core *e, const plan *p, nib_error *err);

#endif
