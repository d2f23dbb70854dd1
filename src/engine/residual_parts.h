/* residual_parts.h - shared by residual.c and residual_make.c only. */
#ifndef NIB_ENGINE_RESIDUAL_PARTS_H
#define NIB_ENGINE_RESIDUAL_PARTS_H

#include "engine/residual.h"
#include "engine/residual_by.h"
#include "engine/residual_disk.h"
#include "tiers/region.h"

struct engine_residuals {
    engine_core *e;
    residual_use use; /* what the back end is told of; owns its arrays */
    residual *of;
    int *first;
    int32_t *k_chunk, *n_tb; /* [first[n_block]] */
    residual_kinds kinds;
    residual_by by;
    tier_region memory;
    bool is_on_disk;
    residual_disk disk;
    uint64_t *at; /* [first[n_block]] with is_on_disk: where the file has each one's codes */
};

/* Whether weight w of block b has a residual. */
bool residual_is_of(const block *b, const weight *w);
/* Columns of the longest matrix. */
int64_t residual_longest_row(const layout *lay);
/* Computes all residuals from the original into r->memory, or, with is_on_disk, their codes into the file.
 * Memory for the rows in work is charged meanwhile. NIB_E_MODEL: it is not this model's original. */
nib_status residual_make(engine_residuals *r, const model *original, nib_error *err);

#endif
