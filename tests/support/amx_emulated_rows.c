/* amx_emulated_rows.c - the products with float weights, see amx_emulated.h. */
#include "support/amx_emulated.h"

#define amx_linear_sliced  emulated_sliced
#define amx_sliced_suits   emulated_sliced_suits
#define amx_sliced_scratch emulated_sliced_scratch
#include "../src/kernels/cpu/amx/rows.c"
