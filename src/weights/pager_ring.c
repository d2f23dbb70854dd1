/* pager_ring.c - acquires and releases pages of the ring; functions that these share with the reader thread.
 */
#include "weights/pager_ring.h"

void reader_notify(reader *r) {
    if (r->ring.changed)
        pthread_cond_broadcast(&r->changed);
    r->ring.changed = false;
}

void reader_plan(reader *r, slot *s) {
    uint64_t bytes;
    s->n_sent = 0;
    s->n_read = 1;
    s->packs = !r->p->packed;
    s->in_turn = false;
    s->again = false;
    s->reads.n = 0;
    if (r->p->packed)
        return;
    s->in_turn = !pager_page_reads(r->p, s->page, &s->reads, &bytes) || bytes > r->each;
    s->n_read = s->in_turn ? 1 : s->reads.n;
}

slot *reader_take(reader *r) {
    slot *s = page_ring_assign(&r->ring);
    if (!s)
        return NULL;
    reader_plan(r, s);
    if (!r->looked)
        s->status = loader_check_unchanged(r->p->loader, &s->error);
    r->looked = s->status == NIB_OK;
    page_ring_finish(&r->ring, s);
    return s;
}

bool reader_pack(reader *r, int who) {
    slot *s = page_ring_pack(&r->ring);
    if (!s)
        return false;
    pthread_mutex_unlock(&r->lock);
    pager_page_pack(r->p, s->page, &s->reads, s->buffer, s->packed, &r->scratch[who], 0, 1);
    pthread_mutex_lock(&r->lock);
    page_ring_packed(&r->ring, s);
    reader_notify(r);
    return true;
}

void reader_begin(reader *r, const visits *pass) {
    pthread_mutex_lock(&r->lock);
    page_ring_begin(&r->ring, pass);
    reader_notify(r);
    pthread_mutex_unlock(&r->lock);
}

void reader_memory(const reader *r, void **at, uint64_t *bytes) {
    *at = r->buffers.at;
    *bytes = r->buffers.bytes;
}

/* Waits for the copies of all pages that are leaving. */
static nib_status let_go(reader *r, nib_error *err) {
    nib_status status = NIB_OK;
    for (int i = 0; i < r->n_leaving; i++) {
        const page_leaving *x = &r->leaving[i];
        const nib_status ended = x->on->kind->wait(x->on, x->copied, status == NIB_OK ? err : NULL);
        status = status == NIB_OK ? ended : status;
    }
    pthread_mutex_lock(&r->lock);
    while (r->n_leaving > 0)
        page_ring_left(&r->ring, r->leaving[--r->n_leaving].from);
    reader_notify(r);
    pthread_mutex_unlock(&r->lock);
    return status;
}

void reader_end(reader *r) {
    let_go(r, NULL);
    pthread_mutex_lock(&r->lock);
    page_ring_end(&r->ring);
    reader_notify(r);
    pthread_mutex_unlock(&r->lock);
}

nib_status reader_pin(reader *r, const page_cursor *at, uint8_t **data, double *wait_s, nib_error *err) {
    nib_status status = NIB_OK;
    slot *s;
    double begin = time_now();
    pthread_mutex_lock(&r->lock);
    while (!(s = page_ring_acquire(&r->ring, at))) {
        reader_notify(r);
        if (r->n_leaving > 0) { /* slots become empty */
            pthread_mutex_unlock(&r->lock);
            NIB_TRY(let_go(r, err));
            pthread_mutex_lock(&r->lock);
        } else if (!reader_pack(r, 1))
            pthread_cond_wait(&r->changed, &r->lock);
    }
    if (s->state == SLOT_PINNED) {
        *data = s->buffer;
    } else {
        status = s->status;
        if (err)
            *err = s->error;
        page_ring_clear_failed(&r->ring, s);
    }
    pthread_mutex_unlock(&r->lock);
    *wait_s += time_now() - begin;
    return status;
}

nib_status reader_unpin(reader *r, const page_cursor *at, device *on, nib_error *err) {
    /* half of the ring leaves, the other half is read meanwhile */
    const bool full = r->n_leaving >= r->p->streamed.n_slot / 2;
    device_mark copied = {.at = 0};
    nib_status status = on && full ? let_go(r, err) : NIB_OK;
    if (on && status == NIB_OK)
        status = on->kind->mark(on, DEVICE_LOAD_WEIGHTS, &copied, err);
    const bool leaving = on && status == NIB_OK; /* after an error of a mark nothing is running */
    pthread_mutex_lock(&r->lock);
    slot *s = page_ring_release(&r->ring, at, leaving);
    if (leaving)
        r->leaving[r->n_leaving++] = (page_leaving){s, on, copied};
    reader_notify(r);
    pthread_mutex_unlock(&r->lock);
    return status;
}
