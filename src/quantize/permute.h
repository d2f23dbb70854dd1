/* permute.h - FMPQ (COMET, section 3.2): channels in which outliers occur are put first, so that few blocks
 * of 128 channels need 8 bits and the others have 4.
 *
 * A permutation of an axis (model/axes.h) is folded into all tensors of that axis when a file is written, so
 * it costs nothing at run time, and any program reads the file. One for the residual stream serves all
 * layers; each feed-forward's hidden layer has its own. The file also says how many leading blocks of each
 * site have 8 bits (SITES_N8_KEY), which is advice: the weights do not depend on it.
 *
 * One thread calls. */
#ifndef NIB_QUANTIZE_PERMUTE_H
#define NIB_QUANTIZE_PERMUTE_H

#include "measure/channels.h"
#include "model/as_gguf.h"
#include "model/axes.h"

typedef struct permutation {
    const model *m; /* borrowed */
    model_axes axes;
    int32_t **order; /* [axes.n]: channel i becomes what channel order[i] was; NULL: as it is */
    int64_t *n8;     /* [n_site]: leading blocks of 128 with 8 bits */
    int n_site;
    int n_outlier; /* channels of all axes that are outliers */
    double share8; /* of the multiply-adds of all sites, those with 8 bits */
} permutation;

/* The order of n channels: those whose strength is above `factor` times the median, strongest first, then the
 * others in their order. Returns the number of outliers; 0 leaves the order as it is. NIB_E_NOMEM gives -1.
 */
int permute_order(const float *strength, int64_t n, double factor, int32_t *order);

typedef struct permute_options {
    double outlier; /* factor of permute_order */
    double share;   /* at most this share of the multiply-adds gets 8 bits */
} permute_options;

/* Finds the orders from the statistics of channels, then n8 by measured loss: the squared error of the
 * products' outputs on the calibration rows, relative to the outputs. NIB_E_NOMEM, NIB_E_NOFIT and the errors
 * of two passes. Call permute_close after an error too. */
nib_status permute_open(permutation *p, const model *m, const char *name, const nib_engine_options *options,
                        const calibration *c, const permute_options *how, nib_error *err);
void permute_close(permutation *p); /* zeroed is fine */

/* Where the rows and columns of a tensor come from; freed by the caller. NULL: they keep their order. Of a
 * vector, its elements are columns. NIB_E_NOMEM. */
typedef struct permuted {
    int32_t *rows, *cols;
} permuted;
nib_status permute_tensor(const permutation *p, const gguf_tensor *t, permuted *out, nib_error *err);
/* Whether permute_tensor would give columns. */
bool permute_moves_columns(const permutation *p, const gguf_tensor *t);

#endif
