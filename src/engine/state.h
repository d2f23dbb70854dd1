/* state.h - an open engine. Only open.c, which opens and closes it, and engine.c, which answers queries,
 * include this. */
#ifndef NIB_ENGINE_STATE_H
#define NIB_ENGINE_STATE_H

#include "engine/core.h"
#include "engine/device.h"
#include "engine/learn.h"
#include "engine/placement.h"
#include "engine/residual/residual.h"
#include "grammar/grammar.h"

struct nib_engine {
    engine_core core;
    pager *pager;     /* pager, back end and stepper: NULL or unused with vocab_only */
    backend *backend; /* of core.kind */
    engine_device device;
    stepper step;
    uint64_t sketch_read; /* bytes of the files that were read for the output head's sketch */
    char *kernels;        /* path of the kernel map; NULL: none, the rule decides */
    /* KV pools, one for each format of all layers in use, and the last one for the engine's own formats by
     * layer; under the stepper's lock */
    kv_pool *kv[TYPE_COUNT + 1];
    nib_model_info info;
    grammar_store *grammars;     /* NULL: with vocab_only */
    engine_residuals *residuals; /* NULL: none */
    placement placement;
    learning learned;
    engine_pipeline pipeline; /* of the first rank; zeroed: none */
};

#endif
