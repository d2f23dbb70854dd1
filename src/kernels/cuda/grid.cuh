/* grid.cuh - a barrier of all blocks of a launch. All of them must be on the device together: at most one for
 * each multiprocessor, none of which waits for another launch. Launches of several streams meet this as long
 * as their blocks fit a multiprocessor together, or if they are cooperative. */
#ifndef NIB_KERNELS_CUDA_GRID_CUH
#define NIB_KERNELS_CUDA_GRID_CUH

#include "kernels/cuda/device.cuh"

/* In front of a launch's scratch, zeroed once: how many blocks have come to the barrier, and how often it was
 * passed. */
struct grid_state {
    unsigned arrived, passed;
};

__device__ static void grid_barrier(grid_state *m, unsigned n_block) {
    __syncthreads();
    if (threadIdx.x == 0) {
        volatile unsigned *passed = &m->passed;
        const unsigned before = *passed;
        __threadfence();
        if (atomicAdd(&m->arrived, 1) == n_block - 1) {
            m->arrived = 0;
            __threadfence();
            atomicAdd(&m->passed, 1);
        } else {
            while (*passed == before)
                ;
        }
        __threadfence();
    }
    __syncthreads();
}

#endif
