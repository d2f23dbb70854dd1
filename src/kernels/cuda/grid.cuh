/* grid.cuh - a barrier of all blocks of a launch. All blocks must run at the same time, so the launch is
 * cooperative: the device starts all of its blocks or none, whatever other streams run. */
#ifndef NIB_KERNELS_CUDA_GRID_CUH
#define NIB_KERNELS_CUDA_GRID_CUH

#include "kernels/cuda/device.cuh"

/* At the start of a launch's scratch, zeroed once: the number of blocks that have reached the barrier, and
 * how often it was passed. */
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
