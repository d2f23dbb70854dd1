/* page_ring.h - the states of the streamed pages of one tier, and the ring of slots that hold them. The table
 * only keeps states and makes decisions. It uses no thread, file or clock. The reader (pager_reader.c) and
 * the threads that acquire pages (pager_ring.c) report every event to it, one at a time, so tests run it
 * through any order of events (tests/test_weights_page_ring.c).
 *
 * A streamed page is always on the tier below. On this tier it is in one of three states: absent; arriving,
 * with its mark (slots are assigned in the order of the marks); or here. A page that is not absent has one
 * slot:
 *
 *                 page_ring_assign           read, and used as it is
 *          empty  ----------------->  reading  ---------------------->  ready  <-----------+
 *            ^                         | | |     (page_ring_finish)      ^ |              | release,
 *            |                         | | | read, to be packed          | | acquire      | needed again
 *            |                         | | +---> arrived ---> packing ---+ v              |
 *            |                         | |       (page_ring_pack)       pinned -----------+
 *            |                         | +------------ in turn ----------^ |
 *            |                         v  error                            |
 *            |<---------------------  failed                               | release
 *            |   page_ring_clear_failed                                    |
 *            |<------------------------------------------------------------+
 *            +<--- reading to ready, or failed, when the order changes (begin, end, acquire). A slot that
 *                  has reads in flight or is being packed is discarded: its page is absent at once, and the
 *                  slot becomes empty when the read or the packing has ended
 *
 * absent: it has no slot; here: its slot is ready or pinned; arriving: any other.
 *
 * A page that is released may be *leaving*: copies of it to a device are queued (slot.n_leaving). Its use is
 * over, but its slot gets no other content until they have ended (page_ring_left). Meanwhile others are
 * acquired and read.
 *
 * INVARIANTS
 *  1. A page has at most one slot, and a slot that is not empty has one buffer. Every buffer belongs to a
 *     slot, is spare, or is the destination of a packing in progress.
 *  2. A buffer is written only while its slot is reading, or as the destination of a packing, when it is
 *     neither a slot's nor spare. So a page that is ready, pinned or leaving does not change.
 *  3. Slots are assigned in the order of the pass's visits (visit_pages.h), and after its end in the order of
 *     the predicted next pass. A page that is not absent gets no second slot: its slot serves both uses.
 *  4. The predicted uses that are not over are at most as many as slots, and one buffer stays free for
 *     packing or is returned by a packing in progress. The page that is acquired is the first of these uses,
 *     so it arrives or fails.
 *  5. An error belongs to the page in which it happened and is returned to the acquire of that page. No slot
 *     is assigned before that. A new pass tries again. */
#ifndef NIB_WEIGHTS_PAGE_RING_H
#define NIB_WEIGHTS_PAGE_RING_H

#include "weights/load_reads.h"
#include "weights/pager.h"
#include "weights/visit_pages.h"

enum { RING_SLOTS = 15, RING_BUFFERS = RING_SLOTS + 1 }; /* maximum numbers */

/* A page's state, beside its place in the image. */
typedef struct page_state {
    uint8_t *resident; /* its place in the image when resident; NULL: streamed */
    int64_t n_row;     /* of an expert: pager_count_expert */
    bool lent;         /* this place is another pager's, and is only read */
    int8_t slot;       /* of a streamed page; -1: absent */
    bool checked;      /* its checksum in the packed file was verified; written by the reader only */
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
    int n_use;       /* predicted uses that are not over */
    uint64_t mark;   /* the number of slots assigned before this one */
    uint8_t *buffer; /* the bytes as read, later the packed page; NULL: the slot is empty */
    uint8_t *packed; /* packing: the destination */
    bool discard;    /* the page no longer has this slot */
    int n_leaving;   /* ready or pinned: copies from the buffer that have not ended */

    /* how the page is read; set by the reader */
    int n_read, n_sent, n_flight;
    load_reads reads;  /* from the model's files; n 0: one read of the packed file, or in_turn */
    bool packs;        /* the bytes must be packed after reading */
    bool in_turn;      /* more reads than fit one slot: read and packed one after the other */
    bool again;        /* the packed file was damaged here: to be read from the model's files */
    nib_status status; /* of the first read that failed */
    nib_error error;
} slot;

typedef struct page_ring {
    const visit_pages *streamed;
    page_state *pages; /* [n_page] */
    int n_block;
    slot slots[RING_SLOTS];
    uint8_t *spare[RING_BUFFERS]; /* buffers that belong to no slot and to no packing */
    int n_spare, n_packing;
    uint64_t n_assigned, n_order; /* slots assigned; times that the order was replaced */
    visits after;                 /* the predicted next pass: one row through the same blocks */
    page_cursor next;             /* the next predicted use: of the pass, then of the predicted next pass */
    bool in_pass;                 /* `next` is in the pass, whose segments are still valid */
    bool stalled;                 /* an error has not been returned yet */
    bool changed;                 /* waiting threads must be woken */
} page_ring;

/* Opens a ring in which all n_page pages are absent. streamed, pages and buffers are borrowed; `buffers` has
 * n_slot + 1 buffers of `each` bytes. The first prediction is one row through all blocks. */
void page_ring_open(page_ring *g, const visit_pages *streamed, int n_block, page_state *pages, int n_page,
                    uint8_t *buffers, uint64_t each);

/* A pass begins, or ends (also early). Pages that are here or arriving stay as far as they agree with the new
 * order; the others are dropped. The list's segments must stay valid until the pass ends. */
void page_ring_begin(page_ring *g, const visits *pass);
void page_ring_end(page_ring *g);

/* ---- for the reader ---- */
/* Whether a page can be given a slot now. */
bool page_ring_has_free_slot(const page_ring *g);
/* Assigns a slot to the next absent page. The slot is reading; the caller sets how. NULL: no such page, or no
 * free slot. */
slot *page_ring_assign(page_ring *g);
/* The oldest slot that is reading, is not discarded and has a read that was not submitted; NULL: none. */
slot *page_ring_to_send(page_ring *g);
/* To be called when a read or a packing of the slot has ended: moves the slot to its next state, if all
 * ended.
 */
void page_ring_finish(page_ring *g, slot *s);

/* ---- for packing ---- */
/* The oldest slot that has arrived: it is packing from now on, from s->buffer to s->packed. NULL: no such
 * slot, or no free buffer. */
slot *page_ring_pack(page_ring *g);
void page_ring_packed(page_ring *g, slot *s);

/* ---- for threads that acquire pages ---- */
/* Acquires the page of at->i: its slot, pinned or failed; NULL: the page is arriving. If this use was not
 * predicted, the order continues from it. */
slot *page_ring_acquire(page_ring *g, const page_cursor *at);
/* Ends one use of a pinned page. leaving: a copy from its buffer has not ended; returns the slot, for
 * page_ring_left. */
slot *page_ring_release(page_ring *g, const page_cursor *at, bool leaving);
/* To be called when such a copy has ended. */
void page_ring_left(page_ring *g, slot *s);
/* Empties a failed slot after its error was returned. */
void page_ring_clear_failed(page_ring *g, slot *s);

#endif
