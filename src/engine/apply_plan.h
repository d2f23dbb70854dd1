/* apply_plan.h - a plan carried out: what an engine does because a plan says so, between opening the model's
 * headers and reading its weights. The plan is checked against the model; what does not agree is NIB_E_USAGE
 * and names the block, other weights than the plan was made for are NIB_E_MODEL. */
#ifndef NIB_ENGINE_APPLY_PLAN_H
#define NIB_ENGINE_APPLY_PLAN_H

#include "plan/plan.h"
#include "engine/state.h"

/* Sizes and caps into the options, before anything is opened. The plan's context and batch are what its bytes
 * were counted with, so they hold, and a longer context is refused; a cap is the smaller of both; threads,
 * the cache's format and activations that the options ask for stay. */
nib_status apply_sizes(nib_engine_options *o, const plan *p, const logger *log, nib_error *err);

/* Formats, layers that are left out, activations (e->act_bits) and what is kept (e->kept), in e->layout,
 * before choices and pager are opened. Says once, in the log, that layers are missing and that weights are
 * rounded.
 */
nib_status apply_blocks(nib_engine *e, const plan *p, nib_error *err);

#endif
