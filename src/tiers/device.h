/* device.h - a memory that the ledger counts, and how bytes come to it and leave it.
 *
 * There is one for each tier that kernels can read from: host memory (device_host.c), and a GPU's when nibble
 * is built for one. Weights that stay, the ring of those that are streamed, caches, activations and what
 * measurements keep are taken through it (region.h), so what owns them does not know where they are. A kind
 * of device is one table of functions in one file, and one row of the list in device.c.
 *
 * Copies go through lanes. Copies of one lane are done in the order in which they were queued; lanes are
 * independent of each other and of the host (FlexGen section 3: loading weights, cache and activations, and
 * storing the latter two, all while computing). A mark is a place in a lane: the host waits for it, or
 * another lane goes on behind it. Where memory is the host's own a copy is done when the call returns. */
#ifndef NIB_TIERS_DEVICE_H
#define NIB_TIERS_DEVICE_H

#include "nib.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct device device;

typedef enum {
    DEVICE_COMPUTE,         /* kernels, in order with copies that are queued behind them */
    DEVICE_LOAD_WEIGHTS,    /* host to device: pages of the pager */
    DEVICE_ARRANGE_WEIGHTS, /* kernels that put them in order */
    DEVICE_LOAD,            /* host to device: cache and activations */
    DEVICE_STORE,           /* device to host: the same */
    DEVICE_N_LANE
} device_lane;

typedef struct device_mark {
    device_lane lane;
    uint64_t at; /* what was queued in it before */
} device_mark;

typedef struct device_info {
    char name[64];
    int tier;             /* NIB_TIER_RAM or NIB_TIER_VRAM */
    bool host_reads;      /* the host may read and write the memory itself */
    uint64_t bytes, free; /* of the whole device, by everybody; 0: not known */
} device_info;

typedef struct device_kind {
    const char *name;
    int tier;
    nib_status (*open)(int index, device **out, nib_error *err); /* NIB_E_NOTFOUND: there is no such device */
    void (*close)(device *d);
    void (*info)(const device *d, device_info *out);
    /* At least page-aligned, zeroed, n_byte >= 1. sparse: resident only where it is touched, where the system
     * can. NIB_E_NOMEM. */
    nib_status (*take)(device *d, uint64_t n_byte, bool sparse, void **out, nib_error *err);
    void (*give)(device *d, void *at, uint64_t n_byte);
    /* Host memory that the copy engine then reads and writes without a copy in between (page-locked). What it
     * takes besides is the caller's to charge. */
    nib_status (*pin)(device *d, void *host, uint64_t n_byte, nib_error *err);
    void (*unpin)(device *d, void *host, uint64_t n_byte);
    /* Either side may be the device's or pinned host memory, both stay valid until the lane is past it.
     * Errors of the copy itself may come out of a later call on the lane. */
    nib_status (*copy)(device *d, device_lane lane, void *to, const void *from, uint64_t n_byte,
                       nib_error *err);
    /* After an error of the two below nothing is running of what was queued in the lane before. */
    nib_status (*mark)(device *d, device_lane lane, device_mark *out, nib_error *err);
    nib_status (*wait)(device *d, device_mark mark, nib_error *err);                     /* the host */
    nib_status (*follow)(device *d, device_lane lane, device_mark mark, nib_error *err); /* another lane */
} device_kind;

/* What every kind's own struct begins with. */
struct device {
    const device_kind *kind;
};

extern const device_kind device_host_kind;

/* Device `index` of a tier, from 0. NIB_E_NOTFOUND: this build or this machine has none; the disk has none.
 */
nib_status device_open(int tier, int index, device **out, nib_error *err);
void device_close(device *d); /* NULL is fine; everything taken from it was given back */

/* The host's own memory, which is always there and is never closed. */
device *device_host(void);

#endif
