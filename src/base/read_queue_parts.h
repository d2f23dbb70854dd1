/* read_queue_parts.h - the two implementations of a queue's reads. For read_queue*.c only. */
#ifndef NIB_BASE_READ_QUEUE_PARTS_H
#define NIB_BASE_READ_QUEUE_PARTS_H

#include "base/read_queue.h"

typedef struct read_backend {
    void (*close)(void *self); /* nothing is in flight */
    /* Starts the reads what[tags[0]], ..., what[tags[n - 1]]. Returns how many were started; they are the
     * first ones. */
    int (*start)(void *self, const int *tags, int n, const read_request *what);
    /* Waits for one started read and returns its tag. *got: bytes, or a negative errno. -1: no read can be
     * waited for any more, for the reason in *got. */
    int (*finish)(void *self, int64_t *got);
    bool (*ready)(void *self); /* finish would not wait */
} read_backend;

/* NULL: io_uring is not available (not an error: threads are used instead). */
void *read_ring_open(int depth, void *buffer, size_t n_byte);
extern const read_backend read_ring;

nib_status read_threads_open(int depth, void **out, nib_error *err);
extern const read_backend read_threads;

#endif
