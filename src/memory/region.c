/* region.c - see region.h. */
#include "memory/region.h"

#include "base/num.h"

#include <string.h>

nib_status memory_region_open(memory_region *r, device *d, ledger *l, int owner, uint64_t n_byte, bool sparse,
                              const char *what, nib_error *err) {
    nib_error why;
    memset(r, 0, sizeof *r);
    NIB_TRY(ledger_reserve(l, d->place, owner, n_byte, err));
    *r = (memory_region){.device = d, .ledger = l, .owner = owner, .bytes = n_byte};
    const nib_status status = n_byte ? d->kind->alloc(d, n_byte, sparse, &r->at, &why) : NIB_OK;
    if (status != NIB_OK) {
        r->at = NULL;
        memory_region_close(r);
        return status == NIB_E_NOMEM ? nib_fail_nomem(err, n_byte, what)
                                     : nib_fail(err, status, "%s: %s", what, why.message);
    }
    if (!sparse)
        memory_region_touch(r, n_byte);
    return NIB_OK;
}

void memory_region_close(memory_region *r) {
    if (!r->ledger)
        return;
    if (r->at)
        r->device->kind->free(r->device, r->at, r->bytes);
    ledger_unreserve(r->ledger, r->device->place, r->owner, r->bytes, r->touched);
    memset(r, 0, sizeof *r);
}

void memory_region_untouch(memory_region *r, uint64_t n_byte) {
    const uint64_t n = NUM_MIN(n_byte, r->touched);
    ledger_unreserve(r->ledger, r->device->place, r->owner, 0, n);
    r->touched -= n;
}

void memory_region_touch(memory_region *r, uint64_t n_byte) {
    const uint64_t now = NUM_MIN(n_byte, r->bytes);
    if (now > r->touched) {
        ledger_touch(r->ledger, r->device->place, r->owner, now - r->touched);
        r->touched = now;
    }
}
