/* device_host.h - functions of host memory's table (device.h) that other kinds of devices have too: their
 * memory needs no pinning, and their copies are complete when the call returns, so every mark is passed. */
#ifndef NIB_MEMORY_DEVICE_HOST_H
#define NIB_MEMORY_DEVICE_HOST_H

#include "memory/device.h"

void device_host_close(device *d);
nib_status device_host_pin(device *d, void *at, uint64_t n_byte, nib_error *err);
void device_host_unpin(device *d, void *at, uint64_t n_byte);
nib_status device_host_copy(device *d, device_lane lane, void *to, const void *from, uint64_t n_byte,
                            nib_error *err);
nib_status device_host_mark(device *d, device_lane lane, device_mark *out, nib_error *err);
nib_status device_host_wait(device *d, device_mark mark, nib_error *err);
nib_status device_host_follow(device *d, device_lane lane, device_mark mark, nib_error *err);

#endif
