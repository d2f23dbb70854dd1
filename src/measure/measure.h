/* measure.h - one-time measurements of a model's weights with calibration prompts: the importance of each
 * layer (profile/importance.h) and the cost of lower precision, block by block (profile/quality.h).
 *
 * All prompts go through a block together, each with its own positions, so a pass reads the model once for
 * any number of prompts. Activations have 16 bits and cached keys and values are f32, whatever runs use, so
 * results depend on the weights and the prompts alone. */
#ifndef NIB_MEASURE_MEASURE_H
#define NIB_MEASURE_MEASURE_H

#include "profile/coactivity.h"
#include "profile/channel_stats.h"
#include "profile/importance.h"
#include "profile/quality.h"
#include "engine/engine.h"
#include "measure/calibrate.h"

/* Opens the model's vocabulary only and makes the prompts; path as calibrate(). */
nib_status measure_prompts(const char *name, const nib_engine_options *options, const char *path,
                           calibration *out, nib_error *err);

/* Opens the model, streams it once through the ring (about one layer of it is in memory) and closes it.
 * Progress is told to options->progress. *out is cleared by the caller. */
nib_status measure_importance(const char *name, const nib_engine_options *options, const calibration *c,
                              importance *out, nib_error *err);

typedef struct quality_options {
    const char *const *formats; /* [n_format] recipes (quant/recipe.h) */
    int n_format;
    const double *change; /* [n_layer], how much each changes the residual stream (IMPORTANCE_COSINE): layers
                             are also left out together, those with the least first; NULL: not */
    int64_t n_row;        /* tokens of each prompt that are used: the first ones; 0: QUALITY_ROWS */
    int64_t n_score;      /* of those, the last ones whose logits are compared; 0: QUALITY_SCORED */
} quality_options;
enum { QUALITY_ROWS = 24, QUALITY_SCORED = 8 };

/* Opens the model with what fits resident. Charged to the ledger beside it: the residual stream before every
 * block, logits of the compared tokens, what is found of channels, and the largest block in its largest
 * format. *channels (cleared by the caller, also after an error) is what formats ending in w were rounded by.
 */
nib_status measure_quality(const char *name, const nib_engine_options *options, const calibration *c,
                           const quality_options *q, quality *out, channel_stats *channels, nib_error *err);

/* Which parts do anything for a token (MCAP, paper 3.3): each layer's attention, and its feed-forward part's
 * neurons in n_group groups of neighbours. A neuron does nothing when its value is at most `min` times the
 * root mean square of its row's: 0 means exactly nothing, and the rows of weights behind it need not be read.
 */
enum { ACTIVITY_GROUPS = 16, ACTIVITY_PARTS = 1024 };
typedef struct activity {
    coactivity parts; /* of layer l: part l * (1 + n_group) its attention, then its groups */
    int n_layer, n_group;
    uint64_t n_neuron, n_active; /* over all tokens and layers */
} activity;

/* As measure_importance; coactivity_close(&out->parts) frees it, also after an error. */
nib_status measure_activity(const char *name, const nib_engine_options *options, const calibration *c,
                            double min, activity *out, nib_error *err);

/* Some formats from light to harsh, for quality_options. */
extern const char *const measure_formats[];
extern const int measure_n_format;

#endif
