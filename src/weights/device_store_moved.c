/* device_store_moved.c - moves blocks out of a device's memory when another program needs it, and back when
 * it is free.
 *
 * Between two passes, at most ten times a second, the device is asked for its free memory. Planning left a
 * 64th of it free (exec/cuda/share.c). If less than a 256th is free, another program takes memory: then the
 * first resident layers are moved out until a 128th is free. Weights that only the device has are copied back
 * to RAM first. Then their memory is freed, and they come for every pass, which is slower. The bits stay the
 * same, because their keys and values stay on the device. If no layer came before, two slots are allocated
 * from the freed memory, so at least three layers are moved. Layers return one by one, the last one first,
 * when enough memory has been free for a while.
 *
 * A pass fails only if there is no memory for the slots after all layers were moved out. */
#include "weights/device_store_parts.h"

#include "base/num.h"
#include "base/thread.h"

enum { CHECK_MS = 100, CALM = 5 /* checks */, LOW = 256, ENOUGH = 128 /* parts of the device */ };
enum { LARGE = 1 << 20, PIECE = 2 << 20 /* bytes: large memory is given in such pieces */ };

static uint64_t freed_bytes(const device_store *s, int b) {
    const uint64_t bytes = s->blocks[b].bytes;
    return bytes < LARGE ? bytes : (bytes + PIECE - 1) / PIECE * PIECE;
}

/* The next layer to move out; -1: there is none. */
static int next_of(const device_store *s) {
    const store_moved *d = &s->moved;
    const int n_block = layout_n_block(s->layout);
    int b = d->n > 0 ? d->blocks[d->n - 1] + 1 : 1;
    while (b < n_block - 1 && s->blocks[b].comes)
        b++;
    return b < n_block - 1 ? b : -1;
}

/* Bytes of a slot for any layer. */
static uint64_t layer_slot(const device_store *s) {
    uint64_t max = 0;
    for (int b = 1; b < layout_n_block(s->layout) - 1; b++)
        max = NUM_MAX(max, s->blocks[b].bytes);
    return max;
}

static void set_comes(device_store *s, int b, bool comes) {
    s->blocks[b].comes = comes;
    s->blocks[b].loaded = false;
    s->n_coming += comes ? 1 : -1;
    s->n_change++;
    store_forget(s, b);
    if (s->copied[b])
        pager_set_copied(s->pager, b, false);
}

static nib_status move_out(device_store *s, int b, nib_error *err) {
    NIB_TRY(store_return(s, b, err));
    memory_region_close(&s->blocks[b].memory);
    set_comes(s, b, true);
    store_lock(s, b);
    return NIB_OK;
}

static nib_status move_in(device_store *s, int b, nib_error *err) {
    NIB_TRY(store_take(s, b, err));
    store_unlock(s, b);
    set_comes(s, b, false);
    return NIB_OK;
}

/* Moves the next layer out. *found: there was one. */
static nib_status move_one(device_store *s, uint64_t *given, bool *found, nib_error *err) {
    store_moved *d = &s->moved;
    const int b = next_of(s);
    *found = b >= 0 && (!s->slots.memory.at || s->blocks[b].bytes <= s->slot_bytes);
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
        s->slot_bytes = NUM_MAX(s->slot_bytes, layer_slot(s));
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
    if (!s->slots.memory.at)
        wanted += DEVICE_BLOCKS * layer_slot(s);
    for (bool found = true; found && given < wanted;)
        NIB_TRY(move_one(s, &given, &found, err));
    NIB_TRY(open_slots(s, &given, err));
    if (s->moved.n > before)
        log_line(s->setup.log, "another program needs the GPU's memory: %d layers were moved out of it, %s",
                 s->moved.n - before, num_format_size(given, text));
    return NIB_OK;
}

/* Number of layers that return at once. It is all of them if they need the memory of the slots. */
static int n_returning(const device_store *s) {
    const store_moved *d = &s->moved;
    return !d->had_slots && d->n <= DEVICE_BLOCKS + 1 ? d->n : 1;
}

static nib_status grow(device_store *s, uint64_t spare, nib_error *err) {
    store_moved *d = &s->moved;
    const int n = n_returning(s);
    const bool slots = n == d->n && !d->had_slots;
    uint64_t wanted = 0, given = 0;
    nib_status status = NIB_OK;
    for (int i = 0; i < n; i++)
        wanted += freed_bytes(s, d->blocks[d->n - 1 - i]);
    if (wanted > spare + (slots ? DEVICE_BLOCKS * s->slot_bytes : 0))
        return NIB_OK;
    store_empty_slots(s);
    if (slots)
        store_close_slots(s);
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
    if (info.free < info.bytes / LOW)
        return shrink(s, enough - info.free, err);
    return d->n > 0 && d->n_calm >= CALM ? grow(s, info.free - enough, err) : NIB_OK;
}
