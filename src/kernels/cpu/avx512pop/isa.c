/* isa.c - the row that puts this folder into the table. */
#include "kernels/cpu/avx512pop/avx512pop.h"
#include "kernels/registry.h"

static void install(kernel_table *t) {
    (void)t;
}

static const strategy *const strategies[] = {&avx512pop_bitwise, NULL};

const kernel_isa kernels_avx512pop = {.name = "avx512pop",
                                      .rank = 25,
                                      .needs = {"avx512", "avx512_vnni", "avx512_vpopcntdq"},
                                      .install = install,
                                      .strategies = strategies,
                                      .probes = avx512pop_probes};
