/* cuda_load.h - finds libnibble-cuda.so at run time.
 *
 * The search order is: the folder of the running program, its parent folder, ../lib from it, and the system's
 * library folders. NIBBLE_CUDA=PATH names one file instead; with NIBBLE_CUDA=0 there is no search. The
 * library stays loaded. */
#ifndef NIB_KERNELS_CUDA_LOAD_H
#define NIB_KERNELS_CUDA_LOAD_H

#include "base/status.h"
#include "kernels/cuda/cuda_kernels.h"

/* Gives the table of CUDA kernels, if there is at least one device to use. NIB_E_DEVICE: there is none, and
 * the message says what is missing. The library is looked for once. Safe from any thread. */
nib_status cuda_load(const cuda_kernels **out, nib_error *err);

/* Makes every later cuda_load give this table; NULL: the table of the library again. For tests, while no
 * device is open. */
void cuda_load_with(const cuda_kernels *kernels);

#endif
