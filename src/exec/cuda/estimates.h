/* estimates.h - the head's sketch: the logits that can be sampled are estimated first. */
#ifndef NIB_EXEC_CUDA_ESTIMATES_H
#define NIB_EXEC_CUDA_ESTIMATES_H

#include "exec/backend.h"
#include "kernels/cuda/cuda_kernels.h"
#include "memory/region.h"

typedef struct cuda cuda;

/* The head's sketch (estimates.c). */
typedef struct estimates {
    view sketch;      /* 4 bits; data NULL: the head is computed as a whole */
    float *step;      /* cuda_shortlist.step, stored after the sketch */
    bool made;        /* the sketch has been made from the loaded head */
    int64_t max_rows; /* maximum rows of a pass that uses the sketch */
    memory_region memory;
} estimates;

/* Bytes of the head's sketch; 0: there is none with these activations, kernels and sampling. */
uint64_t estimates_bytes(const cuda *c);
/* Allocates the planned sketch. */
nib_status estimates_reserve(cuda *c, nib_error *err);
void estimates_close(cuda *c);
/* Makes the sketch at the first visit of the head, whose weights must be loaded. */
nib_status estimates_make(cuda *c, nib_error *err);
/* Whether the head's product `a` is computed in two steps. */
bool estimates_serve(const cuda *c, const cuda_linear *a);
double estimates_share(cuda *c); /* backend_kind.head_share */

#endif
