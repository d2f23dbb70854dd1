/* ledger.h - counts every byte by place and owner. Memory is reserved first and allocated afterwards, so an
 * allocation that exceeds the cap is refused before it is made. Thread-safe.
 *
 * There are two numbers for each owner: promised bytes, which count against the cap, and the resident part of
 * them. Memory that becomes resident when it is first touched (KV pages, scratch) is promised whole when it
 * is allocated and reported as it is touched, so that the reported peak is the system's. */
#ifndef NIB_MEMORY_LEDGER_H
#define NIB_MEMORY_LEDGER_H

#include "base/place.h"

typedef struct ledger ledger;

/* Promised to the runtime owner under a RAM cap beyond its resident bytes: code that runs later, of the
 * program and its libraries (ledger_measure_runtime returns its pages to the system), thread stacks and the
 * allocator's slack. Measured at 1.2 to 4.1 MiB on x86-64 with glibc. */
#define LEDGER_RUNTIME_MARGIN (UINT64_C(5) << 20)

/* Added for each thread to a cap that an error names, because the runtime's bytes differ from run to run and
 * the named cap is for the next one. Caps named in 40 runs with 100 threads on two busy processors differed
 * by 0.8 MiB: stacks become resident at different times. Pages of code differ as well (num_format_cap allows
 * for them). */
#define LEDGER_THREAD_SPREAD (UINT64_C(12) << 10)

/* The process's resident bytes now, and their maximum so far. */
typedef struct ledger_process {
    uint64_t now, peak;
} ledger_process;

/* Sets the function that all ledgers of this process call; NULL: the system's values (VmRSS and VmHWM in
 * /proc), the default. For tests in builds whose own memory is not the engine's. Call it while no ledger is
 * open. */
void ledger_set_process_usage(ledger_process (*look)(void));
ledger_process ledger_process_usage(void); /* zeros: unknown */

/* places: their capacities are the caps. The runtime owner starts with the process's resident bytes (code,
 * libraries, stacks); under a RAM cap LEDGER_RUNTIME_MARGIN is promised too. */
nib_status ledger_open(memory_places places, ledger **out, nib_error *err);
void ledger_close(ledger *l); /* NULL is fine */

/* Charges n bytes. NIB_E_NOFIT names the owner, the requested and the free bytes, and the smallest cap. */
nib_status ledger_charge(ledger *l, int place, int owner, uint64_t n_byte, nib_error *err);
void ledger_release(ledger *l, int place, int owner, uint64_t n_byte); /* the reverse of ledger_charge */

/* The same in two steps: bytes are promised by reserve, and resident after touch. ledger_unreserve releases
 * both. */
nib_status ledger_reserve(ledger *l, int place, int owner, uint64_t n_byte, nib_error *err);
void ledger_touch(ledger *l, int place, int owner, uint64_t n_byte);
void ledger_unreserve(ledger *l, int place, int owner, uint64_t n_byte, uint64_t n_touched);

/* Measures the runtime owner again: resident bytes of RAM that belong to no other owner. Call it when all
 * charged memory was touched. `grows`: the runtime will grow, so under a cap unused memory of the heap and
 * the pages of code are returned to the system before, and a margin is promised too. Later decisions by the
 * free bytes then leave the margin. */
void ledger_measure_runtime(ledger *l, bool grows);

uint64_t ledger_free(const ledger *l, int place); /* under the cap; NIB_AUTO without one */
uint64_t ledger_promised(const ledger *l, int place);
uint64_t ledger_cap(const ledger *l, int place);
void ledger_plan(ledger *l, int place, uint64_t n_byte); /* the engine's planned peak */
void ledger_report(const ledger *l, nib_memory *out);    /* also reads the process's peak */

#endif
