/* machine.c - see machine.h. */
#include "profile/machine.h"

#include "base/cgroup.h"
#include "base/cpu.h"
#include "base/num.h"
#include "base/thread.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A row of /proc/meminfo, in bytes; 0: no such row. */
static uint64_t meminfo(const char *key) {
    FILE *in = fopen("/proc/meminfo", "re");
    char line[256];
    unsigned long long kib = 0;
    while (in && fgets(line, sizeof line, in))
        if (!strncmp(line, key, strlen(key)) && sscanf(line + strlen(key), ": %llu", &kib) == 1)
            break;
    if (in)
        fclose(in);
    return (uint64_t)kib * 1024;
}

static uint64_t system_value(int name) {
    const long value = sysconf(name);
    return value > 0 ? (uint64_t)value : 0;
}

static void list_features(char *out, size_t size) {
    size_t n = 0;
    out[0] = 0;
#define CPU_X(field, name, base)                                                                             \
    if (cpu_get()->field && n < size)                                                                        \
        n += (size_t)snprintf(out + n, size - n, "%s%s", n ? " " : "", name);
    CPU_FEATURES(CPU_X)
#undef CPU_X
}

void machine_detect(machine *m) {
    cgroup_limits limits;
    memset(m, 0, sizeof *m);
    m->cpu = cpu_model_name();
    list_features(m->features, sizeof m->features);
    m->n_core = thread_physical_cores();
    m->n_cpu = (int)system_value(_SC_NPROCESSORS_ONLN);
    m->l1d = system_value(_SC_LEVEL1_DCACHE_SIZE);
    m->l2 = system_value(_SC_LEVEL2_CACHE_SIZE);
    m->l3 = system_value(_SC_LEVEL3_CACHE_SIZE);
    cgroup_limits_read(&limits);
    m->ram_total = NUM_MIN(meminfo("MemTotal"), limits.ram);
    m->ram_free = NUM_MIN(meminfo("MemAvailable"), limits.ram);
}
