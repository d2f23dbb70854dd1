/* pager_reader.c - the thread that prefetches pages into the ring (pager_ring.c). The reader takes pages in
 * the order of their visits as slots become empty, so several reads are in flight. A page is read whole if it
 * is contiguous in the model's files or the packed file. A page from the packed file is verified when it is
 * first read. Pages from the model's files are packed by this thread while no read is complete; if more than
 * one is waiting to be packed, the thread that waits for a page packs too. At the end of a pass the reader
 * continues with the next pass, so the first pages of a token are read while the previous token's head is
 * computed and sampled. */
#include "weights/pager_ring.h"

#include "base/mem.h"
#include "base/thread.h"

#include <string.h>

/* ---- reading ---- */

static load_extent extent_of(const reader *r, const slot *s, int i) {
    const weight_page *page = &r->p->layout.pages[s->page];
    uint64_t begin;
    if (!r->p->packed)
        return load_reads_extent(&s->reads, i, r->p->loader);
    file *f = packed_image(r->p->packed, &begin);
    return (load_extent){f, begin + page->image, page->bytes, page->bytes};
}

/* The next read of the oldest page that has unsent reads, else of a new page; NULL: none. */
static slot *next_read(reader *r, int *read) {
    if (r->stop || r->lost)
        return NULL;
    slot *s;
    while (!(s = page_ring_to_send(&r->ring)))
        if (!reader_take(r))
            return NULL;
    *read = s->n_sent++;
    s->n_flight++;
    return s;
}

static void submit(reader *r, slot *s, int read) {
    const int tag = r->idle[--r->n_idle];
    const load_extent e = extent_of(r, s, read);
    uint8_t *to = s->buffer + (s->reads.n ? s->reads.list[read].at : 0);
    r->sent[tag] = (in_flight){(int)(s - r->ring.slots), read};
    read_queue_submit(r->queue, tag,
                      &(read_request){e.f, to, e.offset, file_is_direct(e.f) ? e.n_byte : e.min, e.min});
}

/* Reads a page that takes too many reads: its rows are read to a spare buffer and packed directly to their
 * place. */
static void read_in_turn(reader *r, slot *s) {
    pthread_mutex_lock(&r->lock);
    while (r->ring.n_spare == 0) /* another thread uses it for packing */
        pthread_cond_wait(&r->changed, &r->lock);
    uint8_t *through = r->ring.spare[--r->ring.n_spare];
    s->state = SLOT_PACKING;
    s->n_flight = 0;
    r->ring.n_packing++;
    pthread_mutex_unlock(&r->lock);
    nib_error error = {NIB_OK, ""};
    load_buffer buffer = r->scratch[0];
    buffer.raw = through;
    buffer.raw_bytes = r->each;
    const nib_status status = pager_page_in_turn(r->p, s->page, s->buffer, &buffer, &error);
    atomic_fetch_add(&r->p->bytes_streamed, pager_page_file_bytes(r->p, s->page));
    pthread_mutex_lock(&r->lock);
    r->ring.spare[r->ring.n_spare++] = through;
    r->ring.n_packing--;
    s->status = status;
    s->error = error;
    page_ring_finish(&r->ring, s);
    reader_notify(r);
    pthread_mutex_unlock(&r->lock);
}

/* Starts as many reads as possible, then wakes threads that wait for arrived pages. */
static void fill(reader *r) {
    int read = 0;
    r->looked = false;
    for (;;) {
        pthread_mutex_lock(&r->lock);
        slot *s = r->n_idle > 0 ? next_read(r, &read) : NULL;
        pthread_mutex_unlock(&r->lock);
        if (s && !s->in_turn) {
            submit(r, s, read);
            continue;
        }
        read_queue_send(r->queue);
        if (!s)
            break;
        read_in_turn(r, s);
    }
    pthread_mutex_lock(&r->lock);
    reader_notify(r);
    pthread_mutex_unlock(&r->lock);
}

/* Waits for a read and verifies it, without the lock, because verifying takes time. */
static void reap(reader *r) {
    pager *p = r->p;
    nib_error error = {NIB_OK, ""};
    int tag;
    const nib_status status = read_queue_wait(r->queue, &tag, &error);
    const in_flight which = r->sent[tag];
    r->idle[r->n_idle++] = tag;
    slot *s = &r->ring.slots[which.slot];
    const bool from_packed = p->packed != NULL;
    const load_extent e = extent_of(r, s, which.read);
    const bool right = status != NIB_OK || !from_packed || p->state[s->page].checked ||
                       packed_check(p->packed, page_layout_vector_units(&p->layout) + (uint64_t)s->page,
                                    s->buffer, e.n_byte);
    atomic_fetch_add(&p->bytes_streamed, from_packed ? e.n_byte : s->reads.list[which.read].useful);
    pthread_mutex_lock(&r->lock);
    r->read_s = read_queue_busy(r->queue);
    s->n_flight--;
    p->state[s->page].checked = from_packed && status == NIB_OK && right;
    if (from_packed && (status != NIB_OK || !right)) {
        s->again = r->lost = true;
        r->damaged = r->damaged || !right;
    } else if (status != NIB_OK && s->status == NIB_OK) {
        s->status = status;
        s->error = error;
    }
    page_ring_finish(&r->ring, s);
    pthread_mutex_unlock(&r->lock);
}

double reader_busy(reader *r) {
    pthread_mutex_lock(&r->lock);
    const double seconds = r->read_s;
    pthread_mutex_unlock(&r->lock);
    return seconds;
}

/* ---- the thread ---- */

/* Stops using the packed file. Called with the lock while no read is in flight; its pages are read from the
 * model's files instead. */
static void leave_packed(reader *r) {
    pager_packed_drop(r->p, r->damaged);
    atomic_store(&r->p->packed_lost, true);
    for (int i = 0; i < r->p->streamed.n_slot; i++) {
        slot *s = &r->ring.slots[i];
        if (s->state != SLOT_READING)
            continue;
        reader_plan(r, s);
        page_ring_finish(&r->ring, s); /* a discarded page is not read again */
    }
    r->lost = r->damaged = false;
    reader_notify(r);
}

/* Whether a read could be started. */
static bool can_read(reader *r) {
    return page_ring_to_send(&r->ring) || page_ring_has_free_slot(&r->ring);
}

typedef enum turn { TURN_FILL, TURN_LOOK, TURN_REAP, TURN_STOP } turn;

/* While no read is complete: packs a page, or returns the reader's next action, for which it may wait. */
static turn pack_or_wait(reader *r) {
    turn next = TURN_LOOK;
    int n_arrived = 0;
    pthread_mutex_lock(&r->lock);
    for (int i = 0; i < r->p->streamed.n_slot; i++)
        n_arrived += r->ring.slots[i].state == SLOT_ARRIVED;
    if (n_arrived > 1)
        pthread_cond_broadcast(&r->changed); /* waiting threads may help to pack */
    if (r->stop)
        next = TURN_STOP;
    else if (reader_pack(r, 0))
        next = TURN_LOOK;
    else if (r->n_idle < READER_DEPTH)
        next = TURN_REAP;
    else if (r->lost)
        leave_packed(r);
    else if (can_read(r))
        next = TURN_FILL;
    else
        pthread_cond_wait(&r->changed, &r->lock);
    pthread_mutex_unlock(&r->lock);
    return next;
}

/* Reads are started when others have completed, or when none is in flight, and not whenever a slot becomes
 * empty. Many virtual disks report completions only when all submitted reads are done. A read that is added
 * late would therefore delay the report of finished ones, until every slot is full and the disk is idle. So
 * half of the ring is read while the other half is used. */
static void *reader_main(void *arg) {
    reader *r = arg;
    thread_short_slices();
    for (turn next = TURN_FILL; next != TURN_STOP;) {
        if (next == TURN_FILL)
            fill(r);
        if (next == TURN_REAP || read_queue_ready(r->queue)) {
            reap(r);
            next = TURN_FILL;
        } else {
            next = pack_or_wait(r);
        }
    }
    return NULL;
}

/* ---- opening and closing ---- */

static nib_status start(reader *r, nib_error *err) {
    pager *p = r->p;
    const uint64_t scratch = 2 * load_buffer_bytes(p->layout.of, 0, 0);
    const ring_shape shape = ring_shape_of(&p->layout);
    r->each = shape.each;
    p->streamed.n_slot = shape.n_slot;
    NIB_TRY(memory_region_open(&r->buffers, device_host(), p->ledger, NIB_OWNER_STAGING, shape.bytes, false,
                               "the ring of streamed weights", err));
    NIB_TRY(ledger_charge(p->ledger, PLACE_RAM, NIB_OWNER_STAGING, scratch, err));
    r->charged = scratch;
    memset(r->buffers.at, 0, r->buffers.bytes); /* make the charged memory resident now */
    page_ring_open(&r->ring, &p->streamed, p->layout.n_block, p->state, p->layout.n_page, r->buffers.at,
                   r->each);
    for (int i = 0; i < 2; i++) {
        NIB_TRY(load_buffer_init(&r->scratch[i], p->layout.of, 0, 0, NULL, err));
        memset(r->scratch[i].map, 0, r->scratch[i].bytes);
    }
    NIB_TRY(read_queue_open(READER_DEPTH, 0, r->buffers.at, r->buffers.bytes, &r->queue, err));
    while (r->n_idle < READER_DEPTH) {
        r->idle[r->n_idle] = r->n_idle;
        r->n_idle++;
    }
    const int code = pthread_create(&r->thread, NULL, reader_main, r);
    r->started = code == 0;
    return code ? nib_fail_errno(err, "cannot start the reader thread:", "pthread_create", code) : NIB_OK;
}

nib_status reader_open(pager *p, reader **out, nib_error *err) {
    reader *r = mem_calloc(1, sizeof *r);
    if (!r)
        return nib_fail_nomem(err, sizeof *r, "the reader");
    r->p = p;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->changed, NULL);
    const nib_status status = start(r, err);
    if (status != NIB_OK) {
        reader_close(r);
        return status;
    }
    *out = r;
    return NIB_OK;
}

void reader_close(reader *r) {
    if (!r)
        return;
    if (r->started) {
        pthread_mutex_lock(&r->lock);
        r->stop = true;
        pthread_cond_broadcast(&r->changed);
        pthread_mutex_unlock(&r->lock);
        pthread_join(r->thread, NULL);
    }
    read_queue_close(r->queue);
    for (int i = 0; i < 2; i++)
        load_buffer_deinit(&r->scratch[i]);
    ledger_release(r->p->ledger, PLACE_RAM, NIB_OWNER_STAGING, r->charged);
    memory_region_close(&r->buffers);
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->changed);
    mem_free(r);
}
