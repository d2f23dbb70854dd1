/* pager_reader.c - the thread that reads ahead, and its ring of slots. The states and who changes them stand
 * at the top of pager.c. */
#include "tiers/pager_parts.h"

#include "base/mem.h"
#include "base/num.h"

#include <assert.h>
#include <string.h>

enum { RAW_MOST = 1 << 20, RAW_LEAST = 64 << 10 };

typedef enum slot_state { SLOT_EMPTY, SLOT_READING, SLOT_READY, SLOT_FAILED, SLOT_PINNED } slot_state;

typedef struct slot {
    slot_state state;
    int part;
    bool discard; /* being read, but no longer wanted */
    uint8_t *data;
    nib_status status; /* SLOT_FAILED */
    nib_error error;
} slot;

struct reader {
    pager *p;
    pthread_t thread;
    bool started, stop, stalled; /* stalled: an error waits to be told; nothing is read until it was */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    slot slots[READER_SLOTS];
    uint8_t *map;
    uint64_t map_bytes;
    load_pipe pipe;
    int next;              /* place in the order of what is read next */
    int n_head, head_seen; /* times the head comes in a pass, and how often it was read in this one */
};

/* Reads of a part in a few pieces at least, so that packing begins while the rest is read. */
static uint64_t raw_bytes(uint64_t slot_bytes) {
    return NUM_MAX(NUM_MIN(slot_bytes / 4, (uint64_t)RAW_MOST), (uint64_t)RAW_LEAST);
}

uint64_t reader_bytes(const model *m, uint64_t slot_bytes) {
    return READER_SLOTS * slot_bytes + load_pipe_bytes(m, raw_bytes(slot_bytes), READER_DEPTH);
}

/* The place after i in the cycle: the layers, then the head as often as it was announced. */
static int place_after(reader *r, int i) {
    const pager *p = r->p;
    i++;
    if (i == p->n_streamed) {
        r->head_seen++;
        i = p->first_head;
    }
    if (i == p->first_head && (p->first_head == p->n_streamed || r->head_seen >= r->n_head)) {
        r->head_seen = 0;
        i = 0;
    }
    return i;
}

static slot *find_slot(reader *r, slot_state state) {
    for (int i = 0; i < READER_SLOTS; i++)
        if (r->slots[i].state == state)
            return &r->slots[i];
    return NULL;
}

static slot *slot_with(reader *r, int part, slot_state state) {
    for (int i = 0; i < READER_SLOTS; i++)
        if (r->slots[i].state == state && !r->slots[i].discard && r->slots[i].part == part)
            return &r->slots[i];
    return NULL;
}

/* Where a part is or will be. A short cycle has it twice, for this pass and for the next: what is ready comes
 * first. */
static slot *slot_of(reader *r, int part) {
    slot *s = slot_with(r, part, SLOT_READY);
    s = s ? s : slot_with(r, part, SLOT_FAILED);
    return s ? s : slot_with(r, part, SLOT_READING);
}

static void *reader_main(void *arg) {
    reader *r = arg;
    pthread_mutex_lock(&r->lock);
    while (!r->stop) {
        slot *s = r->stalled ? NULL : find_slot(r, SLOT_EMPTY);
        if (!s) {
            pthread_cond_wait(&r->changed, &r->lock);
            continue;
        }
        s->state = SLOT_READING;
        s->part = r->p->streamed[r->next];
        s->discard = false;
        r->next = place_after(r, r->next);
        pthread_mutex_unlock(&r->lock);
        nib_error error = {NIB_OK, ""};
        nib_status status = pager_read_part(r->p, &r->p->parts[s->part], s->data, &r->pipe, &error);
        pthread_mutex_lock(&r->lock);
        s->status = status;
        s->error = error;
        s->state = s->discard ? SLOT_EMPTY : status == NIB_OK ? SLOT_READY : SLOT_FAILED;
        r->stalled = r->stalled || s->state == SLOT_FAILED;
        s->discard = false;
        pthread_cond_broadcast(&r->changed);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

nib_status reader_open(pager *p, reader **out, nib_error *err) {
    reader *r = mem_calloc(1, sizeof *r);
    if (!r)
        return nib_fail_nomem(err, sizeof *r, "the reader");
    r->p = p;
    r->n_head = 1;
    r->map_bytes = READER_SLOTS * p->slot_bytes;
    r->map = mem_map(r->map_bytes);
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->changed, NULL);
    nib_status status = r->map ? NIB_OK : nib_fail_nomem(err, r->map_bytes, "the ring of streamed weights");
    if (status == NIB_OK)
        status = load_pipe_open(&r->pipe, p->loader, p->m, raw_bytes(p->slot_bytes), READER_DEPTH, err);
    if (status == NIB_OK) { /* it is charged: let it be resident from here on */
        memset(r->map, 0, r->map_bytes);
        memset(r->pipe.buffer.map, 0, r->pipe.buffer.bytes);
    }
    for (int i = 0; i < READER_SLOTS; i++)
        r->slots[i].data = r->map + (uint64_t)i * p->slot_bytes;
    if (status == NIB_OK) {
        int code = pthread_create(&r->thread, NULL, reader_main, r);
        r->started = code == 0;
        if (code)
            status = nib_fail_errno(err, "start the reader thread", "pthread_create", code);
    }
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
    load_pipe_close(&r->pipe);
    if (r->map)
        mem_unmap(r->map, r->map_bytes);
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->changed);
    mem_free(r);
}

/* Something else is wanted than what was foreseen (a pass that was cancelled, an error before): what is ready
 * is dropped and the reader goes on from the part that is asked for. */
static void turn_to(reader *r, int part) {
    for (int i = 0; i < READER_SLOTS; i++) {
        slot *s = &r->slots[i];
        if (s->state == SLOT_READY || s->state == SLOT_FAILED)
            s->state = SLOT_EMPTY;
        else if (s->state == SLOT_READING)
            s->discard = true;
    }
    r->stalled = false;
    r->next = r->p->parts[part].order;
    r->head_seen = 0;
    pthread_cond_broadcast(&r->changed);
}

nib_status reader_pin(reader *r, int part, uint8_t **data, double *wait_s, nib_error *err) {
    nib_status status = NIB_OK;
    double begin = time_now();
    pthread_mutex_lock(&r->lock);
    slot *s = slot_of(r, part);
    if (!s)
        turn_to(r, part);
    while (!(s = slot_of(r, part)) || s->state == SLOT_READING)
        pthread_cond_wait(&r->changed, &r->lock);
    assert(s->state == SLOT_READY || s->state == SLOT_FAILED);
    if (s->state == SLOT_READY) {
        s->state = SLOT_PINNED;
        *data = s->data;
    } else {
        status = s->status;
        if (err)
            *err = s->error;
        s->state = SLOT_EMPTY; /* the reader stays stalled until the next pin asks for something */
        r->next = r->p->parts[part].order;
    }
    pthread_mutex_unlock(&r->lock);
    *wait_s += time_now() - begin;
    return status;
}

void reader_unpin(reader *r, int part) {
    pthread_mutex_lock(&r->lock);
    slot *s = slot_with(r, part, SLOT_PINNED);
    assert(s);
    s->state = SLOT_EMPTY;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

void reader_expect(reader *r, int n_head) {
    pthread_mutex_lock(&r->lock);
    r->n_head = n_head;
    pthread_mutex_unlock(&r->lock);
}
