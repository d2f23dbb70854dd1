/* ops.c - the float ops in AVX2, and the row that puts this folder into the table. */
#include "kernels/cpu/avx2/lanes.h"

#include "kernels/cpu/avx2/avx2.h"
#include "kernels/lanes/install.h"
#include "kernels/registry.h"

static void install(kernel_table *t) {
    lanes_install(t);
    t->act_quantize = avx2_act_quantize;
    t->estimate = avx2_estimate;
    t->estimate_can = avx2_estimate_can;
}

static const strategy *const strategies[] = {&avx2_direct, &avx2_signs, &avx2_blocked, &avx2_split, NULL};

const kernel_isa kernels_avx2 = {.name = "avx2",
                                 .rank = 10,
                                 .needs = {"avx2"},
                                 .install = install,
                                 .strategies = strategies,
                                 .probes = avx2_probes};
