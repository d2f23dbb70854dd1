/* product_inputs.h - a pass over the calibration prompts for code that observes the inputs of products. The
 * model is streamed, so about one layer of it is in memory; all prompts go through a block together. */
#ifndef NIB_MEASURE_PRODUCT_INPUTS_H
#define NIB_MEASURE_PRODUCT_INPUTS_H

#include "engine/engine.h"
#include "measure/calibrate.h"
#include "profile/imatrix.h"

typedef struct product_watch {
    /* Called before the pass. May charge up to `bytes` to e's ledger. NULL: nothing to do. */
    nib_status (*begin)(void *user, const engine_parts *e, nib_error *err);
    /* Called when all rows have passed a block, before the next one begins. NULL: nothing to do. */
    nib_status (*after)(void *user, int block, nib_error *err);
    void (*end)(
        void *user);    /* called after the pass, also after an error, while e is open; NULL: nothing to do */
    const probe *probe; /* the probe of the pass */
    uint64_t (*bytes)(void *user, const engine_parts *e); /* RAM to be left free; NULL: none */
    const char *what;                                     /* name of the activity, for progress */
    void *user;
} product_watch;

enum { PRODUCTS_SCORED = 8 }; /* last tokens of a prompt that go through the output head */

/* Opens the model, computes the pass in 16-bit activations, and closes it. */
nib_status measure_product_inputs(const char *name, const nib_engine_options *options, const calibration *c,
                                  const product_watch *w, nib_error *err);

/* Measures the mean square of every input channel of the products (profile/imatrix.h). The caller
 * clears *out, also after an error. */
nib_status measure_channels(const char *name, const nib_engine_options *options, const calibration *c,
                            model_imatrix *out, nib_error *err);

#endif
