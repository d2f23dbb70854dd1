/* requantized.c - see requantized.h. */
#include "measure/requantized.h"

#include "base/mem.h"
#include "base/num.h"
#include "numbers/recipe.h"

#include <stdatomic.h>
#include <string.h>

static uint64_t round64(uint64_t n) {
    return (n + 63) & ~UINT64_C(63);
}

static bool is_own_matrix(const weight *w) {
    return !w->vector && w->shared_block < 0;
}

/* Bytes of a block's own matrices in a format; false: they cannot have it, or there are no matrices. */
static bool bytes_in(const block *blk, const char *format, uint64_t *bytes) {
    recipe f;
    uint64_t one;
    bool any = false;
    *bytes = 0;
    for (int i = 0; i < blk->n_weight; i++) {
        const weight *w = &blk->weights[i];
        if (!is_own_matrix(w))
            continue;
        if (!recipe_parse(format, w->k, &f))
            return false;
        for (int j = 0; j < f.n_slice; j++)
            if (!pack_bytes(&f.slice[j], w->n, w->k, &one) || !num_add_u64(*bytes, round64(one), bytes))
                return false;
        any = true;
    }
    return any;
}

uint64_t measure_bytes_now(const block *blk) {
    uint64_t bytes = 0;
    for (int i = 0; i < blk->n_weight; i++)
        bytes += is_own_matrix(&blk->weights[i]) ? round64(blk->weights[i].bytes) : 0;
    return bytes;
}

/* The format of a trial's matrix: the recipe's, or for a stack floats (the sum of its slices). */
static bool tried_as(const recipe *f, int64_t n, int64_t k, pack_format *as, uint64_t *bytes) {
    *as = f->n_slice > 1 ? (pack_format){.layout = PACK_ROWS, .type = TYPE_F32} : f->slice[0];
    return pack_bytes(as, n, k, bytes);
}

static bool tried_bytes(const block *blk, const char *format, uint64_t *bytes) {
    recipe f;
    pack_format as;
    uint64_t one;
    *bytes = 0;
    for (int i = 0; i < blk->n_weight; i++) {
        const weight *w = &blk->weights[i];
        if (is_own_matrix(w) && (!recipe_parse(format, w->k, &f) || !tried_as(&f, w->n, w->k, &as, &one) ||
                                 !num_add_u64(*bytes, round64(one), bytes)))
            return false;
    }
    return true;
}

/* A format without fewer bytes than the file's own is useless and is not tried. */
bool measure_is_lower(const block *blk, const char *format, uint64_t *bytes) {
    return bytes_in(blk, format, bytes) && *bytes < measure_bytes_now(blk);
}

static uint64_t max_bytes(const layout *lay, const quality_options *q) {
    uint64_t max = 0, bytes;
    for (int b = 0; b < layout_n_block(lay); b++)
        for (int f = 0; f < q->n_format; f++)
            if (measure_is_lower(layout_block(lay, b), q->formats[f], &bytes) &&
                tried_bytes(layout_block(lay, b), q->formats[f], &bytes))
                max = NUM_MAX(max, bytes);
    return max;
}

enum { RAW = 256 << 10 }; /* bytes of a file read at a time, by each thread */

static uint64_t charge_of(const engine_parts *e, uint64_t n_byte) {
    return n_byte +
           (uint64_t)pool_size(e->threads) * (load_buffer_bytes(e->layout, RAW, 1) + sizeof(load_buffer) +
                                              pack_scratch_bytes(&(pack_format){.layout = PACK_TILE}, 1));
}

uint64_t measure_requantized_bytes(const engine_parts *e, const quality_options *q) {
    return q->n_format ? charge_of(e, round64(max_bytes(e->layout, q)) + 64) : 0;
}

void measure_requantized_close(measure_requantized *c) {
    for (int i = 0; c->buffers && i < pool_size(c->e->threads); i++)
        load_buffer_deinit(&c->buffers[i]);
    mem_free(c->buffers);
    loader_close(c->ld);
    if (c->data)
        mem_unmap(c->data, c->n_byte);
    mem_free(c->views);
    mem_free(c->by_block);
    mem_free(c->first);
    if (c->e)
        ledger_release(c->e->ledger, PLACE_RAM, NIB_OWNER_STAGING, c->charged);
    memset(c, 0, sizeof *c);
}

static nib_status copy_tables(measure_requantized *c, nib_error *err) {
    const layout *lay = c->e->layout;
    int n = 0;
    c->first = mem_calloc((size_t)layout_n_block(lay), sizeof *c->first);
    c->by_block = mem_calloc((size_t)layout_n_block(lay), sizeof *c->by_block);
    for (int b = 0; c->first && b < layout_n_block(lay); b++) {
        c->first[b] = n;
        n += layout_block(lay, b)->n_weight;
    }
    c->views = mem_calloc((size_t)NUM_MAX(n, 1), sizeof *c->views);
    if (!c->first || !c->by_block || !c->views)
        return nib_fail_nomem(err, (size_t)n * sizeof *c->views, "a block's copy");
    return NIB_OK;
}

nib_status measure_requantized_open(measure_requantized *c, const engine_parts *e, const quality_options *q,
                                    nib_error *err) {
    const int n_thread = pool_size(e->threads);
    memset(c, 0, sizeof *c);
    c->e = e;
    c->n_byte = round64(max_bytes(e->layout, q)) + 64;
    const uint64_t bytes = charge_of(e, c->n_byte);
    NIB_TRY(ledger_charge(e->ledger, PLACE_RAM, NIB_OWNER_STAGING, bytes, err));
    c->charged = bytes;
    NIB_TRY(copy_tables(c, err));
    c->data = mem_map(c->n_byte);
    c->buffers = mem_calloc((size_t)n_thread, sizeof *c->buffers);
    if (!c->data || !c->buffers)
        return nib_fail_nomem(err, bytes, "a block's copy");
    for (int i = 0; i < n_thread; i++)
        NIB_TRY(load_buffer_init(&c->buffers[i], e->layout, RAW, 1, NULL, err));
    return loader_open(e->m, false, &c->ld, err);
}

/* ---- packing ---- */

typedef struct packing {
    measure_requantized *c;
    weight slice[RECIPE_SLICES]; /* the weight with the formats of the recipe's slices */
    int n_slice;
    uint8_t *dst;
    _Atomic nib_status status;
    nib_error error; /* the first error */
} packing;

/* Packs rows [begin, end) of one slice. */
static nib_status pack_slice(const packing *p, load_buffer *buffer, const weight *w, int64_t begin,
                             int64_t end, const load_target *to, nib_error *err) {
    load_buffer own =
        *buffer; /* with its own scratch, because the buffer's may be sized for another layout */
    own.scratch = mem_alloc_aligned(64, pack_scratch_bytes(&w->format, w->k));
    if (!own.scratch)
        return nib_fail_nomem(err, pack_scratch_bytes(&w->format, w->k), "packing");
    const nib_status status = loader_matrix(p->c->ld, w, begin, end - begin, to, &own, err);
    mem_free(own.scratch);
    return status;
}

/* Packs both slices of rows [begin, end) and adds them as floats, panel by panel. */
static nib_status pack_sum(const packing *p, load_buffer *buffer, int64_t begin, int64_t end,
                           nib_error *err) {
    const int64_t k = p->slice[0].k, stride = num_round_up(k, 16); /* PACK_ROWS pads to 16 */
    uint64_t bytes[RECIPE_SLICES] = {0};
    for (int j = 0; j < p->n_slice; j++)
        pack_bytes(&p->slice[j].format, PACK_PANEL, k, &bytes[j]); /* all rows fit */
    const size_t n_byte = (size_t)NUM_MAX(bytes[0], bytes[1]), row_bytes = (size_t)stride * sizeof(float);
    uint8_t *panel = mem_alloc_aligned(64, n_byte);
    float *row = mem_alloc(row_bytes);
    nib_status status = panel && row ? NIB_OK : nib_fail_nomem(err, n_byte + row_bytes, "packing");
    for (int64_t at = begin; at < end && status == NIB_OK; at += PACK_PANEL)
        for (int j = 0; j < p->n_slice && status == NIB_OK; j++) {
            const int64_t n = NUM_MIN(end - at, PACK_PANEL);
            const view v = {panel, p->slice[j].format, n, k};
            memset(panel, 0, n_byte);
            status = pack_slice(p, buffer, &p->slice[j], at, at + n, &(load_target){panel, n, 0}, err);
            for (int64_t r = 0; r < n && status == NIB_OK; r++) {
                float *out = (float *)(void *)p->dst + (at + r) * stride;
                pack_read_row(&v, r, row);
                for (int64_t i = 0; i < k; i++)
                    out[i] = j ? out[i] + row[i] : row[i];
                for (int64_t i = k; i < stride; i++)
                    out[i] = 0;
            }
        }
    mem_free(panel);
    mem_free(row);
    return status;
}

static nib_status pack_rows(const packing *p, load_buffer *buffer, int64_t begin, int64_t end,
                            nib_error *err) {
    const weight *w = &p->slice[0];
    const load_target to = {p->dst, w->n, begin};
    NIB_TRY(cancel_check(&p->c->e->step->cancel, err));
    return p->n_slice > 1 ? pack_sum(p, buffer, begin, end, err)
                          : pack_slice(p, buffer, w, begin, end, &to, err);
}

/* Packs this thread's share of the panels, as many at a time as one read has. */
static void pack_some(void *arg, int thread, int n_thread) {
    packing *p = arg;
    load_buffer *buffer = &p->c->buffers[thread];
    const int64_t max = loader_rows_at_once(&p->slice[0], buffer);
    int64_t begin, end;
    nib_error error = {NIB_OK, ""};
    nib_status status = NIB_OK;
    pool_split(p->slice[0].n, PACK_PANEL, thread, n_thread, &begin, &end);
    for (int64_t at = begin; at < end && status == NIB_OK; at += max)
        status = pack_rows(p, buffer, at, NUM_MIN(at + max, end), &error);
    nib_status none = NIB_OK;
    if (status != NIB_OK && atomic_compare_exchange_strong(&p->status, &none, status))
        p->error = error;
}

static nib_status pack_matrix(measure_requantized *c, const weight *w, const recipe *f, const float *by,
                              uint8_t *dst, nib_error *err) {
    packing p = {.c = c, .n_slice = f->n_slice, .dst = dst};
    for (int j = 0; j < f->n_slice; j++) {
        p.slice[j] = *w;
        p.slice[j].format = f->slice[j];
        p.slice[j].imatrix = f->uses_imatrix ? by : NULL;
        if (j)
            p.slice[j].over = f->slice[0];
        if (!pack_bytes(&f->slice[j], w->n, w->k, &p.slice[j].bytes))
            return nib_fail(err, NIB_E_MODEL, "weight %s: its size overflows", w->name);
    }
    pool_run(c->e->threads, pack_some, &p);
    const nib_status status = atomic_load(&p.status);
    if (status != NIB_OK && err)
        *err = p.error;
    return status;
}

/* Copies the pager's views of a block; those of replaced matrices are overwritten later. */
static void take_views(measure_requantized *c, int b) {
    const view *views = pager_views(c->e->step->pager, b);
    memcpy(c->views + c->first[b], views, (size_t)layout_block(c->e->layout, b)->n_weight * sizeof *views);
    c->by_block[b] = c->views + c->first[b];
}

/* Replaces the views of other blocks that share block b's weights (a tied head). */
static void replace_shared(measure_requantized *c, int b) {
    for (int j = 0; j < model_n_block(c->e->m); j++) {
        const block *blk = layout_block(c->e->layout, j);
        for (int i = 0; i < blk->n_weight; i++) {
            const weight *w = &blk->weights[i];
            if (w->shared_block != b || w->vector)
                continue;
            if (!c->by_block[j])
                take_views(c, j);
            c->views[c->first[j] + i] = c->views[c->first[b] + w->shared_index];
        }
    }
}

nib_status measure_requantize(measure_requantized *c, const imatrix_watch *channels, int b,
                              const char *format, nib_error *err) {
    const block *blk = layout_block(c->e->layout, b);
    uint8_t *at = c->data;
    memset(c->by_block, 0, (size_t)model_n_block(c->e->m) * sizeof *c->by_block);
    take_views(c, b);
    for (int i = 0; i < blk->n_weight; i++) {
        const weight *w = &blk->weights[i];
        recipe f;
        uint64_t bytes;
        if (!is_own_matrix(w))
            continue;
        pack_format as;
        if (!recipe_parse(format, w->k, &f) || !tried_as(&f, w->n, w->k, &as, &bytes))
            return nib_fail(err, NIB_E_USAGE, "%s: expected a format that %s can have, found %s", blk->name,
                            w->name, format);
        NIB_TRY(pack_matrix(c, w, &f, imatrix_watch_of(channels, b, i), at, err));
        c->views[c->first[b] + i] = (view){at, as, w->n, w->k};
        at += round64(bytes);
    }
    replace_shared(c, b);
    return NIB_OK;
}
