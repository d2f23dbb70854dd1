/* popularity.c - nib_profile_experts: which experts the routers choose on the calibration prompts. */
#include "base/jsonx.h"
#include "base/mem.h"
#include "measure/measure.h"
#include "measure/product_inputs.h"
#include "nib_tools.h"
#include "profile/popularity.h"

#include <stdlib.h>
#include <string.h>

typedef struct counting {
    const layout *layout;
    popularity *out;
    const calibration *prompts;
    probe probe;
} counting;

/* The chosen experts of each row are the first half of its values. */
static void count(void *user, const probe_data *s) {
    const counting *c = user;
    if (s->point != PROBE_CHOSEN)
        return;
    double *of = c->out->share + layout_block(c->layout, s->block)->layer * c->out->n_expert;
    for (int64_t r = 0; r < s->n_row; r++)
        for (int64_t i = 0; i < s->width / 2; i++)
            of[(int64_t)s->x[r * s->width + i]] += 1;
}

static nib_status begin(void *user, const engine_parts *e, nib_error *err) {
    counting *c = user;
    const hparams *hp = model_hparams(e->m);
    c->layout = e->layout;
    if (hp->n_expert == 0)
        return nib_fail(err, NIB_E_USAGE, "--experts: expected a mixture of experts, found a model without");
    return popularity_begin(c->out, (int)hp->n_layer, (int)hp->n_expert, err);
}

static nib_status measure(const char *name, const nib_engine_options *options, counting *c, nib_error *err) {
    c->probe = (probe){.point = count, .user = c};
    const product_watch how = {
        .begin = begin, .probe = &c->probe, .what = "counting chosen experts", .user = c};
    NIB_TRY(measure_product_inputs(name, options, c->prompts, &how, err));
    popularity *p = c->out;
    p->n_token = c->prompts->begin[c->prompts->n_prompt];
    for (int i = 0; i < p->n_layer * p->n_expert; i++)
        p->share[i] /= (double)p->n_token;
    memcpy(p->content, c->prompts->content, sizeof p->content);
    memcpy(p->prompts, c->prompts->hash, sizeof p->prompts);
    return NIB_OK;
}

/* Loads what was stored, or measures and stores it. */
static nib_status get(const char *name, const nib_engine_options *options, bool again, const char *path,
                      counting *c, bool *found, bool *lost, nib_error *err) {
    const logger log = {.fn = options->log, .user = options->user};
    nib_error why;
    *found = !again && popularity_load(path, c->prompts->content, c->out, &why) == NIB_OK;
    if (*found)
        return NIB_OK;
    NIB_TRY(measure(name, options, c, err));
    *lost = popularity_save(path, c->out, &why) != NIB_OK;
    if (*lost)
        log_line(&log, "the shares of experts were not stored: %s", why.message);
    return NIB_OK;
}

static int by_share(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* The share of choices that the most popular quarter of a layer's experts has; sorts the shares. */
static double quarter_of(double *share, int n) {
    double all = 0, first = 0;
    qsort(share, (size_t)n, sizeof *share, by_share);
    for (int i = 0; i < n; i++) {
        all += share[i];
        first += i < (n + 3) / 4 ? share[i] : 0;
    }
    return all > 0 ? first / all : 0;
}

static char *document(popularity *p, const char *path, bool found) {
    json_t *doc = NULL, *quarter = json_array();
    char *text = NULL;
    bool ok = true;
    if (popularity_print(p, &text, NULL) == NIB_OK)
        (void)jsonx_parse(text, strlen(text), &doc, NULL);
    mem_free(text);
    for (int l = 0; l < p->n_layer; l++)
        ok = jsonx_add(quarter, json_real(quarter_of(p->share + l * p->n_expert, p->n_expert))) && ok;
    ok = jsonx_put(doc, "quarter", quarter) && ok;
    ok = jsonx_put(doc, "path", path ? jsonx_string(path, strlen(path)) : json_null()) && ok;
    doc = jsonx_whole(doc, jsonx_put(doc, "found", json_boolean(found)) && ok);
    text = doc ? jsonx_text(doc, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(doc);
    return text;
}

nib_status nib_profile_experts(const char *name, const nib_engine_options *options,
                               const nib_profile_options *how, char **json, nib_error *err) {
    calibration prompts = {0};
    popularity out = {0};
    counting c = {.out = &out, .prompts = &prompts};
    bool found = false, lost = false;
    char *path = NULL;
    *json = NULL;
    nib_status status = measure_prompts(name, options, how->calib, true, &prompts, err);
    if (status == NIB_OK) {
        path = how->file ? mem_strdup(how->file) : popularity_path(prompts.content, prompts.hash);
        status = path ? get(name, options, how->again, path, &c, &found, &lost, err)
                      : nib_fail_nomem(err, 256, "a path");
    }
    if (status == NIB_OK) {
        *json = document(&out, lost ? NULL : path, found);
        status = *json ? NIB_OK : nib_fail_nomem(err, 0, "shares of experts");
    }
    popularity_clear(&out);
    calibration_clear(&prompts);
    mem_free(path);
    return status;
}
