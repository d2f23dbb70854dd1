/* acquire.h - the weights of a visit's block, in the memory that a back end computes from.
 *
 * The step loop acquires a block before the visit and releases it after the visit. What is acquired is
 * pinned: it stays where it is until its release.
 *
 * In host memory these are the pager's own views. What is resident never moves. A matrix that is streamed has
 * no data: its pages are fetched and released one after the other (pager_fetch), each pinned in the ring
 * meanwhile, while the reader fills the other slots with what the next visits need, across blocks.
 *
 * In the memory of a device they are copies (device_pages.h), there behind a mark in the device's lane for
 * weights. Meanwhile the next visit's block is on its way to a slot of its own. */
#ifndef NIB_TIERS_ACQUIRE_H
#define NIB_TIERS_ACQUIRE_H

#include "tiers/device_pages.h"

typedef struct acquired {
    const view *views; /* [n_weight] of the block, in its order; data NULL: streamed, or looked up by row */
    device_mark mark;  /* in the device's lane for weights: past it they are there; host: not set */
} acquired;

/* to: the device's slots; NULL: host memory. rest: the visits behind `at`. One visit at a time. An error of
 * reading or copying leaves nothing acquired; the next call tries again. */
nib_status acquire_block(pager *p, device_pages *to, const visit *at, const visits *rest, acquired *out,
                         nib_error *err);
/* After acquire_block alone. The visit's kernels have ended, or are in the device's compute lane. */
nib_status acquire_release(pager *p, device_pages *to, const visit *at, const visits *rest, nib_error *err);
/* The pass is over, or given up, and the compute lane has ended. */
void acquire_end(device_pages *to);

#endif
