/* pager_ring.h - shared by the reader thread (pager_reader.c) and the code that acquires pages (pager_ring.c)
 * only. page_ring.h has the states of pages and slots. */
#ifndef NIB_TIERS_PAGER_RING_H
#define NIB_TIERS_PAGER_RING_H

#include "base/read_queue.h"
#include "tiers/page_ring.h"
#include "tiers/pager_parts.h"

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
    page_ring ring;
    bool stop;
    bool lost, damaged; /* the packed file failed: nothing more is read from it */
};

/* All with the lock. */

/* The next page to an empty slot, and how it is read; NULL: no such page, or no free slot. */
slot *reader_take(reader *r);
/* How a slot's page is read now. */
void reader_plan(reader *r, slot *s);
/* Packs the oldest arrived page, without holding the lock; false: none, or no free buffer. who: 0 the reader,
 * 1 another thread. */
bool reader_pack(reader *r, int who);
/* Wakes waiting threads. They may preempt the caller at once, so the next reads are started before. */
void reader_notify(reader *r);

#endif
