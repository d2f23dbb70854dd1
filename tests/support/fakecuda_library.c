/* fakecuda_library.c - the fake table as a library that NIBBLE_CUDA can name, for tests of the command: one
 * device with a GiB, whose kernels are the scalar reference. Set NIBBLE_ISA=ref too, as the tests do that
 * link the table. */
#include "support/fakecuda.h"

__attribute__((visibility("default"))) const cuda_kernels *nib_cuda_kernels(void) {
    return fake_cuda((size_t)1 << 30, 0, 0);
}
