/* few.cuh - selects the instances of kernels that a build leaves out. With NIB_CUDA_FEW (`make CUDA_FEW=1`)
 * the largest kernels are compiled for a few formats, so that each path through their templates is compiled
 * once. It is for machines without a GPU. A kernel that is left out gives CUDA_UNSUPPORTED. */
#ifndef NIB_KERNELS_CUDA_FEW_CUH
#define NIB_KERNELS_CUDA_FEW_CUH

#ifdef NIB_CUDA_FEW
#define UNLESS_FEW(...) nullptr
#else
#define UNLESS_FEW(...) (__VA_ARGS__)
#endif

#endif
