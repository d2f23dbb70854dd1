/* avx2.h - products with packed integers for AVX2 with FMA and F16C; the same bits as cpu/ref. */
#ifndef NIB_KERNELS_AVX2_H
#define NIB_KERNELS_AVX2_H

#include "kernels/dpr.h"

void avx2_act_quantize(act_format f, const float *x, int64_t k, void *out);

extern const strategy avx2_direct, avx2_signs, avx2_blocked, avx2_split, avx2_bitwise;
extern const dpr_probe avx2_probes[];

#endif
