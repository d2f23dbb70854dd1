/* share.h - an average number of bits shared out among a model's blocks, so that the sum of what each block
 * costs (KL divergence at the logits, measured block by block) is the least there is. */
#ifndef NIB_QUANTIZE_SHARE_H
#define NIB_QUANTIZE_SHARE_H

#include "measure/measure.h"
#include "quantize/mix.h"

/* The formats that are shared out, by the bits of their codes. Bits of scales are not counted: 3.5 is half of
 * the weights in 3 bits and half in 4. */
typedef struct share_format {
    type_id type;
    int bits;
    const char *recipe; /* what measures it (quant/recipe.h) */
} share_format;
enum { SHARE_FORMATS = 5 };
extern const share_format share_formats[SHARE_FORMATS];

/* Measures the costs, with what the options allow, and chooses: types[model_n_block]. kl: the sum that is
 * expected. NIB_E_USAGE: bits below 2 or above 8. */
nib_status share_bits(const char *name, const nib_engine_options *o, const calibration *c, const model *m,
                      double bits, type_id *types, double *kl, nib_error *err);

/* The choice alone, from measured costs: cost[n_block, SHARE_FORMATS] (below 0: not measured, as what the
 * file has costs nothing) and weights[n_block]. */
nib_status share_choose(const double *cost, const double *weights, int n_block, double bits, int *choice,
                        double *kl, nib_error *err);

#endif
