/* weights.c - decides which weights are resident in the GPU's memory, and loads them: copies from the pager's
 * memory, then reorders for the kernels.
 *
 * Vectors, and matrices that several blocks read, are always resident. The tables that the embedding's block
 * looks up are resident if there is memory left (tables.c). If not all layers fit beside the
 * memory of the back end and its sequences, plan/offload.h decides which are resident (share.c has the
 * facts). The others are streamed (streamed.c) or, in passes of generated rows, computed by the processor
 * (in_place.c). */
#include "base/mem.h"
#include "base/num.h"
#include "exec/cuda/cuda.h"
#include "model/page_layout.h"
#include "tiers/device_cuda.h"

#include <stdio.h>
#include <string.h>

enum { ALIGN = 256, NOBODY = 0, SEVERAL = -1 /* gpu_weight.reader */ };

gpu_weight *weights_own(const cuda *c, int b, int w) {
    page_layout_own(c->setup.layout, &b, &w);
    return &c->own[c->first_weight[b] + w];
}

static const weight *weight_of(const cuda *c, int b, int w) {
    page_layout_own(c->setup.layout, &b, &w);
    return &layout_block(c->setup.layout, b)->weights[w];
}

/* Bytes of n_row rows of a matrix, or of a whole vector. They cannot overflow, because making the layout
 * checked that. */
static uint64_t bytes_of(const weight *w, int64_t n_row) {
    uint64_t bytes = 0;
    if (w->vector)
        return (uint64_t)w->k * sizeof(float);
    return n_row > 0 && pack_bytes(&w->format, n_row, w->k, &bytes) ? bytes : 0;
}

static uint64_t padded_bytes(const weight *w) {
    return (bytes_of(w, w->n) + ALIGN - 1) / ALIGN * ALIGN;
}

/* ---- readers ---- */

void weights_each_read(const cuda *c, int b, weight_fn fn, void *user) {
    const program *p = &layout_block(c->setup.layout, b)->program;
    for (int i = 0; i < p->n_op; i++)
        if (steps_read_weights(&p->ops[i])) {
            if (p->ops[i].w >= 0)
                fn(c, b, p->ops[i].w, user);
            if (p->ops[i].b >= 0)
                fn(c, b, p->ops[i].b, user);
        }
}

static void note_reader(const cuda *c, int b, int w, void *user) {
    gpu_weight *g = weights_own(c, b, w);
    (void)user;
    g->reader = g->reader == NOBODY || g->reader == b + 1 ? b + 1 : SEVERAL;
}

/* Notes a table that no product reads. */
static void note_table(const cuda *c, int b, int w, void *user) {
    gpu_weight *g = weights_own(c, b, w);
    (void)user;
    if (g->reader == NOBODY)
        g->reader = b + 1;
}

static void place(const cuda *c, int b, int w, void *user) {
    uint64_t *always = user; /* bytes so far */
    gpu_weight *g = weights_own(c, b, w);
    const weight *of = weight_of(c, b, w);
    if (g->placed)
        return;
    g->placed = true;
    g->exclusive = !of->vector && g->reader != SEVERAL;
    uint64_t *end = g->exclusive ? &c->block_bytes[b] : always;
    g->at = *end;
    *end += padded_bytes(of);
}

/* ---- resident blocks ---- */

static void note_streamed(const cuda *c, int b, int w, void *user) {
    gpu_weight *g = weights_own(c, b, w);
    (void)user;
    g->streamed = g->exclusive && c->is_streamed[b];
}

/* Copies the decision into the back end's state. */
nib_status weights_plan(cuda *c, const backend_rows *rows, nib_error *err) {
    const int n_block = layout_n_block(c->setup.layout);
    char kept[32];
    const offload_question *q = &c->share;
    const offload_split *s = &c->split;
    if (c->fixed.at)
        return NIB_OK;
    offload_question_clear(&c->share);
    offload_split_clear(&c->split);
    NIB_TRY(share_ask(c, rows, ledger_free(c->setup.ledger, NIB_TIER_VRAM), &c->share, err));
    NIB_TRY(offload_split_make(q, &c->in_place.rates, &c->split, err));
    c->base.share = q;
    c->base.split = s;
    c->base.kept[NIB_TIER_VRAM] = q->session + q->n_page * s->device_page;
    c->base.kept[NIB_TIER_RAM] = q->n_page * s->host_page;
    c->moves.stride = s->moved_page;
    c->moves.max_page = (int64_t)q->n_page;
    c->streamed.bytes = s->slot;
    c->streamed.n_block = s->n_not_resident;
    in_place_follow(c, s);
    for (int b = 0; b < n_block; b++) {
        c->is_streamed[b] = b > 0 && s->place[b] != OFFLOAD_RESIDENT;
        c->has_copies[b] = b > 0 && !c->is_streamed[b]; /* passes do not read the whole embedding */
        weights_each_read(c, b, note_streamed, NULL);
    }
    c->base.has_copies = c->has_copies;
    if (s->n_not_resident > 0)
        log_line(
            c->setup.log,
            "%s of weights are resident on the GPU; of the other %d blocks the processor computes %d for "
            "generated rows, and the others are streamed",
            num_format_size(s->resident, kept), s->n_not_resident, s->n_in_place);
    return NIB_OK;
}

uint64_t weights_of_block(const cuda *c, int b) {
    return offload_block_bytes(c->block_bytes[b]);
}

/* ---- opening ---- */

nib_status weights_open(cuda *c, nib_error *err) {
    const layout *l = c->setup.layout;
    const int n_block = layout_n_block(l);
    c->first_weight = mem_calloc((size_t)n_block, sizeof *c->first_weight);
    c->is_loaded = mem_calloc((size_t)n_block, sizeof *c->is_loaded);
    c->is_streamed = mem_calloc((size_t)n_block, sizeof *c->is_streamed);
    c->has_copies = mem_calloc((size_t)n_block, sizeof *c->has_copies);
    c->gpu_only = mem_calloc((size_t)n_block, sizeof *c->gpu_only);
    c->block_bytes = mem_calloc((size_t)n_block, sizeof *c->block_bytes);
    c->resident = mem_calloc((size_t)n_block, sizeof *c->resident);
    c->demotion.demoted = mem_calloc((size_t)n_block, sizeof *c->demotion.demoted);
    for (int b = 0; b < n_block && c->first_weight; b++) {
        c->first_weight[b] = c->n_own;
        c->n_own += layout_block(l, b)->n_weight;
    }
    c->own = mem_calloc((size_t)NUM_MAX(c->n_own, 1), sizeof *c->own);
    if (!c->first_weight || !c->is_loaded || !c->is_streamed || !c->has_copies || !c->gpu_only ||
        !c->block_bytes || !c->resident || !c->demotion.demoted || !c->own)
        return nib_fail_nomem(err, (size_t)c->n_own * sizeof *c->own, "the list of weights on the GPU");
    for (int b = 0; b < n_block; b++)
        weights_each_read(c, b, note_reader, NULL);
    for (int b = 0; b < n_block; b++)
        weights_each_read(c, b, place, &c->fixed_bytes);
    tables_each(c, 0, note_table, NULL);
    tables_each(c, 0, place, &c->fixed_bytes);
    return NIB_OK;
}

static nib_status reserve_block(cuda *c, int b, nib_error *err) {
    if (c->block_bytes[b] == 0)
        return NIB_OK;
    return tier_region_open(&c->resident[b], c->base.device, c->setup.ledger, NIB_OWNER_WEIGHTS,
                            c->block_bytes[b], false, "weights on the GPU", err);
}

nib_status weights_reserve(cuda *c, nib_error *err) {
    c->demotion.had_slots = c->streamed.n_block > 0;
    if (c->fixed.at)
        return NIB_OK;
    for (int b = 0; b < layout_n_block(c->setup.layout); b++)
        if (b == 0 ? c->split.tables : !c->is_streamed[b])
            NIB_TRY(reserve_block(c, b, err));
    NIB_TRY(streamed_open(c, err));
    NIB_TRY(estimates_reserve(c, err));
    return tier_region_open(&c->fixed, c->base.device, c->setup.ledger, NIB_OWNER_WEIGHTS,
                            NUM_MAX(c->fixed_bytes, (uint64_t)ALIGN), false, "vectors on the GPU", err);
}

void weights_close(cuda *c) {
    offload_question_clear(&c->share);
    offload_split_clear(&c->split);
    streamed_close(c);
    estimates_close(c);
    for (int b = 0; b < layout_n_block(c->setup.layout) && c->resident; b++)
        tier_region_close(&c->resident[b]);
    tier_region_close(&c->fixed);
    mem_free(c->own);
    mem_free(c->first_weight);
    mem_free(c->is_loaded);
    mem_free(c->is_streamed);
    mem_free(c->has_copies);
    mem_free(c->gpu_only);
    mem_free(c->block_bytes);
    mem_free(c->resident);
    mem_free(c->demotion.demoted);
}

/* ---- demotion ---- */

typedef struct loading {
    nib_status status;
    nib_error *err;
} loading;

static void forget_apart(const cuda *c, int b, int w, void *user) {
    gpu_weight *g = weights_own(c, b, w);
    (void)user;
    if (g->exclusive)
        g->loaded = false;
}

/* ---- RAM of weights that the GPU has ---- */

static void note_others(const cuda *c, int b, int w, void *user) {
    const gpu_weight *g = weights_own(c, b, w);
    *(bool *)user = *(bool *)user && (g->exclusive || weight_of(c, b, w)->vector);
}

/* Whether only block b's products on the GPU read its matrices, so that RAM does not need them. */
static bool is_its_own(const cuda *c, int b) {
    const block *of = layout_block(c->setup.layout, b);
    bool own = true;
    weights_each_read(c, b, note_others, &own);
    for (int w = 0; w < of->n_weight; w++) /* weights that are not placed are not on the GPU */
        own = own &&
              (of->weights[w].vector || of->weights[w].shared_block >= 0 || weights_own(c, b, w)->placed);
    return own;
}

static void release_ram(cuda *c, int b) {
    if (is_its_own(c, b))
        c->gpu_only[b] = pager_drop_copied(c->run.pager, b) > 0;
}

/* Copies a weight to host memory, in the host's order. */
static void copy_back(const cuda *c, int b, int w, void *user) {
    loading *x = user;
    gpu_weight *g = weights_own(c, b, w);
    const weight *of = weight_of(c, b, w);
    uint8_t *from = c->resident[b].at;
    if (x->status != NIB_OK || !g->exclusive || !g->loaded)
        return;
    const view there = {from + g->at, of->format, of->n, of->k};
    const view host = {pager_restored(c->demotion.pager, b, w), of->format, of->n, of->k};
    const int64_t n = NUM_MAX(of->n_expert, (int64_t)1), each = of->n / n;
    int e = c->k->gtile(&there, false, c->stream);
    for (int64_t i = 0; i < n && !e; i++) /* experts have padding between them there */
        e = c->k->to_host((void *)(uintptr_t)page_layout_expert(&host, n, i).data,
                          from + g->at + bytes_of(of, i * each), (size_t)bytes_of(of, each), c->stream);
    x->status = device_cuda_ok(c->base.device, e, "taking weights back", x->err);
    g->loaded = false;
}

static nib_status return_to_ram(cuda *c, int b, nib_error *err) {
    loading x = {NIB_OK, err};
    if (!c->gpu_only[b])
        return NIB_OK;
    pager_restore(c->demotion.pager, b);
    weights_each_read(c, b, copy_back, &x);
    NIB_TRY(x.status);
    NIB_TRY(device_cuda_ok(c->base.device, c->k->stream_sync(c->stream), "taking weights back", err));
    c->gpu_only[b] = false;
    return NIB_OK;
}

static void set_streamed(cuda *c, int b, bool streamed) {
    c->is_streamed[b] = streamed;
    c->is_loaded[b] = false;
    c->streamed.n_block += streamed ? 1 : -1;
    weights_each_read(c, b, note_streamed, NULL);
    weights_each_read(c, b, forget_apart, NULL);
    if (c->has_copies[b])
        pager_set_copied(c->demotion.pager, b, false);
}

nib_status weights_demote(cuda *c, int b, nib_error *err) {
    NIB_TRY(return_to_ram(c, b, err));
    tier_region_close(&c->resident[b]);
    set_streamed(c, b, true);
    streamed_lock(c, b);
    return NIB_OK;
}

nib_status weights_promote(cuda *c, int b, nib_error *err) {
    NIB_TRY(reserve_block(c, b, err));
    streamed_unlock(c, b);
    set_streamed(c, b, false);
    return NIB_OK;
}

/* The memory of a resident weight. */
static uint8_t *region_of(const cuda *c, const gpu_weight *g) {
    return g->exclusive ? c->resident[g->reader - 1].at : c->fixed.at;
}

void weights_view(const cuda *c, int b, int w, view *out) {
    memset(out, 0, sizeof *out); /* its padding too: launches are compared byte by byte */
    if (w < 0)
        return;
    const weight *of = weight_of(c, b, w);
    const gpu_weight *g = weights_own(c, b, w);
    out->data = (g->streamed ? streamed_slot(c, b) : region_of(c, g)) + g->at;
    memcpy(&out->format, &of->format, sizeof of->format);
    out->n = of->n;
    out->k = of->k;
}

/* ---- copies ---- */

static nib_lane lane_of(const cuda *c, cuda_stream s, nib_lane beside) {
    return s == c->stream ? NIB_LANE_COMPUTE : beside;
}

static nib_status copy_in(const cuda *c, void *to, const void *from, uint64_t bytes, cuda_stream s,
                          nib_error *err) {
    const nib_span span = {"copy weights", lane_of(c, s, NIB_LANE_COPY), true, .bytes = (double)bytes};
    int e = spans_open(c, &span, s);
    e = e ? e : c->k->to_device(to, from, (size_t)bytes, s);
    e = e ? e : spans_close(c, s);
    return device_cuda_ok(c->base.device, e, "copying weights", err);
}

/* Copies a matrix that the pager streams from disk. */
static nib_status copy_pieces(const cuda *c, int w, uint8_t *to, cuda_stream s, nib_error *err) {
    pager *p = c->run.pager;
    const int b = c->run.visit.block, n = pager_n_piece(p, b, w);
    const weight *of = weight_of(c, b, w);
    nib_status status = NIB_OK;
    for (int i = 0; i < n && status == NIB_OK; i++) {
        pager_piece piece;
        NIB_TRY(pager_fetch(p, b, w, i, &piece, err));
        status =
            copy_in(c, to + bytes_of(of, piece.first_row), piece.v.data, bytes_of(of, piece.v.n), s, err);
        if (status == NIB_OK) /* before the reader fills the ring's slot again */
            status = device_cuda_ok(c->base.device, c->k->stream_sync(s), "copying weights", err);
        pager_release(p);
    }
    return status;
}

/* The matrices of experts have padding between them in host memory, and none in the GPU's. */
static nib_status copy_experts(const cuda *c, const weight *of, const void *from, uint8_t *to, cuda_stream s,
                               nib_error *err) {
    const view stack = {from, of->format, of->n, of->k};
    const int64_t each = of->n / of->n_expert;
    for (int64_t e = 0; e < of->n_expert; e++)
        NIB_TRY(copy_in(c, to + bytes_of(of, e * each), page_layout_expert(&stack, of->n_expert, e).data,
                        bytes_of(of, each), s, err));
    return NIB_OK;
}

nib_status weights_copy(const cuda *c, int b, int w, const void *from, uint8_t *to, cuda_stream s,
                        nib_error *err) {
    const weight *of = weight_of(c, b, w);
    if (from && of->n_expert > 1)
        return copy_experts(c, of, from, to, s, err);
    return from ? copy_in(c, to, from, bytes_of(of, of->n), s, err) : copy_pieces(c, w, to, s, err);
}

nib_status weights_order(const cuda *c, int b, int w, uint8_t *to, cuda_stream s, nib_error *err) {
    const weight *of = weight_of(c, b, w);
    const view there = {to, of->format, of->n, of->k};
    if (of->vector)
        return NIB_OK;
    const nib_span span = {"order weights", lane_of(c, s, NIB_LANE_SIDE), false,
                           .bytes = 2 * (double)bytes_of(of, of->n)};
    int e = spans_open(c, &span, s);
    e = e ? e : c->k->gtile(&there, true, s);
    e = e ? e : spans_close(c, s);
    return device_cuda_ok(c->base.device, e, "ordering weights", err);
}

static void load(const cuda *c, int b, int w, uint8_t *to, loading *x) {
    gpu_weight *g = weights_own(c, b, w);
    if (x->status != NIB_OK || g->loaded)
        return;
    x->status = weights_copy(c, b, w, c->views[w].data, to, c->stream, x->err);
    if (x->status == NIB_OK)
        x->status = weights_order(c, b, w, to, c->stream, x->err);
    g->loaded = x->status == NIB_OK;
}

static void load_one(const cuda *c, int b, int w, void *user) {
    const gpu_weight *g = weights_own(c, b, w);
    if (!g->streamed)
        load(c, b, w, region_of(c, g) + g->at, user);
}

/* After the tables were loaded, or were not because they are on disk. */
static void settle_tables(cuda *c) {
    const block *of = layout_block(c->setup.layout, 0);
    bool all = c->in_place.n == 0; /* otherwise the processor also looks up rows */
    if (!tables_there(c, 0)) {
        tables_each(c, 0, forget_apart, NULL);
        tier_region_close(&c->resident[0]);
        return;
    }
    for (int w = 0; w < of->n_weight; w++)
        all = all && (of->weights[w].vector || of->weights[w].shared_block >= 0 ||
                      (weights_own(c, 0, w)->loaded && !weights_own(c, 0, w)->streamed));
    if (all)
        pager_drop_copied(c->run.pager, 0);
}

/* Loads a table whose data is in RAM. The pager reads others from disk row by row. */
static void load_table(const cuda *c, int b, int w, void *user) {
    const gpu_weight *g = weights_own(c, b, w);
    if (c->views[w].data && !g->streamed && region_of(c, g))
        load(c, b, w, region_of(c, g) + g->at, user);
}

/* The copies are complete when the call returns, because kernels read weights before earlier launches have
 * ended. */
nib_status weights_load(cuda *c, nib_error *err) {
    const int b = c->run.visit.block;
    loading x = {NIB_OK, err};
    if (c->is_loaded[b])
        return NIB_OK;
    weights_each_read(c, b, load_one, &x);
    if (b == 0)
        tables_each(c, b, load_table, &x);
    NIB_TRY(x.status);
    NIB_TRY(device_cuda_ok(c->base.device, c->k->stream_sync(c->stream), "copying weights", err));
    c->is_loaded[b] = true;
    c->demotion.pager = c->run.pager;
    if (b == 0)
        settle_tables(c);
    if (!c->has_copies[b] || c->is_streamed[b])
        return NIB_OK;
    pager_set_copied(c->run.pager, b, true);
    release_ram(c, b);
    return NIB_OK;
}
