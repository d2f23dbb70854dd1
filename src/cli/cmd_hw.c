/* cmd_hw.c - nibble hw: what this machine is and what it really moves. */
#include "cli/hardware_profile.h"

#include "base/cpu.h"
#include "base/jsonx.h"
#include "base/num.h"
#include "kernels/kernels.h"

#include <string.h>

typedef struct look {
    machine m;
    hardware h;
} look;

/* The rate with the most threads, or with one. */
static double memory_rate(const hardware *h, bool one) {
    return h->n_memory ? h->memory[one ? 0 : h->n_memory - 1].read.best / 1e9 : 0;
}

/* The profile's own lists, as they are kept. */
static int add_profile(json_t *to, const look *l) {
    static const char *const keys[] = {"memory", "disk", "products", "pack", "barrier_s", "link"};
    nib_error err;
    char *text;
    json_t *all = NULL;
    if (hardware_print(&l->m, &l->h, &text, &err))
        return cli_fail(&err);
    const nib_status status = jsonx_parse(text, strlen(text), &all, &err);
    nib_free(text);
    if (status)
        return cli_fail(&err);
    for (size_t i = 0; i < NUM_COUNT(keys); i++)
        json_object_set(to, keys[i], json_object_get(all, keys[i]));
    json_decref(all);
    return 0;
}

static int print_json(const cli_args *args, const look *l) {
    const machine *m = &l->m;
    json_t *sets = json_array(), *features = json_array();
    for (int i = 0; kernels_isa_at(i); i++)
        json_array_append_new(sets, json_string(kernels_isa_at(i)));
#define CPU_X(field, name, base)                                                                             \
    if (cpu_get()->field)                                                                                    \
        json_array_append_new(features, json_string(name));
    CPU_FEATURES(CPU_X)
#undef CPU_X
    json_t *all = json_pack("{s:s, s:i, s:i, s:o, s:o, s:s, s:{s:I, s:I, s:I}, s:{s:I, s:I, s:f, s:f}, s:[]}",
                            "cpu", m->cpu, "cores", m->n_core, "cpus", m->n_cpu, "features", features,
                            "kernels", sets, "isa", kernels_table()->isa, "cache", "l1d", (json_int_t)m->l1d,
                            "l2", (json_int_t)m->l2, "l3", (json_int_t)m->l3, "ram", "total",
                            (json_int_t)m->ram_total, "available", (json_int_t)m->ram_free, "read_gb_s_1",
                            memory_rate(&l->h, true), "read_gb_s", memory_rate(&l->h, false), "gpus");
    const int code = add_profile(all, l);
    if (code) {
        json_decref(all);
        return code;
    }
    return cli_write_json(all, args);
}

static void print_text(const look *l) {
    const machine *m = &l->m;
    char a[32], b[32], c[32];
    printf("processor      %s\n", m->cpu);
    printf("cores          %d (%d logical)\n", m->n_core, m->n_cpu);
    printf("features       %s", m->features);
    printf("\nkernels       ");
    for (int i = 0; kernels_isa_at(i); i++)
        printf(" %s%s", kernels_isa_at(i), !strcmp(kernels_isa_at(i), kernels_table()->isa) ? " (used)" : "");
    printf("\ncaches         L1 %s, L2 %s, L3 %s\n", num_format_size(m->l1d, a), num_format_size(m->l2, b),
           num_format_size(m->l3, c));
    printf("memory         %s, %s available\n", num_format_size(m->ram_total, a),
           num_format_size(m->ram_free, b));
    hardware_profile_print(&l->h);
    printf("GPUs           none used by this version\n");
}

static int run(cli_args *args) {
    look l;
    memset(&l, 0, sizeof l);
    const int code = hardware_profile_get(args, false, &l.m, &l.h);
    if (code)
        return code;
    if (args->json)
        return print_json(args, &l);
    print_text(&l);
    return 0;
}

const cli_command cmd_hw = {
    .name = "hw",
    .usage = "[--json]",
    .summary = "this machine: cores, instruction sets, memory and what it really reads",
    .details =
        "Rates are measured, not looked up: the first time it takes some seconds, then what was measured is\n"
        "shown. 'nibble profile --hardware' measures again.\n\n  nibble hw\n",
    .groups = 0,
    .run = run,
};
