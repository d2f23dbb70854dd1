/* activity_summary.c - summarises active parts of the layers, and parts that are active together; see
 * nib_tools.h. */
#include "nib_tools.h"

#include "base/jsonx.h"
#include "base/mem.h"
#include "base/num.h"
#include "measure/measure.h"

#include <math.h>
#include <string.h>

static const coactivity_rule rule = {.min_pmi = 0.5, .min_share = 0.3, .max = 256};

typedef struct findings {
    double neurons;  /* share of active neurons */
    double min, max; /* share of tokens for which the least and the most frequently active part is active */
    double information;      /* nats a pair */
    int n_cluster, n_joined; /* clusters; parts that share a cluster with others */
    int largest;             /* parts of the largest cluster */
} findings;

static nib_status find(const activity *a, findings *f, nib_error *err) {
    int *cluster = mem_calloc((size_t)a->parts.n, sizeof *cluster);
    int *size = mem_calloc((size_t)a->parts.n, sizeof *size);
    nib_status status = cluster && size ? coactivity_cluster(&a->parts, &rule, cluster, &f->n_cluster, err)
                                        : nib_fail_nomem(err, 0, "clusters");
    f->neurons = a->n_neuron ? (double)a->n_active / (double)a->n_neuron : 0;
    f->min = 1;
    f->information = coactivity_information(&a->parts);
    for (int i = 0; status == NIB_OK && i < a->parts.n; i++) {
        f->min = fmin(f->min, coactivity_share(&a->parts, i));
        f->max = fmax(f->max, coactivity_share(&a->parts, i));
        size[cluster[i]]++;
        f->largest = NUM_MAX(f->largest, size[cluster[i]]);
    }
    for (int i = 0; status == NIB_OK && i < a->parts.n; i++)
        f->n_joined += size[cluster[i]] > 1;
    mem_free(cluster);
    mem_free(size);
    return status;
}

static nib_status give(const calibration *c, const activity *a, const findings *f, char **json,
                       nib_error *err) {
    json_t *doc =
        json_pack("{s:o, s:I, s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:i, s:i, s:i}", "prompts_are",
                  jsonx_string(c->what, strlen(c->what)), "tokens", (json_int_t)a->parts.n_token, "layers",
                  a->n_layer, "parts", a->parts.n, "groups", a->n_group, "active_neurons", f->neurons,
                  "min_share", f->min, "max_share", f->max, "information", f->information, "min_pmi",
                  rule.min_pmi, "clusters", f->n_cluster, "joined", f->n_joined, "largest", f->largest);
    *json = doc ? jsonx_text(doc, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(doc);
    return *json ? NIB_OK : nib_fail_nomem(err, 0, "a summary");
}

nib_status nib_profile_activity(const char *name, const nib_engine_options *options, const char *calib,
                                double min, char **json, nib_error *err) {
    calibration prompts;
    activity a = {0};
    findings f = {0};
    *json = NULL;
    nib_status status = measure_prompts(name, options, calib, false, &prompts, err);
    if (status == NIB_OK)
        status = measure_activity(name, options, &prompts, min, &a, err);
    if (status == NIB_OK)
        status = find(&a, &f, err);
    if (status == NIB_OK)
        status = give(&prompts, &a, &f, json, err);
    calibration_clear(&prompts);
    coactivity_close(&a.parts);
    return status;
}
