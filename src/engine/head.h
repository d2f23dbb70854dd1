/* head.h - decides whether the output head uses a shortlist (docs/shortlist.md), and for how many tokens. */
#ifndef NIB_ENGINE_HEAD_H
#define NIB_ENGINE_HEAD_H

#include "engine/core.h"

/* Decides e->set.n_best; the layout's program follows. Called once, after the sizes are decided. p: the plan
 * that has it; NULL: the options and the cap decide. NIB_E_USAGE: the options and the plan disagree. */
nib_status head_resolve(engine_core *e, const plan *p, nib_error *err);
/* After the sketch is made: whether the other weights fit beside it and a session of so many bytes. */
bool head_fits(const engine_core *e, uint64_t session);
/* Bytes that will be charged for the sketch and are not charged yet; staging: bytes that making it takes
 * besides. */
uint64_t head_bytes(const engine_core *e, uint64_t *staging);

#endif
