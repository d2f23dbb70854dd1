/* apply_plan.h - a plan carried out: what becomes of each block because a plan says so, between opening the
 * model's headers and reading its weights (sizes: settings.h). The plan is checked against the model; what
 * does not agree is NIB_E_USAGE and names the block, other weights than the plan was made for are
 * NIB_E_MODEL. */
#ifndef NIB_ENGINE_APPLY_PLAN_H
#define NIB_ENGINE_APPLY_PLAN_H

#include "engine/core.h"

/* Formats, layers that are left out, activations (set.act_bits) and what is kept (set.kept), in the layout,
 * before back end and pager are opened. Says once, in the log, that layers are missing and that weights are
 * rounded.
 */
nib_status apply_blocks(engine_core *e, const plan *p, nib_error *err);

#endif
