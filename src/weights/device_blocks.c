/* device_blocks.c - see device_blocks.h. */
#include "weights/device_blocks.h"

#include <assert.h>
#include <string.h>

nib_status device_blocks_open(device_blocks *b, const block_source *from, uint64_t each, device *d,
                              ledger *to, int owner, nib_error *err) {
    const int n_slot = from->n_slot ? from->n_slot : DEVICE_BLOCKS;
    *b = (device_blocks){.from = *from, .device = d, .n_slot = n_slot};
    NIB_TRY(memory_region_open(&b->memory, d, to, owner, (uint64_t)n_slot * each, false,
                               "weights on the device", err));
    for (int i = 0; i < n_slot; i++)
        b->slots[i] = (device_block){.block = -1, .at = (uint8_t *)b->memory.at + (uint64_t)i * each};
    return NIB_OK;
}

void device_blocks_close(device_blocks *b) {
    memory_region_close(&b->memory);
    memset(b, 0, sizeof *b);
}

/* ---- slots ---- */

const device_block *device_blocks_slot(const device_blocks *b, int block_index) {
    for (int i = 0; i < b->n_slot; i++)
        if (b->slots[i].block == block_index)
            return &b->slots[i];
    return NULL;
}

static device_block *slot_of(device_blocks *b, int block_index) {
    for (int i = 0; i < b->n_slot; i++)
        if (b->slots[i].block == block_index)
            return &b->slots[i];
    return NULL;
}

/* Iterates over the next visits of blocks that need a slot, then over those of the predicted next pass. */
typedef struct upcoming {
    const block_source *from;
    visits rest, after;
    block_when when; /* of the last one */
} upcoming;

static upcoming upcoming_of(const device_blocks *b, const visits *rest) {
    upcoming c = {.from = &b->from, .rest = *rest};
    if (b->from.n_block)
        c.after = visits_of_one_row(b->from.n_block, rest->first, rest->end);
    return c;
}

static bool next_upcoming(upcoming *c, visit *out) {
    const block_source *from = c->from;
    for (bool more = true; more;) {
        c->when = visits_next(&c->rest, out) ? BLOCK_AHEAD : BLOCK_NEXT_PASS;
        more = c->when == BLOCK_AHEAD || visits_next(&c->after, out);
        if (more && (!from->needs_slot || from->needs_slot(from->user, out, c->when)))
            return true;
    }
    return false;
}

/* The slot to reuse: an empty one, else the one whose block is needed last (Belady), never an acquired one.
 * NULL: there is none. */
static device_block *choose(device_blocks *b, const visits *rest) {
    bool kept[DEVICE_BLOCKS] = {false};
    int n_free = 0;
    for (int i = 0; i < b->n_slot; i++) {
        kept[i] = b->slots[i].acquired;
        n_free += !kept[i];
        if (b->slots[i].block < 0)
            return &b->slots[i];
    }
    upcoming list = upcoming_of(b, rest);
    for (visit v; n_free > 1 && next_upcoming(&list, &v);)
        for (int i = 0; i < b->n_slot && n_free > 1; i++)
            if (!kept[i] && b->slots[i].block == v.block) {
                kept[i] = true;
                n_free--;
            }
    for (int i = 0; i < b->n_slot; i++)
        if (!kept[i])
            return &b->slots[i];
    return NULL;
}

/* ---- loading ---- */

/* Makes the lane for copies wait for operations that still write or read the slot. */
static nib_status wait_for_slot(const device_blocks *b, const device_block *s, nib_error *err) {
    device *d = b->device;
    if (s->was_sent && b->from.lane != DEVICE_LOAD_WEIGHTS)
        NIB_TRY(d->kind->follow(d, DEVICE_LOAD_WEIGHTS, s->loaded, err));
    return s->was_used ? d->kind->follow(d, DEVICE_LOAD_WEIGHTS, s->used, err) : NIB_OK;
}

/* Loads a visit's block into a slot; rest: the visits after it. */
static nib_status load_block(device_blocks *b, device_block *s, const visit *v, const visits *rest,
                             block_when when, nib_error *err) {
    device *d = b->device;
    s->block = -1;
    s->streamed = s->was_followed = false;
    NIB_TRY(wait_for_slot(b, s, err));
    NIB_TRY(b->from.load(b->from.user, s, v, rest, when, err));
    NIB_TRY(d->kind->mark(d, b->from.lane, &s->loaded, err));
    s->was_sent = true;
    s->block = v->block;
    return NIB_OK;
}

/* Prefetches at most n blocks after `now`, each into its own slot. */
static void load_ahead(device_blocks *b, int now, const visits *rest, int n) {
    upcoming list = upcoming_of(b, rest);
    int before = now;
    for (visit v; n > 0 && next_upcoming(&list, &v); before = v.block) {
        if (v.block == before || v.block == now)
            continue;
        device_block *s = slot_of(b, v.block) ? NULL : choose(b, rest);
        if (s && load_block(b, s, &v, &list.rest, list.when, NULL) != NIB_OK)
            return;
        n--;
    }
}

nib_status device_blocks_acquire(device_blocks *b, const visit *at, const visits *rest,
                                 const device_block **out, nib_error *err) {
    device_block *s = slot_of(b, at->block);
    if (!s) {
        s = choose(b, rest);
        assert(s); /* one visit at a time, so a slot is free */
        NIB_TRY(load_block(b, s, at, rest, BLOCK_NOW, err));
    }
    s->acquired = true;
    *out = s;
    load_ahead(b, at->block, rest, b->n_slot - 1);
    return NIB_OK;
}

nib_status device_blocks_release(device_blocks *b, const visit *at, const visits *rest, nib_error *err) {
    device *d = b->device;
    device_block *s = slot_of(b, at->block);
    s->acquired = false;
    s->was_used = s->was_followed = true;
    if (s->streamed && !at->again)
        s->block = -1; /* the pager predicts its pages again */
    NIB_TRY(d->kind->mark(d, DEVICE_COMPUTE, &s->used, err));
    if (!at->again && b->n_slot > 1)
        load_ahead(b, at->block, rest, b->n_slot);
    return NIB_OK;
}

void device_blocks_end(device_blocks *b) {
    for (int i = 0; i < b->n_slot; i++) {
        b->slots[i].acquired = false;
        if (b->slots[i].streamed)
            b->slots[i].block = -1;
    }
}

void device_blocks_forget(device_blocks *b) {
    for (int i = 0; i < b->n_slot; i++)
        b->slots[i].block = -1;
}
