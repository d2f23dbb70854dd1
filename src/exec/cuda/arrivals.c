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

static gpu_slot *slot_of(const cuda *c, int b) {
    gpu_slot *slots = ((cuda *)(uintptr_t)c)->arrivals.slots;
    for (int i = 0; i < CUDA_SLOTS; i++)
        if (slots[i].block == b)
            return &slots[i];
    return NULL;
}

static uint8_t *memory_of(const cuda *c, const gpu_slot *s) {
    return (uint8_t *)c->arrivals.memory.at + (uint64_t)(s - c->arrivals.slots) * c->arrivals.bytes;
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

/* Its copies are queued, behind the launches that read what the slot had. */
static nib_status send(cuda *c, int b, gpu_slot *s, const view *from, nib_error *err) {
    const int n = layout_block(c->setup.layout, b)->n_weight;
    const cuda_stream lane = c->arrivals.lane;
    s->block = -1;
    if (s->was_used)
        NIB_TRY(ok(c, c->k->stream_wait(lane, s->used), "waiting for a slot", err));
    for (int w = 0; w < n; w++) {
        const gpu_weight *g = weights_own(c, b, w);
        if (g->wanted && g->comes)
            NIB_TRY(weights_copy(c, b, w, from[w].data, memory_of(c, s) + g->at, lane, err));
    }
    NIB_TRY(ok(c, c->k->event_record(s->arrived, lane), "weights on their way", err));
    s->block = b;
    return NIB_OK;
}

static bool is_in_ram(const cuda *c, int b, const view *views) {
    for (int w = 0; w < layout_block(c->setup.layout, b)->n_weight; w++) {
        const gpu_weight *g = weights_own(c, b, w);
        if (g->wanted && g->comes && !views[w].data)
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
    nib_error err;
    if (next != b && !slot_of(c, next) && is_in_ram(c, next, views))
        (void)send(c, next, &c->arrivals.slots[slot_of(c, b) == c->arrivals.slots], views, &err);
}

nib_status arrivals_take(cuda *c, nib_error *err) {
    const int b = c->run.visit.block;
    gpu_slot *s = slot_of(c, b);
    lock_pages(c);
    if (!s) {
        s = &c->arrivals.slots[c->arrivals.slots[0].block == c->arrivals.last];
        NIB_TRY(send(c, b, s, c->views, err));
    }
    c->arrivals.last = b;
    NIB_TRY(ok(c, c->k->stream_wait(c->stream, s->arrived), "waiting for weights", err));
    send_ahead(c, b);
    return NIB_OK;
}

nib_status arrivals_give(cuda *c, nib_error *err) {
    gpu_slot *s = slot_of(c, c->run.visit.block);
    s->was_used = true;
    return ok(c, c->k->event_record(s->used, c->stream), "a slot that was used", err);
}
