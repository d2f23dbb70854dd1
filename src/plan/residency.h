/* residency.h - on which tier each page of the weights lives. Nothing else decides it: planning asks with the
 * room that there will be, the run with the room that there is (engine/weights.c), and the pager does as it
 * is told. Pure.
 *
 * Of every block the first pages are on the fastest tier, so that what is resident of a matrix is one piece.
 * A dense model visits its pages in a fixed cycle, so no choice of which ones to keep reads fewer bytes than
 * another; they are spread evenly over the blocks, so that the disk works while resident pages are computed.
 */
#ifndef NIB_PLAN_RESIDENCY_H
#define NIB_PLAN_RESIDENCY_H

#include "tiers/pager.h"

typedef struct residency_tier {
    int tier;          /* NIB_TIER_* */
    uint64_t capacity; /* bytes of pages that it has room for */
} residency_tier;

enum { RESIDENCY_OPEN = UINT8_MAX }; /* not decided */

/* A tier for each page of tier_of [n_page] that is RESIDENCY_OPEN; the others stay. tiers [n_tier]: from the
 * fastest on; the last one takes what the others have no room for. */
void residency_spread(const pager_page *pages, int n_page, const residency_tier *tiers, int n_tier,
                      uint8_t *tier_of);
/* As a plan says it: of the pages of each block the first kept[block] bytes, rounded down to whole pages, are
 * in RAM, the others on disk. */
void residency_keep(const pager_page *pages, int n_page, const uint64_t *kept, uint8_t *tier_of);
/* Where pages are not known yet: bytes of each block that stay within `room` as residency_spread would have
 * it. bytes, kept: [n_block]. */
void residency_share(const uint64_t *bytes, int n_block, uint64_t room, uint64_t *kept);

/* Bytes of the pages on a tier. */
uint64_t residency_bytes(const pager_page *pages, int n_page, const uint8_t *tier_of, int tier);

/* RAM that the pager takes beside its tables, with `others` that are charged when it is open: when every page
 * stays, and when none does. UINT64_MAX: it overflows. */
uint64_t residency_whole(const pager_need *need, uint64_t others);
uint64_t min_residency(const pager_need *need, uint64_t others);

#endif
