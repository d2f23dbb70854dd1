/* visit_pages.h - the pages that a list of visits reads, in order. The ring reads ahead by it, and what a
 * pass reads is counted by it.
 *
 * A visit uses every streamed page of its block. Where the next visit is of the same block, the first pages
 * stay in the ring for it: all of them if they fit, else as many as leave a window for the others to pass
 * through. */
#ifndef NIB_TIERS_VISIT_PAGES_H
#define NIB_TIERS_VISIT_PAGES_H

#include "tiers/visits.h"

#include <stdatomic.h>

typedef struct visit_pages {
    int *pages;                   /* by block, in the order of use; a page may come twice */
    int *first;                   /* [n_block + 1]: a block's first one there */
    int n_slot;                   /* of the ring */
    const atomic_bool *elsewhere; /* [n_block]: somebody has this block's, and reads none; NULL: nobody has */
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
