/* fakecuda_library.c - the fake table as a library that NIBBLE_CUDA can name, for tests of the command: one
 * device with a GiB. */
#include "support/fakecuda.h"

__attribute__((visibility("default"))) const cuda_kernels *nib_cuda_kernels(void) {
    return fake_cuda((size_t)1 << 30, 0, 0);
}
