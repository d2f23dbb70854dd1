/* cmd_plan.c - nibble plan: where weights would be placed, the speed, and what limits it, from headers alone.
 */
#include "cli/cli.h"

#include "base/file.h"
#include "base/jsonx.h"
#include "base/mem.h"
#include "base/num.h"
#include "cli/fields.h"
#include "cli/options/ranks.h"
#include "cli/options/residuals.h"
#include "cli/serve/serve.h"
#include "cli/options/workload.h"
#include "cli/terminal/terminal.h"
#include "nib_tools.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the table ---- */

enum { MAX_LABEL = 80, MAX_FORMAT = 80, MAX_WHERE = 160 };

static bool on_gpu(const json_t *block) {
    const char *compute = field_text(block, "compute");
    return compute && !strcmp(compute, "gpu");
}

static bool is_like(const json_t *a, const json_t *b) {
    const json_t *other = json_object_get(b, "slices"), *s;
    const char *precision = field_text(a, "activation"), *theirs = field_text(b, "activation");
    size_t i;
    if (field_is_set(a, "left_out") != field_is_set(b, "left_out") ||
        strcmp(precision ? precision : "", theirs ? theirs : "") != 0 || on_gpu(a) != on_gpu(b) ||
        json_array_size(json_object_get(a, "slices")) != json_array_size(other))
        return false;
    json_array_foreach(
        json_object_get(a, "slices"), i,
        s) if (strcmp(field_text(s, "tier"), field_text(json_array_get(other, i), "tier")) != 0 ||
               strcmp(field_text(s, "format"), field_text(json_array_get(other, i), "format")) !=
                   0) return false;
    return true;
}

static uint64_t bytes_in(const json_t *block, const char *tier) {
    uint64_t sum = 0;
    size_t i;
    const json_t *s;
    json_array_foreach(json_object_get(block, "slices"), i, s) sum +=
        strcmp(field_text(s, "tier"), tier) ? 0 : field_bytes(s, "bytes");
    return sum;
}

static uint64_t all_bytes_in(const json_t *plan, const char *tier) {
    uint64_t sum = 0;
    size_t i;
    const json_t *block;
    json_array_foreach(json_object_get(plan, "blocks"), i, block) sum += bytes_in(block, tier);
    return sum;
}

static bool is_layer(const json_t *block) {
    return strchr(field_text(block, "name"), '.') != NULL;
}

/* A row of the table ("layer.0-7", "layer.1 4 7"): a block and all later ones that look the same. */
typedef struct group {
    const json_t *first;
    uint64_t bytes[NIB_N_TIER];
    char label[MAX_LABEL];
} group;

static void gather(const json_t *blocks, size_t begin, group *out) {
    static const char *const tiers[NIB_N_TIER] = {"ram", "vram", "disk"};
    enum { MAX_MEMBER = 1024 };
    int32_t members[MAX_MEMBER];
    size_t n = 0;
    char list[MAX_LABEL / 2];
    *out = (group){.first = json_array_get(blocks, begin)};
    for (size_t i = begin; i < json_array_size(blocks) && n < MAX_MEMBER; i++) {
        const json_t *b = json_array_get(blocks, i);
        if (i > begin && (!is_layer(out->first) || !is_layer(b) || !is_like(out->first, b)))
            continue;
        members[n++] = (int32_t)i - 1;
        for (int t = 0; t < NIB_N_TIER; t++)
            out->bytes[t] += bytes_in(b, tiers[t]);
    }
    cli_write_members(members, n, list, sizeof list);
    if (is_layer(out->first))
        snprintf(out->label, sizeof out->label, "layer.%s", list);
    else
        snprintf(out->label, sizeof out->label, "%s", field_text(out->first, "name"));
}

/* Writes "u4g64+u4g64": the formats of the block's slices, without slices that are absent. */
static void set_format(const json_t *block, char out[MAX_FORMAT]) {
    size_t i, n = 0;
    const json_t *s;
    const char *before = "";
    out[0] = 0;
    json_array_foreach(json_object_get(block, "slices"), i, s) {
        const char *format = field_text(s, "format");
        if (strcmp(format, before) != 0 && strcmp(field_text(s, "tier"), "none") != 0 && n < MAX_FORMAT)
            n += (size_t)snprintf(out + n, MAX_FORMAT - n, "%s", format);
        before = format;
    }
}

/* Writes the tiers of the group's blocks, and on a GPU how they are computed. */
static void set_where(const group *g, bool gpu, char out[MAX_WHERE]) {
    char ram[32], vram[32], disk[32];
    const uint64_t in_ram = g->bytes[NIB_TIER_RAM], on_disk = g->bytes[NIB_TIER_DISK];
    const bool on_device = g->bytes[NIB_TIER_VRAM] > 0;
    const char *note = !gpu || !is_layer(g->first) || on_device ? ""
                       : on_gpu(g->first)                       ? "  streamed over the link"
                                                                : "  computed by the processor";
    num_format_size(in_ram, ram);
    num_format_size(g->bytes[NIB_TIER_VRAM], vram);
    num_format_size(on_disk, disk);
    if (field_is_set(g->first, "left_out"))
        snprintf(out, MAX_WHERE, "left out");
    else if (on_device)
        snprintf(out, MAX_WHERE, "VRAM %9s", vram);
    else if (in_ram && on_disk)
        snprintf(out, MAX_WHERE, "RAM %10s  disk %10s%s", ram, disk, note);
    else if (in_ram)
        snprintf(out, MAX_WHERE, "RAM %10s%s", ram, note);
    else if (on_disk)
        snprintf(out, MAX_WHERE, "%16sdisk %10s%s", "", disk, note);
    else
        snprintf(out, MAX_WHERE, "uses another block's%s", gpu && on_gpu(g->first) ? ", from VRAM" : "");
}

static void print_group(const terminal *s, const group *g, bool gpu) {
    char format[MAX_FORMAT], where[MAX_WHERE];
    set_where(g, gpu, where);
    set_format(g->first, format);
    const char *precision = field_is_set(g->first, "left_out") ? "-" : field_text(g->first, "activation");
    if (s->width < 60)
        terminal_line(s, "  %s: %s, %s, %s", g->label, format, precision, where);
    else
        terminal_line(s, "  %-14s %-9s %-4s %s", g->label, format, precision, where);
}

/* Prints a row for each group of equal blocks. */
static void print_blocks(const terminal *s, const json_t *plan) {
    const json_t *blocks = json_object_get(plan, "blocks");
    const bool gpu = json_object_get(plan, "gpu") != NULL;
    for (size_t b = 0; b < json_array_size(blocks); b++) {
        const json_t *now = json_array_get(blocks, b);
        bool shown = false;
        for (size_t i = 0; i < b && is_layer(now); i++)
            shown = shown || (is_layer(json_array_get(blocks, i)) && is_like(json_array_get(blocks, i), now));
        if (shown)
            continue;
        group g;
        gather(blocks, b, &g);
        print_group(s, &g, gpu);
    }
}

/* Prints a bar of a tier's peak and its cap. */
static void print_bar(const terminal *s, const char *name, uint64_t peak, uint64_t max) {
    char bar[TERMINAL_BAR], used[32], size[32], cap[48] = "no cap";
    if (max)
        snprintf(cap, sizeof cap, "of %s", num_format_size(max, size));
    terminal_line(s, "  %-4s  %s  %10s %s", name,
                  terminal_bar(s, bar, NUM_MIN(s->width - 40, 32), max ? (double)peak / (double)max : 1,
                               TERMINAL_GREEN),
                  num_format_size(peak, used), cap);
}

static void print_bars(const terminal *s, const json_t *plan) {
    const json_t *budget = json_object_get(plan, "budget"), *predicted = json_object_get(plan, "predicted");
    const uint64_t on_disk = all_bytes_in(plan, "disk"), in_ram = all_bytes_in(plan, "ram");
    char bar[TERMINAL_BAR], used[32];
    print_bar(s, "RAM", field_bytes(predicted, "ram_peak"), field_bytes(budget, "ram"));
    if (field_bytes(predicted, "vram_peak"))
        print_bar(s, "VRAM", field_bytes(predicted, "vram_peak"), field_bytes(budget, "vram"));
    if (on_disk) {
        const double part = (double)on_disk / (double)(on_disk + in_ram);
        const bool packed = field_is_set(json_object_get(plan, "schedule"), "packed");
        terminal_line(s, "  disk  %s  %10s of weights%s",
                      terminal_bar(s, bar, NUM_MIN(s->width - 40, 32), part, TERMINAL_YELLOW),
                      num_format_size(on_disk, used), packed ? ", from a packed file" : "");
    }
}

/* Prints the use of a GPU's memory. */
static void print_gpu(const terminal *s, const json_t *gpu) {
    char driver[32], weights[32], kv[32], activations[32], ram[32], also[64] = "";
    if (!gpu)
        return;
    const long long n_here = field_int(gpu, "in_place"), n_streamed = field_int(gpu, "streamed"),
                    n_resident = field_int(gpu, "resident"), n_in_part = field_int(gpu, "in_part"),
                    n_apart = field_int(gpu, "apart");
    if (n_here || n_streamed || n_apart)
        terminal_line(s, "GPU          %lld of %lld blocks are resident; %lld are streamed for each pass",
                      n_resident, n_resident + n_streamed + n_here + n_apart, n_streamed);
    else
        terminal_line(s, "GPU          all blocks are resident");
    if (n_apart)
        terminal_line(
            s,
            "             %lld have %lld of their experts in VRAM, and all else; for generated rows the "
            "processor computes the other experts, for prompts they are streamed",
            n_apart, field_int(gpu, "experts"));
    if (n_in_part)
        terminal_line(s, "             of %lld of these a part is resident, and the rest is streamed",
                      n_in_part);
    if (n_here)
        terminal_line(s,
                      "             the processor computes %lld for generated rows of up to %lld sequences; "
                      "for prompts "
                      "they are streamed too",
                      n_here, field_int(gpu, "in_place_sequences"));
    if (field_is_set(gpu, "many_sequences"))
        terminal_line(s, "             generated rows use the kernels for many sequences");
    if (field_bytes(gpu, "kv_in_ram"))
        snprintf(also, sizeof also, " (and %s in RAM)", num_format_size(field_bytes(gpu, "kv_in_ram"), ram));
    terminal_line(s, "VRAM         weights %s, kv %s%s, activations %s, driver %s%s",
                  num_format_size(field_bytes(gpu, "weights"), weights),
                  num_format_size(field_bytes(gpu, "kv"), kv), also,
                  num_format_size(field_bytes(gpu, "activations"), activations),
                  num_format_size(field_bytes(gpu, "driver"), driver),
                  field_is_set(gpu, "guessed") ? " (a guess)" : "");
}

static void print_owners(const terminal *s, const json_t *owners) {
    static const char *const names[NIB_N_OWNER] = {"weights", "kv",     "activations",
                                                   "staging", "tables", "runtime"};
    char line[256] = "memory      ", size[32];
    for (int i = 0; i < NIB_N_OWNER; i++)
        if (field_bytes(owners, names[i]))
            snprintf(line + strlen(line), sizeof line - strlen(line), " %s %s", names[i],
                     num_format_size(field_bytes(owners, names[i]), size));
    terminal_line(s, "%s", line);
}

/* Prints the bytes that a token moves and the time of each part. */
static void print_token(const terminal *s, const json_t *predicted) {
    static const struct {
        const char *bytes, *from, *seconds, *by;
    } parts[] = {{"vram", "from VRAM", "gpu", "the GPU"},
                 {"ram", "from RAM", "compute", "computing"},
                 {"link", "over the link", "link", "the link"},
                 {"disk", "from disk", "disk", "the disk"}};
    const json_t *bytes = json_object_get(predicted, "bytes_per_token"),
                 *took = json_object_get(predicted, "seconds_per_token");
    char moved[160] = "", takes[160] = "", size[32];
    for (size_t i = 0, n = 0, m = 0; i < NUM_COUNT(parts); i++) {
        const bool is_ram = i == 1;
        if (field_bytes(bytes, parts[i].bytes) == 0 && !is_ram)
            continue;
        n += (size_t)snprintf(moved + n, sizeof moved - n, "%s%s %s", n ? ", " : "",
                              num_format_size(field_bytes(bytes, parts[i].bytes), size), parts[i].from);
        m += (size_t)snprintf(takes + m, sizeof takes - m, "%s%s ms of %s", m ? ", " : "",
                              num_text(1e3 * field_real(took, parts[i].seconds), 3), parts[i].by);
    }
    terminal_line(s, "a token      %s: %s", moved, takes);
}

/* What is said beside a rate that no measurement of this machine supports. */
static const char *guess_mark(const json_t *plan) {
    const char *from = field_text(json_object_get(plan, "predicted"), "from");
    return from && !strcmp(from, "guess") ? " (a guess)" : "";
}

static void print_speed(const terminal *s, const json_t *plan) {
    const json_t *x = json_object_get(plan, "predicted"), *gain = json_object_get(plan, "one_more_gb");
    const bool gpu = json_object_get(plan, "gpu") != NULL;
    char vram[48] = "", prompt[48] = "";
    if (gpu) {
        snprintf(vram, sizeof vram, ", of VRAM: +%s tok/s", num_text(field_real(gain, "vram"), 3));
        snprintf(prompt, sizeof prompt, " (%s tok/s)", num_text(field_real(x, "prompt_tok_s"), 4));
    }
    terminal_line(s, "speed        %s tok/s%s; the first token of a prompt of %lld after %s s%s",
                  num_text(field_real(x, "tok_s"), 4), guess_mark(plan),
                  field_int(json_object_get(plan, "schedule"), "n_prompt"),
                  num_text(field_real(x, "ttft_s"), 3), prompt);
    print_token(s, x);
    terminal_line(s, "bottleneck   %s; one more GB of RAM: +%s tok/s%s, of disk: +%s tok/s%s",
                  field_text(plan, "binds"), num_text(field_real(gain, "ram"), 3), vram,
                  num_text(field_real(gain, "disk"), 3), guess_mark(plan));
    if (field_real(x, "quality") > 0)
        terminal_line(s, "quality      %s nats a token away from the file's own weights",
                      num_text(field_real(x, "quality"), 3));
    else if (json_is_null(json_object_get(x, "quality")))
        terminal_line(s, "quality      not measured ('nibble profile MODEL --costs')");
}

static void print_others(const terminal *s, const json_t *plan) {
    size_t i;
    const json_t *a, *note;
    json_array_foreach(json_object_get(plan, "alternatives"), i, a) {
        char size[32], loss[48] = "";
        if (field_real(a, "quality") > 0)
            snprintf(loss, sizeof loss, ", %s nats", num_text(field_real(a, "quality"), 2));
        num_format_size(field_bytes(a, "ram_peak"), size);
        if (field_is_set(a, "fits"))
            terminal_line(s, "%s%-26s %s tok/s%s, %s%s", i ? "             " : "instead      ",
                          field_text(a, "what"), num_text(field_real(a, "tok_s"), 4), guess_mark(plan), size,
                          loss);
        else
            terminal_line(s, "%s%-26s does not fit: needs %s", i ? "             " : "instead      ",
                          field_text(a, "what"), size);
    }
    json_array_foreach(json_object_get(plan, "notes"), i, note)
        terminal_line(s, "note         %s", json_string_value(note));
}

static void print_residuals(const terminal *s, const json_t *residuals) {
    char ram[32], read[32], line[384];
    const json_t *one, *steps = json_object_get(residuals, "steps");
    size_t i;
    if (!residuals)
        return;
    num_format_size(field_bytes(residuals, "ram"), ram);
    num_format_size(field_bytes(residuals, "read"), read);
    terminal_line(s, "residuals    %s %% slower, measured; %s of RAM, of which a token reads %s",
                  num_text(100 * field_real(residuals, "slowdown"), 3), ram, read);
    if (json_object_get(residuals, "perplexity"))
        terminal_line(s, "             perplexity of nibble's prompts %s, measured",
                      num_text(field_real(residuals, "perplexity"), 4));
    if (json_object_get(residuals, "perplexity_without"))
        terminal_line(s, "             without residuals %s",
                      num_text(field_real(residuals, "perplexity_without"), 4));
    json_array_foreach(json_object_get(residuals, "kinds"), i, one)
        terminal_line(s, "             %-12s %lld channels of each 1,024", field_text(one, "products"),
                      field_int(one, "k_chunk"));
    for (i = 0; json_array_size(steps) > 0 && i <= json_array_size(steps); i++) {
        cli_residual_step(i ? json_array_get(steps, i - 1) : NULL, line, sizeof line);
        terminal_line(s, "%s%s", i ? "             " : "its steps    ", line);
    }
}

/* Writes "f16", or "f16 (0-3), kv4 (4-29)". */
static const char *kv_text(const json_t *plan, char *out, size_t size) {
    const json_t *part, *all = json_object_get(plan, "kv");
    size_t i, at = 0;
    *out = 0;
    json_array_foreach(all, i, part) {
        const char *layers = field_text(part, "layers");
        const bool named = strcmp(layers, "all") != 0;
        const int n = snprintf(out + at, size - at, "%s%s%s%s%s", i ? ", " : "", field_text(part, "format"),
                               named ? " (" : "", named ? layers : "", named ? ")" : "");
        at = NUM_MIN(at + (size_t)n, size - 1);
    }
    return out;
}

static void print_table(const cli_args *args, const json_t *plan) {
    const terminal s = terminal_open(args, stdout);
    const json_t *schedule = json_object_get(plan, "schedule");
    const long long threads = field_int(schedule, "threads");
    char size[32], kv[256];
    num_format_size(all_bytes_in(plan, "ram") + all_bytes_in(plan, "vram") + all_bytes_in(plan, "disk"),
                    size);
    terminal_line(&s, "plan         %s: %s of weights, context %lld, kv %s, %lld thread%s",
                  field_text(plan, "model"), size, field_int(schedule, "n_ctx"), kv_text(plan, kv, sizeof kv),
                  threads, threads == 1 ? "" : "s");
    print_bars(&s, plan);
    print_blocks(&s, plan);
    print_gpu(&s, json_object_get(plan, "gpu"));
    print_owners(&s, json_object_get(json_object_get(plan, "predicted"), "owners"));
    print_speed(&s, plan);
    print_residuals(&s, json_object_get(plan, "residuals"));
    print_others(&s, plan);
}

/* ---- the command ---- */

/* Opens an engine by the plan, and adds its measurements of residuals to the document. Frees text; the caller
 * frees *out with json_decref. Returns an exit code. */
static int add_residuals(const cli_args *args, const char *name, nib_engine_options *options, char *text,
                         char **out) {
    static const char last[] = "}\n";
    nib_engine *engine = NULL;
    nib_error err;
    char *json = NULL;
    json_t *found = NULL;
    options->plan = text;
    int code = nib_engine_open(name, options, &engine, &err)
                   ? cli_fail(&err)
                   : cli_tune_residuals(args, engine, CLI_SCORING_S, &json);
    options->plan = NULL;
    nib_engine_close(engine);
    if (!code)
        code = cli_document(json, &found);
    if (!code) {
        json_object_del(found, "token_s");
        char *part = jsonx_text(found, JSON_REAL_PRECISION(7));
        const size_t n = strlen(text) - (sizeof last - 1), size = n + (part ? strlen(part) : 0) + 32;
        *out = part ? mem_alloc(size) : NULL;
        if (*out)
            snprintf(*out, size, "%.*s,\n \"residuals\": %s%s", (int)n, text, part, last);
        else
            code = cli_no_memory();
        mem_free(part);
        json_decref(found);
    }
    nib_free(text);
    return code;
}

/* Prints by `print`, or writes the plan. Frees text. Returns an exit code. */
static int answer(const cli_args *args, char *text, void (*print)(const cli_args *, const json_t *)) {
    nib_error err;
    json_t *plan;
    int code = 0;
    if (args->output && file_write_all(args->output, text, strlen(text), &err))
        code = cli_fail(&err);
    else if (args->json)
        code = cli_write(text, strlen(text)) ? 0 : 1;
    if (code || args->json) {
        nib_free(text);
        return code;
    }
    code = cli_document(text, &plan);
    if (code)
        return code;
    print(args, plan);
    json_decref(plan);
    return 0;
}

static uint64_t cap_of(void *user, uint64_t ram) {
    (void)user;
    return serve_cap_of(ram, 0, 0);
}

/* A server or a batch of n sequences: what it asks of an engine, and the memory that it leaves to it. */
static int as_served(const cli_args *args, int n, nib_engine_options *o) {
    o->n_sequence = o->n_logits = n;
    o->n_best = 0;
    o->grammar = true;
    o->cap_of = cap_of;
    return serve_engine_ram(args, 0, &o->ram);
}

static int plan_ranks(const cli_args *args, const char *name, const nib_engine_options *options) {
    nib_error err;
    char *text;
    if (args->quality || args->speed > 0 || args->mode || args->residual || args->workload)
        return cli_usage_error(
            "--devices and --hosts: expected no target, residual or workload, which ranks do "
            "not have yet");
    return nib_plan_ranks(name, options, &text, &err) ? cli_fail(&err) : answer(args, text, ranks_print);
}

static int make(cli_args *args, const char *name) {
    nib_engine_options options;
    nib_plan_options how;
    nib_error err;
    char *text;
    nib_sampling usual;
    int n_sequence = 1;
    nib_sampling_init(&usual);
    cli_engine_options(args, &options);
    options.n_best = nib_sampling_n_best(&usual); /* as in 'run' */
    int code = cli_named_options(args, &options);
    if (!code)
        code = cli_plan_options(args, &how);
    if (!code)
        code = cli_parallel(args, 1, &n_sequence);
    if (code)
        return code;
    options.n_session = n_sequence;
    if (n_sequence > 1 && (code = as_served(args, n_sequence, &options)))
        return code;
    if (!args->workload && (args->frontier || args->max_latency > 0))
        return cli_usage_error("--frontier and --max-latency plan a workload: give one with --workload");
    if (args->devices || args->hosts)
        return plan_ranks(args, name, &options);
    options.planning = &how;
    if (args->workload)
        return workload_plan(args, name, &options);
    options.planning = NULL;
    how.n_prompt = args->n_prompt;
    how.n_gen = args->n_gen;
    how.ram_beside = args->ram - options.ram;
    code = cli_check_residuals(args);
    if (code)
        return code;
    code = cli_idle_residuals(args, name, &options, &how);
    if (code)
        return code;
    const nib_status status = nib_plan(name, &options, &how, &text, &err);
    if (status)
        return cli_fail(&err);
    code = args->slowdown > 0 ? add_residuals(args, name, &options, text, &text) : 0;
    return code ? code : answer(args, text, print_table);
}

/* Makes a file with the header of a shape and without data, which is removed after planning. */
static int make_synthetic(cli_args *args, const char *shape) {
    const char *base = getenv("TMPDIR");
    char folder[512], path[540];
    const int n = snprintf(folder, sizeof folder, "%s/nibble-plan-XXXXXX", base && *base ? base : "/tmp");
    if (n < 0 || (size_t)n >= sizeof folder || !mkdtemp(folder))
        return cli_usage_error("cannot make a folder for the model's header in %s", base ? base : "/tmp");
    snprintf(path, sizeof path, "%s/model.gguf", folder);
    const nib_synth_options header = {
        .shape = shape, .type = args->type, .n_layer = args->layers, .hollow = true, .cancel = cli_cancel};
    nib_error err;
    const int code = nib_synth(&header, path, NULL, &err) ? cli_fail(&err) : make(args, path);
    (void)unlink(path);
    (void)rmdir(folder);
    return code;
}

static int run(cli_args *args) {
    static const char synthetic[] = "synth:";
    if (!strncmp(args->model, synthetic, sizeof synthetic - 1))
        return make_synthetic(args, args->model + sizeof synthetic - 1);
    return make(args, args->model);
}

const cli_command cmd_plan = {
    .name = "plan",
    .usage = "MODEL [--ram SIZE] [--parallel N] [--quality NAME] [--json] [-o FILE]",
    .summary = "tier and precision of each part of a model, the predicted speed, and the bottleneck",
    .details =
        "Reads headers and the profiles of this machine and model (nibble profile), no weights.\n"
        "run, chat, bench and eval follow a plan with --plan FILE; its JSON may be edited.\n"
        "If nothing fits, the exit code is 3 and the error names the smallest budget that works.\n"
        "MODEL may be synth:SHAPE (see nibble synth), with --type and --layers: no file is needed.\n"
        "With --backend cuda the plan also says which layers are resident on the GPU, which are streamed to\n"
        "it and which the processor computes. --vram SIZE works without a GPU; its rates are then "
        "guesses.\n--parallel N plans for N contexts of a server or a batch, and leaves memory for their "
        "requests.\n--workload FILE (a batch file) or PxGxN (512x32x1000) plans for many requests together: "
        "how "
        "many\nat a time, which shares of the weights, keys and values are where, and what binds. --frontier "
        "lists\nthe fastest plan for each latency of an answer, --max-latency bounds it.\n\n"
        "  nibble plan smollm2 --ram 64M\n"
        "  nibble plan model.gguf --backend cuda --vram 6G --ram 8G\n"
        "  nibble plan synth:opt-175b --ram 16G\n"
        "  nibble plan model.gguf --devices 0:16G,1:8G --parallel 64\n"
        "  nibble plan model.gguf --ram 4G --quality balanced -o plan.json\n"
        "  nibble run model.gguf --plan plan.json \"Why is the sky blue?\" -v\n",
    .groups = CLI_MODEL | CLI_MEMORY | CLI_TARGETS | CLI_PLAN,
    .run = run,
};
