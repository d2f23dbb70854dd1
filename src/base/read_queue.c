/* read_queue.c - chooses io_uring or threads, tracks the reads in flight, and repeats reads that came back
 * short. */
#include "base/mem.h"
#include "base/read_queue_parts.h"
#include "base/thread.h"

#include <errno.h>
#include <string.h>

typedef enum read_state { READ_FREE, READ_TAKEN, READ_STARTED, READ_AT_ONCE, READ_FAULT } read_state;

struct read_queue {
    const read_backend *carrier;
    void *self;
    int depth, n_taken, n_started;
    double begun, busy;        /* since when reads are in flight; seconds of such times before */
    int taken[MAX_READ_QUEUE]; /* tags, in their order */
    read_state state[MAX_READ_QUEUE];
    read_request what[MAX_READ_QUEUE];
};

nib_status read_queue_open(int depth, unsigned flags, void *buffer, size_t n_byte, read_queue **out,
                           nib_error *err) {
    if (depth < 1 || depth > MAX_READ_QUEUE)
        return nib_fail(err, NIB_E_USAGE, "expected 1 to %d reads in flight, found %d", MAX_READ_QUEUE,
                        depth);
    read_queue *q = mem_calloc(1, sizeof *q);
    if (!q)
        return nib_fail_nomem(err, sizeof *q, "a queue of reads");
    q->depth = depth;
    q->carrier = &read_ring;
    if (!(flags & READ_QUEUE_THREADS))
        q->self = read_ring_open(depth, buffer, n_byte);
    nib_status status = NIB_OK;
    if (!q->self) {
        q->carrier = &read_threads;
        status = read_threads_open(depth, &q->self, err);
    }
    if (status != NIB_OK) {
        mem_free(q);
        return status;
    }
    *out = q;
    return NIB_OK;
}

void read_queue_close(read_queue *q) {
    if (!q)
        return;
    int64_t got;
    read_queue_send(q);
    while (q->n_started > 0 && q->carrier->finish(q->self, &got) >= 0)
        q->n_started--;
    q->carrier->close(q->self);
    mem_free(q);
}

bool read_queue_is_ring(const read_queue *q) {
    return q->carrier == &read_ring;
}

void read_queue_submit(read_queue *q, int tag, const read_request *what) {
    q->what[tag] = *what;
    q->state[tag] = fault_hit(FAULT_READ) ? READ_FAULT : READ_TAKEN;
    if (q->state[tag] == READ_TAKEN)
        q->taken[q->n_taken++] = tag;
}

void read_queue_send(read_queue *q) {
    const int n = q->n_taken ? q->carrier->start(q->self, q->taken, q->n_taken, q->what) : 0;
    for (int i = 0; i < q->n_taken; i++)
        q->state[q->taken[i]] = i < n ? READ_STARTED : READ_AT_ONCE;
    if (q->n_started == 0 && n > 0)
        q->begun = time_now();
    q->n_started += n;
    q->n_taken = 0;
}

double read_queue_busy(const read_queue *q) {
    return q->busy;
}

/* Short at the file's end, interrupted by a signal, or refused as a direct read: file_read_at handles these.
 */
static bool worth_again(const read_request *what, int64_t got) {
    return (got >= 0 && (uint64_t)got < what->min) || got == -EINTR || got == -EAGAIN || got == -EINVAL ||
           got == -EOPNOTSUPP || got == -ENOMEM;
}

/* The tag of a read in one of two states; -1: none. */
static int find(const read_queue *q, read_state a, read_state b) {
    for (int i = 0; i < q->depth; i++)
        if (q->state[i] == a || q->state[i] == b)
            return i;
    return -1;
}

/* A read that could not be started and has to be returned. */
static int not_started(const read_queue *q) {
    return find(q, READ_AT_ONCE, READ_FAULT);
}

bool read_queue_ready(read_queue *q) {
    read_queue_send(q);
    return not_started(q) >= 0 || (q->n_started > 0 && q->carrier->ready(q->self));
}

/* For tests: what a read returns that fails, or ends early, on its way. Bytes that were not read are
 * anything. */
static int64_t with_faults(const read_request *what, int64_t got) {
    const bool fails = fault_hit(FAULT_DONE), ends_early = fault_hit(FAULT_SHORT);
    if (got < 0 || !(fails || ends_early))
        return got;
    const uint64_t n = fails ? 0 : what->min / 2;
    memset((char *)what->out + n, 0xA5, (size_t)(what->min - n));
    return fails ? -EIO : (int64_t)n;
}

nib_status read_queue_wait(read_queue *q, int *tag, nib_error *err) {
    int64_t got = -EIO;
    read_queue_send(q);
    *tag = not_started(q);
    if (*tag < 0 && q->n_started == 0)
        return NIB_OK;
    if (*tag < 0) {
        *tag = q->carrier->finish(q->self, &got);
        if (*tag >= 0) {
            got = with_faults(&q->what[*tag], got);
        } else { /* all of them fail, one after the other */
            *tag = find(q, READ_STARTED, READ_STARTED);
            q->state[*tag] = READ_FAULT;
        }
        if (--q->n_started == 0)
            q->busy += time_now() - q->begun;
    }
    const read_request *what = &q->what[*tag];
    bool again = q->state[*tag] == READ_AT_ONCE || (q->state[*tag] == READ_STARTED && worth_again(what, got));
    q->state[*tag] = READ_FREE;
    if (again)
        return file_read_at(what->f, what->out, what->offset, what->min, err);
    if (got < 0)
        return nib_fail_errno(err, "cannot read", file_path(what->f), (int)-got);
    return NIB_OK;
}
