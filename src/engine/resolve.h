/* resolve.h - all decisions before weights are read: sizes, a plan, the format and activations of each block.
 */
#ifndef NIB_ENGINE_RESOLVE_H
#define NIB_ENGINE_RESOLVE_H

#include "engine/core.h"

/* Resolves formats and activations of the blocks: the same activations for all, unless internal->plan has
 * others.
 */
nib_status resolve_blocks(engine_core *e, const engine_internal *internal, nib_error *err);
/* Resolves everything, by the given plan, or by one that is made now if the options request it. Sets
 * e->cap_is_named. */
nib_status resolve(engine_core *e, const engine_internal *internal, nib_error *err);

#endif
