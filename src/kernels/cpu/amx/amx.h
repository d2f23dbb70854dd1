/* amx.h - products with packed integers on AMX tiles; the same bits as cpu/ref. */
#ifndef NIB_KERNELS_AMX_H
#define NIB_KERNELS_AMX_H

#include "kernels/strategy.h"

extern const strategy amx_blocked;

#endif
