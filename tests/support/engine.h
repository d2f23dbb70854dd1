/* engine.h - engines and sessions that must open: a test that cannot have one has failed. */
#ifndef NIB_TESTS_ENGINE_H
#define NIB_TESTS_ENGINE_H

#include "engine/engine.h"

/* Two threads, passes of 16 rows, no packed file. */
nib_engine_options engine_usual(void);
/* p NULL: no plan. */
nib_engine *engine_must_open(const char *path, const nib_engine_options *o, const plan *p);
nib_session *session_must_open(nib_engine *e);
/* A whole life that may fail: opens, generates n tokens after a prompt of five, closes. how NULL: the usual
 * sampling. *result is to be cleared in any case. Tokens and the highest of the last logits are told to
 * fault_made. */
nib_status engine_life(const char *path, const nib_engine_options *o, const nib_sampling *how, int64_t n,
                       nib_result *result, nib_error *err);

#endif
