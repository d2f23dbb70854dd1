/* load_matrix.h - loads one matrix of a model's files in any format, on all threads of a pool: for matrices
 * beside the model's own weights (sketches, residuals). */
#ifndef NIB_WEIGHTS_LOAD_MATRIX_H
#define NIB_WEIGHTS_LOAD_MATRIX_H

#include "base/cancel.h"
#include "base/thread.h"
#include "memory/ledger.h"
#include "weights/loader.h"

/* Bytes of staging that load_matrix charges while it works. */
uint64_t load_matrix_bytes(const layout *lay, int n_thread);

/* Packs all rows of w to dst (pack_bytes); blocks. w is a matrix whose pieces are in the model's files; its
 * format need not be the model's. Reads bypass the page cache unless the files are cached. *n_read: bytes
 * that were read. cancel NULL: none. */
nib_status load_matrix(const layout *lay, const weight *w, void *dst, pool *threads, ledger *l,
                       const canceller *cancel, uint64_t *n_read, nib_error *err);

#endif
