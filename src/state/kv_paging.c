/* kv_paging.c - see kv_paging.h. */
#include "state/kv_paging.h"

#include "base/mem.h"
#include "base/num.h"
#include "kernels/entries.h"
#include "kernels/kv_layout.h"

#include <string.h>

enum { SYSTEM_PAGE = 4096 };

/* The first op of the layout, or of the whole model, that attends to the layer; *n: their number. */
static const op *attention_of(const layout *lay, bool whole, int layer, int *n) {
    const op *found = NULL;
    *n = 0;
    for (int b = 0; b < layout_n_block(lay); b++) {
        const program *p = &(whole ? model_block(layout_model(lay), b) : layout_block(lay, b))->program;
        for (int i = 0; i < p->n_op; i++)
            if (p->ops[i].kind == OP_ATTENTION && p->ops[i].u.attn.layer == layer && (*n)++ == 0)
                found = &p->ops[i];
    }
    return found;
}

/* Whether the layer is in the pages' parts. */
static bool slides(kv_formats formats, const op *o) {
    return formats.slides && !formats.newest && o->u.attn.window > 0;
}

bool kv_paging_slides(const layout *lay, kv_formats formats, int layer) {
    int n;
    const op *o = attention_of(lay, false, layer, &n);
    return o && kv_format_of(formats, layer) != TYPE_COUNT && slides(formats, o);
}

bool kv_paging_reads_again(const layout *lay, int layer) {
    int n;
    (void)attention_of(lay, true, layer, &n);
    return n > 1;
}

/* Whether the layer may be on the disk: it is in no part, and its passes read all of a page. */
static bool may_be_on_disk(kv_formats formats, const op *o) {
    return o && !slides(formats, o) && o->u.attn.every == 0;
}

int kv_paging_max_on_disk(const layout *lay, kv_formats formats) {
    int most = 0;
    for (int i = 0, n = 0; i < model_n_kv_layer(layout_model(lay)); i++) {
        const op *o = attention_of(lay, false, i, &n);
        most += may_be_on_disk(formats, o) && kv_format_of(formats, i) != TYPE_COUNT;
    }
    return most;
}

/* Whether the layer is on the disk, the *seen-th of `most` that may be. */
static bool is_on_disk(kv_formats formats, const op *o, int most, int *seen) {
    if (formats.on_disk == 0 || most == 0 || !may_be_on_disk(formats, o))
        return false;
    const int64_t k = (*seen)++, all = NUM_MIN(formats.on_disk, most);
    return (k + 1) * all / most != k * all / most;
}

bool kv_paging_half(const op *o, type_id type, uint64_t *bytes) {
    if (!kv_page_bytes(type, o->u.attn.n_kv_head, o->u.attn.d_head, bytes) || *bytes > INT64_MAX / 4)
        return false;
    *bytes = (uint64_t)num_round_up((int64_t)*bytes, 64);
    return true;
}

/* Places one layer's keys and values at *at and advances *at; false: it overflows. */
static bool place_layer(kv_layer *layer, const op *o, type_id type, uint64_t *at) {
    uint64_t each;
    if (!kv_paging_half(o, type, &each))
        return false;
    const bool shared = o->u.attn.shared;
    const uint64_t both = shared ? each : 2 * each;
    *layer = (kv_layer){.key_at = (int64_t)*at,
                        .value_at = (int64_t)(*at + both - each),
                        .shared = shared,
                        .n_kv_head = o->u.attn.n_kv_head,
                        .d_head = o->u.attn.d_head,
                        .type = type,
                        .every = o->u.attn.every,
                        .d_index = o->u.attn.d_index};
    return num_add_u64(*at, both, at) && *at <= INT64_MAX / 4;
}

/* Places the entries of a layer, if it has some. */
static bool place_entries(kv_layer *l, uint64_t *at) {
    if (l->every == 0)
        return true;
    const uint64_t entries = entries_page_bytes(l->type, l->every, l->d_head, KV_BLOCK);
    const uint64_t index = entries_page_bytes(l->type, l->every, l->d_index, KV_BLOCK);
    l->entry_at = (int64_t)*at;
    l->index_at = num_round_up((int64_t)(*at + entries), 64);
    return num_add_u64((uint64_t)l->index_at, (uint64_t)num_round_up((int64_t)index, 64), at) &&
           *at <= INT64_MAX / 4;
}

/* Computes the page's size, and the layers' places if p->layers is not NULL. homes NULL: no layer is on the
 * host. */
static nib_status place_layers(kv_paging *p, const layout *lay, bool overlaid, const kv_home *homes,
                               nib_error *err) {
    const int most = p->formats.on_disk ? kv_paging_max_on_disk(lay, p->formats) : 0;
    int seen = 0;
    p->n_layer = model_n_kv_layer(layout_model(lay));
    p->page_bytes = p->part_bytes = p->host_bytes = p->tail_bytes = 0;
    p->window = 0;
    p->read_again = false;
    for (int i = 0; i < p->n_layer; i++)
        overlaid = overlaid && !kv_paging_reads_again(lay, i);
    for (int i = 0; i < p->n_layer; i++) {
        int n;
        const op *o = attention_of(lay, true, i, &n);
        const type_id type = kv_format_of(p->formats, i);
        kv_layer layer;
        const bool part = o && slides(p->formats, o);
        if (part && type != TYPE_COUNT) { /* all ranks of a pipeline keep the same positions */
            p->window = NUM_MAX(p->window, o->u.attn.window);
            p->read_again = p->read_again || n > 1;
        }
        o = attention_of(lay, false, i, &n);
        const bool on_disk = type != TYPE_COUNT && is_on_disk(p->formats, o, most, &seen);
        const kv_home home = on_disk ? KV_HOME_STAGED : homes ? homes[i] : KV_HOME_DEVICE;
        uint64_t *stays = home ? &p->host_bytes : &p->page_bytes;
        uint64_t *end = part && !home ? &p->part_bytes : stays;
        uint64_t at = overlaid ? 0 : on_disk ? (uint64_t)num_round_up((int64_t)*end, SYSTEM_PAGE) : *end;
        if (!o || type == TYPE_COUNT)
            continue;
        bool fits = place_layer(&layer, o, type, &at);
        *end = NUM_MAX(*end, at);
        if (end != stays)
            at = overlaid ? 0 : *stays;
        fits = fits && place_entries(&layer, &at);
        *stays = NUM_MAX(*stays, at);
        if (!fits)
            return nib_fail(err, NIB_E_NOFIT, "keys and values of %d positions overflow 64 bits", KV_BLOCK);
        layer.home = home;
        layer.slides = end == &p->part_bytes;
        if (on_disk && !kv_is_coded(type)) {
            layer.tail_at = (int64_t)p->tail_bytes;
            p->tail_bytes += kv_layer_bytes(p, &layer);
        }
        if (p->layers)
            p->layers[i] = layer;
    }
    p->page_bytes = (uint64_t)num_round_up((int64_t)p->page_bytes, SYSTEM_PAGE);
    p->part_bytes = (uint64_t)num_round_up((int64_t)p->part_bytes, SYSTEM_PAGE);
    p->host_bytes = (uint64_t)num_round_up((int64_t)p->host_bytes, SYSTEM_PAGE);
    if (p->formats.on_disk || homes) /* all layers may be elsewhere */
        p->page_bytes = NUM_MAX(p->page_bytes, (uint64_t)SYSTEM_PAGE);
    return NIB_OK;
}

nib_status kv_paging_open(kv_paging *p, const layout *lay, kv_formats formats, bool overlaid,
                          nib_error *err) {
    *p = (kv_paging){.formats = formats};
    p->layers = mem_calloc((size_t)NUM_MAX(model_n_kv_layer(layout_model(lay)), 1), sizeof *p->layers);
    if (!p->layers)
        return nib_fail_nomem(err, (size_t)model_n_kv_layer(layout_model(lay)) * sizeof *p->layers,
                              "the layout of keys and values");
    const nib_status status = place_layers(p, lay, overlaid, NULL, err);
    if (status != NIB_OK)
        kv_paging_close(p);
    return status;
}

nib_status kv_paging_size(kv_paging *p, const layout *lay, kv_formats formats, bool overlaid,
                          nib_error *err) {
    *p = (kv_paging){.formats = formats};
    return place_layers(p, lay, overlaid, NULL, err);
}

static uint64_t touched_of(type_id type, int64_t every, int64_t width, int64_t n) {
    return (uint64_t)num_round_up((int64_t)entries_page_bytes(type, every, width, n), SYSTEM_PAGE);
}

uint64_t kv_layer_bytes(const kv_paging *p, const kv_layer *l) {
    const int64_t half = kv_head_bytes(l->type, l->d_head) * l->n_kv_head;
    const int64_t bytes = l->value_at - l->key_at + (half + 63) / 64 * 64;
    return (uint64_t)(p->formats.on_disk ? num_round_up(bytes, SYSTEM_PAGE) : bytes);
}

bool kv_paging_has(const kv_paging *p, kv_home home) {
    bool any = false;
    for (int i = 0; i < p->n_layer; i++)
        any = any || p->layers[i].home == home;
    return any;
}

/* Codes are written a whole page at a time. */
static uint64_t layer_touched(const kv_layer *l, int64_t n) {
    const uint64_t each =
        kv_is_coded(l->type) ? 0 : kv_page_touched(l->type, l->n_kv_head, l->d_head, n, SYSTEM_PAGE);
    return l->shared ? each : 2 * each;
}

static uint64_t entries_touched(const kv_layer *l, int64_t n) {
    return l->every > 0
               ? touched_of(l->type, l->every, l->d_head, n) + touched_of(l->type, l->every, l->d_index, n)
               : 0;
}

/* Of a page, or of its part. */
static uint64_t piece_touched(const kv_layer *l, bool part, int64_t n) {
    return (l->slides == part ? layer_touched(l, n) : 0) + (part ? 0 : entries_touched(l, n));
}

uint64_t kv_page_resident(const layout *lay, kv_formats formats, bool part, int64_t n) {
    const int most = formats.on_disk ? kv_paging_max_on_disk(lay, formats) : 0;
    uint64_t touched = 0;
    int seen = 0;
    for (int i = 0; i < model_n_kv_layer(layout_model(lay)); i++) {
        int n_op;
        const op *o = attention_of(lay, false, i, &n_op);
        const type_id type = kv_format_of(formats, i);
        uint64_t end = 0;
        kv_layer l;
        if (!o || type == TYPE_COUNT || is_on_disk(formats, o, most, &seen) ||
            !place_layer(&l, o, type, &end))
            continue;
        l.slides = slides(formats, o);
        touched += piece_touched(&l, part, n);
    }
    return touched;
}

uint64_t kv_paging_stride(const layout *lay, kv_formats formats) {
    const int most = formats.on_disk ? kv_paging_max_on_disk(lay, formats) : 0;
    uint64_t stride = 0;
    int seen = 0;
    for (int i = 0, n = 0; most > 0 && i < model_n_kv_layer(layout_model(lay)); i++) {
        const op *o = attention_of(lay, false, i, &n);
        const type_id type = kv_format_of(formats, i);
        uint64_t bytes = 0;
        kv_layer l;
        if (type != TYPE_COUNT && is_on_disk(formats, o, most, &seen) && place_layer(&l, o, type, &bytes))
            stride = NUM_MAX(stride, bytes);
    }
    return (uint64_t)num_round_up((int64_t)stride, SYSTEM_PAGE);
}

void kv_paging_close(kv_paging *p) {
    mem_free(p->layers);
    memset(p, 0, sizeof *p);
}

uint64_t kv_paging_touched(const kv_paging *p, bool part, int64_t n) {
    const uint64_t all = part ? p->part_bytes : p->page_bytes;
    uint64_t touched = 0;
    if (n >= KV_BLOCK)
        return all;
    for (int i = 0; i < p->n_layer; i++) {
        const kv_layer *l = &p->layers[i];
        if (!l->home && l->n_kv_head > 0)
            touched += piece_touched(l, part, n);
    }
    return NUM_MIN(touched, all);
}

nib_status kv_paging_split(kv_paging *p, const layout *lay, const kv_home *homes, nib_error *err) {
    p->homes = homes;
    return place_layers(p, lay, false, homes, err);
}
