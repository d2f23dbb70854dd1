/* profile_model.c - see profile_model.h. A profile that is there already is shown instead of measured. */
#include "cli/profile_model.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/thread.h"
#include "cli/sheet.h"
#include "quant/recipe.h"
#include "measure/measure.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct work {
    const cli_args *args;
    nib_engine_options options;
    calibration prompts;
    importance layers;
    quality costs;
    columns channels; /* what weighted formats were rounded by */
    char *layers_path, *costs_path, *channels_path;
    const char *formats[QUALITY_FORMATS]; /* whose costs are wanted */
    int n_format;
    char *list;                     /* their names, when they were given */
    bool layers_found, costs_found; /* there were files */
    bool layers_lost, costs_lost;   /* they were measured, and could not be kept */
    double seconds, costs_seconds;
} work;

static void work_close(work *w) {
    calibration_clear(&w->prompts);
    importance_clear(&w->layers);
    quality_clear(&w->costs);
    columns_clear(&w->channels);
    mem_free(w->layers_path);
    mem_free(w->costs_path);
    mem_free(w->channels_path);
    mem_free(w->list);
}

/* ---- finding or measuring ---- */

/* -o names the file that the command is about. */
static nib_status choose_paths(work *w, nib_error *err) {
    const char *given = w->args->output;
    w->layers_path =
        given && !w->args->costs ? mem_strdup(given) : importance_path(w->prompts.content, w->prompts.hash);
    w->costs_path =
        given && w->args->costs ? mem_strdup(given) : quality_path(w->prompts.content, w->prompts.hash);
    w->channels_path = columns_path(w->prompts.content, w->prompts.hash);
    return w->layers_path && w->costs_path && w->channels_path ? NIB_OK : nib_fail_nomem(err, 256, "a path");
}

static nib_status get_layers(work *w, nib_error *err) {
    const double start = time_now();
    nib_error why;
    if (!w->args->again) {
        const nib_status status = importance_load(w->layers_path, w->prompts.content, &w->layers, &why);
        w->layers_found = status == NIB_OK && !strcmp(w->layers.prompts, w->prompts.hash);
        if (status != NIB_OK && status != NIB_E_NOTFOUND)
            cli_note(w->args, "%s: measured anew", why.message);
        if (!w->layers_found)
            importance_clear(&w->layers);
    }
    if (w->layers_found)
        return NIB_OK;
    NIB_TRY(measure_importance(w->args->model, &w->options, &w->prompts, &w->layers, err));
    w->seconds = time_now() - start;
    const nib_status status = importance_save(w->layers_path, &w->layers, err);
    w->layers_lost = status != NIB_OK;
    return cli_goes_on(w->args, w->args->output && !w->args->costs, status, err) ? NIB_OK : status;
}

/* The usual ones, or what --formats lists. */
static nib_status choose_formats(work *w, nib_error *err) {
    w->n_format = measure_n_format;
    memcpy(w->formats, measure_formats, (size_t)measure_n_format * sizeof *measure_formats);
    if (!w->args->formats)
        return NIB_OK;
    w->list = mem_strdup(w->args->formats);
    if (!w->list)
        return nib_fail_nomem(err, strlen(w->args->formats), "a list of formats");
    w->n_format = 0;
    char *rest = w->list;
    for (char *name; (name = strsep(&rest, ",")) != NULL; w->formats[w->n_format++] = name) {
        recipe r;
        if (strlen(name) >= QUALITY_NAME || !recipe_parse(name, 1, &r) || w->n_format == QUALITY_FORMATS)
            return nib_fail(err, NIB_E_USAGE,
                            "--formats: expected at most %d uniform formats (as u4g64a) with commas between "
                            "them, found \"%.40s\" in \"%.200s\"",
                            QUALITY_FORMATS, name, w->args->formats);
    }
    return NIB_OK;
}

/* Costs of other formats than are wanted are not what is looked for. */
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
    if (!w->args->again) {
        const nib_status status = quality_load(w->costs_path, w->prompts.content, &w->costs, &why);
        w->costs_found = status == NIB_OK && !strcmp(w->costs.prompts, w->prompts.hash) && has_formats(w) &&
                         path_exists(w->channels_path);
        if (status != NIB_OK && status != NIB_E_NOTFOUND)
            cli_note(w->args, "%s: measured anew", why.message);
        if (!w->costs_found)
            quality_clear(&w->costs);
    }
    if (w->costs_found)
        return NIB_OK;
    const quality_options o = {
        .formats = w->formats, .n_format = w->n_format, .change = w->layers.raw[IMPORTANCE_COSINE]};
    NIB_TRY(measure_quality(w->args->model, &w->options, &w->prompts, &o, &w->costs, &w->channels, err));
    w->costs_seconds = time_now() - start;
    nib_status status = columns_save(w->channels_path, &w->channels, err);
    if (status == NIB_OK)
        status = quality_save(w->costs_path, &w->costs, err);
    w->costs_lost = status != NIB_OK;
    return cli_goes_on(w->args, w->args->output, status, err) ? NIB_OK : status;
}

/* ---- for people ---- */

/* path: where it is kept; NULL: nowhere. */
static const char *when(char *out, size_t size, bool found, double seconds, const char *path) {
    if (found)
        snprintf(out, size, "0 s, from %s", path);
    else
        snprintf(out, size, "measured in %.1f s%s%s", seconds, path ? ", kept in " : ", not kept",
                 path ? path : "");
    return out;
}

static const char *layers_file(const work *w) {
    return w->layers_lost ? NULL : w->layers_path;
}

static const char *costs_file(const work *w) {
    return w->costs_lost ? NULL : w->costs_path;
}

static void show_layers(const work *w, const sheet *s) {
    const importance *p = &w->layers;
    char bar[SHEET_BAR], text[1024], size[32], whole[32];
    int n16 = 0;
    sheet_line(s, "importance of %d layers: %s", p->n_layer, w->prompts.what);
    for (int l = 0; l < p->n_layer; l++) {
        const bool a16 = p->score[l] >= IMPORTANCE_TAU;
        n16 += a16;
        sheet_line(s, "  layer %3d  %5.3f  %s  %9.3f +- %-8.3f %s", l, p->score[l],
                   sheet_bar(s, bar, s->width - 60, p->score[l], a16 ? SHEET_YELLOW : SHEET_GREEN),
                   p->raw[IMPORTANCE_MCAP][l], p->spread[IMPORTANCE_MCAP][l], a16 ? "a16" : "a8");
    }
    sheet_line(s, "at tau = %.1f: %d with 16-bit activations, %d with 8", IMPORTANCE_TAU, n16,
               p->n_layer - n16);
    if (p->half_overlap >= 0)
        sheet_line(s,
                   "random halves of the prompts agree on %.0f %% of the first %d layers (at least %.0f %%)",
                   100 * p->half_overlap, (p->n_layer + 3) / 4, 100 * p->half_least);
    sheet_line(s, "gap %s, spread %s: the first layer is not the true one with a probability of at most %s%s",
               num_text(p->gap, 3), num_text(p->sigma, 3), num_text(p->bound, 2),
               p->bound >= 1 ? " (which says nothing)" : "");
    if (!w->layers_found) {
        const double times = (double)p->model_bytes / (double)NUM_MAX(p->rss_peak, UINT64_C(1));
        if (times > 1)
            snprintf(text, sizeof text, ": 1/%.1f of it", times);
        sheet_line(s, "peak memory %s for a model of %s%s", num_format_size(p->rss_peak, size),
                   num_format_size(p->model_bytes, whole), times > 1 ? text : "");
    }
    sheet_line(s, "%s", when(text, sizeof text, w->layers_found, w->seconds, layers_file(w)));
}

/* "embed", "layer 0"... as the blocks stand in the model: the layers are between two others. */
static const char *block_name(const quality *q, int b, char out[24]) {
    if (b == 0 || b == q->n_block - 1)
        snprintf(out, 24, "%s", b ? "head" : "embed");
    else
        snprintf(out, 24, "layer %d", b - 1);
    return out;
}

static int put_cost(char *line, size_t size, double kl) {
    return kl < 0 ? snprintf(line, size, "%10s", "-") : snprintf(line, size, "%10.6f", kl);
}

static void show_costs(const work *w, const sheet *s) {
    const quality *q = &w->costs;
    char line[256], text[1024], name[24];
    int n = snprintf(line, sizeof line, "%-10s", "");
    for (int f = 0; f < q->n_format; f++)
        n += snprintf(line + n, sizeof line - (size_t)n, "%10s", q->format[f]);
    snprintf(line + n, sizeof line - (size_t)n, "%10s%10s%10s", "a8", "a4", "without");
    sheet_line(s, "cost of one block in that format: mean KL divergence in nats, %lld tokens",
               (long long)q->n_token);
    sheet_line(s, "%s", line);
    for (int b = 0; b < q->n_block; b++) {
        n = snprintf(line, sizeof line, "%-10s", block_name(q, b, name));
        for (int f = 0; f < q->n_format; f++)
            n += put_cost(line + n, sizeof line - (size_t)n, q->kl[b * q->n_format + f]);
        for (int a = 0; a < 2; a++)
            n += put_cost(line + n, sizeof line - (size_t)n, q->kl_activation[2 * b + a]);
        put_cost(line + n, sizeof line - (size_t)n, q->kl_left_out[b]);
        sheet_line(s, "%s", line);
    }
    sheet_line(s, "(-: no smaller than what the file has; the embedding's costs include a tied head's)");
    sheet_line(s, "%s", when(text, sizeof text, w->costs_found, w->costs_seconds, costs_file(w)));
}

/* ---- for scripts ---- */

/* A profile's own JSON, and how it was come by. */
static json_t *with_story(nib_status status, char *text, const char *path, bool found, double seconds) {
    json_t *doc = status == NIB_OK ? json_loads(text, 0, NULL) : NULL;
    mem_free(text);
    if (doc) {
        json_object_set_new(doc, "path", path ? json_string(path) : json_null());
        json_object_set_new(doc, "found", json_boolean(found));
        json_object_set_new(doc, "seconds", json_real(seconds));
    }
    return doc;
}

static json_t *layers_json(const work *w) {
    const importance *p = &w->layers;
    char *text = NULL;
    const nib_status status = importance_print(p, &text, NULL);
    json_t *doc = with_story(status, text, layers_file(w), w->layers_found, w->seconds), *a16 = json_array();
    for (int l = 0; l < p->n_layer; l++)
        if (p->score[l] >= IMPORTANCE_TAU)
            json_array_append_new(a16, json_integer(l));
    json_object_set_new(doc, "a16_layers", a16);
    json_object_set_new(doc, "prompts_are", json_string(w->prompts.what));
    if (!w->layers_found) {
        json_object_set_new(doc, "rss_peak", json_integer((json_int_t)p->rss_peak));
        json_object_set_new(doc, "model_bytes", json_integer((json_int_t)p->model_bytes));
    }
    return doc;
}

static int write_json(const work *w) {
    json_t *doc = layers_json(w);
    if (w->args->costs) {
        char *costs = NULL;
        const nib_status ok = quality_print(&w->costs, &costs, NULL);
        json_object_set_new(doc, "quality",
                            with_story(ok, costs, costs_file(w), w->costs_found, w->costs_seconds));
    }
    return cli_write_json(doc, w->args);
}

static int show(const work *w) {
    if (w->args->json)
        return write_json(w);
    const sheet s = sheet_open(w->args, stdout);
    show_layers(w, &s);
    if (w->args->costs)
        show_costs(w, &s);
    return 0;
}

int profile_model_run(const cli_args *args) {
    work w = {.args = args};
    nib_error err;
    cli_engine_options(args, &w.options);
    nib_status status = measure_prompts(args->model, &w.options, args->calib, &w.prompts, &err);
    if (status == NIB_OK)
        status = choose_paths(&w, &err);
    if (status == NIB_OK)
        status = choose_formats(&w, &err);
    if (status == NIB_OK)
        status = get_layers(&w, &err);
    if (status == NIB_OK && args->costs && (status = get_costs(&w, &err)) != NIB_OK)
        cli_made(layers_json(&w));
    const int code = status == NIB_OK ? show(&w) : cli_fail(&err);
    work_close(&w);
    return code;
}
