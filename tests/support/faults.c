/* faults.c - see faults.h. */
#include "support/faults.h"
#include "support/sanitized.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include <cmocka.h>

static XXH128_hash_t made; /* a hash chain over the results of this run */

void fault_made(const void *data, size_t n) {
    const XXH128_hash_t parts[2] = {made, XXH3_128bits(data, n)};
    made = XXH3_128bits(parts, sizeof parts);
}

/* The number of first calls that fail one by one, and the width of later steps. The address sanitizer finds
 * leaks after a fault; the thread sanitizer sees what threads do meanwhile. */
#if SANITIZED_THREADS
enum { N_DENSE = 4, WIDER = 8 };
#elif SANITIZED
enum { N_DENSE = 16, WIDER = 2 };
#else
enum { N_DENSE = 50, WIDER = 1 };
#endif

int64_t fault_sweep(fault_kind kind, int every, fault_step step, void *user) {
    XXH128_hash_t survivor = {
        0, 0};            /* results of the last run that returned NIB_OK; the final run has no fault */
    int64_t survived = 0; /* its fault */
    for (int64_t n = 1;; n += n < N_DENSE ? 1 : every * WIDER) {
        nib_error err = {NIB_OK, ""};
        made = (XXH128_hash_t){0, 0};
        fault_arm(kind, n);
        nib_status status = step(user, &err);
        int64_t calls = fault_count(kind);
        fault_arm(kind, 0);
        if (calls < n && status != NIB_OK)
            fail_msg("without a fault: %s", err.message);
        if (status != NIB_OK && (err.status != status || err.message[0] == 0))
            fail_msg("fault %lld: status %d, but the error holds %d \"%s\"", (long long)n, (int)status,
                     (int)err.status, err.message);
        if (status == NIB_OK && survived && !XXH128_isEqual(made, survivor))
            fail_msg("what was made with fault %lld is not what was made with fault %lld",
                     (long long)survived, (long long)n);
        if (status == NIB_OK) {
            survivor = made;
            survived = n;
        }
        if (calls < n)
            return calls;
    }
}
