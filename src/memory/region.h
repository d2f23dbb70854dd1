/* region.h - device memory on the ledger: charged, then allocated; freed, then released. */
#ifndef NIB_MEMORY_REGION_H
#define NIB_MEMORY_REGION_H

#include "memory/device.h"
#include "memory/ledger.h"

typedef struct memory_region {
    device *device;
    ledger *ledger;
    int owner; /* a NIB_OWNER_ */
    void *at;
    uint64_t bytes;
    uint64_t touched; /* bytes of it that are reported to the ledger as resident */
} memory_region;

/* Charges n_byte to the device's tier and `owner`, and allocates. sparse: the bytes are promised now, and
 * resident after memory_region_touch; otherwise all are resident at once. what: the purpose, for messages.
 * After NIB_E_NOFIT or NIB_E_NOMEM *r is closed. */
nib_status memory_region_open(memory_region *r, device *d, ledger *l, int owner, uint64_t n_byte, bool sparse,
                              const char *what, nib_error *err);
void memory_region_close(memory_region *r); /* zeroed is fine */
/* Reports that n_byte of its bytes, in total, are or will be touched. */
void memory_region_touch(memory_region *r, uint64_t n_byte);

/* Reports that n_byte of the touched bytes are no longer resident; they stay promised. */
void memory_region_untouch(memory_region *r, uint64_t n_byte);

#endif
