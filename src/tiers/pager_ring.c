/* pager_ring.c - the slots of the ring: which page is next, what becomes of a slot, and who packs.
 *
 * There is one buffer more than slots. A page is read whole into its slot's buffer, and packed from there
 * into a spare one, which becomes the slot's; so reads are as large as pages, nothing is overwritten that is
 * still to be packed, and whoever has time can pack: the reader between two reads, and the thread that waits
 * for a page. A page is taken only when a buffer stays for packing. */
#include "tiers/pager_ring.h"

#include "base/num.h"

#include <assert.h>

/* ---- the order ---- */

/* Behind the pass, and behind what comes after it, that once more. */
static void go_on(reader *r) {
    if (!r->next.ended)
        return;
    r->next = page_cursor_of(&r->p->streamed, &r->after);
    r->in_pass = false;
}

static void advance(reader *r) {
    page_cursor_step(&r->p->streamed, &r->next);
    go_on(r);
}

static int page_of(const reader *r, const page_cursor *at) {
    return r->p->streamed.pages[at->i];
}

void ring_foresee(reader *r, int first, int end) {
    r->after = visits_of_one_row(r->p->layout.n_block, first, end);
}

/* ---- slots ---- */

slot *ring_find(reader *r, int page, unsigned mask) {
    slot *found = NULL;
    for (int i = 0; i < r->p->streamed.n_slot; i++) {
        slot *s = &r->slots[i];
        if ((mask & (1u << s->state)) && (page < 0 || s->page == page) && !s->discard &&
            (!found || s->order < found->order))
            found = s;
    }
    return found;
}

/* The oldest slot, from this place in the order on, that is not empty and still wanted. */
static slot *oldest_from(reader *r, uint64_t order) {
    slot *found = NULL;
    for (int i = 0; i < r->p->streamed.n_slot; i++) {
        slot *s = &r->slots[i];
        if (s->state != SLOT_EMPTY && !s->discard && s->order >= order && (!found || s->order < found->order))
            found = s;
    }
    return found;
}

/* Where a page is or will be. */
static slot *slot_of(reader *r, int page) {
    return ring_find(r, page,
                     1u << SLOT_READING | 1u << SLOT_ARRIVED | 1u << SLOT_PACKING | 1u << SLOT_READY |
                         1u << SLOT_FAILED);
}

static void put_back(reader *r, slot *s) {
    r->spare[r->n_spare++] = s->buffer;
    s->buffer = NULL;
    s->state = SLOT_EMPTY;
    s->discard = false;
}

void ring_settle(reader *r, slot *s) {
    const bool was_packed = s->state == SLOT_PACKING, ended = s->n_sent == s->n_read || s->status != NIB_OK;
    if ((s->state != SLOT_READING && !was_packed) || s->n_flight > 0)
        return;
    if (s->discard) {
        put_back(r, s);
    } else if (s->status != NIB_OK) {
        s->state = SLOT_FAILED;
        r->stalled = true;
    } else if (was_packed) {
        s->state = SLOT_READY;
    } else if (ended && !s->again) {
        s->state = r->p->packed ? SLOT_READY : SLOT_ARRIVED;
        r->p->state[s->page].checked = r->p->packed != NULL;
    } else {
        return;
    }
    /* what arrived the reader is about to pack, and says so when it needs help */
    r->news = r->news || s->state != SLOT_ARRIVED;
}

void ring_tell(reader *r) {
    if (r->news)
        pthread_cond_broadcast(&r->changed);
    r->news = false;
}

void ring_plan(reader *r, slot *s) {
    uint64_t bytes;
    s->n_sent = 0;
    s->n_read = 1;
    s->in_turn = false;
    s->again = false;
    s->reads.n = 0;
    if (r->p->packed)
        return;
    s->in_turn = !pager_page_reads(r->p, s->page, &s->reads, &bytes) || bytes > r->each;
    s->n_read = s->in_turn ? 1 : s->reads.n;
}

bool ring_has_room(reader *r) {
    return !r->stalled && !r->next.ended && r->n_spare > 0 && r->n_spare + r->n_packing >= 2 &&
           ring_find(r, -1, 1u << SLOT_EMPTY);
}

slot *ring_take(reader *r) {
    if (!ring_has_room(r))
        return NULL;
    slot *s = ring_find(r, -1, 1u << SLOT_EMPTY);
    *s = (slot){.state = SLOT_READING,
                .page = page_of(r, &r->next),
                .order = r->n_taken++,
                .buffer = r->spare[--r->n_spare]};
    advance(r);
    ring_plan(r, s);
    if (!r->looked)
        s->status = loader_check_unchanged(r->p->loader, &s->error);
    r->looked = s->status == NIB_OK;
    ring_settle(r, s);
    return s;
}

bool ring_pack(reader *r, int who) {
    slot *s = ring_find(r, -1, 1u << SLOT_ARRIVED);
    if (!s || r->n_spare == 0)
        return false;
    uint8_t *to = r->spare[--r->n_spare];
    s->state = SLOT_PACKING;
    r->n_packing++;
    pthread_mutex_unlock(&r->lock);
    pager_page_pack(r->p, s->page, &s->reads, s->buffer, to, &r->scratch[who]);
    pthread_mutex_lock(&r->lock);
    r->n_packing--;
    r->spare[r->n_spare++] = s->buffer;
    s->buffer = to;
    ring_settle(r, s);
    ring_tell(r);
    return true;
}

/* ---- passes ---- */

/* What is in a slot is not wanted any more. */
static void drop(reader *r, slot *s) {
    if (s->state == SLOT_READY || s->state == SLOT_FAILED || s->state == SLOT_ARRIVED) {
        put_back(r, s);
    } else if (s->state == SLOT_READING) {
        s->discard = true;
        ring_settle(r, s);
    } else if (s->state == SLOT_PACKING) {
        s->discard = true; /* settled by who packs */
    }
}

/* The reader goes on from here. Slots keep the pages that come first from here on, in this order; the others
 * are dropped, and what could not be read, to be tried again. */
static void turn_to(reader *r, const page_cursor *at, bool in_pass) {
    slot *s;
    uint64_t order = 0; /* slots before this one are as they have to be */
    r->next = *at;
    r->in_pass = in_pass;
    r->stalled = false;
    go_on(r);
    while ((s = oldest_from(r, order)) && s->state != SLOT_FAILED && !r->next.ended &&
           s->page == page_of(r, &r->next)) {
        order = s->order + 1;
        advance(r);
    }
    for (; s; s = oldest_from(r, order)) {
        order = s->order + 1;
        drop(r, s);
    }
    pthread_cond_broadcast(&r->changed);
}

void reader_begin(reader *r, const visits *pass) {
    const page_cursor at = page_cursor_of(&r->p->streamed, pass);
    pthread_mutex_lock(&r->lock);
    ring_foresee(r, pass->first, pass->end);
    turn_to(r, &at, true);
    pthread_mutex_unlock(&r->lock);
}

void reader_end(reader *r) {
    const page_cursor none = {.ended = true};
    pthread_mutex_lock(&r->lock);
    if (r->in_pass)
        turn_to(r, &none, false);
    pthread_mutex_unlock(&r->lock);
}

/* The reader will not come to it: its next page is another one, or slots are full of what nobody comes back
 * to. */
static bool is_not_foreseen(reader *r, int page) {
    bool room = false;
    for (int i = 0; i < r->p->streamed.n_slot; i++)
        room = room || r->slots[i].state == SLOT_EMPTY || r->slots[i].discard;
    return !slot_of(r, page) && (r->stalled || r->next.ended || page_of(r, &r->next) != page || !room);
}

nib_status reader_pin(reader *r, const page_cursor *at, uint8_t **data, double *wait_s, nib_error *err) {
    const int page = page_of(r, at);
    nib_status status = NIB_OK;
    slot *s;
    double begin = time_now();
    pthread_mutex_lock(&r->lock);
    if (is_not_foreseen(r, page))
        turn_to(r, at, true);
    while (!(s = slot_of(r, page)) || (s->state != SLOT_READY && s->state != SLOT_FAILED))
        if (!ring_pack(r, 1))
            pthread_cond_wait(&r->changed, &r->lock);
    if (s->state == SLOT_READY) {
        s->state = SLOT_PINNED;
        *data = s->buffer;
    } else {
        status = s->status;
        if (err)
            *err = s->error;
        put_back(r, s); /* the reader stays stalled until something else is asked for */
    }
    pthread_mutex_unlock(&r->lock);
    *wait_s += time_now() - begin;
    return status;
}

void reader_unpin(reader *r, const page_cursor *at) {
    const visit_pages *p = &r->p->streamed;
    const int first = p->first[at->at.block], n = p->first[at->at.block + 1] - first;
    pthread_mutex_lock(&r->lock);
    slot *s = ring_find(r, p->pages[at->i], 1u << SLOT_PINNED);
    assert(s);
    if (at->at.again && at->i - first < visit_pages_staying(n, p->n_slot))
        s->state = SLOT_READY;
    else
        put_back(r, s);
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}
