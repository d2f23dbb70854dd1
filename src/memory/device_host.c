/* device_host.c - host memory as a device: pages come from the system, and a copy is a memcpy. */
#include "memory/device_host.h"

#include "base/mem.h"
#include "base/status.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static device host = {.kind = &device_host_kind};

device *device_host(void) {
    return &host;
}

static nib_status host_open(int index, device **out, nib_error *err) {
    if (index)
        return nib_fail(err, NIB_E_NOTFOUND, "expected host number 0, found %d", index);
    *out = &host;
    return NIB_OK;
}

void device_host_close(device *d) {
    (void)d;
}

static void host_info(const device *d, device_info *out) {
    const long n = sysconf(_SC_PHYS_PAGES), left = sysconf(_SC_AVPHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    (void)d;
    *out = (device_info){.host_reads = true};
    snprintf(out->name, sizeof out->name, "host");
    if (n > 0 && left > 0 && page > 0) {
        out->bytes = (uint64_t)n * (uint64_t)page;
        out->free = (uint64_t)left * (uint64_t)page;
    }
}

static nib_status host_alloc(device *d, uint64_t n_byte, bool sparse, void **out, nib_error *err) {
    (void)d;
    *out = n_byte > SIZE_MAX ? NULL : sparse ? mem_map_sparse((size_t)n_byte) : mem_map((size_t)n_byte);
    return *out ? NIB_OK : nib_fail_nomem(err, n_byte, "host memory");
}

static void host_free(device *d, void *at, uint64_t n_byte) {
    (void)d;
    mem_unmap(at, (size_t)n_byte);
}

nib_status device_host_pin(device *d, void *at, uint64_t n_byte, nib_error *err) {
    (void)d;
    (void)at;
    (void)n_byte;
    (void)err;
    return NIB_OK;
}

void device_host_unpin(device *d, void *at, uint64_t n_byte) {
    (void)d;
    (void)at;
    (void)n_byte;
}

nib_status device_host_copy(device *d, device_lane lane, void *to, const void *from, uint64_t n_byte,
                            nib_error *err) {
    (void)d;
    (void)lane;
    (void)err;
    memcpy(to, from, (size_t)n_byte);
    return NIB_OK;
}

nib_status device_host_mark(device *d, device_lane lane, device_mark *out, nib_error *err) {
    (void)d;
    (void)err;
    *out = (device_mark){lane, 0};
    return NIB_OK;
}

nib_status device_host_wait(device *d, device_mark mark, nib_error *err) {
    (void)d;
    (void)mark;
    (void)err;
    return NIB_OK;
}

nib_status device_host_follow(device *d, device_lane lane, device_mark mark, nib_error *err) {
    (void)lane;
    return device_host_wait(d, mark, err);
}

const device_kind device_host_kind = {
    .tier = NIB_TIER_RAM,
    .open = host_open,
    .close = device_host_close,
    .info = host_info,
    .alloc = host_alloc,
    .free = host_free,
    .pin = device_host_pin,
    .unpin = device_host_unpin,
    .copy = device_host_copy,
    .mark = device_host_mark,
    .wait = device_host_wait,
    .follow = device_host_follow,
};
