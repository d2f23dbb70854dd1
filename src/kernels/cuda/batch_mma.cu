/* batch_mma.cu - products of the rows of many sequences that decode together (cuda_kernels.batch). */
#include "kernels/cuda/wide.cuh"

bool has_batch(void) {
    return false;
}

int batch_launch(const cuda_linear *a, cuda_stream s) {
    (void)a, (void)s;
    return CUDA_UNSUPPORTED;
}
