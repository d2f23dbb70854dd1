/* page_ring.c - see page_ring.h. There is one buffer more than slots. A page is read whole into its slot's
 * buffer and packed into a spare buffer, which then replaces the slot's buffer. So reads are as large as
 * pages, bytes that are still to be packed are never overwritten, and any thread can pack: the reader between
 * two reads, or the thread that waits for a page. While a slot is empty, two buffers belong to no slot, so
 * one is left for packing. */
#include "weights/page_ring.h"

#include <assert.h>

/* ---- the order ---- */

static int page_of(const page_ring *g, const page_cursor *at) {
    return g->streamed->pages[at->i];
}

/* Continues with the predicted pass after the end of the pass and of each predicted pass. */
static void go_on(page_ring *g) {
    if (!g->next.ended)
        return;
    g->next = page_cursor_of(g->streamed, &g->after);
    g->in_pass = false;
}

static void advance(page_ring *g) {
    page_cursor_step(g->streamed, &g->next);
    go_on(g);
}

/* ---- pages and slots ---- */

void page_ring_open(page_ring *g, const visit_pages *streamed, int n_block, page_state *pages, int n_page,
                    uint8_t *buffers, uint64_t each) {
    *g = (page_ring){.streamed = streamed,
                     .pages = pages,
                     .n_block = n_block,
                     .after = visits_of_one_row(n_block, 0, n_block),
                     .next = {.ended = true}};
    for (int i = 0; i < n_page; i++)
        pages[i].slot = -1;
    for (int i = streamed->n_slot; i >= 0; i--)
        g->spare[g->n_spare++] = buffers + (uint64_t)i * each;
    go_on(g);
}

static slot *slot_of(page_ring *g, int page) {
    return g->pages[page].slot < 0 ? NULL : &g->slots[g->pages[page].slot];
}

/* The oldest slot in a state that is not discarded; to_send: and has a read that was not submitted. */
static slot *oldest(page_ring *g, slot_state state, bool to_send) {
    slot *found = NULL;
    for (int i = 0; i < g->streamed->n_slot; i++) {
        slot *s = &g->slots[i];
        if (s->state == state && !s->discard && (!found || s->mark < found->mark) &&
            (!to_send || (s->n_sent < s->n_read && s->status == NIB_OK)))
            found = s;
    }
    return found;
}

/* Number of predicted uses that are not over. */
static int n_use(const page_ring *g) {
    int n = 0;
    for (int i = 0; i < g->streamed->n_slot; i++)
        n += g->slots[i].discard ? 0 : g->slots[i].n_use;
    return n;
}

static void leave_page(page_ring *g, slot *s) {
    if (!s->discard)
        g->pages[s->page].slot = -1;
    s->discard = true;
    s->n_use = 0;
}

static void put_back(page_ring *g, slot *s) {
    leave_page(g, s);
    g->spare[g->n_spare++] = s->buffer;
    *s = (slot){.state = SLOT_EMPTY};
}

/* ---- for the reader ---- */

static bool is_shared(const page_ring *g) {
    return g->pages[page_of(g, &g->next)].slot >= 0;
}

bool page_ring_has_free_slot(const page_ring *g) {
    bool empty = false;
    if (g->stalled || g->next.ended || n_use(g) >= g->streamed->n_slot)
        return false;
    for (int i = 0; i < g->streamed->n_slot; i++)
        empty = empty || g->slots[i].state == SLOT_EMPTY;
    return is_shared(g) || (empty && g->n_spare > 0);
}

/* Counts the next predicted uses whose pages are not absent: they need no slot. */
static void share(page_ring *g) {
    while (!g->next.ended && is_shared(g) && n_use(g) < g->streamed->n_slot) {
        slot_of(g, page_of(g, &g->next))->n_use++;
        advance(g);
    }
}

slot *page_ring_assign(page_ring *g) {
    if (!g->stalled)
        share(g);
    if (!page_ring_has_free_slot(g))
        return NULL;
    int i = 0;
    while (g->slots[i].state != SLOT_EMPTY)
        i++;
    slot *s = &g->slots[i];
    *s = (slot){.state = SLOT_READING,
                .page = page_of(g, &g->next),
                .n_use = 1,
                .mark = g->n_assigned++,
                .buffer = g->spare[--g->n_spare]};
    g->pages[s->page].slot = (int8_t)i;
    advance(g);
    return s;
}

slot *page_ring_to_send(page_ring *g) {
    return oldest(g, SLOT_READING, true);
}

void page_ring_finish(page_ring *g, slot *s) {
    const bool was_packed = s->state == SLOT_PACKING, ended = s->n_sent == s->n_read || s->status != NIB_OK;
    if ((s->state != SLOT_READING && !was_packed) || s->n_flight > 0)
        return;
    if (s->discard) {
        put_back(g, s);
    } else if (s->status != NIB_OK) {
        s->state = SLOT_FAILED;
        g->stalled = true;
    } else if (was_packed) {
        s->state = SLOT_READY;
    } else if (ended && !s->again) {
        s->state = s->packs ? SLOT_ARRIVED : SLOT_READY;
    } else {
        return;
    }
    /* the reader packs arrived pages itself, and signals when it needs help */
    g->changed = g->changed || s->state != SLOT_ARRIVED;
}

/* ---- for packing ---- */

slot *page_ring_pack(page_ring *g) {
    slot *s = g->n_spare > 0 ? oldest(g, SLOT_ARRIVED, false) : NULL;
    if (!s)
        return NULL;
    s->state = SLOT_PACKING;
    s->packed = g->spare[--g->n_spare];
    g->n_packing++;
    return s;
}

void page_ring_packed(page_ring *g, slot *s) {
    g->n_packing--;
    g->spare[g->n_spare++] = s->buffer;
    s->buffer = s->packed;
    s->packed = NULL;
    page_ring_finish(g, s);
}

/* ---- passes ---- */

/* Discards the content of a slot. */
static void drop(page_ring *g, slot *s) {
    const bool busy =
        s->state == SLOT_PACKING || (s->state == SLOT_READING && s->n_flight > 0) || s->n_leaving > 0;
    if (busy)
        leave_page(g, s); /* the slot becomes empty when its reads, packing or copies have ended */
    else
        put_back(g, s);
}

/* Replaces the order: it continues from *at. Slots keep the pages that are used first from there on. Other
 * pages are dropped; so are failed ones, which are read again. */
static void turn_to(page_ring *g, const page_cursor *at, bool in_pass) {
    for (int i = 0; i < g->streamed->n_slot; i++) {
        slot *s = &g->slots[i];
        s->n_use = 0;
        if (s->state == SLOT_FAILED)
            drop(g, s);
    }
    g->n_order++;
    g->next = *at;
    g->in_pass = in_pass;
    g->stalled = false;
    g->changed = true;
    go_on(g);
    share(g);
    for (int i = 0; i < g->streamed->n_slot; i++) {
        slot *s = &g->slots[i];
        if (s->state != SLOT_EMPTY && s->state != SLOT_PINNED && !s->discard && s->n_use == 0)
            drop(g, s);
    }
}

void page_ring_begin(page_ring *g, const visits *pass) {
    const page_cursor at = page_cursor_of(g->streamed, pass);
    g->after = visits_of_one_row(g->n_block, pass->first, pass->end);
    turn_to(g, &at, true);
}

void page_ring_end(page_ring *g) {
    const page_cursor none = {.ended = true};
    if (g->in_pass)
        turn_to(g, &none, false);
}

/* ---- for threads that acquire pages ---- */

/* Whether the page will not arrive by prediction: another page is next in the order, or all slots hold pages
 * that are not used again. */
static bool is_not_foreseen(page_ring *g, int page) {
    return g->pages[page].slot < 0 &&
           (g->stalled || g->next.ended || page_of(g, &g->next) != page || n_use(g) >= g->streamed->n_slot);
}

slot *page_ring_acquire(page_ring *g, const page_cursor *at) {
    const int page = page_of(g, at);
    if (!g->stalled)
        share(g); /* the reader may not have reached it */
    if (is_not_foreseen(g, page))
        turn_to(g, at, true);
    slot *s = slot_of(g, page);
    if (!s || (s->state != SLOT_READY && s->state != SLOT_FAILED))
        return NULL;
    if (s->state == SLOT_READY)
        s->state = SLOT_PINNED;
    return s;
}

slot *page_ring_release(page_ring *g, const page_cursor *at, bool leaving) {
    const visit_pages *p = g->streamed;
    const int first = p->first[at->at.block], n = p->first[at->at.block + 1] - first;
    const bool stays = at->at.again && at->i - first < visit_pages_staying(n, p->n_slot);
    slot *s = slot_of(g, page_of(g, at));
    assert(s && s->state == SLOT_PINNED);
    s->state = SLOT_READY;
    s->n_leaving += leaving;
    if (!stays && --s->n_use <= 0)
        drop(g, s);
    g->changed = true;
    return s;
}

void page_ring_left(page_ring *g, slot *s) {
    if (--s->n_leaving == 0 && s->discard)
        put_back(g, s);
    g->changed = true;
}

void page_ring_clear_failed(page_ring *g, slot *s) {
    put_back(g, s);
}
