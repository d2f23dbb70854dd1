/* faults.c - see faults.h. */
#include "support/faults.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

int64_t fault_sweep(fault_kind kind, int every, fault_step step, void *user) {
    for (int64_t n = 1;; n += n < 50 ? 1 : every) {
        nib_error err = {NIB_OK, ""};
        fault_arm(kind, n);
        nib_status status = step(user, &err);
        int64_t calls = fault_count(kind);
        fault_arm(kind, 0);
        if (calls < n) {
            if (status != NIB_OK)
                fail_msg("without a fault: %s", err.message);
            return calls;
        }
        if (status != NIB_OK) {
            if (err.status != status || err.message[0] == 0)
                fail_msg("fault %lld: status %d, but the error holds %d \"%s\"", (long long)n, (int)status,
                         (int)err.status, err.message);
        }
    }
}
