/* placement.h - fills the result of nib_engine_placement: where the weights are, by block, format and tier.
 */
#ifndef NIB_ENGINE_PLACEMENT_H
#define NIB_ENGINE_PLACEMENT_H

#include "model/layout.h"
#include "weights/device_store.h"

typedef struct placement {
    nib_slice *slices; /* [n_slice] */
    size_t n_slice;
    char (*formats)[PACK_NAME]; /* [n_format], names of uniform formats in slices */
    size_t n_format;
} placement;

uint64_t placement_bytes(const layout *lay); /* bytes that placement_open charges */
/* Allocates its memory, before residency is decided. */
nib_status placement_open(placement *p, const layout *lay, ledger *l, nib_error *err);
/* Fills it from the pager and from what a device keeps (may be NULL).
 * n_best: tokens of the head's sketch in RAM; 0: no sketch there. on_device: a sketch is on the GPU. */
void placement_fill(placement *p, const layout *lay, const pager *weights, const device_store *on,
                    int32_t n_best, bool on_device);
void placement_close(placement *p); /* zeroed is fine */

#endif
