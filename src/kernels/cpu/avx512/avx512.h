/* avx512.h - products with packed integers for AVX-512 with VNNI; the same bits as cpu/ref. */
#ifndef NIB_KERNELS_AVX512_H
#define NIB_KERNELS_AVX512_H

#include "kernels/kernels.h"

void avx512_act_quantize(const float *x, int64_t k, void *out);
void avx512_linear_tile(const linear_args *a, int64_t n0, int64_t n1);

#endif
