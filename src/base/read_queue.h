/* read_queue.h - several reads of files in flight at once, so that a disk is never idle between two of them.
 *
 * It uses io_uring, with a registered buffer if the system allows it. Without io_uring (old kernels,
 * containers that forbid it) two threads call file_read_at. One thread uses a queue at a time. A short read,
 * or one that the ring refuses, is repeated by file_read_at, so errors are the same for both. */
#ifndef NIB_BASE_READ_QUEUE_H
#define NIB_BASE_READ_QUEUE_H

#include "base/file.h"

typedef struct read_queue read_queue;

enum { MAX_READ_QUEUE = 16, READ_QUEUE_THREADS = 1 /* flag: do not use io_uring */ };

/* depth: reads in flight, 1..MAX_READ_QUEUE. buffer[0..n_byte): where most reads will go; NULL: not known.
 */
nib_status read_queue_open(int depth, unsigned flags, void *buffer, size_t n_byte, read_queue **out,
                           nib_error *err);
void read_queue_close(read_queue *q);         /* waits for what is in flight; NULL is fine */
bool read_queue_is_ring(const read_queue *q); /* uses io_uring */

typedef struct read_request {
    file *f;
    void *out;
    uint64_t offset, n_byte; /* with a direct file all three are multiples of FILE_ALIGN */
    uint64_t min;            /* of n_byte: fewer is an error, more may be missing at a file's end */
} read_request;

/* Queues a read under a tag in 0..depth-1 that is not in flight. read_queue_wait returns its errors. Queued
 * reads are started together, by the next _send, _ready or _wait: notifying a virtual disk takes as long as
 * reading 100 KiB (docs/optimisation-log.md), and one notification serves many reads.
 */
void read_queue_submit(read_queue *q, int tag, const read_request *what);
void read_queue_send(read_queue *q); /* starts all queued reads; does not wait for them */

/* Whether read_queue_wait would return a read at once, as far as is known without a system call. */
bool read_queue_ready(read_queue *q);

/* Seconds in which some read was in flight, as far as _wait has returned them. */
double read_queue_busy(const read_queue *q);

/* Waits for any read and returns its tag, also if it failed; -1: none is in flight. */
nib_status read_queue_wait(read_queue *q, int *tag, nib_error *err);

#endif
