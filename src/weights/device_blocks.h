/* device_blocks.h - blocks that are streamed to the memory of a device for their visits while it computes
 * other blocks: the block of the current visit, and those of the next visits, so at least two are in flight.
 * A source defines the block's contents and copies its weights (device_store.h). This
 * module decides which slot a block gets, when it is loaded, and which lane waits for which mark. A block is
 * in one of three states on the device: absent; arriving, until its mark in the source's lane is passed; or
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
 *  4. The acquire of a block returns the errors of loading it. An error of an earlier prefetch is
 *     dropped, and the load is tried again.
 *
 * One thread uses it, the one that fetches from the pager. Nothing is allocated after opening. */
#ifndef NIB_WEIGHTS_DEVICE_BLOCKS_H
#define NIB_WEIGHTS_DEVICE_BLOCKS_H

#include "weights/pager.h"
#include "memory/region.h"

enum { DEVICE_BLOCKS = 2 }; /* maximum number of slots */

typedef struct device_block {
    int block; /* -1: none */
    bool acquired;
    bool streamed;            /* not wholly resident on the host; set by the source */
    bool was_followed;        /* the compute lane waits for `loaded` */
    bool was_sent, was_used;  /* `loaded`, `used` are set */
    device_mark loaded, used; /* in the source's lane; in the compute lane */
    uint8_t *at;              /* its memory on the device */
} device_block;

/* For which visit a block is loaded. Ahead of a visit, loading may fail with any error. */
typedef enum block_when {
    BLOCK_NOW,
    BLOCK_AHEAD,    /* a later visit of this pass */
    BLOCK_NEXT_PASS /* a visit of the predicted next pass */
} block_when;

typedef struct block_source {
    void *user;
    device_lane lane; /* the lane of the copies */
    int n_block; /* of the model. Passes repeat: after the last visit follow the blocks of the same stage,
                    with one row; 0: the next pass is unknown */
    int n_slot;  /* 1: blocks are not prefetched; 0: DEVICE_BLOCKS */
    /* Whether the visit's block needs a slot; NULL: all do. The role of BLOCK_NEXT_PASS is the source's
     * guess. */
    bool (*needs_slot)(const void *user, const visit *v, block_when when);
    /* Queues the copies of v->block to s->at; rest: the visits after v. It may be called again after an
     * error; then nothing that it queued is running. */
    nib_status (*load)(void *user, device_block *s, const visit *v, const visits *rest, block_when when,
                       nib_error *err);
} block_source;

typedef struct device_blocks {
    block_source from;
    device *device;
    memory_region memory;
    int n_slot;
    device_block slots[DEVICE_BLOCKS]; /* [n_slot] */
} device_blocks;

/* Allocates slots of `each` bytes, charged to the device's tier and `owner`. NIB_E_NOFIT, NIB_E_NOMEM. */
nib_status device_blocks_open(device_blocks *b, const block_source *from, uint64_t each, device *d,
                              ledger *to, int owner, nib_error *err);
void device_blocks_close(device_blocks *b); /* zeroed is fine; all lanes must be empty */

/* Acquires the block of a visit, and prefetches those of the next visits into free slots; rest: the visits
 * after `at`. The block is at (*out)->at, valid after the mark (*out)->loaded, until release. */
nib_status device_blocks_acquire(device_blocks *b, const visit *at, const visits *rest,
                                 const device_block **out, nib_error *err);
/* To be called when the visit's kernels are queued in the compute lane, after the mark. The slot becomes free
 * for later blocks. */
nib_status device_blocks_release(device_blocks *b, const visit *at, const visits *rest, nib_error *err);

const device_block *device_blocks_slot(const device_blocks *b, int block_index); /* NULL: it is absent */
/* To be called when the pass has ended (also early) and the compute lane is empty. Nothing is acquired
 * afterwards, and blocks that were prefetched from disk become absent. */
void device_blocks_end(device_blocks *b);
/* Makes all blocks absent. To be called between two passes, when all lanes are empty. */
void device_blocks_forget(device_blocks *b);

#endif
