/* amx_emulated_rows.c - the products with float weights, see amx_emulated.h. */
#include "support/amx_emulated.h"

#define amx_linear_rows  emulated_linear_rows
#define amx_rows_scratch emulated_rows_scratch
#include "../src/kernels/cpu/amx/rows.c"
