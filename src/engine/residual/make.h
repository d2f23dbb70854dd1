/* make.h - computes the rounding residuals of a model's matrices from its original. */
#ifndef NIB_ENGINE_RESIDUAL_MAKE_H
#define NIB_ENGINE_RESIDUAL_MAKE_H

#include "engine/residual/disk.h"
#include "engine/residual/kinds.h"

/* The residuals of a layout and their memory. */
typedef struct residual_store {
    engine_core *e;
    residual *of; /* [first[n_block]] */
    int *first;   /* [n_block + 1]: weight w of block b has index first[b] + w */
    residual_kinds kinds;
    memory_region memory;
    bool is_on_disk;
    residual_disk disk;
    uint64_t *at;      /* [first[n_block]] with is_on_disk: offset of each one's codes in the file */
    file_writer *keep; /* a file of residuals to write (file.h); NULL: none */
} residual_store;

/* Columns of the longest matrix. */
int64_t residual_longest_row(const layout *lay);
/* Computes the residuals that r->kinds has: into r->memory; with is_on_disk their codes into that file; with
 * keep all of them into the file of residuals, through r->disk.staging (the bytes of the largest matrix).
 * Blocks; memory for the rows in work is charged meanwhile. NIB_E_MODEL: `original` is another model, or has
 * the same values. */
nib_status residual_make(residual_store *r, const model *original, nib_error *err);

#endif
