/* residual_first.h - which of a fetch and its products stays in the stream of the launch before them; the
 * other one forks. What stays is launched early: it has its instructions and constants before its row is
 * there. */
#ifndef NIB_KERNELS_CUDA_RESIDUAL_FIRST_H
#define NIB_KERNELS_CUDA_RESIDUAL_FIRST_H

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/salient.h"

/* Bytes that a fetch reads from host memory: codes of the channels, and the scales. */
static inline int64_t cuda_residual_bytes(const cuda_residual *a) {
    const int64_t n = a->n_row * salient_count(a->k, a->k_chunk);
    int64_t bytes = 0;
    for (int i = 0; i < a->n_w; i++)
        bytes += a->step[i] ? n * a->step[i] + a->n[i] * (int64_t)sizeof(float) : 0;
    return bytes;
}

/* Whether the fetch stays. A product with a long input has its row in so much shared memory that it finds no
 * room beside a fetch that came first, and is behind it unless there is much to fetch (docs/paper-qdec.md,
 * "Order of fetch and product": between 240 and 470 KB on an H100). */
static inline bool cuda_residual_first(const cuda_residual *a) {
    enum { LONG = 8192, LEAST_BYTES = 256 << 10 };
    return a->k <= LONG || cuda_residual_bytes(a) >= LEAST_BYTES;
}

#endif
