/* machine.h - the properties of this machine that profiles are keyed by. base/rate.h measures rates. */
#ifndef NIB_PROFILE_MACHINE_H
#define NIB_PROFILE_MACHINE_H

#include <stdint.h>

typedef struct machine {
    const char *cpu;      /* the processor's name, for people and keys; dispatch looks at features only */
    char features[160];   /* names of cpu.h's features, with a space between */
    int n_core;           /* physical, that this process may use */
    int n_cpu;            /* logical, online */
    uint64_t l1d, l2, l3; /* bytes; 0: the system does not say */
    uint64_t ram_total, ram_free; /* bytes */
} machine;

void machine_detect(machine *m); /* takes some system calls; nothing is measured */

#endif
