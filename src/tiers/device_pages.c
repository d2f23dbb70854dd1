/* device_pages.c - see device_pages.h. */
#include "tiers/device_pages.h"

#include "base/mem.h"
#include "base/num.h"
#include "model/page_layout.h"

#include <string.h>

enum { ALIGN = 256 }; /* bytes: alignment of a weight on a device */

/* ---- opening ---- */

static uint64_t bytes_of(const weight *w) {
    return (page_layout_bytes(w, w->n) + ALIGN - 1) / ALIGN * ALIGN;
}

static uint64_t largest_block(const layout *l, bool layers_only, int *n_weight) {
    const int skipped = layers_only;
    uint64_t max = ALIGN;
    *n_weight = 1;
    for (int b = skipped; b < layout_n_block(l) - skipped; b++) {
        const block *of = layout_block(l, b);
        uint64_t sum = 0;
        for (int i = 0; i < of->n_weight; i++)
            sum += bytes_of(&of->weights[i]);
        max = NUM_MAX(max, sum);
        *n_weight = NUM_MAX(*n_weight, of->n_weight);
    }
    return max;
}

uint64_t device_pages_bytes(const layout *l) {
    int n_weight;
    return DEVICE_BLOCKS * largest_block(l, false, &n_weight);
}

uint64_t device_pages_layer_bytes(const layout *l) {
    int n_weight;
    return largest_block(l, true, &n_weight);
}

bool device_pages_has(const device_pages *b, int block_index) {
    return !b->layers_only || (block_index > 0 && block_index < layout_n_block(b->layout) - 1);
}

static nib_status load_block(void *user, device_block *s, const visit *v, const visits *rest, bool ahead,
                             nib_error *err);

static nib_status open_slots(device_pages *b, const layout *l, bool layers_only, device *d, ledger *to,
                             int owner, nib_error *err) {
    const block_source from = {
        .user = b, .lane = DEVICE_LOAD_WEIGHTS, .n_slot = layers_only ? 1 : 0, .load = load_block};
    int n_weight;
    const uint64_t each = largest_block(l, layers_only, &n_weight);
    *b = (device_pages){.layout = l, .layers_only = layers_only, .n_weight = n_weight};
    b->views = mem_calloc(DEVICE_BLOCKS * (size_t)n_weight, sizeof *b->views);
    if (!b->views)
        return nib_fail_nomem(err, DEVICE_BLOCKS * (size_t)n_weight * sizeof *b->views, "views of weights");
    const nib_status status = device_blocks_open(&b->blocks, &from, each, d, to, owner, err);
    if (status != NIB_OK)
        device_pages_close(b);
    return status;
}

nib_status device_pages_open(device_pages *b, const layout *l, device *d, ledger *to, int owner,
                             nib_error *err) {
    return open_slots(b, l, false, d, to, owner, err);
}

nib_status device_pages_open_layer(device_pages *b, const layout *l, ledger *to, int owner, nib_error *err) {
    return open_slots(b, l, true, device_host(), to, owner, err);
}

void device_pages_close(device_pages *b) {
    device_blocks_close(&b->blocks);
    mem_free(b->views);
    memset(b, 0, sizeof *b);
}

static view *views_of(const device_pages *b, const device_block *s) {
    return b->views + (size_t)s->index * (size_t)b->n_weight;
}

/* ---- copies ---- */

typedef struct copying {
    device_pages *b;
    device_block *s;
    pager *p;
    view *views;
    uint8_t *at;   /* destination of the next weight */
    bool borrowed; /* a copy from a page of the ring is in flight */
} copying;

static nib_status copy(const copying *c, uint8_t *to, const view *rows, uint64_t n, nib_error *err) {
    device *d = c->b->blocks.device;
    return d->kind->copy(d, DEVICE_LOAD_WEIGHTS, to, rows->data, n, err);
}

/* Bytes of the first n rows of a weight, where its next row begins. */
static uint64_t bytes_before(const weight *w, int64_t n) {
    uint64_t bytes = 0;
    if (w->n_expert > 1)
        return page_layout_bytes(w, n);
    pack_bytes(&w->format, n, w->k, &bytes);
    return bytes;
}

/* Waits until the copies from the page have ended, and releases it. */
static nib_status give_page_back(copying *c, nib_error *err) {
    device *d = c->b->blocks.device;
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
    const weight *of = &layout_block(c->b->layout, block_index)->weights[w];
    const int n = pager_n_piece(c->p, block_index, w);
    for (int i = 0; i < n; i++) {
        pager_piece piece;
        NIB_TRY(give_page_back(c, err));
        NIB_TRY(pager_fetch(c->p, block_index, w, i, &piece, err));
        c->borrowed = c->s->streamed = true;
        const uint64_t begin = bytes_before(of, piece.first_row);
        NIB_TRY(copy(c, to + begin, &piece.v, bytes_before(of, piece.first_row + piece.v.n) - begin, err));
    }
    return NIB_OK;
}

/* Copies weight w, unless the slot has it. */
static nib_status copy_weight(copying *c, const visit *v, int w, bool is_table, nib_error *err) {
    const view *from = w < 0 ? NULL : &pager_views(c->p, v->block)[w];
    if (!from || c->views[w].data || (is_table && !from->data))
        return NIB_OK;
    const weight *of = &layout_block(c->b->layout, v->block)->weights[w];
    NIB_TRY(from->data ? copy(c, c->at, from, bytes_before(of, from->n), err)
                       : copy_pieces(c, v->block, w, c->at, err));
    c->views[w].data = c->at;
    c->at += bytes_of(of);
    return NIB_OK;
}

/* Copies the block's weights in the order of the program, which is the pager's order. */
static nib_status copy_weights(copying *c, const visit *v, nib_error *err) {
    const block *of = layout_block(c->b->layout, v->block);
    for (int i = 0; i < of->n_weight; i++) {
        c->views[i] = pager_views(c->p, v->block)[i];
        c->views[i].data = NULL;
    }
    for (int i = 0; i < of->program.n_op; i++) {
        const op *o = &of->program.ops[i];
        const bool is_table = o->kind == OP_EMBED || o->kind == OP_EMBED_POS || o->kind == OP_SHORTLIST;
        NIB_TRY(copy_weight(c, v, o->w, is_table, err));
        NIB_TRY(copy_weight(c, v, o->b, false, err));
        NIB_TRY(copy_weight(c, v, o->w2, false, err));
    }
    return NIB_OK;
}

static nib_status load_block(void *user, device_block *s, const visit *v, const visits *rest, bool ahead,
                             nib_error *err) {
    device_pages *b = user;
    const view *unused;
    visit once = *v;
    copying c = {.b = b, .s = s, .p = b->from, .views = views_of(b, s), .at = s->at};
    (void)ahead;
    once.again = false; /* the host reads it once: the device keeps it for consecutive visits */
    pager_pin(b->from, &once, rest, &unused);
    const nib_status status = copy_weights(&c, v, err);
    const nib_status ended = give_page_back(&c, status == NIB_OK ? err : NULL);
    pager_unpin(b->from);
    return status == NIB_OK ? ended : status;
}

nib_status device_pages_acquire(device_pages *b, pager *p, const visit *at, const visits *rest,
                                const view **views, device_mark *mark, nib_error *err) {
    const device_block *s;
    b->from = p;
    NIB_TRY(device_blocks_acquire(&b->blocks, at, rest, &s, err));
    *views = views_of(b, s);
    *mark = s->loaded;
    return NIB_OK;
}

nib_status device_pages_release(device_pages *b, const visit *at, const visits *rest, nib_error *err) {
    return device_blocks_release(&b->blocks, at, rest, err);
}
