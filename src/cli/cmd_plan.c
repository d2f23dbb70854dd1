/* cmd_plan.c - nibble plan: what would be placed where, how fast, and what limits it, from headers alone. */
#include "cli/cli.h"

#include "base/file.h"
#include "base/num.h"
#include "cli/sheet.h"
#include "nib_tools.h"
#include "plan/plan.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the table ---- */

static bool is_like(const plan_block *a, const plan_block *b) {
    if (a->left_out != b->left_out || a->activation != b->activation || a->n_slice != b->n_slice)
        return false;
    for (int i = 0; i < a->n_slice; i++)
        if (a->slices[i].tier != b->slices[i].tier || strcmp(a->slices[i].format, b->slices[i].format) != 0)
            return false;
    return true;
}

static uint64_t bytes_in(const plan_block *b, int tier) {
    uint64_t sum = 0;
    for (int i = 0; i < b->n_slice; i++)
        sum += b->slices[i].tier == tier ? b->slices[i].bytes : 0;
    return sum;
}

static uint64_t all_bytes_in(const plan *p, int tier) {
    uint64_t sum = 0;
    for (int b = 0; b < p->n_block; b++)
        sum += bytes_in(&p->blocks[b], tier);
    return sum;
}

/* "layer.0-7" */
static void set_label(const plan_block *first, const plan_block *last, char out[PLAN_NAME + 16]) {
    const char *number = strrchr(last->name, '.');
    if (first == last || !number)
        snprintf(out, PLAN_NAME + 16, "%s", first->name);
    else
        snprintf(out, PLAN_NAME + 16, "%s-%s", first->name, number + 1);
}

static void print_group(const sheet *s, const plan_block *first, const plan_block *last) {
    char label[PLAN_NAME + 16], ram[32], disk[32], where[96] = "left out";
    uint64_t in_ram = 0, on_disk = 0;
    for (const plan_block *b = first; b <= last; b++) {
        in_ram += bytes_in(b, NIB_TIER_RAM);
        on_disk += bytes_in(b, NIB_TIER_DISK);
    }
    num_format_size(in_ram, ram);
    num_format_size(on_disk, disk);
    if (!first->left_out && in_ram && on_disk)
        snprintf(where, sizeof where, "RAM %10s  disk %10s", ram, disk);
    else if (!first->left_out && (in_ram || on_disk))
        snprintf(where, sizeof where, in_ram ? "RAM %10s" : "%16sdisk %10s", in_ram ? ram : "", disk);
    else if (!first->left_out)
        snprintf(where, sizeof where, "uses another block's");
    set_label(first, last, label);
    char format[PACK_NAME] = "";
    if (first->n_slice)
        plan_block_recipe(first, format);
    if (s->width < 60)
        sheet_line(s, "  %s: %s, a%d, %s", label, format, first->activation, where);
    else
        sheet_line(s, "  %-14s %-9s a%-3d %s", label, format, first->activation, where);
}

static void print_blocks(const sheet *s, const plan *p) {
    for (int b = 0, end; b < p->n_block; b = end) {
        for (end = b + 1; end < p->n_block && is_like(&p->blocks[b], &p->blocks[end]) &&
                          strchr(p->blocks[b].name, '.') && strchr(p->blocks[end].name, '.');)
            end++;
        print_group(s, &p->blocks[b], &p->blocks[end - 1]);
    }
}

static void print_bars(const sheet *s, const plan *p) {
    char bar[SHEET_BAR], used[32], cap[48] = "no cap";
    const uint64_t max = p->cap[NIB_TIER_RAM];
    const double share =
        max == NIB_AUTO ? 1 : (double)p->predicted.ram_peak / (double)NUM_MAX(max, (uint64_t)1);
    const int columns = NUM_MIN(s->width - 40, 32);
    num_format_size(p->predicted.ram_peak, used);
    if (max != NIB_AUTO) {
        char size[32];
        snprintf(cap, sizeof cap, "of %s", num_format_size(max, size));
    }
    sheet_line(s, "  RAM   %s  %10s %s", sheet_bar(s, bar, columns, share, SHEET_GREEN), used, cap);
    const uint64_t on_disk = all_bytes_in(p, NIB_TIER_DISK), in_ram = all_bytes_in(p, NIB_TIER_RAM);
    if (on_disk) {
        const double part = (double)on_disk / (double)(on_disk + in_ram);
        sheet_line(s, "  disk  %s  %10s of weights%s", sheet_bar(s, bar, columns, part, SHEET_YELLOW),
                   num_format_size(on_disk, used), p->packed ? ", from a packed file" : "");
    }
}

static void print_owners(const sheet *s, const plan *p) {
    static const char *const names[NIB_N_OWNER] = {"weights", "kv",     "activations",
                                                   "staging", "tables", "runtime"};
    char line[256] = "memory      ", size[32];
    for (int i = 0; i < NIB_N_OWNER; i++)
        if (p->predicted.owner[i])
            snprintf(line + strlen(line), sizeof line - strlen(line), " %s %s", names[i],
                     num_format_size(p->predicted.owner[i], size));
    sheet_line(s, "%s", line);
}

static void print_speed(const sheet *s, const plan *p) {
    const plan_prediction *x = &p->predicted;
    char disk[32], ram[32];
    sheet_line(s, "speed        %s tok/s; the first token of a prompt of %lld after %s s",
               num_text(x->tok_s, 4), (long long)p->n_prompt, num_text(x->ttft_s, 3));
    num_format_size(x->ram_bytes, ram);
    if (x->disk_bytes)
        sheet_line(s, "a token      %s from RAM, %s from disk: %s ms of computing, %s ms of the disk", ram,
                   num_format_size(x->disk_bytes, disk), num_text(1e3 * x->compute_s, 3),
                   num_text(1e3 * x->disk_s, 3));
    else
        sheet_line(s, "a token      %s from RAM: %s ms of computing", ram, num_text(1e3 * x->compute_s, 3));
    sheet_line(s, "limit        %s; one more GB of RAM: +%s tok/s, of disk: +%s tok/s", p->binds,
               num_text(p->one_more_gb[NIB_TIER_RAM], 3), num_text(p->one_more_gb[NIB_TIER_DISK], 3));
    if (x->quality > 0)
        sheet_line(s, "quality      %s nats a token away from the file's own weights",
                   num_text(x->quality, 3));
}

static void print_others(const sheet *s, const plan *p) {
    for (int i = 0; i < p->n_alternative; i++) {
        const plan_alternative *a = &p->alternatives[i];
        char size[32], loss[48] = "";
        if (a->quality > 0)
            snprintf(loss, sizeof loss, ", %s nats", num_text(a->quality, 2));
        num_format_size(a->ram_peak, size);
        if (a->fits)
            sheet_line(s, "%s%-26s %s tok/s, %s%s", i ? "             " : "instead      ", a->what,
                       num_text(a->tok_s, 4), size, loss);
        else
            sheet_line(s, "%s%-26s does not fit: needs %s", i ? "             " : "instead      ", a->what,
                       size);
    }
    for (int i = 0; i < p->n_note; i++)
        sheet_line(s, "note         %s", p->notes[i]);
}

static void print_table(const cli_args *args, const plan *p) {
    const sheet s = sheet_open(args, stdout);
    char size[32];
    num_format_size(all_bytes_in(p, NIB_TIER_RAM) + all_bytes_in(p, NIB_TIER_DISK), size);
    sheet_line(&s, "plan         %s: %s of weights, context %lld, kv %s, %d thread%s", p->model, size,
               (long long)p->n_ctx, plan_kv_name(p->kv), p->n_thread, p->n_thread == 1 ? "" : "s");
    print_bars(&s, p);
    print_blocks(&s, p);
    print_owners(&s, p);
    print_speed(&s, p);
    print_others(&s, p);
}

/* ---- the command ---- */

static int answer(const cli_args *args, const char *text) {
    nib_error err;
    plan p;
    if (args->output && file_write_all(args->output, text, strlen(text), &err))
        return cli_fail(&err);
    if (args->json)
        return cli_write(text, strlen(text)) ? 0 : 1;
    if (plan_parse(text, strlen(text), &p, &err))
        return cli_fail(&err);
    print_table(args, &p);
    plan_clear(&p);
    return 0;
}

static int make(const cli_args *args, const char *name) {
    nib_engine_options options;
    nib_plan_options how;
    nib_error err;
    char *text;
    nib_sampling usual;
    nib_sampling_init(&usual);
    cli_engine_options(args, &options);
    options.n_best = nib_sampling_n_best(&usual); /* as 'run' draws */
    int code = cli_named_options(args, &options);
    if (!code)
        code = cli_plan_options(args, &how);
    if (code)
        return code;
    how.n_prompt = args->n_prompt;
    how.n_gen = args->n_gen;
    if (nib_plan(name, &options, &how, &text, &err))
        return cli_fail(&err);
    code = answer(args, text);
    nib_free(text);
    return code;
}

/* A shape that nobody has a file of: its header in a file without data, which goes afterwards. */
static int make_synthetic(const cli_args *args, const char *shape) {
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
    .usage = "MODEL [--ram SIZE] [--quality NAME] [--json] [-o FILE]",
    .summary = "what would be placed where, at which precision, how fast, and which limit binds",
    .details = "Reads headers and what was measured of this machine and model (nibble profile), no weights.\n"
               "run, chat, bench and eval follow a plan with --plan FILE; its JSON may be edited.\n"
               "When nothing fits, it exits with 3 and says the smallest budget that works.\n"
               "MODEL may be synth:SHAPE (see nibble synth), with --type and --layers: no file is needed.\n\n"
               "  nibble plan smollm2 --ram 64M\n"
               "  nibble plan synth:opt-175b --ram 16G\n"
               "  nibble plan model.gguf --ram 4G --quality balanced -o plan.json\n"
               "  nibble run model.gguf --plan plan.json \"Why is the sky blue?\" -v\n",
    .groups = CLI_MODEL | CLI_MEMORY | CLI_TARGETS | CLI_PLAN,
    .run = run,
};
