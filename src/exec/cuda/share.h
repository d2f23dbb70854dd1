/* share.h - what the back end needs beside the weights, for the decision on what is resident. */
#ifndef NIB_EXEC_CUDA_SHARE_H
#define NIB_EXEC_CUDA_SHARE_H

#include "exec/backend.h"
#include "kernels/cuda/cuda_kernels.h"

typedef struct cuda cuda;

/* If at least this many sequences may decode together, products of generated rows use `batch`, if the device
 * has it. `linear` is faster up to 16 rows: a step of 8b takes 2.16 ms for 8 rows, 2.62 for 16 and 4.73 for
 * 32, where `batch` takes 2.58, 2.70 and 3.11 (H200). */
enum { CUDA_MIN_BATCH = 17 };

/* backend_kind.share. */
nib_status cuda_share(backend *open, const backend_setup *s, const backend_rows *rows, uint64_t cap,
                      homes_question *out, nib_error *err);
/* Sets the table of kernels, and whether products of generated rows use `batch`. */
void share_kernels(cuda *c, const cuda_kernels *k);

#endif
