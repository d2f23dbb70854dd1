/* isa.c - the row that puts this folder into the table. */
#include "kernels/cpu/avx512vbmi/avx512vbmi.h"
#include "kernels/registry.h"

static void install(kernel_table *t) {
    (void)t;
}

static const strategy *const strategies[] = {&avx512vbmi_book, NULL};

const kernel_isa kernels_avx512vbmi = {.name = "avx512vbmi",
                                       .rank = 22,
                                       .needs = {"avx512", "avx512_vnni", "avx512_vbmi"},
                                       .install = install,
                                       .strategies = strategies};
