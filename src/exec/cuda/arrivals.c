/* arrivals.c - blocks that do not stay in the GPU's memory: their matrices come from the host's for each
 * visit, in a stream of their own, through two slots. While one block computes, the next one that comes is on
 * its way; behind the last one of a pass that is the first one again.
 *
 * A slot has one block, absent until its copies and their reordering are queued. Two events keep order:
 * `arrived`, which the computing stream waits for before the block's launches, and `used`, behind these,
 * which the copying stream waits for before it writes the slot again. The host waits for neither.
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
    for (int i = 0; i < CUDA_SLOTS; i++) {
        a->slots[i].block = -1;
        NIB_TRY(ok(c, c->k->event_new(&a->slots[i].arrived), "an event", err));
        NIB_TRY(ok(c, c->k->event_new(&a->slots[i].used), "an event", err));
    }
    return NIB_OK;
}

void arrivals_close(cuda *c) {
    arrivals *a = &c->arrivals;
    if (a->lane)
        c->k->stream_sync(a->lane);
    for (int i = 0; i < CUDA_SLOTS; i++) {
        if (a->slots[i].arrived)
            c->k->event_free(a->slots[i].arrived);
        if (a->slots[i].used)
            c->k->event_free(a->slots[i].used);
    }
    if (a->lane)
        c->k->stream_free(a->lane);
    if (a->locked)
        c->k->unpin(a->locked);
    tier_region_close(&a->memory);
    memset(a, 0, sizeof *a);
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
}

/* Its copies are queued, behind the launches that read what the slot had, in the order of the program, which
 * is that of the pages that the pager streams. */
static nib_status send(cuda *c, int b, int slot, const view *from, nib_error *err) {
    gpu_slot *s = &c->arrivals.slots[slot];
    const cuda_stream lane = c->arrivals.lane;
    sending x = {from, memory_of(c, slot), NIB_OK, err};
    s->block = -1;
    if (s->was_used)
        NIB_TRY(ok(c, c->k->stream_wait(lane, s->used), "waiting for a slot", err));
    weights_each_read(c, b, forget, NULL);
    weights_each_read(c, b, send_weight, &x);
    NIB_TRY(x.status);
    NIB_TRY(ok(c, c->k->event_record(s->arrived, lane), "weights on their way", err));
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

/* The next block that comes: of this pass, or else the first one of the next; b: there is no other. */
static int next_of(const cuda *c, int b) {
    visits rest = *c->run.rest;
    visit v;
    while (visits_next(&rest, &v))
        if (v.block != b && c->comes[v.block])
            return v.block;
    int first = 0;
    while (!c->comes[first])
        first++;
    return first;
}

/* What cannot be sent ahead comes when it is visited, with its error. */
static void send_ahead(cuda *c, int b) {
    const int next = next_of(c, b);
    const view *views = pager_views(c->run.pager, next);
    nib_error err = {0};
    if (next != b && slot_of(c, next) < 0 && is_in_ram(c, next, views))
        (void)send(c, next, slot_of(c, b) == 0, views, &err);
}

nib_status arrivals_take(cuda *c, nib_error *err) {
    const int b = c->run.visit.block;
    lock_pages(c);
    if (slot_of(c, b) < 0)
        NIB_TRY(send(c, b, slot_of(c, c->arrivals.last) == 0, c->views, err));
    c->arrivals.last = b;
    NIB_TRY(ok(c, c->k->stream_wait(c->stream, c->arrivals.slots[slot_of(c, b)].arrived),
               "waiting for weights", err));
    send_ahead(c, b);
    return NIB_OK;
}

nib_status arrivals_give(cuda *c, nib_error *err) {
    gpu_slot *s = &c->arrivals.slots[slot_of(c, c->run.visit.block)];
    s->was_used = true;
    return ok(c, c->k->event_record(s->used, c->stream), "a slot that was used", err);
}
