/* device_blocks.h - blocks that are streamed to the memory of a device for their visits while it computes
 * other blocks: the block of the current visit, and those of the next visits, so at least two are in flight.
 * A source defines the block's contents and copies its weights (device_pages.h, exec/cuda/arrivals.c). This
 * module decides which slot a block gets, when it is loaded, and which lane waits for which mark.
 *
 * A block is in one of three states on the device: absent; arriving, after its mark in the source's lane; or
 * here. A block that is not absent has one slot, and a slot has at most one block:
 *
 *          absent  ---------------->  arriving  ----------------->  here
 *            ^      acquire, of this    |    release: the compute    |
 *            |      visit; acquire or   |    lane is behind the mark |
 *            |      release of one      |                            |
 *            |      before              v  error                     |
 *            +<-------------------------+                            |
 *            +<------------------------------------------------------+
 *               its slot is reused for a block that is needed earlier, or its weights are not resident on
 *               the host and it has no further consecutive visit (release)
 *
 * INVARIANTS
 *  1. The slot of an acquired block is not written until the compute lane is past the mark of its release.
 *  2. A slot is not written before its previous write has ended.
 *  3. Blocks are loaded in the order of the visits, each once for consecutive visits (visits.held).
 *  4. The acquire of a block returns the errors of loading it. An error of an earlier prefetch is dropped,
 * and the load is tried again.
 *
 * One thread uses it, the one that fetches from the pager. Nothing is allocated after opening. */
#ifndef NIB_TIERS_DEVICE_BLOCKS_H
#define NIB_TIERS_DEVICE_BLOCKS_H

#include "tiers/pager.h"
#include "tiers/region.h"

enum { DEVICE_BLOCKS = 2 }; /* slots */

typedef struct device_block {
    int block; /* -1: none */
    int index; /* of the slot */
    bool acquired;
    bool streamed;             /* not all of it is resident on the host: the source says so */
    bool was_followed;         /* the compute lane is behind `arrives` */
    bool was_sent, was_used;   /* `arrives`, `used` are set */
    device_mark arrives, used; /* the source's lane and the one for computing */
    uint8_t *at;
} device_block;

typedef struct block_source {
    void *user;
    device_lane lane; /* a block is there behind all that was queued in it */
    int n_block; /* passes follow each other: behind the last visit come blocks [0, n_block); 0: nobody knows
                  */
    /* Whether block b comes to a slot at all; NULL: every one does. */
    bool (*comes)(const void *user, int b);
    /* Queues what brings v->block to s->at; rest: the visits behind v. It may be called again for a block
     * that it failed for; then nothing runs that it had queued. ahead: the visit is a later one, and it may
     * decline with any error. */
    nib_status (*load)(void *user, device_block *s, const visit *v, const visits *rest, bool ahead,
                       nib_error *err);
} block_source;

typedef struct device_blocks {
    block_source from;
    device *device;
    tier_region memory;
    device_block slots[DEVICE_BLOCKS];
} device_blocks;

/* Slots of `each` bytes, charged to the device's tier and `owner`. */
nib_status device_blocks_open(device_blocks *b, const block_source *from, uint64_t each, device *d,
                              ledger *to, int owner, nib_error *err);
void device_blocks_close(device_blocks *b); /* zeroed is fine; the lanes are past everything */

/* The block of a visit, and behind it those of the next visits as far as there are slots; rest: the visits
 * behind `at`. It is at (*out)->at behind (*out)->arrives. Until release. */
nib_status device_blocks_acquire(device_blocks *b, const visit *at, const visits *rest,
                                 const device_block **out, nib_error *err);
/* The visit's kernels are in the compute lane, behind the mark. Its slot is for the blocks behind the next
 * one. */
nib_status device_blocks_release(device_blocks *b, const visit *at, const visits *rest, nib_error *err);

page_where device_blocks_where(const device_blocks *b, int block_index);
const device_block *device_blocks_slot(const device_blocks *b, int block_index); /* NULL: it is absent */
/* The pass is over, or given up, and the compute lane has ended: nothing is acquired, and what came ahead
 * from disk is absent. */
void device_blocks_end(device_blocks *b);
/* All blocks are absent. Between two passes, when the lanes are past everything. */
void device_blocks_forget(device_blocks *b);

#endif
