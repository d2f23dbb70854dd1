/* device_cuda.h - a GPU's memory as a device (tiers/device.h), and what a back end needs to compute there:
 * the table of kernels (kernels/cuda/cuda_kernels.h) and streams. The lanes for weights are streams of
 * their own from when they are first asked for (device_cuda_lane), all others are one stream.
 *
 * CUDA's errors are NIB_E_DEVICE, memory that is not there NIB_E_NOMEM. A lost device fails every later call,
 * and giving memory back and closing work all the same. */
#ifndef NIB_TIERS_DEVICE_CUDA_H
#define NIB_TIERS_DEVICE_CUDA_H

#include "kernels/cuda/cuda_kernels.h"
#include "tiers/device.h"

enum { DEVICE_CUDA_ALIGN = 4096 }; /* of what is taken */

/* device_mapped_kind: host memory that a GPU reads and writes where it is. */
extern const device_kind device_cuda_kind, device_mapped_kind;

/* For a device of that kind: */
const cuda_kernels *device_cuda_kernels(const device *d);
cuda_stream device_cuda_stream(const device *d);
/* The stream of a lane, made if it is one for weights that has none; it is the device's. */
nib_status device_cuda_lane(device *d, device_lane lane, cuda_stream *out, nib_error *err);
/* What the driver takes of its memory beside what is taken here: its context, and room for kernels and graphs
 * that come later. A process has it once: 0 where another open device of the process was told, or where it is
 * not known. The next that asks is told when that one is closed. */
uint64_t device_cuda_driver(device *d);
/* The calling thread computes on it from now on. Before any other call of the table. */
nib_status device_cuda_enter(const device *d, nib_error *err);
/* What a call of the table returned, as a status; `what` it was about. */
nib_status device_cuda_ok(const device *d, int error, const char *what, nib_error *err);

/* Host memory for that GPU, which is borrowed; NIB_E_DEVICE when it cannot see it. */
nib_status device_mapped_open(const device *gpu, device **out, nib_error *err);
/* Where the GPU sees an address of memory that was taken there. */
void *device_mapped_there(const device *d, void *host);

#endif
