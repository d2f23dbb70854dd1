/* page_ring.h - the streamed pages of one tier: what state each of them is in, and the ring of slots in which
 * they are.
 *
 * It decides and does nothing else: no thread, file or clock. Who reads (pager_reader.c) and who asks for
 * pages (pager_ring.c) tell it what happened, one at a time; so tests run it through any order of events
 * (tests/test_tiers_page_ring.c).
 *
 * A streamed page is on the tier below, and on this one in one of three states: absent; arriving, with its
 * mark (pages are taken in the order of their marks); here. A page that is not absent has one slot:
 *
 *                  page_ring_take            read, and used as it is
 *          empty  ----------------->  reading  ---------------------->  ready  <-----------+
 *            ^                         | | |     (page_ring_finish)      ^ |              | release,
 *            |                         | | | read, to be packed          | | want         | needed again
 *            |                         | | +---> arrived ---> packing ---+ v              |
 *            |                         | |       (page_ring_pack)       pinned -----------+
 *            |                         | +-----------------^ in turn       |
 *            |                         v  error                            |
 *            |<---------------------  failed                               | release
 *            |   page_ring_forget: told                                    |
 *            |<------------------------------------------------------------+
 *            +<--- reading to ready, or failed, but not what comes next: begin, end, want. A slot that has
 *                  reads in flight or is being packed is discarded: its page is absent at once, the slot
 *                  becomes empty when that has ended
 *
 * absent: it has no slot; here: its slot is ready or pinned; arriving: any other.
 *
 * INVARIANTS
 *  1. A page has one slot or none, and a slot that is not empty has one buffer. Every buffer is a slot's, a
 *     spare one, or written to by who packs.
 *  2. A buffer is written only while its slot is reading, or by who packs while it is neither a slot's nor
 *     spare; so what is ready or pinned does not change.
 *  3. Pages are taken in the order of the pass's visits (visit_pages.h), and behind its end in the order of
 *     the pass that is foreseen. A page that is not absent is not taken again: its slot serves both uses.
 *  4. Uses that are foreseen and not over are at most as many as slots, and a buffer stays free for packing,
 *     or somebody packs and gives one back. The page that is asked for is the first of them, so it comes, or
 *     fails.
 *  5. An error belongs to the page in which it happened, and is told to who asks for that page. Nothing is
 *     taken until then. A pass that begins tries again. */
#ifndef NIB_TIERS_PAGE_RING_H
#define NIB_TIERS_PAGE_RING_H

#include "tiers/load_reads.h"
#include "tiers/pager.h"
#include "tiers/visit_pages.h"

enum { RING_SLOTS = 15, RING_BUFFERS = RING_SLOTS + 1 }; /* at most */

/* What the pager knows of a page beside its place in the image. */
typedef struct page_state {
    uint8_t *resident; /* it is here for good; NULL: streamed */
    int8_t slot;       /* of a streamed page; -1: absent */
    bool checked;      /* read from the packed file before, and as it was written; the reader's */
} page_state;

typedef enum slot_state {
    SLOT_EMPTY,
    SLOT_READING,
    SLOT_ARRIVED, /* read, and to be packed: never from a packed file */
    SLOT_PACKING,
    SLOT_READY,
    SLOT_FAILED,
    SLOT_PINNED
} slot_state;

typedef struct slot {
    slot_state state;
    int page;
    int n_use;       /* that are foreseen and not over */
    uint64_t mark;   /* counts pages as they are taken */
    uint8_t *buffer; /* what is read, then what was packed; NULL: empty */
    uint8_t *packed; /* packing: what is written to */
    bool discard;    /* no longer its page's slot */

    /* how the page is read, by who reads it */
    int n_read, n_sent, n_flight;
    load_reads reads;  /* of the model's files; n 0: one of the packed file, or in turn */
    bool packs;        /* what is read is to be packed */
    bool in_turn;      /* more reads than a slot has: read and packed in turn */
    bool again;        /* the packed file failed it: to be read once more */
    nib_status status; /* of the first read that failed */
    nib_error error;
} slot;

typedef struct page_ring {
    const visit_pages *streamed;
    page_state *pages; /* [n_page] */
    int n_block;
    slot slots[RING_SLOTS];
    uint8_t *spare[RING_BUFFERS]; /* buffers that no slot has, and nobody packs to */
    int n_spare, n_packing;
    uint64_t n_taken, n_turn; /* pages; times that the order was set anew */
    visits after;     /* what comes behind a pass: as far as anybody knows, one row through its blocks */
    page_cursor next; /* the use that is foreseen next: of the pass, then of what comes after it */
    bool in_pass;     /* of the pass, whose segments are still there */
    bool stalled;     /* an error waits to be told */
    bool news;        /* something changed for those who wait, and they were not told yet */
} page_ring;

/* streamed and pages stay the caller's; all n_page are absent. Buffers of `each` bytes, one more than slots.
 * One row through all blocks is foreseen. */
void page_ring_open(page_ring *g, const visit_pages *streamed, int n_block, page_state *pages, int n_page,
                    uint8_t *buffers, uint64_t each);

page_where page_ring_where(const page_ring *g, int page);

/* A pass begins, or is over or given up. What is here or arriving and comes first from now on stays, the rest
 * is dropped. The list's segments stay valid in between. */
void page_ring_begin(page_ring *g, const visits *pass);
void page_ring_end(page_ring *g);

/* ---- who reads ---- */
/* Whether a page can be given a slot now. */
bool page_ring_has_free_slot(const page_ring *g);
/* The next page that is absent, to a slot, which is reading: the caller says how. NULL: there is none, or no
 * room. */
slot *page_ring_take(page_ring *g);
/* The oldest slot that is reading, has a read that was not sent, and is still wanted; NULL: none. */
slot *page_ring_to_send(page_ring *g);
/* Something of a slot has ended, perhaps all: what becomes of it. */
void page_ring_finish(page_ring *g, slot *s);

/* ---- who packs ---- */
/* The oldest slot that has arrived, packing from s->buffer to s->packed; NULL: there is none, or no buffer.
 */
slot *page_ring_pack(page_ring *g);
void page_ring_packed(page_ring *g, slot *s);

/* ---- who asks for pages ---- */
/* The page of at->i: its slot, pinned, or failed; NULL: it arrives. Where it was not foreseen, it comes next
 * from now on. */
slot *page_ring_want(page_ring *g, const page_cursor *at);
/* The use of a pinned page is over. */
void page_ring_release(page_ring *g, const page_cursor *at);
/* A failed one's error was told. */
void page_ring_forget(page_ring *g, slot *s);

#endif
