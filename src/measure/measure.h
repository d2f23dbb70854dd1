/* measure.h - one-time measurements of a model's weights with calibration prompts: the importance of each
 * layer (profile/importance.h) and the cost of lower precision, block by block (profile/quality.h).
 *
 * All prompts go through a block together, each with its own positions, so a pass reads the model once for
 * any number of prompts. Activations have 16 bits and cached keys and values are f32, whatever runs use, so
 * results depend on the weights and the prompts alone. */
#ifndef NIB_MEASURE_MEASURE_H
#define NIB_MEASURE_MEASURE_H

#include "profile/imatrix.h"
#include "profile/importance.h"
#include "profile/kv_loss.h"
#include "profile/quality.h"
#include "engine/engine.h"
#include "measure/calibrate.h"

/* Opens the model's vocabulary only and makes the prompts; path as calibrate(). long_texts: as in
 * calibration_source. */
nib_status measure_prompts(const char *name, const nib_engine_options *options, const char *path,
                           bool long_texts, calibration *out, nib_error *err);

/* Opens the model, streams it once through the ring (about one layer of it is in memory) and closes it.
 * Progress goes to options->progress. *out is cleared by the caller. */
nib_status measure_importance(const char *name, const nib_engine_options *options, const calibration *c,
                              importance *out, nib_error *err);

typedef struct quality_options {
    const char *const *formats; /* [n_format] recipes (numbers/recipe.h) */
    int n_format;
    const double
        *change; /* [n_layer], the change of the residual stream by each layer (IMPORTANCE_COSINE): layers are
                    also left out together, the smallest change first; NULL: they are not */
    int64_t n_row;   /* number of tokens of each prompt, from the first; 0: QUALITY_ROWS */
    int64_t n_score; /* number of the last of these, whose logits are compared; 0: QUALITY_SCORED */
} quality_options;
enum { QUALITY_ROWS = 24, QUALITY_SCORED = 8 };

/* Opens the model with as many resident pages as fit. It also charges the residual stream before every block,
 * the logits of the compared tokens, the statistics of channels, and the largest block in its largest format.
 * *channels (cleared by the caller, also after an error): the imatrix for formats that use one (u4g64w). */
nib_status measure_quality(const char *name, const nib_engine_options *options, const calibration *c,
                           const quality_options *q, quality *out, model_imatrix *channels, nib_error *err);

/* The loss of each format of keys and values by layer, as measure_quality charges memory. The prompts are
 * joined to texts of 512 tokens, so that rows read codes. kv_loss_clear(out), also after an error. */
nib_status measure_kv_loss(const char *name, const nib_engine_options *options, const calibration *c,
                           kv_loss *out, nib_error *err);

/* The default formats of quality_options, from more bits to fewer. */
extern const char *const measure_formats[];
extern const int measure_n_format;

#endif
