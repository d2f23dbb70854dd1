/* engine.c - queries about an open engine: its parts for the modules above, and nib.h's functions. */
#include "engine/engine.h"

#include "base/num.h"
#include "engine/predict.h"
#include "engine/prefix.h"
#include "engine/sessions.h"
#include "engine/state.h"
#include "memory/device_disk.h"
#include "plan/plan_values.h"
#include "state/kv_calls.h"

#include "nib_tools.h"

#include <stdio.h>

nib_status nib_backend_check(const char *name, nib_error *err) {
    const backend_kind *kind;
    return backend_find(name, &kind, err);
}

/* ---- parts ---- */

void engine_join(nib_engine *e, const engine_pipeline *with, int64_t n_pass, int64_t max_generated) {
    backend_rows *rows = &e->backend->rows;
    e->pipeline = *with;
    e->step.links = with->links;
    rows->n_pass = NUM_MIN(rows->n_pass, n_pass);
    e->backend->max_generated = max_generated;
}

bool engine_is_joined(const nib_engine *e) {
    return e->pipeline.links != NULL;
}

bool engine_has_weights(const nib_engine *e) {
    return e->core.m != NULL;
}

nib_status engine_check_answers(const nib_engine *e, nib_error *err) {
    if (!engine_has_weights(e))
        return nib_fail(err, NIB_E_USAGE, "the engine was opened for its vocabulary only: it has no weights");
    if (model_is_ahead(e->core.m))
        return nib_fail(err, NIB_E_USAGE,
                        "expected a model, found its head that predicts later tokens: it proposes tokens for "
                        "a session or a batch of its model");
    return NIB_OK;
}

engine_parts engine_parts_of(nib_engine *e) {
    engine_parts parts = core_parts(&e->core);
    parts.step = &e->step;
    /* the weights may be in memory after all */
    parts.n_draft =
        e->core.requested.n_draft > 0 || pager_streams(e->step.pager) ? e->core.resolved.n_draft : 0;
    return parts;
}

const char *engine_path(const nib_engine *e) {
    return e->core.path;
}

const container *engine_container(const nib_engine *e) {
    return e->core.container;
}

const tokenizer *engine_tokenizer(const nib_engine *e) {
    return e->core.text.tokenizer;
}

/* ---- sequences ---- */

bool engine_kv_formats(const nib_engine *e, int kv, kv_formats *out) {
    type_id type;
    if (!settings_kv_type(kv, &type))
        return false;
    *out = kv_formats_like(e->core.resolved.formats, type);
    return true;
}

uint64_t engine_session_tables(const nib_engine *e, int64_t n_ctx) {
    return sessions_tables(&e->core, n_ctx);
}

nib_status engine_check_positions(const nib_engine *e, kv_formats kv, int64_t n_ctx, nib_error *err) {
    return sessions_check_positions(&e->core, kv, n_ctx, err);
}

nib_status engine_name_sessions(const nib_engine *e, nib_status status, nib_error *err) {
    char prefix[128];
    const int n = e->core.resolved.n_session;
    if (status != NIB_E_NOFIT || e->core.resolved.cap[NIB_TIER_RAM] == NIB_AUTO)
        return status;
    snprintf(prefix, sizeof prefix, "the engine was opened for %d session%s of %lld positions (n_session)", n,
             n == 1 ? "" : "s", (long long)e->core.resolved.n_ctx);
    return nib_fail_prefix(err, status, prefix);
}

void engine_log(const nib_engine *e, const char *text) {
    log_line(&e->core.log, "%s", text);
}

/* Whether sequences may share pages: the rotary frequencies must not depend on the sequence's length. */
static bool can_share(const model *m) {
    for (int i = 0; i < model_n_rope(m); i++)
        if (model_rope_varies(m, i))
            return false;
    return true;
}

/* Opens the pool of some formats at its first use. */
static nib_status open_pool(const nib_engine *e, kv_formats kv, kv_pool **out, nib_error *err) {
    const backend *by = e->backend;
    kv_pool *made;
    NIB_TRY(kv_pool_open(e->core.layout, kv, false, can_share(e->core.m), by->device, e->core.ledger, &made,
                         err));
    nib_status status = by->homes ? kv_pool_split(made, e->core.layout, by->host, by->homes, err) : NIB_OK;
    if (kv.on_disk)
        kv_pool_use_disk(made, e->core.disk);
    if (status == NIB_OK && e->pipeline.calls)
        status = kv_log_watch(e->pipeline.calls, made, err);
    if (status == NIB_OK)
        *out = made;
    else
        kv_pool_close(made);
    return status;
}

static nib_status get_pool(nib_engine *e, kv_formats kv, kv_pool **out, nib_error *err) {
    NIB_TRY(sessions_check_formats(&e->core, kv, err));
    nib_status status = NIB_OK;
    kv_pool **at = &e->kv[kv.layers ? TYPE_COUNT : kv.type];
    pthread_mutex_lock(&e->step.lock);
    if (!*at)
        status = open_pool(e, kv, at, err);
    *out = *at;
    pthread_mutex_unlock(&e->step.lock);
    return status;
}

nib_status engine_sequence_memory(nib_engine *e, kv_formats kv, sequence_memory *out, nib_error *err) {
    *out =
        (sequence_memory){.layout = e->core.layout, .device = e->backend->device, .ledger = e->core.ledger};
    return get_pool(e, kv, &out->pages, err);
}

/* Pages in RAM through which files are read and written: at least those of two sequences. */
static nib_status keep_for_disk(kv_pool *pages, int64_t n_ctx, nib_error *err) {
    enum { N_SEQUENCE = 2, MIN_PAGES = 32 };
    kv_amount none;
    const int64_t n = NUM_MAX(num_div_up(n_ctx, KV_BLOCK) * N_SEQUENCE, MIN_PAGES);
    return kv_pool_keep(pages, (uint64_t)n * kv_pool_page_bytes(pages), &none, err);
}

static nib_status settle(void *engine, kv_pool *pages, nib_error *err) {
    nib_engine *e = engine;
    return step_settle(&e->step, pages, err);
}

nib_status engine_open_prefixes(nib_engine *e, kv_formats kv, const char *folder, uint64_t max, int64_t n_ctx,
                                kv_disk **out, nib_error *err) {
    kv_disk_options o = {
        .folder = folder, .max = max, .n_ctx = n_ctx, .settle = settle, .user = e, .log = e->core.log};
    kv_pool *pages;
    *out = NULL;
    if (engine_is_joined(e)) {
        log_line(&e->core.log, "no prefix cache on disk: several devices have none");
        return NIB_OK;
    }
    if (!can_share(e->core.m) || model_state_bytes(e->core.m) > 0) {
        log_line(&e->core.log,
                 "no prefix cache on disk: this model's keys depend on the sequence length, or it has "
                 "recurrent layers, whose state pages do not have");
        return NIB_OK;
    }
    if (kv.on_disk) {
        log_line(&e->core.log, "no prefix cache on disk: running sequences have their keys and values there");
        return NIB_OK;
    }
    NIB_TRY(get_pool(e, kv, &pages, err));
    if (!kv_pool_host_reads(pages))
        NIB_TRY(keep_for_disk(pages, n_ctx, err));
    NIB_TRY(prefix_key(&e->core, e->kernels, e->backend->homes, kv, o.key, err));
    return kv_disk_open(&o, pages, e->core.ledger, out, err);
}

generation_setup engine_generation_setup(const nib_engine *e) {
    return (generation_setup){.ledger = e->core.ledger,
                              .tokenizer = e->core.text.tokenizer,
                              .grammars = e->grammars,
                              .n_vocab = model_hparams(e->core.m)->n_vocab,
                              .n_best = e->core.resolved.n_best};
}

void engine_generation_begin(nib_engine *e) {
    if (atomic_fetch_add(&e->learned.n_running, 1) > 0)
        atomic_store(&e->learned.mixed, true);
}

void engine_generation_end(nib_engine *e) {
    atomic_fetch_sub(&e->learned.n_running, 1);
}

void engine_generation_took(nib_engine *e, int64_t n_position, const nib_result *r) {
    learn_add(&e->learned, &e->core, n_position, r);
}

/* ---- nib.h and nib_tools.h ---- */

nib_status nib_engine_kv(const nib_engine *e, char **json, nib_error *err) {
    plan p = {0};
    *json = NULL;
    if (!e->core.m)
        return nib_fail(err, NIB_E_USAGE, "the engine was opened for its vocabulary only: it has no cache");
    plan_kv_from_name(type_get(e->core.resolved.formats.type)->name, &p.kv);
    if (!kv_formats_print(e->core.resolved.formats, p.kv_layers, sizeof p.kv_layers))
        return nib_fail(err, NIB_E_FAILED, "the formats of keys and values take more than %zu bytes",
                        sizeof p.kv_layers);
    json_t *list = plan_kv_json(&p);
    *json = list ? jsonx_text(list, JSON_COMPACT) : NULL;
    json_decref(list);
    return *json ? NIB_OK : nib_fail_nomem(err, 0, "the formats of keys and values");
}

void nib_engine_memory(const nib_engine *e, nib_memory *out) {
    ledger_report(e->core.ledger, out);
}

nib_status nib_engine_check(const nib_engine *e, nib_error *err) {
    if (e->pipeline.check)
        NIB_TRY(e->pipeline.check(e->pipeline.user, err));
    return e->pager ? pager_check_files(e->pager, err) : NIB_OK;
}

void nib_engine_traffic(nib_engine *e, nib_traffic *out) {
    pager_stats s = {0};
    residual_read back;
    pthread_mutex_lock(&e->step.lock);
    if (e->pager)
        pager_get_stats(e->pager, &s);
    residuals_count(e->residuals, &back);
    *out = (nib_traffic){s.bytes_loaded + e->sketch_read,
                         s.bytes_streamed,
                         s.pass_bytes,
                         e->step.n_pass,
                         s.wait_s,
                         e->core.kind->head_share ? e->core.kind->head_share(e->backend) : 1,
                         back.n,
                         back.n_byte,
                         back.wait_s,
                         s.n_expert_use,
                         s.n_expert_hit};
    pthread_mutex_unlock(&e->step.lock);
}

void nib_engine_lanes(nib_engine *e, nib_lanes *out) {
    const device_disk_seconds cache =
        e->core.disk ? device_disk_time(e->core.disk) : (device_disk_seconds){0};
    pager_stats s = {0};
    pthread_mutex_lock(&e->step.lock);
    if (e->pager)
        pager_get_stats(e->pager, &s);
    pthread_mutex_unlock(&e->step.lock);
    *out = (nib_lanes){.load_weights_s = s.read_s,
                       .load_cache_s = cache.read,
                       .store_cache_s = cache.write,
                       .wait_s = s.wait_s + cache.wait};
}

const nib_model_info *nib_engine_info(const nib_engine *e) {
    return &e->info;
}

const char *nib_engine_kernels(const nib_engine *e) {
    return e->kernels;
}

int32_t nib_engine_many_from(const nib_engine *e) {
    return e->backend && e->backend->share ? e->backend->share->many_from : 0;
}

size_t nib_engine_placement(const nib_engine *e, const nib_slice **slices) {
    *slices = e->placement.slices;
    return e->placement.n_slice;
}

nib_status nib_engine_predict(const nib_engine *e, int64_t n_prompt, int64_t n_gen, nib_prediction *out,
                              nib_error *err) {
    if (!e->pager)
        return nib_fail(err, NIB_E_USAGE,
                        "the engine was opened for its vocabulary only: it computes nothing");
    return predict(&e->core, e->pager, e->backend, n_prompt, n_gen, out, err);
}

/* ---- residuals ---- */

const residual_kinds *engine_residual_kinds(const nib_engine *e) {
    return residuals_kinds(e->residuals);
}

void engine_residuals_choose(nib_engine *e, const tune_choice *choice) {
    pthread_mutex_lock(&e->step.lock);
    residuals_choose(e->residuals, choice);
    pthread_mutex_unlock(&e->step.lock);
}

void engine_residuals_settle(nib_engine *e, const tune_choice *choice) {
    pthread_mutex_lock(&e->step.lock);
    residuals_settle(e->residuals, choice);
    pthread_mutex_unlock(&e->step.lock);
}

bool engine_has_planned_residuals(const nib_engine *e) {
    return e->core.resolved.n_residual > 0;
}

int engine_fetch_blocks(const nib_engine *e) {
    enum { MAX = 32 /* more blocks do not fetch faster on an H200 (docs/paper-qdec.md) */ };
    return e->core.kind->tier == NIB_TIER_VRAM ? MAX : 1;
}

int64_t engine_max_channels(const nib_engine *e) {
    return e->core.residuals ? e->core.residuals->max_k_chunk : 0;
}

uint64_t engine_residual_bytes(const nib_engine *e) {
    return e->core.residuals ? e->core.residuals->n_byte : 0;
}

uint64_t engine_residual_read(const nib_engine *e, const tune_choice *choice) {
    return e->residuals ? residuals_read(e->residuals, choice) : 0;
}

/* ---- the trace ---- */

nib_status nib_engine_trace_begin(nib_engine *e, nib_error *err) {
    if (!e->core.m)
        return nib_fail(err, NIB_E_USAGE,
                        "the engine was opened for its vocabulary only: it computes nothing");
    pthread_mutex_lock(&e->step.lock);
    const nib_status status =
        e->core.kind->trace
            ? e->core.kind->trace(e->backend, &e->step.trace, err)
            : nib_fail(err, NIB_E_USAGE, "the %s back end cannot be traced", e->core.kind->name);
    e->step.pass_s = 0;
    pthread_mutex_unlock(&e->step.lock);
    return status;
}

static nib_status no_spans(nib_error *err) {
    return nib_fail(err, NIB_E_USAGE, "expected a back end that times its launches: a GPU's");
}

nib_status nib_engine_spans_start(nib_engine *e, size_t max, nib_span_scale *scale, nib_error *err) {
    if (!e->core.m || !e->core.kind->spans_start)
        return no_spans(err);
    pthread_mutex_lock(&e->step.lock);
    const nib_status status = e->core.kind->spans_start(e->backend, max, scale, err);
    pthread_mutex_unlock(&e->step.lock);
    return status;
}

nib_status nib_engine_spans_stop(nib_engine *e, nib_span *spans, size_t *n, size_t *n_dropped,
                                 nib_error *err) {
    *n = *n_dropped = 0;
    if (!e->core.m || !e->core.kind->spans_stop)
        return no_spans(err);
    pthread_mutex_lock(&e->step.lock);
    const nib_status status = e->core.kind->spans_stop(e->backend, spans, n, n_dropped, err);
    pthread_mutex_unlock(&e->step.lock);
    return status;
}

static void trace_row_read(const op_trace *t, int i, nib_trace_row *out) {
    trace_row r;
    trace_read(t, i, &r);
    *out = (nib_trace_row){
        .calls = r.calls, .busy_s = r.busy, .wait_s = r.wait, .weight_bytes = r.weight_bytes, .macs = r.macs};
    snprintf(out->what, sizeof out->what, "%s%s%s", op_name(r.kind), r.weight[0] ? " " : "", r.weight);
}

size_t nib_engine_trace_read(nib_engine *e, nib_trace_row *rows, size_t max, double *pass_s) {
    size_t n = 0;
    pthread_mutex_lock(&e->step.lock);
    if (pass_s)
        *pass_s = e->step.pass_s;
    for (int i = 0; e->step.trace && i < trace_n_row(e->step.trace); i++, n++)
        if (n < max)
            trace_row_read(e->step.trace, i, &rows[n]);
    pthread_mutex_unlock(&e->step.lock);
    return n;
}
