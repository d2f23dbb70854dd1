/* sites.h - the inputs of products. A *site* is one input, which several products may share (q, k and v have
 * one). Everything that is done to activations is done to a site: statistics of its channels, bits, factors
 * (AWQ), permutations and rotations. Of the inputs of experts there are statistics only: they have entries
 * after the sites. Pure functions of a model; sites_open allocates. */
#ifndef NIB_MODEL_SITES_H
#define NIB_MODEL_SITES_H

#include "model/layout.h"

/* The sites of a model, in the order of a pass, independent of a plan's left-out layers and stacks. */
typedef struct model_sites {
    int n_site, n_stack; /* sites; inputs of stacks of experts */
    int64_t *k; /* [n_site + n_stack]: channels; of a stack those of each expert, one after the other */
    int *first; /* [n_block + 1] into of: a block's first weight */
    int *of;    /* the site of each weight: that of the first product that reads it; -1: none. A shared weight
                   has its entry with its owner */
    int *stack; /* the same for matrices of experts: an entry of k; -1: others */
} model_sites;
/* NIB_E_NOMEM. */
nib_status sites_open(model_sites *s, const model *m, nib_error *err);
void sites_close(model_sites *s); /* zeroed is fine */
/* The site of weight w of block b; -1: none. */
int sites_of(const model_sites *s, const layout *lay, int b, int w);

/* A file's advice for 4-bit activations (NIB_ACT_AX): for each site, how many leading blocks of 128 channels
 * have 8 bits. 'nibble quantize --permute' writes it. */
#define SITES_N8_KEY "nibble.fmpq.n8"

/* The tensor that produces a site's channels, and that can be divided by factors. */
typedef struct site_source {
    int w, b; /* weight and bias of a norm, whose elements are divided, or of a product, whose rows are;
                 indices in the block; b -1: no bias */
    int64_t n_share, width; /* site_maker */
} site_source;
/* Finds the source of the input of weight w. False: it has none that can be divided, so the input of w cannot
 * be scaled. */
bool site_find_source(const block *b, int w, site_source *out);
/* The element of the source that produces channel c: c / (n_share * width) * width + c % width. */
int64_t site_maker(const site_source *s, int64_t c);

#endif
