/* avxvnni.h - products with packed integers for processors that have AVX-VNNI; everything else is AVX2's. The
 * same bits as cpu/ref. */
#ifndef NIB_KERNELS_AVXVNNI_H
#define NIB_KERNELS_AVXVNNI_H

#include "kernels/strategy.h"

extern const strategy avxvnni_direct, avxvnni_blocked;

#endif
