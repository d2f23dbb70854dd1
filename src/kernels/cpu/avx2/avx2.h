/* avx2.h - products with packed integers for AVX2 with FMA and F16C, with the bits of cpu/ref. */
#ifndef NIB_KERNELS_AVX2_H
#define NIB_KERNELS_AVX2_H

#include "kernels/dpr.h"

void avx2_act_quantize(act_format f, const float *x, int64_t k, void *out);

bool avx2_estimate_can(const pack_format *f, int64_t n_row);
void avx2_estimate(const linear_args *a, int64_t n0, int64_t n1, float *error);

extern const strategy avx2_direct, avx2_signs, avx2_blocked, avx2_split;
extern const dpr_probe avx2_probes[];

#endif
