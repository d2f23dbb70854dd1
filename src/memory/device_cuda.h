/* device_cuda.h - a GPU's memory as a device (memory/device.h), and what a back end needs to compute there:
 * the table of kernels (kernels/cuda/cuda_kernels.h) and streams. Each lane for weights, and for keys and
 * values, becomes a stream of its own when it is first requested (device_cuda_lane); all other lanes are one
 * stream.
 * CUDA's errors are NIB_E_DEVICE, missing memory is NIB_E_NOMEM. After the loss of a device every call fails,
 * except freeing memory and closing. */
#ifndef NIB_MEMORY_DEVICE_CUDA_H
#define NIB_MEMORY_DEVICE_CUDA_H

#include "kernels/cuda/cuda_kernels.h"
#include "memory/device.h"

enum { DEVICE_CUDA_ALIGN = DEVICE_PAGE }; /* bytes: alignment of allocations */

extern const device_kind device_cuda_kind;

/* The next functions take a device of device_cuda_kind. */
const cuda_kernels *device_cuda_kernels(const device *d);
cuda_stream device_cuda_stream(const device *d);
/* The stream of a lane, owned by the device. */
nib_status device_cuda_lane(device *d, device_lane lane, cuda_stream *out, nib_error *err);
/* Bytes of the GPU's memory that the driver takes: its context, and a reserve for kernels and graphs that are
 * loaded later. They exist once in a process, so the function returns 0 if another open device of the process
 * has reported them, or if they are unknown. When that device is closed, the next caller gets them. */
uint64_t device_cuda_driver(device *d);
/* Makes this GPU the calling thread's current one. Must precede any other call through the table. */
nib_status device_cuda_enter(const device *d, nib_error *err);
/* Converts the result of a call through the table to a status; what: the action, for the message. */
nib_status device_cuda_ok(const device *d, int error, const char *what, nib_error *err);

/* Opens host memory that this GPU accesses in place. The GPU is borrowed. NIB_E_DEVICE: it cannot access host
 * memory. Its `reorder` copies between that memory and the GPU's. */
nib_status device_mapped_open(device *gpu, device **out, nib_error *err);
/* The GPU's address of memory of such a device. */
void *device_mapped_there(const device *d, const void *host);

#endif
