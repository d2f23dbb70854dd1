/* kv_paging.c - see kv_paging.h. */
#include "state/kv_paging.h"

#include "base/mem.h"
#include "base/num.h"
#include "kernels/kernels.h"

#include <string.h>

enum { SYSTEM_PAGE = 4096 };

static const op *attention_of(const layout *lay, int layer) {
    for (int b = 0; b < layout_n_block(lay); b++) {
        const program *p = &layout_block(lay, b)->program;
        for (int i = 0; i < p->n_op; i++)
            if (p->ops[i].kind == OP_ATTENTION && p->ops[i].u.attn.layer == layer)
                return &p->ops[i];
    }
    return NULL;
}

/* Places one layer's part at *at and advances *at; false: it overflows. */
static bool place_layer(kv_layer *layer, const op *o, type_id type, uint64_t *at) {
    uint64_t each;
    if (!kv_page_bytes(type, o->u.attn.n_kv_head, o->u.attn.d_head, &each) || each > INT64_MAX / 4)
        return false;
    each = (uint64_t)num_round_up((int64_t)each, 64);
    *layer = (kv_layer){.key_at = (int64_t)*at,
                        .value_at = (int64_t)(*at + each),
                        .n_kv_head = o->u.attn.n_kv_head,
                        .d_head = o->u.attn.d_head,
                        .type = type};
    return num_add_u64(*at, 2 * each, at) && *at <= INT64_MAX / 4;
}

/* Computes the page's size, and the layers' places if p->layers is not NULL. on_host NULL: no layer is on the
 * host. */
static nib_status place_layers(kv_paging *p, const layout *lay, bool overlaid, const bool *on_host,
                               nib_error *err) {
    p->n_layer = model_n_kv_layer(layout_model(lay));
    p->page_bytes = p->host_bytes = 0;
    for (int i = 0; i < p->n_layer; i++) {
        const op *o = attention_of(lay, i);
        const type_id type = kv_format_of(p->formats, i);
        kv_layer layer;
        uint64_t *end = on_host && on_host[i] ? &p->host_bytes : &p->page_bytes, at = overlaid ? 0 : *end;
        if (!o || type == TYPE_COUNT)
            continue;
        if (!place_layer(&layer, o, type, &at))
            return nib_fail(err, NIB_E_NOFIT, "keys and values of %d positions overflow 64 bits", KV_BLOCK);
        layer.on_host = end == &p->host_bytes;
        if (p->layers)
            p->layers[i] = layer;
        *end = NUM_MAX(*end, at);
    }
    p->page_bytes = (uint64_t)num_round_up((int64_t)p->page_bytes, SYSTEM_PAGE);
    p->host_bytes = (uint64_t)num_round_up((int64_t)p->host_bytes, SYSTEM_PAGE);
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

nib_status kv_page_size(const layout *lay, kv_formats formats, bool overlaid, uint64_t *bytes,
                        nib_error *err) {
    kv_paging p = {.formats = formats};
    NIB_TRY(place_layers(&p, lay, overlaid, NULL, err));
    *bytes = p.page_bytes;
    return NIB_OK;
}

/* Codes are written a whole page at a time. */
static uint64_t layer_touched(type_id type, int64_t n_kv_head, int64_t d_head, int64_t n) {
    return kv_is_coded(type) ? 0 : 2 * kv_page_touched(type, n_kv_head, d_head, n, SYSTEM_PAGE);
}

uint64_t kv_page_resident(const layout *lay, kv_formats formats, int64_t n) {
    uint64_t touched = 0;
    for (int i = 0; i < model_n_kv_layer(layout_model(lay)); i++) {
        const op *o = attention_of(lay, i);
        const type_id type = kv_format_of(formats, i);
        if (o && type != TYPE_COUNT)
            touched += layer_touched(type, o->u.attn.n_kv_head, o->u.attn.d_head, n);
    }
    return touched;
}

void kv_paging_close(kv_paging *p) {
    mem_free(p->layers);
    memset(p, 0, sizeof *p);
}

uint64_t kv_paging_touched(const kv_paging *p, int64_t n) {
    uint64_t touched = 0;
    if (n >= KV_BLOCK)
        return p->page_bytes;
    for (int i = 0; i < p->n_layer; i++)
        if (!p->layers[i].on_host && p->layers[i].n_kv_head > 0)
            touched += layer_touched(p->layers[i].type, p->layers[i].n_kv_head, p->layers[i].d_head, n);
    return NUM_MIN(touched, p->page_bytes);
}

nib_status kv_paging_split(kv_paging *p, const layout *lay, const bool *on_host, nib_error *err) {
    NIB_TRY(place_layers(p, lay, false, on_host, err));
    p->page_bytes = NUM_MAX(p->page_bytes, (uint64_t)SYSTEM_PAGE); /* all layers may be on the host */
    return NIB_OK;
}
