/* engine.c - opening a model under a budget: what is needed is known and charged before it is allocated. */
#include "engine/state.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"
#include "exec/shortlist.h"
#include "model/find.h"
#include "profile/machine.h"
#include "tiers/device.h"
#include "engine/text.h"
#include "engine/learn.h"
#include "engine/apply_plan.h"
#include "engine/residual.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    DEFAULT_BATCH = 512,
    SMALL_KV = 2 << 20, /* bytes of a cache that is kept in f32 when nothing else is asked for */
    HEAD_ROWS = 16 /* rows of logits computed together for evaluation: 16 MiB with the largest vocabularies */
};

void nib_engine_options_init(nib_engine_options *options) {
    memset(options, 0, sizeof *options);
    options->ram = options->vram = options->disk = NIB_AUTO;
    options->residual_bits = 4;
}

nib_status nib_backend_check(const char *name, nib_error *err) {
    const backend_kind *kind;
    return backend_find(name, &kind, err);
}

bool engine_kv_type(int kv, type_id *out) {
    static const type_id types[] = {
        [NIB_KV_F16] = TYPE_F16, [NIB_KV_F32] = TYPE_F32, [NIB_KV_8] = TYPE_KV8, [NIB_KV_4] = TYPE_KV4};
    if (kv < NIB_KV_F16 || kv > NIB_KV_4)
        return false;
    *out = types[kv];
    return true;
}

static nib_status check_options(const nib_engine_options *o, nib_error *err) {
    type_id type;
    if (o->n_thread < 0)
        return nib_fail(err, NIB_E_USAGE, "threads: expected 0 or more, found %d", o->n_thread);
    if (o->n_ctx < NIB_CTX_WHOLE)
        return nib_fail(err, NIB_E_USAGE, "context: expected 0 or more positions, found %lld",
                        (long long)o->n_ctx);
    if (o->n_session < 0 || o->n_session > ENGINE_MAX_SESSION)
        return nib_fail(err, NIB_E_USAGE, "sessions: expected 0 to %d, found %ld", ENGINE_MAX_SESSION,
                        (long)o->n_session);
    if (o->n_batch < 0)
        return nib_fail(err, NIB_E_USAGE, "batch: expected 0 or more rows, found %lld",
                        (long long)o->n_batch);
    if (o->n_logits < 0)
        return nib_fail(err, NIB_E_USAGE, "rows of logits: expected 0 or more, found %lld",
                        (long long)o->n_logits);
    if (o->kv_type != 0 && !engine_kv_type(o->kv_type, &type))
        return nib_fail(err, NIB_E_USAGE, "expected f16, f32, kv8 or kv4 for keys and values, found type %d",
                        o->kv_type);
    if (o->activation != 0 && o->activation != 4 && o->activation != 8 && o->activation != 16)
        return nib_fail(err, NIB_E_USAGE, "activations: expected 4, 8 or 16 bits, found %d", o->activation);
    if (o->n_best < 0)
        return nib_fail(err, NIB_E_USAGE, "best logits: expected 0 or more, found %ld", (long)o->n_best);
    if (o->shortlist < NIB_SHORTLIST_AUTO || o->shortlist > NIB_SHORTLIST_OFF)
        return nib_fail(err, NIB_E_USAGE, "expected a nib_shortlist, found %d", o->shortlist);
    if (o->packed < NIB_PACKED_AUTO || o->packed > NIB_PACKED_OFF)
        return nib_fail(err, NIB_E_USAGE, "expected a nib_packed, found %d", o->packed);
    return NIB_OK;
}

void engine_bound_set(const nib_engine *e, mem_bound *b) {
    mem_bound_set(b, ledger_free(e->ledger, NIB_TIER_RAM));
}

nib_status engine_bound_end(const nib_engine *e, mem_bound *b, const char *what, nib_status status,
                            nib_error *err) {
    char cap[32], left[32];
    mem_bound_end(b);
    if (status == NIB_OK || !b->refused)
        return status;
    num_format_size(ledger_cap(e->ledger, NIB_TIER_RAM), cap);
    num_format_size(ledger_free(e->ledger, NIB_TIER_RAM), left);
    return nib_fail(err, NIB_E_NOFIT, "RAM: %s need more than the %s that are free under the cap of %s", what,
                    left, cap);
}

/* vocabulary: NULL: it is read too. */
static nib_status open_files(nib_engine *e, const container_visitor *vocabulary, nib_error *err) {
    if (e->options.vocab_only) {
        NIB_TRY(container_open_headers(e->path, &e->log, vocabulary, &e->alone, err));
        e->container = e->alone;
        return NIB_OK;
    }
    NIB_TRY(model_open_headers(e->path, &e->log, vocabulary, &e->m, err));
    e->container = model_container(e->m);
    return NIB_OK;
}

static nib_status charge_container(nib_engine *e, nib_error *err) {
    const uint64_t bytes = e->m ? model_heap_bytes(e->m) : container_heap_bytes(e->container);
    NIB_TRY(ledger_charge(e->ledger, NIB_TIER_RAM, NIB_OWNER_TABLES, bytes, err));
    e->tables += bytes;
    return NIB_OK;
}

nib_status engine_set_layout(nib_engine *e, layout *to, nib_error *err) {
    const uint64_t bytes = layout_heap_bytes(to), before = e->layout ? layout_heap_bytes(e->layout) : 0;
    if (bytes > before) {
        const nib_status status =
            ledger_charge(e->ledger, NIB_TIER_RAM, NIB_OWNER_TABLES, bytes - before, err);
        if (status != NIB_OK) {
            layout_free(to);
            return status;
        }
    } else
        ledger_release(e->ledger, NIB_TIER_RAM, NIB_OWNER_TABLES, before - bytes);
    e->tables += bytes - before;
    layout_free(e->layout);
    e->layout = to;
    return NIB_OK;
}

/* The model as the file has it. */
static nib_status open_layout(nib_engine *e, nib_error *err) {
    layout *plain;
    mem_bound b;
    engine_bound_set(e, &b);
    const nib_status status = layout_make(e->m, &(layout_choice){0}, &plain, err);
    NIB_TRY(engine_bound_end(e, &b, "the lists of weights and pages", status, err));
    return engine_set_layout(e, plain, err);
}

static nib_status open_container(nib_engine *e, nib_error *err) {
    mem_bound b;
    engine_bound_set(e, &b);
    const nib_status status = open_files(e, NULL, err);
    NIB_TRY(engine_bound_end(e, &b, "headers and vocabulary", status, err));
    return charge_container(e, err);
}

/* Half precision saves nothing worth its rounding where the whole cache is small. A property of the model
 * alone: asking for another context does not change the answers. */
static bool small_cache(const nib_engine *e) {
    uint64_t bytes;
    return kv_table_bytes(e->layout, TYPE_F32, false, engine_usual_context(e->m), &bytes, NULL) == NIB_OK &&
           bytes <= SMALL_KV;
}

/* Generation computes one row of logits at a time, in the session's own memory. Where memory is scarce
 * nothing is set aside for evaluation unless it was asked for. */
int64_t engine_logits_rows(const nib_engine *e) {
    const nib_engine_options *o = &e->options;
    if (e->n_best) /* a shortlist is made row by row */
        return 1;
    int64_t n = o->n_logits > 0 ? o->n_logits : o->ram == NIB_AUTO ? HEAD_ROWS : 1;
    return NUM_MIN(n, o->n_batch);
}

backend_setup engine_backend_setup(const nib_engine *e, int n_thread) {
    backend_setup s = {.layout = e->layout,
                       .n_thread = n_thread,
                       .threads = e->threads && pool_size(e->threads) == n_thread ? e->threads : NULL,
                       .ledger = e->ledger,
                       .log = &e->log,
                       .act_bits = e->act_bits,
                       .a16 = e->options.activation == 16,
                       .fuse = !e->options.no_fuse,
                       .sliced = e->options.bf16_tiles};
    for (int b = 0; e->act_bits && b < model_n_block(e->m); b++)
        s.a16 = s.a16 || e->act_bits[b] == 16;
    return s;
}

int64_t engine_cell_rows(const nib_engine_options *o) {
    return NUM_MIN(o->n_batch, (int64_t)(o->ram == NIB_AUTO ? ENGINE_CELL_ROWS_FREE : ENGINE_CELL_ROWS));
}

/* A context that was asked for. */
static nib_status check_context(const nib_engine *e, nib_error *err) {
    const int64_t n = e->options.n_ctx, trained = model_hparams(e->m)->n_ctx_train;
    NIB_TRY(engine_check_positions(e, e->kv_type, n, err));
    if (trained > 0 && n > trained)
        log_line(&e->log,
                 "the context of %lld positions is longer than the %lld that the model was trained with: "
                 "what it says beyond them may be poor",
                 (long long)n, (long long)trained);
    return NIB_OK;
}

static nib_status check_kv_type(const nib_engine *e, type_id type, nib_error *err) {
    if (e->kind->tier == NIB_TIER_RAM || type == TYPE_F16)
        return NIB_OK;
    return nib_fail(err, NIB_E_USAGE, "keys and values: the %s back end has them in f16 alone",
                    e->kind->name);
}

/* Once; the sizes stay as they are afterwards. */
static nib_status settle_sizes(nib_engine *e, nib_error *err) {
    nib_engine_options *o = &e->options;
    if (!engine_kv_type(o->kv_type, &e->kv_type))
        e->kv_type = small_cache(e) && e->kind->tier == NIB_TIER_RAM ? TYPE_F32 : TYPE_F16;
    NIB_TRY(check_kv_type(e, e->kv_type, err));
    e->free_batch = e->free_batch || o->n_batch == 0;
    if (o->n_batch == 0)
        o->n_batch = DEFAULT_BATCH;
    if (o->n_ctx > 0 && !e->sizes_are_settled)
        NIB_TRY(check_context(e, err));
    if (o->n_ctx <= 0)
        o->n_ctx = engine_context(e);
    if (e->free_batch) /* one sequence never has more rows; several may */
        o->n_batch = NUM_MIN(o->n_batch, o->n_ctx);
    e->sizes_are_settled = true;
    return NIB_OK;
}

uint64_t engine_session_tables(const nib_engine *e, int64_t n_ctx) {
    return (uint64_t)n_ctx * sizeof(int32_t) + (uint64_t)model_hparams(e->m)->n_vocab * sizeof(float);
}

static nib_status session_bytes(const nib_engine *e, type_id kv_type, int64_t n_ctx, uint64_t *bytes,
                                nib_error *err) {
    NIB_TRY(kv_table_bytes(e->layout, kv_type, false, n_ctx, bytes, err));
    if (!num_add_u64(*bytes, engine_session_tables(e, n_ctx), bytes))
        return nib_fail(err, NIB_E_NOFIT, "a session of %lld positions overflows 64 bits", (long long)n_ctx);
    return NIB_OK;
}

nib_status engine_sessions_bytes(const nib_engine *e, type_id kv_type, int64_t n_ctx, uint64_t *bytes,
                                 nib_error *err) {
    const int n = e->options.n_session;
    NIB_TRY(session_bytes(e, kv_type, n_ctx, bytes, err));
    if (!num_mul_u64(*bytes, (uint64_t)n, bytes))
        return nib_fail(err, NIB_E_NOFIT, "%d sessions of %lld positions overflow 64 bits", n,
                        (long long)n_ctx);
    if (e->options.grammar) /* the answers' one grammar, and the logits that it leaves */
        *bytes += grammar_bytes(e->options.ram, model_hparams(e->m)->n_vocab) +
                  (uint64_t)n * (uint64_t)model_hparams(e->m)->n_vocab * sizeof(float);
    return NIB_OK;
}

nib_status engine_check_positions(const nib_engine *e, type_id kv_type, int64_t n, nib_error *err) {
    const int64_t max = model_hparams(e->m)->n_ctx_max;
    char need[32], have[32];
    machine here;
    uint64_t bytes;
    if (max > 0 && n > max)
        return nib_fail(err, NIB_E_USAGE,
                        "context: the model has learned %lld positions, and %lld were asked for",
                        (long long)max, (long long)n);
    NIB_TRY(session_bytes(e, kv_type, n, &bytes, err));
    machine_look(&here);
    if (here.ram_total > 0 && bytes > here.ram_total)
        return nib_fail(err, NIB_E_NOFIT,
                        "context: %lld positions take %s, and the machine has %s of memory: at most %.0f fit",
                        (long long)n, num_format_size(bytes, need), num_format_size(here.ram_total, have),
                        floor((double)n * ((double)here.ram_total / (double)bytes)));
    return NIB_OK;
}

nib_status engine_name_sessions(const nib_engine *e, nib_status status, nib_error *err) {
    char prefix[128];
    const int n = e->options.n_session;
    if (status != NIB_E_NOFIT || e->options.ram == NIB_AUTO)
        return status;
    snprintf(prefix, sizeof prefix, "the engine was opened for %d session%s of %lld positions (n_session)", n,
             n == 1 ? "" : "s", (long long)e->options.n_ctx);
    return nib_fail_prefix(err, status, prefix);
}

/* Keys may serve other sequences where they do not depend on how long their own one is. */
static bool can_share(const model *m) {
    for (int i = 0; i < model_n_rope(m); i++)
        if (model_rope_varies(m, i))
            return false;
    return true;
}

nib_status engine_kv_pool(nib_engine *e, type_id type, kv_pool **out, nib_error *err) {
    nib_status status = check_kv_type(e, type, err);
    NIB_TRY(status);
    pthread_mutex_lock(&e->step.lock);
    if (!e->kv[type])
        status = kv_pool_open(e->layout, type, false, can_share(e->m), e->backend->device, e->ledger,
                              &e->kv[type], err);
    *out = e->kv[type];
    pthread_mutex_unlock(&e->step.lock);
    return status;
}

nib_status engine_sequence_memory(nib_engine *e, type_id kv_type, sequence_memory *out, nib_error *err) {
    *out = (sequence_memory){.layout = e->layout, .device = e->backend->device, .ledger = e->ledger};
    return engine_kv_pool(e, kv_type, &out->pages, err);
}

generation_setup engine_generation_setup(const nib_engine *e) {
    return (generation_setup){.ledger = e->ledger,
                              .tokenizer = e->tokenizer,
                              .grammars = e->grammars,
                              .n_vocab = model_hparams(e->m)->n_vocab,
                              .n_best = e->n_best};
}

/* Making the sketch leaves something on the heap: where the weights then have no room beside it they are
 * worth more, unless it was asked for. */
static nib_status open_shortlist(nib_engine *e, const engine_want *want, uint64_t session, nib_error *err) {
    char best[32] = "";
    uint64_t bytes;
    int bits;
    if (!e->n_best)
        return NIB_OK;
    shortlist_of(e->layout, e->n_best, &bytes, &bits);
    NIB_TRY(e->kind->shortlist_open(e->backend, e->n_best, &e->step.cancel, &e->sketch_read, err));
    e->has_sketch = true;
    ledger_settle(e->ledger, true);
    if (!want->plan && e->options.shortlist == NIB_SHORTLIST_AUTO && !engine_has_room(e, session)) {
        layout *whole;
        NIB_TRY(layout_with_shortlist(e->layout, false, &whole, err));
        e->kind->shortlist_close(e->backend, whole);
        e->has_sketch = false;
        e->n_best = 0;
        return engine_set_layout(e, whole, err);
    }
    if (e->n_best > 1)
        snprintf(best, sizeof best, "%ld ", (long)e->n_best);
    log_line(
        &e->log,
        "the output head is computed only where the %slikeliest token%s can be, which a sketch in %d bits "
        "tells: the answers are the same",
        best, e->n_best > 1 ? "s" : "", bits);
    return NIB_OK;
}

static nib_status open_weights(nib_engine *e, const engine_want *want, nib_error *err) {
    const nib_engine_options *o = &e->options;
    uint64_t session;
    backend_rows rows = {.n_head = 0};
    if (want->keep_free) {
        const engine_parts parts = engine_early_parts(e);
        NIB_TRY(want->keep_free(&parts, want->user, &session, err));
    } else
        NIB_TRY(engine_sessions_bytes(e, e->kv_type, o->n_ctx, &session, err));
    ledger_settle(e->ledger, true);
    NIB_TRY(open_shortlist(e, want, session, err));
    engine_rows(e, session, &rows.n_pass, &rows.n_cell);
    if (want->n_row) {
        rows.n_pass = want->n_row;
        rows.n_cell = NUM_MIN(want->n_row, (int64_t)ENGINE_CELL_ROWS);
    }
    rows.n_head = engine_logits_rows(e);
    if (o->shortlist == NIB_SHORTLIST_ON && o->n_best && !e->n_best)
        log_line(&e->log,
                 "the output head is computed as a whole: a sketch was asked for, but would not help "
                 "this head, these activations or this sampling");
    NIB_TRY(e->kind->reserve(e->backend, &rows, err));
    NIB_TRY(engine_alloc_placement(e, err));
    NIB_TRY(engine_open_weights(e, session, err));
    engine_fill_placement(e);
    ledger_settle(e->ledger, false);
    for (int t = 0; t < NIB_N_TIER; t++)
        ledger_plan(e->ledger, t, ledger_promised(e->ledger, t) + (t == e->kind->tier ? session : 0));
    e->step.m = e->m;
    e->step.backend = e->backend;
    e->step.pager = e->pager;
    if (!o->residual || o->k_chunk == 0)
        return NIB_OK;
    NIB_TRY(residuals_open(e, &e->residuals, err));
    e->step.always = residuals_probe(e->residuals);
    return NIB_OK;
}

/* What is wrong with a plan is said with the name of its file. */
static nib_status blame_plan(const nib_engine_options *o, nib_status status, nib_error *err) {
    if (status == NIB_OK || !o || !o->plan_name || status == NIB_E_NOMEM || status == NIB_E_NOFIT)
        return status;
    return nib_fail_prefix(err, status, o->plan_name);
}

/* The same activations for all blocks, unless a plan has others. */
static nib_status settle_blocks(nib_engine *e, const engine_want *want, nib_error *err) {
    const plan *p = want->plan;
    const size_t n = (size_t)model_n_block(e->m);
    e->act_bits = mem_alloc(n);
    if (!e->act_bits)
        return nib_fail_nomem(err, n, "the blocks' activations");
    memset(e->act_bits, e->options.activation ? e->options.activation : 8, n);
    if (p)
        return blame_plan(&e->options, apply_blocks(e, p, err), err);
    if (!want->keep_nothing)
        return NIB_OK;
    e->kept = mem_calloc(n, sizeof *e->kept);
    return e->kept ? NIB_OK : nib_fail_nomem(err, n * sizeof *e->kept, "what stays");
}

/* By the plan that is given, or by one that is made now when that is asked for. */
static nib_status settle_plan(nib_engine *e, const engine_want *want, nib_error *err) {
    plan own = {0};
    engine_want with = *want;
    nib_status status = NIB_OK;
    if (!want->plan && e->options.planning) {
        NIB_TRY(settle_sizes(e, err));
        NIB_TRY(engine_settle_shortlist(e, NULL, err));
        status = engine_plan(e, e->options.planning, &own, err);
        e->cap_is_named = status == NIB_E_NOFIT;
        with.plan = &own;
    }
    if (status == NIB_OK)
        status = settle_blocks(e, &with, err);
    if (with.plan == &own) { /* the pager knows best what fits by then, and keeps it by the same rule */
        mem_free(e->kept);
        e->kept = NULL;
    }
    plan_clear(&own);
    if (status != NIB_OK)
        return status;
    NIB_TRY(settle_sizes(e, err));
    status = engine_settle_shortlist(e, want->plan, err);
    return want->plan ? blame_plan(&e->options, status, err) : status;
}

static nib_status settle_all(nib_engine *e, const engine_want *want, nib_error *err) {
    mem_bound b;
    ledger_settle(e->ledger, true); /* headers and tokenizer have left what they left on the heap */
    engine_bound_set(e, &b);
    nib_status status = settle_plan(e, want, err);
    if (status == NIB_OK)
        status = engine_open_backend(e, err);
    return engine_bound_end(e, &b, "a plan and the kernels' map", status, err);
}

/* "auto": the GPU's where there is one. */
static nib_status find_backend(nib_engine *e, nib_error *err) {
    device *gpu = NULL;
    nib_error why;
    const char *name = e->options.backend;
    if (!name || strcmp(name, "auto") != 0)
        return backend_find(name, &e->kind, err);
    if (device_open(NIB_TIER_VRAM, 0, &gpu, &why) != NIB_OK)
        log_line(&e->log, "the processor computes everything: %s", why.message);
    NIB_TRY(backend_find(gpu ? "cuda" : NULL, &e->kind, err));
    device_close(gpu);
    return NIB_OK;
}

/* A cap on what nothing uses changes nothing. */
static void look_at_vram(const nib_engine *e) {
    if (e->options.vram != NIB_AUTO && e->kind->tier != NIB_TIER_VRAM)
        log_line(&e->log,
                 "--vram has no effect, the processor computes everything: --backend cuda is for the GPU");
}

static nib_status open_threads(nib_engine *e, nib_error *err) {
    const int n = e->options.n_thread;
    return pool_open(n ? n : thread_physical_cores(), &e->threads, err);
}

/* The tokenizer can be made while the weights are read: nothing asks for it before, and no cap says what may
 * be in memory at the same time. */
static bool may_wait(const nib_engine *e, const engine_want *want) {
    return e->m && e->options.ram == NIB_AUTO && !e->options.planning && !want->plan && !want->keep_free;
}

static nib_status open_all(nib_engine *e, const char *name, const engine_want *want, nib_error *err) {
    nib_engine_options *o = &e->options;
    NIB_TRY(check_options(o, err));
    NIB_TRY(find_backend(e, err));
    if (want->plan)
        NIB_TRY(blame_plan(o, apply_sizes(o, want->plan, &e->log, err), err));
    const uint64_t caps[NIB_N_TIER] = {o->ram, o->vram, o->disk};
    NIB_TRY(model_find(name, &e->path, err));
    NIB_TRY(ledger_open(caps, &e->ledger, err));
    NIB_TRY(open_container(e, err));
    if (!may_wait(e, want))
        NIB_TRY(engine_open_text(e, err));
    if (e->m) {
        look_at_vram(e);
        NIB_TRY(open_layout(e, err));
        NIB_TRY(open_threads(e, err));
        NIB_TRY(settle_all(e, want, err));
        NIB_TRY(open_weights(e, want, err));
    }
    engine_fill_info(e);
    ledger_settle(e->ledger, false);
    return cancel_check(&e->step.cancel, err);
}

nib_status nib_engine_open(const char *name, const nib_engine_options *options, nib_engine **out,
                           nib_error *err) {
    plan p = {0};
    if (!options || !options->plan)
        return engine_open(name, options, NULL, out, err);
    nib_status status = plan_parse(options->plan, strlen(options->plan), &p, err);
    NIB_TRY(blame_plan(options, status, err));
    status = engine_open(name, options, &(engine_want){.plan = &p}, out, err);
    plan_clear(&p);
    return status;
}

static nib_engine *new_engine(const nib_engine_options *options, nib_error *err) {
    nib_engine *e = mem_calloc(1, sizeof *e);
    if (!e) {
        nib_fail_nomem(err, sizeof *e, "the engine");
        return NULL;
    }
    if (options)
        e->options = *options;
    else
        nib_engine_options_init(&e->options);
    if (e->options.n_session == 0)
        e->options.n_session = 1;
    e->log = (logger){e->options.log, e->options.user};
    e->step.cancel = (canceller){e->options.cancel, e->options.user};
    pthread_mutex_init(&e->step.lock, NULL);
    return e;
}

static nib_status open_grammars(nib_engine *e, nib_error *err) {
    if (!e->m)
        return NIB_OK;
    e->grammars = mem_calloc(1, sizeof *e->grammars);
    if (!e->grammars)
        return nib_fail_nomem(err, sizeof *e->grammars, "an engine");
    grammar_store_open(e->grammars, e->ledger, e->tokenizer, model_hparams(e->m)->n_vocab);
    return NIB_OK;
}

static nib_status hand_out(nib_engine *e, nib_status status, nib_engine **out) {
    if (status == NIB_OK)
        *out = e;
    else
        nib_engine_close(e);
    return status;
}

nib_status engine_open(const char *name, const nib_engine_options *options, const engine_want *want,
                       nib_engine **out, nib_error *err) {
    static const engine_want nothing = {0};
    const uint64_t start = ledger_look().now;
    want = want ? want : &nothing;
    nib_engine *e = new_engine(options, err);
    if (!e)
        return NIB_E_NOMEM;
    nib_status status = open_all(e, name, want, err);
    if (status == NIB_OK)
        status = open_grammars(e, err);
    const bool is_named = e->cap_is_named;
    hand_out(e, status, out);
    return status == NIB_E_NOFIT && !is_named ? engine_refuse(name, options, want, start, err) : status;
}

/* What the vocabulary will take stands beside what reading the headers took besides for a moment. */
static nib_status look_at_files(nib_engine *e, nib_error *err) {
    vocabulary_sizes sizes = {0};
    const container_visitor visitor = vocabulary_visitor(&sizes);
    mem_bound b;
    mem_bound_set(&b, UINT64_MAX);
    const nib_status status = open_files(e, &visitor, err);
    mem_bound_end(&b);
    NIB_TRY(status);
    NIB_TRY(tokenizer_foresee(e->container, &sizes, &e->text, err));
    e->text.peak += (uint64_t)(b.peak - b.now);
    return charge_container(e, err);
}

static nib_status look_at_model(nib_engine *e, const char *name, const plan *p, nib_error *err) {
    static const uint64_t none[NIB_N_TIER] = {NIB_AUTO, NIB_AUTO, NIB_AUTO};
    const engine_want want = {.plan = p};
    NIB_TRY(check_options(&e->options, err));
    NIB_TRY(find_backend(e, err));
    if (p)
        NIB_TRY(apply_sizes(&e->options, p, &e->log, err));
    NIB_TRY(model_find(name, &e->path, err));
    NIB_TRY(ledger_open(none, &e->ledger, err));
    NIB_TRY(look_at_files(e, err));
    if (!e->m)
        return NIB_OK;
    look_at_vram(e);
    NIB_TRY(open_layout(e, err));
    NIB_TRY(open_threads(e, err));
    if (p)
        NIB_TRY(settle_blocks(e, &want, err));
    NIB_TRY(settle_sizes(e, err));
    return engine_settle_shortlist(e, p, err);
}

nib_status engine_open_headers(const char *name, const nib_engine_options *options, const plan *p,
                               nib_engine **out, nib_error *err) {
    nib_engine *e = new_engine(options, err);
    return e ? hand_out(e, look_at_model(e, name, p, err), out) : NIB_E_NOMEM;
}

void nib_engine_close(nib_engine *e) {
    if (!e)
        return;
    learn_keep(e);
    residuals_close(e->residuals);
    pager_close(e->pager);
    for (int i = 0; i < TYPE_COUNT; i++)
        kv_pool_close(e->kv[i]);
    if (e->backend)
        e->kind->close(e->backend);
    if (e->grammars)
        grammar_store_close(e->grammars);
    mem_free(e->grammars);
    mem_free(e->act_bits);
    mem_free(e->kept);
    mem_free(e->kernels);
    pool_close(e->threads);
    tokenizer_close(e->tokenizer);
    layout_free(e->layout);
    model_close(e->m);
    columns_clear(&e->columns);
    container_close(e->alone);
    ledger_close(e->ledger);
    pthread_mutex_destroy(&e->step.lock);
    mem_free(e->path);
    mem_free(e->name);
    mem_free(e->slices);
    mem_free(e->formats);
    mem_free(e);
}

bool engine_has_weights(const nib_engine *e) {
    return e->m != NULL;
}

engine_parts engine_early_parts(const nib_engine *e) {
    return (engine_parts){.m = e->m,
                          .layout = e->layout,
                          .ledger = e->ledger,
                          .threads = e->threads,
                          .kv_type = e->kv_type,
                          .n_ctx = e->options.n_ctx,
                          .progress = e->options.progress,
                          .user = e->options.user};
}

engine_parts engine_parts_of(nib_engine *e) {
    engine_parts parts = engine_early_parts(e);
    parts.step = &e->step;
    return parts;
}

const char *engine_path(const nib_engine *e) {
    return e->path;
}

const container *engine_container(const nib_engine *e) {
    return e->container;
}

const tokenizer *engine_tokenizer(const nib_engine *e) {
    return e->tokenizer;
}

void nib_engine_memory(const nib_engine *e, nib_memory *out) {
    ledger_report(e->ledger, out);
}

void nib_engine_traffic(nib_engine *e, nib_traffic *out) {
    pager_stats s = {0};
    pthread_mutex_lock(&e->step.lock);
    if (e->pager)
        pager_get_stats(e->pager, &s);
    *out = (nib_traffic){s.bytes_loaded + e->sketch_read,
                         s.bytes_streamed,
                         s.pass_bytes,
                         e->step.n_pass,
                         s.wait_s,
                         e->has_sketch ? e->kind->shortlist_share(e->backend) : 1};
    pthread_mutex_unlock(&e->step.lock);
}

/* ---- the trace ---- */

nib_status nib_engine_trace_begin(nib_engine *e, nib_error *err) {
    if (!e->m)
        return nib_fail(err, NIB_E_USAGE,
                        "the engine was opened for its vocabulary only: it computes nothing");
    pthread_mutex_lock(&e->step.lock);
    const nib_status status =
        e->kind->trace ? e->kind->trace(e->backend, &e->step.trace, err)
                       : nib_fail(err, NIB_E_USAGE, "the %s back end cannot be traced", e->kind->name);
    e->step.pass_s = 0;
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
