/* cmd_hw.c - nibble hw: what this machine is and what it really moves. */
#include "cli/cli.h"

#include "base/cpu.h"
#include "base/num.h"
#include "kernels/kernels.h"
#include "profile/machine.h"
#include "profile/rate.h"

#include <string.h>

typedef struct hardware {
    machine m;
    rate read_1, read_n; /* with one thread; with one for each core */
} hardware;

static int look(hardware *h) {
    nib_error err;
    machine_look(&h->m);
    const uint64_t want = NUM_MAX((uint64_t)1 << 30, 3 * h->m.l3);
    const uint64_t buffer = NUM_MIN(want, h->m.ram_free / 2);
    if (rate_memory_read(1, buffer, 0.4, &h->read_1, &err) ||
        rate_memory_read(h->m.n_core, buffer, 0.4, &h->read_n, &err))
        return cli_fail(&err);
    return 0;
}

static int print_json(const cli_args *args, const hardware *h) {
    const machine *m = &h->m;
    json_t *sets = json_array(), *features = json_array();
    for (int i = 0; kernels_isa_at(i); i++)
        json_array_append_new(sets, json_string(kernels_isa_at(i)));
#define CPU_X(field, name)                                                                                   \
    if (cpu_get()->field)                                                                                    \
        json_array_append_new(features, json_string(name));
    CPU_FEATURES(CPU_X)
#undef CPU_X
    return cli_write_json(
        json_pack("{s:s, s:i, s:i, s:o, s:o, s:s, s:{s:I, s:I, s:I}, s:{s:I, s:I, s:f, s:f}, s:[]}", "cpu",
                  m->cpu, "cores", m->n_core, "cpus", m->n_cpu, "features", features, "kernels", sets, "isa",
                  kernels_table()->isa, "cache", "l1d", (json_int_t)m->l1d, "l2", (json_int_t)m->l2, "l3",
                  (json_int_t)m->l3, "ram", "total", (json_int_t)m->ram_total, "available",
                  (json_int_t)m->ram_free, "read_gb_s_1", h->read_1.best / 1e9, "read_gb_s",
                  h->read_n.best / 1e9, "gpus"),
        args);
}

static void print_text(const hardware *h) {
    const machine *m = &h->m;
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
    printf("memory reads   %.1f GB/s with one thread (median pass %.1f), %.1f GB/s with %d (median %.1f), "
           "measured now\n",
           h->read_1.best / 1e9, h->read_1.median / 1e9, h->read_n.best / 1e9, m->n_core,
           h->read_n.median / 1e9);
    printf("GPUs           none used by this version\n");
}

static int run(cli_args *args) {
    hardware h;
    memset(&h, 0, sizeof h);
    int code = look(&h);
    if (code)
        return code;
    if (args->json)
        return print_json(args, &h);
    print_text(&h);
    return 0;
}

const cli_command cmd_hw = {
    .name = "hw",
    .usage = "[--json]",
    .summary = "this machine: cores, instruction sets, memory and what it really reads",
    .details = "Takes about a second: memory rates are measured, not looked up.\n\n  nibble hw\n",
    .groups = 0,
    .run = run,
};
