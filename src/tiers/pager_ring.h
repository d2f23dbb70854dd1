/* pager_ring.h - what the reader thread (pager_reader.c) and those who ask for pages (pager_ring.c) share. No
 * other file includes it. The states of a slot and who changes them stand at the top of pager.c. */
#ifndef NIB_TIERS_PAGER_RING_H
#define NIB_TIERS_PAGER_RING_H

#include "base/read_queue.h"
#include "tiers/pager_parts.h"

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
    uint64_t order;   /* when it was taken: a short cycle has a page twice, for this pass and for the next */
    uint8_t *buffer;  /* what is read, then what was packed; NULL: empty */
    load_reads reads; /* of the model's files; n 0: one of the packed file, or in turn */
    int n_read, n_sent, n_flight;
    bool in_turn;      /* no few reads bring it: read and packed in turn, by the reader */
    bool discard;      /* no longer wanted */
    bool again;        /* the packed file failed it: to be read once more */
    nib_status status; /* of the first read that failed */
    nib_error error;
} slot;

/* Which slot's read a tag of the queue is. */
typedef struct in_flight {
    int slot, read;
} in_flight;

struct reader {
    pager *p;
    pthread_t thread;
    bool started;
    tier_region buffers; /* of `each` bytes */
    uint64_t each;
    uint64_t charged;       /* for scratch */
    load_buffer scratch[2]; /* for packing: the reader's, and that of who asks for pages */
    read_queue *queue;      /* the reader's, with what follows */
    int idle[READER_DEPTH], n_idle;
    in_flight sent[READER_DEPTH];
    bool looked; /* the files were found unchanged since it began to fill the ring */

    pthread_mutex_t lock; /* everything below */
    pthread_cond_t changed;
    bool news;          /* a page came or failed, and nobody was told yet */
    bool stop, stalled; /* stalled: an error waits to be told; no page is taken until it was */
    bool lost, damaged; /* the packed file failed: nothing more is read from it */
    slot slots[READER_SLOTS];
    uint8_t *spare[READER_BUFFERS]; /* buffers that no slot has */
    int n_spare, n_packing;
    uint64_t n_taken;
    visits after;     /* what comes behind a pass: as far as anybody knows, one row through its blocks */
    page_cursor next; /* the page that is taken next: of the pass, then of what comes after it */
    bool in_pass;     /* of the pass, whose segments are still there */
};

/* All with the lock. */

/* The oldest slot in one of the states of `mask`, of this page (-1: of any) and still wanted. */
slot *ring_find(reader *r, int page, unsigned mask);
/* The next page to an empty slot; NULL: there is none, or no buffer. */
slot *ring_take(reader *r);
/* Nothing of a slot is read or packed any more, perhaps: what becomes of it. ring_tell tells those who wait:
 * they may take the processor at once, so the next reads are started before. */
void ring_settle(reader *r, slot *s);
void ring_tell(reader *r);
/* Packs the oldest page that arrived, without the lock meanwhile; false: there is none, or no buffer to pack
 * it to. who: 0 the reader, 1 another thread. */
bool ring_pack(reader *r, int who);
/* A pass over blocks [first, end) comes next, or after the one that is under way. */
void ring_foresee(reader *r, int first, int end);
/* Some page could be taken. */
bool ring_has_room(reader *r);
/* How a slot's page is read now. */
void ring_plan(reader *r, slot *s);

#endif
