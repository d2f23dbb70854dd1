/* open.c - nib_engine_open: an engine of one process, or the first rank of a pipeline. */
#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"
#include "cluster/pipeline.h"
#include "engine/headers.h"
#include "engine/sessions.h"
#include "engine/sizes.h"
#include "memory/device.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The decisions that all ranks share, from the whole model. */
typedef struct shared {
    nib_engine_options options;
    cluster_rank ranks[CLUSTER_MAX_RANK];
    char kv_layers[1024];
    int64_t width; /* of the residual stream */
    char *model;
    uint64_t content[2];
} shared;

/* What needs the whole model in one process. */
static nib_status check_options(const nib_engine_options *o, nib_error *err) {
    const char *what = o->plan       ? "a plan"
                       : o->planning ? "a plan's targets"
                       : o->residual ? "residuals"
                                     : NULL;
    return what ? nib_fail(err, NIB_E_USAGE, "several devices: expected no %s, which they do not have yet",
                           what)
                : NIB_OK;
}

/* Sizes and formats follow from the whole model without caps, so that a pipeline's answers are those of one
 * process; each rank's caps then decide where its weights are. */
static nib_status share_sizes(const engine_core *whole, shared *s, nib_error *err) {
    const kv_formats f = whole->resolved.formats;
    nib_engine_options *o = &s->options;
    o->n_ctx = whole->resolved.n_ctx;
    o->n_batch = whole->resolved.n_batch;
    o->kv_layers = NULL;
    for (int kv = NIB_KV_F16; kv <= NIB_KV_4H; kv++) {
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

static nib_status cut(const engine_core *whole, const nib_engine_options *o, const cluster_places *places,
                      cluster_stage *out, nib_error *err) {
    const int n_block = layout_n_block(whole->layout);
    for (int i = 0; i < places->n && o->split == NIB_SPLIT_TENSOR; i++) /* the first rank has the head */
        out[i] = (cluster_stage){0, i == 0 ? n_block : n_block - 1};
    if (o->split == NIB_SPLIT_TENSOR)
        return NIB_OK;
    uint64_t caps[CLUSTER_MAX_RANK];
    for (int i = 0; i < places->n; i++) {
        nib_engine_options own = *o;
        cluster_place_options(&places->place[i], &own);
        caps[i] = sizes_beside_rows(whole, whole->kind->tier == NIB_TIER_VRAM ? own.vram : own.ram);
    }
    cluster_cut_question q = {.layout = whole->layout, .n_rank = places->n, .caps = caps};
    NIB_TRY(sessions_bytes(whole, whole->resolved.formats, whole->resolved.n_ctx, &q.kv, err));
    return cluster_cut(&q, out, err);
}

/* The path for ranks, which begin in other folders on other hosts. */
static nib_status find_path(const char *path, char **out, nib_error *err) {
    char *here = path[0] == '/' ? NULL : getcwd(NULL, 0);
    *out = here ? path_join(here, path) : mem_strdup(path);
    free(here);
    return *out ? NIB_OK : nib_fail_nomem(err, strlen(path), "a model's path");
}

static nib_status decide(const char *name, const cluster_places *places, shared *s, nib_error *err) {
    cluster_stage stages[CLUSTER_MAX_RANK];
    nib_engine_options free = s->options;
    engine_core whole;
    free.ram = free.vram = NIB_AUTO;
    nib_status status = headers_open(&whole, name, &free, NULL, err);
    if (status == NIB_OK)
        status = share_sizes(&whole, s, err);
    if (status == NIB_OK)
        status = cut(&whole, &s->options, places, stages, err);
    if (status == NIB_OK)
        status = find_path(whole.path, &s->model, err);
    if (status == NIB_OK && places->over_network)
        status = container_content_hash(whole.container, s->content, err);
    if (status == NIB_OK)
        s->width = model_reg_width(whole.m, REG_X);
    core_close(&whole);
    for (int i = 0; i < places->n && status == NIB_OK; i++)
        s->ranks[i] = (cluster_rank){stages[i], places->place[i]};
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

static nib_status open_ranks(const char *name, const nib_engine_options *options,
                             const cluster_places *places, shared *s, nib_engine **out, nib_error *err) {
    pipeline *p = NULL;
    nib_engine *e = NULL;
    NIB_TRY(check_split(options, places, err));
    s->options = *options;
    s->options.backend = places->place[0].backend;
    NIB_TRY(decide(name, places, s, err));
    const cluster_setup setup = {.model = s->model,
                                 .options = s->options,
                                 .n_rank = places->n,
                                 .ranks = s->ranks,
                                 .content = {s->content[0], s->content[1]},
                                 .width = s->width};
    NIB_TRY(pipeline_open(&setup, places, &p, err));
    const engine_internal with = {.share = {0, pipeline_sums(p) ? places->n : 0},
                                  .sums = pipeline_sums(p),
                                  .stage_first = s->ranks[0].stage.first,
                                  .stage_end = s->ranks[0].stage.end,
                                  .gpu = NUM_MAX(places->place[0].gpu, 0)};
    cluster_place_options(&places->place[0], &s->options);
    nib_status status = engine_open(s->model, &s->options, &with, &e, err);
    if (status == NIB_OK)
        status = pipeline_join(p, e, err);
    if (status == NIB_OK) {
        *out = e;
        return NIB_OK;
    }
    nib_engine_close(e);
    pipeline_close(p);
    return status;
}

/* Reads the options' places. */
static nib_status read_places(const nib_engine_options *o, cluster_places *out, nib_error *err) {
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

static nib_status open_place(const char *name, const nib_engine_options *options, const cluster_place *place,
                             nib_engine **out, nib_error *err) {
    nib_engine_options one = *options;
    const engine_internal with = {.gpu = NUM_MAX(place->gpu, 0)};
    one.backend = place->backend;
    cluster_place_options(place, &one);
    return engine_open_planned(name, &one, &with, out, err);
}

nib_status nib_engine_open(const char *name, const nib_engine_options *options, nib_engine **out,
                           nib_error *err) {
    if (options && options->split == NIB_SPLIT_TENSOR && !options->devices && !options->hosts)
        log_line(&(logger){options->log, options->user, options->log_details},
                 "--split-mode tensor has no effect without --devices");
    if (!options || options->vocab_only || (!options->devices && !options->hosts))
        return engine_open_planned(name, options, NULL, out, err);
    NIB_TRY(check_options(options, err));
    cluster_places *places = mem_alloc(sizeof *places);
    shared *s = mem_calloc(1, sizeof *s);
    nib_status status =
        places && s ? read_places(options, places, err) : nib_fail_nomem(err, sizeof *s, "ranks");
    if (status == NIB_OK && places->n == 1)
        status = open_place(name, options, &places->place[0], out, err);
    else if (status == NIB_OK)
        status = open_ranks(name, options, places, s, out, err);
    if (s)
        mem_free(s->model);
    mem_free(s);
    mem_free(places);
    return status;
}
