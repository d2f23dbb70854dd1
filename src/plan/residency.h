/* residency.h - on which tier each page of the weights lives. Nothing else decides it: planning asks with the
 * capacity that is expected, the run with the free memory that there is (engine/weights.c) or with a plan's
 * runs of pages, and the pager follows the answer. Pure.
 *
 * Of every block the first pages are on the fastest tier, so that what is resident of a matrix is one piece.
 * A dense model visits its pages in a fixed cycle, so no choice of which ones to keep reads fewer bytes than
 * another; they are spread evenly over the blocks, so that the disk works while resident pages are computed.
 */
#ifndef NIB_PLAN_RESIDENCY_H
#define NIB_PLAN_RESIDENCY_H

#include "tiers/pager.h"

/* One of the tiers that pages are spread over, from the fastest on. Products read the first one; what is
 * behind it comes over the links of all tiers between. */
typedef struct residency_tier {
    int tier;          /* NIB_TIER_* */
    uint64_t capacity; /* bytes of pages that it holds */
    double read_s;     /* seconds a byte takes that is read where it is */
    double latency_s;  /* of one small read that nothing overlaps */
    double link_s;     /* seconds a byte takes on its way to the tier before; of the first one 0 */
    double busy_s;     /* seconds of computing threads that it takes meanwhile */
} residency_tier;

/* So many bytes of a block, one page after the other. */
typedef struct residency_run {
    int tier;
    uint64_t bytes;
} residency_run;

/* What a plan says of a block: runs of its pages in their order. Pages behind the last run are on its tier.
 */
enum { RESIDENCY_MAX_RUN = 6 /* two slices of a stack on three tiers */ };
typedef struct residency_block {
    residency_run runs[RESIDENCY_MAX_RUN];
    int n_run; /* 0: it has no pages, or they are on disk */
} residency_block;

enum { RESIDENCY_OPEN = UINT8_MAX }; /* not decided */

/* A tier for each page of tier_of [n_page] that is RESIDENCY_OPEN; the others stay. tiers [n_tier]: from the
 * fastest on; the last one takes what is beyond the others' capacity. */
void residency_spread(const pager_page *pages, int n_page, const residency_tier *tiers, int n_tier,
                      uint8_t *tier_of);
/* As a plan says it, [n_block]: each page has the tier of the first of its block's runs that all of it, and
 * all pages before it, are within. */
void residency_follow(const pager_page *pages, int n_page, const residency_block *blocks, uint8_t *tier_of);
/* One run more, joined with the one before where both are on one tier. */
void residency_add(residency_block *b, int tier, uint64_t bytes);
/* Bytes of a block's runs on a tier; UINT64_MAX: all there are, or they overflow. */
uint64_t residency_run_bytes(const residency_block *b, int tier);
/* Where pages are not known yet: bytes of each block that stay within capacity as residency_spread would have
 * it. bytes, kept: [n_block]. */
void residency_share(const uint64_t *bytes, int n_block, uint64_t capacity, uint64_t *kept);

/* Bytes of the pages on a tier. */
uint64_t residency_bytes(const pager_page *pages, int n_page, const uint8_t *tier_of, int tier);

/* RAM that the pager takes beside its tables, with `others` that are charged when it is open: when every page
 * stays, and when none does. UINT64_MAX: it overflows. */
uint64_t residency_whole(const pager_need *need, uint64_t others);
uint64_t min_residency(const pager_need *need, uint64_t others);

#endif
