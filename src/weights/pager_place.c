/* pager_place.c - the places of resident pages in the map, and the order of the streamed pages. */
#include "weights/pager_parts.h"

static void order_the_others(pager *p) {
    const page_layout *l = &p->layout;
    int n = 0;
    for (int b = 0; b < l->n_block; b++) {
        p->streamed.first[b] = n;
        for (int i = l->first_use[b]; i < l->first_use[b + 1]; i++)
            if (!p->state[l->uses[i]].resident)
                p->streamed.pages[n++] = l->uses[i];
    }
    p->streamed.first[l->n_block] = n;
}

/* The data of a wholly resident matrix, or NULL. */
static const uint8_t *whole(const pager *p, const weight_place *at) {
    for (int i = at->first_page; i < at->first_page + at->n_page; i++)
        if (!p->state[i].resident)
            return NULL;
    return at->n_page ? p->state[at->first_page].resident + at->offset : NULL;
}

static void make_views(pager *p) {
    const bool moving = experts_stream(p); /* then also those that are here may leave */
    for (int b = 0; b < p->layout.n_block; b++)
        for (int i = 0; i < layout_block(p->layout.of, b)->n_weight; i++) {
            const weight *w = pager_weight(p, b, i);
            const weight_place *at = page_layout_place(&p->layout, b, i);
            const bool leaves = moving && at->n_page > 0 && p->layout.pages[at->first_page].chosen;
            const void *data = w->vector ? p->map + at->offset : leaves ? NULL : whole(p, at);
            p->views[p->layout.first_weight[b] + i] = (view){data, w->format, w->n, w->k};
        }
}

void pager_place(pager *p, const uint8_t *home_of) {
    uint64_t at = p->layout.vector_bytes;
    for (int i = 0; i < p->layout.n_page; i++) {
        if (home_of[i] != PLACE_RAM || p->state[i].lent)
            continue;
        p->state[i].resident = p->map + at;
        at += p->layout.pages[i].bytes;
    }
    order_the_others(p);
    make_views(p);
}
