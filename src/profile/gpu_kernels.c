/* gpu_kernels.c - see gpu_kernels.h. */
#include "profile/gpu_kernels.h"

#include "base/place.h"
#include "kernels/cuda_load.h"

#include <stdio.h>
#include <string.h>

static void list_strategies(gpu_kernels *g) {
    int n;
    const int capability = 10 * g->info.major + g->info.minor;
    const cuda_strategy *all = g->cuda->strategies(&n);
    kernel_table *t = &g->table;
    for (int i = 0; i < n && t->n_strategy < KERNELS_MAX_STRATEGY; i++) {
        if (capability < all[i].since || (all[i].before && capability >= all[i].before))
            continue;
        t->strategy_isa[t->n_strategy] = t->isa;
        t->strategies[t->n_strategy++] = &all[i].row;
    }
}

nib_status gpu_kernels_probe(gpu_kernels *out, nib_error *err) {
    memset(out, 0, sizeof *out);
    NIB_TRY(cuda_load(&out->cuda, err));
    const int e = out->cuda->device_open(PLACE_GPU_INDEX, &out->info);
    if (e)
        return nib_fail(err, NIB_E_DEVICE, "opening the GPU: %s", out->cuda->error_text(e));
    out->table.isa = "cuda";
    list_strategies(out);
    out->machine.cpu = out->info.name;
    out->machine.n_core = out->info.n_sm;
    out->machine.l2 = out->info.l2;
    snprintf(out->machine.features, sizeof out->machine.features, "sm_%d%d", out->info.major,
             out->info.minor);
    return NIB_OK;
}
