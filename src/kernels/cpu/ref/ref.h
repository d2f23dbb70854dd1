/* ref.h - the scalar products with packed integers: the definition that every other kernel equals bit for
 * bit. */
#ifndef NIB_KERNELS_REF_H
#define NIB_KERNELS_REF_H

#include "kernels/kernels.h"

void ref_act_quantize(const float *x, int64_t k, void *out);
void ref_linear_tile(const linear_args *a, int64_t n0, int64_t n1);

#endif
