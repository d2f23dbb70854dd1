/* isa.c - the row that adds these products to the table; the float ops are those of AVX2. */
#include "kernels/cpu/avxvnni/avxvnni.h"
#include "kernels/registry.h"

static void install(kernel_table *t) {
    t->estimate = NULL; /* VPDPBUSD multiplies 8 bits as fast as 4 */
}

static const strategy *const strategies[] = {&avxvnni_direct, &avxvnni_blocked, NULL};

const kernel_isa kernels_avxvnni = {.name = "avxvnni",
                                    .rank = 15,
                                    .needs = {"avx2", "avx_vnni"},
                                    .install = install,
                                    .strategies = strategies};
