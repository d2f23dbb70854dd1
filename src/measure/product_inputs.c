/* product_inputs.c - see product_inputs.h. All prompts go through a block before the next block begins, so
 * only the residual stream of all rows is stored between two blocks. Prompts share the KV cache of one layer,
 * so each prompt is a visit of its own. A layer that does not fit the ring is copied to a slot, which all of
 * its visits read, so each weight is read and packed once. Only the input of the head is needed, so its
 * product is not computed. */
#include "measure/product_inputs.h"

#include "base/num.h"
#include "engine/imatrix.h"
#include "measure/prompt_rows.h"

#include <stdio.h>
#include <string.h>

enum { LAYER_SHARE = 4 /* a layer larger than this fraction of the cap gets no slot */ };

typedef struct passing {
    const engine_parts *e;
    const calibration *c;
    const product_watch *w;
    uint64_t cap; /* of RAM */
    int n_thread;
    int at; /* the current block; -1: none yet */
} passing;

/* Bytes of a slot for a layer; 0: no slot, because the ring holds a layer or the cap is too small. */
static uint64_t slot_bytes(const passing *p, const engine_parts *e) {
    const uint64_t bytes = device_store_layer_bytes(e->layout);
    const bool fits = p->cap == NIB_AUTO || bytes <= p->cap / LAYER_SHARE;
    return fits && !pager_needs(e->layout, p->n_thread).block_in_ring ? bytes : 0;
}

static nib_status later_bytes(const engine_parts *e, const void *user, uint64_t *bytes, nib_error *err) {
    const passing *p = user;
    int64_t longest;
    prompt_rows_count(p->c, 0, &longest);
    NIB_TRY(kv_table_bytes(e->layout, kv_formats_all(TYPE_F32), true, longest, bytes, err));
    *bytes += slot_bytes(p, e);
    *bytes += p->w->bytes ? p->w->bytes(p->w->user, e) : 0;
    return NIB_OK;
}

static nib_status enter(void *user, int b, backend *by, nib_error *err) {
    passing *p = user;
    (void)by;
    if (p->at >= 0 && p->w->after)
        NIB_TRY(p->w->after(p->w->user, p->at, err));
    p->at = b;
    return measure_progress(p->e, p->w->what, (uint64_t)b, (uint64_t)model_n_block(p->e->m), err);
}

static nib_status pass_over(void *user, int segment_index, int64_t row, int64_t n_row, const float *logits,
                            nib_error *err) {
    (void)user, (void)segment_index, (void)row, (void)n_row, (void)logits, (void)err;
    return NIB_OK;
}

static void ignore_hidden(void *user, int64_t row, int64_t n_row, const float *x, int64_t width) {
    (void)user, (void)row, (void)n_row, (void)x, (void)width;
}

static nib_status run_pass(passing *p, nib_error *err) {
    const hidden_receiver no_logits = {.receive = ignore_hidden};
    const bool on_host = p->e->step->backend->device == device_host();
    const bool has_slot = on_host && pager_streams(p->e->step->pager) && slot_bytes(p, p->e) > 0;
    prompt_rows rows = {0};
    device_store *layer = NULL;
    nib_status status = prompt_rows_open(&rows, p->e, p->c, 0, PRODUCTS_SCORED, err);
    if (status == NIB_OK && has_slot)
        status = device_store_open_layer(p->e->layout, p->e->ledger, NIB_OWNER_STAGING, &layer, err);
    if (status == NIB_OK) {
        const pass all = {.segments = rows.segments,
                          .n_segment = rows.n_segment,
                          .apart = true,
                          .layer = layer,
                          .hidden = on_host ? &no_logits : NULL,
                          .n_head = p->e->step->backend->rows.n_head,
                          .rows = pass_over,
                          .enter = enter,
                          .user = p,
                          .probe = p->w->probe};
        status = step_pass(p->e->step, &all, err);
    }
    if (status == NIB_OK && p->w->after)
        status = p->w->after(p->w->user, p->at, err);
    device_store_close(layer);
    prompt_rows_close(&rows);
    return status;
}

nib_status measure_product_inputs(const char *name, const nib_engine_options *options, const calibration *c,
                                  const product_watch *w, nib_error *err) {
    nib_engine_options o = *options;
    passing p = {.c = c,
                 .w = w,
                 .cap = o.ram,
                 .n_thread = o.n_thread ? o.n_thread : thread_physical_cores(),
                 .at = -1};
    int64_t longest;
    const int64_t n_row = prompt_rows_count(c, 0, &longest);
    o.n_ctx = longest;
    o.n_logits = 1;
    o.stream = true;
    o.activation = 16;
    o.learn = false;
    const engine_internal internal = {
        .n_row = n_row,
        /* Without a cap, stream all weights, so that memory does not depend on the number of layers. */
        .keep_nothing = o.ram == NIB_AUTO,
        .keep_free = later_bytes,
        .user = &p};
    nib_engine *engine = NULL;
    NIB_TRY(engine_open(name, &o, &internal, &engine, err));
    const engine_parts parts = engine_parts_of(engine);
    p.e = &parts;
    nib_status status = w->begin ? w->begin(w->user, &parts, err) : NIB_OK;
    if (status == NIB_OK)
        status = run_pass(&p, err);
    if (w->end)
        w->end(w->user);
    nib_engine_close(engine);
    return status;
}

/* ---- channels ---- */

typedef struct channel_watch {
    imatrix_watch watch;
    model_imatrix *out;
    probe probe;
} channel_watch;

static nib_status begin(void *user, const engine_parts *e, nib_error *err) {
    channel_watch *w = user;
    NIB_TRY(imatrix_watch_open(&w->watch, e->layout, e->ledger, w->out, err));
    w->probe = w->watch.probe;
    return NIB_OK;
}

static void end(void *user) {
    channel_watch *w = user;
    if (w->watch.n_row)
        imatrix_watch_finish(&w->watch);
    imatrix_watch_close(&w->watch);
}

static uint64_t bytes_of(void *user, const engine_parts *e) {
    uint64_t bytes = 0;
    (void)user;
    return imatrix_model_bytes(e->m, &bytes, NULL) == NIB_OK ? bytes : 0;
}

nib_status measure_channels(const char *name, const nib_engine_options *options, const calibration *c,
                            model_imatrix *out, nib_error *err) {
    channel_watch w = {.out = out};
    const product_watch how = {.begin = begin,
                               .end = end,
                               .bytes = bytes_of,
                               .probe = &w.probe,
                               .what = "measuring channels",
                               .user = &w};
    memset(out, 0, sizeof *out);
    const nib_status status = measure_product_inputs(name, options, c, &how, err);
    memcpy(out->content, c->content, sizeof out->content);
    memcpy(out->prompts, c->hash, sizeof out->prompts);
    return status;
}
