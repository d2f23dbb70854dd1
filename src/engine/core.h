/* core.h - the inputs of sizes, plans and predictions: a model and its layout, requested and resolved
 * options, and the ledger. An engine (state.h) is a core with weights and a back end. `nibble plan`, and the
 * search for the smallest cap of a refused engine, use a core that has read headers only (headers.h).
 *
 * The files of engine/ call each other downwards only:
 *     open        the life of an engine: everything below in turn, then weights and back end
 *     suggest_cap the smallest cap that works  plan      nib_plan
 *     headers     a core from headers alone    predict   predictions for an open engine
 *     resolve     sizes, a plan, formats: all that is decided before weights are read
 *     apply_plan  a plan's blocks              planning/  the question that a plan answers
 *     idle        where residuals are kept     sizes, head, sessions   defaults of unset options
 *     kv_auto     formats of keys and values by measured loss
 *     weights, residual/, kernels, placement, prefix, info                    weights and back end
 *     rates                   of the machine
 *     packed_folder, imatrix, learn            files beside the model
 *     core, settings, text, alloc_limit, parts */
#ifndef NIB_ENGINE_CORE_H
#define NIB_ENGINE_CORE_H

#include "engine/parts.h"
#include "engine/settings.h"
#include "engine/text.h"
#include "profile/imatrix.h"
#include "profile/popularity.h"

/* What was counted of the experts' popularity (popular.h): read when it is first asked for. */
typedef struct core_popularity {
    bool known;
    popularity of; /* zeroed: nothing was counted */
} core_popularity;

typedef struct engine_core {
    nib_engine_options requested; /* the caller's, or the defaults; never written to */
    settings resolved;            /* the options that apply (settings.h) */
    logger log;
    canceller cancel;
    memory_places places;
    ledger *ledger;
    char *path;
    container *container; /* owned by the model; with vocab_only by the core */
    model *m;             /* NULL with vocab_only */
    layout *layout;       /* the model's under the plan; final once weights are read; NULL with vocab_only */
    model_imatrix channels;   /* for weights whose formats use an imatrix (u4g64w) */
    core_popularity *popular; /* NULL with vocab_only */
    engine_text text;
    const backend_kind *kind;   /* the chosen kind of back end */
    bool kind_is_auto;          /* nobody named it: a model that it cannot compute is left to the processor */
    int stage_first, stage_end; /* engine_internal's */
    model_share share;          /* engine_internal's */
    rank_sums *sums;            /* engine_internal's */
    device *disk;               /* of keys and values (kv_formats.on_disk); NULL: none are there */
    pool *threads;
    const residual_use *residuals; /* NULL: none */
    bool has_sketch;               /* the output head's sketch exists and is charged */
    bool cap_is_named;             /* the error message already names the smallest cap on RAM that works */
} engine_core;

/* options NULL: the defaults. The caller calls core_close in any case. */
void core_init(engine_core *e, const nib_engine_options *options);
void core_close(engine_core *e);

/* Resolves the settings, the kind of back end, and the model's path. */
nib_status core_begin(engine_core *e, const char *name, const engine_internal *internal, nib_error *err);
/* Prefixes an error of a plan with the name of its file. */
nib_status core_blame_plan(const nib_engine_options *requested, nib_status status, nib_error *err);

/* Opens the container and, unless vocab_only, the model; their memory is charged. vocabulary: receives the
 * vocabulary's elements instead of the container; NULL: the vocabulary is read. */
nib_status core_open_files(engine_core *e, const container_visitor *vocabulary, nib_error *err);
/* Starts the threads, and makes the layout with the file's own formats. */
nib_status core_open_layout(engine_core *e, nib_error *err);
/* Replaces the core's layout: the new one is charged, and the old one is freed. If it does not fit, the new
 * one is freed. Before weights are read. */
nib_status core_set_layout(engine_core *e, layout *to, nib_error *err);

/* The place of the back end's memory. */
int core_place(const engine_core *e);
/* The setup of the back end, for n_thread threads. It has the core's thread pool if that has as many. */
backend_setup core_backend_setup(const engine_core *e, int n_thread);
/* The engine's parts without `step`. */
engine_parts core_parts(const engine_core *e);
/* The caller's cap that leaves the engine `ram` bytes, as errors name it. */
uint64_t core_cap_of(const engine_core *e, uint64_t ram);

#endif
