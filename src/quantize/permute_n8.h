/* permute_n8.h - how many leading blocks of each site have 8 bits, by measured loss; a part of permute.h. */
#ifndef NIB_QUANTIZE_PERMUTE_N8_H
#define NIB_QUANTIZE_PERMUTE_N8_H

#include "model/sites.h"
#include "quantize/permute.h"

/* The measured loss of one site: of its output, relative to the output's square, for each block of 128
 * channels in 4 and in 8 bits. */
typedef struct site_loss {
    double *four, *eight; /* [n_block] */
    int64_t n_block;
    double cost; /* multiply-adds of a block */
} site_loss;

/* Chooses n8 [n] such that the summed loss is small and the blocks of 8 bits take at most `share` of all
 * multiply-adds: the leading blocks that gain most for their cost are taken first. Pure. Returns the share.
 */
double n8_choose(const site_loss *of, int n, double share, int64_t *n8);

/* Sets p->n8 and p->share8; p->order is set already. Computes a pass over the calibration prompts with
 * activations of 16 bits, and quantizes each input as products do. Errors of a pass. */
nib_status permute_choose_n8(permutation *p, const model_sites *sites, const char *name,
                             const nib_engine_options *options, const calibration *c, double share,
                             nib_error *err);

#endif
