/* from_disk.c - see from_disk.h. */
#include "exec/cpu/from_disk.h"

#include "base/mem.h"
#include "base/num.h"
#include "kernels/kv_layout.h"

#include <string.h>

enum { SLOT_BYTES = 2 << 20 }; /* of a slot that holds several sequences */

/* Pages of a slot: those of a sequence, or of several short ones. */
static int64_t slot_pages(const backend_setup *s, uint64_t stride) {
    const int64_t each = num_div_up(s->n_ctx, KV_BLOCK), all = each * NUM_MAX(s->n_sequence, 1);
    return NUM_MAX(each, NUM_MIN(all, (int64_t)(SLOT_BYTES / stride)));
}

/* Pages of a pass, in its lists. */
static int64_t list_pages(const backend_setup *s) {
    return num_div_up(s->n_ctx, KV_BLOCK) * NUM_MAX(s->n_sequence, 1);
}

uint64_t from_disk_bytes(const backend_setup *s) {
    const uint64_t stride = s->kv.on_disk ? kv_paging_stride(s->layout, s->kv) : 0;
    if (stride == 0)
        return 0;
    return kv_stage_bytes(kv_stage_slot(stride, (uint64_t)slot_pages(s, stride), 0, 0),
                          (uint64_t)list_pages(s));
}

nib_status from_disk_open(from_disk *k, const backend_setup *s, nib_error *err) {
    const uint64_t stride = s->disk ? kv_paging_stride(s->layout, s->kv) : 0;
    from_disk_close(k);
    if (stride == 0)
        return NIB_OK;
    const kv_stage_setup how = {.device = s->disk,
                                .memory = device_host(),
                                .host = s->disk,
                                .ledger = s->ledger,
                                .stride = stride,
                                .n_page = slot_pages(s, stride),
                                .n_list = list_pages(s)};
    return kv_stage_open(&how, &k->stage, err);
}

void from_disk_close(from_disk *k) {
    kv_stage_close(k->stage);
    mem_free(k->views);
    mem_free(k->first);
    mem_free(k->pages);
    *k = (from_disk){.stage = NULL};
}

static int64_t pages_of(const segment *s) {
    return num_div_up(s->position + s->n_row, KV_BLOCK);
}

nib_status from_disk_begin(from_disk *k, const backend_pass *p, nib_error *err) {
    int64_t n_page = 0;
    k->now = k->stage && p->n_segment > 0 && kv_pool_host(p->segments[0].kv->pool);
    if (!k->now)
        return NIB_OK;
    if (mem_grow((void **)&k->views, &k->max_views, (size_t)p->n_segment, sizeof *k->views) ||
        mem_grow((void **)&k->first, &k->max_first, (size_t)p->n_segment, sizeof *k->first))
        return nib_fail_nomem(err, (size_t)p->n_segment * sizeof *k->views, "the sequences of a pass");
    k->segments = p->segments;
    k->n_segment = p->n_segment;
    kv_stage_clear(k->stage);
    for (int i = 0; i < p->n_segment; i++) {
        const segment *s = &p->segments[i];
        const kv_stage_rows rows = {.kv = s->kv, .first = s->position, .end = s->position + s->n_row};
        NIB_TRY(kv_stage_add(k->stage, &rows, err));
        k->first[i] = n_page;
        n_page += pages_of(s);
    }
    if (mem_grow((void **)&k->pages, &k->max_pages, (size_t)n_page, sizeof *k->pages))
        return nib_fail_nomem(err, (size_t)n_page * sizeof *k->pages, "the pages of a pass");
    return kv_stage_begin(k->stage, err);
}

nib_status from_disk_end(from_disk *k, nib_error *err) {
    return k->now ? kv_stage_end(k->stage, err) : NIB_OK;
}

bool from_disk_has(const from_disk *k, const op *o) {
    return k->now && o->kind == OP_ATTENTION &&
           kv_pool_paging(k->segments->kv->pool)->layers[o->u.attn.layer].home == KV_HOME_STAGED;
}

/* The page that stays incomplete is used where it is, in RAM. The one that was incomplete and will be full is
 * moved to the slot, before the segment's first row (`begins`), and goes to the disk from there. */
static void use_tail(const segment *s, const kv_paging *paging, int layer, bool begins, uint8_t **pages) {
    const kv_layer *l = &paging->layers[layer];
    const int64_t first = s->position / KV_BLOCK, last = (s->position + s->n_row) / KV_BLOCK;
    if (kv_is_coded(l->type))
        return;
    uint8_t *tail = (uint8_t *)s->kv->tail.at + l->tail_at;
    if (begins && first < last && s->position % KV_BLOCK)
        memcpy(pages[first], tail, kv_layer_bytes(paging, l));
    if (last < pages_of(s))
        pages[last] = tail;
}

/* Makes the segment's view that of the layer in the slot, for rows of the pass from `row` on. */
static void set_view(const from_disk *k, int i, int layer, int64_t row, const kv_stage_part *part) {
    const segment *s = &k->segments[i];
    const kv_view *home = &s->kv->layers[layer];
    uint8_t **pages = k->pages + k->first[i];
    for (int64_t b = 0; b < pages_of(s); b++)
        pages[b] = part->key + (int64_t)part->pages[k->first[i] + b] * DEVICE_PAGE;
    use_tail(s, kv_pool_paging(s->kv->pool), layer, s->row >= row, pages);
    k->views[i] = *home;
    k->views[i].pages = pages;
    k->views[i].key_at = 0;
    k->views[i].value_at = home->value_at - home->key_at;
}

nib_status from_disk_acquire(from_disk *k, int layer, int64_t row, int64_t *end, nib_error *err) {
    kv_stage_part part;
    NIB_TRY(kv_stage_acquire(k->stage, layer, row, &part, err));
    int64_t at = row;
    const segment *s = visits_segment(k->segments, k->n_segment, false, &at);
    for (int i = (int)(s - k->segments); i < k->n_segment && k->segments[i].row < part.end; i++)
        set_view(k, i, layer, row, &part);
    *end = part.end;
    return NIB_OK;
}

nib_status from_disk_release(from_disk *k, nib_error *err) {
    return kv_stage_release(k->stage, err);
}
