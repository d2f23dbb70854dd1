/* cuda_load.h - finds libnibble-cuda.so at run time.
 *
 * It is looked for beside the program or library that nibble is part of, then in ../lib from there, then
 * where the system looks. NIBBLE_CUDA=PATH names one file instead; NIBBLE_CUDA=0 looks for none. It stays
 * loaded. */
#ifndef NIB_KERNELS_CUDA_LOAD_H
#define NIB_KERNELS_CUDA_LOAD_H

#include "base/status.h"
#include "kernels/cuda/cuda_kernels.h"

/* The table, with at least one device to use. NIB_E_DEVICE: there is none, and the message says what is
 * missing. Found once; safe from any thread. */
nib_status cuda_load(const cuda_kernels **out, nib_error *err);

/* Every later cuda_load gives this table; NULL: what is there. For tests, while no device is open. */
void cuda_load_with(const cuda_kernels *kernels);

#endif
