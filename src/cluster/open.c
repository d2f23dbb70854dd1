/* open.c - nib_engine_open: an engine of one process, or the first rank of a pipeline. */
#include "base/mem.h"
#include "base/num.h"
#include "cluster/decide.h"

static nib_status open_ranks(const char *name, const nib_engine_options *options,
                             const cluster_places *places, cluster_decision *d, nib_engine **out,
                             nib_error *err) {
    pipeline *p = NULL;
    nib_engine *e = NULL;
    if (places->simulated)
        return nib_fail(err, NIB_E_USAGE, "rates= describes hosts for 'nibble plan'; expected none here");
    nib_status status = cluster_decide(name, options, places, &p, d, err);
    const cluster_setup setup = {.model = d->model,
                                 .options = d->options,
                                 .n_rank = d->n_rank,
                                 .ranks = d->ranks,
                                 .content = {d->content[0], d->content[1]},
                                 .width = d->width};
    if (status == NIB_OK)
        status = pipeline_begin(p, &setup, err);
    rank_sums *sums = status == NIB_OK ? pipeline_sums(p) : NULL;
    const engine_internal with = {.share = {0, sums ? places->n : 0},
                                  .sums = sums,
                                  .stage_first = d->ranks[0].stage.first,
                                  .stage_end = d->ranks[0].stage.end,
                                  .gpu = NUM_MAX(places->place[0].gpu, 0)};
    cluster_place_options(&places->place[0], &d->options);
    if (status == NIB_OK)
        status = engine_open(d->model, &d->options, &with, &e, err);
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
    cluster_places *places = mem_alloc(sizeof *places);
    cluster_decision *d = mem_calloc(1, sizeof *d);
    nib_status status =
        places && d ? cluster_read_places(options, places, err) : nib_fail_nomem(err, sizeof *d, "ranks");
    if (status == NIB_OK && places->n == 1)
        status = open_place(name, options, &places->place[0], out, err);
    else if (status == NIB_OK)
        status = open_ranks(name, options, places, d, out, err);
    if (d)
        cluster_decision_clear(d);
    mem_free(d);
    mem_free(places);
    return status;
}
