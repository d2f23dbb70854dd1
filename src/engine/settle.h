/* settle.h - all that is decided before weights are read: sizes, a plan, each block's format and activations.
 */
#ifndef NIB_ENGINE_SETTLE_H
#define NIB_ENGINE_SETTLE_H

#include "engine/core.h"

/* Formats and activations of the blocks: the same activations for all, unless want->plan has others. */
nib_status settle_blocks(engine_core *e, const engine_want *want, nib_error *err);
/* All of it: by the plan that is given, or by one that is made now when the options ask for that. Sets
 * e->cap_is_named. */
nib_status settle(engine_core *e, const engine_want *want, nib_error *err);

#endif
