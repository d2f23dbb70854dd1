/* avx512pop.h - AVX-512 with VPOPCNTDQ: Bitwise products. All other ops are those of AVX-512. */
#ifndef NIB_KERNELS_AVX512POP_H
#define NIB_KERNELS_AVX512POP_H

#include "kernels/dpr.h"

extern const strategy avx512pop_bitwise;
extern const dpr_probe avx512pop_probes[];

#endif
