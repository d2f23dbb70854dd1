/* device_store_moved.c - moves blocks out of a device's memory when another program needs it, and back when
 * it is free.
 *
 * Between two passes, at most ten times a second, the device is asked for its free memory. Planning left a
 * 64th of it free (exec/cuda/share.c). If less than a 256th is free, another program takes memory: then what
 * is resident of the first layers is moved out until a 128th is free. Weights that only the device has are
 * copied back to RAM first. Then their memory is freed, and they come for every pass, which is slower. The
 * bits stay the same, because their keys and values stay on the device. The slots become as large as a layer,
 * from the freed memory. Layers return one by one, the last one first, when enough memory has been free for a
 * while.
 *
 * A pass fails only if there is no memory for the slots after all layers were moved out. */
#include "weights/device_store_parts.h"

#include "base/num.h"
#include "base/thread.h"

enum { CHECK_MS = 100, CALM = 5 /* checks */, LOW = 256, ENOUGH = 128 /* parts of the device */ };
enum { LARGE = 1 << 20, PIECE = 2 << 20 /* bytes: large memory is given in such pieces */ };

/* What the resident part of block b takes by the decision. */
static uint64_t freed_bytes(const device_store *s, int b) {
    uint64_t bytes = 0;
    for (int i = s->blocks[b].first; i < s->blocks[b + 1].first; i++)
        bytes += s->matrices[i]->planned ? 0 : s->sizes[i];
    return bytes < LARGE ? bytes : (bytes + PIECE - 1) / PIECE * PIECE;
}

/* The next layer to move out; -1: there is none. */
static int next_of(const device_store *s) {
    const store_moved *d = &s->moved;
    const int n_block = layout_n_block(s->layout);
    int b = d->n > 0 ? d->blocks[d->n - 1] + 1 : 1;
    while (b < n_block - 1 && (!s->blocks[b].memory.at || store_is_apart(s, b)))
        b++; /* of layers whose experts the host computes, all else is needed here */
    return b < n_block - 1 ? b : -1;
}

static void divide(device_store *s, int b, bool all) {
    store_unlock(s, b);
    store_divide(s, b, all);
    s->n_change++;
}

static nib_status move_out(device_store *s, int b, nib_error *err) {
    NIB_TRY(store_return(s, b, err));
    memory_region_close(&s->blocks[b].memory);
    divide(s, b, true);
    store_tell_pager(s, b);
    store_lock(s, b);
    return NIB_OK;
}

static nib_status move_in(device_store *s, int b, nib_error *err) {
    divide(s, b, false);
    const nib_status status = store_take(s, b, err);
    if (status != NIB_OK)
        divide(s, b, true);
    store_lock(s, b);
    return status;
}

/* Moves the next layer out. *found: there was one. */
static nib_status move_one(device_store *s, uint64_t *given, bool *found, nib_error *err) {
    store_moved *d = &s->moved;
    const int b = next_of(s);
    *found = b >= 0;
    if (!*found)
        return NIB_OK;
    NIB_TRY(move_out(s, b, err));
    *given += freed_bytes(s, b);
    d->blocks[d->n++] = b;
    return NIB_OK;
}

/* Opens the slots if layers come; moves more layers out if another program took the freed memory. */
static nib_status open_slots(device_store *s, uint64_t *given, nib_error *err) {
    nib_status status = NIB_OK;
    bool found = true;
    while (found && s->n_coming > 0 && !s->slots.memory.at) {
        if (s->moved.n > 0)
            s->slot_bytes = NUM_MAX(s->slot_bytes, store_layer_slot(s));
        status = store_open_slots(s, err);
        if (status == NIB_OK)
            break;
        store_close_slots(s);
        if (status != NIB_E_NOMEM)
            break;
        NIB_TRY(move_one(s, given, &found, err));
    }
    return status;
}

static nib_status shrink(device_store *s, uint64_t wanted, nib_error *err) {
    const int before = s->moved.n;
    uint64_t given = 0;
    char text[32];
    store_empty_slots(s);
    if (s->slots.memory.bytes < DEVICE_BLOCKS * store_layer_slot(s)) {
        wanted += DEVICE_BLOCKS * store_layer_slot(s) - s->slots.memory.bytes;
        store_close_slots(s);
    }
    for (bool found = true; found && given < wanted;)
        NIB_TRY(move_one(s, &given, &found, err));
    NIB_TRY(open_slots(s, &given, err));
    if (s->moved.n > before)
        log_line(s->setup.log, "another program needs the GPU's memory: %d layers were moved out of it, %s",
                 s->moved.n - before, num_format_size(given, text));
    return NIB_OK;
}

/* Bytes that the slots have more than by the decision. */
static uint64_t slots_excess(const device_store *s) {
    return DEVICE_BLOCKS * (s->slot_bytes - s->planned_slot);
}

/* Number of layers that return at once. It is all of them if they need the memory of the slots. */
static int n_returning(const device_store *s) {
    const store_moved *d = &s->moved;
    uint64_t all = 0;
    for (int i = 0; i < d->n; i++)
        all += freed_bytes(s, d->blocks[i]);
    return all <= slots_excess(s) + freed_bytes(s, d->blocks[0]) ? d->n : 1;
}

static nib_status grow(device_store *s, uint64_t spare, nib_error *err) {
    store_moved *d = &s->moved;
    const int n = n_returning(s);
    const bool slots = n == d->n;
    uint64_t wanted = 0, given = 0;
    nib_status status = NIB_OK;
    for (int i = 0; i < n; i++)
        wanted += freed_bytes(s, d->blocks[d->n - 1 - i]);
    if (wanted > spare + (slots ? slots_excess(s) : 0))
        return NIB_OK;
    store_empty_slots(s);
    if (slots) {
        store_close_slots(s);
        s->slot_bytes = s->planned_slot;
    }
    for (int i = 0; i < n && status == NIB_OK; i++) {
        nib_error why;
        status = move_in(s, d->blocks[d->n - 1], &why);
        d->n -= status == NIB_OK;
    }
    if (d->n == 0)
        log_line(s->setup.log, "all layers are back in the GPU's memory");
    return open_slots(s, &given, err);
}

nib_status device_store_look(device_store *s, nib_error *err) {
    store_moved *d = &s->moved;
    const double now = time_now();
    device_info info;
    uint64_t given = 0;
    NIB_TRY(open_slots(s, &given, err));
    if (!s->pager || now < d->checked_at + CHECK_MS / 1e3)
        return NIB_OK;
    d->checked_at = now;
    s->kind->info(s->setup.device, &info);
    if (info.bytes == 0) /* unknown */
        return NIB_OK;
    const uint64_t enough = info.bytes / ENOUGH;
    d->n_calm = info.free > enough ? d->n_calm + 1 : 0;
    if (info.free < info.bytes / LOW && next_of(s) >= 0)
        return shrink(s, enough - info.free, err);
    return d->n > 0 && d->n_calm >= CALM ? grow(s, info.free - enough, err) : NIB_OK;
}
