/* measure_quality.c - block by block: its matrices rounded to another format, its activations to fewer bits,
 * and without it; what that does to the logits. */
#include "base/mem.h"
#include "base/num.h"
#include "quant/recipe.h"
#include "run/measure.h"
#include "run/measure_base.h"
#include "run/saliency.h"
#include "tiers/loader.h"

#include <string.h>

const char *const measure_formats[] = {"u8g128", "u6g64",  "u5g64", "u4g32a",
                                       "u4g32",  "u4g64a", "u4g64", "u3g32"};
const int measure_n_format = NUM_COUNT(measure_formats);

/* A copy of one block's own matrices in another format. */
typedef struct copy {
    nib_engine *e;
    loader *ld;
    load_buffer *buffers; /* [n_thread] */
    uint64_t charged;
    uint8_t *data;
    uint64_t room;
    view *views;           /* [n_weight of all blocks]: what the changed blocks' cells get */
    const view **by_block; /* [n_block] into views, or NULL */
    int *first;            /* [n_block] in views */
} copy;

static uint64_t round64(uint64_t n) {
    return (n + 63) & ~UINT64_C(63);
}

static bool is_own_matrix(const weight *w) {
    return !w->vector && w->shared_block < 0;
}

/* Bytes of a block's own matrices in a format; false when they cannot have it, or there are none. */
static bool bytes_in(const block *blk, const char *format, uint64_t *bytes) {
    recipe f;
    uint64_t one;
    bool any = false;
    *bytes = 0;
    for (int i = 0; i < blk->n_weight; i++) {
        const weight *w = &blk->weights[i];
        if (!is_own_matrix(w))
            continue;
        if (!recipe_parse(format, w->k, &f) || !pack_bytes(&f.slice[0], w->n, w->k, &one) ||
            !num_add_u64(*bytes, round64(one), bytes))
            return false;
        any = true;
    }
    return any;
}

static uint64_t bytes_now(const block *blk) {
    uint64_t bytes = 0;
    for (int i = 0; i < blk->n_weight; i++)
        bytes += is_own_matrix(&blk->weights[i]) ? round64(blk->weights[i].bytes) : 0;
    return bytes;
}

/* A format that takes no fewer bytes than the file's own has no use, and is not tried. */
static bool is_lower(const block *blk, const char *format, uint64_t *bytes) {
    return bytes_in(blk, format, bytes) && *bytes < bytes_now(blk);
}

static uint64_t most_bytes(const model *m, const quality_options *q) {
    uint64_t most = 0, bytes;
    for (int b = 0; b < model_n_block(m); b++)
        for (int f = 0; f < q->n_format; f++)
            if (is_lower(model_block(m, b), q->formats[f], &bytes))
                most = NUM_MAX(most, bytes);
    return most;
}

enum { RAW = 256 << 10 }; /* bytes of a file read at a time, by each thread */

static uint64_t copy_bytes(const nib_engine *e, uint64_t room) {
    return room +
           (uint64_t)pool_size(e->threads) * (load_buffer_bytes(e->m, RAW, 1) + sizeof(load_buffer) +
                                              pack_scratch_bytes(&(pack_format){.layout = PACK_TILE}, 1));
}

static void copy_close(copy *c) {
    for (int i = 0; c->buffers && i < pool_size(c->e->threads); i++)
        load_buffer_deinit(&c->buffers[i]);
    mem_free(c->buffers);
    loader_close(c->ld);
    if (c->data)
        mem_unmap(c->data, c->room);
    mem_free(c->views);
    mem_free(c->by_block);
    mem_free(c->first);
    if (c->e)
        ledger_release(c->e->ledger, NIB_TIER_RAM, NIB_OWNER_STAGING, c->charged);
    memset(c, 0, sizeof *c);
}

static nib_status copy_tables(copy *c, nib_error *err) {
    const model *m = c->e->m;
    int n = 0;
    c->first = mem_calloc((size_t)model_n_block(m), sizeof *c->first);
    c->by_block = mem_calloc((size_t)model_n_block(m), sizeof *c->by_block);
    for (int b = 0; c->first && b < model_n_block(m); b++) {
        c->first[b] = n;
        n += model_block(m, b)->n_weight;
    }
    c->views = mem_calloc((size_t)NUM_MAX(n, 1), sizeof *c->views);
    if (!c->first || !c->by_block || !c->views)
        return nib_fail_nomem(err, (size_t)n * sizeof *c->views, "a block's copy");
    return NIB_OK;
}

static nib_status copy_open(copy *c, nib_engine *e, const quality_options *q, nib_error *err) {
    const int n_thread = pool_size(e->threads);
    memset(c, 0, sizeof *c);
    c->e = e;
    c->room = round64(most_bytes(e->m, q)) + 64;
    const uint64_t bytes = copy_bytes(e, c->room);
    NIB_TRY(ledger_charge(e->ledger, NIB_TIER_RAM, NIB_OWNER_STAGING, bytes, err));
    c->charged = bytes;
    NIB_TRY(copy_tables(c, err));
    c->data = mem_map(c->room);
    c->buffers = mem_calloc((size_t)n_thread, sizeof *c->buffers);
    if (!c->data || !c->buffers)
        return nib_fail_nomem(err, bytes, "a block's copy");
    for (int i = 0; i < n_thread; i++)
        NIB_TRY(load_buffer_init(&c->buffers[i], e->m, RAW, 1, NULL, err));
    return loader_open(e->m, false, &c->ld, err);
}

/* ---- packing ---- */

typedef struct packing {
    copy *c;
    const weight *w; /* with the other format */
    uint8_t *dst;
    _Atomic nib_status status;
    nib_error error; /* the first one's */
} packing;

/* Each thread some panels, with scratch of its own: the buffer's may be for another layout. */
static void pack_some(void *arg, int thread, int n_thread) {
    packing *p = arg;
    int64_t begin, end;
    nib_error error = {NIB_OK, ""};
    load_buffer buffer = p->c->buffers[thread];
    pool_split(p->w->n, PACK_PANEL, thread, n_thread, &begin, &end);
    if (begin >= end)
        return;
    nib_status status = NIB_OK;
    buffer.scratch = mem_alloc_aligned(64, pack_scratch_bytes(&p->w->format, p->w->k));
    if (!buffer.scratch)
        status = nib_fail_nomem(&error, pack_scratch_bytes(&p->w->format, p->w->k), "packing");
    else
        status = loader_matrix(p->c->ld, p->w, begin, end - begin, &(load_target){p->dst, p->w->n, begin},
                               &buffer, &error);
    mem_free(buffer.scratch);
    nib_status none = NIB_OK;
    if (status != NIB_OK && atomic_compare_exchange_strong(&p->status, &none, status))
        p->error = error;
}

static nib_status pack_matrix(copy *c, const weight *w, const pack_format *f, const float *by, uint8_t *dst,
                              nib_error *err) {
    weight other = *w;
    other.format = *f;
    other.columns = by;
    if (!pack_bytes(f, w->n, w->k, &other.bytes))
        return nib_fail(err, NIB_E_MODEL, "weight %s: its size overflows", w->name);
    packing p = {.c = c, .w = &other, .dst = dst};
    pool_run(c->e->threads, pack_some, &p);
    const nib_status status = atomic_load(&p.status);
    if (status != NIB_OK && err)
        *err = p.error;
    return status;
}

/* The pager's views of a block; matrices among them that will be replaced may be anything. */
static void pager_views(copy *c, int b) {
    const view *views;
    pager_pin(c->e->pager, b, &views);
    memcpy(c->views + c->first[b], views, (size_t)model_block(c->e->m, b)->n_weight * sizeof *views);
    pager_unpin(c->e->pager, b);
    c->by_block[b] = c->views + c->first[b];
}

/* Other blocks' weights that are block b's (a tied head). */
static void replace_shared(copy *c, int b) {
    for (int j = 0; j < model_n_block(c->e->m); j++) {
        const block *blk = model_block(c->e->m, j);
        for (int i = 0; i < blk->n_weight; i++) {
            const weight *w = &blk->weights[i];
            if (w->shared_block != b || w->vector)
                continue;
            if (!c->by_block[j])
                pager_views(c, j);
            c->views[c->first[j] + i] = c->views[c->first[b] + w->shared_index];
        }
    }
}

static nib_status lower_block(copy *c, const saliency_watch *channels, int b, const char *format,
                              nib_error *err) {
    const block *blk = model_block(c->e->m, b);
    uint8_t *at = c->data;
    memset(c->by_block, 0, (size_t)model_n_block(c->e->m) * sizeof *c->by_block);
    pager_views(c, b);
    for (int i = 0; i < blk->n_weight; i++) {
        const weight *w = &blk->weights[i];
        recipe f;
        uint64_t bytes;
        if (!is_own_matrix(w))
            continue;
        if (!recipe_parse(format, w->k, &f) || !pack_bytes(&f.slice[0], w->n, w->k, &bytes))
            return nib_fail(err, NIB_E_USAGE, "%s: %s cannot be in format %s", blk->name, w->name, format);
        NIB_TRY(
            pack_matrix(c, w, &f.slice[0], f.by_column ? saliency_watch_of(channels, b, i) : NULL, at, err));
        c->views[c->first[b] + i] = (view){at, f.slice[0], w->n, w->k};
        at += round64(bytes);
    }
    replace_shared(c, b);
    return NIB_OK;
}

/* ---- the costs ---- */

typedef struct measuring {
    measure_base base;
    copy copy;
    saliency_watch channels;
    const quality_options *q;
    quality *out;
    uint8_t *act_bits; /* [n_block] */
    bool *left_out;    /* [n_block] */
    int *order;        /* [n_block] */
} measuring;

static nib_status try_formats(measuring *s, int b, nib_error *err) {
    const block *blk = model_block(s->base.e->m, b);
    trial_cost cost;
    uint64_t bytes;
    for (int f = 0; f < s->q->n_format; f++) {
        const size_t at = (size_t)(b * s->q->n_format + f);
        if (bytes_now(blk) == 0)
            s->out->kl[at] = s->out->error[at] = 0;
        if (!is_lower(blk, s->q->formats[f], &bytes))
            continue;
        NIB_TRY(lower_block(&s->copy, &s->channels, b, s->q->formats[f], err));
        const pass_change change = {.views = s->copy.by_block};
        NIB_TRY(measure_trial(&s->base, b, &change, &cost, err));
        s->out->kl[at] = cost.kl;
        s->out->error[at] = cost.error;
    }
    return NIB_OK;
}

/* Whether integer activations meet packed weights in this block. */
static bool has_products(const block *blk) {
    for (int i = 0; i < blk->program.n_op; i++) {
        const op *o = &blk->program.ops[i];
        if (o->kind == OP_LINEAR && blk->weights[o->w].format.layout == PACK_TILE)
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
        if (!has_products(model_block(s->base.e->m, b)))
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
    if (model_block(s->base.e->m, b)->layer < 0)
        return NIB_OK;
    s->left_out[b] = true;
    const nib_status status = measure_trial(&s->base, b, &change, &cost, err);
    s->left_out[b] = false;
    s->out->kl_left_out[b] = cost.kl;
    return status;
}

/* Layers missing together, one more each time, from the least important on: the sweep of section 4.9. */
static nib_status try_fewer(measuring *s, nib_error *err) {
    const model *m = s->base.e->m;
    const int n = (int)model_hparams(m)->n_layer;
    int layer0 = 0, first = model_n_block(m);
    trial_cost cost;
    while (model_block(m, layer0)->layer != 0)
        layer0++;
    importance_rank(s->q->score, n, s->order);
    s->out->kl_fewer[0] = 0;
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
    nib_engine *e = s->base.e;
    const int n = model_n_block(e->m);
    s->out->n_token = s->base.rows.n_head;
    for (int b = 0; b < n; b++) {
        NIB_TRY(measure_progress(e, "measuring costs", (uint64_t)b, (uint64_t)n, err));
        NIB_TRY(try_formats(s, b, err));
        NIB_TRY(try_activations(s, b, err));
        NIB_TRY(try_without(s, b, err));
    }
    NIB_TRY(measure_progress(e, "measuring costs", (uint64_t)n, (uint64_t)n, err));
    return s->q->score ? try_fewer(s, err) : NIB_OK;
}

/* ---- opening and closing ---- */

typedef struct wanted {
    const calibration *c;
    const quality_options *q;
} wanted;

static nib_status later_bytes(const nib_engine *e, void *user, uint64_t *bytes, nib_error *err) {
    const wanted *w = user;
    NIB_TRY(measure_base_bytes(e, w->c, w->q->n_row, w->q->n_score, bytes, err));
    const uint64_t copies = w->q->n_format ? copy_bytes(e, round64(most_bytes(e->m, w->q)) + 64) : 0;
    uint64_t channels;
    NIB_TRY(saliency_bytes(e->m, &channels, err));
    if (!num_add_u64(*bytes, copies, bytes) || !num_add_u64(*bytes, channels, bytes))
        return nib_fail(err, NIB_E_NOFIT, "a block's copy overflows 64 bits");
    return NIB_OK;
}

/* An engine in which trials can be made, and its base pass. */
static nib_status open_trials(const char *name, const nib_engine_options *options, const wanted *w,
                              measuring *s, columns *channels, nib_engine **out, nib_error *err) {
    nib_engine_options o = *options;
    int64_t longest;
    const engine_want want = {.n_row = measure_rows_count(w->c, w->q->n_row, &longest),
                              .keep_free = later_bytes,
                              .user = (void *)w};
    o.n_ctx = longest;
    o.n_batch = longest;
    o.n_logits = w->q->n_score;
    o.stream = true;
    o.activation = 16;
    NIB_TRY(engine_open(name, &o, &want, out, err));
    const size_t n = (size_t)model_n_block((*out)->m);
    s->act_bits = mem_calloc(n, sizeof *s->act_bits);
    s->left_out = mem_calloc(n, sizeof *s->left_out);
    s->order = mem_calloc(n, sizeof *s->order);
    if (!s->act_bits || !s->left_out || !s->order)
        return nib_fail_nomem(err, n * sizeof *s->order, "a list of blocks");
    NIB_TRY(saliency_watch_open(&s->channels, (*out)->m, (*out)->ledger, channels, err));
    NIB_TRY(measure_base_open(&s->base, *out, w->c, w->q->n_row, w->q->n_score, &s->channels.eyes, err));
    saliency_watch_finish(&s->channels);
    return NIB_OK;
}

static void close_trials(measuring *s, nib_engine *e) {
    copy_close(&s->copy);
    saliency_watch_close(&s->channels);
    measure_base_close(&s->base);
    mem_free(s->act_bits);
    mem_free(s->left_out);
    mem_free(s->order);
    nib_engine_close(e);
}

static quality_options settled(const quality_options *q) {
    quality_options o = *q;
    o.n_row = o.n_row > 0 ? o.n_row : QUALITY_ROWS;
    o.n_score = NUM_MIN(o.n_score > 0 ? o.n_score : QUALITY_SCORED, o.n_row);
    return o;
}

nib_status measure_quality(const char *name, const nib_engine_options *options, const calibration *c,
                           const quality_options *q, quality *out, columns *channels, nib_error *err) {
    const quality_options mine = settled(q);
    const wanted w = {c, &mine};
    measuring s = {.q = &mine, .out = out};
    nib_engine *e = NULL;
    memset(out, 0, sizeof *out);
    memset(channels, 0, sizeof *channels);
    nib_status status = open_trials(name, options, &w, &s, channels, &e, err);
    if (status == NIB_OK)
        status = quality_begin(out, model_n_block(e->m), mine.formats, mine.n_format, err);
    if (status == NIB_OK)
        status = copy_open(&s.copy, e, &mine, err);
    if (status == NIB_OK)
        status = measure_all(&s, err);
    memcpy(out->content, c->content, sizeof out->content);
    memcpy(out->prompts, c->hash, sizeof out->prompts);
    memcpy(channels->content, c->content, sizeof channels->content);
    memcpy(channels->prompts, c->hash, sizeof channels->prompts);
    close_trials(&s, e);
    return status;
}
