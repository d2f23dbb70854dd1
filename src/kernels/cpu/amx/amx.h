/* amx.h - products on AMX tiles: with packed integers, the same bits as cpu/ref; with float weights by sums
 * of bf16 products, as exact as cpu/ref but not its bits (rows_job.h has the order of the sums). */
#ifndef NIB_KERNELS_AMX_H
#define NIB_KERNELS_AMX_H

#include "kernels/strategy.h"

extern const strategy amx_blocked;

/* Functions of kernel_table, for any number of rows. A row has the same bits alone and among others. Slices
 * and products with a magnitude below 2^-126 count as zero. A row with an infinity, a NaN or a value of 2^127
 * and more gets the bits of the AVX-512 kernel. */
void amx_linear_sliced(const linear_args *a, int64_t n0, int64_t n1);
bool amx_sliced_suits(type_id type, int64_t n_row);
size_t amx_sliced_scratch(void); /* bytes of linear_args.scratch */

#endif
