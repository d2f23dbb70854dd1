/* resolve.h - all decisions before weights are read: sizes, a plan, the format and activations of each block.
 */
#ifndef NIB_ENGINE_RESOLVE_H
#define NIB_ENGINE_RESOLVE_H

#include "engine/core.h"

/* Formats and activations of the blocks: the same activations for all, unless want->plan has others. */
nib_status resolve_blocks(engine_core *e, const engine_want *want, nib_error *err);
/* All of it: by the plan that is given, or by one that is made now when the options ask for that. Sets
 * e->cap_is_named. */
nib_status resolve(engine_core *e, const engine_want *want, nib_error *err);

#endif
