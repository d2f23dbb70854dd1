/* avx512vbmi.h - AVX-512 with VBMI: products with code books; everything else is AVX-512's. */
#ifndef NIB_KERNELS_AVX512VBMI_H
#define NIB_KERNELS_AVX512VBMI_H

#include "kernels/strategy.h"

extern const strategy avx512vbmi_book;

#endif
