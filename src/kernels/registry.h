/* registry.h - registration of kernel folders.
 *
 * src/kernels/cpu/NAME/ has one instruction set and defines `const kernel_isa kernels_NAME` once. The build
 * lists the folders that it finds (build/gen/registry.c defines kernel_isas) and compiles each with its own
 * flags (ISA_NAME in the Makefile). To add an instruction set, add a folder. The row is plain data, so no
 * code that was compiled for a processor runs before that processor is detected. */
#ifndef NIB_KERNELS_REGISTRY_H
#define NIB_KERNELS_REGISTRY_H

#include "kernels/dpr.h"

typedef struct kernel_isa {
    const char *name;                 /* as NIBBLE_ISA spells it */
    int rank;                         /* smallest instruction set first; ref is 0 */
    const char *needs[4];             /* names of cpu.h's features, NULL-terminated: all must be there */
    void (*install)(kernel_table *t); /* overrides the rows it has */
    /* Its strategies, in the order in which the rule tries them; NULL after the last. */
    const strategy *const *strategies;
    const dpr_probe *probes; /* its units, to be measured; NULL: it adds none to those of smaller sets */
} kernel_isa;

/* The folders that can run here, smallest instruction set first; NULL after the last. */
const kernel_isa *kernels_folder_at(int i);

extern const kernel_isa *const kernel_isas[]; /* in any order, NULL after the last */

#endif
