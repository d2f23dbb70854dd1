/* memory.c - planned and measured memory, as JSON and as text. */
#include "cli/cli.h"

#include "base/num.h"
#include "cli/terminal/terminal.h"

#include <string.h>

const char *cli_prediction_source(const nib_prediction *p) {
    return p->n_run ? "runs" : p->guessed ? "guess" : "profile";
}

json_t *cli_prediction_json(const nib_prediction *p) {
    return json_pack(
        "{s:f, s:f, s:s, s:i, s:I, s:I, s:{s:I, s:I, s:I, s:I}, s:{s:f, s:f, s:f, s:f}, s:s, s:b}", "ttft_s",
        p->ttft_s, "tok_s", p->tok_s, "from", cli_prediction_source(p), "runs", p->n_run, "ram_peak",
        (json_int_t)p->ram_peak, "vram_peak", (json_int_t)p->vram_peak, "bytes_per_token", "ram",
        (json_int_t)p->ram_bytes, "disk", (json_int_t)p->disk_bytes, "link", (json_int_t)p->link_bytes,
        "vram", (json_int_t)p->vram_bytes, "seconds_per_token", "disk", p->disk_s, "compute", p->compute_s,
        "gpu", p->gpu_s, "link", p->link_s, "binds", p->binds, "guessed", p->guessed);
}

/* Prints "weights 45.8 MiB  kv 720.0 KiB", wrapped at the terminal's width. */
static void print_owners(const terminal *s, const nib_memory *mem) {
    char line[512] = "memory     ", item[64], size[32];
    size_t n = strlen(line), indent = 13;
    for (int o = 0; o < NIB_N_OWNER; o++) {
        if (!mem->owner[o])
            continue;
        int wide = snprintf(item, sizeof item, "  %s %s", memory_owner_names[o],
                            num_format_size(mem->owner[o], size));
        if (n > indent && (int)n + wide > s->width) {
            terminal_line(s, "%s", line);
            n = (size_t)snprintf(line, sizeof line, "%*s", (int)indent - 2, "");
        }
        n += (size_t)snprintf(line + n, sizeof line - n, "%s", item);
    }
    terminal_line(s, "%s", line);
}

/* Prints the GPU's memory: allocations as the ledger counts them, the driver's own as the driver reports it.
 */
static void print_vram(const terminal *s, const nib_memory *mem) {
    const uint64_t cap = mem->tier[NIB_TIER_VRAM].cap, planned = mem->tier[NIB_TIER_VRAM].planned;
    const uint64_t taken = mem->tier[NIB_TIER_VRAM].peak;
    const uint64_t whole = NUM_MAX(cap != NIB_AUTO ? cap : NUM_MAX(planned, taken), UINT64_C(1));
    const int columns = NUM_MIN(s->width - 31, 32);
    char bar[TERMINAL_BAR], size[32];
    if (!planned)
        return;
    terminal_line(s, "  planned VRAM   %10s  %s", num_format_size(planned, size),
                  terminal_bar(s, bar, columns, (double)planned / (double)whole, TERMINAL_GREEN));
    terminal_line(s, "  taken at most  %10s  %s", num_format_size(taken, size),
                  terminal_bar(s, bar, columns, (double)taken / (double)whole,
                               taken <= cap ? TERMINAL_GREEN : TERMINAL_RED));
    if (cap != NIB_AUTO)
        terminal_line(s, "  budget         %10s  %s", num_format_size(cap, size),
                      taken <= cap ? "kept" : "EXCEEDED");
}

void cli_print_memory(const cli_args *args, memory_use of, FILE *out) {
    nib_memory mem, of_draft;
    uint64_t draft = 0;
    memory_read(of, &mem);
    if (of.draft)
        nib_engine_memory(of.draft, &of_draft);
    for (int o = 0; o < NIB_N_OWNER && of.draft; o++)
        draft += o == NIB_OWNER_RUNTIME ? 0 : of_draft.owner[o];
    cli_print_used_memory(args, &mem, draft, out);
}

void cli_print_used_memory(const cli_args *args, const nib_memory *used, uint64_t draft, FILE *out) {
    const nib_memory mem = *used;
    char bar[TERMINAL_BAR], size[32];
    terminal s = terminal_open(args, out);
    uint64_t cap = mem.tier[NIB_TIER_RAM].cap, planned = mem.tier[NIB_TIER_RAM].planned;
    uint64_t whole = cap != NIB_AUTO ? cap : NUM_MAX(planned, mem.rss_peak);
    int columns = NUM_MIN(s.width - 31, 32);
    bool kept = mem.rss_peak <= cap;
    print_owners(&s, &mem);
    if (draft > 0)
        terminal_line(&s, "  draft model    %10s  beside them", num_format_size(draft, size));
    terminal_line(
        &s, "  planned peak   %10s  %s", num_format_size(planned, size),
        terminal_bar(&s, bar, columns, (double)planned / (double)NUM_MAX(whole, 1), TERMINAL_GREEN));
    if (!mem.rss_peak) {
        terminal_line(&s, "  measured peak     unknown  (no /proc)");
        print_vram(&s, &mem);
        return;
    }
    terminal_line(&s, "  measured peak  %10s  %s", num_format_size(mem.rss_peak, size),
                  terminal_bar(&s, bar, columns, (double)mem.rss_peak / (double)NUM_MAX(whole, 1),
                               kept ? TERMINAL_GREEN : TERMINAL_RED));
    if (cap != NIB_AUTO)
        terminal_line(&s, "  budget         %10s  %s", num_format_size(cap, size),
                      kept ? "kept" : "EXCEEDED");
    print_vram(&s, &mem);
}

json_t *cli_traffic_json(nib_engine *engine) {
    nib_traffic t;
    nib_engine_traffic(engine, &t);
    return json_pack("{s:I, s:I, s:I, s:I, s:f, s:f, s:I, s:I, s:f, s:I, s:I}", "loaded",
                     (json_int_t)t.loaded, "streamed", (json_int_t)t.streamed, "pass", (json_int_t)t.pass,
                     "passes", (json_int_t)t.n_pass, "wait_s", t.wait_s, "head_share", t.head_share,
                     "residual_reads", (json_int_t)t.residual_reads, "residual_bytes",
                     (json_int_t)t.residual_bytes, "residual_wait_s", t.residual_wait_s, "expert_uses",
                     (json_int_t)t.expert_uses, "expert_hits", (json_int_t)t.expert_hits);
}

void cli_print_traffic(const cli_args *args, nib_engine *engine, FILE *out) {
    nib_traffic t;
    char loaded[32], streamed[32], pass[32], each[32];
    terminal s = terminal_open(args, out);
    nib_engine_traffic(engine, &t);
    terminal_line(&s, "disk         read to open %s", num_format_size(t.loaded, loaded));
    if (t.head_share < 1)
        terminal_line(&s, "  output head    %8.1f %%  of it computed for a token: the rest cannot be drawn",
                      t.head_share * 100);
    if (t.residual_reads > 0)
        terminal_line(&s, "  residuals      %10s  in %llu reads, threads waited %.2f s for them",
                      num_format_size(t.residual_bytes, streamed), (unsigned long long)t.residual_reads,
                      t.residual_wait_s);
    if (t.expert_uses > 0)
        terminal_line(&s, "  experts        %8.1f %%  of %llu uses found them in memory",
                      100.0 * (double)t.expert_hits / (double)t.expert_uses,
                      (unsigned long long)t.expert_uses);
    if (t.streamed == 0 || t.n_pass == 0)
        return;
    terminal_line(&s, "  streamed       %10s  in %llu passes, computing waited %.2f s for it",
                  num_format_size(t.streamed, streamed), (unsigned long long)t.n_pass, t.wait_s);
    terminal_line(&s, "  each pass      %10s  planned %s", num_format_size(t.streamed / t.n_pass, each),
                  num_format_size(t.pass, pass));
}
