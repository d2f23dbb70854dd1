/* pager_ring.h - shared by the reader thread (pager_reader.c) and the code that acquires pages (pager_ring.c)
 * only. page_ring.h has the states of pages and slots. */
#ifndef NIB_WEIGHTS_PAGER_RING_H
#define NIB_WEIGHTS_PAGER_RING_H

#include "base/read_queue.h"
#include "weights/page_ring.h"
#include "weights/pager_parts.h"

/* The slot, and the read of it, that a tag of the queue stands for. */
typedef struct in_flight {
    int slot, read;
} in_flight;

/* A copy from a page of the ring. */
typedef struct page_leaving {
    slot *from;
    device *on;
    device_mark copied;
} page_leaving;

struct reader {
    pager *p;
    pthread_t thread;
    bool started;
    memory_region buffers; /* of `each` bytes */
    uint64_t each;
    uint64_t charged;       /* bytes charged for scratch */
    load_buffer scratch[2]; /* for packing: of the reader, and of the thread that acquires pages */
    read_queue *queue;      /* used by the reader only, like the fields up to the lock */
    int idle[READER_DEPTH], n_idle;
    in_flight sent[READER_DEPTH];
    page_leaving leaving[RING_SLOTS]; /* the oldest first; used by the thread that acquires pages */
    int n_leaving;
    bool looked; /* the files were checked for changes since the reader began to fill the ring */

    pthread_mutex_t lock; /* protects the fields below */
    pthread_cond_t changed;
    page_ring ring;
    bool stop;
    double read_s;      /* read_queue_busy */
    bool lost, damaged; /* the packed file failed: nothing more is read from it */
};

/* The functions below are called with the lock held. */

/* Assigns a slot to the next page and plans its reads; NULL: no such page, or no free slot. */
slot *reader_take(reader *r);
/* Plans the reads of a slot's page. */
void reader_plan(reader *r, slot *s);
/* Packs the oldest arrived page, without holding the lock; false: none, or no free buffer. who: 0 the reader,
 * 1 another thread. */
bool reader_pack(reader *r, int who);
/* Wakes waiting threads. They may preempt the caller at once, so start the next reads first. */
void reader_notify(reader *r);

#endif
