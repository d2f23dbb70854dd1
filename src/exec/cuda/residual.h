/* residual.h - fetching residuals beside the products (docs/paper-qdec.md). */
#ifndef NIB_EXEC_CUDA_RESIDUAL_H
#define NIB_EXEC_CUDA_RESIDUAL_H

#include "exec/cuda/steps.h"
#include "kernels/cuda/cuda_kernels.h"

/* Residuals are fetched while a step's products run. One of the two is in a second stream, which is forked
 * from the first one and joined to it. */
typedef struct fetches {
    void *mapped, *there; /* the residuals' memory: host address, device address */
    cuda_stream side;
    cuda_event fork, join;
    bool aside; /* added launches belong to the second stream */
} fetches;

nib_status fetches_open(cuda *c, nib_error *err); /* does nothing without residuals */
void fetches_close(cuda *c);
bool fetches_has(const cuda *c, int b, const step *s);
int64_t fetches_widest(const cuda *c); /* maximum number of outputs of a step's products; 0: no residuals */
/* Sets the arguments for fetching the step's residuals, except the rows, which the caller sets. */
void fetches_args(const cuda *c, int b, const step *s, cuda_residual *a);
/* Forks the second stream, and launches the fetch in stream `on`. Returns CUDA's error. */
int fetches_launch(const cuda *c, const cuda_residual *a, cuda_stream on);
/* Joins the second stream; returns CUDA's error. */
int fetches_add(const cuda *c, const cuda_residual_add *a);

#endif
