/* device_store_copy.c - the copies of a device's weights (device_store.h): from RAM and from the pager's ring
 * to the device, and back.
 *
 * Copies are in the device's lane for weights. What the kind does on arrival is in a second lane, so the
 * copies of the next block do not wait for it. The host waits only where it must: when half of the ring's
 * pages are still leaving it for the device, and for resident weights, which later kernels read without a
 * mark.
 *
 * The resident pages in RAM of blocks that come for each visit, and the ring, are page-locked at the first
 * one, so that their copies are asynchronous and run at the link's rate; without page-locking they are
 * slower. */
#include "weights/device_store_parts.h"

#include "base/num.h"
#include "model/page_layout.h"

typedef struct copying {
    pager *p;
    int block;
    const view *from;     /* the block's weights on the host */
    device_block *to;     /* the slot; NULL: resident weights */
    device_store *staged; /* copy_by */
    nib_status status;    /* the first error */
    nib_error *err;
} copying;

static nib_status begin(const device_store *s, const char *what, device_lane lane, bool link, uint64_t bytes,
                        nib_error *err) {
    return s->watch.begin ? s->watch.begin(s->watch.user, what, lane, link, bytes, err) : NIB_OK;
}

static nib_status end(const device_store *s, device_lane lane, nib_error *err) {
    return s->watch.end ? s->watch.end(s->watch.user, lane, err) : NIB_OK;
}

static nib_status wait_for(const device_store *s, device_lane lane, nib_error *err) {
    device *d = s->setup.device;
    device_mark mark;
    NIB_TRY(d->kind->mark(d, lane, &mark, err));
    return d->kind->wait(d, mark, err);
}

/* staged: of the store itself, whose staging memory is used; NULL: `from` is copied as it is. */
static nib_status copy_by(const device_store *s, device_store *staged, uint8_t *to, const void *from,
                          uint64_t bytes, nib_error *err) {
    device *d = s->setup.device;
    NIB_TRY(begin(s, "copy weights", DEVICE_LOAD_WEIGHTS, true, bytes, err));
    NIB_TRY(staged ? store_staging_copy(staged, to, from, bytes, err)
                   : d->kind->copy(d, DEVICE_LOAD_WEIGHTS, to, from, bytes, err));
    return end(s, DEVICE_LOAD_WEIGHTS, err);
}

static nib_status copy_in(const device_store *s, uint8_t *to, const void *from, uint64_t bytes,
                          nib_error *err) {
    return copy_by(s, NULL, to, from, bytes, err);
}

/* Whether an expert that comes is copied from those that are resident. */
static bool is_near(const device_store *s, const copying *x, int64_t e) {
    return x->to && s->blocks[x->block].loaded && store_place(s, x->block, e) >= 0;
}

/* A stack of experts is copied one by one if only the host has padding between them. */
static int n_part(const device_store *s, const weight *of) {
    return of->n_expert > 1 && s->kind->tight_experts ? (int)of->n_expert : 1;
}

static nib_status copy_resident(const device_store *s, const copying *x, const weight *of, const void *from,
                                uint8_t *to, nib_error *err) {
    const view stack = {from, of->format, of->n, of->k};
    const int n = n_part(s, of);
    const int64_t each = of->n / n;
    if (n == 1)
        return copy_by(s, x->staged, to, from, store_bytes(s, of, of->n), err);
    for (int64_t e = 0; e < n; e++)
        if (!is_near(s, x, e))
            NIB_TRY(copy_by(s, x->staged, to + store_bytes(s, of, e * each),
                            page_layout_expert(&stack, n, e).data, store_bytes(s, of, each), err));
    return NIB_OK;
}

/* ---- pages of the ring ---- */

static nib_status copy_pieces(const device_store *s, copying *x, int w, uint8_t *to, nib_error *err) {
    const weight *of = store_weight_of(s, x->block, w);
    const int n = pager_n_piece(x->p, x->block, w);
    for (int i = 0; i < n; i++) {
        pager_piece piece;
        if (of->n_expert > 1 && is_near(s, x, i))
            continue;
        NIB_TRY(pager_release_to(x->p, s->setup.device, err));
        NIB_TRY(pager_fetch(x->p, x->block, w, i, &piece, err));
        const uint64_t first = store_bytes(s, of, piece.first_row);
        NIB_TRY(copy_in(s, to + first, piece.v.data, store_bytes(s, of, piece.first_row + piece.v.n) - first,
                        err));
    }
    return NIB_OK;
}

/* ---- one block ---- */

/* Whether the weight belongs to this loading: to the slot, or to what is resident. */
static bool is_wanted(const device_store *s, const copying *x, const store_weight *g) {
    const bool comes = g->exclusive && g->comes;
    return x->status == NIB_OK && comes == (x->to != NULL) && (comes || !s->layers_only);
}

/* Queues what the kind does on arrival. */
static nib_status arrange(const device_store *s, const weight *of, uint8_t *at, nib_error *err) {
    device *d = s->setup.device;
    const view matrix = {at, of->format, of->n, of->k};
    if (of->vector || !s->kind->arrange)
        return NIB_OK;
    NIB_TRY(begin(s, "order weights", DEVICE_ARRANGE_WEIGHTS, false, 2 * store_bytes(s, of, of->n), err));
    NIB_TRY(d->kind->arrange(d, DEVICE_ARRANGE_WEIGHTS, &matrix, true, err));
    return end(s, DEVICE_ARRANGE_WEIGHTS, err);
}

static uint8_t *target_of(const device_store *s, const copying *x, const store_weight *g) {
    return x->to ? x->to->at + g->at : store_at(s, g);
}

static void copy_weight(const device_store *s, int b, int w, void *user) {
    copying *x = user;
    store_weight *g = store_own(s, b, w);
    const weight *of = store_weight_of(s, b, w);
    if (!is_wanted(s, x, g) || g->loaded)
        return;
    uint8_t *to = target_of(s, x, g);
    x->status = x->from[w].data ? copy_resident(s, x, of, x->from[w].data, to, x->err)
                                : copy_pieces(s, x, w, to, x->err);
    g->loaded = g->arriving = x->status == NIB_OK;
}

/* Fills a slot's stack with the experts that are resident, which have the device's order. */
static nib_status copy_near(const device_store *s, const copying *x, const store_weight *g, nib_error *err) {
    device *d = s->setup.device;
    const int64_t each = g->of->n / g->of->n_expert;
    const device_lane lane = s->kind->arrange ? DEVICE_ARRANGE_WEIGHTS : DEVICE_LOAD_WEIGHTS;
    for (int64_t e = 0; e < g->of->n_expert; e++) {
        if (!is_near(s, x, e))
            continue;
        const uint8_t *from = (const uint8_t *)s->blocks[x->block].memory.at + g->kept_at +
                              store_bytes(s, g->of, store_place(s, x->block, e) * each);
        NIB_TRY(d->kind->copy(d, lane, x->to->at + g->at + store_bytes(s, g->of, e * each), from,
                              store_bytes(s, g->of, each), err));
    }
    return NIB_OK;
}

static void arrange_weight(const device_store *s, int b, int w, void *user) {
    copying *x = user;
    store_weight *g = store_own(s, b, w);
    if (!g->arriving)
        return;
    if (x->status == NIB_OK)
        x->status = arrange(s, store_weight_of(s, b, w), target_of(s, x, g), x->err);
    if (x->status == NIB_OK && g->of->n_expert > 1)
        x->status = copy_near(s, x, g, x->err);
    g->arriving = false;
    g->loaded = x->status == NIB_OK;
}

/* Copies the experts of a stack that are resident although the stack comes. */
static nib_status copy_experts(const device_store *s, copying *x, int w, const store_weight *g, uint8_t *to,
                               nib_error *err) {
    const view stack = {x->from[w].data, g->of->format, g->of->n, g->of->k};
    const int64_t each = g->of->n / g->of->n_expert;
    for (int64_t e = 0; e < g->of->n_expert; e++) {
        pager_piece piece = {.first_row = 0};
        if (store_place(s, x->block, e) < 0)
            continue;
        if (stack.data)
            piece.v = page_layout_expert(&stack, g->of->n_expert, e);
        NIB_TRY(pager_release_to(x->p, s->setup.device, err));
        if (!stack.data)
            NIB_TRY(pager_fetch(x->p, x->block, w, (int)e, &piece, err));
        NIB_TRY(copy_in(s, to + store_bytes(s, g->of, store_place(s, x->block, e) * each), piece.v.data,
                        store_bytes(s, g->of, each), err));
    }
    return NIB_OK;
}

static void keep_weight(const device_store *s, int b, int w, void *user) {
    copying *x = user;
    const store_weight *g = store_own(s, b, w);
    uint8_t *to = (uint8_t *)(uintptr_t)device_store_experts(s, b, w);
    if (x->status == NIB_OK && to && g->exclusive && g->of->n_expert > 1)
        x->status = copy_experts(s, x, w, g, to, x->err);
}

static void arrange_kept(const device_store *s, int b, int w, void *user) {
    copying *x = user;
    const store_weight *g = store_own(s, b, w);
    weight kept = *g->of;
    uint8_t *to = (uint8_t *)(uintptr_t)device_store_experts(s, b, w);
    kept.n = kept.n / NUM_MAX(kept.n_expert, 1) * s->setup.n_kept;
    if (x->status == NIB_OK && to && g->exclusive && g->of->n_expert > 1)
        x->status = arrange(s, &kept, to, x->err);
}

static nib_status copy_places(const device_store *s, int b, nib_error *err) {
    return copy_in(s, (uint8_t *)(uintptr_t)device_store_places(s, b),
                   s->setup.places + (int64_t)b * s->setup.n_place,
                   (uint64_t)s->setup.n_place * sizeof *s->setup.places, err);
}

/* Copies a table whose data is in RAM. The pager reads others from disk row by row. */
static void copy_table(const device_store *s, int b, int w, void *user) {
    const copying *x = user;
    const store_weight *g = store_own(s, b, w);
    if (x->from[w].data && store_at(s, g))
        copy_weight(s, b, w, user);
}

static void each_wanted(const device_store *s, copying *x, store_weight_fn of_product,
                        store_weight_fn of_table) {
    store_each_read(s, x->block, of_product, x);
    if (x->block == 0 && !x->to)
        store_each_table(s, of_table, x);
}

/* The copies of a block follow each other without a mark, which would cost the link 7 %; then comes what the
 * kind does on arrival. */
static void queue_all(const device_store *s, copying *x) {
    device *d = s->setup.device;
    device_mark copied;
    const bool keeps = !x->to && s->blocks[x->block].kept > 0;
    each_wanted(s, x, copy_weight, copy_table);
    if (keeps)
        store_each_read(s, x->block, keep_weight, x);
    if (keeps && x->status == NIB_OK)
        x->status = copy_places(s, x->block, x->err);
    if (s->kind->arrange && x->status == NIB_OK)
        x->status = d->kind->mark(d, DEVICE_LOAD_WEIGHTS, &copied, x->err);
    if (s->kind->arrange && x->status == NIB_OK)
        x->status = d->kind->follow(d, DEVICE_ARRANGE_WEIGHTS, copied, x->err);
    each_wanted(s, x, arrange_weight, arrange_weight);
    if (keeps)
        store_each_read(s, x->block, arrange_kept, x);
}

/* Copies what is wanted of a visit's block. After an error nothing that was queued is running. */
static nib_status copy_block(device_store *s, copying *x, const visit *v, const visits *rest) {
    const view *unused;
    visit once = *v;
    once.again = false; /* the host reads it once: the device keeps it for consecutive visits */
    pager_pin(x->p, &once, rest, &unused);
    queue_all(s, x);
    const nib_status ended = pager_release_to(x->p, s->setup.device, x->status == NIB_OK ? x->err : NULL);
    pager_unpin(x->p);
    x->status = x->status == NIB_OK ? ended : x->status;
    if (x->status != NIB_OK) {
        wait_for(s, DEVICE_LOAD_WEIGHTS, NULL);
        wait_for(s, DEVICE_ARRANGE_WEIGHTS, NULL);
    }
    return x->status;
}

static copying copying_of(const device_store *s, int b, device_block *to, nib_error *err) {
    return (copying){.p = s->pager, .block = b, .from = pager_views(s->pager, b), .to = to, .err = err};
}

/* ---- resident blocks ---- */

static void forget_apart(const device_store *s, int b, int w, void *user) {
    store_weight *g = store_own(s, b, w);
    (void)user;
    if (g->exclusive)
        g->loaded = false;
}

/* Tells the pager that it need not fetch the pages of resident matrices. A page that has others too is
 * fetched. */
static void set_copied(const device_store *s, int b, int w, void *user) {
    const bool copied = *(const bool *)user;
    if (store_own(s, b, w)->comes != copied)
        pager_set_copied(s->pager, b, w, copied);
}

void store_tell_pager(const device_store *s, int b) {
    bool copied = true;
    store_each_read(s, b, set_copied, &copied);
    copied = false;
    store_each_read(s, b, set_copied, &copied);
}

static page_filter kept_pages(const device_store *s, int b) {
    return (page_filter){.block = b, .pages = s->copied, .in = true};
}

/* After the tables were loaded, or were not because they are on disk. */
static void settle_tables(device_store *s) {
    const block *of = layout_block(s->layout, 0);
    bool all = !s->setup.host_too; /* otherwise the host also looks up rows */
    if (!device_store_has_tables(s)) {
        store_each_table(s, forget_apart, NULL);
        memory_region_close(&s->blocks[0].memory);
        return;
    }
    for (int w = 0; w < of->n_weight; w++) {
        const store_weight *g = store_own(s, 0, w);
        all = all && (of->weights[w].vector || of->weights[w].shared_block >= 0 || (g->loaded && !g->comes));
    }
    if (all)
        pager_drop(s->pager, (page_filter){.block = 0});
}

nib_status store_load(device_store *s, const visit *at, const visits *rest, nib_error *err) {
    const int b = at->block;
    copying x = copying_of(s, b, NULL, err);
    x.staged = store_staging_open(s) ? s : NULL;
    NIB_TRY(copy_block(s, &x, at, rest));
    NIB_TRY(wait_for(s, DEVICE_LOAD_WEIGHTS, err));
    if (s->kind->arrange)
        NIB_TRY(wait_for(s, DEVICE_ARRANGE_WEIGHTS, err));
    s->blocks[b].loaded = true;
    s->n_change++;
    if (b == 0)
        settle_tables(s);
    if (s->layers_only || b == 0)
        return NIB_OK;
    store_tell_pager(s, b);
    const uint64_t given_back = pager_drop(s->pager, kept_pages(s, b));
    s->blocks[b].only_here = given_back > 0;
    s->given_back += given_back;
    return NIB_OK;
}

/* Copies a weight to host memory, in the host's order. */
static void copy_back(const device_store *s, int b, int w, void *user) {
    copying *x = user;
    device *d = s->setup.device;
    store_weight *g = store_own(s, b, w);
    const weight *of = store_weight_of(s, b, w);
    void *to = pager_restored(s->pager, b, w);
    if (x->status != NIB_OK || !g->exclusive || g->comes || !g->loaded || !to)
        return;
    uint8_t *from = store_at(s, g);
    const view there = {from, of->format, of->n, of->k};
    const view host = {to, of->format, of->n, of->k};
    const int n = n_part(s, of);
    const int64_t each = of->n / n;
    if (s->kind->arrange)
        x->status = d->kind->arrange(d, DEVICE_COMPUTE, &there, false, x->err);
    for (int64_t e = 0; e < n && x->status == NIB_OK; e++)
        x->status = d->kind->copy(d, DEVICE_COMPUTE, (void *)(uintptr_t)page_layout_expert(&host, n, e).data,
                                  from + store_bytes(s, of, e * each), store_bytes(s, of, each), x->err);
    g->loaded = false;
}

nib_status store_return(device_store *s, int b, nib_error *err) {
    copying x = {.block = b, .err = err};
    if (s->blocks[b].only_here) {
        pager_restore(s->pager, kept_pages(s, b));
        s->given_back = 0; /* counted anew */
        store_each_read(s, b, copy_back, &x);
        NIB_TRY(x.status);
        NIB_TRY(wait_for(s, DEVICE_COMPUTE, err));
        s->blocks[b].only_here = false;
    }
    return NIB_OK;
}

/* ---- what comes for each visit ---- */

void store_unlock(device_store *s, int b) {
    device *d = s->setup.device;
    int n = 0;
    for (int i = 0; i < s->n_locked; i++)
        if (s->locked[i].block == b || b < 0)
            d->kind->unpin(d, s->locked[i].at, s->locked[i].bytes);
        else
            s->locked[n++] = s->locked[i];
    s->n_locked = n;
}

/* Locks the pages of the block that owns weight w (a tied head's is the embedding's), without those that the
 * device keeps. */
static void lock_owner(const device_store *of, int b, int w, void *user) {
    device_store *s = user; /* the same */
    device *d = of->setup.device;
    const store_weight *g = store_own(s, b, w);
    locked_pages l;
    bool is_locked = !g->exclusive || !g->comes;
    page_layout_own(s->layout, &b, &w);
    const page_filter others = {.block = b, .pages = s->copied, .in = false};
    for (int i = 0; i < s->n_locked; i++)
        is_locked = is_locked || s->locked[i].block == b;
    for (int i = 0; !is_locked && !s->lock_failed && pager_resident(s->pager, others, &i, &l.at, &l.bytes);) {
        l.block = b;
        s->lock_failed = d->kind->pin(d, l.at, l.bytes, NULL) != NIB_OK;
        if (!s->lock_failed)
            s->locked[s->n_locked++] = l;
    }
}

void store_lock(device_store *s, int b) {
    if (!s->lock_tried || s->lock_failed)
        return;
    store_each_read(s, b, lock_owner, s);
    if (!s->lock_failed)
        return;
    store_unlock(s, -1);
    log_line(s->setup.log, "the weights in RAM cannot be page-locked, so streaming them is slower");
}

static void lock_all(device_store *s) {
    if (s->lock_tried)
        return;
    s->lock_tried = true;
    for (int b = 0; b < layout_n_block(s->layout); b++)
        if (s->blocks[b].coming > 0)
            store_lock(s, b);
    locked_pages l = {.block = -1};
    if (!s->lock_failed && pager_ring_memory(s->pager, &l.at, &l.bytes) &&
        s->setup.device->kind->pin(s->setup.device, l.at, l.bytes, NULL) == NIB_OK)
        s->locked[s->n_locked++] = l;
}

/* Whether the next visit of the block loads resident weights. */
static bool loads_itself(const store_block *b) {
    return !b->loaded && (b->coming == 0 || b->coming < b->bytes);
}

/* Whether pages of the ring may be copied ahead of a visit: no other block reads pages before. */
static bool may_read_ahead(const device_store *s) {
    for (int b = 0; b < layout_n_block(s->layout); b++)
        if (((s->on_host && s->on_host[b]) || loads_itself(&s->blocks[b])) && pager_reads(s->pager, b))
            return false;
    return true;
}

static void forget(const device_store *s, int b, int w, void *user) {
    const copying *x = user;
    store_weight *g = store_own(s, b, w);
    if (!is_wanted(s, x, g))
        return;
    g->loaded = false;
    x->to->streamed = x->to->streamed || !x->from[w].data;
}

nib_status store_load_slot(void *user, device_block *to, const visit *v, const visits *rest, block_when when,
                           nib_error *err) {
    device_store *s = user;
    copying x = copying_of(s, v->block, to, err);
    lock_all(s);
    to->streamed = false;
    store_each_read(s, v->block, forget, &x);
    if (to->streamed && (when == BLOCK_NEXT_PASS || (when == BLOCK_AHEAD && !may_read_ahead(s))))
        return nib_fail(err, NIB_E_IO,
                        "expected all pages of the block in RAM to copy it ahead of its visit");
    return copy_block(s, &x, v, rest);
}
