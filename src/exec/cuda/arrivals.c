/* arrivals.c - blocks that do not stay in the GPU's memory: their matrices come from the host's for each
 * visit, in a stream of their own, through two slots. While one block computes, the next one that comes is on
 * its way, and behind it the one after; behind the last one of a pass that is the first one again.
 *
 * A slot has one block, absent until its copies and their reordering are queued. Events keep order: `copied`,
 * which the reordering waits for; `arrived`, which the computing stream waits for before the block's
 * launches; and `used`, behind these, which the copying stream waits for before it writes the slot again. The
 * host waits for none.
 *
 * What the pager keeps in RAM is page-locked when the first block comes, so that copies are queued and run at
 * the link's rate; where that cannot be, they are slower. What the pager itself streams from disk comes when
 * its block is visited, since its pages have to be fetched in that order. */
#include "base/num.h"
#include "exec/cuda/cuda.h"
#include "tiers/device_cuda.h"

#include <string.h>

static nib_status ok(const cuda *c, int e, const char *what, nib_error *err) {
    return device_cuda_ok(c->base.device, e, what, err);
}

nib_status arrivals_open(cuda *c, nib_error *err) {
    arrivals *a = &c->arrivals;
    if (a->n_block == 0)
        return NIB_OK;
    NIB_TRY(tier_region_open(&a->memory, c->base.device, c->setup.ledger, NIB_OWNER_STAGING,
                             CUDA_SLOTS * a->bytes, false, "slots for weights on the GPU", err));
    NIB_TRY(ok(c, c->k->stream_new(&a->lane), "a stream for weights", err));
    NIB_TRY(ok(c, c->k->stream_new(&a->order), "a stream for weights", err));
    for (int i = 0; i < CUDA_SLOTS; i++) {
        a->slots[i].block = -1;
        NIB_TRY(ok(c, c->k->event_new(&a->slots[i].copied), "an event", err));
        NIB_TRY(ok(c, c->k->event_new(&a->slots[i].arrived), "an event", err));
        NIB_TRY(ok(c, c->k->event_new(&a->slots[i].used), "an event", err));
    }
    return NIB_OK;
}

void arrivals_close(cuda *c) {
    arrivals *a = &c->arrivals;
    if (a->lane)
        c->k->stream_sync(a->lane);
    if (a->order)
        c->k->stream_sync(a->order);
    for (int i = 0; i < CUDA_SLOTS; i++) {
        if (a->slots[i].copied)
            c->k->event_free(a->slots[i].copied);
        if (a->slots[i].arrived)
            c->k->event_free(a->slots[i].arrived);
        if (a->slots[i].used)
            c->k->event_free(a->slots[i].used);
    }
    if (a->lane)
        c->k->stream_free(a->lane);
    if (a->order)
        c->k->stream_free(a->order);
    if (a->locked)
        c->k->unpin(a->locked);
    tier_region_close(&a->memory);
    *a = (arrivals){.n_block = a->n_block, .bytes = a->bytes};
}

void arrivals_forget(cuda *c) {
    c->k->stream_sync(c->arrivals.lane);
    c->k->stream_sync(c->arrivals.order);
    for (int i = 0; i < CUDA_SLOTS; i++)
        c->arrivals.slots[i].block = -1;
}

/* The slot that has the block; -1: none. */
static int slot_of(const cuda *c, int b) {
    for (int i = 0; i < CUDA_SLOTS; i++)
        if (c->arrivals.slots[i].block == b)
            return i;
    return -1;
}

static uint8_t *memory_of(const cuda *c, int slot) {
    return (uint8_t *)c->arrivals.memory.at + (uint64_t)slot * c->arrivals.bytes;
}

uint8_t *arrivals_at(const cuda *c, int b) {
    return memory_of(c, slot_of(c, b));
}

/* ---- on their way ---- */

static void lock_pages(cuda *c) {
    arrivals *a = &c->arrivals;
    uint64_t bytes;
    if (a->asked)
        return;
    a->asked = true;
    void *at = pager_resident(c->run.pager, &bytes);
    if (bytes > 0 && c->k->pin(at, (size_t)bytes) == 0)
        a->locked = at;
    else
        log_line(c->setup.log,
                 "the weights in RAM cannot be page-locked, so they come to the GPU more slowly");
}

typedef struct sending {
    const view *from; /* the block's, on the host */
    uint8_t *to;      /* the slot */
    nib_status status;
    nib_error *err;
} sending;

static void forget(const cuda *c, int b, int w, void *user) {
    (void)user;
    if (weights_own(c, b, w)->comes)
        weights_own(c, b, w)->there = false;
}

static void send_weight(const cuda *c, int b, int w, void *user) {
    sending *x = user;
    gpu_weight *g = weights_own(c, b, w);
    if (x->status != NIB_OK || !g->comes || g->there)
        return;
    x->status = weights_copy(c, b, w, x->from[w].data, x->to + g->at, c->arrivals.lane, x->err);
    g->there = x->status == NIB_OK;
    g->ordered = false;
}

static void order_weight(const cuda *c, int b, int w, void *user) {
    sending *x = user;
    gpu_weight *g = weights_own(c, b, w);
    if (x->status != NIB_OK || !g->comes || g->ordered)
        return;
    x->status = weights_order(c, b, w, x->to + g->at, c->arrivals.order, x->err);
    g->ordered = true;
}

/* The lane is behind what still reads or writes the slot. */
static nib_status wait_for_slot(const cuda *c, const gpu_slot *s, nib_error *err) {
    const cuda_stream lane = c->arrivals.lane;
    if (s->was_sent)
        NIB_TRY(ok(c, c->k->stream_wait(lane, s->arrived), "waiting for a slot", err));
    return s->was_used ? ok(c, c->k->stream_wait(lane, s->used), "waiting for a slot", err) : NIB_OK;
}

/* Its copies are queued in the order of the program, which is that of the pages that the pager streams; then,
 * in a stream of their own, what puts them in order, so that the next block's copies do not wait for it. */
static nib_status send(cuda *c, int b, int slot, const view *from, nib_error *err) {
    arrivals *a = &c->arrivals;
    gpu_slot *s = &a->slots[slot];
    sending x = {from, memory_of(c, slot), NIB_OK, err};
    s->block = -1;
    NIB_TRY(wait_for_slot(c, s, err));
    weights_each_read(c, b, forget, NULL);
    weights_each_read(c, b, send_weight, &x);
    NIB_TRY(x.status);
    NIB_TRY(ok(c, c->k->event_record(s->copied, a->lane), "weights on their way", err));
    NIB_TRY(ok(c, c->k->stream_wait(a->order, s->copied), "weights on their way", err));
    weights_each_read(c, b, order_weight, &x);
    NIB_TRY(x.status);
    NIB_TRY(ok(c, c->k->event_record(s->arrived, a->order), "weights on their way", err));
    s->was_sent = true;
    s->block = b;
    return NIB_OK;
}

static bool is_in_ram(const cuda *c, int b, const view *views) {
    for (int w = 0; w < layout_block(c->setup.layout, b)->n_weight; w++) {
        const gpu_weight *g = weights_own(c, b, w);
        if (g->comes && !views[w].data)
            return false;
    }
    return true;
}

/* Whether block b comes in this pass: the processor computes others where they are. */
static bool is_awaited(const cuda *c, int b) {
    return c->comes[b] && !in_place_has(c, b);
}

typedef struct next_blocks {
    int n, block[CUDA_SLOTS];
} next_blocks;

static void add_next(const cuda *c, next_blocks *to, int b, int then) {
    const bool known = then == b || (to->n > 0 && to->block[0] == then);
    if (to->n < CUDA_SLOTS && !known && is_awaited(c, then))
        to->block[to->n++] = then;
}

/* The blocks that come behind b: of this pass, then from the beginning on. */
static next_blocks next_of(const cuda *c, int b) {
    next_blocks next = {.n = 0};
    visits rest = *c->run.rest;
    visit v;
    while (next.n < CUDA_SLOTS && visits_next(&rest, &v))
        add_next(c, &next, b, v.block);
    for (int i = 0; i < layout_n_block(c->setup.layout); i++)
        add_next(c, &next, b, i);
    return next;
}

/* What cannot be sent ahead comes when it is visited, with its error. */
static void send_ahead(cuda *c, int b, int slot) {
    const view *views = pager_views(c->run.pager, b);
    nib_error err = {0};
    if (slot_of(c, b) < 0 && is_in_ram(c, b, views))
        (void)send(c, b, slot, views, &err);
}

nib_status arrivals_take(cuda *c, nib_error *err) {
    const int b = c->run.visit.block;
    const next_blocks next = next_of(c, b);
    lock_pages(c);
    if (slot_of(c, b) < 0)
        NIB_TRY(send(c, b, slot_of(c, c->arrivals.last) == 0, c->views, err));
    c->arrivals.last = b;
    NIB_TRY(ok(c, c->k->stream_wait(c->stream, c->arrivals.slots[slot_of(c, b)].arrived),
               "waiting for weights", err));
    if (next.n > 0)
        send_ahead(c, next.block[0], slot_of(c, b) == 0);
    return NIB_OK;
}

/* Its slot is for the block after the next one, which waits for these launches. */
nib_status arrivals_give(cuda *c, nib_error *err) {
    const int b = c->run.visit.block, slot = slot_of(c, b);
    const next_blocks next = next_of(c, b);
    gpu_slot *s = &c->arrivals.slots[slot];
    s->was_used = true;
    NIB_TRY(ok(c, c->k->event_record(s->used, c->stream), "a slot that was used", err));
    if (next.n > 1)
        send_ahead(c, next.block[1], slot);
    return NIB_OK;
}
