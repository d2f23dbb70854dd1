/* ledger.h - every byte by tier and owner. Reserve first, allocate after: what does not fit under the cap is
 * refused before it is allocated. Thread-safe.
 *
 * Two numbers are kept for each owner: what is promised (it counts against the cap) and what of it is
 * resident. Memory that the system makes resident when it is first touched (KV, scratch) is promised whole
 * when it is made and reported as it is touched, so that the reported peak is the system's. */
#ifndef NIB_TIERS_LEDGER_H
#define NIB_TIERS_LEDGER_H

#include "base/status.h"

typedef struct ledger ledger;

/* Promised to the runtime owner under a RAM cap beside what it has: code pages of kernels and libraries that
 * are first touched later, thread stacks and the allocator's slack; measured at 1.5 to 2.5 MiB on x86-64 with
 * glibc. */
#define LEDGER_RUNTIME_MARGIN (UINT64_C(3) << 20)

/* What the process has resident, in bytes, and the most that it ever had. */
typedef struct ledger_process {
    uint64_t now, peak;
} ledger_process;

/* Every ledger of this process asks `look`; NULL: the system (VmRSS and VmHWM in /proc), the default. For
 * tests in builds whose own memory is not the engine's. To be called while no ledger is open. */
void ledger_set_process_usage(ledger_process (*look)(void));
ledger_process ledger_process_usage(void);

/* caps: bytes for each tier, NIB_AUTO for none. The runtime owner starts at what the process already has
 * resident (code, libraries, stacks); under a RAM cap LEDGER_RUNTIME_MARGIN is promised too. */
nib_status ledger_open(const uint64_t caps[NIB_N_TIER], ledger **out, nib_error *err);
void ledger_close(ledger *l); /* NULL is fine */

/* Charges n bytes; NIB_E_NOFIT names the owner, what was asked, what is free, and what is needed at
 * least. */
nib_status ledger_charge(ledger *l, int tier, int owner, uint64_t n_byte, nib_error *err);
void ledger_release(ledger *l, int tier, int owner, uint64_t n_byte);

/* The same in two steps: promised now, resident when touched. ledger_unreserve gives back both. */
nib_status ledger_reserve(ledger *l, int tier, int owner, uint64_t n_byte, nib_error *err);
void ledger_touch(ledger *l, int tier, int owner, uint64_t n_byte);
void ledger_unreserve(ledger *l, int tier, int owner, uint64_t n_byte, uint64_t n_touched);

/* Measures the runtime owner again: what is resident in RAM and is nobody else's. To be called when nothing
 * is charged that is not yet touched. `grows`: more is to come, so a margin is promised beside it under a
 * cap, once the heap has given back what it does not need; what is decided afterwards by what is free then
 * leaves room for it. */
void ledger_measure_runtime(ledger *l, bool grows);

uint64_t ledger_free(const ledger *l, int tier); /* under the cap; NIB_AUTO without one */
uint64_t ledger_promised(const ledger *l, int tier);
uint64_t ledger_cap(const ledger *l, int tier);
void ledger_plan(ledger *l, int tier, uint64_t n_byte); /* what the engine says it will use at its peak */
void ledger_report(const ledger *l, nib_memory *out);   /* also looks at the process */

#endif
