/* read_queue_ring.c - reads by io_uring. */
#include "base/mem.h"
#include "base/num.h"
#include "base/read_queue_parts.h"

#include <errno.h>
#include <liburing.h>
#include <stdint.h>

typedef struct ring {
    struct io_uring io;
    char *registered; /* the registered buffer: its pages are pinned once instead of at every read; NULL: none
                       */
    size_t n_registered;
} ring;

void *read_ring_open(int depth, void *buffer, size_t n_byte) {
    ring *r = fault_hit(FAULT_RING) ? NULL : mem_calloc(1, sizeof *r);
    if (!r)
        return NULL;
    if (io_uring_queue_init((unsigned)depth, &r->io, 0) < 0) {
        mem_free(r);
        return NULL;
    }
    struct iovec all = {buffer, n_byte};
    if (buffer && n_byte && io_uring_register_buffers(&r->io, &all, 1) == 0) {
        r->registered = buffer;
        r->n_registered = n_byte;
    }
    return r;
}

static void ring_close(void *self) {
    ring *r = self;
    io_uring_queue_exit(&r->io);
    mem_free(r);
}

static bool inside(const ring *r, const char *out, uint64_t n_byte) {
    return r->registered && out >= r->registered && out < r->registered + r->n_registered &&
           n_byte <= (uint64_t)(r->registered + r->n_registered - out);
}

static struct io_uring_sqe *prepare(ring *r, int tag, const read_request *what) {
    struct io_uring_sqe *e = what->n_byte > UINT32_MAX / 2 ? NULL : io_uring_get_sqe(&r->io);
    if (!e)
        return NULL;
    const int fd = file_handle(what->f);
    const unsigned n = (unsigned)what->n_byte;
    if (inside(r, what->out, what->n_byte))
        io_uring_prep_read_fixed(e, fd, what->out, n, what->offset, 0);
    else
        io_uring_prep_read(e, fd, what->out, n, what->offset);
    io_uring_sqe_set_data64(e, (uint64_t)tag);
    return e;
}

static int ring_start(void *self, const int *tags, int n, const read_request *what) {
    ring *r = self;
    struct io_uring_sqe *entries[MAX_READ_QUEUE];
    int n_entry = 0, sent;
    while (n_entry < n && (entries[n_entry] = prepare(r, tags[n_entry], &what[tags[n_entry]])))
        n_entry++;
    do
        sent = io_uring_submit(&r->io);
    while (sent == -EINTR || (sent > 0 && io_uring_sq_ready(&r->io) > 0));
    const int left = (int)NUM_MIN(io_uring_sq_ready(&r->io), (unsigned)n_entry);
    /* Entries that were not sent stay in the ring and would be sent with the next ones: make them no-ops. */
    for (int i = n_entry - left; i < n_entry; i++) {
        io_uring_prep_nop(entries[i]);
        io_uring_sqe_set_data64(entries[i], UINT64_MAX);
    }
    return n_entry - left;
}

static int ring_finish(void *self, int64_t *got) {
    ring *r = self;
    for (;;) {
        struct io_uring_cqe *e = NULL;
        const int failed = io_uring_wait_cqe(&r->io, &e);
        if (failed == -EINTR)
            continue;
        if (failed < 0 || !e) {
            *got = failed < 0 ? failed : -EIO;
            return -1;
        }
        uint64_t tag = io_uring_cqe_get_data64(e);
        *got = e->res;
        io_uring_cqe_seen(&r->io, e);
        if (tag != UINT64_MAX)
            return (int)tag;
    }
}

static bool ring_ready(void *self) {
    ring *r = self;
    struct io_uring_cqe *e;
    return io_uring_peek_cqe(&r->io, &e) == 0;
}

const read_backend read_ring = {ring_close, ring_start, ring_finish, ring_ready};
