/* isa.c - the row that puts this folder into the table: products only, the rest is AVX-512's. */
#include "kernels/cpu/amx/amx.h"
#include "kernels/registry.h"

static void install(kernel_table *t) {
    t->linear_sliced = amx_linear_sliced;
    t->sliced_suits = amx_sliced_suits;
    t->sliced_scratch = amx_sliced_scratch();
}

static const strategy *const strategies[] = {&amx_blocked, NULL};

const kernel_isa kernels_amx = {.name = "amx",
                                .rank = 30,
                                .needs = {"avx512", "avx512_vnni", "amx_int8", "amx_bf16"},
                                .install = install,
                                .strategies = strategies};
