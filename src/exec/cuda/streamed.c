/* streamed.c - blocks that are not resident in the GPU's memory: a source for tiers/device_blocks.h, which
 * owns the slots and their order. While one block is computed, the next streamed one is copied, and then the
 * one after it. The first block of the next pass follows the last block of a pass.
 *
 * A block's copies are in the copy lane for weights. The kernels that reorder the weights are in a second
 * lane, so the next block's copies do not wait for them. The host does not wait for either.
 *
 * The resident pages of these blocks in RAM are page-locked at the first visit, so that copies are
 * asynchronous and run at the link's rate; without page-locking they are slower. Pages that the pager streams
 * from disk are copied at the block's visit, because the pager gives them in that order. */
#include "base/mem.h"
#include "exec/cuda/cuda.h"
#include "model/page_layout.h"
#include "tiers/device_cuda.h"

/* Whether block b is streamed in this pass; the processor may compute it in place instead. */
static bool is_streamed(const void *user, int b) {
    const cuda *c = user;
    return c->is_streamed[b] && !in_place_alone(c, b);
}

static nib_status load_block(void *user, device_block *s, const visit *v, const visits *rest, bool ahead,
                             nib_error *err);

nib_status streamed_open(cuda *c, nib_error *err) {
    streamed_blocks *a = &c->streamed;
    const block_source from = {.user = c,
                               .lane = DEVICE_ARRANGE_WEIGHTS,
                               .n_block = layout_n_block(c->setup.layout),
                               .needs_slot = is_streamed,
                               .load = load_block};
    if (a->n_block == 0)
        return NIB_OK;
    /* second slices are separate ranges */
    a->locked = mem_calloc(2 * (size_t)layout_n_block(c->setup.layout), sizeof *a->locked);
    if (!a->locked)
        return nib_fail_nomem(err, 2 * (size_t)layout_n_block(c->setup.layout) * sizeof *a->locked,
                              "the list of locked pages");
    NIB_TRY(device_cuda_lane(c->base.device, DEVICE_LOAD_WEIGHTS, &a->load, err));
    NIB_TRY(device_cuda_lane(c->base.device, DEVICE_ARRANGE_WEIGHTS, &a->arrange, err));
    return device_blocks_open(&a->blocks, &from, a->bytes, c->base.device, c->setup.ledger, NIB_OWNER_STAGING,
                              err);
}

void streamed_close(cuda *c) {
    streamed_blocks *a = &c->streamed;
    if (a->load)
        c->k->stream_sync(a->load);
    if (a->arrange)
        c->k->stream_sync(a->arrange);
    streamed_unlock(c, -1);
    mem_free(a->locked);
    device_blocks_close(&a->blocks);
    *a = (streamed_blocks){.n_block = a->n_block, .bytes = a->bytes};
}

void streamed_forget(cuda *c) {
    c->k->stream_sync(c->streamed.load);
    c->k->stream_sync(c->streamed.arrange);
    device_blocks_forget(&c->streamed.blocks);
}

uint8_t *streamed_slot(const cuda *c, int b) {
    return device_blocks_slot(&c->streamed.blocks, b)->at;
}

/* ---- page-locking and copies ---- */

void streamed_unlock(cuda *c, int b) {
    streamed_blocks *a = &c->streamed;
    int n = 0;
    for (int i = 0; i < a->n_locked; i++)
        if (a->locked[i].block == b || b < 0)
            c->k->unpin(a->locked[i].at);
        else
            a->locked[n++] = a->locked[i];
    a->n_locked = n;
}

/* Locks the pages of the block that owns weight w (a tied head's is the embedding's). */
static void lock_owner(const cuda *c, int b, int w, void *user) {
    streamed_blocks *a = user;
    void *at;
    uint64_t bytes;
    bool is_locked = !weights_own(c, b, w)->streamed;
    page_layout_own(c->setup.layout, &b, &w);
    for (int i = 0; i < a->n_locked; i++)
        is_locked = is_locked || a->locked[i].block == b;
    for (int i = 0; !is_locked && !a->lock_failed && pager_resident(c->demotion.pager, b, &i, &at, &bytes);) {
        a->lock_failed = c->k->pin(at, (size_t)bytes) != 0;
        if (!a->lock_failed)
            a->locked[a->n_locked++] = (locked_pages){b, at};
    }
}

void streamed_lock(cuda *c, int b) {
    streamed_blocks *a = &c->streamed;
    if (!a->lock_tried || a->lock_failed)
        return;
    weights_each_read(c, b, lock_owner, a);
    if (!a->lock_failed)
        return;
    streamed_unlock(c, -1);
    log_line(c->setup.log,
             "the weights in RAM cannot be page-locked, so streaming them to the GPU is slower");
}

static void lock_pages(cuda *c) {
    if (c->streamed.lock_tried)
        return;
    c->streamed.lock_tried = true;
    for (int b = 0; b < layout_n_block(c->setup.layout); b++)
        if (c->is_streamed[b])
            streamed_lock(c, b);
}

typedef struct sending {
    const view *from; /* the block's weights on the host */
    uint8_t *to;      /* the slot */
    bool from_disk;   /* some weight is not resident in RAM */
    nib_status status;
    nib_error *err;
} sending;

static void forget(const cuda *c, int b, int w, void *user) {
    sending *x = user;
    gpu_weight *g = weights_own(c, b, w);
    if (!g->streamed)
        return;
    g->loaded = g->ordered = false;
    x->from_disk = x->from_disk || !x->from[w].data;
}

static void send_weight(const cuda *c, int b, int w, void *user) {
    sending *x = user;
    gpu_weight *g = weights_own(c, b, w);
    if (x->status != NIB_OK || !g->streamed || g->loaded)
        return;
    x->status = weights_copy(c, b, w, x->from[w].data, x->to + g->at, c->streamed.load, x->err);
    g->loaded = x->status == NIB_OK;
}

static void arrange_weight(const cuda *c, int b, int w, void *user) {
    sending *x = user;
    gpu_weight *g = weights_own(c, b, w);
    if (x->status != NIB_OK || !g->streamed || g->ordered)
        return;
    x->status = weights_order(c, b, w, x->to + g->at, c->streamed.arrange, x->err);
    g->ordered = true;
}

/* Copies are queued in the order of the program, which is that of the pages that the pager streams. */
static nib_status send(cuda *c, int b, sending *x) {
    device *d = c->base.device;
    device_mark copied;
    weights_each_read(c, b, send_weight, x);
    NIB_TRY(x->status);
    NIB_TRY(d->kind->mark(d, DEVICE_LOAD_WEIGHTS, &copied, x->err));
    NIB_TRY(d->kind->follow(d, DEVICE_ARRANGE_WEIGHTS, copied, x->err));
    weights_each_read(c, b, arrange_weight, x);
    return x->status;
}

/* Loads a block. Pages on disk cannot be prefetched, so they are copied at the visit. */
static nib_status load_block(void *user, device_block *s, const visit *v, const visits *rest, bool ahead,
                             nib_error *err) {
    cuda *c = user;
    const int b = v->block;
    sending x = {.from = pager_views(c->run.pager, b), .to = s->at, .err = err};
    (void)rest;
    weights_each_read(c, b, forget, &x);
    s->streamed = x.from_disk;
    if (ahead && x.from_disk)
        return nib_fail(err, NIB_E_IO,
                        "expected all pages of the block in RAM to copy it ahead of its visit");
    const nib_status status = send(c, b, &x);
    if (status != NIB_OK) { /* so that nothing writes the slot */
        c->k->stream_sync(c->streamed.load);
        c->k->stream_sync(c->streamed.arrange);
    }
    return status;
}

nib_status streamed_acquire(cuda *c, nib_error *err) {
    device *d = c->base.device;
    const device_block *s;
    lock_pages(c);
    NIB_TRY(device_blocks_acquire(&c->streamed.blocks, &c->run.visit, c->run.rest, &s, err));
    return d->kind->follow(d, DEVICE_COMPUTE, s->loaded, err);
}

nib_status streamed_release(cuda *c, nib_error *err) {
    return device_blocks_release(&c->streamed.blocks, &c->run.visit, c->run.rest, err);
}

void streamed_end(cuda *c) {
    device_blocks_end(&c->streamed.blocks);
}
