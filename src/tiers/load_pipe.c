/* load_pipe.c - keeps the queue full, packs whatever arrives first. */
#include "tiers/load_pipe.h"

#include "base/num.h"

#include <string.h>

uint64_t load_pipe_bytes(const model *m, uint64_t raw_target, int depth) {
    return load_buffer_bytes(m, raw_target, NUM_MAX(depth, 1));
}

nib_status load_pipe_open(load_pipe *p, const loader *ld, const model *m, uint64_t raw_target, int depth,
                          uint8_t *raw, void *into, uint64_t n_into, nib_error *err) {
    memset(p, 0, sizeof *p);
    p->ld = ld;
    nib_status status = load_buffer_init(&p->buffer, m, raw_target, NUM_MAX(depth, 1), raw, err);
    if (status == NIB_OK && depth > 0)
        status = read_queue_open(depth, 0, into ? into : p->buffer.raw,
                                 into ? n_into : p->buffer.raw_bytes * (uint64_t)depth, &p->queue, err);
    for (int i = depth - 1; i >= 0; i--)
        p->idle[p->n_idle++] = i;
    if (status != NIB_OK)
        load_pipe_close(p);
    return status;
}

void load_pipe_close(load_pipe *p) {
    read_queue_close(p->queue);
    load_buffer_deinit(&p->buffer);
    memset(p, 0, sizeof *p);
}

static uint8_t *raw_at(const load_pipe *p, int tag) {
    return p->buffer.raw + (uint64_t)tag * p->buffer.raw_bytes;
}

/* Bytes of a file without a queue. */
static nib_status copy_in_turn(const load_job *j, nib_error *err) {
    return file_read_at(j->bytes.f, j->to.dst, j->bytes.offset, j->bytes.least, err);
}

static nib_status in_turn(const load_pipe *p, const load_job *j, load_buffer *b, nib_error *err) {
    if (!j->w)
        return copy_in_turn(j, err);
    return j->w->vector ? loader_vector(p->ld, j->w, j->to.dst, b, err)
                        : loader_matrix(p->ld, j->w, j->first, j->n_row, &j->to, b, err);
}

/* Starts the job under a tag whose part of the buffer is free; false: it takes more than one read. */
static bool submit(load_pipe *p, int tag, const load_job *j) {
    load_extent *e = &p->extents[tag];
    *e = j->bytes;
    if (j->w && !loader_extent(p->ld, j->w, j->first, j->n_row, p->buffer.raw_bytes, e))
        return false;
    p->jobs[tag] = *j;
    read_request what = {e->f, j->w ? raw_at(p, tag) : j->to.dst, e->offset, e->n_byte, e->least};
    if (!file_is_direct(e->f))
        what.n_byte = e->least;
    read_queue_submit(p->queue, tag, &what);
    return true;
}

/* *done: it took more than one read and was done in turn, while the disk works on the others. */
static nib_status start(load_pipe *p, const load_job *j, bool *done, nib_error *err) {
    const int tag = p->idle[p->n_idle - 1];
    *done = false;
    if (j->w && j->w->vector)
        NIB_TRY(loader_check_vector(j->w, err));
    if (submit(p, tag, j)) {
        p->n_idle--;
        return NIB_OK;
    }
    *done = true;
    load_buffer one = p->buffer; /* its tag's part of the buffer is the first of a buffer of one */
    one.raw = raw_at(p, tag);
    return in_turn(p, j, &one, err);
}

/* Waits for one of those in flight, packs it, and says which it was and, in *status, whether it failed (it is
 * then finished all the same); false: nothing is in flight. */
static bool finish(load_pipe *p, load_job *j, nib_status *status, nib_error *err) {
    int tag;
    *status = read_queue_wait(p->queue, &tag, err);
    if (tag < 0)
        return false;
    *j = p->jobs[tag];
    if (*status == NIB_OK && j->w)
        loader_pack(j->w, j->first, j->n_row, &j->to, &p->extents[tag], raw_at(p, tag), &p->buffer);
    p->idle[p->n_idle++] = tag;
    return true;
}

static nib_status run_in_turn(load_pipe *p, load_list *l, nib_error *err) {
    load_job j;
    while (l->next(l, &j)) {
        NIB_TRY(in_turn(p, &j, &p->buffer, err));
        NIB_TRY(l->finished(l, &j, err));
    }
    return NIB_OK;
}

/* Starts jobs while there is room and the list has some. */
static nib_status fill(load_pipe *p, load_list *l, nib_error *err) {
    load_job j;
    bool done;
    while (p->n_idle > 0 && l->next(l, &j)) {
        NIB_TRY(start(p, &j, &done, err));
        if (done)
            NIB_TRY(l->finished(l, &j, err));
    }
    return NIB_OK;
}

nib_status load_pipe_run(load_pipe *p, load_list *l, nib_error *err) {
    if (!p->queue)
        return run_in_turn(p, l, err);
    load_job j;
    nib_status status = fill(p, l, err), ignored;
    while (status == NIB_OK) {
        while (l->idle && !read_queue_ready(p->queue) && l->idle(l))
            continue;
        if (!finish(p, &j, &status, err))
            break;
        if (status == NIB_OK)
            status = l->finished(l, &j, err);
        if (status == NIB_OK)
            status = fill(p, l, err);
    }
    while (status != NIB_OK && finish(p, &j, &ignored, NULL))
        continue;
    return status;
}
