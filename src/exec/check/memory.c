/* memory.c - see memory.h. */
#include "exec/check/memory.h"

#include "base/mem.h"
#include "base/status.h"
#include "memory/device_host.h"

#include <stdio.h>
#include <string.h>

/* A bit that only kernel addresses have, on x86-64 and on AArch64. */
#define DEVICE_BIT ((uintptr_t)1 << 55)
_Static_assert(sizeof(uintptr_t) == 8, "addresses have 64 bits");

void *check_at(const void *address) {
    const uintptr_t at = (uintptr_t)address;
    return at & DEVICE_BIT ? (void *)(at & ~DEVICE_BIT) : NULL;
}

static nib_status check_alloc(device *d, uint64_t n_byte, bool sparse, void **out, nib_error *err) {
    void *real = n_byte > SIZE_MAX ? NULL : sparse ? mem_map_sparse((size_t)n_byte) : mem_map((size_t)n_byte);
    (void)d;
    if (!real)
        return nib_fail_nomem(err, n_byte, "memory of the check back end");
    *out = (void *)((uintptr_t)real | DEVICE_BIT);
    return NIB_OK;
}

static void check_free(device *d, void *at, uint64_t n_byte) {
    (void)d;
    mem_unmap(check_at(at), (size_t)n_byte);
}

static nib_status check_copy(device *d, device_lane lane, void *to, const void *from, uint64_t n_byte,
                             nib_error *err) {
    void *real_to = check_at(to);
    const void *real_from = check_at(from);
    (void)d;
    (void)lane;
    (void)err;
    memcpy(real_to ? real_to : to, real_from ? real_from : from, (size_t)n_byte);
    return NIB_OK;
}

static void check_info(const device *d, device_info *out) {
    (void)d;
    *out = (device_info){.host_reads = false};
    snprintf(out->name, sizeof out->name, "check");
}

static nib_status check_open(int index, device **out, nib_error *err) {
    if (index)
        return nib_fail(err, NIB_E_NOTFOUND, "there is one check device, number 0; found %d", index);
    *out = check_device();
    return NIB_OK;
}

const device_kind check_memory = {
    .tier = NIB_TIER_RAM,
    .open = check_open,
    .close = device_host_close,
    .info = check_info,
    .alloc = check_alloc,
    .free = check_free,
    .pin = device_host_pin,
    .unpin = device_host_unpin,
    .copy = check_copy,
    .mark = device_host_mark,
    .wait = device_host_wait,
    .follow = device_host_follow,
};

device *check_device(void) {
    static device only = {.kind = &check_memory};
    return &only;
}
