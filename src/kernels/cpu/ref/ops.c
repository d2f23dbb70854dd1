/* ops.c - the float ops in plain C, and the row that puts the reference into the table. */
#include "kernels/cpu/ref/lanes.h"

#include "base/cpu.h"
#include "kernels/cpu/ref/ref.h"
#include "kernels/lanes/install.h"
#include "kernels/registry.h"

static void install(kernel_table *t) {
    ref_has_fma = cpu_get()->avx2;
    lanes_install(t);
    t->act_quantize = ref_act_quantize;
}

static const strategy *const strategies[] = {&ref_scalar, NULL};

const kernel_isa kernels_ref = {.name = "ref",
                                .rank = 0,
                                .needs = {NULL},
                                .install = install,
                                .strategies = strategies,
                                .probes = ref_probes};
