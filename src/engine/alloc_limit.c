/* alloc_limit.c - see alloc_limit.h. */
#include "engine/alloc_limit.h"

#include "base/num.h"

void engine_alloc_limit_set(const ledger *l, mem_bound *b) {
    mem_bound_set(b, ledger_free(l, PLACE_RAM));
}

nib_status engine_alloc_limit_end(const ledger *l, mem_bound *b, const char *what, nib_status status,
                                  nib_error *err) {
    char cap[32], left[32];
    mem_bound_end(b);
    if (status == NIB_OK || !b->refused)
        return status;
    num_format_size(ledger_cap(l, PLACE_RAM), cap);
    num_format_size(ledger_free(l, PLACE_RAM), left);
    return nib_fail(err, NIB_E_NOFIT, "RAM: %s need more than the %s that are free under the cap of %s", what,
                    left, cap);
}
