/* pager_place.c - which pages stay, where they are in the map, and in which order the others are visited.
 *
 * Of every block the first pages stay and the others are streamed, so that what is resident of a matrix is
 * one piece. A dense model visits its pages in a fixed cycle, so no choice of which ones to keep reads fewer
 * bytes than another; they are spread evenly over the blocks, so that the disk works while resident pages are
 * computed. */
#include "tiers/pager_parts.h"

#include "base/num.h"

/* A mark until pager_place knows the place. */
static uint8_t stays;

/* Page behind the last of those that follow `first` and belong to the same block. */
static int end_of_run(const page_layout *l, int first) {
    int i = first;
    while (i < l->n_page && l->pages[i].block == l->pages[first].block &&
           l->pages[i].table == l->pages[first].table)
        i++;
    return i;
}

/* Marks more pages of a run, in order, until one does not fit `room`; returns their bytes. */
static uint64_t keep_some(pager *p, int first, int end, uint64_t room) {
    uint64_t kept = 0;
    for (int i = first; i < end; i++) {
        if (p->state[i].resident)
            continue;
        if (p->layout.pages[i].bytes > room - kept)
            break;
        kept += p->layout.pages[i].bytes;
        p->state[i].resident = &stays;
    }
    return kept;
}

uint64_t pager_choose(pager *p, uint64_t budget) {
    const page_layout *l = &p->layout;
    uint64_t total = 0, seen = 0, kept = 0;
    for (int i = 0; i < l->n_page; i++)
        total += l->pages[i].table ? 0 : l->pages[i].bytes;
    double share = total ? NUM_MIN((double)budget / (double)total, 1.0) : 1.0;
    for (int i = 0, end; i < l->n_page; i = end) {
        end = end_of_run(l, i);
        if (l->pages[i].table)
            continue;
        for (int j = i; j < end; j++)
            seen += l->pages[j].bytes;
        uint64_t now = (uint64_t)(share * (double)seen);
        if (now > kept)
            kept += keep_some(p, i, end, NUM_MIN(now, budget) - kept);
    }
    for (int i = 0, end; i < l->n_page; i = end) { /* what rounding left */
        end = end_of_run(l, i);
        if (!l->pages[i].table)
            kept += keep_some(p, i, end, budget - kept);
    }
    const weight *head =
        pager_looked_up(p->layout.of); /* its rows are wanted by every token, one never knows which */
    for (int i = 0; i < l->n_page; i++)
        if (l->pages[i].table && head && pager_weight(p, l->pages[i].block, l->pages[i].w) == head)
            kept += keep_some(p, i, i + 1, budget - kept);
    return kept;
}

uint64_t pager_choose_kept(pager *p, const uint64_t *kept) {
    const page_layout *l = &p->layout;
    uint64_t all = 0;
    for (int b = 0; b < l->n_block; b++) {
        uint64_t left = kept[b];
        for (int i = 0, end; i < l->n_page; i = end) {
            end = end_of_run(l, i);
            if (l->pages[i].block != b)
                continue;
            uint64_t some = keep_some(p, i, end, left);
            all += some;
            left = p->state[end - 1].resident ? left - some : 0;
        }
    }
    return all;
}

void pager_choose_all(pager *p) {
    for (int i = 0; i < p->layout.n_page; i++)
        p->state[i].resident = &stays;
}

static void order_the_others(pager *p) {
    const page_layout *l = &p->layout;
    int n = 0;
    for (int b = 0; b < l->n_block; b++) {
        p->streamed.first[b] = n;
        for (int i = l->first_visit[b]; i < l->first_visit[b + 1]; i++)
            if (!p->state[l->visits[i]].resident)
                p->streamed.pages[n++] = l->visits[i];
    }
    p->streamed.first[l->n_block] = n;
}

/* The matrix as a whole, or NULL. */
static const uint8_t *whole(const pager *p, const weight_place *at) {
    for (int i = at->first_page; i < at->first_page + at->n_page; i++)
        if (!p->state[i].resident)
            return NULL;
    return at->n_page ? p->state[at->first_page].resident + at->offset : NULL;
}

static void make_views(pager *p) {
    for (int b = 0; b < p->layout.n_block; b++)
        for (int i = 0; i < layout_block(p->layout.of, b)->n_weight; i++) {
            const weight *w = pager_weight(p, b, i);
            const weight_place *at = page_layout_place(&p->layout, b, i);
            const void *data = w->vector ? p->map + at->offset : whole(p, at);
            p->views[p->layout.first_weight[b] + i] = (view){data, w->format, w->n, w->k};
        }
}

void pager_place(pager *p) {
    uint64_t at = p->layout.vector_bytes;
    for (int i = 0; i < p->layout.n_page; i++) {
        if (!p->state[i].resident)
            continue;
        p->state[i].resident = p->map + at;
        at += p->layout.pages[i].bytes;
    }
    order_the_others(p);
    make_views(p);
}
