/* ops.c - the float ops in AVX-512, and the row that puts this folder into the table. */
#include "kernels/cpu/avx512/lanes.h"

#include "kernels/cpu/avx512/avx512.h"
#include "kernels/lanes/install.h"
#include "kernels/registry.h"

static void install(kernel_table *t) {
    lanes_install(t);
    t->act_quantize = avx512_act_quantize;
    t->estimate = NULL; /* VPDPBUSD multiplies 8 bits as fast as 4 */
}

static const strategy *const strategies[] = {&avx512_direct, &avx512_long, &avx512_blocked, NULL};

const kernel_isa kernels_avx512 = {.name = "avx512",
                                   .rank = 20,
                                   .needs = {"avx2", "avx512", "avx512_vnni"},
                                   .install = install,
                                   .strategies = strategies,
                                   .probes = avx512_probes};
