/* visit_pages.h - the pages that a list of visits reads, in order. The ring prefetches by it, and the bytes
 * of a pass are counted by it.
 *
 * A visit uses every streamed page of its block that no device has. If the next visit is of the same block,
 * the first pages stay in the ring: all of them if they fit, else as many as leave a window of slots for the
 * others. */
#ifndef NIB_WEIGHTS_VISIT_PAGES_H
#define NIB_WEIGHTS_VISIT_PAGES_H

#include "schedule/visits.h"

#include <stdatomic.h>

typedef struct visit_pages {
    int *pages; /* by block, in the order of use; a page may come twice */
    int *first; /* [n_block + 1]: index of each block's first page in `pages` */
    int n_slot; /* of the ring */
    const atomic_bool
        *copied; /* [all pages]: a device has this page's matrices, so it is not read; NULL: no page */
} visit_pages;

/* Number of a block's n pages that stay in the ring until its next consecutive visit. */
int visit_pages_staying(int n, int n_slot);

/* A position in the order of pages. */
typedef struct page_cursor {
    visit at;
    visits rest; /* the visits after it */
    int i;       /* index into pages */
    bool ended;  /* no page is left */
} page_cursor;

/* The first page of a list. */
page_cursor page_cursor_of(const visit_pages *p, const visits *list);
/* Moves to the next page. */
void page_cursor_step(const visit_pages *p, page_cursor *c);

#endif
