/* device.h - a memory that the ledger counts, and the copies to and from it.
 *
 * A device is a place that kernels can read from: host memory (device_host.c), or a GPU's if nibble is built
 * for one. Resident weights, the ring of streamed pages, KV caches, activations and the data of measurements
 * are allocated through it (region.h), so their owners do not know where they are. A kind of device is one
 * table of functions in one file, and one row of the list in device.c.
 *
 * Copies go through lanes. The copies of one lane run in the order in which they were queued. Lanes are
 * independent of each other and of the host (FlexGen section 3: loading weights, cache and activations, and
 * storing the latter two, all while computing). A mark is a place in a lane: the host waits for it, or
 * another lane continues after it. In host memory a copy is complete when the call returns. */
#ifndef NIB_MEMORY_DEVICE_H
#define NIB_MEMORY_DEVICE_H

#include "base/place.h"
#include "numbers/pack.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct device device;

typedef enum {
    DEVICE_COMPUTE,         /* kernels, and copies in order with them */
    DEVICE_LOAD_WEIGHTS,    /* host to device: pages of weights */
    DEVICE_ARRANGE_WEIGHTS, /* kernels that reorder these weights */
    DEVICE_LOAD,            /* host to device: tables and activations */
    DEVICE_STORE,           /* device to host: activations */
    DEVICE_LOAD_CACHE,      /* host to device: keys and values */
    DEVICE_STORE_CACHE,     /* device to host: keys and values */
    DEVICE_N_LANE
} device_lane;

typedef struct device_mark {
    device_lane lane;
    uint64_t at; /* number of operations queued in the lane before it */
} device_mark;

typedef struct device_info {
    char name[64];
    bool host_reads;      /* the host may read and write the memory itself */
    uint64_t bytes, free; /* of the whole device, all processes; 0: unknown */
    double read,
        link;    /* bytes a second of its memory, and from host memory, that devices like this one reach */
    double macs; /* their multiply-adds a second with many rows; 0, like the two above: unknown */
} device_info;

/* Pages of one layer's keys and values, n_head heads of d_head halves or codes, to be copied between the
 * order of the host's kernels (kernels/kv_layout.h) and the device's. */
typedef struct device_pages {
    void *key, *value;           /* device memory; value NULL: the keys are the values */
    void *host_key, *host_value; /* pinned host memory */
    const int32_t *pairs; /* device memory, [n_page, 2], 8-byte aligned: how many times DEVICE_PAGE bytes a
                             page is after `key`, and after `host_key` */
    int64_t n_page, n_head, d_head;
    int code_bits; /* 0: halves */
    bool up;       /* to the device */
} device_pages;

enum { DEVICE_PAGE = 4096 /* bytes; alignment of allocations */ };

typedef struct device_kind {
    int tier;                                                    /* kind of its place */
    nib_status (*open)(int index, device **out, nib_error *err); /* NIB_E_NOTFOUND: there is no such device */
    void (*close)(device *d);
    void (*info)(const device *d, device_info *out);
    /* Allocates n_byte >= 1, zeroed, at least page-aligned. sparse: resident only where it is touched, if the
     * system supports that. NIB_E_NOMEM. */
    nib_status (*alloc)(device *d, uint64_t n_byte, bool sparse, void **out, nib_error *err);
    void (*free)(device *d, void *at, uint64_t n_byte);
    /* Page-locks host memory, so that the copy engine accesses it directly. The caller charges any memory
     * that this needs. */
    nib_status (*pin)(device *d, void *host, uint64_t n_byte, nib_error *err);
    void (*unpin)(device *d, void *host, uint64_t n_byte);
    /* Either side may be device memory or pinned host memory. Both must stay valid until the lane is past the
     * copy. A later call on the lane may return the copy's error. */
    nib_status (*copy)(device *d, device_lane lane, void *to, const void *from, uint64_t n_byte,
                       nib_error *err);
    /* The same, from or to pinned host memory, for n_row rows of n_byte bytes, which begin so many bytes
     * apart. NULL: not supported. */
    nib_status (*copy_rows)(device *d, device_lane lane, void *to, uint64_t to_pitch, const void *from,
                            uint64_t from_pitch, uint64_t n_byte, int64_t n_row, nib_error *err);
    /* After an error of one of the next two, nothing that was queued in the lane before is running. */
    nib_status (*mark)(device *d, device_lane lane, device_mark *out, nib_error *err);
    nib_status (*wait)(device *d, device_mark mark, nib_error *err); /* the host waits (blocks) */
    nib_status (*follow)(device *d, device_lane lane, device_mark mark, nib_error *err); /* the lane waits */
    /* Queues what the kernels need done with a packed matrix that was copied to the device (arrived), or
     * undoes it before the matrix is copied back. NULL: nothing is needed. */
    nib_status (*arrange)(device *d, device_lane lane, const view *matrix, bool arrived, nib_error *err);
    /* Of host memory that a device reads in place: queues the copying of pages in that device's lane. NULL:
     * there is no such device. */
    nib_status (*reorder)(device *d, device_lane lane, const device_pages *pages, nib_error *err);
    bool whole_pages;   /* copies are of whole pages: addresses there and numbers of bytes are multiples of
                           DEVICE_PAGE */
    bool tight_experts; /* the matrices of experts have no padding between them there */
    /* Whether the device looks rows up in a table of this format; NULL: it looks up no rows. */
    bool (*looks_up)(const pack_format *f);
} device_kind;

/* The first member of every kind's own struct. */
struct device {
    const device_kind *kind;
    int place; /* that its memory is charged to */
};

extern const device_kind device_host_kind;

/* Opens the device of a place. NIB_E_NOTFOUND: this build or this machine has none; a disk is no device. */
nib_status device_open(const memory_places *places, int place, device **out, nib_error *err);
void device_close(device *d); /* NULL is fine; all its memory must have been freed */

/* Host memory. It always exists and is never closed. */
device *device_host(void);

#endif
