/* core.c - see core.h. */
#include "engine/core.h"

#include "base/mem.h"
#include "base/num.h"
#include "grammar/grammar.h"
#include "engine/alloc_limit.h"
#include "hub/find.h"
#include "memory/device.h"
#include "model/stage.h"

#include <string.h>

void core_init(engine_core *e, const nib_engine_options *options) {
    memset(e, 0, sizeof *e);
    nib_engine_options_init(&e->requested);
    if (options)
        e->requested = *options;
    e->log = (logger){e->requested.log, e->requested.user, e->requested.log_details};
    e->cancel = (canceller){e->requested.cancel, e->requested.user};
}

void core_close(engine_core *e) {
    settings_clear(&e->resolved);
    pool_close(e->threads);
    tokenizer_close(e->text.tokenizer);
    layout_free(e->layout);
    if (e->m)
        model_close(e->m);
    else
        container_close(e->container);
    imatrix_clear(&e->channels);
    if (e->popular)
        popularity_clear(&e->popular->of);
    mem_free(e->popular);
    device_close(e->disk);
    ledger_close(e->ledger);
    mem_free(e->path);
}

/* ---- back end and settings ---- */

/* Prefixes an error of a plan with its file's name. */
nib_status core_blame_plan(const nib_engine_options *o, nib_status status, nib_error *err) {
    if (status == NIB_OK || !o || !o->plan_name || status == NIB_E_NOMEM || status == NIB_E_NOFIT)
        return status;
    return nib_fail_prefix(err, status, o->plan_name);
}

/* Finds the back end. "auto": the GPU's if there is one. Without a request: the plan's. */
static nib_status find_backend(engine_core *e, const plan *p, nib_error *err) {
    device *gpu = NULL;
    nib_error why;
    const char *name = e->requested.backend;
    if (!name && p && plan_is_of_gpu(p)) {
        e->kind = backend_of_tier(NIB_TIER_VRAM);
        return NIB_OK;
    }
    if (!name || strcmp(name, "auto") != 0)
        return backend_find(name, &e->kind, err);
    if (device_open(&e->places, PLACE_GPU, &gpu, &why) != NIB_OK)
        log_line(&e->log, "using --backend cpu: %s", why.message);
    e->kind = backend_of_tier(gpu ? NIB_TIER_VRAM : NIB_TIER_RAM);
    e->kind_is_auto = true;
    device_close(gpu);
    return NIB_OK;
}

/* Logs a VRAM cap that has no effect. */
static void look_at_vram(const engine_core *e) {
    if (e->resolved.cap[NIB_TIER_VRAM] != NIB_AUTO && e->kind->tier != NIB_TIER_VRAM)
        log_line(&e->log, "--vram has no effect without --backend cuda");
}

nib_status core_begin(engine_core *e, const char *name, const engine_internal *internal, nib_error *err) {
    const plan *p = internal->plan;
    NIB_TRY(settings_make(&e->resolved, &e->requested, err));
    e->stage_first = internal->stage_first;
    e->stage_end = internal->stage_end;
    e->share = internal->share;
    e->sums = internal->sums;
    if (p)
        NIB_TRY(core_blame_plan(&e->requested,
                                settings_take_plan(&e->resolved, p, &e->requested, &e->log, err), err));
    e->places = places_of(e->resolved.cap);
    e->places.of[PLACE_GPU].index = internal->gpu;
    NIB_TRY(find_backend(e, p, err));
    if (internal->kv_layers)
        e->resolved.kv_layers = internal->kv_layers;
    if (e->resolved.n_thread == 0)
        e->resolved.n_thread = thread_physical_cores();
    return model_find(name, &e->path, err);
}

/* ---- files ---- */

/* Refuses a model with ops that the back end lacks, or leaves it to the processor. */
static nib_status check_ops(engine_core *e, nib_error *err) {
    nib_error why;
    if (!e->kind->check_ops || e->kind->check_ops(e->m, &why) == NIB_OK)
        return NIB_OK;
    if (!e->kind_is_auto)
        return nib_fail(err, why.status, "%s", why.message);
    log_line(&e->log, "using --backend cpu: %s", why.message);
    return backend_find(NULL, &e->kind, err);
}

static nib_status open_model(engine_core *e, const container_visitor *vocabulary, nib_error *err) {
    if (e->requested.vocab_only)
        return container_open_headers(e->path, &e->log, vocabulary, &e->container, err);
    if (e->requested.ahead)
        NIB_TRY(model_open_ahead(e->path, &e->log, vocabulary, e->kind->no_integer_zeros, &e->m, err));
    else
        NIB_TRY(
            model_open_share(e->path, &e->log, vocabulary, e->kind->no_integer_zeros, e->share, &e->m, err));
    e->container = model_files(e->m);
    model_set_stage(e->m, e->stage_first, e->stage_end);
    return check_ops(e, err);
}

nib_status core_open_files(engine_core *e, const container_visitor *vocabulary, nib_error *err) {
    NIB_TRY(open_model(e, vocabulary, err));
    e->text.from = e->container;
    const uint64_t bytes = e->m ? model_heap_bytes(e->m) : container_heap_bytes(e->container);
    return ledger_charge(e->ledger, PLACE_RAM, NIB_OWNER_TABLES, bytes, err);
}

/* ---- the layout ---- */

nib_status core_set_layout(engine_core *e, layout *to, nib_error *err) {
    const uint64_t bytes = layout_heap_bytes(to), before = e->layout ? layout_heap_bytes(e->layout) : 0;
    if (bytes > before) {
        const nib_status status = ledger_charge(e->ledger, PLACE_RAM, NIB_OWNER_TABLES, bytes - before, err);
        if (status != NIB_OK) {
            layout_free(to);
            return status;
        }
    } else
        ledger_release(e->ledger, PLACE_RAM, NIB_OWNER_TABLES, before - bytes);
    layout_free(e->layout);
    e->layout = to;
    return NIB_OK;
}

nib_status core_open_layout(engine_core *e, nib_error *err) {
    layout *plain;
    mem_bound b;
    look_at_vram(e);
    e->popular = mem_calloc(1, sizeof *e->popular);
    if (!e->popular)
        return nib_fail_nomem(err, sizeof *e->popular, "the popularity of experts");
    engine_alloc_limit_set(e->ledger, &b);
    const nib_status status = layout_make(e->m, &(layout_choice){0}, &plain, err);
    NIB_TRY(engine_alloc_limit_end(e->ledger, &b, "the lists of weights and pages", status, err));
    NIB_TRY(core_set_layout(e, plain, err));
    return pool_open(e->resolved.n_thread, &e->threads, err);
}

int core_place(const engine_core *e) {
    return place_of_kind[e->kind->tier];
}

backend_setup core_backend_setup(const engine_core *e, int n_thread) {
    backend_setup s = {.layout = e->layout,
                       .n_thread = n_thread,
                       .threads = e->threads && pool_size(e->threads) == n_thread ? e->threads : NULL,
                       .ledger = e->ledger,
                       .places = &e->places,
                       .place = core_place(e),
                       .log = &e->log,
                       .act_bits = e->resolved.act_bits,
                       .a16 = e->resolved.activation == 16,
                       .fuse = !e->requested.no_fuse,
                       .sparse_v = e->requested.sparse_v,
                       .sparse_v_raw = e->requested.sparse_v_raw,
                       .max_layers = e->requested.gpu_layers,
                       .n_cpu_experts = e->requested.cpu_experts,
                       .n_attended = e->resolved.n_attended,
                       .sliced = e->requested.bf16_tiles,
                       .whole_head = e->requested.shortlist == NIB_SHORTLIST_OFF,
                       .sketch = e->requested.shortlist == NIB_SHORTLIST_ON,
                       .n_best = e->requested.n_best,
                       .kv = e->resolved.formats,
                       .disk = e->disk,
                       .k_chunk = e->resolved.k_chunk,
                       .n_sequence = e->resolved.n_sequence,
                       .n_ctx = e->resolved.n_ctx,
                       .residuals = e->residuals,
                       .sums = e->sums};
    for (int b = 0; e->resolved.act_bits && b < model_n_block(e->m); b++)
        s.a16 = s.a16 || e->resolved.act_bits[b] == 16;
    return s;
}

engine_parts core_parts(const engine_core *e) {
    return (engine_parts){.m = e->m,
                          .layout = e->layout,
                          .ledger = e->ledger,
                          .threads = e->threads,
                          .kv = e->resolved.formats,
                          .n_ctx = e->resolved.n_ctx,
                          .progress = e->requested.progress,
                          .user = e->requested.user};
}

/* The memory of grammars grows with the cap, much slower than it. */
uint64_t core_cap_of(const engine_core *e, uint64_t ram) {
    if (e->requested.grammar && e->m) {
        const int64_t n_vocab = model_hparams(e->m)->n_vocab;
        const uint64_t rest = ram - NUM_MIN(ram, grammar_bytes(e->resolved.cap[NIB_TIER_RAM], n_vocab));
        uint64_t cap;
        do {
            cap = ram;
            ram = NUM_MAX(cap, rest + grammar_bytes(cap, n_vocab));
        } while (ram > cap);
    }
    return e->requested.cap_of ? e->requested.cap_of(e->requested.user, ram) : ram;
}
