/* quality.c - measures, block by block, how the logits change when the block's matrices have another format,
 * when activations have fewer bits, and when the block is left out. */
#include "base/mem.h"
#include "base/num.h"
#include "measure/trials.h"
#include "measure/requantized.h"

#include <string.h>

const char *const measure_formats[] = {"u8g128",  "u6g64w", "u5g64w", "u4g32aw",
                                       "u4g64aw", "u4g64w", "u3g32w"};
const int measure_n_format = NUM_COUNT(measure_formats);

/* ---- the costs ---- */

typedef struct measuring {
    nib_engine *engine;
    engine_parts on; /* the engine's parts */
    measure_base base;
    measure_requantized copy;
    imatrix_watch channels;
    const quality_options *q;
    quality *out;
    uint8_t *act_bits; /* [n_block] */
    bool *left_out;    /* [n_block] */
    int *order;        /* [n_block] */
} measuring;

static nib_status try_formats(measuring *s, int b, nib_error *err) {
    const block *blk = layout_block(s->base.e->layout, b);
    trial_cost cost;
    uint64_t bytes;
    for (int f = 0; f < s->q->n_format; f++) {
        const size_t at = (size_t)(b * s->q->n_format + f);
        if (measure_bytes_now(blk) == 0)
            s->out->kl[at] = s->out->error[at] = 0;
        if (!measure_is_lower(blk, s->q->formats[f], &bytes))
            continue;
        NIB_TRY(measure_requantize(&s->copy, &s->channels, b, s->q->formats[f], err));
        const pass_change change = {.views = s->copy.by_block};
        NIB_TRY(measure_trial(&s->base, b, &change, &cost, err));
        s->out->kl[at] = cost.kl;
        s->out->error[at] = cost.error;
    }
    return NIB_OK;
}

/* Whether this block multiplies packed weights with integer activations. */
static bool has_products(const block *blk) {
    for (int i = 0; i < blk->program.n_op; i++) {
        const op *o = &blk->program.ops[i];
        if (op_is_product(o) && blk->weights[o->w].format.layout == PACK_TILE)
            return true;
    }
    return false;
}

static nib_status try_activations(measuring *s, int b, nib_error *err) {
    trial_cost cost;
    for (int i = 0; i < 2; i++) {
        const size_t at = (size_t)(2 * b + i);
        const pass_change change = {.act_bits = s->act_bits};
        s->out->kl_activation[at] = s->out->error_activation[at] = 0;
        if (!has_products(layout_block(s->base.e->layout, b)))
            continue;
        s->act_bits[b] = i == 0 ? 8 : 4;
        const nib_status status = measure_trial(&s->base, b, &change, &cost, err);
        s->act_bits[b] = 0;
        NIB_TRY(status);
        s->out->kl_activation[at] = cost.kl;
        s->out->error_activation[at] = cost.error;
    }
    return NIB_OK;
}

static nib_status try_without(measuring *s, int b, nib_error *err) {
    trial_cost cost;
    const pass_change change = {.left_out = s->left_out};
    if (layout_block(s->base.e->layout, b)->layer < 0)
        return NIB_OK;
    s->left_out[b] = true;
    const nib_status status = measure_trial(&s->base, b, &change, &cost, err);
    s->left_out[b] = false;
    s->out->kl_left_out[b] = cost.kl;
    return status;
}

/* Leaves layers out together, one more each time, beginning with those that change the residual stream least:
 * the sweep of section 4.9, in the order that worked in docs/paper-mcap.md. */
static nib_status try_fewer(measuring *s, nib_error *err) {
    const model *m = s->base.e->m;
    const int n = (int)model_hparams(m)->n_layer;
    int layer0 = 0, first = model_n_block(m);
    trial_cost cost;
    while (layout_block(s->base.e->layout, layer0)->layer != 0)
        layer0++;
    importance_rank(s->q->change, n, s->order);
    s->out->kl_fewer[0] = 0;
    for (int i = 0; i < n; i++)
        s->out->place[layer0 + s->order[n - 1 - i]] = i;
    for (int i = 1; i < n; i++) {
        const int b = layer0 + s->order[n - i];
        const pass_change change = {.left_out = s->left_out};
        NIB_TRY(measure_progress(s->base.e, "leaving layers out", (uint64_t)i, (uint64_t)n, err));
        s->left_out[b] = true;
        first = NUM_MIN(first, b);
        NIB_TRY(measure_trial(&s->base, first, &change, &cost, err));
        s->out->kl_fewer[i] = cost.kl;
    }
    return NIB_OK;
}

static nib_status measure_all(measuring *s, nib_error *err) {
    const engine_parts *e = &s->on;
    const int n = model_n_block(e->m);
    s->out->n_token = s->base.rows.n_head;
    for (int b = 0; b < n; b++) {
        NIB_TRY(measure_progress(e, "measuring costs", (uint64_t)b, (uint64_t)n, err));
        NIB_TRY(try_formats(s, b, err));
        NIB_TRY(try_activations(s, b, err));
        NIB_TRY(try_without(s, b, err));
    }
    NIB_TRY(measure_progress(e, "measuring costs", (uint64_t)n, (uint64_t)n, err));
    return s->q->change ? try_fewer(s, err) : NIB_OK;
}

/* ---- opening and closing ---- */

typedef struct wanted {
    const calibration *c;
    const quality_options *q;
} wanted;

static nib_status later_bytes(const engine_parts *e, const void *user, uint64_t *bytes, nib_error *err) {
    const wanted *w = user;
    NIB_TRY(measure_base_bytes(e, w->c, w->q->n_row, w->q->n_score, bytes, err));
    const uint64_t copies = measure_requantized_bytes(e, w->q);
    uint64_t channels;
    NIB_TRY(imatrix_model_bytes(e->m, &channels, err));
    if (!num_add_u64(*bytes, copies, bytes) || !num_add_u64(*bytes, channels, bytes))
        return nib_fail(err, NIB_E_NOFIT, "a block's copy overflows 64 bits");
    return NIB_OK;
}

/* Opens an engine for trials and runs the base pass. */
static nib_status open_trials(const char *name, const nib_engine_options *options, const wanted *w,
                              measuring *s, model_imatrix *channels, nib_error *err) {
    nib_engine_options o = *options;
    int64_t longest;
    const engine_internal internal = {
        .n_row = prompt_rows_count(w->c, w->q->n_row, &longest), .keep_free = later_bytes, .user = w};
    o.n_ctx = longest;
    o.n_batch = longest;
    o.n_logits = w->q->n_score;
    o.stream = true;
    o.activation = 16;
    NIB_TRY(engine_open(name, &o, &internal, &s->engine, err));
    s->on = engine_parts_of(s->engine);
    const size_t n = (size_t)model_n_block(s->on.m);
    s->act_bits = mem_calloc(n, sizeof *s->act_bits);
    s->left_out = mem_calloc(n, sizeof *s->left_out);
    s->order = mem_calloc(n, sizeof *s->order);
    if (!s->act_bits || !s->left_out || !s->order)
        return nib_fail_nomem(err, n * sizeof *s->order, "a list of blocks");
    NIB_TRY(imatrix_watch_open(&s->channels, s->on.layout, s->on.ledger, channels, err));
    NIB_TRY(measure_base_open(&s->base, &s->on, w->c, w->q->n_row, w->q->n_score, &s->channels.probe, err));
    imatrix_watch_finish(&s->channels);
    return NIB_OK;
}

static void close_trials(measuring *s) {
    measure_requantized_close(&s->copy);
    imatrix_watch_close(&s->channels);
    measure_base_close(&s->base);
    mem_free(s->act_bits);
    mem_free(s->left_out);
    mem_free(s->order);
    nib_engine_close(s->engine);
}

static quality_options with_defaults(const quality_options *q) {
    quality_options o = *q;
    o.n_row = o.n_row > 0 ? o.n_row : QUALITY_ROWS;
    o.n_score = NUM_MIN(o.n_score > 0 ? o.n_score : QUALITY_SCORED, o.n_row);
    return o;
}

nib_status measure_quality(const char *name, const nib_engine_options *options, const calibration *c,
                           const quality_options *q, quality *out, model_imatrix *channels, nib_error *err) {
    const quality_options mine = with_defaults(q);
    const wanted w = {c, &mine};
    measuring s = {.q = &mine, .out = out};
    memset(out, 0, sizeof *out);
    memset(channels, 0, sizeof *channels);
    nib_status status = open_trials(name, options, &w, &s, channels, err);
    if (status == NIB_OK)
        status = quality_begin(out, model_n_block(s.on.m), mine.formats, mine.n_format, err);
    if (status == NIB_OK)
        status = measure_requantized_open(&s.copy, &s.on, &mine, err);
    if (status == NIB_OK)
        status = measure_all(&s, err);
    memcpy(out->content, c->content, sizeof out->content);
    memcpy(out->prompts, c->hash, sizeof out->prompts);
    memcpy(channels->content, c->content, sizeof channels->content);
    memcpy(channels->prompts, c->hash, sizeof channels->prompts);
    close_trials(&s);
    return status;
}
