/* memory.c - the memory that a plan can use, computed by the same functions that lay out the engine. */
#include "engine/planning/planning.h"

#include "base/mem.h"
#include "base/num.h"
#include "engine/head.h"
#include "engine/placement.h"
#include "engine/sessions.h"
#include "engine/sizes.h"

#include <string.h>

/* Bytes that become resident between planning and the loading of weights: the kernel map, and code that runs
 * for the first time. */
#define SPARE (UINT64_C(1) << 20)
/* Bytes of the runtime owner that become resident after planning, and those of them that follow the opening
 * of the weights: medians of sweeps, whose runs differ by up to 0.5 MiB from them (docs/budget.md). Under a
 * cap they include code that was returned to the system (mem_return_unused). */
static uint64_t runtime_growth(const planning *f, const engine_core *e) {
    const bool capped = e->resolved.cap[NIB_TIER_RAM] != NIB_AUTO;
    const uint64_t kib = f->of.open ? (capped ? 1536 : 288) : capped ? 3456 : 672;
    return kib << 10;
}

static nib_status add_cache(planning *f, const engine_core *e, plan_kv kv, kv_formats formats,
                            nib_error *err) {
    enum { FEW = 1024, MANY = 33 * 1024 };
    plan_cache *c = &f->q.caches[f->q.n_cache];
    uint64_t few, many;
    *c = (plan_cache){.kv = kv};
    if (!kv_formats_print(formats, c->layers, sizeof c->layers))
        return nib_fail(err, NIB_E_NOFIT,
                        "a plan has at most %zu bytes for formats of keys and values by layer",
                        sizeof c->layers);
    NIB_TRY(sessions_cache_bytes(e, formats, f->q.n_ctx, &c->bytes, err));
    kv_formats whole = formats; /* of all layers */
    whole.slides = false;
    whole.on_disk = 0;
    NIB_TRY(kv_table_bytes(e->layout, whole, false, FEW, &few, err));
    NIB_TRY(kv_table_bytes(e->layout, whole, false, MANY, &many, err));
    c->position = (many - few) / (MANY - FEW);
    whole.on_disk = formats.on_disk;
    NIB_TRY(kv_tables_on_disk(e->layout, whole, 1, &c->position_on_disk, err));
    c->position_on_disk /= KV_BLOCK;
    NIB_TRY(sessions_on_disk(e, formats, f->q.n_ctx, &c->on_disk, err));
    /* the last generated token is not computed; every session has the same workload */
    NIB_TRY(kv_table_touched(e->layout, formats, NUM_MIN(f->q.n_prompt + f->q.n_gen - 1, f->q.n_ctx),
                             &c->touched, err));
    c->touched += e->resolved.n_draft > 0 ? model_state_bytes(e->m) : 0;
    c->touched *= (uint64_t)e->resolved.n_session; /* cannot overflow: at most `bytes`, which are checked */
    f->q.n_cache++;
    return NIB_OK;
}

/* Lists the engine's own cache first, then the other possible ones. */
nib_status planning_caches(planning *f, const engine_core *e, nib_error *err) {
    static const struct {
        plan_kv kv;
        nib_kv_type type;
    } all[] = {{PLAN_KV_F32, NIB_KV_F32}, {PLAN_KV_F16, NIB_KV_F16}, {PLAN_KV_8, NIB_KV_8},
               {PLAN_KV_4, NIB_KV_4},     {PLAN_KV_8H, NIB_KV_8H},   {PLAN_KV_4H, NIB_KV_4H},
               {PLAN_KV_4S, NIB_KV_4S}};
    const kv_formats mine = e->resolved.formats;
    for (int own = 1; own >= 0; own--)
        for (size_t i = 0; i < NUM_COUNT(all); i++) {
            type_id type;
            if (!settings_kv_type(all[i].type, &type))
                continue;
            /* these are as large as kv8 and kv4 */
            const bool other = !kv_is_hosted(type) && (type != mine.type || mine.layers);
            if (own ? type == mine.type : other)
                NIB_TRY(add_cache(f, e, all[i].kv, own ? mine : kv_formats_like(mine, type), err));
        }
    return NIB_OK;
}

static void count_rows(planning *f, const engine_core *e) {
    const int64_t n_head = sizes_logits_rows(e), n = f->q.n_prompt;
    const planning_rows *few = &f->base, *many = &f->streamed;
    const backend_setup setup = core_backend_setup(e, f->q.rates.n_thread);
    const backend_rows base = {few->n_pass, few->n_cell, n_head, 0},
                       streamed = {many->n_pass, many->n_cell, n_head, 0};
    uint64_t touched, more_touched;
    const uint64_t bytes = e->kind->row_bytes(&setup, &base, NUM_MIN(n, few->n_pass), &touched);
    const uint64_t more = e->kind->row_bytes(&setup, &streamed, NUM_MIN(n, many->n_pass), &more_touched);
    f->q.held[NIB_OWNER_ACTIVATIONS] += bytes - f->workspace;
    f->q.touched[NIB_OWNER_ACTIVATIONS] += touched - f->workspace_touched;
    f->q.more_rows = more - bytes;
    f->q.more_touched = more_touched - touched;
    f->q.n_batch_streamed = many->n_pass;
    f->q.n_cell = few->n_cell;
    f->q.n_cell_streamed = many->n_cell;
    f->workspace = bytes;
    f->workspace_touched = touched;
}

static bool has_rows(const planning *f) {
    return f->of.internal && f->of.internal->n_row;
}

void planning_fewer_rows(planning *f, const engine_core *e) {
    const settings *o = &e->resolved;
    planning_rows *few = &f->base, *many = &f->streamed;
    if (f->of.open || !e->resolved.free_batch || has_rows(f) || !o->stream ||
        o->cap[NIB_TIER_RAM] == NIB_AUTO)
        return;
    while (plan_ram_beside(&f->q, &f->q.caches[0], true, false, 0) + f->q.placed > o->cap[NIB_TIER_RAM] &&
           sizes_rows_halve(e, &many->n_pass, &many->n_cell)) {
        *few = (planning_rows){NUM_MIN(few->n_pass, many->n_pass), NUM_MIN(few->n_cell, many->n_cell)};
        count_rows(f, e);
    }
}

/* Adds the rows' memory of an open engine, or of the engine that will be opened. */
static void add_rows(planning *f, const engine_core *e) {
    const settings *o = &e->resolved;
    f->base = f->streamed = (planning_rows){o->n_batch, sizes_cell_rows(o)};
    f->q.free_batch = e->resolved.free_batch;
    if (f->of.open)
        f->base = f->streamed = (planning_rows){f->of.open->rows.n_pass, f->of.open->rows.n_cell};
    else if (has_rows(f))
        f->base = f->streamed =
            (planning_rows){f->of.internal->n_row, NUM_MIN(f->of.internal->n_row, (int64_t)ENGINE_CELL_ROWS)};
    else
        sizes_rows_streamed(e, o->cap[NIB_TIER_RAM], &f->q.need, &f->streamed.n_pass, &f->streamed.n_cell);
    count_rows(f, e);
    planning_fewer_rows(f, e);
}

/* The ledger's bytes now, and the bytes that the engine will promise before it opens the pager. */
nib_status planning_held(planning *f, const engine_core *e, nib_error *err) {
    const settings *o = &e->resolved;
    nib_memory now;
    const bool margin = o->cap[NIB_TIER_RAM] != NIB_AUTO && ledger_cap(e->ledger, PLACE_RAM) == NIB_AUTO;
    if (margin)
        mem_return_unused(); /* as an engine under that cap does */
    if (!f->of.open)
        ledger_measure_runtime(e->ledger, true);
    ledger_report(e->ledger, &now);
    const uint64_t promised = ledger_promised(e->ledger, PLACE_RAM);
    uint64_t others = 0;
    for (int i = 0; i < NIB_N_OWNER; i++)
        others += i == NIB_OWNER_RUNTIME ? 0 : now.owner[i];
    const uint64_t list = placement_bytes(e->layout);
    memcpy(f->q.touched, now.owner, sizeof f->q.touched);
    memcpy(f->q.held, now.owner, sizeof f->q.held);
    f->q.held[NIB_OWNER_RUNTIME] = promised - others + (margin ? LEDGER_RUNTIME_MARGIN : 0);
    f->q.touched[NIB_OWNER_RUNTIME] += runtime_growth(f, e);
    f->q.is_placed = f->of.internal && layout_homes(e->layout);
    f->q.placed = f->q.is_placed ? layout_home_bytes(e->layout, PLACE_RAM) : 0;
    f->q.placed_all = layout_home_bytes(e->layout, PLACE_GPU) + layout_home_bytes(e->layout, PLACE_DISK) == 0;
    uint64_t held = 0, staging;
    const uint64_t sketch = head_bytes(e, &staging);
    for (int i = 0; i < NIB_N_OWNER; i++)
        held += f->q.held[i];
    if (sketch)
        f->q.opening = held + sketch + staging;
    if (!e->text.is_open) {
        f->q.opening = NUM_MAX(f->q.opening, held + e->text.need.peak);
        f->q.held[NIB_OWNER_TABLES] += e->text.need.kept;
        f->q.touched[NIB_OWNER_TABLES] += e->text.need.kept;
    }
    f->q.held[NIB_OWNER_WEIGHTS] += sketch;
    f->q.touched[NIB_OWNER_WEIGHTS] += sketch;
    f->q.held[NIB_OWNER_TABLES] += list;
    f->q.touched[NIB_OWNER_TABLES] += list;
    f->q.session = sessions_tables(e, f->q.n_ctx) * (uint64_t)o->n_sequence;
    f->q.sampling = sessions_sampling(e);
    f->q.spare = SPARE;
    add_rows(f, e);
    if (!f->of.internal || !f->of.internal->keep_free)
        return NIB_OK;
    f->q.caches[0].bytes = 0;
    f->q.sampling = 0;
    const engine_parts parts = core_parts(e);
    return f->of.internal->keep_free(&parts, f->of.internal->user, &f->q.session, err);
}
