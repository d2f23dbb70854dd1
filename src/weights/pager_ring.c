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

void reader_end(reader *r) {
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
        if (!reader_pack(r, 1))
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

void reader_unpin(reader *r, const page_cursor *at) {
    pthread_mutex_lock(&r->lock);
    page_ring_release(&r->ring, at);
    reader_notify(r);
    pthread_mutex_unlock(&r->lock);
}
