/* engine.h - opens engines and sessions; fails the test if they do not open. */
#ifndef NIB_TESTS_ENGINE_H
#define NIB_TESTS_ENGINE_H

#include "engine/engine.h"
#include "nib_batch.h"

/* Two threads, passes of 16 rows, no packed file. */
nib_engine_options engine_usual(void);
/* p NULL: no plan. */
nib_engine *engine_must_open(const char *path, const nib_engine_options *o, const plan *p);
nib_session *session_must_open(nib_engine *e);
/* Sets the session to tokens[0..n); returns how many of them were computed. */
int64_t session_must_compute(nib_session *s, const int32_t *tokens, int n);
nib_batch *batch_must_open(nib_engine *e, const nib_batch_options *o);
/* A whole life of an engine, which may fail: opens it, generates n tokens after a prompt of five, closes it.
 * how NULL: the usual sampling. The caller clears *result in any case. Tokens and the highest of the last
 * logits go to fault_made. */
nib_status engine_life(const char *path, const nib_engine_options *o, const nib_sampling *how, int64_t n,
                       nib_result *result, nib_error *err);

#endif
