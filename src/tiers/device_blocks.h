/* device_blocks.h - weights of blocks in the memory of a device that kernels cannot reach the host's from.
 * They come through its lane for weights while it computes: the block of the current visit, and those of the
 * next ones, so at least two are in flight.
 *
 * A block is on the device in one of three states: absent; arriving, behind its mark in the lane; here. It
 * has one slot then, and a slot has one block:
 *
 *          absent  ---------------->  arriving  ----------------->  here
 *            ^      acquire, of this    |    release: the compute    |
 *            |      visit or one before |    lane is behind the mark |
 *            |                          v  error                    |
 *            +<-------------------------+                           |
 *            +<-----------------------------------------------------+
 *               its slot is taken for a block that is needed before it, or its weights are not resident on
 *               the host and no visit in a row is left (release)
 *
 * INVARIANTS
 *  1. The slot of a block that is acquired is not written until the compute lane is past the mark of its
 *     release.
 *  2. Host memory that is copied from stays as it is until the lane is past the copy: what is resident always
 *     does, and a page of the pager's ring is kept until then.
 *  3. Pages are fetched in the order of the pass's visits, each once for visits in a row (visits.held).
 *  4. An error belongs to the acquire of the block in which it happened; one that happened ahead of it is
 *     forgotten, and what it was about is tried again.
 *
 * One thread, which is the one that fetches from the pager. Nothing is allocated after opening. */
#ifndef NIB_TIERS_DEVICE_BLOCKS_H
#define NIB_TIERS_DEVICE_BLOCKS_H

#include "tiers/pager.h"
#include "tiers/region.h"

enum { DEVICE_BLOCKS = 2 }; /* slots */

typedef struct device_block {
    int block; /* -1: none */
    bool acquired;
    bool streamed;             /* not all of it is resident on the host */
    bool was_followed;         /* the compute lane is behind `arrives` */
    bool was_used;             /* `used` is set */
    device_mark arrives, used; /* lanes for weights and for computing */
    uint8_t *at;
    view *views; /* [largest n_weight] */
} device_block;

typedef struct device_blocks {
    const layout *layout;
    device *device;
    tier_region memory;
    view *views;
    device_block slots[DEVICE_BLOCKS];
} device_blocks;

/* Device memory that opening takes. Pure. */
uint64_t device_blocks_bytes(const layout *l);
/* Charged to the device's tier and `owner`. */
nib_status device_blocks_open(device_blocks *b, const layout *l, device *d, ledger *to, int owner,
                              nib_error *err);
void device_blocks_close(device_blocks *b); /* zeroed is fine; the lanes are past everything */

/* The block of a visit, and behind it those of the next visits as far as there are slots; rest: the visits
 * behind `at`. *views: its weights in the device's memory, data NULL: a table that is not resident and is
 * looked up by row (pager_read_row). They are there behind *mark. Until release. */
nib_status device_blocks_acquire(device_blocks *b, pager *p, const visit *at, const visits *rest,
                                 const view **views, device_mark *mark, nib_error *err);
/* The visit's kernels are in the compute lane, behind *mark. */
nib_status device_blocks_release(device_blocks *b, const visit *at, nib_error *err);

page_where device_blocks_where(const device_blocks *b, int block);
/* The pass is over, or given up, and the compute lane has ended: nothing is acquired, and what came ahead
 * from disk is absent. */
void device_blocks_end(device_blocks *b);

#endif
