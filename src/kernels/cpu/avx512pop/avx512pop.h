/* avx512pop.h - AVX-512 with VPOPCNTDQ: Bitwise products; everything else is AVX-512's. */
#ifndef NIB_KERNELS_AVX512POP_H
#define NIB_KERNELS_AVX512POP_H

#include "kernels/dpr.h"

extern const strategy avx512pop_bitwise;
extern const dpr_probe avx512pop_probes[];

#endif
