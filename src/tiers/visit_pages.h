/* visit_pages.h - the pages that a list of visits reads, in order. The ring prefetches by it, and the bytes
 * of a pass are counted by it.
 *
 * A visit uses every streamed page of its block. If the next visit is of the same block, the first pages stay
 * in the ring: all of them if they fit, else as many as leave a window of slots for the others. */
#ifndef NIB_TIERS_VISIT_PAGES_H
#define NIB_TIERS_VISIT_PAGES_H

#include "tiers/visits.h"

#include <stdatomic.h>

typedef struct visit_pages {
    int *pages;                /* by block, in the order of use; a page may come twice */
    int *first;                /* [n_block + 1]: a block's first one there */
    int n_slot;                /* of the ring */
    const atomic_bool *copied; /* [n_block]: a device has this block's pages, so none is read; NULL: none */
} visit_pages;

/* Of n pages of a block, how many stay until its next visit. */
int visit_pages_staying(int n, int n_slot);

/* A page that is to be read. */
typedef struct page_cursor {
    visit at;
    visits rest; /* behind it */
    int i;       /* into pages */
    bool ended;  /* there is none */
} page_cursor;

/* The first page of a list. */
page_cursor page_cursor_of(const visit_pages *p, const visits *list);
/* To the next page. */
void page_cursor_step(const visit_pages *p, page_cursor *c);

#endif
