/* sizes.h - defaults for the context and for the rows of a pass. */
#ifndef NIB_ENGINE_SIZES_H
#define NIB_ENGINE_SIZES_H

#include "engine/core.h"

/* Resolves cache type, context and rows of a pass into e->resolved. Later calls have no effect. NIB_E_USAGE,
 * NIB_E_NOFIT: the requested context is impossible. */
nib_status sizes_resolve(engine_core *e, nib_error *err);

/* The part of it for e->resolved.formats alone: from kv, kv_layers and max_kv_loss. e->resolved.kv_types is a
 * list of the core's own, or NULL. */
nib_status sizes_formats(engine_core *e, nib_error *err);

/* Rows of a pass, and of a cell (the rows that go through a block together), beside sessions of `session`
 * bytes. */
void sizes_rows(const engine_core *e, uint64_t session, int64_t *n_pass, int64_t *n_cell);
/* The same if weights are streamed under this cap. */
void sizes_rows_streamed(const engine_core *e, uint64_t cap, const pager_need *need, int64_t *n_pass,
                         int64_t *n_cell);
/* Halves one of the two, if memory does not hold them; false: both are minimal. */
bool sizes_rows_halve(const engine_core *e, int64_t *n_pass, int64_t *n_cell);
/* Rows that go through a block together, and rows of logits. */
int64_t sizes_cell_rows(const settings *s);
int64_t sizes_logits_rows(const engine_core *e);

/* Whether the cap on RAM holds all weights and the requested or usual context beside `more` bytes. */
bool sizes_hold_all(engine_core *e, uint64_t more);

/* Whether keys and values may be on the disk: the back end can, files there were asked for, and no ranks must
 * have alike positions. */
bool sizes_may_use_disk(const engine_core *e);

/* ---- under the cap, for head.c ---- */
/* Free bytes under the cap on RAM, also where the ledger has no cap because only a plan is made. */
uint64_t sizes_free_ram(const engine_core *e);
/* Bytes that are promised for the activations of passes with these rows. */
uint64_t sizes_pass_bytes(const engine_core *e, int64_t n_pass, int64_t n_cell);
/* Bytes of such a cap, where the back end computes, beside the program and the rows of a pass; NIB_AUTO: no
 * cap. */
uint64_t sizes_beside_rows(const engine_core *e, uint64_t cap);
/* Whether some weights will be streamed. before: bytes charged before the weights are loaded, beside the
 * staging of loading; after: bytes charged after loading, when the staging is free. */
bool sizes_will_stream(const engine_core *e, const pager_need *need, uint64_t before, uint64_t after);
/* Charged bytes with the minimum of resident weights, or the plan's resident weights; UINT64_MAX: overflow.
 */
uint64_t sizes_min(const engine_core *e, const pager_need *need, uint64_t session, int64_t n_pass,
                   int64_t n_cell);
/* Bytes of lists that are charged later and of memory that becomes resident meanwhile, as a plan counts them.
 */
enum { SIZES_SLACK = 1 << 20 };

#endif
