/* profile_activity.c - nibble profile --activity: what parts of the layers do anything, and which together.
 */
#include "cli/profile_model.h"
#include "cli/sheet.h"

#include "base/mem.h"
#include "base/num.h"
#include "measure/measure.h"

#include <math.h>

static const coactivity_rule rule = {.min_pmi = 0.5, .least_share = 0.3, .max = 256};

typedef struct findings {
    double neurons;          /* share of neurons that act */
    double min, max;         /* share of tokens at which the rarest and the commonest group acts */
    double information;      /* nats a pair */
    int n_cluster, n_joined; /* clusters; parts that are in one with others */
    int largest;
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

static int show(const cli_args *args, const calibration *c, const activity *a, const findings *f) {
    if (args->json)
        return cli_write_json(json_pack("{s:s, s:I, s:i, s:i, s:f, s:f, s:f, s:f, s:i, s:i, s:i}",
                                        "prompts_are", c->what, "tokens", (json_int_t)a->parts.n_token,
                                        "parts", a->parts.n, "groups", a->n_group, "active_neurons",
                                        f->neurons, "least_share", f->min, "most_share", f->max,
                                        "information", f->information, "clusters", f->n_cluster, "joined",
                                        f->n_joined, "largest", f->largest),
                              args);
    const sheet s = sheet_open(args, stdout);
    sheet_line(&s, "%d parts: attention and %d groups of neurons in each of %d layers; %s", a->parts.n,
               a->n_group, a->n_layer, c->what);
    sheet_line(&s, "active: %.2f %% of all neurons; a part at %.1f to %.1f %% of the tokens",
               100 * f->neurons, 100 * f->min, 100 * f->max);
    sheet_line(&s, "what one part's activity tells of another's: %s nats on average",
               num_text(f->information, 2));
    if (f->min == 1)
        sheet_line(
            &s, "every part is always active: there is nothing to learn from which are, the order is known");
    else
        sheet_line(&s,
                   "%d clusters (PMI of at least %.1f): %d parts are in one with others, %d in the largest",
                   f->n_cluster, rule.min_pmi, f->n_joined, f->largest);
    return 0;
}

int profile_activity_run(const cli_args *args) {
    nib_engine_options options;
    calibration prompts;
    activity a = {0};
    findings f = {0};
    nib_error err;
    cli_engine_options(args, &options);
    nib_status status = measure_prompts(args->model, &options, args->calib, &prompts, &err);
    if (status == NIB_OK)
        status = measure_activity(args->model, &options, &prompts, args->activity_above, &a, &err);
    if (status == NIB_OK)
        status = find(&a, &f, &err);
    const int code = status == NIB_OK ? show(args, &prompts, &a, &f) : cli_fail(&err);
    calibration_clear(&prompts);
    coactivity_close(&a.parts);
    return code;
}
