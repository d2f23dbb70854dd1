/* load_pipe.h - one thread's part of loading: several reads in flight, and packing of the completed ones.
 *
 * A pipe belongs to one thread. Several pipes share the work by taking jobs from one list. Reads are as large
 * as the buffer's raw_bytes. Weights that do not fit one read (transposed, scattered over files) are read and
 * packed one piece after the other. */
#ifndef NIB_WEIGHTS_LOAD_PIPE_H
#define NIB_WEIGHTS_LOAD_PIPE_H

#include "base/read_queue.h"
#include "weights/load_runs.h"

/* One of: rows [first, first + n_row) of w to be packed; rows of several weights, which the list packs (w
 * NULL, in_runs); or bytes of a file to be copied (w NULL). */
typedef struct load_job {
    const weight *w;
    int64_t first, n_row;
    load_target to;
    bool in_runs;
    load_span span;
    load_extent bytes; /* bytes to be copied to to.dst, which is page-aligned */
    uint64_t unit; /* of these bytes: the first unit, and the number of units, in the list's own numbering */
    uint64_t n_unit;
} load_job;

/* The source of jobs. Called by several threads at a time. */
typedef struct load_list {
    bool (*next)(struct load_list *l, load_job *out); /* false: nothing is left, or a pipe failed */
    /* Called when the job's bytes are at their destination. An error ends this pipe. */
    nib_status (*finished)(struct load_list *l, const load_job *job, nib_error *err);
    /* Packs rows in runs from the bytes at raw, with b's scratch. NULL: the list has no such jobs. */
    void (*pack)(struct load_list *l, const load_job *job, const uint8_t *raw, const load_buffer *b);
    /* Called while reads are in flight and none is complete, to do a little other work; false: none is left.
     * May be NULL. */
    bool (*idle)(struct load_list *l);
    void *user;
} load_list;

typedef struct load_pipe {
    const loader *ld;
    load_buffer buffer;
    read_queue *queue;                /* NULL: reads and packing take turns, through the page cache */
    int idle[MAX_READ_QUEUE], n_idle; /* tags that are neither in flight nor waiting to be packed */
    int n_flying, max_flying;         /* reads in flight */
    load_job jobs[MAX_READ_QUEUE];
    load_extent extents[MAX_READ_QUEUE];
} load_pipe;

/* Memory of an open pipe, to be charged before opening. */
uint64_t load_pipe_bytes(const layout *lay, uint64_t raw_target, int depth);
/* depth 0: no queue. raw: as in load_buffer_init. into[0..n_into): memory besides raw that reads go to;
 * n_into 0: none, or too large to be registered with the system. */
nib_status load_pipe_open(load_pipe *p, const loader *ld, const layout *lay, uint64_t raw_target, int depth,
                          uint8_t *raw, void *into, uint64_t n_into, nib_error *err);
void load_pipe_close(load_pipe *p); /* zeroed is fine */

/* Takes and finishes jobs until the list has none. After an error nothing is in flight. */
nib_status load_pipe_run(load_pipe *p, load_list *l, nib_error *err);

#endif
