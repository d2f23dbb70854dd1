/* gpu_kernels.h - the GPU of a kernel map: the table of its strategies, and the description of the device
 * that is part of the map's key. */
#ifndef NIB_PROFILE_GPU_KERNELS_H
#define NIB_PROFILE_GPU_KERNELS_H

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/dpr.h"
#include "profile/kernel_map_file.h"

typedef struct gpu_kernels {
    const cuda_kernels *cuda;
    cuda_device_info info;
    kernel_table table; /* isa "cuda": the device's cuda_strategy rows, which have no run */
    machine machine;    /* its name, compute capability, multiprocessors and cache */
} gpu_kernels;

/* Describes device 0, which becomes the calling thread's device. *out must not move: keys point into it.
 * NIB_E_DEVICE: there is no GPU. */
nib_status gpu_kernels_probe(gpu_kernels *out, nib_error *err);

static inline kernel_map_key gpu_kernels_key(const gpu_kernels *g) {
    return (kernel_map_key){&g->machine, &g->table, 0};
}

/* Converts a strategy of such a table to the type that launches take. */
static inline const cuda_strategy *gpu_strategy(const strategy *s) {
    return (const cuda_strategy *)(const void *)s;
}

#endif
