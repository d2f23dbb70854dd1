/* avx2.h - products with packed integers for AVX2 with FMA and F16C; the same bits as cpu/ref. */
#ifndef NIB_KERNELS_AVX2_H
#define NIB_KERNELS_AVX2_H

#include "kernels/kernels.h"

void avx2_act_quantize(const float *x, int64_t k, void *out);
void avx2_linear_tile(const linear_args *a, int64_t n0, int64_t n1);

#endif
