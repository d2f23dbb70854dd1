/* acquire.h - the weights of a visit's block, in the memory that a back end computes from.
 *
 * The step loop acquires a block before the visit and releases it after the visit. An acquired block is
 * pinned: it does not move until its release.
 *
 * In host memory the weights are the pager's own views. Resident pages never move. A streamed matrix has no
 * data in its view: its pages are fetched and released one after the other (pager_fetch), each pinned in the
 * ring, while the reader prefetches the pages of the next visits into the other slots.
 *
 * In the memory of a device the weights are copies (device_store.h), valid after a mark in the device's lane
 * for weights. The next visit's block is copied to another slot meanwhile. */
#ifndef NIB_WEIGHTS_ACQUIRE_H
#define NIB_WEIGHTS_ACQUIRE_H

#include "weights/device_store.h"

typedef struct acquired {
    const view *views; /* [n_weight] of the block, in its order; data NULL: streamed, or looked up by row */
    device_mark mark;  /* in a device's lane for weights; they are valid after it. at 0: no wait is needed */
} acquired;

/* Acquires the block of visit `at`; may block on reads. to: the device's store; NULL: host memory. rest: the
 * visits after `at`. One visit is acquired at a time. After an error of reading or copying nothing is
 * acquired, and the next call tries again. */
nib_status acquire_block(pager *p, device_store *to, const visit *at, const visits *rest, acquired *out,
                         nib_error *err);
/* Releases what acquire_block acquired. The visit's kernels must have ended, or be queued in the device's
 * compute lane. */
nib_status acquire_release(pager *p, device_store *to, const visit *at, const visits *rest, nib_error *err);
/* To be called when the pass has ended (also early) and the compute lane is empty. */
void acquire_end(device_store *to);

#endif
