/* in_place.h - blocks that the processor computes in passes of the GPU. */
#ifndef NIB_EXEC_CUDA_IN_PLACE_H
#define NIB_EXEC_CUDA_IN_PLACE_H

#include "exec/backend.h"
#include "kernels/cuda/cuda_kernels.h"
#include "plan/homes.h"

typedef struct cuda cuda;

/* Blocks that the processor computes from their weights in RAM, for generated rows. */
enum { IN_PLACE_MAX_ROWS = CUDA_MAX_ROWS };
typedef struct in_place {
    backend *host;   /* the processor's back end */
    bool *block;     /* [n_block] */
    int n;           /* number of blocks; 0: none */
    int first;       /* the pass's first block on the GPU, if the pass computes blocks in place */
    bool begun;      /* the processor's back end has begun this pass: it has generated rows */
    bool now;        /* and computes blocks in place */
    int64_t n_row;   /* generated rows of this pass, its first ones */
    bool has_stream; /* their residual stream is in the host's registers */
} in_place;

nib_status in_place_open(cuda *c, nib_error *err);
void in_place_close(cuda *c);
/* The host's part of backend_kind.row_bytes. It has no side effects. */
uint64_t in_place_row_bytes(const backend_setup *s, const backend_rows *rows, int64_t n_row,
                            uint64_t *touched);
/* Sets the layers that are computed in place. */
void in_place_follow(cuda *c, const homes_split *split);
/* Allocates memory for the rows of these layers. Call it after in_place_follow. */
nib_status in_place_reserve(cuda *c, const backend_rows *rows, nib_error *err);
/* Begin and end a pass. in_place_end is also called after an error. */
nib_status in_place_begin(cuda *c, nib_error *err);
void in_place_end(cuda *c);
/* Whether the visit's block is computed in place. */
bool in_place_has(const cuda *c, const visit *v);
/* Copies the residual stream of generated rows to the device that computes them in the run's visit. */
nib_status in_place_hand_over(cuda *c, nib_error *err);
nib_status in_place_run(cuda *c, const backend_run *r, nib_error *err);

#endif
