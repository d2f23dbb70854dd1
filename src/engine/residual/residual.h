/* residual.h - QDEC (docs/paper-qdec.md): adds rounding residuals back in every product of a layer, for the
 * channels that are largest in a row (exec/residuals.h). */
#ifndef NIB_ENGINE_RESIDUAL_RESIDUAL_H
#define NIB_ENGINE_RESIDUAL_RESIDUAL_H

#include "engine/core.h"
#include "engine/residual/kinds.h"

typedef struct engine_residuals engine_residuals;

/* Whether residuals were requested. */
static inline bool residuals_requested(const engine_core *e) {
    return e->resolved.k_chunk > 0;
}
/* Bytes of RAM that the layout's residuals take, if their codes are in RAM or on disk: residuals of layers
 * only, since an output head is large and an embedding is not multiplied, only of matrices in a lossy format,
 * and of products to which a plan gives channels. UINT64_MAX: too many. */
nib_status residuals_size(const engine_core *e, uint64_t *in_ram, uint64_t *on_disk, nib_error *err);
/* *may: whether the codes may be on disk (in the file of residuals, or under --scratch), for this back end
 * and rule. */
nib_status residuals_may_stream(const engine_core *e, bool *may, nib_error *err);
/* Reads the original that requested.residual names, which must be the same model in finer formats, or the
 * file of residuals (file.h), which must be the model's own. resolved.residuals_on_disk is set. The memory is
 * one allocation, charged as weights before it is made. The layout must have the file's formats. NIB_E_MODEL:
 * another model; NIB_E_USAGE: an invalid option. */
nib_status residuals_open(engine_core *e, engine_residuals **out, nib_error *err);
/* Writes the residuals of the layout's matrices, from an original, to a file of residuals. Takes memory for
 * one matrix at a time. A core of headers alone is enough. Errors as residuals_open. */
nib_status residuals_write(engine_core *e, const char *original, const char *path, nib_error *err);
void residuals_close(engine_residuals *r); /* NULL is fine */
/* The kinds of products; NULL if r is NULL. */
const residual_kinds *residuals_kinds(const engine_residuals *r);
/* Sets the number of channels of each kind from the next pass on, at most resolved.k_chunk. No pass may run
 * meanwhile. */
void residuals_choose(engine_residuals *r, const tune_choice *c);
/* The same for good: where the GPU does not read it, the memory of kinds without channels is returned. */
void residuals_settle(engine_residuals *r, const tune_choice *c);
/* Bytes of residuals that a token reads with the current choice. */
uint64_t residuals_read(const engine_residuals *r, const tune_choice *c);
/* Counts the reads of residuals on disk since opening; r NULL: zeros. No pass may run meanwhile. */
void residuals_count(const engine_residuals *r, residual_read *out);
/* Checks the current layout. NIB_E_USAGE: a plan has changed the format of a matrix with a residual. */
nib_status residuals_check(const engine_core *e, nib_error *err);

#endif
