/* residual_first.h - decides whether a fetch of residuals or its products stay in the stream of the launch
 * before them. The other one runs on a second stream. The one that stays may start early; a fetch on the
 * second stream does not. */
#ifndef NIB_KERNELS_CUDA_RESIDUAL_FIRST_H
#define NIB_KERNELS_CUDA_RESIDUAL_FIRST_H

#include "kernels/cuda/cuda_kernels.h"

/* Whether the fetch stays. The time of the fetch relative to the products grows with the number of channels
 * of all rows. With 4 channels a chunk the products should stay, with 16 the fetch (times of whole tokens on
 * an H100; docs/paper-qdec.md). */
static inline bool cuda_residual_first(const cuda_residual *a) {
    enum { MIN_CHANNELS = 16 };
    return a->n_row * a->k_chunk >= MIN_CHANNELS;
}

#endif
