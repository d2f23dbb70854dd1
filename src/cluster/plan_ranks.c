/* plan_ranks.c - nib_plan_ranks: the stages of a pipeline, what they hold and how fast they are, as JSON. */
#include "nib_tools.h"

#include "base/jsonx.h"
#include "base/mem.h"
#include "base/num.h"
#include "cluster/decide.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static json_t *bytes_json(double n) {
    return json_integer((json_int_t)fmin(n, 9e18));
}

/* The bytes of a rank on each tier: what its memory holds, and where the rest comes from. */
static json_t *tiers_json(const cluster_decision *d, int rank) {
    const cluster_stage_cost *c = &d->costs[rank];
    const cluster_place *at = &d->ranks[rank].place;
    const double first = c->held - c->over;
    const uint64_t cap = at->ram != NIB_AUTO ? at->ram : d->options.ram;
    const double ram = cap == NIB_AUTO ? c->over : fmin(c->over, (double)cap);
    return d->on_gpu ? json_pack("{s:o, s:o, s:o}", "vram", bytes_json(first), "ram", bytes_json(ram), "disk",
                                 bytes_json(c->over - ram))
                     : json_pack("{s:o, s:o}", "ram", bytes_json(first), "disk", bytes_json(c->over));
}

static json_t *rank_json(const cluster_decision *d, int rank, double slowest) {
    const cluster_stage_cost *c = &d->costs[rank];
    const cluster_rank *r = &d->ranks[rank];
    char kind[32];
    if (r->place.gpu >= 0)
        snprintf(kind, sizeof kind, "gpu %d", r->place.gpu);
    else
        snprintf(kind, sizeof kind, "%s", r->place.backend);
    return json_pack("{s:i, s:o, s:s, s:[i,i], s:s, s:s, s:o, s:o, s:o, s:o, s:f, s:f, s:s}", "rank", rank,
                     "host", jsonx_string(r->place.name, strlen(r->place.name)), "device", kind, "blocks",
                     r->stage.first, r->stage.end - 1, "first", d->first[rank], "last", d->last[rank],
                     "weights", bytes_json(c->held - c->kv), "kv", bytes_json(c->kv), "cap",
                     d->caps[rank] == UINT64_MAX ? json_null() : bytes_json((double)d->caps[rank]), "tiers",
                     tiers_json(d, rank), "pass_s", c->seconds, "busy", c->seconds / slowest, "rates",
                     r->place.rates[0]   ? "file"
                     : d->measured[rank] ? "measured"
                                         : "guess");
}

static json_t *document(const cluster_decision *d, bool simulated) {
    double all = 0, one = 0, slowest = 0;
    int binds = 0;
    json_t *ranks = json_array();
    for (int i = 0; i < d->n_rank; i++) {
        all += d->costs[i].seconds;
        one += d->costs[i].one_row;
        binds = d->costs[i].seconds > d->costs[binds].seconds ? i : binds;
    }
    slowest = d->costs[binds].seconds;
    for (int i = 0; ranks && i < d->n_rank; i++)
        json_array_append_new(ranks, rank_json(d, i, slowest));
    const double tok_s = fmin((double)d->n_row / slowest, (double)d->n_sequence / all);
    return json_pack("{s:o, s:b, s:I, s:I, s:I, s:o, s:{s:f, s:f}, s:i}", "model",
                     jsonx_string(d->name, strlen(d->name)), "simulated", simulated, "n_sequence",
                     (json_int_t)d->n_sequence, "n_row", (json_int_t)d->n_row, "n_ctx",
                     (json_int_t)d->options.n_ctx, "ranks", ranks, "predicted", "tok_s", tok_s, "one_tok_s",
                     1 / one, "binds", binds);
}

nib_status nib_plan_ranks(const char *name, const nib_engine_options *options, char **json, nib_error *err) {
    cluster_places *places = mem_alloc(sizeof *places);
    cluster_decision *d = mem_calloc(1, sizeof *d);
    nib_status status =
        places && d ? cluster_read_places(options, places, err) : nib_fail_nomem(err, sizeof *d, "ranks");
    if (status == NIB_OK)
        status = cluster_decide(name, options, places, NULL, d, err);
    if (status == NIB_OK) {
        json_t *all = document(d, places->simulated);
        *json = all ? jsonx_text(all, JSON_INDENT(1) | JSON_REAL_PRECISION(7)) : NULL;
        json_decref(all);
        status = *json ? NIB_OK : nib_fail_nomem(err, sizeof *d, "a plan of ranks");
    }
    if (d)
        cluster_decision_clear(d);
    mem_free(d);
    mem_free(places);
    return status;
}
