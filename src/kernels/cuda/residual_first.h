/* residual_first.h - which of a fetch and its products stays in the stream of the launch before them; the
 * other one forks. What stays may start early, but a fetch that forks does not. */
#ifndef NIB_KERNELS_CUDA_RESIDUAL_FIRST_H
#define NIB_KERNELS_CUDA_RESIDUAL_FIRST_H

#include "kernels/cuda/cuda_kernels.h"

/* Whether the fetch stays. Time to fetch, as a share of the products', goes by channels of all rows. With 4
 * the products should stay, with 16 the fetch (whole tokens on an H100; docs/paper-qdec.md). */
static inline bool cuda_residual_first(const cuda_residual *a) {
    enum { LEAST = 16 };
    return a->n_row * a->k_chunk >= LEAST;
}

#endif
