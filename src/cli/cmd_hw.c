/* cmd_hw.c - nibble hw: what this machine is and what it really moves. */
#include "cli/cli.h"

#include "base/cpu.h"
#include "base/num.h"
#include "base/thread.h"
#include "kernels/kernels.h"
#include "profile/rate.h"

#include <string.h>
#include <unistd.h>

typedef struct machine {
    int n_core, n_cpu;
    uint64_t ram_total, ram_free;
    long l1, l2, l3;
    double read_1, read_n; /* bytes a second */
} machine;

/* A row of /proc/meminfo in bytes, 0 when it is not there. */
static uint64_t meminfo(const char *key) {
    FILE *in = fopen("/proc/meminfo", "r");
    char line[256];
    unsigned long long kib = 0;
    while (in && fgets(line, sizeof line, in))
        if (!strncmp(line, key, strlen(key)) && sscanf(line + strlen(key), ": %llu", &kib) == 1)
            break;
    if (in)
        fclose(in);
    return (uint64_t)kib * 1024;
}

static int look(machine *m) {
    nib_error err;
    m->n_core = thread_physical_cores();
    m->n_cpu = (int)sysconf(_SC_NPROCESSORS_ONLN);
    m->ram_total = meminfo("MemTotal");
    m->ram_free = meminfo("MemAvailable");
    m->l1 = NUM_MAX(sysconf(_SC_LEVEL1_DCACHE_SIZE), 0L);
    m->l2 = NUM_MAX(sysconf(_SC_LEVEL2_CACHE_SIZE), 0L);
    m->l3 = NUM_MAX(sysconf(_SC_LEVEL3_CACHE_SIZE), 0L);
    uint64_t buffer = NUM_MIN((uint64_t)1 << 30, m->ram_free / 2);
    if (rate_memory_read(1, buffer, 3, &m->read_1, &err) ||
        rate_memory_read(m->n_core, buffer, 5, &m->read_n, &err))
        return cli_fail(&err);
    return 0;
}

static int print_json(const cli_args *args, const machine *m) {
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
                  cpu_model_name(), "cores", m->n_core, "cpus", m->n_cpu, "features", features, "kernels",
                  sets, "isa", kernels_table()->isa, "cache", "l1d", (json_int_t)m->l1, "l2",
                  (json_int_t)m->l2, "l3", (json_int_t)m->l3, "ram", "total", (json_int_t)m->ram_total,
                  "available", (json_int_t)m->ram_free, "read_gb_s_1", m->read_1 / 1e9, "read_gb_s",
                  m->read_n / 1e9, "gpus"),
        args);
}

static void print_text(const machine *m) {
    char a[32], b[32], c[32];
    printf("processor      %s\n", cpu_model_name());
    printf("cores          %d (%d logical)\n", m->n_core, m->n_cpu);
    printf("features      ");
#define CPU_X(field, name)                                                                                   \
    if (cpu_get()->field)                                                                                    \
        printf(" %s", name);
    CPU_FEATURES(CPU_X)
#undef CPU_X
    printf("\nkernels       ");
    for (int i = 0; kernels_isa_at(i); i++)
        printf(" %s%s", kernels_isa_at(i), !strcmp(kernels_isa_at(i), kernels_table()->isa) ? " (used)" : "");
    printf("\ncaches         L1 %s, L2 %s, L3 %s\n", num_format_size((uint64_t)m->l1, a),
           num_format_size((uint64_t)m->l2, b), num_format_size((uint64_t)m->l3, c));
    printf("memory         %s, %s available\n", num_format_size(m->ram_total, a),
           num_format_size(m->ram_free, b));
    printf("memory reads   %.1f GB/s with one thread, %.1f GB/s with %d (measured now)\n", m->read_1 / 1e9,
           m->read_n / 1e9, m->n_core);
    printf("GPUs           none used by this version\n");
}

static int run(cli_args *args) {
    machine m;
    memset(&m, 0, sizeof m);
    int code = look(&m);
    if (code)
        return code;
    if (args->json)
        return print_json(args, &m);
    print_text(&m);
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
