/* page_policy.h - simulates replacement policies over the pages that passes use: LRU, LRU with the importance
 * of layers (MCAP, section 3.3), and Belady's choice, which knows the future. */
#ifndef NIB_TESTS_PAGE_POLICY_H
#define NIB_TESTS_PAGE_POLICY_H

#include <stdbool.h>
#include <stdint.h>

typedef enum page_policy {
    PAGE_LRU,        /* evicts the least recently used page */
    PAGE_IMPORTANCE, /* evicts the least recently used page among those of the layers with the lowest score */
    PAGE_BELADY, /* evicts the page that is needed last; a page that is needed later than all others does not
                  * stay
                  */
    PAGE_N_POLICY
} page_policy;

typedef struct page_trace {
    const uint64_t *bytes; /* [n_page] */
    const double *score;   /* [n_page]: of its layer; for PAGE_IMPORTANCE */
    int n_page;
    const int *uses; /* [n_use]: pages in the order of one pass */
    int n_use;
} page_trace;

typedef struct page_count {
    uint64_t hits, misses; /* uses */
    uint64_t bytes;        /* that misses read */
} page_count;

/* n_pass passes, one after the other, in `capacity` bytes that are empty at first. The passes after the first
 * `skip` count. *out is zeroed first. False: no memory, or a page is larger than the capacity. */
bool page_policy_run(const page_trace *t, page_policy policy, uint64_t capacity, int n_pass, int skip,
                     page_count *out);

#endif
