/* region.h - device memory on the ledger: charged, then allocated; freed, then released. */
#ifndef NIB_TIERS_REGION_H
#define NIB_TIERS_REGION_H

#include "tiers/device.h"
#include "tiers/ledger.h"

typedef struct tier_region {
    device *device;
    ledger *ledger;
    int owner; /* a NIB_OWNER_ */
    void *at;
    uint64_t bytes;
    uint64_t touched; /* of them, resident as far as the ledger knows */
} tier_region;

/* Charges n_byte to the device's tier and `owner`, and allocates. sparse: promised now, resident by
 * tier_region_touch; else all is counted as resident at once. NIB_E_NOFIT, NIB_E_NOMEM (named after `what`),
 * and *r is as closed.
 */
nib_status tier_region_open(tier_region *r, device *d, ledger *l, int owner, uint64_t n_byte, bool sparse,
                            const char *what, nib_error *err);
void tier_region_close(tier_region *r); /* zeroed is fine */
/* Reports that n_byte of its bytes, in all, are or will be touched. */
void tier_region_touch(tier_region *r, uint64_t n_byte);

/* Reports that n_byte of the touched bytes are no longer resident; they stay promised. */
void tier_region_untouch(tier_region *r, uint64_t n_byte);

#endif
