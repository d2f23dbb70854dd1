/* cgroup.h - the limits of the control groups that this process is in: memory and processor time, of version
 * 1 and version 2. A group is inside others, and each of them limits it, so the smallest limit along the path
 * applies. A set of CPUs needs no code here: the system's affinity mask has it (thread.h). */
#ifndef NIB_BASE_CGROUP_H
#define NIB_BASE_CGROUP_H

#include <stdint.h>

enum { CGROUP_PATH = 1024 };

typedef struct cgroup_limits {
    uint64_t
        ram; /* bytes that this process may take; UINT64_MAX: no limit. The limit, less what other processes
                of the group hold and it cannot give up, less a margin for the kernel's own memory (page
                tables, stacks). Page cache counts in the group, but is given up, so it is not deducted */
    uint64_t limit;         /* as the group states it */
    char from[CGROUP_PATH]; /* the file that states it */
    int n_cpu;              /* CPUs' worth of processor time, rounded up; 0: no limit */
} cgroup_limits;

/* Reads /proc and the groups' files; what cannot be read is no limit. NIBBLE_CGROUPS names a folder that is
 * used instead of the root folder, for tests. */
void cgroup_limits_read(cgroup_limits *out);

#endif
