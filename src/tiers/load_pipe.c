/* load_pipe.c - keeps the queue full, packs whatever arrives first. */
#include "tiers/load_pipe.h"

#include "base/num.h"

#include <string.h>

uint64_t load_pipe_bytes(const model *m, uint64_t raw_target, int depth) {
    return load_buffer_bytes(m, raw_target, NUM_MAX(depth, 1));
}

nib_status load_pipe_open(load_pipe *p, const loader *ld, const model *m, uint64_t raw_target, int depth,
                          nib_error *err) {
    memset(p, 0, sizeof *p);
    p->ld = ld;
    nib_status status = load_buffer_init(&p->buffer, m, raw_target, NUM_MAX(depth, 1), err);
    if (status == NIB_OK && depth > 0)
        status =
            read_queue_open(depth, 0, p->buffer.raw, p->buffer.raw_bytes * (uint64_t)depth, &p->queue, err);
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

static nib_status in_turn(load_pipe *p, const load_job *j, nib_error *err) {
    if (!j->w)
        return copy_in_turn(j, err);
    return j->w->vector ? loader_vector(p->ld, j->w, j->to.dst, &p->buffer, err)
                        : loader_matrix(p->ld, j->w, j->first, j->n_row, &j->to, &p->buffer, err);
}

/* Starts the job under a tag whose part of the buffer is free; false: it takes more than one read. */
static bool start(load_pipe *p, int tag, const load_job *j) {
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

static nib_status finish(load_pipe *p, int tag, load_list *l, nib_error *err) {
    const load_job *j = &p->jobs[tag];
    if (j->w)
        loader_pack(j->w, j->first, j->n_row, &j->to, &p->extents[tag], raw_at(p, tag), &p->buffer);
    return l->finished(l, j, err);
}

static nib_status run_in_turn(load_pipe *p, load_list *l, nib_error *err) {
    load_job j;
    while (l->next(l, &j)) {
        NIB_TRY(in_turn(p, &j, err));
        NIB_TRY(l->finished(l, &j, err));
    }
    return NIB_OK;
}

/* One more job: started, or done in turn while the disk works on the others. */
static nib_status take(load_pipe *p, int tag, load_list *l, bool *started, bool *left, nib_error *err) {
    load_job j;
    *started = false;
    *left = l->next(l, &j);
    if (!*left)
        return NIB_OK;
    if (j.w && j.w->vector)
        NIB_TRY(loader_check_vector(j.w, err));
    *started = start(p, tag, &j);
    if (*started)
        return NIB_OK;
    /* its tag's part of the buffer is the first of a buffer of one */
    load_buffer all = p->buffer;
    p->buffer.raw = raw_at(p, tag);
    nib_status status = in_turn(p, &j, err);
    p->buffer = all;
    return status == NIB_OK ? l->finished(l, &j, err) : status;
}

static nib_status drain(load_pipe *p) {
    for (int tag = 0; tag >= 0;)
        (void)read_queue_wait(p->queue, &tag, NULL);
    return NIB_OK;
}

nib_status load_pipe_run(load_pipe *p, load_list *l, nib_error *err) {
    if (!p->queue)
        return run_in_turn(p, l, err);
    int idle[READ_QUEUE_MOST], n_idle = 0, tag = 0;
    bool left = true;
    nib_status status = NIB_OK;
    for (int i = p->buffer.depth - 1; i >= 0; i--)
        idle[n_idle++] = i;
    while (status == NIB_OK && tag >= 0) {
        while (status == NIB_OK && left && n_idle > 0) {
            bool started;
            status = take(p, idle[n_idle - 1], l, &started, &left, err);
            n_idle -= started;
        }
        if (status == NIB_OK)
            status = read_queue_wait(p->queue, &tag, err);
        if (status == NIB_OK && tag >= 0) {
            status = finish(p, tag, l, err);
            idle[n_idle++] = tag;
        }
    }
    drain(p);
    return status;
}
