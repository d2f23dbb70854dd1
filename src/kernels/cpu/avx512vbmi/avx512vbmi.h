/* avx512vbmi.h - AVX-512 with VBMI: products with codebooks. All other ops are those of AVX-512. */
#ifndef NIB_KERNELS_AVX512VBMI_H
#define NIB_KERNELS_AVX512VBMI_H

#include "kernels/strategy.h"

extern const strategy avx512vbmi_book;

#endif
