/* angles.h - rotary angles, computed on the host. */
#ifndef NIB_EXEC_CUDA_ANGLES_H
#define NIB_EXEC_CUDA_ANGLES_H

#include "exec/backend.h"
#include "kernels/cuda/cuda_kernels.h"

typedef struct cuda cuda;

/* Rotary angles in host memory (angles.c). Tables whose frequencies depend on the length are not kept. */
typedef struct angles {
    int64_t width;                   /* floats of a row of the widest table: 2 for each frequency */
    float *inv_freq, *factor;        /* [n_rope, width], [n_rope] */
    float *ahead;                    /* [n_rope][CUDA_MAX_ROWS, width]: angles for row r of the next pass */
    int64_t position[CUDA_MAX_ROWS]; /* the position that they are for; -1: none */
} angles;

void angles_open(cuda *c); /* call it after the memory is laid out */
/* Writes the angles of the pass's rows: [rows, n_rot of the table]. */
void angles_fill(const cuda *c, int table, float *out);
/* Computes the angles of the rows' next positions, if each row belongs to another sequence. Call it while the
 * GPU computes the pass. */
void angles_ahead(cuda *c);

#endif
