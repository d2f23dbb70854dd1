/* device_pages.h - streams the weights of all blocks to a device whose kernels cannot read host memory: a
 * source of device_blocks.h that copies the pager's pages, each block for each of its visits.
 *
 * The source of a copy must not change until the lane is past the copy. Resident pages never change, and a
 * page of the pager's ring stays pinned until then. Pages are fetched in the order of the pass's visits. */
#ifndef NIB_TIERS_DEVICE_PAGES_H
#define NIB_TIERS_DEVICE_PAGES_H

#include "tiers/device_blocks.h"
#include "tiers/pager.h"

typedef struct device_pages {
    const layout *layout;
    bool layers_only; /* the first and the last block have no slot */
    device_blocks blocks;
    pager *from;
    view *views;  /* [DEVICE_BLOCKS, n_weight] */
    int n_weight; /* of the block with the most weights */
} device_pages;

/* Bytes of device memory that device_pages_open takes. Pure. */
uint64_t device_pages_bytes(const layout *l);
/* Opens slots, charged to the device's tier and `owner`. NIB_E_NOFIT, NIB_E_NOMEM. */
nib_status device_pages_open(device_pages *b, const layout *l, device *d, ledger *to, int owner,
                             nib_error *err);
/* One slot of host memory for a layer, which is then read once for consecutive visits, even if the pager's
 * ring holds only a part of it. For passes whose visits are not merged because they share one KV cache
 * (exec/step.h). */
uint64_t device_pages_layer_bytes(const layout *l); /* pure */
nib_status device_pages_open_layer(device_pages *b, const layout *l, ledger *to, int owner, nib_error *err);
/* Whether the block has a slot for its visits. */
bool device_pages_has(const device_pages *b, int block);
void device_pages_close(device_pages *b); /* zeroed is fine; all lanes must be empty */

/* device_blocks_acquire from the pager. *views: the block's weights in the device's memory, data NULL: a
 * table that is not resident and is looked up by row (pager_read_row). They are valid after *mark, until
 * release. */
nib_status device_pages_acquire(device_pages *b, pager *p, const visit *at, const visits *rest,
                                const view **views, device_mark *mark, nib_error *err);
/* To be called when the visit's kernels are queued in the compute lane, after *mark. */
nib_status device_pages_release(device_pages *b, const visit *at, const visits *rest, nib_error *err);

#endif
