/* avx512.h - products with packed integers for AVX-512 with VNNI, with the bits of cpu/ref. */
#ifndef NIB_KERNELS_AVX512_H
#define NIB_KERNELS_AVX512_H

#include "kernels/dpr.h"

void avx512_act_quantize(act_format f, const float *x, int64_t k, void *out);

extern const strategy avx512_long, avx512_direct, avx512_blocked;
extern const dpr_probe avx512_probes[];

#endif
