/* residency.h - decides the tier of each page of the weights. No other code decides it: planning calls it
 * with predicted capacities, and the engine with its free memory (engine/weights.c), unless a plan of the
 * user has placed the pages already (layout_tiers). The pager follows the result. Pure functions.
 *
 * The first pages of every block are on the fastest tier, so the resident part of a matrix is contiguous. A
 * dense model visits its pages in a fixed cycle, so any resident set of the same size reads the same number
 * of bytes. Resident pages are spread evenly over the blocks, so that the disk works while they are
 * computed.
 *
 * Experts are chosen by data, so their pages are not read by every pass: they get what the others leave,
 * whole experts, as many of each block, by rank. The pager exchanges them while the model runs
 * (weights/expert_table.h).
 */
#ifndef NIB_PLAN_RESIDENCY_H
#define NIB_PLAN_RESIDENCY_H

#include "weights/pager.h"

/* One of the tiers that pages are spread over, in the order of their speed. Products read the first tier;
 * bytes of slower tiers come over the links of all tiers between. */
typedef struct residency_tier {
    int tier;          /* NIB_TIER_* */
    uint64_t capacity; /* bytes of pages that it holds */
    double link_s;     /* seconds to move a byte to the next faster tier, latency included; 0 for the first */
    double busy_s;     /* seconds of the computing threads that moving a byte takes */
} residency_tier;

enum { RESIDENCY_OPEN = UINT8_MAX }; /* not decided */

/* Assigns a tier to each page of tier_of [n_page] that is RESIDENCY_OPEN; the others stay. tiers [n_tier]:
 * the fastest first; the last one gets all pages that the others cannot hold. */
void residency_spread(const pager_page *pages, int n_page, const residency_tier *tiers, int n_tier,
                      uint8_t *tier_of);
/* Before the pages are known: resident bytes of each block, as residency_spread would choose them. bytes,
 * kept: [n_block]. */
void residency_share(const uint64_t *bytes, int n_block, uint64_t capacity, uint64_t *kept);

/* Bytes of the pages on a tier. */
uint64_t residency_bytes(const pager_page *pages, int n_page, const uint8_t *tier_of, int tier);

/* RAM that the pager needs beside its tables if every page is resident, and if none is; `others`: bytes that
 * are charged when it is open. UINT64_MAX: overflow. */
uint64_t residency_whole(const pager_need *need, uint64_t others);
uint64_t residency_min(const pager_need *need, uint64_t others);

#endif
