/* ref.h - the scalar products with packed integers: the definition that every other kernel equals bit for
 * bit. */
#ifndef NIB_KERNELS_REF_H
#define NIB_KERNELS_REF_H

#include "kernels/dpr.h"

void ref_act_quantize(act_format f, const float *x, int64_t k, void *out);

extern const strategy ref_scalar;
extern const dpr_probe ref_probes[];

#endif
