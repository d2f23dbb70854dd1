/* visit_pages.c - see visit_pages.h. */
#include "weights/visit_pages.h"

enum { WINDOW = 4 /* slots that other pages pass through while the first pages stay */ };

int visit_pages_staying(int n, int n_slot) {
    return n <= n_slot ? n : NUM_MAX(n_slot - WINDOW, 0);
}

/* Skips pages that a device has. True: a page of the visit is left. */
static bool find_page(const visit_pages *p, page_cursor *c) {
    const int end = p->first[c->at.block + 1];
    while (c->i < end && p->copied && atomic_load(&p->copied[p->pages[c->i]]))
        c->i++;
    return c->i < end;
}

/* Moves to the first page that the visits after `at` read. */
static void next_visit(const visit_pages *p, page_cursor *c) {
    do {
        const visit before = c->at;
        if (!visits_next(&c->rest, &c->at)) {
            c->ended = true;
            return;
        }
        const bool again = before.n_row > 0 && before.block == c->at.block;
        const int n = p->first[c->at.block + 1] - p->first[c->at.block];
        const int n_staying = c->rest.held ? n : visit_pages_staying(n, p->n_slot);
        c->i = p->first[c->at.block] + (again ? n_staying : 0);
    } while (!find_page(p, c));
}

page_cursor page_cursor_of(const visit_pages *p, const visits *list) {
    page_cursor c = {.rest = *list};
    next_visit(p, &c);
    return c;
}

void page_cursor_step(const visit_pages *p, page_cursor *c) {
    if (c->ended)
        return;
    c->i++;
    if (!find_page(p, c))
        next_visit(p, c);
}
