/* device_blocks.c - see device_blocks.h. */
#include "tiers/device_blocks.h"

#include "base/mem.h"
#include "base/num.h"

#include <string.h>

enum { ALIGN = 256 }; /* of a weight on a device */

/* ---- opening ---- */

static uint64_t bytes_of(const view *v) {
    uint64_t n = 0;
    pack_bytes(&v->format, v->n, v->k, &n);
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

static uint64_t largest_block(const layout *l, int *n_weight) {
    uint64_t max = ALIGN;
    *n_weight = 1;
    for (int b = 0; b < layout_n_block(l); b++) {
        const block *of = layout_block(l, b);
        uint64_t sum = 0;
        for (int i = 0; i < of->n_weight; i++)
            sum += bytes_of(&(view){NULL, of->weights[i].format, of->weights[i].n, of->weights[i].k});
        max = NUM_MAX(max, sum);
        *n_weight = NUM_MAX(*n_weight, of->n_weight);
    }
    return max;
}

uint64_t device_blocks_bytes(const layout *l) {
    int n_weight;
    return DEVICE_BLOCKS * largest_block(l, &n_weight);
}

nib_status device_blocks_open(device_blocks *b, const layout *l, device *d, ledger *to, int owner,
                              nib_error *err) {
    int n_weight;
    const uint64_t each = largest_block(l, &n_weight);
    *b = (device_blocks){.layout = l, .device = d};
    b->views = mem_calloc(DEVICE_BLOCKS * (size_t)n_weight, sizeof *b->views);
    if (!b->views)
        return nib_fail_nomem(err, DEVICE_BLOCKS * (size_t)n_weight * sizeof *b->views, "views of weights");
    const nib_status status =
        tier_region_open(&b->memory, d, to, owner, DEVICE_BLOCKS * each, false, "weights on the device", err);
    for (int i = 0; i < DEVICE_BLOCKS && status == NIB_OK; i++)
        b->slots[i] = (device_block){.block = -1,
                                     .at = (uint8_t *)b->memory.at + (uint64_t)i * each,
                                     .views = b->views + (size_t)i * (size_t)n_weight};
    if (status != NIB_OK)
        device_blocks_close(b);
    return status;
}

void device_blocks_close(device_blocks *b) {
    tier_region_close(&b->memory);
    mem_free(b->views);
    memset(b, 0, sizeof *b);
}

/* ---- slots ---- */

static device_block *slot_of(device_blocks *b, int block_index) {
    for (int i = 0; i < DEVICE_BLOCKS; i++)
        if (b->slots[i].block == block_index)
            return &b->slots[i];
    return NULL;
}

page_where device_blocks_where(const device_blocks *b, int block_index) {
    for (int i = 0; i < DEVICE_BLOCKS; i++)
        if (b->slots[i].block == block_index)
            return b->slots[i].was_followed ? PAGE_HERE : PAGE_ARRIVING;
    return PAGE_ABSENT;
}

/* Which of the slots that nobody has acquired is taken: an empty one, else the one whose block is needed last
 * (Belady). NULL: there is none. */
static device_block *choose(device_blocks *b, const visits *rest) {
    bool stays[DEVICE_BLOCKS] = {false};
    int n_left = 0;
    for (int i = 0; i < DEVICE_BLOCKS; i++) {
        stays[i] = b->slots[i].acquired;
        n_left += !stays[i];
        if (b->slots[i].block < 0)
            return &b->slots[i];
    }
    visits list = *rest;
    for (visit v; n_left > 1 && visits_next(&list, &v);)
        for (int i = 0; i < DEVICE_BLOCKS && n_left > 1; i++)
            if (!stays[i] && b->slots[i].block == v.block) {
                stays[i] = true;
                n_left--;
            }
    for (int i = 0; i < DEVICE_BLOCKS; i++)
        if (!stays[i])
            return &b->slots[i];
    return NULL;
}

/* ---- copies ---- */

typedef struct copying {
    device_blocks *b;
    device_block *s;
    pager *p;
    uint8_t *at;   /* where the next weight goes */
    bool borrowed; /* a page of the ring is copied from */
} copying;

static nib_status copy(const copying *c, uint8_t *to, const view *rows, nib_error *err) {
    uint64_t n = 0;
    pack_bytes(&rows->format, rows->n, rows->k, &n);
    return c->b->device->kind->copy(c->b->device, DEVICE_LOAD_WEIGHTS, to, rows->data, n, err);
}

/* Nothing is copied from the page any more. */
static nib_status give_page_back(copying *c, nib_error *err) {
    device *d = c->b->device;
    device_mark mark;
    nib_status status = NIB_OK;
    if (c->borrowed) {
        status = d->kind->mark(d, DEVICE_LOAD_WEIGHTS, &mark, err);
        if (status == NIB_OK)
            status = d->kind->wait(d, mark, err);
    }
    c->borrowed = false;
    pager_release(c->p);
    return status;
}

static nib_status copy_pieces(copying *c, int block_index, int w, uint8_t *to, nib_error *err) {
    const int n = pager_n_piece(c->p, block_index, w);
    for (int i = 0; i < n; i++) {
        pager_piece piece;
        uint64_t before = 0;
        NIB_TRY(give_page_back(c, err));
        NIB_TRY(pager_fetch(c->p, block_index, w, i, &piece, err));
        c->borrowed = c->s->streamed = true;
        pack_bytes(&piece.v.format, piece.first_row, piece.v.k, &before);
        NIB_TRY(copy(c, to + before, &piece.v, err));
    }
    return NIB_OK;
}

/* Weight w, unless it is there. */
static nib_status copy_weight(copying *c, const visit *v, int w, bool is_table, nib_error *err) {
    const view *from = w < 0 ? NULL : &pager_views(c->p, v->block)[w];
    if (!from || c->s->views[w].data || (is_table && !from->data))
        return NIB_OK;
    NIB_TRY(from->data ? copy(c, c->at, from, err) : copy_pieces(c, v->block, w, c->at, err));
    c->s->views[w].data = c->at;
    c->at += bytes_of(from);
    return NIB_OK;
}

/* In the order of the program, which is the pager's. */
static nib_status copy_weights(copying *c, const visit *v, nib_error *err) {
    const block *of = layout_block(c->b->layout, v->block);
    for (int i = 0; i < of->n_weight; i++) {
        c->s->views[i] = pager_views(c->p, v->block)[i];
        c->s->views[i].data = NULL;
    }
    for (int i = 0; i < of->program.n_op; i++) {
        const op *o = &of->program.ops[i];
        const bool is_table = o->kind == OP_EMBED || o->kind == OP_EMBED_POS || o->kind == OP_SHORTLIST;
        NIB_TRY(copy_weight(c, v, o->w, is_table, err));
        NIB_TRY(copy_weight(c, v, o->b, false, err));
    }
    return NIB_OK;
}

/* A visit's block to a slot; rest: the visits behind it. */
static nib_status load_block(device_blocks *b, device_block *s, pager *p, const visit *v, const visits *rest,
                             nib_error *err) {
    device *d = b->device;
    const view *unused;
    visit once = *v;
    copying c = {.b = b, .s = s, .p = p, .at = s->at};
    once.again = false; /* of the host: the device has it for the visits in a row */
    s->block = -1;
    s->streamed = s->was_followed = false;
    if (s->was_used)
        NIB_TRY(d->kind->follow(d, DEVICE_LOAD_WEIGHTS, s->used, err));
    pager_pin(p, &once, rest, &unused);
    nib_status status = copy_weights(&c, v, err);
    const nib_status ended = give_page_back(&c, status == NIB_OK ? err : NULL);
    pager_unpin(p);
    status = status == NIB_OK ? ended : status;
    if (status == NIB_OK)
        status = d->kind->mark(d, DEVICE_LOAD_WEIGHTS, &s->arrives, err);
    if (status == NIB_OK)
        s->block = v->block;
    return status;
}

/* The next blocks, each to a slot of its own. */
static void load_ahead(device_blocks *b, pager *p, int now, const visits *rest) {
    visits list = *rest;
    int n = 1, before = now;
    for (visit v; n < DEVICE_BLOCKS && visits_next(&list, &v); before = v.block) {
        if (v.block == before || v.block == now)
            continue;
        device_block *s = slot_of(b, v.block) ? NULL : choose(b, rest);
        if (s && load_block(b, s, p, &v, &list, NULL) != NIB_OK)
            return;
        n++;
    }
}

nib_status device_blocks_acquire(device_blocks *b, pager *p, const visit *at, const visits *rest,
                                 const view **views, device_mark *mark, nib_error *err) {
    device_block *s = slot_of(b, at->block);
    if (!s) {
        s = choose(b, rest);
        NIB_TRY(load_block(b, s, p, at, rest, err));
    }
    s->acquired = true;
    *views = s->views;
    *mark = s->arrives;
    load_ahead(b, p, at->block, rest);
    return NIB_OK;
}

nib_status device_blocks_release(device_blocks *b, const visit *at, nib_error *err) {
    device *d = b->device;
    device_block *s = slot_of(b, at->block);
    s->acquired = false;
    s->was_used = s->was_followed = true;
    if (s->streamed && !at->again)
        s->block = -1; /* the host foresees its pages again */
    return d->kind->mark(d, DEVICE_COMPUTE, &s->used, err);
}

void device_blocks_end(device_blocks *b) {
    for (int i = 0; i < DEVICE_BLOCKS; i++) {
        b->slots[i].acquired = false;
        if (b->slots[i].streamed)
            b->slots[i].block = -1;
    }
}
