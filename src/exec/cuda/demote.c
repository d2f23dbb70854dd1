/* demote.c - moves layers out of the GPU's memory when another program needs it, and back when it is free.
 *
 * Between two passes, at most ten times a second, the driver is asked for the free memory. Planning left a
 * 64th of the device free (share.c). If less than a 256th is free, another program takes memory: then the
 * first resident layers are demoted until a 128th is free. Weights that only the GPU has are copied back to
 * RAM first (weights.c). Then their memory is freed, and the layers are streamed for every pass (streamed.c),
 * which is slower. The bits stay the same, because their keys and values stay on the GPU. If no layer was
 * streamed before, two slots are allocated from the freed memory, so at least three layers are demoted.
 * Layers are promoted one by one, the last demoted one first, when enough memory has been free for a while.
 *
 * A pass fails only if there is no memory for the slots after all layers were demoted. */
#include "base/num.h"
#include "exec/cuda/cuda.h"
#include "tiers/device_cuda.h"

enum { CHECK_MS = 100, CALM = 5 /* checks */, LOW = 256, ENOUGH = 128 /* parts of the device */ };

/* The next layer to demote; -1: there is none. */
static int next_of(const cuda *c) {
    const demotion *d = &c->demotion;
    const int n_block = layout_n_block(c->setup.layout);
    int b = d->n > 0 ? d->demoted[d->n - 1] + 1 : 1;
    while (b < n_block - 1 && c->is_streamed[b])
        b++;
    return b < n_block - 1 ? b : -1;
}

/* Bytes of a slot for any layer. */
static uint64_t slot_bytes(const cuda *c) {
    uint64_t max_bytes = 0;
    for (int b = 1; b < layout_n_block(c->setup.layout) - 1; b++)
        max_bytes = NUM_MAX(max_bytes, c->block_bytes[b]);
    return max_bytes;
}

/* Demotes the next layer. *found: there was one. */
static nib_status demote_one(cuda *c, uint64_t *given, bool *found, nib_error *err) {
    demotion *d = &c->demotion;
    const int b = next_of(c);
    *found = b >= 0 && (!c->streamed.blocks.memory.at || c->block_bytes[b] <= c->streamed.bytes);
    if (!*found)
        return NIB_OK;
    NIB_TRY(weights_demote(c, b, err));
    *given += weights_of_block(c, b);
    d->demoted[d->n++] = b;
    return NIB_OK;
}

/* Opens the slots if layers are streamed; demotes more layers if another program took the freed memory. */
static nib_status open_slots(cuda *c, uint64_t *given, nib_error *err) {
    nib_status status = NIB_OK;
    bool found = true;
    while (found && c->streamed.n_block > 0 && !c->streamed.blocks.memory.at) {
        c->streamed.bytes = slot_bytes(c);
        status = streamed_open(c, err);
        if (status == NIB_OK)
            break;
        streamed_close(c);
        if (status != NIB_E_NOMEM)
            break;
        NIB_TRY(demote_one(c, given, &found, err));
    }
    return status;
}

static nib_status shrink(cuda *c, uint64_t wanted, nib_error *err) {
    const int before = c->demotion.n;
    uint64_t given = 0;
    char text[32];
    if (!c->streamed.blocks.memory.at)
        wanted += DEVICE_BLOCKS * slot_bytes(c);
    replay_forget(c);
    for (bool found = true; found && given < wanted;)
        NIB_TRY(demote_one(c, &given, &found, err));
    NIB_TRY(open_slots(c, &given, err));
    if (c->demotion.n > before)
        log_line(c->setup.log, "another program needs the GPU's memory: %d layers were moved out of it, %s",
                 c->demotion.n - before, num_format_size(given, text));
    return NIB_OK;
}

/* Number of layers to promote at once. It is all of them if they need the memory of the slots. */
static int n_to_promote(const cuda *c) {
    const demotion *d = &c->demotion;
    return !d->had_slots && d->n <= DEVICE_BLOCKS + 1 ? d->n : 1;
}

static nib_status grow(cuda *c, uint64_t spare, nib_error *err) {
    demotion *d = &c->demotion;
    const int n = n_to_promote(c);
    const bool slots = n == d->n && !d->had_slots;
    uint64_t wanted = 0, given = 0;
    nib_status status = NIB_OK;
    for (int i = 0; i < n; i++)
        wanted += weights_of_block(c, d->demoted[d->n - 1 - i]);
    if (wanted > spare + (slots ? DEVICE_BLOCKS * c->streamed.bytes : 0))
        return NIB_OK;
    replay_forget(c);
    streamed_forget(c);
    if (slots)
        streamed_close(c);
    for (int i = 0; i < n && status == NIB_OK; i++) {
        nib_error why;
        status = weights_promote(c, d->demoted[d->n - 1], &why);
        d->n -= status == NIB_OK;
    }
    if (d->n == 0)
        log_line(c->setup.log, "all layers are back in the GPU's memory");
    return open_slots(c, &given, err);
}

nib_status demote_check(cuda *c, nib_error *err) {
    demotion *d = &c->demotion;
    const double now = time_now();
    device_info info;
    uint64_t given = 0;
    NIB_TRY(open_slots(c, &given, err));
    if (!d->pager || now < d->checked_at + CHECK_MS / 1e3)
        return NIB_OK;
    d->checked_at = now;
    c->base.device->kind->info(c->base.device, &info);
    if (info.bytes == 0) /* unknown */
        return NIB_OK;
    const uint64_t enough = info.bytes / ENOUGH;
    d->n_calm = info.free > enough ? d->n_calm + 1 : 0;
    if (info.free < info.bytes / LOW)
        return shrink(c, enough - info.free, err);
    return d->n > 0 && d->n_calm >= CALM ? grow(c, info.free - enough, err) : NIB_OK;
}
