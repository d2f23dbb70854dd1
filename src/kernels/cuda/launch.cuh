/* launch.cuh - launches kernels, and has the properties of the device that they run on. */
#ifndef NIB_KERNELS_CUDA_LAUNCH_CUH
#define NIB_KERNELS_CUDA_LAUNCH_CUH

#include "kernels/cuda/cuda_kernels.h"

#include <cuda_runtime.h>

/* How a kernel is launched. early: it may start before the previous launch has finished, and calls
 * launch_wait. cooperative: all of its blocks start together, or none. cluster: so many blocks along z are a
 * cluster. */
struct launch_way {
    bool early, cooperative;
    unsigned cluster;
};

template <class... Parameters, class... Arguments>
static int launch_by(launch_way way, void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared,
                     cuda_stream stream, Arguments... arguments) {
    cudaLaunchAttribute with[3];
    cudaLaunchConfig_t c = {};
    c.gridDim = grid;
    c.blockDim = block;
    c.dynamicSmemBytes = shared;
    c.stream = (cudaStream_t)stream;
    c.attrs = with;
    if (way.early) {
        with[c.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        with[c.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (way.cooperative) {
        with[c.numAttrs].id = cudaLaunchAttributeCooperative;
        with[c.numAttrs++].val.cooperative = 1;
    }
    if (way.cluster > 1) {
        with[c.numAttrs].id = cudaLaunchAttributeClusterDimension;
        with[c.numAttrs].val.clusterDim.x = with[c.numAttrs].val.clusterDim.y = 1;
        with[c.numAttrs++].val.clusterDim.z = way.cluster;
    }
    return (int)cudaLaunchKernelEx(&c, kernel, Parameters(arguments)...);
}

/* Launches a kernel that may start before the previous launch has finished. `together` blocks along z are a
 * cluster. */
template <class... Parameters, class... Arguments>
static int launch_cluster(void (*kernel)(Parameters...), dim3 grid, dim3 block, unsigned together,
                          size_t shared, cuda_stream stream, Arguments... arguments) {
    return launch_by({true, false, together}, kernel, grid, block, shared, stream, arguments...);
}
template <class... Parameters, class... Arguments>
static int launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared, cuda_stream stream,
                  Arguments... arguments) {
    return launch_cluster(kernel, grid, block, 1, shared, stream, arguments...);
}

/* Lowers *max_clusters to the number of clusters of `together` blocks that run on the device at once. */
template <class Kernel>
static int clusters_max(Kernel kernel, unsigned threads, unsigned together, size_t shared,
                        int *max_clusters) {
    cudaLaunchAttribute with = {};
    with.id = cudaLaunchAttributeClusterDimension;
    with.val.clusterDim.x = with.val.clusterDim.y = 1;
    with.val.clusterDim.z = together;
    cudaLaunchConfig_t c = {};
    c.gridDim = dim3(1, 1, together);
    c.blockDim = dim3(threads);
    c.dynamicSmemBytes = shared;
    c.attrs = &with;
    c.numAttrs = 1;
    int n = 0;
    const cudaError_t e = cudaOccupancyMaxActiveClusters(&n, kernel, &c);
    *max_clusters = n > 0 && n < *max_clusters ? n : *max_clusters;
    return (int)e;
}

/* Every kernel requests the same split of a multiprocessor's memory, all of it shared. Otherwise blocks of
 * two launches could not run on it together. */
template <class Kernel> static int prepare(Kernel kernel, size_t shared) {
    cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100);
    if (e == cudaSuccess && shared)
        e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    return (int)e;
}

/* Properties of this thread's device; queried once. */
int device_sm_count(void);
int device_shared_bytes(void);
int device_major(void);
int device_capability(void); /* 75, 80, ... */

#endif
