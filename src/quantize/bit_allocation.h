/* bit_allocation.h - allocates an average number of bits to a model's blocks so that the summed cost is
 * minimal. The cost of a block is the measured KL divergence of the logits when that block alone is
 * quantized. */
#ifndef NIB_QUANTIZE_BIT_ALLOCATION_H
#define NIB_QUANTIZE_BIT_ALLOCATION_H

#include "measure/measure.h"
#include "quantize/mix.h"

/* A format that is shared out, by the bits of its codes. Bits of scales are not counted: 3.5 is half of the
 * weights in 3 bits and half in 4. */
typedef struct allocation_format {
    type_id type;
    int bits;
    const char *recipe; /* what measures it (quant/recipe.h): of types that an engine cannot round to while it
                           runs, a format of as many bits, since only the order of the blocks counts */
} allocation_format;
enum { ALLOCATION_FORMATS = 5 /* at most */ };
typedef struct allocation_list {
    allocation_format of[ALLOCATION_FORMATS];
    int n;
} allocation_list;

/* names: of types, with commas between them; NULL: n2g64, n3g64, q4_0, q5_0 and q8_0. NIB_E_USAGE: one is not
 * shared out, or there are too many. */
nib_status allocate_find(const char *names, allocation_list *out, nib_error *err);

/* Measures the costs, with what the options allow, and chooses: types[model_n_block]. layers_only: blocks
 * outside layers neither count nor cost, and their types mean nothing. kl: the sum that is expected.
 * NIB_E_USAGE: bits below the list's fewest or above its most. */
nib_status allocate_bits(const char *name, const nib_engine_options *o, const calibration *c, const model *m,
                         const allocation_list *list, double bits, bool layers_only, type_id *types,
                         double *kl, nib_error *err);

/* The choice alone, from measured costs: cost[n_block, list->n] (below 0: not measured, as what the
 * file has costs nothing) and weights[n_block]. */
nib_status allocate_choose(const allocation_list *list, const double *cost, const double *weights,
                           int n_block, double bits, int *choice, double *kl, nib_error *err);

#endif
