/* reduce.h - sums over the ranks of a host (OP_REDUCE) on their GPUs: each rank's launches store its rows in
 * the memory of the other GPUs (kernels/cuda/ranks.cuh), within the pass's graph and without the host. A
 * product whose kernel can do it adds its output over ranks itself (cuda_kernels.sums), otherwise the next
 * launch does. The host's sums (exec/sums.h) give the passes' numbers and tell of failures, and before the
 * first pass the ranks exchange the handles of their memory through them. */
#ifndef NIB_EXEC_CUDA_REDUCE_H
#define NIB_EXEC_CUDA_REDUCE_H

#include "kernels/cuda/cuda_kernels.h"
#include "base/status.h"

typedef struct cuda cuda;

typedef struct reduce {
    void *places[CUDA_MAX_RANK]; /* of the ranks; NULL: not opened */
    cuda_handle handle;          /* of this rank's */
    uint64_t charged;
    bool joined;         /* the others' places are opened */
    void *failed_page;   /* the host memory that is mapped; NULL: none */
    int64_t *failed;     /* sums_failed_at, as a device pointer */
    const int64_t *pass; /* the pass's number, in device memory */
    int64_t n_part;      /* parts of the pass's sums so far */
} reduce;

/* Takes this rank's memory, if there are ranks. NIB_E_USAGE: there are too many. */
nib_status reduce_open(cuda *c, nib_error *err);
void reduce_close(cuda *c);
/* NIB_E_NOFIT: the processor would compute a part of the layers, whose sums it does not have. */
nib_status reduce_check(const cuda *c, nib_error *err);
/* The first pass opens the memory of the other ranks, which begin it too. */
nib_status reduce_begin(cuda *c, nib_error *err);
/* Writes the pass's number to the host's tables; `there` is its place in the device's. */
void reduce_number(cuda *c, int64_t *to, const int64_t *there);
/* The next sum of the pass. It is used once: reduce_count then counts its parts. */
cuda_ranks reduce_next(const cuda *c);
void reduce_count(cuda *c, int64_t n_row, int64_t n);
/* When the pass's launches have ended: the errors of sums_check. */
nib_status reduce_end(const cuda *c, nib_error *err);

#endif
