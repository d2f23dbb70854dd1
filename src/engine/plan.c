/* plan.c - nib_plan: a plan from headers and profiles, without an engine. */
#include "engine/headers.h"
#include "engine/planning/planning.h"
#include "engine/residual/file.h"
#include "hub/find.h"
#include "memory/device.h"

#include "base/mem.h"
#include "base/num.h"
#include "nib_tools.h"
#include "profile/machine.h"
#include "profile/profile_file.h"
#include "profile/trials.h"

#include <math.h>
#include <stdio.h>

enum { FREE_SHARE = 8 /* an eighth of the system's free memory stays free */ };

/* Opens the device, so that the RAM which it takes is resident before the rest is counted. Without a device a
 * plan needs a cap. */
static nib_status look_for_device(const engine_core *e, nib_error *err) {
    device *gpu = NULL;
    nib_error why;
    if (e->kind->tier != NIB_TIER_VRAM)
        return NIB_OK;
    const nib_status status = device_open(&e->places, core_place(e), &gpu, &why);
    device_close(gpu);
    if (status == NIB_OK || (status != NIB_E_NOMEM && e->resolved.cap[NIB_TIER_VRAM] != NIB_AUTO))
        return NIB_OK;
    return nib_fail(err, status == NIB_E_NOMEM ? status : NIB_E_DEVICE,
                    "backend '%s': %s; --vram SIZE plans for one of that size", e->kind->name, why.message);
}

/* Headers and the device only. The caller closes the core, also after an error. */
static nib_status open_for_plan(engine_core *e, const char *name, const nib_engine_options *options,
                                nib_error *err) {
    nib_engine_options o;
    nib_engine_options_init(&o);
    o = options ? *options : o;
    o.vocab_only = false;
    NIB_TRY(headers_open(e, name, &o, NULL, err));
    return look_for_device(e, err);
}

static nib_status make(const char *name, const nib_engine_options *options, const nib_plan_options *how,
                       plan *p, nib_error *err) {
    static const nib_plan_options defaults = {0};
    engine_core e;
    nib_status status = open_for_plan(&e, name, options, err);
    if (status == NIB_OK)
        status = planning_make(&e, how ? how : &defaults, p, err);
    if (status == NIB_OK)
        status = cancel_check(&e.cancel, err);
    core_close(&e);
    return status;
}

nib_status nib_plan(const char *name, const nib_engine_options *options, const nib_plan_options *how,
                    char **json, nib_error *err) {
    plan p = {0};
    nib_status status = make(name, options, how, &p, err);
    if (how && p.cap[NIB_TIER_RAM] != NIB_AUTO)
        p.cap[NIB_TIER_RAM] += how->ram_beside;
    if (status == NIB_OK)
        status = plan_print(&p, json, err);
    plan_clear(&p);
    return status;
}

/* Where the trials of a workload are: those with up to about 1.4 times the tokens are one class. NULL: no
 * memory, or no cache folder. */
static char *path_of_trials(const engine_core *e, const nib_workload *w, const nib_flow *flow) {
    enum { CAP_BITS = 22 /* a batch keeps some bytes a line */ };
    char content[CONTENT_KEY];
    nib_error why;
    machine here;
    machine_detect(&here);
    if (container_content_key(e->container, content, &why) != NIB_OK)
        return NULL;
    return trials_path(json_pack(
        "{s:s, s:o, s:s, s:i, s:i, s:s, s:i, s:[I, I, I], s:i, s:I, s:i, s:i}", "content", content, "machine",
        profile_machine_key(&here), "backend", e->kind->name, "threads", e->resolved.n_thread, "kv",
        flow->formats[flow->format].kv_type, "layers", flow->kv_layers, "weights",
        flow->formats[flow->format].weights, "caps", (json_int_t)(e->resolved.cap[NIB_TIER_RAM] >> CAP_BITS),
        (json_int_t)(e->resolved.cap[NIB_TIER_VRAM] >> CAP_BITS),
        (json_int_t)(e->resolved.cap[NIB_TIER_DISK] >> CAP_BITS), "activation", e->requested.activation,
        "ctx", (json_int_t)e->requested.n_ctx, "prompt", (int)lround(log2(w->n_prompt)), "gen",
        (int)lround(log2(w->n_gen))));
}

/* Opens the core for plans of requests. Formats of keys and values that the plan chooses are f16 meanwhile.
 */
static nib_status open_for_flows(engine_core *e, const char *name, const nib_engine_options *options,
                                 const nib_workload *work, nib_error *err) {
    nib_engine_options o;
    nib_engine_options_init(&o);
    o = options ? *options : o;
    o.kv_type = o.kv_type == NIB_KV_AUTO ? NIB_KV_F16 : o.kv_type;
    o.max_n_ctx = o.max_n_ctx > 0 ? o.max_n_ctx : work->max_n_ctx;
    return open_for_plan(e, name, &o, err);
}

/* Sets what trial runs of the plans have reached. Those of other formats are in other files. */
static void find_trials(const engine_core *e, const nib_workload *w, nib_flow *all, size_t n) {
    trials known = {.n = 0};
    for (size_t i = 0; i < n; i++) {
        if (i == 0 || all[i].format != all[i - 1].format) {
            char *path = path_of_trials(e, w, &all[i]);
            known = (trials){.n = 0};
            if (path)
                trials_load(path, &known);
            mem_free(path);
        }
        all[i].measured_tok_s = trials_find(&known, all[i].n_sequence, all[i].kv_on_disk);
    }
}

static nib_status plan_flows(const char *name, const nib_engine_options *options, const nib_workload *work,
                             const flows_wanted *wanted, nib_flow *bound, nib_error *err) {
    engine_core e;
    nib_status status = open_for_flows(&e, name, options, work, err);
    if (status == NIB_OK)
        status = planning_workload(&e, options ? options->kv_type : 0, work, wanted, bound, err);
    if (status == NIB_OK)
        find_trials(&e, work, wanted->out, *wanted->n);
    core_close(&e);
    return status;
}

nib_status nib_keep_trial(const char *name, const nib_engine_options *options, const nib_workload *work,
                          const nib_flow *flow, double tok_s, nib_error *err) {
    engine_core e;
    const trial t = {flow->n_sequence, flow->kv_on_disk, tok_s};
    nib_status status = open_for_flows(&e, name, options, work, err);
    char *path = status == NIB_OK ? path_of_trials(&e, work, flow) : NULL;
    if (path)
        status = trials_keep(path, &t, err);
    mem_free(path);
    core_close(&e);
    return status;
}

nib_status nib_plan_workload(const char *name, const nib_engine_options *options, const nib_workload *work,
                             nib_flow *out, nib_flow *bound, nib_error *err) {
    size_t n;
    return plan_flows(name, options, work, &(flows_wanted){.out = out, .max = 1, .n = &n}, bound, err);
}

nib_status nib_plan_flows(const char *name, const nib_engine_options *options, const nib_workload *work,
                          nib_flows which, nib_flow *out, size_t max, size_t *n, nib_error *err) {
    const flows_wanted wanted = {.frontier = which == NIB_FLOWS_FRONTIER, .out = out, .max = max, .n = n};
    return plan_flows(name, options, work, &wanted, NULL, err);
}

/* What a refusal means here: the plan does not fit. */
static nib_status or_no_fit(nib_status status, const nib_error *why, nib_error *err) {
    if (status == NIB_OK || status == NIB_E_NOFIT)
        return NIB_OK;
    if (err)
        *err = *why;
    return status;
}

/* Whether the original is better than its base with residuals that take `ram` bytes: a plan of it takes no
 * more, streams nothing, and keeps the bound on the loss of "high". */
static nib_status look_at_original(const nib_engine_options *options, const nib_plan_options *how,
                                   uint64_t ram, bool *better, nib_error *err) {
    nib_engine_options o = *options;
    nib_plan_options high = how ? *how : (nib_plan_options){0};
    plan p = {0};
    nib_error why;
    char *path;
    *better = false;
    NIB_TRY(model_find(options->residual, &path, err));
    const bool is_original = !residual_file_is(path);
    mem_free(path);
    if (!is_original)
        return NIB_OK;
    o.residual = NULL;
    o.log = NULL;
    o.ram = NUM_MIN(o.ram, ram + LEDGER_RUNTIME_MARGIN +
                               (2 << 20)); /* a plan leaves about this beside its expected peak */
    high.quality = "high";
    high.speed = 0;
    high.mode = 0;
    const nib_status status = make(options->residual, &o, &high, &p, &why);
    *better = status == NIB_OK && p.predicted.disk_bytes == 0 && p.predicted.ram_peak <= ram;
    plan_clear(&p);
    return or_no_fit(status, &why, err);
}

nib_status nib_residuals_fit(const char *name, const nib_engine_options *options, const nib_plan_options *how,
                             nib_residuals_worth *worth, nib_error *err) {
    plan p = {0};
    machine here;
    nib_error why;
    bool better = false;
    *worth = NIB_RESIDUALS_NO_ROOM;
    nib_status status = make(name, options, how, &p, &why);
    machine_detect(&here);
    const bool fits = status == NIB_OK && p.predicted.disk_bytes == 0 &&
                      (p.cap[NIB_TIER_RAM] != NIB_AUTO || !here.ram_free ||
                       p.predicted.ram_peak <= here.ram_free - here.ram_free / FREE_SHARE);
    status = or_no_fit(status, &why, err);
    if (status == NIB_OK && fits && !plan_is_of_gpu(&p))
        status = look_at_original(options, how, p.predicted.ram_peak, &better, err);
    if (status == NIB_OK && fits)
        *worth = better ? NIB_RESIDUALS_MORE_BITS : NIB_RESIDUALS_FIT;
    plan_clear(&p);
    return status;
}
