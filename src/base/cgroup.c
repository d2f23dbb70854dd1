/* cgroup.c - see cgroup.h. /proc/self/cgroup has the process's path in each hierarchy, /proc/self/mountinfo
 * where hierarchies are mounted and which part of them. */
#include "base/cgroup.h"

#include "base/num.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The part of a limit that is left to the kernel's memory of this process: page tables take a 512th, stacks
 * and open files some hundred KiB. */
enum { MARGIN_SHARE = 16 };
#define MIN_MARGIN (UINT64_C(4) << 20)
#define MAX_MARGIN (UINT64_C(256) << 20)
#define NO_LIMIT   (UINT64_C(1) << 62) /* version 1 has a number near 2^63 for none */

typedef struct search {
    const char *root; /* "" or the folder of a test */
    cgroup_limits *out;
} search;

static FILE *open_in(const char *root, const char *folder, const char *name) {
    char path[3 * CGROUP_PATH];
    snprintf(path, sizeof path, "%s%s/%s", root, folder, name);
    return fopen(path, "re");
}

/* False: no such file, or "max". */
static bool read_number(const search *s, const char *folder, const char *name, long long *out) {
    FILE *f = open_in(s->root, folder, name);
    const bool found = f && fscanf(f, "%lld", out) == 1 && *out >= 0;
    if (f)
        fclose(f);
    return found;
}

/* ---- memory ---- */

/* A row of the group's memory.stat; 0: none. */
static uint64_t read_stat(const search *s, const char *folder, const char *key) {
    char name[64];
    unsigned long long value = 0;
    FILE *f = open_in(s->root, folder, "memory.stat");
    while (f && fscanf(f, "%63s %llu", name, &value) == 2 && strcmp(name, key) != 0)
        value = 0;
    if (f)
        fclose(f);
    return value;
}

/* Bytes of this process that no file backs. */
static uint64_t own_bytes(void) {
    unsigned long long resident = 0, shared = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f && fscanf(f, "%*u %llu %llu", &resident, &shared) != 2)
        resident = shared = 0;
    if (f)
        fclose(f);
    return (resident - NUM_MIN(shared, resident)) * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void take_memory(const search *s, const char *folder, const char *name, const char *const held[2]) {
    long long limit;
    if (!read_number(s, folder, name, &limit) || (uint64_t)limit >= NO_LIMIT)
        return;
    const uint64_t all = (uint64_t)limit,
                   held_by_all = read_stat(s, folder, held[0]) + read_stat(s, folder, held[1]),
                   own = own_bytes(), others = held_by_all - NUM_MIN(own, held_by_all),
                   margin = NUM_MIN(NUM_MAX(all / MARGIN_SHARE, MIN_MARGIN), MAX_MARGIN) + others,
                   left = all - NUM_MIN(margin, all);
    if (left >= s->out->ram)
        return;
    s->out->ram = NUM_MAX(left, UINT64_C(1));
    s->out->limit = all;
    snprintf(s->out->from, sizeof s->out->from, "%s/%s", folder, name);
}

static void look_at_memory_1(const search *s, const char *folder) {
    static const char *const held[] = {"total_rss", "total_shmem"};
    take_memory(s, folder, "memory.limit_in_bytes", held);
}

static void look_at_memory_2(const search *s, const char *folder) {
    static const char *const held[] = {"anon", "shmem"};
    take_memory(s, folder, "memory.max", held);
    take_memory(s, folder, "memory.high", held);
}

/* ---- processor time ---- */

static void take_cpus(const search *s, long long quota, long long period) {
    if (quota <= 0 || period <= 0)
        return;
    const long long n = quota / period + (quota % period != 0);
    if (n < CPU_SETSIZE && (s->out->n_cpu == 0 || n < s->out->n_cpu))
        s->out->n_cpu = (int)n;
}

static void look_at_cpu_1(const search *s, const char *folder) {
    long long quota, period;
    if (read_number(s, folder, "cpu.cfs_quota_us", &quota) &&
        read_number(s, folder, "cpu.cfs_period_us", &period))
        take_cpus(s, quota, period);
}

static void look_at_cpu_2(const search *s, const char *folder) {
    long long quota, period;
    FILE *f = open_in(s->root, folder, "cpu.max");
    if (f && fscanf(f, "%lld %lld", &quota, &period) == 2)
        take_cpus(s, quota, period);
    if (f)
        fclose(f);
}

/* ---- the path ---- */

static bool has_word(const char *list, const char *word) {
    const size_t n = strlen(word);
    for (const char *at = list; *at; at += strcspn(at, ",") + (at[strcspn(at, ",")] == ',')) {
        const size_t length = strcspn(at, ",");
        if (length == n && !strncmp(at, word, n))
            return true;
    }
    return false;
}

/* The process's path in the hierarchy of a controller ("": version 2). */
static bool find_path(const search *s, const char *controller, char out[CGROUP_PATH]) {
    char line[2 * CGROUP_PATH];
    bool found = false;
    FILE *f = open_in(s->root, "/proc/self", "cgroup");
    while (f && !found && fgets(line, sizeof line, f)) {
        char *list = strchr(line, ':'), *path = list ? strchr(list + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = 0;
        list++;
        path[strcspn(path, "\n")] = 0;
        found = *controller ? has_word(list, controller) : !*list;
        snprintf(out, CGROUP_PATH, "%.*s", CGROUP_PATH - 1, path);
    }
    if (f)
        fclose(f);
    return found;
}

/* Looks at the group and at all that it is in, up to the mount. from: the part of the hierarchy that is
 * mounted at `mount`. A path outside of it is another container's view: the mount itself is the group. */
static void walk(const search *s, const char *from, const char *mount, const char *controller,
                 void (*look)(const search *s, const char *folder)) {
    char path[CGROUP_PATH], folder[2 * CGROUP_PATH];
    const size_t n_from = strcmp(from, "/") ? strlen(from) : 0, n_mount = strlen(mount);
    if (!find_path(s, controller, path))
        return;
    const bool is_inside = !strncmp(path, from, n_from) && strncmp(path, "/..", 3) != 0;
    const int n = snprintf(folder, sizeof folder, "%s%s", mount, is_inside ? path + n_from : "");
    for (size_t at = (size_t)n; at >= n_mount; at--)
        if (at == n_mount || folder[at] == '/' || at == (size_t)n) {
            folder[at] = 0;
            if (at == n_mount || folder[at - 1] != '/')
                look(s, folder);
        }
}

/* A line of mountinfo: "36 35 98:0 FROM MOUNT options - TYPE source OPTIONS". */
static void visit_mount(const search *s, const char *line) {
    char from[CGROUP_PATH], mount[CGROUP_PATH], type[32], options[256];
    const char *rest = strstr(line, " - ");
    if (!rest || sscanf(line, "%*d %*d %*s %1023s %1023s", from, mount) != 2 ||
        sscanf(rest, " - %31s %*s %255s", type, options) != 2)
        return;
    if (!strcmp(type, "cgroup2")) {
        walk(s, from, mount, "", look_at_memory_2);
        walk(s, from, mount, "", look_at_cpu_2);
    } else if (!strcmp(type, "cgroup")) {
        if (has_word(options, "memory"))
            walk(s, from, mount, "memory", look_at_memory_1);
        if (has_word(options, "cpu"))
            walk(s, from, mount, "cpu", look_at_cpu_1);
    }
}

void cgroup_limits_read(cgroup_limits *out) {
    const char *root = getenv("NIBBLE_CGROUPS");
    const search s = {.root = root ? root : "", .out = out};
    char line[4 * CGROUP_PATH];
    *out = (cgroup_limits){.ram = UINT64_MAX};
    FILE *f = open_in(s.root, "/proc/self", "mountinfo");
    while (f && fgets(line, sizeof line, f))
        if (strstr(line, " - cgroup"))
            visit_mount(&s, line);
    if (f)
        fclose(f);
}
