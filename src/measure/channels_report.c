/* channels_report.c - the statistics of channels as JSON, for people: where outliers are. */
#include "base/jsonx.h"
#include "base/mem.h"
#include "base/num.h"
#include "hub/find.h"
#include "measure/channels.h"
#include "measure/measure.h"
#include "model/sites.h"
#include "nib_tools.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { N_STRONGEST = 4 };

typedef struct report {
    const model *m;
    model_sites sites;
    channel_stats stats;
    calibration prompts;
    float *scratch;
} report;

/* Writes "q+k+v": the products of block b that read a site. False: none does. */
static bool products_of(const report *r, int b, int site, char *out, size_t size) {
    const block *at = model_block(r->m, b);
    size_t n = 0;
    *out = 0;
    for (int w = 0; w < at->n_weight; w++)
        if (r->sites.of[r->sites.first[b] + w] == site && n < size)
            n += (size_t)snprintf(out + n, size - n, "%s%s", n ? "+" : "", at->weights[w].name);
    return n > 0;
}

/* Adds the strongest channels, each with its 99.9th percentile divided by the site's median. */
static bool add_strongest(json_t *to, const float *upper, int64_t k, float middle) {
    json_t *list = json_array();
    bool ok = true;
    float below = INFINITY;
    for (int n = 0; n < N_STRONGEST && middle > 0; n++) {
        int64_t best = -1;
        for (int64_t i = 0; i < k; i++)
            if (upper[i] < below && (best < 0 || upper[i] > upper[best]))
                best = i;
        if (best < 0)
            break;
        below = upper[best];
        ok = jsonx_add(list, json_pack("{s:I, s:f}", "channel", (json_int_t)best, "ratio",
                                       (double)(upper[best] / middle))) &&
             ok;
    }
    return jsonx_put(to, "strongest", list) && ok;
}

static json_t *site_json(const report *r, int b, int site, const char *products) {
    const uint64_t first = r->stats.upper.first[site];
    const float *upper = r->stats.upper.mean + first, *largest = r->stats.largest.mean + first;
    const int64_t k = r->sites.k[site], layer = model_block(r->m, b)->layer;
    const float middle = channels_median(upper, k, r->scratch);
    int64_t n = 0, top = 0;
    for (int64_t i = 0; i < k; i++) {
        n += (double)upper[i] > CHANNELS_OUTLIER * (double)middle;
        top = largest[i] > largest[top] ? i : top;
    }
    json_t *of =
        json_pack("{s:s, s:I, s:I, s:f, s:f}", "products", products, "channels", (json_int_t)k, "outliers",
                  (json_int_t)n, "median", (double)middle, "largest", (double)largest[top]);
    bool ok = jsonx_put(of, "layer", layer >= 0 ? json_integer(layer) : json_null());
    ok = add_strongest(of, upper, k, middle) && ok;
    return jsonx_whole(of, ok);
}

static json_t *sites_json(const report *r) {
    json_t *list = json_array();
    bool ok = true;
    char products[96];
    const int n = model_n_block(r->m);
    for (int i = 1; i <= n; i++) /* a tied head is the first block's weight: last */
        for (int s = 0, b = i % n; s < r->sites.n_site; s++)
            if (products_of(r, b, s, products, sizeof products))
                ok = jsonx_add(list, site_json(r, b, s, products)) && ok;
    return jsonx_whole(list, ok);
}

static nib_status make(report *r, const char *name, const nib_engine_options *options, const char *calib,
                       char **json, nib_error *err) {
    int64_t widest = 1;
    NIB_TRY(measure_prompts(name, options, calib, true, &r->prompts, err));
    NIB_TRY(sites_open(&r->sites, r->m, err));
    for (int s = 0; s < r->sites.n_site; s++)
        widest = NUM_MAX(widest, r->sites.k[s]);
    r->scratch = mem_array((size_t)widest, sizeof *r->scratch);
    if (!r->scratch)
        return nib_fail_nomem(err, (size_t)widest * sizeof *r->scratch, "statistics of channels");
    NIB_TRY(channels_get(name, options, &r->prompts, r->m, &r->stats, err));
    json_t *doc = json_object();
    const int64_t n_token = r->prompts.n_prompt ? r->prompts.begin[r->prompts.n_prompt] : 0;
    bool ok = jsonx_put(doc, "n_token", json_integer(n_token));
    ok = jsonx_put(doc, "outlier", json_real(CHANNELS_OUTLIER)) && ok;
    ok = jsonx_put(doc, "sites", sites_json(r)) && ok;
    doc = jsonx_whole(doc, ok);
    *json = doc ? jsonx_text(doc, JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL;
    json_decref(doc);
    return *json ? NIB_OK : nib_fail_nomem(err, 0, "statistics of channels");
}

nib_status nib_profile_channels(const char *name, const nib_engine_options *options, const char *calib,
                                char **json, nib_error *err) {
    const logger log = {.fn = options->log, .user = options->user};
    report r = {0};
    char *path = NULL;
    model *m = NULL;
    *json = NULL;
    NIB_TRY(model_find(name, &path, err));
    nib_status status = model_open_headers(path, &log, NULL, false, &m, err);
    r.m = m;
    if (status == NIB_OK)
        status = make(&r, name, options, calib, json, err);
    channels_clear(&r.stats);
    sites_close(&r.sites);
    calibration_clear(&r.prompts);
    mem_free(r.scratch);
    model_close(m);
    mem_free(path);
    return status;
}
