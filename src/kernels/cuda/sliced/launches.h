/* launches.h - ADAngel's Split and Bitwise as launches of `linear` by slices of both operands (sliced.cuh),
 * for strategies.cu: compiled for compute capabilities 7.5 to 8.9. */
#ifndef NIB_KERNELS_CUDA_SLICED_LAUNCHES_H
#define NIB_KERNELS_CUDA_SLICED_LAUNCHES_H

#include "kernels/cuda/cuda_kernels.h"

/* Bytes of cuda_linear.scratch for any number of rows. */
size_t sliced_scratch(int64_t n_row, int64_t k);
int bitwise_launch(const cuda_linear *a, cuda_stream s);
int split_launch(const cuda_linear *a, cuda_stream s);

#endif
