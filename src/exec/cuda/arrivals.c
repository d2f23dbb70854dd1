/* arrivals.c - blocks that do not stay in the GPU's memory: a source of tiers/device_blocks.h, which has the
 * slots and their order. While one block computes, the next one that comes is on its way, and behind it the
 * one after; behind the last one of a pass that is the first one again.
 *
 * A block's copies are in the lane for weights; what puts them in order for the kernels is in a lane of its
 * own behind them, so that the next block's copies do not wait for it. The host waits for neither.
 *
 * What the pager keeps of them in RAM is page-locked when the first block comes, so that copies are queued
 * and run at the link's rate; where that cannot be, they are slower. What the pager itself streams from disk
 * comes when its block is visited, since its pages have to be fetched in that order. */
#include "base/mem.h"
#include "exec/cuda/cuda.h"
#include "model/page_layout.h"
#include "tiers/device_cuda.h"

/* Whether block b comes in this pass: the processor computes others where they are. */
static bool is_awaited(const void *user, int b) {
    const cuda *c = user;
    return c->comes[b] && !in_place_has(c, b);
}

static nib_status load_block(void *user, device_block *s, const visit *v, const visits *rest, bool ahead,
                             nib_error *err);

nib_status arrivals_open(cuda *c, nib_error *err) {
    arrivals *a = &c->arrivals;
    const block_source from = {.user = c,
                               .lane = DEVICE_ARRANGE_WEIGHTS,
                               .n_block = layout_n_block(c->setup.layout),
                               .comes = is_awaited,
                               .load = load_block};
    if (a->n_block == 0)
        return NIB_OK;
    /* second slices stand apart from first ones */
    a->locked = mem_calloc(2 * (size_t)layout_n_block(c->setup.layout), sizeof *a->locked);
    if (!a->locked)
        return nib_fail_nomem(err, 2 * (size_t)layout_n_block(c->setup.layout) * sizeof *a->locked,
                              "the list of locked pages");
    NIB_TRY(device_cuda_lane(c->base.device, DEVICE_LOAD_WEIGHTS, &a->load, err));
    NIB_TRY(device_cuda_lane(c->base.device, DEVICE_ARRANGE_WEIGHTS, &a->arrange, err));
    return device_blocks_open(&a->blocks, &from, a->bytes, c->base.device, c->setup.ledger, NIB_OWNER_STAGING,
                              err);
}

void arrivals_close(cuda *c) {
    arrivals *a = &c->arrivals;
    if (a->load)
        c->k->stream_sync(a->load);
    if (a->arrange)
        c->k->stream_sync(a->arrange);
    arrivals_unlock(c, -1);
    mem_free(a->locked);
    device_blocks_close(&a->blocks);
    *a = (arrivals){.n_block = a->n_block, .bytes = a->bytes};
}

void arrivals_forget(cuda *c) {
    c->k->stream_sync(c->arrivals.load);
    c->k->stream_sync(c->arrivals.arrange);
    device_blocks_forget(&c->arrivals.blocks);
}

uint8_t *arrivals_at(const cuda *c, int b) {
    return device_blocks_slot(&c->arrivals.blocks, b)->at;
}

/* ---- on their way ---- */

void arrivals_unlock(cuda *c, int b) {
    arrivals *a = &c->arrivals;
    int n = 0;
    for (int i = 0; i < a->n_locked; i++)
        if (a->locked[i].block == b || b < 0)
            c->k->unpin(a->locked[i].at);
        else
            a->locked[n++] = a->locked[i];
    a->n_locked = n;
}

/* Of the blocks that own what block b reads, which may be another one (a tied head's is the embedding). */
static void lock_owner(const cuda *c, int b, int w, void *user) {
    arrivals *a = user;
    void *at;
    uint64_t bytes;
    bool is_locked = !weights_own(c, b, w)->comes;
    page_layout_own(c->setup.layout, &b, &w);
    for (int i = 0; i < a->n_locked; i++)
        is_locked = is_locked || a->locked[i].block == b;
    for (int i = 0; !is_locked && !a->refused && pager_resident(c->demotion.pager, b, &i, &at, &bytes);) {
        a->refused = c->k->pin(at, (size_t)bytes) != 0;
        if (!a->refused)
            a->locked[a->n_locked++] = (locked_pages){b, at};
    }
}

void arrivals_lock(cuda *c, int b) {
    arrivals *a = &c->arrivals;
    if (!a->asked || a->refused)
        return;
    weights_each_read(c, b, lock_owner, a);
    if (!a->refused)
        return;
    arrivals_unlock(c, -1);
    log_line(c->setup.log, "the weights in RAM cannot be page-locked, so they come to the GPU more slowly");
}

static void lock_pages(cuda *c) {
    if (c->arrivals.asked)
        return;
    c->arrivals.asked = true;
    for (int b = 0; b < layout_n_block(c->setup.layout); b++)
        if (c->comes[b])
            arrivals_lock(c, b);
}

typedef struct sending {
    const view *from; /* the block's, on the host */
    uint8_t *to;      /* the slot */
    bool streamed;    /* one of them is not resident there */
    nib_status status;
    nib_error *err;
} sending;

static void forget(const cuda *c, int b, int w, void *user) {
    sending *x = user;
    gpu_weight *g = weights_own(c, b, w);
    if (!g->comes)
        return;
    g->there = g->ordered = false;
    x->streamed = x->streamed || !x->from[w].data;
}

static void send_weight(const cuda *c, int b, int w, void *user) {
    sending *x = user;
    gpu_weight *g = weights_own(c, b, w);
    if (x->status != NIB_OK || !g->comes || g->there)
        return;
    x->status = weights_copy(c, b, w, x->from[w].data, x->to + g->at, c->arrivals.load, x->err);
    g->there = x->status == NIB_OK;
}

static void arrange_weight(const cuda *c, int b, int w, void *user) {
    sending *x = user;
    gpu_weight *g = weights_own(c, b, w);
    if (x->status != NIB_OK || !g->comes || g->ordered)
        return;
    x->status = weights_order(c, b, w, x->to + g->at, c->arrivals.arrange, x->err);
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

/* What is streamed cannot be sent ahead: it comes when it is visited. */
static nib_status load_block(void *user, device_block *s, const visit *v, const visits *rest, bool ahead,
                             nib_error *err) {
    cuda *c = user;
    const int b = v->block;
    sending x = {.from = pager_views(c->run.pager, b), .to = s->at, .err = err};
    (void)rest;
    weights_each_read(c, b, forget, &x);
    s->streamed = x.streamed;
    if (ahead && x.streamed)
        return nib_fail(err, NIB_E_IO, "its pages are not in RAM");
    const nib_status status = send(c, b, &x);
    if (status != NIB_OK) { /* nothing of it writes the slot any more */
        c->k->stream_sync(c->arrivals.load);
        c->k->stream_sync(c->arrivals.arrange);
    }
    return status;
}

nib_status arrivals_take(cuda *c, nib_error *err) {
    device *d = c->base.device;
    const device_block *s;
    lock_pages(c);
    NIB_TRY(device_blocks_acquire(&c->arrivals.blocks, &c->run.visit, c->run.rest, &s, err));
    return d->kind->follow(d, DEVICE_COMPUTE, s->arrives, err);
}

nib_status arrivals_give(cuda *c, nib_error *err) {
    return device_blocks_release(&c->arrivals.blocks, &c->run.visit, c->run.rest, err);
}

void arrivals_end(cuda *c) {
    device_blocks_end(&c->arrivals.blocks);
}
