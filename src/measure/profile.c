/* profile.c - loads a model's profile from its files, or measures and stores it; see nib_tools.h. */
#include "nib_tools.h"

#include "base/file.h"
#include "base/jsonx.h"
#include "base/mem.h"
#include "base/thread.h"
#include "measure/measure.h"
#include "numbers/recipe.h"

#include <string.h>

/* The state of one of the two documents. */
typedef struct kept {
    char *path;
    bool found; /* an existing one was loaded */
    bool lost;  /* it was measured, but could not be stored */
    double seconds;
} kept;

typedef struct work {
    const char *model;
    const nib_engine_options *options;
    const nib_profile_options *how;
    logger log;
    calibration prompts;
    importance layers;
    quality costs;
    calibration texts; /* for the losses of keys and values */
    kv_loss kv;
    model_imatrix channels; /* for formats that use an imatrix (u4g64w) */
    kept layers_at, costs_at, kv_at;
    char *channels_path;
    const char *formats[QUALITY_FORMATS]; /* formats whose costs are requested */
    int n_format;
    char *list; /* copy of the given list of names; NULL: the defaults */
} work;

static void work_close(work *w) {
    calibration_clear(&w->prompts);
    importance_clear(&w->layers);
    quality_clear(&w->costs);
    calibration_clear(&w->texts);
    kv_loss_clear(&w->kv);
    imatrix_clear(&w->channels);
    mem_free(w->layers_at.path);
    mem_free(w->costs_at.path);
    mem_free(w->kv_at.path);
    mem_free(w->channels_path);
    mem_free(w->list);
}

/* Chooses the paths. A named file is for the costs if they are requested, else for the importance. */
static nib_status choose_paths(work *w, nib_error *err) {
    const char *content = w->prompts.content, *prompts = w->prompts.hash, *given = w->how->file;
    w->layers_at.path = given && !w->how->costs ? mem_strdup(given) : importance_path(content, prompts);
    w->costs_at.path = given && w->how->costs ? mem_strdup(given) : quality_path(content, prompts);
    w->channels_path = imatrix_path(content, prompts);
    return w->layers_at.path && w->costs_at.path && w->channels_path ? NIB_OK
                                                                     : nib_fail_nomem(err, 256, "a path");
}

/* Chooses the formats: the default ones, or the listed ones. */
static nib_status choose_formats(work *w, nib_error *err) {
    w->n_format = measure_n_format;
    memcpy(w->formats, measure_formats, (size_t)measure_n_format * sizeof *measure_formats);
    if (!w->how->formats)
        return NIB_OK;
    w->list = mem_strdup(w->how->formats);
    if (!w->list)
        return nib_fail_nomem(err, strlen(w->how->formats), "a list of formats");
    w->n_format = 0;
    type_name_small(w->list);
    char *left = w->list;
    for (char *name; (name = strsep(&left, ",")) != NULL; w->formats[w->n_format++] = name) {
        recipe r;
        if (strlen(name) >= QUALITY_NAME || !recipe_parse(name, 1, &r) || w->n_format == QUALITY_FORMATS)
            return nib_fail(err, NIB_E_USAGE,
                            "--formats: expected at most %d uniform formats (as u4g64a) with commas between "
                            "them, found \"%.40s\" in \"%.200s\"",
                            QUALITY_FORMATS, name, w->how->formats);
    }
    return NIB_OK;
}

/* Handles the result of storing a measurement. A failure is an error for a requested file, and only logged
 * for the cache. */
static nib_status keep(const work *w, kept *at, bool asked, nib_status status, nib_error *err) {
    at->lost = status != NIB_OK;
    if (!at->lost || asked)
        return status;
    log_line(&w->log, "the measurements were not stored: %s", err ? err->message : nib_status_text(status));
    return NIB_OK;
}

/* ---- finding or measuring ---- */

static nib_status get_layers(work *w, nib_error *err) {
    const double start = time_now();
    nib_error why;
    if (!w->how->again) {
        const nib_status status = importance_load(w->layers_at.path, w->prompts.content, &w->layers, &why);
        w->layers_at.found = status == NIB_OK && !strcmp(w->layers.prompts, w->prompts.hash);
        if (status != NIB_OK && status != NIB_E_NOTFOUND)
            log_line(&w->log, "%s: measured again", why.message);
        if (w->layers_at.found)
            return NIB_OK;
        importance_clear(&w->layers);
    }
    NIB_TRY(measure_importance(w->model, w->options, &w->prompts, &w->layers, err));
    w->layers_at.seconds = time_now() - start;
    return keep(w, &w->layers_at, w->how->file && !w->how->costs,
                importance_save(w->layers_at.path, &w->layers, &why), &why) == NIB_OK
               ? NIB_OK
               : nib_fail(err, why.status, "%s", why.message);
}

/* Whether the loaded costs contain all requested formats. */
static bool has_formats(const work *w) {
    int n = 0;
    for (int i = 0; i < w->n_format; i++)
        for (int j = 0; j < w->costs.n_format; j++)
            n += !strcmp(w->formats[i], w->costs.format[j]);
    return n == w->n_format;
}

static nib_status get_costs(work *w, nib_error *err) {
    const double start = time_now();
    nib_error why;
    if (!w->how->again) {
        const nib_status status = quality_load(w->costs_at.path, w->prompts.content, &w->costs, &why);
        w->costs_at.found = status == NIB_OK && !strcmp(w->costs.prompts, w->prompts.hash) &&
                            has_formats(w) && path_exists(w->channels_path);
        if (status != NIB_OK && status != NIB_E_NOTFOUND)
            log_line(&w->log, "%s: measured again", why.message);
        if (w->costs_at.found)
            return NIB_OK;
        quality_clear(&w->costs);
    }
    const quality_options o = {
        .formats = w->formats, .n_format = w->n_format, .change = w->layers.raw[IMPORTANCE_COSINE]};
    NIB_TRY(measure_quality(w->model, w->options, &w->prompts, &o, &w->costs, &w->channels, err));
    w->costs_at.seconds = time_now() - start;
    nib_status status = imatrix_save(w->channels_path, &w->channels, &why);
    if (status == NIB_OK)
        status = quality_save(w->costs_at.path, &w->costs, &why);
    return keep(w, &w->costs_at, w->how->file != NULL, status, &why) == NIB_OK
               ? NIB_OK
               : nib_fail(err, why.status, "%s", why.message);
}

/* The losses of keys and values are a file of their own, so that costs of earlier versions stay valid. */
static nib_status get_kv(work *w, nib_error *err) {
    const double start = time_now();
    nib_error why;
    NIB_TRY(measure_prompts(w->model, w->options, w->how->calib, true, &w->texts, err));
    w->kv_at.path = kv_loss_path(w->texts.content, w->texts.hash);
    if (!w->kv_at.path)
        return nib_fail_nomem(err, 256, "a path");
    if (!w->how->again) {
        const nib_status status = kv_loss_load(w->kv_at.path, w->texts.content, &w->kv, &why);
        w->kv_at.found = status == NIB_OK && !strcmp(w->kv.prompts, w->texts.hash);
        if (status != NIB_OK && status != NIB_E_NOTFOUND)
            log_line(&w->log, "%s: measured again", why.message);
        if (w->kv_at.found)
            return NIB_OK;
        kv_loss_clear(&w->kv);
    }
    NIB_TRY(measure_kv_loss(w->model, w->options, &w->texts, &w->kv, err));
    w->kv_at.seconds = time_now() - start;
    return keep(w, &w->kv_at, false, kv_loss_save(w->kv_at.path, &w->kv, &why), &why);
}

/* ---- the document ---- */

/* Adds the path, the source and the duration to a profile's JSON; takes `text`. NULL: out of memory. */
static json_t *with_story(nib_status status, char *text, const kept *at) {
    json_t *doc = NULL;
    if (status == NIB_OK)
        (void)jsonx_parse(text, strlen(text), &doc, NULL);
    mem_free(text);
    json_t *path = at->lost ? json_null() : jsonx_string(at->path, strlen(at->path));
    bool ok = jsonx_put(doc, "path", path);
    ok = jsonx_put(doc, "found", json_boolean(at->found)) && ok;
    return jsonx_whole(doc, jsonx_put(doc, "seconds", json_real(at->seconds)) && ok);
}

static json_t *layers_json(const work *w) {
    const importance *p = &w->layers;
    char *text = NULL;
    const nib_status status = importance_print(p, &text, NULL);
    json_t *doc = with_story(status, text, &w->layers_at), *a16 = json_array();
    bool ok = true;
    for (int l = 0; l < p->n_layer; l++)
        if (p->score[l] >= IMPORTANCE_TAU)
            ok = jsonx_add(a16, json_integer(l)) && ok;
    ok = jsonx_put(doc, "tau", json_real(IMPORTANCE_TAU)) && ok;
    ok = jsonx_put(doc, "a16_layers", a16) && ok;
    ok = jsonx_put(doc, "prompts_are", jsonx_string(w->prompts.what, strlen(w->prompts.what))) && ok;
    if (!w->layers_at.found)
        ok = jsonx_put(doc, "rss_peak", json_integer((json_int_t)p->rss_peak)) &&
             jsonx_put(doc, "model_bytes", json_integer((json_int_t)p->model_bytes)) && ok;
    return jsonx_whole(doc, ok);
}

/* Writes the result; costs: they were measured too. */
static nib_status give(const work *w, bool costs, char **json, nib_error *err) {
    json_t *doc = layers_json(w);
    if (costs) {
        char *text = NULL;
        const nib_status status = quality_print(&w->costs, &text, NULL);
        doc = jsonx_whole(doc, jsonx_put(doc, "quality", with_story(status, text, &w->costs_at)));
        text = NULL;
        const nib_status printed = kv_loss_print(&w->kv, &text, NULL);
        doc = jsonx_whole(doc, jsonx_put(doc, "kv", with_story(printed, text, &w->kv_at)));
    }
    *json = doc ? jsonx_text(doc, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(doc);
    return *json ? NIB_OK : nib_fail_nomem(err, 0, "a profile");
}

static nib_status profile(work *w, char **json, nib_error *err) {
    NIB_TRY(measure_prompts(w->model, w->options, w->how->calib, false, &w->prompts, err));
    NIB_TRY(choose_paths(w, err));
    NIB_TRY(choose_formats(w, err));
    NIB_TRY(get_layers(w, err));
    nib_status status = w->how->costs ? get_costs(w, err) : NIB_OK;
    if (status == NIB_OK && w->how->costs)
        status = get_kv(w, err);
    const nib_status given = give(w, w->how->costs && status == NIB_OK, json, status == NIB_OK ? err : NULL);
    return status != NIB_OK ? status : given;
}

nib_status nib_profile_model(const char *name, const nib_engine_options *options,
                             const nib_profile_options *how, char **json, nib_error *err) {
    work w = {
        .model = name, .options = options, .how = how, .log = {.fn = options->log, .user = options->user}};
    *json = NULL;
    const nib_status status = profile(&w, json, err);
    work_close(&w);
    return status;
}
