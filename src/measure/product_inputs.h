/* product_inputs.h - one pass over the calibration prompts for code that reads the inputs of products. The
 * model is streamed, so about one layer of it is in memory; all prompts go through a block together. */
#ifndef NIB_MEASURE_PRODUCT_INPUTS_H
#define NIB_MEASURE_PRODUCT_INPUTS_H

#include "engine/engine.h"
#include "measure/calibrate.h"
#include "profile/channel_stats.h"

typedef struct product_watch {
    /* Before the pass; what it charges to e's ledger stays within `bytes`. NULL: nothing to do. */
    nib_status (*begin)(void *user, const engine_parts *e, nib_error *err);
    /* All rows went through a block; the next one has not begun. NULL: nothing to do. */
    nib_status (*after)(void *user, int block, nib_error *err);
    void (*end)(void *user); /* after the pass, while e is open, also when it failed; NULL: nothing to do */
    const probe *probe;      /* what sees the pass */
    uint64_t (*bytes)(void *user, const engine_parts *e); /* to be kept free; NULL: none */
    const char *what;                                     /* for progress */
    void *user;
} product_watch;

enum { PRODUCTS_SCORED = 8 }; /* last tokens of a prompt that go through the output head */

/* Opens the model, computes the pass in 16-bit activations, and closes it. */
nib_status measure_product_inputs(const char *name, const nib_engine_options *options, const calibration *c,
                                  const product_watch *w, nib_error *err);

/* The mean square of every channel that a product reads (profile/channel_stats.h). The caller clears *out,
 * also after an error. */
nib_status measure_channels(const char *name, const nib_engine_options *options, const calibration *c,
                            channel_stats *out, nib_error *err);

#endif
