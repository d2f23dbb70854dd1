/* homes.h - decides the home of each page of the weights: RAM or the disk. No other code decides it: planning
 * calls it with predicted capacities, and the engine with its free memory (engine/weights.c), unless a plan
 * of the user has placed the pages already (layout_homes). The pager follows the result. Pure functions.
 *
 * The first pages of every block are in the fastest place, so the resident part of a matrix is contiguous. A
 * dense model visits its pages in a fixed cycle, so any resident set of the same size reads the same number
 * of bytes. Resident pages are spread evenly over the blocks, so that the disk works while they are
 * computed.
 *
 * Experts are chosen by data, so their pages are not read by every pass: they get what the others leave,
 * whole experts, as many of each block, by rank. The pager exchanges them while the model runs
 * (weights/expert_table.h).
 */
#ifndef NIB_PLAN_HOMES_H
#define NIB_PLAN_HOMES_H

#include "weights/pager.h"

/* One of the places that pages are spread over, in the order of their speed. Products read the first one;
 * bytes of slower ones come over the links of all between. */
typedef struct home_place {
    int place;         /* PLACE_ */
    uint64_t capacity; /* bytes of pages that it holds */
    double link_s; /* seconds to move a byte to the next faster place, latency included; 0 for the first */
    double busy_s; /* seconds of the computing threads that moving a byte takes */
} home_place;

enum { HOME_OPEN = UINT8_MAX }; /* not decided */

/* Assigns a place to each page of home_of [n_page] that is HOME_OPEN; the others stay. places [n_place]: the
 * fastest first; the last one gets all pages that the others cannot hold. */
void homes_spread(const pager_page *pages, int n_page, const home_place *places, int n_place,
                  uint8_t *home_of);
/* Before the pages are known: resident bytes of each block, as homes_spread would choose them. bytes,
 * kept: [n_block]. */
void homes_share(const uint64_t *bytes, int n_block, uint64_t capacity, uint64_t *kept);

/* Bytes of the pages in a place. */
uint64_t homes_bytes(const pager_page *pages, int n_page, const uint8_t *home_of, int place);

/* RAM that the pager needs beside its tables if every page is resident, and if none is; `others`: bytes that
 * are charged when it is open. UINT64_MAX: overflow. */
uint64_t homes_whole(const pager_need *need, uint64_t others);
uint64_t homes_min(const pager_need *need, uint64_t others);

#endif
