/* bit_allocation.h - allocates an average number of bits to a model's blocks so that the summed cost is
 * minimal. The cost of a block is the measured KL divergence of the logits when that block alone is
 * quantized. */
#ifndef NIB_QUANTIZE_BIT_ALLOCATION_H
#define NIB_QUANTIZE_BIT_ALLOCATION_H

#include "measure/measure.h"
#include "quantize/mix.h"

/* A format that blocks can get. `bits` are those of a code; scales are not counted, so 3.5 means half of the
 * weights in 3 bits and half in 4. */
typedef struct allocation_format {
    type_id type;
    int bits;
    const char *recipe; /* the format that its cost is measured with (numbers/recipe.h). An engine cannot
                           round to every type at run time; such a type has a format with the same number of
                           bits, because only the order of the blocks matters */
} allocation_format;
enum { ALLOCATION_FORMATS = 5 /* maximum number of formats */ };
typedef struct allocation_list {
    allocation_format of[ALLOCATION_FORMATS];
    int n;
} allocation_list;

/* The formats that `names` lists. names: type names with commas between them; NULL: n2g64, n3g64, q4_0, q5_0
 * and q8_0. NIB_E_USAGE: a name is unknown here, or there are more than ALLOCATION_FORMATS. */
nib_status allocate_find(const char *names, allocation_list *out, nib_error *err);

/* Measures the costs with an engine of these options, and fills types [model_n_block] with each block's
 * format. bits: the average over all weights in matrices, at most. layers_only: blocks outside layers neither
 * count nor cost, and their types have no meaning. *kl: the sum of the chosen costs, in nats. Runs the model
 * with each block in each format. NIB_E_USAGE: bits below the list's minimum or above its maximum;
 * NIB_E_CANCELLED; and the errors of measure_quality. */
nib_status allocate_bits(const char *name, const nib_engine_options *o, const calibration *c, const model *m,
                         const allocation_list *list, double bits, bool layers_only, type_id *types,
                         double *kl, nib_error *err);

/* The choice alone, from measured costs: cost [n_block, list->n], KL in nats (below 0: not measured, counted
 * as 0), and weights [n_block], the number of weights of each block. choice [n_block]: an index in the list.
 * The knapsack is solved exactly (plan/choose.h). NIB_E_USAGE: no choice has so few bits; NIB_E_NOMEM. */
nib_status allocate_choose(const allocation_list *list, const double *cost, const double *weights,
                           int n_block, double bits, int *choice, double *kl, nib_error *err);

#endif
