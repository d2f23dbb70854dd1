/* channels.h - statistics of the input channels of products, site by site (model/sites.h): where outliers are
 * and how large (COMET, section 3.1). Measured once for a model and calibration prompts, and stored in the
 * cache. */
#ifndef NIB_MEASURE_CHANNELS_H
#define NIB_MEASURE_CHANNELS_H

#include "measure/product_inputs.h"

/* A channel has outliers if its 99.9th percentile is above so many times the median of its site.
 * COMET does not state its threshold; LLM.int8 (arXiv 2208.07339) has outliers from 6 times the others on. */
#define CHANNELS_OUTLIER 6.0

/* Each has a value for each channel of each site (imatrix.mean). */
typedef struct channel_stats {
    model_imatrix square;  /* mean of x^2 */
    model_imatrix largest; /* largest |x| */
    model_imatrix upper;   /* 99.9th percentile of |x|: tokens with massive activations do not count */
} channel_stats;

/* Reads the statistics of the model `name`, opened as m, from the cache, or measures and stores them.
 * NIB_E_NOMEM, NIB_E_NOFIT and the errors of a pass. The caller clears *out, also after an error. */
nib_status channels_get(const char *name, const nib_engine_options *options, const calibration *c,
                        const model *m, channel_stats *out, nib_error *err);
void channels_clear(channel_stats *c); /* zeroed is fine */
/* The median of n > 0 values; scratch: [n]. */
float channels_median(const float *x, int64_t n, float *scratch);

#endif
