/* imatrix.h - the importance matrix of a model: for each input channel of a product the mean square of its
 * activations over the tokens of the calibration prompts (the statistic of llama.cpp's importance matrix and
 * of AWQ; the saliency of MCAP's mode C). It is measured once for a model's weights (measure/measure.h) and
 * guides the rounding of their matrices (pack_from.imatrix).
 *
 * A site is one input, which several products may share (q, k and v have one). Sites are numbered in the
 * order in which a pass computes them (engine/imatrix.h). After them there are the inputs of stacks of
 * experts: the channels of each expert, over the rows that have chosen it. */
#ifndef NIB_PROFILE_IMATRIX_H
#define NIB_PROFILE_IMATRIX_H

#include "base/status.h"

typedef struct model_imatrix {
    char content[40], prompts[40]; /* keys of the weights and of the calibration prompts */
    int n_site;
    uint64_t *first; /* [n_site + 1]: index of each site's first channel in mean */
    float *mean;     /* [first[n_site]]: mean square, 0 or more */
    uint64_t n_byte; /* of both arrays */
} model_imatrix;

/* Bytes of both arrays; false: they exceed the bounds. */
bool imatrix_bytes(const int64_t *k, int n_site, uint64_t *bytes);
/* Allocates sites of k[i] channels, all 0. */
nib_status imatrix_begin(model_imatrix *c, const int64_t *k, int n_site, nib_error *err);
/* Makes means of the sums of n_expert experts, k channels each, from their numbers of rows. An expert that no
 * row has chosen gets the mean of all rows. */
void imatrix_experts_mean(float *sum, int64_t k, const int64_t *n_row, int64_t n_expert);
void imatrix_clear(model_imatrix *c); /* zeroed is fine */

/* $XDG_CACHE_HOME/nibble/importance/<content>-<prompts>-imatrix.nibimx; caller frees. NULL: no memory. */
char *imatrix_path(const char *content, const char *prompts);
char *imatrix_find(const char *content); /* the latest of these weights; as profile_find */

/* Loads the file: a header with a version, keys and the sites' widths; the means; a checksum. NIB_E_MODEL: it
 * is damaged, belongs to other weights than `content`, or has other sites than n_site of k[i] channels.
 * NIB_E_NOTFOUND: no such file. *out is set only on success. */
nib_status imatrix_load(const char *path, const char *content, const int64_t *k, int n_site,
                        model_imatrix *out, nib_error *err);
/* Creates the folders; the file is whole or absent. */
nib_status imatrix_save(const char *path, const model_imatrix *c, nib_error *err);

#endif
