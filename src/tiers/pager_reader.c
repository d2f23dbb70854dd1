/* pager_reader.c - the thread that reads ahead, and its ring of slots. The states and who changes them stand
 * at the top of pager.c.
 *
 * The reader takes pages in the order of their visits as slots become empty, so several are read at a time.
 * Straight into their slots from a packed file, which is checked the first time a page comes; otherwise the
 * reads of a page go to staging, and this thread packs what has arrived while others are in flight. It knows
 * where a pass ends and goes on with the next one: the first pages of a token are read while the last one's
 * head is computed and sampled. */
#include "tiers/pager_parts.h"

#include "base/mem.h"
#include "base/num.h"

#include <assert.h>
#include <string.h>

enum {
    RAW_MOST = 512 << 10,
    RAW_LEAST = 64 << 10,
    WINDOW = 4 /* slots that pages pass through while others wait for the next cell */
};

typedef enum slot_state { SLOT_EMPTY, SLOT_READING, SLOT_READY, SLOT_FAILED, SLOT_PINNED } slot_state;

typedef struct slot {
    slot_state state;
    int page, visit;
    uint64_t order; /* when it was taken: a short cycle has a page twice, for this pass and for the next */
    uint8_t *data;
    page_jobs jobs;
    int n_flight;      /* jobs of it that were started and are not finished */
    bool all_given;    /* no job is left to be started */
    bool discard;      /* no longer wanted */
    bool again;        /* the packed file failed it: to be read once more */
    nib_status status; /* of the first job that failed */
    nib_error error;
} slot;

/* A visit of the cycle, in which cell of its block. */
typedef struct position {
    int block, visit, cell;
} position;

struct reader {
    pager *p;
    pthread_t thread;
    bool started;
    uint8_t *map; /* the slots and what the pipe reads to; first that of both which the disk fills */
    uint64_t map_bytes;
    load_pipe pipe;
    pthread_mutex_t lock; /* everything below */
    pthread_cond_t changed;
    bool stop, stalled; /* stalled: an error waits to be told; no page is taken until it was */
    bool lost, damaged; /* the packed file failed: nothing more is read from it */
    slot slots[READER_SLOTS];
    uint64_t n_taken;
    position next;
    int n_cell, n_head; /* of the pass */
};

/* A page comes in a few reads, so that packing begins while the rest is read. */
uint64_t reader_part(uint64_t page_most) {
    return NUM_MAX(NUM_MIN(page_most / 4, (uint64_t)RAW_MOST), (uint64_t)RAW_LEAST);
}

uint64_t reader_bytes(const model *m, uint64_t page_most) {
    return READER_SLOTS * page_most + load_pipe_bytes(m, reader_part(page_most), READER_DEPTH);
}

/* ---- the order ---- */

static int n_visit(const reader *r, int b) {
    return r->p->first_streamed[b + 1] - r->p->first_streamed[b];
}

/* How many of a block's first pages stay in the ring between two cells. */
static int n_staying(const reader *r, int b) {
    const int n = n_visit(r, b);
    return n <= READER_SLOTS ? n : READER_SLOTS - WINDOW;
}

static int n_cell_of(const reader *r, int b) {
    return b == r->p->layout.n_block - 1 ? r->n_head : r->n_cell;
}

/* The first visit of the next block that has one, in this pass or the next. */
static position next_block(const reader *r, int b) {
    const int n = r->p->layout.n_block;
    for (int i = 1; i <= n; i++) {
        const int at = (b + i) % n;
        if (n_visit(r, at) > 0 && (n_cell_of(r, at) > 0 || i == n))
            return (position){at, r->p->first_streamed[at], 0};
    }
    return (position){b, r->p->first_streamed[b], 0};
}

static void advance(reader *r) {
    position *at = &r->next;
    if (++at->visit < r->p->first_streamed[at->block + 1])
        return;
    const int staying = n_staying(r, at->block);
    if (++at->cell < n_cell_of(r, at->block) && staying < n_visit(r, at->block))
        at->visit = r->p->first_streamed[at->block] + staying;
    else
        *at = next_block(r, at->block);
}

/* ---- slots ---- */

/* The oldest slot of this page in one of the states of `mask`. */
static slot *find(reader *r, int page, unsigned mask) {
    slot *found = NULL;
    for (int i = 0; i < READER_SLOTS; i++) {
        slot *s = &r->slots[i];
        if ((mask & (1u << s->state)) && (page < 0 || s->page == page) && !s->discard &&
            (!found || s->order < found->order))
            found = s;
    }
    return found;
}

/* Where a page is or will be. */
static slot *slot_of(reader *r, int page) {
    return find(r, page, 1u << SLOT_READY | 1u << SLOT_FAILED | 1u << SLOT_READING);
}

/* Nothing of this slot is in flight, perhaps: what becomes of it. */
static void settle(reader *r, slot *s) {
    if (s->state != SLOT_READING || s->n_flight > 0)
        return;
    if (s->discard) {
        s->state = SLOT_EMPTY;
        s->discard = false;
    } else if (s->status != NIB_OK) {
        s->state = SLOT_FAILED;
        r->stalled = true;
    } else if (s->all_given && !s->again) {
        s->state = SLOT_READY;
        r->p->state[s->page].checked = r->p->packed != NULL;
    } else {
        return;
    }
    pthread_cond_broadcast(&r->changed);
}

/* The next page of the cycle to an empty slot. */
static slot *take_page(reader *r) {
    slot *s = find(r, -1, 1u << SLOT_EMPTY);
    if (!s || r->stalled)
        return NULL;
    *s = (slot){.state = SLOT_READING,
                .page = r->p->streamed[r->next.visit],
                .visit = r->next.visit,
                .order = r->n_taken++,
                .data = s->data};
    s->jobs = (page_jobs){.page = s->page, .dst = s->data};
    advance(r);
    s->status = loader_check_unchanged(r->p->loader, &s->error);
    settle(r, s);
    return s;
}

/* A job of the oldest page that has one, of a new page when none has. */
static bool next_job(reader *r, load_job *out) {
    if (r->lost)
        return false;
    for (;;) {
        slot *oldest = NULL;
        for (int i = 0; i < READER_SLOTS; i++) {
            slot *s = &r->slots[i];
            if (s->state == SLOT_READING && !s->all_given && !s->discard && s->status == NIB_OK &&
                (!oldest || s->order < oldest->order))
                oldest = s;
        }
        if (!oldest) {
            if (!take_page(r))
                return false;
            continue;
        }
        if (pager_page_next(r->p, &oldest->jobs, &r->pipe.buffer, out)) {
            out->owner = (int)(oldest - r->slots);
            oldest->n_flight++;
            return true;
        }
        oldest->all_given = true;
        settle(r, oldest);
    }
}

/* The packed file is given up; what it was to bring comes from the model's files. */
static void leave_packed(reader *r) {
    pager_packed_drop(r->p, r->damaged);
    atomic_store(&r->p->packed_lost, true);
    for (int i = 0; i < READER_SLOTS; i++) {
        slot *s = &r->slots[i];
        if (s->state != SLOT_READING)
            continue;
        s->jobs = (page_jobs){.page = s->page, .dst = s->data};
        s->all_given = s->again = false;
        settle(r, s); /* what is discarded is not read again */
    }
    r->lost = r->damaged = false;
}

static bool looks_right(const reader *r, const load_job *j) {
    const pager *p = r->p;
    return j->w || p->state[r->slots[j->owner].page].checked ||
           packed_check(p->packed, j->unit, j->to.dst, j->bytes.n_byte);
}

/* Without the lock: checking takes time. */
static void finished(reader *r, const load_job *j, nib_status status, const nib_error *error) {
    const bool right = status != NIB_OK || looks_right(r, j);
    atomic_fetch_add(&r->p->bytes_streamed, pager_job_bytes(j));
    pthread_mutex_lock(&r->lock);
    slot *s = &r->slots[j->owner];
    s->n_flight--;
    if (!j->w && (status != NIB_OK || !right)) {
        s->again = r->lost = true;
        r->damaged = r->damaged || !right;
    } else if (status != NIB_OK && s->status == NIB_OK) {
        s->status = status;
        s->error = *error;
    }
    settle(r, s);
    pthread_mutex_unlock(&r->lock);
}

/* Starts what there is a place for. */
static void fill(reader *r) {
    load_job j;
    while (load_pipe_has_room(&r->pipe)) {
        pthread_mutex_lock(&r->lock);
        const bool some = !r->stop && next_job(r, &j);
        pthread_mutex_unlock(&r->lock);
        if (!some)
            return;
        nib_error error = {NIB_OK, ""};
        bool done;
        const nib_status status = load_pipe_start(&r->pipe, &j, &done, &error);
        if (done || status != NIB_OK)
            finished(r, &j, status, &error);
    }
}

/* Waits until something can be started; nothing is in flight. False: the pager is being closed. */
static bool wait_for_work(reader *r) {
    pthread_mutex_lock(&r->lock);
    if (r->lost)
        leave_packed(r);
    while (!r->stop && !find(r, -1, 1u << SLOT_READING) && (r->stalled || !find(r, -1, 1u << SLOT_EMPTY)))
        pthread_cond_wait(&r->changed, &r->lock);
    const bool stop = r->stop;
    pthread_mutex_unlock(&r->lock);
    return !stop;
}

static void *reader_main(void *arg) {
    reader *r = arg;
    do {
        load_job j;
        nib_status status;
        nib_error error = {NIB_OK, ""};
        fill(r);
        while (load_pipe_finish(&r->pipe, &j, &status, &error)) {
            finished(r, &j, status, &error);
            fill(r);
        }
    } while (wait_for_work(r));
    return NULL;
}

/* ---- opening and closing ---- */

static nib_status start(reader *r, nib_error *err) {
    pager *p = r->p;
    const uint64_t page = p->layout.page_most, raw = reader_part(page);
    const uint64_t slots = READER_SLOTS * page, raws = READER_DEPTH * load_raw_bytes(p->m, raw);
    r->map_bytes = slots + raws;
    r->map = mem_map(r->map_bytes);
    if (!r->map)
        return nib_fail_nomem(err, r->map_bytes, "the ring of streamed weights");
    uint8_t *first_slot = p->packed ? r->map : r->map + raws,
            *first_raw = p->packed ? r->map + slots : r->map;
    NIB_TRY(
        load_pipe_open(&r->pipe, p->loader, p->m, raw, READER_DEPTH, first_raw, r->map, r->map_bytes, err));
    memset(r->map, 0, r->map_bytes); /* it is charged: let it be resident from here on */
    memset(r->pipe.buffer.map, 0, r->pipe.buffer.bytes);
    for (int i = 0; i < READER_SLOTS; i++)
        r->slots[i].data = first_slot + (uint64_t)i * page;
    const int code = pthread_create(&r->thread, NULL, reader_main, r);
    r->started = code == 0;
    return code ? nib_fail_errno(err, "start the reader thread", "pthread_create", code) : NIB_OK;
}

nib_status reader_open(pager *p, reader **out, nib_error *err) {
    reader *r = mem_calloc(1, sizeof *r);
    if (!r)
        return nib_fail_nomem(err, sizeof *r, "the reader");
    r->p = p;
    r->n_cell = r->n_head = 1;
    r->next = next_block(r, p->layout.n_block - 1);
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
    load_pipe_close(&r->pipe);
    if (r->map)
        mem_unmap(r->map, r->map_bytes);
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->changed);
    mem_free(r);
}

/* ---- pinning ---- */

/* Something else is wanted than what was foreseen (a pass that was cancelled, or begins elsewhere; an error
 * before): what is ready is dropped and the reader goes on from the page that is asked for. */
static void turn_to(reader *r, position where) {
    for (int i = 0; i < READER_SLOTS; i++) {
        slot *s = &r->slots[i];
        if (s->state == SLOT_READY || s->state == SLOT_FAILED) {
            s->state = SLOT_EMPTY;
        } else if (s->state == SLOT_READING) {
            s->discard = true;
            settle(r, s);
        }
    }
    r->stalled = false;
    r->next = where;
    pthread_cond_broadcast(&r->changed);
}

/* The reader will not come to it: its next page is another one, or slots are full of what nobody comes back
 * to. */
static bool is_not_foreseen(reader *r, int visit) {
    bool room = false;
    for (int i = 0; i < READER_SLOTS; i++)
        room = room || r->slots[i].state == SLOT_EMPTY || r->slots[i].discard;
    return !slot_of(r, r->p->streamed[visit]) && (r->stalled || r->next.visit != visit || !room);
}

nib_status reader_pin(reader *r, int b, int visit, int cell, uint8_t **data, double *wait_s, nib_error *err) {
    const int page = r->p->streamed[visit];
    nib_status status = NIB_OK;
    slot *s;
    double begin = time_now();
    pthread_mutex_lock(&r->lock);
    if (is_not_foreseen(r, visit))
        turn_to(r, (position){b, visit, cell});
    while (!(s = slot_of(r, page)) || s->state == SLOT_READING)
        pthread_cond_wait(&r->changed, &r->lock);
    if (s->state == SLOT_READY) {
        s->state = SLOT_PINNED;
        *data = s->data;
    } else {
        status = s->status;
        if (err)
            *err = s->error;
        s->state = SLOT_EMPTY; /* the reader stays stalled until the next pin asks for something */
    }
    pthread_mutex_unlock(&r->lock);
    *wait_s += time_now() - begin;
    return status;
}

void reader_unpin(reader *r, int b, int visit, bool again) {
    pthread_mutex_lock(&r->lock);
    slot *s = find(r, r->p->streamed[visit], 1u << SLOT_PINNED);
    assert(s);
    const bool stays = again && visit - r->p->first_streamed[b] < n_staying(r, b);
    s->state = stays ? SLOT_READY : SLOT_EMPTY;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

void reader_expect(reader *r, int n_cell, int n_head) {
    pthread_mutex_lock(&r->lock);
    r->n_cell = n_cell;
    r->n_head = n_head;
    pthread_mutex_unlock(&r->lock);
}
