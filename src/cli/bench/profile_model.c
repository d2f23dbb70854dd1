/* profile_model.c - see profile_model.h. */
#include "cli/bench/profile_model.h"

#include "base/num.h"
#include "cli/fields.h"
#include "cli/terminal/terminal.h"
#include "nib_tools.h"

#include <string.h>

/* ---- importance and costs ---- */

/* Prints where a document is from. */
static void show_story(const terminal *s, const json_t *doc) {
    const char *path = field_text(doc, "path");
    if (field_is_set(doc, "found"))
        terminal_line(s, "0 s, from %s", path);
    else
        terminal_line(s, "measured in %.1f s%s%s", field_real(doc, "seconds"),
                      path ? ", kept in " : ", not kept", path ? path : "");
}

static void show_memory(const terminal *s, const json_t *doc) {
    const uint64_t peak = field_bytes(doc, "rss_peak"), whole = field_bytes(doc, "model_bytes");
    const double times = (double)whole / (double)NUM_MAX(peak, UINT64_C(1));
    char part[32] = "", of[32], size[32];
    if (times > 1)
        snprintf(part, sizeof part, ": 1/%.1f of it", times);
    terminal_line(s, "peak memory %s for a model of %s%s", num_format_size(peak, size),
                  num_format_size(whole, of), part);
}

static void show_layers(const terminal *s, const json_t *doc) {
    const json_t *score = json_object_get(doc, "score");
    const json_t *mean = json_object_get(json_object_get(doc, "mean"), "mcap");
    const json_t *spread = json_object_get(json_object_get(doc, "spread"), "mcap");
    const double tau = field_real(doc, "tau"), bound = field_real(doc, "bound");
    const int n = (int)json_array_size(score);
    const int n16 = (int)json_array_size(json_object_get(doc, "a16_layers"));
    char bar[TERMINAL_BAR];
    terminal_line(s, "importance of %d layers: %s", n, field_text(doc, "prompts_are"));
    for (int l = 0; l < n; l++) {
        const double x = field_real_at(score, (size_t)l);
        terminal_line(s, "  layer %3d  %5.3f  %s  %9.3f +- %-8.3f %s", l, x,
                      terminal_bar(s, bar, s->width - 60, x, x >= tau ? TERMINAL_YELLOW : TERMINAL_GREEN),
                      field_real_at(mean, (size_t)l), field_real_at(spread, (size_t)l),
                      x >= tau ? "a16" : "a8");
    }
    terminal_line(s, "at tau = %.1f: %d with 16-bit activations, %d with 8", tau, n16, n - n16);
    if (json_is_number(json_object_get(doc, "half_overlap")) && field_real(doc, "half_overlap") >= 0)
        terminal_line(
            s, "random halves of the prompts agree on %.0f %% of the first %d layers (at least %.0f %%)",
            100 * field_real(doc, "half_overlap"), (n + 3) / 4, 100 * field_real(doc, "half_overlap_min"));
    terminal_line(s,
                  "gap %s, spread %s: the first layer is not the true one with a probability of at most %s%s",
                  num_text(field_real(doc, "gap"), 3), num_text(field_real(doc, "sigma"), 3),
                  num_text(bound, 2), bound >= 1 ? " (which says nothing)" : "");
    if (json_object_get(doc, "rss_peak"))
        show_memory(s, doc);
    show_story(s, doc);
}

/* Name of block b: "embed", "layer 0", ..., the last one being the output head. */
static const char *block_name(size_t b, size_t n_block, char out[32]) {
    if (b == 0 || b == n_block - 1)
        snprintf(out, 32, "%s", b ? "head" : "embed");
    else
        snprintf(out, 32, "layer %zu", b - 1);
    return out;
}

enum { MAX_COST_LINE = 256 };

static void put_cost(char line[MAX_COST_LINE], const json_t *cost) {
    const size_t n = strlen(line);
    if (json_is_number(cost))
        snprintf(line + n, MAX_COST_LINE - n, "%10.6f", json_number_value(cost));
    else
        snprintf(line + n, MAX_COST_LINE - n, "%10s", "-");
}

static void show_costs(const terminal *s, const json_t *doc) {
    const json_t *formats = json_object_get(doc, "formats"), *kl = json_object_get(doc, "kl"), *format;
    const json_t *activation = json_object_get(doc, "kl_activation");
    const size_t n_block = (size_t)field_int(doc, "n_block"), n_format = json_array_size(formats);
    char line[MAX_COST_LINE], name[32];
    size_t f;
    int n = snprintf(line, sizeof line, "%-10s", "");
    json_array_foreach(formats, f, format) n +=
        snprintf(line + n, sizeof line - (size_t)n, "%10s", json_string_value(format));
    snprintf(line + n, sizeof line - (size_t)n, "%10s%10s%10s", "a8", "a4", "without");
    terminal_line(s, "cost of one block in that format: mean KL divergence in nats, %lld tokens",
                  field_int(doc, "n_token"));
    terminal_line(s, "%s", line);
    for (size_t b = 0; b < n_block; b++) {
        snprintf(line, sizeof line, "%-10s", block_name(b, n_block, name));
        for (f = 0; f < n_format; f++)
            put_cost(line, json_array_get(kl, b * n_format + f));
        put_cost(line, json_array_get(activation, 2 * b));
        put_cost(line, json_array_get(activation, 2 * b + 1));
        put_cost(line, json_array_get(json_object_get(doc, "kl_left_out"), b));
        terminal_line(s, "%s", line);
    }
    terminal_line(s, "(-: no smaller than what the file has; the embedding's costs include a tied head's)");
    show_story(s, doc);
}

static void show_kv(const terminal *s, const json_t *doc) {
    const json_t *formats = json_object_get(doc, "formats"), *kl = json_object_get(doc, "kl"), *format;
    const size_t n_format = json_array_size(formats), n_layer = (size_t)field_int(doc, "n_layer");
    char line[MAX_COST_LINE], name[32];
    size_t f;
    int n = snprintf(line, sizeof line, "%-10s", "");
    json_array_foreach(formats, f, format) n +=
        snprintf(line + n, sizeof line - (size_t)n, "%10s", json_string_value(format));
    terminal_line(s, "keys and values of one layer in that format: mean KL divergence in nats, %lld tokens",
                  field_int(doc, "n_token"));
    terminal_line(s, "%s", line);
    for (size_t l = 0; l <= n_layer; l++) {
        snprintf(name, sizeof name, "layer %zu", l);
        snprintf(line, sizeof line, "%-10s", l < n_layer ? name : "all");
        for (f = 0; f < n_format; f++)
            put_cost(line, l < n_layer ? json_array_get(kl, l * n_format + f)
                                       : json_array_get(json_object_get(doc, "all"), f));
        terminal_line(s, "%s", line);
    }
    show_story(s, doc);
}

/* Writes the document of a measurement as JSON, or shows it. Returns an exit code. */
static int report(const cli_args *args, nib_status status, char *text, nib_error *err,
                  void (*show)(const terminal *s, const json_t *doc)) {
    json_t *doc;
    const int code = cli_document_of(status, text, err, &doc);
    if (code || args->json)
        return code ? code : cli_write_json(doc, args);
    const terminal s = terminal_open(args, stdout);
    show(&s, doc);
    json_decref(doc);
    return 0;
}

static void show_channels(const terminal *s, const json_t *doc) {
    const json_t *site;
    char name[32], strongest[96];
    size_t i, c;
    terminal_line(s, "channels with outliers: 99.9th percentile above %g medians, %lld tokens",
                  field_real(doc, "outlier"), field_int(doc, "n_token"));
    terminal_line(s, "%-10s%-14s%9s%9s%10s%10s  %s", "", "products", "channels", "outliers", "median",
                  "largest", "strongest (in medians)");
    json_array_foreach(json_object_get(doc, "sites"), i, site) {
        const json_t *one;
        int n = 0;
        snprintf(name, sizeof name, "layer %lld", field_int(site, "layer"));
        strongest[0] = 0;
        json_array_foreach(json_object_get(site, "strongest"), c, one) if ((size_t)n < sizeof strongest) n +=
            snprintf(strongest + n, sizeof strongest - (size_t)n, "%s%lld: %.1f", c ? ", " : "",
                     field_int(one, "channel"), field_real(one, "ratio"));
        terminal_line(s, "%-10s%-14s%9lld%9lld%10.3g%10.3g  %s",
                      json_is_null(json_object_get(site, "layer")) ? "head" : name,
                      field_text(site, "products"), field_int(site, "channels"), field_int(site, "outliers"),
                      field_real(site, "median"), field_real(site, "largest"), strongest);
    }
}

int profile_channels_run(const cli_args *args) {
    nib_engine_options options;
    nib_error err;
    char *text = NULL;
    cli_engine_options(args, &options);
    const nib_status status = nib_profile_channels(args->model, &options, args->calib, &text, &err);
    return report(args, status, text, &err, show_channels);
}

static void show_experts(const terminal *s, const json_t *doc) {
    const json_t *quarter = json_object_get(doc, "quarter");
    char bar[TERMINAL_BAR];
    terminal_line(s, "choices that the most popular quarter of %lld experts has, %lld tokens",
                  field_int(doc, "n_expert"), field_int(doc, "n_token"));
    for (size_t l = 0; l < json_array_size(quarter); l++) {
        const double x = field_real_at(quarter, l);
        if (x > 0)
            terminal_line(s, "  layer %3zu  %5.1f %%  %s", l, 100 * x,
                          terminal_bar(s, bar, s->width - 40, x, TERMINAL_GREEN));
    }
    if (field_text(doc, "path"))
        terminal_line(s, "%s %s", field_is_set(doc, "found") ? "from" : "kept in", field_text(doc, "path"));
}

int profile_experts_run(const cli_args *args) {
    const nib_profile_options how = {.calib = args->calib, .again = args->again, .file = args->output};
    nib_engine_options options;
    nib_error err;
    char *text = NULL;
    cli_engine_options(args, &options);
    const nib_status status = nib_profile_experts(args->model, &options, &how, &text, &err);
    return report(args, status, text, &err, show_experts);
}

static void show_model(const terminal *s, const json_t *doc) {
    show_layers(s, doc);
    if (json_object_get(doc, "quality")) {
        show_costs(s, json_object_get(doc, "quality"));
        show_kv(s, json_object_get(doc, "kv"));
    }
}

int profile_model_run(const cli_args *args) {
    const nib_profile_options how = {.calib = args->calib,
                                     .costs = args->costs,
                                     .formats = args->formats,
                                     .again = args->again,
                                     .file = args->output};
    nib_engine_options options;
    nib_error err;
    char *text = NULL;
    cli_engine_options(args, &options);
    const nib_status status = nib_profile_model(args->model, &options, &how, &text, &err);
    return report(args, status, text, &err, show_model);
}
