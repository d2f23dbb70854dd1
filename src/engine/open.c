/* open.c - the life of an engine: opening under a budget (all memory is computed and charged before it is
 * allocated), and closing. */
#include "base/mem.h"
#include "base/num.h"
#include "engine/alloc_limit.h"
#include "engine/engine.h"
#include "engine/head.h"
#include "engine/idle.h"
#include "engine/info.h"
#include "engine/kernels.h"
#include "engine/packed_folder.h"
#include "engine/popular.h"
#include "engine/predict.h"
#include "engine/suggest_cap.h"
#include "engine/sessions.h"
#include "engine/resolve.h"
#include "engine/sizes.h"
#include "engine/state.h"
#include "engine/weights.h"
#include "exec/shortlist.h"
#include "memory/device_disk.h"

#include <stdio.h>
#include <string.h>

/* Makes the sketch. Making it leaves garbage on the heap. If the weights then no longer fit beside it, it is
 * dropped, unless it was requested. */
static nib_status open_shortlist(nib_engine *e, const engine_internal *internal, uint64_t session,
                                 nib_error *err) {
    char best[32] = "";
    uint64_t bytes;
    int bits;
    if (!e->core.resolved.n_best)
        return NIB_OK;
    shortlist_of(e->core.layout, e->core.resolved.n_best, &bytes, &bits);
    NIB_TRY(e->core.kind->shortlist_open(e->backend, e->core.resolved.n_best, &e->core.cancel,
                                         &e->sketch_read, err));
    e->core.has_sketch = true;
    ledger_measure_runtime(e->core.ledger, true);
    if (!internal->plan && e->core.requested.shortlist == NIB_SHORTLIST_AUTO &&
        !head_fits(&e->core, session)) {
        layout *whole;
        NIB_TRY(layout_with_shortlist(e->core.layout, false, &whole, err));
        e->core.kind->shortlist_close(e->backend, whole);
        e->core.has_sketch = false;
        e->core.resolved.n_best = 0;
        return core_set_layout(&e->core, whole, err);
    }
    if (e->core.resolved.n_best > 1)
        snprintf(best, sizeof best, "%ld ", (long)e->core.resolved.n_best);
    log_detail(&e->core.log,
               "the output head is computed only for tokens that can be the %slikeliest token%s, by a sketch "
               "of %d bits: the answers are the same",
               best, e->core.resolved.n_best > 1 ? "s" : "", bits);
    return NIB_OK;
}

/* Reserves the back end's memory. *later: bytes that sessions of `session` bytes take of each place. A device
 * has their keys and values, except for layers that the host computes; tokens and logits are in RAM. */
static nib_status reserve_rows(nib_engine *e, const engine_internal *internal, uint64_t session,
                               backend_rows *rows, uint64_t later[PLACES], nib_error *err) {
    const engine_core *core = &e->core;
    const bool apart = core->kind->tier != NIB_TIER_RAM && !internal->keep_free;
    rows->n_kept = session;
    if (apart)
        NIB_TRY(sessions_cache_bytes(core, core->resolved.formats, core->resolved.n_ctx, &rows->n_kept, err));
    NIB_TRY(engine_device_decide(core, e->backend, rows, &e->device, err));
    NIB_TRY(core->kind->reserve(e->backend, rows, err));
    NIB_TRY(engine_device_take(core, e->backend, &e->device, err));
    memset(later, 0, PLACES * sizeof *later);
    later[PLACE_RAM] = session - rows->n_kept;
    for (int i = 0; i < PLACES; i++)
        later[i] += e->backend->split ? e->backend->kept[i] : i == core_place(core) ? rows->n_kept : 0;
    uint64_t on_disk = 0;
    if (core->disk)
        NIB_TRY(sessions_on_disk(core, core->resolved.formats, core->resolved.n_ctx, &on_disk, err));
    later[PLACE_DISK] += on_disk;
    return NIB_OK;
}

/* Logs that a requested shortlist is not used. */
static void say_if_whole(const nib_engine *e) {
    const homes_split *split = e->backend->split;
    if (e->core.requested.shortlist == NIB_SHORTLIST_ON && e->core.requested.n_best &&
        !e->core.resolved.n_best && !(split && split->has_sketch))
        log_line(&e->core.log,
                 "the output head is computed as a whole: --shortlist was requested, but does not help with "
                 "this head, these activations or this sampling");
}

/* [all pages]: those that a device keeps, so that RAM need not hold them; NULL: none. */
static const bool *copied_by(const backend *by) {
    return by->store ? device_store_copied(by->store) : NULL;
}

/* The pager of another engine that has weights of this model in host memory; NULL: none. */
static const pager *lender_of(const engine_core *e) {
    const nib_engine *from = e->requested.lender;
    const bool host = from && !e->kind->memory && !from->core.kind->memory;
    return host && !strcmp(e->path, from->core.path) ? from->pager : NULL;
}

static nib_status open_weights(nib_engine *e, const engine_internal *internal, nib_error *err) {
    uint64_t session, later[PLACES];
    backend_rows rows = {.n_head = 0};
    if (internal->keep_free) {
        const engine_parts parts = core_parts(&e->core);
        NIB_TRY(internal->keep_free(&parts, internal->user, &session, err));
    } else
        NIB_TRY(sessions_bytes(&e->core, e->core.resolved.formats, e->core.resolved.n_ctx, &session, err));
    ledger_measure_runtime(e->core.ledger, true);
    NIB_TRY(open_shortlist(e, internal, session, err));
    sizes_rows(&e->core, session, &rows.n_pass, &rows.n_cell);
    if (internal->n_row) {
        rows.n_pass = internal->n_row;
        rows.n_cell = NUM_MIN(internal->n_row, (int64_t)ENGINE_CELL_ROWS);
    }
    rows.n_head = sizes_logits_rows(&e->core);
    NIB_TRY(reserve_rows(e, internal, session, &rows, later, err));
    say_if_whole(e);
    NIB_TRY(placement_open(&e->placement, e->core.layout, e->core.ledger, err));
    NIB_TRY(engine_open_weights(&e->core, later[PLACE_RAM], copied_by(e->backend), lender_of(&e->core),
                                &e->pager, err));
    popular_forget(&e->core);
    placement_fill(&e->placement, e->core.layout, e->pager, e->backend->store,
                   e->core.has_sketch ? e->core.resolved.n_best : 0,
                   e->backend->split && e->backend->split->has_sketch);
    ledger_measure_runtime(e->core.ledger, false);
    for (int i = 0; i < PLACES; i++)
        ledger_plan(e->core.ledger, i, ledger_promised(e->core.ledger, i) + later[i]);
    e->step.m = e->core.m;
    e->step.backend = e->backend;
    e->step.pager = e->pager;
    return NIB_OK;
}

/* Opens the disk for keys and values. */
static nib_status open_disk(engine_core *e, nib_error *err) {
    char *folder = engine_disk_folder(e, "kv");
    const nib_status status =
        folder ? device_disk_open(folder, &e->disk, err) : nib_fail_nomem(err, 0, "a path");
    mem_free(folder);
    return status;
}

/* Makes all decisions before weights are read, and opens the back end. */
static nib_status resolve_all(nib_engine *e, const engine_internal *internal, nib_error *err) {
    mem_bound b;
    ledger_measure_runtime(
        e->core.ledger, true); /* measured after headers and tokenizer, which have left garbage on the heap */
    engine_alloc_limit_set(e->core.ledger, &b);
    nib_status status = resolve(&e->core, internal, err);
    if (status == NIB_OK)
        status = residuals_check(&e->core, err);
    if (status == NIB_OK && e->core.resolved.formats.on_disk)
        status = open_disk(&e->core, err);
    if (status == NIB_OK)
        status = engine_open_backend(&e->core, &e->backend, &e->kernels, err);
    return engine_alloc_limit_end(e->core.ledger, &b, "a plan and the kernels' map", status, err);
}

static nib_status open_files(engine_core *e, nib_error *err) {
    mem_bound b;
    engine_alloc_limit_set(e->ledger, &b);
    const nib_status status = core_open_files(e, NULL, err);
    return engine_alloc_limit_end(e->ledger, &b, "headers and vocabulary", status, err);
}

/* Whether the tokenizer can be built while the weights are read: it is not needed before, and without a cap
 * both may be in memory at the same time. */
static bool may_wait(const engine_core *e, const engine_internal *internal) {
    return e->m && e->resolved.cap[NIB_TIER_RAM] == NIB_AUTO && !e->requested.planning && !internal->plan &&
           !internal->keep_free;
}

static nib_status open_all(nib_engine *e, const char *name, const engine_internal *internal, nib_error *err) {
    engine_core *core = &e->core;
    NIB_TRY(core_begin(core, name, internal, err));
    NIB_TRY(ledger_open(core->places, &core->ledger, err));
    NIB_TRY(open_files(core, err));
    if (!may_wait(core, internal))
        NIB_TRY(text_open(&core->text, core->ledger, &core->log, err));
    if (core->m) {
        NIB_TRY(core_open_layout(core, err));
        NIB_TRY(idle_residuals(core, internal->plan != NULL, NULL, err));
        if (residuals_requested(core))
            NIB_TRY(residuals_open(core, &e->residuals, err));
        NIB_TRY(resolve_all(e, internal, err));
        NIB_TRY(open_weights(e, internal, err));
    }
    engine_fill_info(core, &e->info);
    ledger_measure_runtime(core->ledger, false);
    return cancel_check(&core->cancel, err);
}

static nib_status open_grammars(nib_engine *e, nib_error *err) {
    const engine_core *core = &e->core;
    if (!core->m)
        return NIB_OK;
    e->grammars = mem_calloc(1, sizeof *e->grammars);
    if (!e->grammars)
        return nib_fail_nomem(err, sizeof *e->grammars, "an engine");
    grammar_store_open(e->grammars, core->ledger, core->text.tokenizer, model_hparams(core->m)->n_vocab);
    return NIB_OK;
}

nib_status engine_open(const char *name, const nib_engine_options *options, const engine_internal *internal,
                       nib_engine **out, nib_error *err) {
    static const engine_internal nothing = {0};
    const uint64_t start = ledger_process_usage().now;
    nib_engine *e = mem_calloc(1, sizeof *e);
    internal = internal ? internal : &nothing;
    if (!e)
        return nib_fail_nomem(err, sizeof *e, "the engine");
    core_init(&e->core, options);
    e->step.cancel = e->core.cancel;
    pthread_mutex_init(&e->step.lock, NULL);
    nib_status status = open_all(e, name, internal, err);
    if (status == NIB_OK)
        status = open_grammars(e, err);
    if (status == NIB_OK) {
        *out = e;
        return NIB_OK;
    }
    const bool is_named = e->core.cap_is_named;
    nib_engine_close(e);
    return status == NIB_E_NOFIT && !is_named ? engine_suggest_cap(name, options, internal, start, err)
                                              : status;
}

nib_status engine_open_planned(const char *name, const nib_engine_options *options,
                               const engine_internal *internal, nib_engine **out, nib_error *err) {
    engine_internal with = internal ? *internal : (engine_internal){0};
    plan p = {0};
    if (!options || !options->plan)
        return engine_open(name, options, &with, out, err);
    nib_status status = plan_parse(options->plan, strlen(options->plan), &p, err);
    NIB_TRY(core_blame_plan(options, status, err));
    with.plan = &p;
    status = engine_open(name, options, &with, out, err);
    plan_clear(&p);
    return status;
}

/* Stores the time of generation beside its prediction, for later predictions. */
static void keep_what_it_took(const nib_engine *e) {
    learned_run run;
    nib_error err;
    int64_t n_position;
    if (!e->pager || e->residuals || e->core.requested.sparse_v > 0 || e->core.disk || e->core.stage_end ||
        !learn_positions(&e->learned, &e->core, &n_position))
        return;
    if (predict_run(&e->core, e->pager, e->backend, n_position, &run, &err) == NIB_OK)
        learn_keep(&e->learned, &e->core, &run);
    else
        log_line(&e->core.log, "the times of this run were not stored: %s", err.message);
}

void nib_engine_close(nib_engine *e) {
    if (!e)
        return;
    keep_what_it_took(e);
    for (size_t i = 0; i < NUM_COUNT(e->kv); i++)
        kv_pool_close(e->kv[i]);
    if (e->backend) {
        e->backend->store = NULL;
        engine_device_close(&e->device); /* first, because it may still copy weights */
        e->backend->kind->close(e->backend);
    }
    popular_keep(&e->core, e->pager);
    pager_close(e->pager);
    residuals_close(e->residuals);
    if (e->grammars)
        grammar_store_close(e->grammars);
    mem_free(e->grammars);
    mem_free(e->kernels);
    placement_close(&e->placement);
    if (e->pipeline.close)
        e->pipeline.close(e->pipeline.user);
    step_clear(&e->step);
    core_close(&e->core);
    pthread_mutex_destroy(&e->step.lock);
    mem_free(e);
}
