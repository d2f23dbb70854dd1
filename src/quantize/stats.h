/* stats.h - the imatrix of each tensor: the mean square of the inputs of each of its columns. */
#ifndef NIB_QUANTIZE_STATS_H
#define NIB_QUANTIZE_STATS_H

#include "measure/calibrate.h"
#include "model/as_gguf.h"
#include "profile/imatrix.h"

typedef struct stats {
    const float **of;       /* [number of tensors written]: [stats_experts, k] mean squares, borrowed from
                               `channels` or       `own`; NULL: not known */
    model_imatrix channels; /* owns the means when they were measured */
    float *own;             /* owns the means when they come from a file */
    char key[40];           /* hash of the prompts that they were measured with; "": none */
    int64_t n_token;        /* tokens of those prompts */
} stats;

/* The matrices that a tensor has, with inputs of their own: those of a stack of experts, else 1. */
int64_t stats_experts(const gguf_tensor *t);

/* The widths of a model's product inputs, in the order of model_imatrix. */
typedef struct stats_sites {
    int64_t *k; /* [n]; owned */
    int n;
} stats_sites;
/* NIB_E_NOMEM. The caller calls stats_widths_clear. */
nib_status stats_widths(stats_sites *s, const model *m, nib_error *err);
void stats_widths_clear(stats_sites *s); /* zeroed is fine */

/* Importance from measured channels, for each tensor that a product reads. Takes ownership of *channels, also
 * on an error. *s is zeroed before. NIB_E_NOMEM. Call stats_close after an error too. */
nib_status stats_of_channels(stats *s, const model *m, const gguf_tensors *tensors, model_imatrix *channels,
                             nib_error *err);
void stats_close(stats *s); /* zeroed is fine */

#endif
