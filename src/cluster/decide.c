/* decide.c - see decide.h. */
#include "cluster/decide.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"
#include "engine/headers.h"
#include "engine/rates.h"
#include "engine/sessions.h"
#include "engine/sizes.h"
#include "profile/hardware.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

nib_status cluster_read_places(const nib_engine_options *o, cluster_places *out, nib_error *err) {
    enum { MAX = 1 << 20 };
    char *text;
    size_t n;
    if (o->devices && o->hosts)
        return nib_fail(err, NIB_E_USAGE, "expected devices or hosts, found both");
    if (o->devices)
        return cluster_places_parse(o->devices, out, err);
    nib_status status = file_read_all(o->hosts, MAX, &text, &n, err);
    if (status != NIB_OK)
        return status == NIB_E_NOTFOUND ? nib_fail(err, NIB_E_USAGE, "no such file of hosts: %s", o->hosts)
                                        : status;
    status = cluster_hosts_parse(text, out, err);
    mem_free(text);
    return status == NIB_OK ? NIB_OK : nib_fail_prefix(err, status, o->hosts);
}

/* What needs the whole model in one process. */
static nib_status check_options(const nib_engine_options *o, nib_error *err) {
    const char *what = o->plan       ? "plan"
                       : o->planning ? "targets of a plan"
                       : o->residual ? "residuals"
                       : o->ahead    ? "head that predicts later tokens"
                                     : NULL;
    return what ? nib_fail(err, NIB_E_USAGE, "several devices: expected no %s, which they do not have yet",
                           what)
                : NIB_OK;
}

/* Sizes and formats follow from the whole model without caps, so that a pipeline's answers are those of one
 * process; each rank's caps then decide where its weights are. */
static nib_status share_sizes(const engine_core *whole, cluster_decision *s, nib_error *err) {
    const kv_formats f = whole->resolved.formats;
    nib_engine_options *o = &s->options;
    o->n_ctx = whole->resolved.n_ctx;
    o->n_batch = whole->resolved.n_batch;
    o->kv_layers = NULL;
    for (int kv = NIB_KV_F16; kv <= NIB_KV_4S; kv++) {
        type_id type;
        if (settings_kv_type(kv, &type) && type == f.type)
            o->kv_type = kv;
    }
    if (!f.layers)
        return NIB_OK;
    if (!kv_formats_print(f, s->kv_layers, sizeof s->kv_layers))
        return nib_fail(err, NIB_E_USAGE, "several devices: expected fewer formats of keys and values");
    o->kv_layers = s->kv_layers;
    return NIB_OK;
}

/* Guesses are about an average machine: if one rank's machine was not measured, all count as average ones
 * with their threads. */
static void make_alike(const engine_core *whole, plan_rates *rates, cluster_decision *d) {
    int guess = -1, measured = 0;
    for (int i = 0; i < d->n_rank; i++) {
        d->measured[i] = !(d->on_gpu ? rates[i].vram_guessed : rates[i].guessed);
        measured += d->measured[i];
        guess = d->measured[i] ? guess : i;
    }
    if (guess >= 0 && measured > 0)
        log_line(&whole->log,
                 "rank %d: 'nibble hw' has not measured its machine, so all count as equally fast", guess);
    for (int i = 0; i < d->n_rank && guess >= 0; i++) {
        const machine average = {.n_core = rates[i].n_core};
        plan_rates_of(NULL, &average, rates[i].n_thread, CLUSTER_READ, CLUSTER_READ, &rates[i]);
    }
}

/* The rates of a machine's profile, from the file that a place names. */
static nib_status rates_of_file(const cluster_place *place, int n_thread, plan_rates *out, nib_error *err) {
    hardware *h = mem_alloc(sizeof *h);
    if (!h)
        return nib_fail_nomem(err, sizeof *h, "a machine's rates");
    const nib_status status = hardware_load(place->rates, NULL, h, err);
    if (status == NIB_OK) {
        const machine there = {.n_core = h->n_thread};
        plan_rates_of(h, &there, n_thread > 0 ? n_thread : NUM_MAX(h->n_thread / place->n_beside, 1),
                      CLUSTER_READ, CLUSTER_READ, out);
    }
    mem_free(h);
    return status;
}

/* Finds the rates of all ranks: a simulated cluster's without asking one. free: the RAM of ranks that are
 * asked. */
static nib_status find_rates(const engine_core *whole, const nib_engine_options *o,
                             const cluster_places *places, pipeline **ranks, plan_rates *rates,
                             uint64_t *free, nib_error *err) {
    const bool here = places->place[places->n - 1].host == 0;
    pipeline *asked = NULL;
    if (ranks)
        NIB_TRY(pipeline_open(o, places, ranks, err));
    for (int i = 0; i < places->n && (here || places->simulated); i++) {
        const cluster_place *at = &places->place[i];
        if (at->rates[0])
            NIB_TRY(rates_of_file(at, o->n_thread, &rates[i], err));
        else
            rates_here(&whole->log, cluster_threads(o->n_thread, at->n_beside), CLUSTER_READ, CLUSTER_READ,
                       &rates[i]);
    }
    if (here || places->simulated)
        return NIB_OK;
    if (!ranks)
        NIB_TRY(pipeline_open(o, places, &asked, err));
    const nib_status status = pipeline_rates(ranks ? *ranks : asked, o, places, rates, free, err);
    pipeline_close(asked);
    return status;
}

/* Shares of a layer are added in memory that their processes share. */
static nib_status check_split(const nib_engine_options *o, const cluster_places *places, nib_error *err) {
    for (int i = 0; i < places->n; i++)
        if (o->split == NIB_SPLIT_TENSOR && places->place[i].host > 0)
            return nib_fail(err, NIB_E_USAGE,
                            "expected devices of one host to share every layer (tensor), found others: hosts "
                            "can have layers of their own (layer)");
    return NIB_OK;
}

/* Gives each rank all layers, of which it has a share. Of ranks on processors the first has the head; GPUs
 * share it. */
static nib_status share(const engine_core *whole, const cluster_places *places, pipeline **ranks,
                        cluster_decision *d, nib_error *err) {
    const int n_block = layout_n_block(whole->layout);
    if (!ranks)
        return nib_fail(err, NIB_E_USAGE, "a plan of ranks: expected ranks with layers of their own");
    for (int i = 0; i < places->n; i++)
        d->ranks[i] = (cluster_rank){{0, i == 0 || d->on_gpu ? n_block : n_block - 1}, places->place[i]};
    return pipeline_open(&d->options, places, ranks, err);
}

/* Bounds what ranks hold, also without a cap: hosts may differ much in the RAM that is free, d->caps so far.
 */
static void set_caps(const engine_core *whole, const cluster_places *places, cluster_decision *d) {
    for (int i = 0; i < places->n; i++) {
        nib_engine_options own = d->options;
        cluster_place_options(&places->place[i], &own);
        const uint64_t ram = own.ram == NIB_AUTO ? d->caps[i] : own.ram;
        d->caps[i] = sizes_beside_rows(whole, d->on_gpu ? own.vram : ram);
    }
}

static nib_status cut(const engine_core *whole, const cluster_places *places, pipeline **ranks,
                      cluster_decision *d, nib_error *err) {
    cluster_stage stages[CLUSTER_MAX_RANK];
    plan_rates *rates = mem_array((size_t)places->n, sizeof *rates);
    if (!rates)
        return nib_fail_nomem(err, (size_t)places->n * sizeof *rates, "the rates of ranks");
    cluster_cut_question q = {.layout = whole->layout,
                              .n_rank = places->n,
                              .caps = d->caps,
                              .rates = rates,
                              .n_row = d->n_row,
                              .n_position = whole->resolved.n_ctx / 2,
                              .on_gpu = d->on_gpu,
                              .streams = d->options.stream};
    for (int i = 0; i < places->n; i++)
        d->caps[i] = NIB_AUTO;
    nib_status status = find_rates(whole, &d->options, places, ranks, rates, d->caps, err);
    if (status == NIB_OK) {
        make_alike(whole, rates, d);
        set_caps(whole, places, d);
        status = sessions_bytes(whole, whole->resolved.formats, whole->resolved.n_ctx, &q.kv, err);
    }
    if (status == NIB_OK)
        status = cluster_cut(&q, stages, d->costs, err);
    for (int i = 0; i < places->n && status == NIB_OK; i++) {
        d->ranks[i] = (cluster_rank){stages[i], places->place[i]};
        snprintf(d->first[i], sizeof d->first[i], "%s", layout_block(q.layout, stages[i].first)->name);
        snprintf(d->last[i], sizeof d->last[i], "%s", layout_block(q.layout, stages[i].end - 1)->name);
        log_detail(&whole->log, "rank %d: %s to %s, about %.3g ms of a pass of %lld rows", i, d->first[i],
                   d->last[i], 1e3 * d->costs[i].seconds, (long long)q.n_row);
    }
    mem_free(rates);
    return status;
}

/* The path for ranks, which begin in other folders on other hosts. */
static nib_status find_path(const char *path, char **out, nib_error *err) {
    char *here = path[0] == '/' ? NULL : getcwd(NULL, 0);
    *out = here ? path_join(here, path) : mem_strdup(path);
    free(here);
    return *out ? NIB_OK : nib_fail_nomem(err, strlen(path), "a model's path");
}

nib_status cluster_decide(const char *name, const nib_engine_options *options, const cluster_places *places,
                          pipeline **ranks, cluster_decision *out, nib_error *err) {
    engine_core whole;
    NIB_TRY(check_options(options, err));
    NIB_TRY(check_split(options, places, err));
    out->n_rank = places->n;
    out->options = *options;
    out->options.backend = places->place[0].backend;
    out->n_sequence = NUM_MAX(NUM_MAX(options->n_session, options->n_sequence), 1);
    out->n_row = NUM_MAX(out->n_sequence / places->n, 1);
    nib_engine_options free = out->options;
    free.ram = free.vram = NIB_AUTO;
    nib_status status = headers_open(&whole, name, &free, NULL, err);
    out->on_gpu = status == NIB_OK && whole.kind->tier == NIB_TIER_VRAM;
    if (status == NIB_OK)
        status = share_sizes(&whole, out, err);
    if (status == NIB_OK)
        status = out->options.split == NIB_SPLIT_TENSOR ? share(&whole, places, ranks, out, err)
                                                        : cut(&whole, places, ranks, out, err);
    if (status == NIB_OK)
        status = find_path(whole.path, &out->model, err);
    if (status == NIB_OK && places->over_network)
        status = container_content_hash(whole.container, out->content, err);
    if (status == NIB_OK)
        out->width = model_reg_width(whole.m, REG_X);
    if (status == NIB_OK)
        snprintf(out->name, sizeof out->name, "%s", model_name(whole.m) ? model_name(whole.m) : "");
    core_close(&whole);
    return status;
}

void cluster_decision_clear(cluster_decision *d) {
    mem_free(d->model);
}
