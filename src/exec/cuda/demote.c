/* demote.c - layers leave the GPU's memory when another program wants it, and return when it is free again.
 *
 * Between two passes, a few times a second, the driver is asked what is free. Planning left a 64th of the
 * device (share.c); when less than a 256th is left, somebody else takes memory. Then the first of the layers
 * that stayed leave, as many as make a 128th free. What of them the GPU alone has goes back to RAM first
 * (weights.c). Then their memory is given back, and they come for every pass like others without room
 * (arrivals.c), which is slower and has the same bits in passes of many rows and of few, since their keys and
 * values stay. When none came before, two slots for those that come are taken of what is given back, so three
 * leave at least. They return one by one, the last one that left first, once there was room for a while.
 *
 * Nothing of it fails a pass, unless there is no memory for the slots even when all layers have left. */
#include "base/num.h"
#include "exec/cuda/cuda.h"
#include "tiers/device_cuda.h"

enum { LOOK_MS = 100, CALM = 5 /* looks */, LOW = 256, ENOUGH = 128 /* parts of the device */ };

/* The layer behind those that left; -1: none that stays is left. */
static int next_of(const cuda *c) {
    const demotion *d = &c->demotion;
    const int n_block = layout_n_block(c->setup.layout);
    int b = d->n > 0 ? d->left[d->n - 1] + 1 : 1;
    while (b < n_block - 1 && c->comes[b])
        b++;
    return b < n_block - 1 ? b : -1;
}

/* As large as any layer needs it. */
static uint64_t slot_bytes(const cuda *c) {
    uint64_t most = 0;
    for (int b = 1; b < layout_n_block(c->setup.layout) - 1; b++)
        most = NUM_MAX(most, c->block_bytes[b]);
    return most;
}

/* *left: one did. */
static nib_status leave(cuda *c, uint64_t *given, bool *left, nib_error *err) {
    demotion *d = &c->demotion;
    const int b = next_of(c);
    *left = b >= 0 && (!c->arrivals.blocks.memory.at || c->block_bytes[b] <= c->arrivals.bytes);
    if (!*left)
        return NIB_OK;
    NIB_TRY(weights_leave(c, b, err));
    *given += weights_of_block(c, b);
    d->left[d->n++] = b;
    return NIB_OK;
}

/* Slots for those that come; more layers leave when somebody else was faster. */
static nib_status have_slots(cuda *c, uint64_t *given, nib_error *err) {
    nib_status status = NIB_OK;
    bool left = true;
    while (left && c->arrivals.n_block > 0 && !c->arrivals.blocks.memory.at) {
        c->arrivals.bytes = slot_bytes(c);
        status = arrivals_open(c, err);
        if (status == NIB_OK)
            break;
        arrivals_close(c);
        if (status != NIB_E_NOMEM)
            break;
        NIB_TRY(leave(c, given, &left, err));
    }
    return status;
}

static nib_status shrink(cuda *c, uint64_t wanted, nib_error *err) {
    const int before = c->demotion.n;
    uint64_t given = 0;
    char text[32];
    if (!c->arrivals.blocks.memory.at)
        wanted += DEVICE_BLOCKS * slot_bytes(c);
    replay_forget(c);
    for (bool left = true; left && given < wanted;)
        NIB_TRY(leave(c, &given, &left, err));
    NIB_TRY(have_slots(c, &given, err));
    if (c->demotion.n > before)
        log_line(c->setup.log, "another program wants the GPU's memory: %d layers leave it, %s",
                 c->demotion.n - before, num_format_size(given, text));
    return NIB_OK;
}

/* Those whose return needs the slots' memory return together. */
static int returning(const cuda *c) {
    const demotion *d = &c->demotion;
    return !d->has_slots && d->n <= DEVICE_BLOCKS + 1 ? d->n : 1;
}

static nib_status grow(cuda *c, uint64_t spare, nib_error *err) {
    demotion *d = &c->demotion;
    const int n = returning(c);
    const bool slots = n == d->n && !d->has_slots;
    uint64_t wanted = 0, given = 0;
    nib_status status = NIB_OK;
    for (int i = 0; i < n; i++)
        wanted += weights_of_block(c, d->left[d->n - 1 - i]);
    if (wanted > spare + (slots ? DEVICE_BLOCKS * c->arrivals.bytes : 0))
        return NIB_OK;
    replay_forget(c);
    arrivals_forget(c);
    if (slots)
        arrivals_close(c);
    for (int i = 0; i < n && status == NIB_OK; i++) {
        nib_error why;
        status = weights_return(c, d->left[d->n - 1], &why);
        d->n -= status == NIB_OK;
    }
    if (d->n == 0)
        log_line(c->setup.log, "all layers are back in the GPU's memory");
    return have_slots(c, &given, err);
}

nib_status demote_look(cuda *c, nib_error *err) {
    demotion *d = &c->demotion;
    const double now = time_now();
    device_info info;
    uint64_t given = 0;
    NIB_TRY(have_slots(c, &given, err));
    if (!d->pager || now < d->looked_at + LOOK_MS / 1e3)
        return NIB_OK;
    d->looked_at = now;
    c->base.device->kind->info(c->base.device, &info);
    if (info.bytes == 0) /* not known */
        return NIB_OK;
    const uint64_t enough = info.bytes / ENOUGH;
    d->n_calm = info.free > enough ? d->n_calm + 1 : 0;
    if (info.free < info.bytes / LOW)
        return shrink(c, enough - info.free, err);
    return d->n > 0 && d->n_calm >= CALM ? grow(c, info.free - enough, err) : NIB_OK;
}
