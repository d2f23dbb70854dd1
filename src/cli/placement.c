/* placement.c - prints where the weights are: a bar for each tier, then a row for each kind of block, which
 * are all blocks with the same formats in the same tier. */
#include "cli/cli.h"

#include "base/num.h"
#include "cli/terminal/terminal.h"

#include <stdlib.h>
#include <string.h>

/* Slices of one block in one tier, or of several blocks that look the same. */
typedef struct kind {
    const char *block, *also; /* names, of the first block */
    bool layers;
    char formats[32]; /* most bytes first */
    uint64_t bytes;
    int tier;
    int32_t *members; /* layers, ascending; [n] */
    size_t n;
    char label[64];
} kind;

typedef struct table {
    kind *kinds;
    size_t n;
    uint64_t tiers[NIB_N_TIER], total;
    uint64_t small; /* bytes of norms and biases: always in RAM, in one row for all blocks */
} table;

static int by_bytes(const void *a, const void *b) {
    const nib_slice *x = *(const nib_slice *const *)a, *y = *(const nib_slice *const *)b;
    return x->bytes < y->bytes ? 1 : x->bytes > y->bytes ? -1 : strcmp(x->format, y->format);
}

/* The part of a block in this tier as a new kind; .bytes is 0 if there is nothing to show. */
static kind gather(table *t, const nib_slice *slices, size_t n, int tier) {
    kind k = {.block = slices[0].block, .layers = slices[0].layer >= 0, .tier = tier};
    const nib_slice *here[16] = {NULL};
    size_t n_here = 0;
    uint64_t all = 0;
    for (size_t i = 0; i < n; i++)
        all += slices[i].bytes;
    for (size_t i = 0; i < n; i++) {
        if (slices[i].tier != tier)
            continue;
        t->tiers[tier] += slices[i].bytes;
        /* less than 1/60 of the block, or outside the layers less than 1/1000 of the model */
        if (slices[i].bytes * 60 < all || (!k.layers && slices[i].bytes * 1000 < t->total))
            t->small += slices[i].bytes;
        else if (n_here < NUM_COUNT(here))
            here[n_here++] = &slices[i];
        k.also = slices[i].also ? slices[i].also : k.also;
    }
    qsort(here, n_here, sizeof *here, by_bytes);
    size_t at = 0;
    for (size_t i = 0; i < n_here; i++) {
        k.bytes += here[i]->bytes;
        if (at < sizeof k.formats)
            at += (size_t)snprintf(k.formats + at, sizeof k.formats - at, "%s%s", i ? " " : "",
                                   here[i]->format);
    }
    return k;
}

static bool add_member(kind *k, int32_t layer) {
    int32_t *grown = realloc(k->members, (k->n + 1) * sizeof *grown);
    if (!grown)
        return false;
    grown[k->n++] = layer;
    k->members = grown;
    return true;
}

static bool add(table *t, const kind *what, int32_t layer) {
    for (size_t i = 0; what->layers && i < t->n; i++) {
        kind *k = &t->kinds[i];
        if (k->layers && k->tier == what->tier && !strcmp(k->formats, what->formats)) {
            k->bytes += what->bytes;
            return add_member(k, layer);
        }
    }
    kind *grown = realloc(t->kinds, (t->n + 1) * sizeof *grown);
    if (!grown)
        return false;
    t->kinds = grown;
    grown[t->n] = *what;
    return add_member(&grown[t->n++], layer);
}

/* Fills the table. A block is a run of slices with the same name. */
static bool fill(table *t, const nib_slice *slices, size_t n) {
    for (size_t i = 0; i < n; i++)
        t->total += slices[i].bytes;
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && !strcmp(slices[end].block, slices[i].block);)
            end++;
        for (int tier = 0; tier < NIB_N_TIER; tier++) {
            kind k = gather(t, slices + i, end - i, tier);
            if (k.bytes && !add(t, &k, slices[i].layer))
                return false;
        }
    }
    const kind small = {.block = "norms, biases", .formats = "f32", .bytes = t->small, .tier = NIB_TIER_RAM};
    return t->small == 0 || add(t, &small, -1);
}

void cli_write_members(const int32_t *members, size_t n_member, char *out, size_t size) {
    size_t n = 0;
    for (size_t i = 0, next; i < n_member; i = next) {
        int32_t step = i + 1 < n_member ? members[i + 1] - members[i] : 0;
        for (next = i + 1; next < n_member && members[next] - members[next - 1] == step;)
            next++;
        char run[48];
        int a = members[i], b = members[next - 1];
        if (step == 1)
            snprintf(run, sizeof run, "%s%d-%d", i ? " " : "", a, b);
        else if (next - i >= 4)
            snprintf(run, sizeof run, "%s%d,%d..%d", i ? " " : "", a, a + step, b);
        else {
            snprintf(run, sizeof run, "%s%d", i ? " " : "", a);
            next = i + 1;
        }
        bool last = next == n_member;
        if (n + strlen(run) + (last ? 0 : 4) >= size) {
            snprintf(out + n, size - n, " ...");
            return;
        }
        n += (size_t)snprintf(out + n, size - n, "%s", run);
    }
}

enum { NARROW = 60 }; /* columns; narrower terminals get a sentence for each row */

static void set_label(kind *k, int width) {
    char members[48];
    if (!k->layers) {
        snprintf(k->label, sizeof k->label, "%.24s%s%.24s", k->block, k->also ? ", " : "",
                 k->also ? k->also : "");
        return;
    }
    int columns = width < NARROW ? 24 : NUM_MIN(width - 46, (int)sizeof members);
    cli_write_members(k->members, k->n, members, (size_t)columns);
    snprintf(k->label, sizeof k->label, "layer%s %.40s", k->n > 1 ? "s" : "", members);
}

static void print_rows(const terminal *s, table *t) {
    static const char *const tiers[NIB_N_TIER] = {"RAM", "VRAM", "disk"};
    int label = 0, formats = 0;
    char size[32];
    for (size_t i = 0; i < t->n; i++) {
        set_label(&t->kinds[i], s->width);
        label = NUM_MAX(label, (int)strlen(t->kinds[i].label));
        formats = NUM_MAX(formats, (int)strlen(t->kinds[i].formats));
    }
    for (size_t i = 0; i < t->n; i++) {
        const kind *k = &t->kinds[i];
        num_format_size(k->bytes, size);
        if (s->width < NARROW)
            terminal_line(s, "  %s: %s, %s, %s", k->label, k->formats, tiers[k->tier], size);
        else
            terminal_line(s, "  %-*s  %-*s  %-4s  %10s", label, k->label, formats, k->formats, tiers[k->tier],
                          size);
    }
}

static void print_tier(const terminal *s, const table *t, int tier, const char *name, const char *note,
                       int colour) {
    char bar[TERMINAL_BAR], size[32];
    double share = t->total ? (double)t->tiers[tier] / (double)t->total : 0;
    if (t->tiers[tier] == 0)
        return;
    terminal_line(s, "  %-4s  %s  %10s %3.0f %%%s", name,
                  terminal_bar(s, bar, NUM_MIN(s->width - 28, 32), share, colour),
                  num_format_size(t->tiers[tier], size), share * 100, s->width >= 90 ? note : "");
}

void cli_print_placement(const cli_args *args, const nib_engine *engine) {
    const nib_slice *slices;
    size_t n = nib_engine_placement(engine, &slices);
    table t = {0};
    char size[32];
    if (fill(&t, slices, n)) {
        terminal s = terminal_open(args, stderr);
        terminal_line(&s, "placement    %s of weights", num_format_size(t.total, size));
        print_tier(&s, &t, NIB_TIER_VRAM, "VRAM", "  on the GPU", TERMINAL_GREEN);
        print_tier(&s, &t, NIB_TIER_RAM, "RAM", "  kept", TERMINAL_GREEN);
        print_tier(&s, &t, NIB_TIER_DISK, "disk", "  read while it computes", TERMINAL_YELLOW);
        print_rows(&s, &t);
    }
    for (size_t i = 0; i < t.n; i++)
        free(t.kinds[i].members);
    free(t.kinds);
}

/* [{"name", "slices": [{"format", "bytes", "tier"}]}], one element for each block. */
json_t *cli_placement_json(const nib_engine *engine) {
    static const char *const tiers[NIB_N_TIER] = {"ram", "vram", "disk"};
    const nib_slice *slices;
    size_t n = nib_engine_placement(engine, &slices);
    json_t *blocks = json_array(), *list = NULL;
    for (size_t i = 0; i < n; i++) {
        if (i == 0 || strcmp(slices[i].block, slices[i - 1].block)) {
            list = json_array();
            json_array_append_new(blocks, json_pack("{s:s, s:o}", "name", slices[i].block, "slices", list));
        }
        json_array_append_new(list, json_pack("{s:s, s:I, s:s}", "format", slices[i].format, "bytes",
                                              (json_int_t)slices[i].bytes, "tier", tiers[slices[i].tier]));
    }
    return blocks;
}
