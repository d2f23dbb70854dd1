/* load_pipe.c - keeps the queue full, and packs what arrives first. */
#include "weights/load_pipe.h"

#include "base/num.h"

#include <string.h>

uint64_t load_pipe_bytes(const layout *lay, uint64_t raw_target, int depth) {
    return load_buffer_bytes(lay, raw_target, NUM_MAX(depth, 1));
}

nib_status load_pipe_open(load_pipe *p, const loader *ld, const layout *lay, uint64_t raw_target, int depth,
                          uint8_t *raw, void *into, uint64_t n_into, nib_error *err) {
    memset(p, 0, sizeof *p);
    p->ld = ld;
    nib_status status = load_buffer_init(&p->buffer, lay, raw_target, NUM_MAX(depth, 1), raw, err);
    if (status == NIB_OK && depth > 0)
        status = read_queue_open(depth, 0, into ? into : p->buffer.raw,
                                 into ? n_into : p->buffer.raw_bytes * (uint64_t)depth, &p->queue, err);
    for (int i = depth - 1; i >= 0; i--)
        p->idle[p->n_idle++] = i;
    p->max_flying = NUM_MAX(depth / 2, 1);
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

/* Does a job synchronously: without a queue, or if the job takes more than one read. */
static nib_status in_turn(const load_pipe *p, load_list *l, const load_job *j, load_buffer *b,
                          nib_error *err) {
    const load_extent *e = j->in_runs ? &j->span.from : &j->bytes;
    if (j->w)
        return j->w->vector ? loader_vector(p->ld, j->w, j->to.dst, b, err)
                            : loader_matrix(p->ld, j->w, j->first, j->n_row, &j->to, b, err);
    NIB_TRY(file_read_at(e->f, j->in_runs ? b->raw : j->to.dst, e->offset, e->min, err));
    if (j->in_runs)
        l->pack(l, j, b->raw, b);
    return NIB_OK;
}

/* Submits the job's read under a free tag; false: the job takes more than one read. */
static bool submit(load_pipe *p, int tag, const load_job *j) {
    load_extent *e = &p->extents[tag];
    *e = j->in_runs ? j->span.from : j->bytes;
    if (j->w && !loader_extent(p->ld, j->w, j->first, j->n_row, p->buffer.raw_bytes, e))
        return false;
    p->jobs[tag] = *j;
    read_request what = {e->f, j->w || j->in_runs ? raw_at(p, tag) : j->to.dst, e->offset, e->n_byte, e->min};
    if (!file_is_direct(e->f))
        what.n_byte = e->min;
    read_queue_submit(p->queue, tag, &what);
    return true;
}

/* Starts a job. *done: it took more than one read, so it was done synchronously, while the disk works on the
 * others. */
static nib_status start(load_pipe *p, load_list *l, const load_job *j, bool *done, nib_error *err) {
    const int tag = p->idle[p->n_idle - 1];
    *done = false;
    if (j->w && j->w->vector)
        NIB_TRY(loader_check_vector(j->w, err));
    if (submit(p, tag, j)) {
        p->n_idle--;
        p->n_flying++;
        return NIB_OK;
    }
    *done = true;
    read_queue_send(p->queue);
    load_buffer one = p->buffer; /* a buffer of depth 1 that consists of the tag's part */
    one.raw = raw_at(p, tag);
    return in_turn(p, l, j, &one, err);
}

/* Waits for a read, and collects all reads that are complete; returns their number. *status: the error of the
 * last one if it failed. */
static int arrived(load_pipe *p, int tags[MAX_READ_QUEUE], nib_status *status, nib_error *err) {
    int n = 0;
    do {
        *status = read_queue_wait(p->queue, &tags[n], err);
        if (tags[n] < 0)
            break;
        n++;
        p->n_flying--;
    } while (*status == NIB_OK && read_queue_ready(p->queue));
    return n;
}

static nib_status run_in_turn(load_pipe *p, load_list *l, nib_error *err) {
    load_job j;
    while (l->next(l, &j)) {
        NIB_TRY(in_turn(p, l, &j, &p->buffer, err));
        NIB_TRY(l->finished(l, &j, err));
    }
    return NIB_OK;
}

/* Starts jobs while tags are free and the list has jobs. */
static nib_status fill(load_pipe *p, load_list *l, nib_error *err) {
    load_job j;
    bool done;
    while (p->n_idle > 0 && p->n_flying < p->max_flying && l->next(l, &j)) {
        NIB_TRY(start(p, l, &j, &done, err));
        if (done)
            NIB_TRY(l->finished(l, &j, err));
    }
    read_queue_send(p->queue);
    return NIB_OK;
}

static nib_status use(load_pipe *p, load_list *l, int tag, nib_error *err) {
    const load_job *j = &p->jobs[tag];
    if (j->in_runs)
        l->pack(l, j, raw_at(p, tag), &p->buffer);
    else if (j->w)
        loader_pack(j->w, j->first, j->n_row, &j->to, &p->extents[tag], raw_at(p, tag), &p->buffer);
    return l->finished(l, j, err);
}

/* Waits for reads and packs them. *some: reads were in flight. */
static nib_status turn(load_pipe *p, load_list *l, bool *some, nib_error *err) {
    int tags[MAX_READ_QUEUE];
    nib_status status;
    const int n = arrived(p, tags, &status, err);
    *some = n > 0;
    if (status == NIB_OK)
        status = fill(p, l, err); /* keep the disk busy while these are packed */
    for (int i = 0; i < n; i++) {
        if (status == NIB_OK)
            status = use(p, l, tags[i], err);
        p->idle[p->n_idle++] = tags[i];
    }
    return status;
}

nib_status load_pipe_run(load_pipe *p, load_list *l, nib_error *err) {
    if (!p->queue)
        return run_in_turn(p, l, err);
    bool some = true;
    nib_status status = NIB_OK, ignored;
    while (status == NIB_OK && some) {
        status = fill(p, l, err);
        while (status == NIB_OK && l->idle && !read_queue_ready(p->queue) && l->idle(l))
            continue;
        if (status == NIB_OK)
            status = turn(p, l, &some, err);
    }
    for (int tags[MAX_READ_QUEUE], n; status != NIB_OK && (n = arrived(p, tags, &ignored, NULL)) > 0;)
        while (n > 0)
            p->idle[p->n_idle++] = tags[--n];
    return status;
}
