/* avxvnni.h - products with packed integers for processors that have AVX-VNNI, with the bits of cpu/ref. All
 * other ops are those of AVX2. */
#ifndef NIB_KERNELS_AVXVNNI_H
#define NIB_KERNELS_AVXVNNI_H

#include "kernels/strategy.h"

extern const strategy avxvnni_direct, avxvnni_blocked;

#endif
