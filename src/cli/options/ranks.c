/* ranks.c - see ranks.h. */
#include "cli/options/ranks.h"

#include "base/num.h"
#include "cli/fields.h"
#include "cli/terminal/terminal.h"

static void print_rank(const terminal *s, const json_t *r) {
    static const struct {
        const char *key, *name;
    } tiers[] = {{"vram", "VRAM"}, {"ram", "RAM"}, {"disk", "disk"}};
    const json_t *held = json_object_get(r, "tiers");
    char where[128] = "", blocks[96], at[96], size[32];
    for (size_t i = 0, n = 0; i < NUM_COUNT(tiers); i++)
        if (field_bytes(held, tiers[i].key))
            n += (size_t)snprintf(where + n, sizeof where - n, "  %s %9s", tiers[i].name,
                                  num_format_size(field_bytes(held, tiers[i].key), size));
    snprintf(at, sizeof at, "%.48s%s%s", field_text(r, "host"), *field_text(r, "host") ? " " : "",
             field_text(r, "device"));
    snprintf(blocks, sizeof blocks, "%.40s to %.40s", field_text(r, "first"), field_text(r, "last"));
    terminal_line(s, "  rank %-3lld %-14s %-22s%s  %s ms a pass, %.0f %% busy%s", field_int(r, "rank"), at,
                  blocks, where, num_text(1e3 * field_real(r, "pass_s"), 3), 100 * field_real(r, "busy"),
                  *field_text(r, "rates") == 'g' ? " (a guess)" : "");
}

void ranks_print(const cli_args *args, const json_t *plan) {
    const terminal s = terminal_open(args, stdout);
    const json_t *x = json_object_get(plan, "predicted"), *ranks = json_object_get(plan, "ranks"), *r;
    size_t i;
    terminal_line(&s, "plan         %s: %zu rank%s, %lld sequence%s in passes of %lld row%s, context %lld",
                  field_text(plan, "model"), json_array_size(ranks), json_array_size(ranks) == 1 ? "" : "s",
                  field_int(plan, "n_sequence"), field_int(plan, "n_sequence") == 1 ? "" : "s",
                  field_int(plan, "n_row"), field_int(plan, "n_row") == 1 ? "" : "s",
                  field_int(plan, "n_ctx"));
    json_array_foreach(ranks, i, r) print_rank(&s, r);
    terminal_line(&s, "speed        %s tok/s; %s tok/s for one sequence alone",
                  num_text(field_real(x, "tok_s"), 4), num_text(field_real(x, "one_tok_s"), 4));
    terminal_line(&s, "bottleneck   rank %lld; the network is not counted", field_int(plan, "binds"));
    if (field_is_set(plan, "simulated"))
        terminal_line(&s,
                      "note         simulated: the rates of hosts are those of files, and no host was asked");
}
