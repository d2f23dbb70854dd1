/* residual_order.h - the order in which residual.cu adds the channels of an output: it depends on the
 * matrices alone, so a sum does not depend on the number of blocks. Share w of `n` has channels w, w + n, w +
 * 2n, ... in ascending order; then the sums of the shares are added in order. */
#ifndef NIB_KERNELS_CUDA_RESIDUAL_ORDER_H
#define NIB_KERNELS_CUDA_RESIDUAL_ORDER_H

#include <stdint.h>

enum { CUDA_RESIDUAL_SEGMENT = 256 /* outputs that are fetched together */, CUDA_RESIDUAL_FEWEST_SHARES = 4 };

/* The number of shares of each segment. With few segments there are few blocks, and twice as many warps keep
 * enough bytes of the link in flight. n: [n_w], outputs of the matrices of one launch. */
static inline int cuda_residual_shares(const int64_t *n, int n_w) {
    enum { FEW = 32 };
    int64_t segments = 0;
    for (int i = 0; i < n_w; i++)
        segments += (n[i] + CUDA_RESIDUAL_SEGMENT - 1) / CUDA_RESIDUAL_SEGMENT;
    return segments <= FEW ? 2 * CUDA_RESIDUAL_FEWEST_SHARES : CUDA_RESIDUAL_FEWEST_SHARES;
}

#endif
