/* head.h - whether the output head goes in two steps (docs/shortlist.md), and for how many tokens. */
#ifndef NIB_ENGINE_HEAD_H
#define NIB_ENGINE_HEAD_H

#include "engine/core.h"

/* Settles e->set.n_best; the layout's program follows. Once, when sizes are settled; p: the plan that says
 * it, NULL: the options and the cap do. NIB_E_USAGE: what the options ask for and the plan disagree. */
nib_status head_resolve(engine_core *e, const plan *p, nib_error *err);
/* Once the sketch is there: whether the rest fits beside it, with a session of so many bytes. */
bool head_leaves_room(const engine_core *e, uint64_t session);
/* What will be charged for the sketch, and is not yet; staging: for a moment besides. */
uint64_t head_bytes(const engine_core *e, uint64_t *staging);

#endif
