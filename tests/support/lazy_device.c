/* lazy_device.c - see lazy_device.h. */
#include "support/lazy_device.h"

#include "base/mem.h"
#include "base/status.h"
#include "exec/check/memory.h"

#include <stdio.h>

typedef struct waiting {
    void *to;
    const void *from;
    uint64_t n_byte;
} waiting;

static struct {
    waiting *copies;
    size_t n, max;
    uint32_t nth, seed;
} queue;

void *lazy_device_at(const void *at) {
    return check_at(at);
}

void lazy_device_fail(uint32_t nth) {
    queue.nth = nth;
}

void lazy_device_run(void) {
    device *d = check_device();
    for (size_t i = 0; i < queue.n; i++)
        d->kind->copy(d, DEVICE_COMPUTE, queue.copies[i].to, queue.copies[i].from, queue.copies[i].n_byte,
                      NULL);
    queue.n = 0;
    mem_free(queue.copies);
    queue.copies = NULL;
    queue.max = 0;
}

static nib_status lazy_alloc(device *d, uint64_t n_byte, bool sparse, void **out, nib_error *err) {
    (void)d;
    return check_device()->kind->alloc(check_device(), n_byte, sparse, out, err);
}

static void lazy_free(device *d, void *at, uint64_t n_byte) {
    (void)d;
    lazy_device_run();
    check_device()->kind->free(check_device(), at, n_byte);
}

static nib_status lazy_pin(device *d, void *host, uint64_t n_byte, nib_error *err) {
    return check_device()->kind->pin(d, host, n_byte, err);
}

static void lazy_unpin(device *d, void *host, uint64_t n_byte) {
    check_device()->kind->unpin(d, host, n_byte);
}

static nib_status lazy_copy(device *d, device_lane lane, void *to, const void *from, uint64_t n_byte,
                            nib_error *err) {
    (void)d;
    (void)lane;
    queue.seed = queue.seed * 1664525 + 1013904223;
    if (queue.nth > 0 && (queue.seed >> 8) % queue.nth == 0)
        return nib_fail(err, NIB_E_DEVICE, "a copy that fails on purpose");
    if (mem_grow((void **)&queue.copies, &queue.max, queue.n + 1, sizeof *queue.copies))
        return nib_fail_nomem(err, n_byte, "a copy");
    queue.copies[queue.n++] = (waiting){to, from, n_byte};
    return NIB_OK;
}

static nib_status lazy_mark(device *d, device_lane lane, device_mark *out, nib_error *err) {
    return check_device()->kind->mark(d, lane, out, err);
}

static nib_status lazy_wait(device *d, device_mark mark, nib_error *err) {
    (void)d;
    (void)mark;
    (void)err;
    lazy_device_run();
    return NIB_OK;
}

static nib_status lazy_follow(device *d, device_lane lane, device_mark mark, nib_error *err) {
    return check_device()->kind->follow(d, lane, mark, err);
}

static void lazy_info(const device *d, device_info *out) {
    (void)d;
    *out = (device_info){.host_reads = false};
    snprintf(out->name, sizeof out->name, "lazy");
}

device *lazy_device(void) {
    static const device_kind kind = {
        .tier = NIB_TIER_RAM,
        .info = lazy_info,
        .alloc = lazy_alloc,
        .free = lazy_free,
        .pin = lazy_pin,
        .unpin = lazy_unpin,
        .copy = lazy_copy,
        .mark = lazy_mark,
        .wait = lazy_wait,
        .follow = lazy_follow,
    };
    static device only = {.kind = &kind};
    return &only;
}
