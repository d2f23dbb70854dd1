/* head.h - decides whether the output head uses a shortlist (docs/shortlist.md), and for how many tokens. */
#ifndef NIB_ENGINE_HEAD_H
#define NIB_ENGINE_HEAD_H

#include "engine/core.h"

/* Resolves e->resolved.n_best and sets the layout's program. Called once, after the sizes are resolved. p: a
 * plan, which decides; NULL: the options and the cap decide. NIB_E_USAGE: options and plan disagree. */
nib_status head_resolve(engine_core *e, const plan *p, nib_error *err);
/* After the sketch was made: whether the other weights fit beside it and a session of this size. */
bool head_fits(const engine_core *e, uint64_t session);
/* Bytes of the sketch that are not charged yet; staging: additional bytes while it is made. */
uint64_t head_bytes(const engine_core *e, uint64_t *staging);

#endif
