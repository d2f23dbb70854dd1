/* pager_ring.c - the slots of the ring: which page is next, what becomes of a slot, and who packs.
 *
 * There is one buffer more than slots. A page is read whole into its slot's buffer, and packed from there
 * into a spare one, which becomes the slot's; so reads are as large as pages, nothing is overwritten that is
 * still to be packed, and whoever has time can pack: the reader between two reads, and the thread that waits
 * for a page. A page is taken only when a buffer stays for packing. */
#include "tiers/pager_ring.h"

#include "base/num.h"

#include <assert.h>

enum { WINDOW = 4 /* slots that pages pass through while others wait for the next cell */ };

/* ---- the order ---- */

static int n_visit(const reader *r, int b) {
    return r->p->first_streamed[b + 1] - r->p->first_streamed[b];
}

/* How many of a block's first pages stay in the ring between two cells. */
static int n_staying(const reader *r, int b) {
    const int n = n_visit(r, b);
    return n <= r->n_slot ? n : r->n_slot - WINDOW;
}

static int n_cell_of(const reader *r, int b) {
    return b == r->p->layout.n_block - 1 ? r->n_head : r->n_cell;
}

/* In this pass or the next. */
position ring_next_block(const reader *r, int b) {
    const int n = r->p->layout.n_block;
    for (int i = 1; i <= n; i++) {
        const int at = (b + i) % n;
        if (n_visit(r, at) > 0 && (n_cell_of(r, at) > 0 || i == n))
            return (position){at, r->p->first_streamed[at], 0};
    }
    return (position){b, r->p->first_streamed[b], 0};
}

static void advance(reader *r) {
    position *at = &r->next;
    if (++at->visit < r->p->first_streamed[at->block + 1])
        return;
    const int staying = n_staying(r, at->block);
    if (++at->cell < n_cell_of(r, at->block) && staying < n_visit(r, at->block))
        at->visit = r->p->first_streamed[at->block] + staying;
    else
        *at = ring_next_block(r, at->block);
}

/* ---- slots ---- */

slot *ring_find(reader *r, int page, unsigned mask) {
    slot *found = NULL;
    for (int i = 0; i < r->n_slot; i++) {
        slot *s = &r->slots[i];
        if ((mask & (1u << s->state)) && (page < 0 || s->page == page) && !s->discard &&
            (!found || s->order < found->order))
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
    return !r->stalled && r->n_spare > 0 && r->n_spare + r->n_packing >= 2 &&
           ring_find(r, -1, 1u << SLOT_EMPTY);
}

slot *ring_take(reader *r) {
    if (!ring_has_room(r))
        return NULL;
    slot *s = ring_find(r, -1, 1u << SLOT_EMPTY);
    *s = (slot){.state = SLOT_READING,
                .page = r->p->streamed[r->next.visit],
                .visit = r->next.visit,
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

/* ---- pinning ---- */

/* Something else is wanted than what was foreseen (a pass that was cancelled, or begins elsewhere; an error
 * before): what is there is dropped and the reader goes on from the page that is asked for. */
static void turn_to(reader *r, position where) {
    for (int i = 0; i < r->n_slot; i++) {
        slot *s = &r->slots[i];
        if (s->state == SLOT_READY || s->state == SLOT_FAILED || s->state == SLOT_ARRIVED) {
            put_back(r, s);
        } else if (s->state == SLOT_READING) {
            s->discard = true;
            ring_settle(r, s);
        } else if (s->state == SLOT_PACKING) {
            s->discard = true; /* settled by who packs */
        }
    }
    r->stalled = false;
    r->next = where;
    pthread_cond_broadcast(&r->changed);
}

/* The reader will not come to it: its next page is another one, or slots are full of what nobody comes back
 * to. */
static bool is_not_foreseen(reader *r, int visit) {
    bool room = false;
    for (int i = 0; i < r->n_slot; i++)
        room = room || r->slots[i].state == SLOT_EMPTY || r->slots[i].discard;
    return !slot_of(r, r->p->streamed[visit]) && (r->stalled || r->next.visit != visit || !room);
}

nib_status reader_pin(reader *r, int b, int visit, int cell, uint8_t **data, double *wait_s, nib_error *err) {
    const int page = r->p->streamed[visit];
    nib_status status = NIB_OK;
    slot *s;
    double begin = time_now();
    pthread_mutex_lock(&r->lock);
    if (is_not_foreseen(r, visit))
        turn_to(r, (position){b, visit, cell});
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
        put_back(r, s); /* the reader stays stalled until the next pin asks for something */
    }
    pthread_mutex_unlock(&r->lock);
    *wait_s += time_now() - begin;
    return status;
}

void reader_unpin(reader *r, int b, int visit, bool again) {
    pthread_mutex_lock(&r->lock);
    slot *s = ring_find(r, r->p->streamed[visit], 1u << SLOT_PINNED);
    assert(s);
    const bool stays = again && visit - r->p->first_streamed[b] < n_staying(r, b);
    if (stays)
        s->state = SLOT_READY;
    else
        put_back(r, s);
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

void reader_expect(reader *r, int n_cell, int n_head) {
    pthread_mutex_lock(&r->lock);
    r->n_cell = n_cell;
    r->n_head = n_head;
    pthread_mutex_unlock(&r->lock);
}
