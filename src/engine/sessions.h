/* sessions.h - the memory of sessions that an engine reserves. */
#ifndef NIB_ENGINE_SESSIONS_H
#define NIB_ENGINE_SESSIONS_H

#include "engine/core.h"

/* Bytes of a session's tokens and logits. */
uint64_t sessions_tables(const engine_core *e, int64_t n_ctx);
/* Bytes for sampling one answer that needs all logits, with penalties and a bias; under
 * nib_engine_options.grammar also the grammar and the logits that it changes. Other such answers of a batch
 * wait until there is memory. */
uint64_t sessions_sampling(const engine_core *e);
/* Bytes of keys and values of n_session contexts, and of the memory that each of n_sequence sequences has of
 * its own. NIB_E_NOFIT: overflow. */
nib_status sessions_cache_bytes(const engine_core *e, kv_formats kv, int64_t n_ctx, uint64_t *bytes,
                                nib_error *err);
/* Bytes of these contexts on the disk (kv_formats.on_disk). */
nib_status sessions_on_disk(const engine_core *e, kv_formats kv, int64_t n_ctx, uint64_t *bytes,
                            nib_error *err);
/* The bytes of these contexts in RAM, plus the logits and token lists of all, and the memory for sampling. */
nib_status sessions_bytes(const engine_core *e, kv_formats kv, int64_t n_ctx, uint64_t *bytes,
                          nib_error *err);
/* As engine_check_positions. */
nib_status sessions_check_positions(const engine_core *e, kv_formats kv, int64_t n_ctx, nib_error *err);
/* NIB_E_USAGE: the back end does not support these formats of keys and values. */
nib_status sessions_check_formats(const engine_core *e, kv_formats kv, nib_error *err);

#endif
