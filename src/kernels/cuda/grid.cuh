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

/* A cooperative launch of at most one block for each multiprocessor. early: it may start before the launch
 * before it has finished, for which its kernel calls launch_wait. */
template <class... Parameters, class... Arguments>
static int launch_together(void (*kernel)(Parameters...), bool early, unsigned n_block, unsigned threads,
                           size_t shared, cudaStream_t stream, Arguments... arguments) {
    cudaLaunchAttribute with[2];
    with[0].id = cudaLaunchAttributeCooperative;
    with[0].val.cooperative = 1;
    with[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    with[1].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t c = {};
    c.gridDim = dim3(n_block);
    c.blockDim = dim3(threads);
    c.dynamicSmemBytes = shared;
    c.stream = stream;
    c.attrs = with;
    c.numAttrs = early ? 2 : 1;
    return (int)cudaLaunchKernelEx(&c, kernel, Parameters(arguments)...);
}

#endif
