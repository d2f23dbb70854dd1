/* bit_allocation.h - an average number of bits, allocated to a model's blocks so that the sum of what each
 * block costs is least. The cost of a block is the KL divergence of the logits when that block alone is
 * quantized, measured. */
#ifndef NIB_QUANTIZE_BIT_ALLOCATION_H
#define NIB_QUANTIZE_BIT_ALLOCATION_H

#include "measure/measure.h"
#include "quantize/mix.h"

/* The formats to choose from, by the bits of their codes. Bits of scales are not counted: 3.5 is half of the
 * weights in 3 bits and half in 4. */
typedef struct allocation_format {
    type_id type;
    int bits;
    const char *recipe; /* what measures it (quant/recipe.h) */
} allocation_format;
enum { ALLOCATION_FORMATS = 5 };
extern const allocation_format allocation_formats[ALLOCATION_FORMATS];

/* Measures the costs, with what the options allow, and chooses: types[model_n_block]. kl: the sum that is
 * expected. NIB_E_USAGE: bits below 2 or above 8. */
nib_status allocate_bits(const char *name, const nib_engine_options *o, const calibration *c, const model *m,
                         double bits, type_id *types, double *kl, nib_error *err);

/* The choice alone, from measured costs: cost[n_block, ALLOCATION_FORMATS] (below 0: not measured, as what
 * the file has costs nothing) and weights[n_block]. */
nib_status allocate_choose(const double *cost, const double *weights, int n_block, double bits, int *choice,
                           double *kl, nib_error *err);

#endif
