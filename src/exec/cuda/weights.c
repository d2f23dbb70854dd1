/* weights.c - which weights stay in the GPU's memory, and how those come there: copied from where the pager
 * has them, then put in the order of the kernels.
 *
 * Vectors, and matrices that several blocks read, always stay. Where not all layers have room beside what the
 * back end and its sequences take, as many stay as fit beside two slots for the largest of the others
 * (plan/offload.h says where they stand). Passes of few rows go through those where they are (in_place.c);
 * for passes of many their matrices come (arrivals.c). */
#include "base/mem.h"
#include "base/num.h"
#include "exec/cuda/cuda.h"
#include "model/page_layout.h"
#include "tiers/device_cuda.h"

#include <stdio.h>
#include <string.h>

enum { ALIGN = 256, PAGE = DEVICE_CUDA_ALIGN, NOBODY = 0, SEVERAL = -1 /* gpu_weight.reader */ };

gpu_weight *weights_own(const cuda *c, int b, int w) {
    page_layout_own(c->setup.layout, &b, &w);
    return &c->own[c->first_weight[b] + w];
}

static const weight *weight_of(const cuda *c, int b, int w) {
    page_layout_own(c->setup.layout, &b, &w);
    return &layout_block(c->setup.layout, b)->weights[w];
}

/* Of n_row rows; of a vector all its floats. They fitted when the layout was made. */
static uint64_t bytes_of(const weight *w, int64_t n_row) {
    uint64_t bytes = 0;
    if (w->vector)
        return (uint64_t)w->k * sizeof(float);
    return n_row > 0 && pack_bytes(&w->format, n_row, w->k, &bytes) ? bytes : 0;
}

static uint64_t room_of(const weight *w) {
    return (bytes_of(w, w->n) + ALIGN - 1) / ALIGN * ALIGN;
}

/* ---- who reads what ---- */

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

static void place(const cuda *c, int b, int w, void *user) {
    uint64_t *always = user; /* bytes so far */
    gpu_weight *g = weights_own(c, b, w);
    const weight *of = weight_of(c, b, w);
    if (g->placed)
        return;
    g->placed = true;
    g->apart = !of->vector && g->reader != SEVERAL;
    uint64_t *end = g->apart ? &c->block_bytes[b] : always;
    g->at = *end;
    *end += room_of(of);
}

/* ---- which blocks stay ---- */

static void note_coming(const cuda *c, int b, int w, void *user) {
    gpu_weight *g = weights_own(c, b, w);
    (void)user;
    g->comes = g->apart && c->comes[b];
}

/* CUDA takes large memory from the driver in pieces of this size. */
enum { PIECE = 2 << 20, LARGE = 1 << 20 };

uint64_t weights_of_block(const cuda *c, int b) {
    const uint64_t bytes = c->block_bytes[b];
    return bytes < LARGE ? bytes : (bytes + PAGE + PIECE - 1) / PIECE * PIECE;
}

/* For c->comes as it is: bytes that stay, and of the largest block that comes. */
static void count_weights(const cuda *c, uint64_t *stay, uint64_t *slot) {
    *stay = c->always_bytes;
    *slot = 0;
    for (int b = 0; b < layout_n_block(c->setup.layout); b++)
        if (c->comes[b])
            *slot = NUM_MAX(*slot, c->block_bytes[b]);
        else
            *stay += weights_of_block(c, b);
}

/* What is decided with. */
typedef struct vram_share {
    uint64_t left;                  /* VRAM */
    uint64_t beside;                /* of it, for activations */
    uint64_t n_page, page, session; /* keys and values of all layers: pages, bytes of one; what is none */
    uint64_t weights, others;       /* what a choice takes */
    uint64_t caches, on_host;       /* of a page, on either side */
    uint64_t layer;                 /* of a page, the most that a layer on the host has */
} vram_share;

/* Of a page, the part of a block's keys and values. */
static uint64_t cache_of(const cuda *c, int b) {
    const program *p = &layout_block(c->setup.layout, b)->program;
    uint64_t sum = 0, each;
    for (int i = 0; i < p->n_op; i++)
        if (p->ops[i].kind == OP_ATTENTION &&
            kv_page_bytes(c->setup.kv_type, p->ops[i].u.attn.n_kv_head, p->ops[i].u.attn.d_head, &each))
            sum += 2 * each;
    return sum;
}

/* Weights, keys and values and the rest, for c->comes as it is. */
static bool fits(cuda *c, vram_share *r) {
    uint64_t stay, slot;
    count_weights(c, &stay, &slot);
    r->on_host = r->layer = 0;
    for (int b = 0; b < layout_n_block(c->setup.layout); b++) {
        const uint64_t bytes = c->in_place.block[b] ? cache_of(c, b) : 0;
        r->on_host += bytes;
        r->layer = NUM_MAX(r->layer, (bytes + PAGE - 1) / PAGE * PAGE);
    }
    r->caches = NUM_MAX(r->page - r->on_host / PAGE * PAGE, NUM_MIN(r->page, (uint64_t)PAGE));
    r->on_host = (r->on_host + PAGE - 1) / PAGE * PAGE;
    r->weights = stay + DEVICE_BLOCKS * slot;
    r->others = r->beside + r->session + r->n_page * r->caches;
    if (r->layer > 0)
        r->others += moves_bytes(r->layer, (int64_t)r->n_page);
    return r->weights <= r->left && r->others <= r->left - r->weights;
}

/* As many layers as have room, found by halving; what they take is in *r, also where not even none has. */
static bool keep_what_fits(cuda *c, vram_share *r) {
    const int n_layer = layout_n_block(c->setup.layout) - 2, asked = c->setup.max_layers;
    int low = 0, high = asked ? NUM_MIN(asked, n_layer) : n_layer;
    if (high < 0)
        return false;
    while (low < high) {
        const int middle = (low + high + 1) / 2;
        in_place_choose(c, middle);
        if (fits(c, r))
            low = middle;
        else
            high = middle - 1;
    }
    in_place_choose(c, low);
    return fits(c, r);
}

/* Of the cap, or of what the device has, which *whose then names. */
static uint64_t free_vram(const cuda *c, char whose[64]) {
    const uint64_t room = ledger_free(c->setup.ledger, NIB_TIER_VRAM);
    device_info info;
    c->base.device->kind->info(c->base.device, &info);
    /* the driver takes some more of it when kernels are loaded */
    const uint64_t has = info.bytes > 0 ? info.free - NUM_MIN(info.free, info.bytes / 64) : NIB_AUTO;
    snprintf(whose, 64, "%s", has < room ? info.name : "the cap");
    return NUM_MIN(room, has);
}

static nib_status refuse(const vram_share *r, const char *whose, nib_error *err) {
    char least[32], weights[32], beside[32], have[32];
    return nib_fail(
        err, NIB_E_NOFIT,
        "VRAM: at least %s are needed, %s for weights (what always stays, and two blocks on their "
        "way) and %s for activations, keys and values; %s has %s free",
        num_format_size(r->weights + r->others, least), num_format_size(r->weights, weights),
        num_format_size(r->others, beside), whose, num_format_size(r->left, have));
}

static nib_status measure_vram(cuda *c, const backend_rows *rows, vram_share *r, char whose[64],
                               nib_error *err) {
    r->left = free_vram(c, whose);
    r->beside = gpu_workspace_device_bytes(c, rows);
    NIB_TRY(kv_page_size(c->setup.layout, c->setup.kv_type, false, &r->page, err));
    r->n_page = r->page ? rows->n_kept / r->page : 0;
    r->session = rows->n_kept - r->n_page * r->page;
    return NIB_OK;
}

nib_status weights_plan(cuda *c, const backend_rows *rows, nib_error *err) {
    const int n_block = layout_n_block(c->setup.layout);
    char kept[32], whose[64];
    uint64_t stay;
    vram_share r = {0};
    if (c->always.at)
        return NIB_OK;
    NIB_TRY(measure_vram(c, rows, &r, whose, err));
    if (!keep_what_fits(c, &r)) {
        c->comes[n_block - 1] = true; /* the head too */
        if (!keep_what_fits(c, &r))
            return refuse(&r, whose, err);
    }
    c->base.kept[NIB_TIER_VRAM] = r.session + r.n_page * r.caches;
    c->base.kept[NIB_TIER_RAM] = r.n_page * r.on_host;
    c->moves.stride = r.layer;
    c->moves.max_page = (int64_t)r.n_page;
    count_weights(c, &stay, &c->arrivals.bytes);
    for (int b = 0; b < n_block; b++) {
        weights_each_read(c, b, note_coming, NULL);
        c->arrivals.n_block += c->comes[b];
        c->keeps[b] = b > 0 && !c->comes[b]; /* the first one is looked up on the host */
    }
    c->base.keeps = c->keeps;
    if (c->arrivals.n_block > 0)
        log_line(
            c->setup.log,
            "%s of weights stay on the GPU; of %d blocks that do not, the processor computes %d in passes "
            "of up to %ld rows, and the others come",
            num_format_size(stay, kept), c->arrivals.n_block, c->in_place.n, (long)c->in_place.max_rows);
    return NIB_OK;
}

/* ---- opening ---- */

nib_status weights_open(cuda *c, nib_error *err) {
    const layout *l = c->setup.layout;
    const int n_block = layout_n_block(l);
    c->first_weight = mem_calloc((size_t)n_block, sizeof *c->first_weight);
    c->ready = mem_calloc((size_t)n_block, sizeof *c->ready);
    c->comes = mem_calloc((size_t)n_block, sizeof *c->comes);
    c->keeps = mem_calloc((size_t)n_block, sizeof *c->keeps);
    c->block_bytes = mem_calloc((size_t)n_block, sizeof *c->block_bytes);
    c->stay = mem_calloc((size_t)n_block, sizeof *c->stay);
    c->demotion.left = mem_calloc((size_t)n_block, sizeof *c->demotion.left);
    for (int b = 0; b < n_block && c->first_weight; b++) {
        c->first_weight[b] = c->n_own;
        c->n_own += layout_block(l, b)->n_weight;
    }
    c->own = mem_calloc((size_t)NUM_MAX(c->n_own, 1), sizeof *c->own);
    if (!c->first_weight || !c->ready || !c->comes || !c->keeps || !c->block_bytes || !c->stay ||
        !c->demotion.left || !c->own)
        return nib_fail_nomem(err, (size_t)c->n_own * sizeof *c->own, "the list of weights on the GPU");
    for (int b = 0; b < n_block; b++)
        weights_each_read(c, b, note_reader, NULL);
    for (int b = 0; b < n_block; b++)
        weights_each_read(c, b, place, &c->always_bytes);
    return NIB_OK;
}

static nib_status take_block(cuda *c, int b, nib_error *err) {
    if (c->block_bytes[b] == 0)
        return NIB_OK;
    return tier_region_open(&c->stay[b], c->base.device, c->setup.ledger, NIB_OWNER_WEIGHTS,
                            c->block_bytes[b], false, "weights on the GPU", err);
}

nib_status weights_reserve(cuda *c, nib_error *err) {
    c->demotion.has_slots = c->arrivals.n_block > 0;
    if (c->always.at)
        return NIB_OK;
    for (int b = 0; b < layout_n_block(c->setup.layout); b++)
        if (!c->comes[b])
            NIB_TRY(take_block(c, b, err));
    NIB_TRY(arrivals_open(c, err));
    return tier_region_open(&c->always, c->base.device, c->setup.ledger, NIB_OWNER_WEIGHTS,
                            NUM_MAX(c->always_bytes, (uint64_t)ALIGN), false, "vectors on the GPU", err);
}

void weights_close(cuda *c) {
    arrivals_close(c);
    for (int b = 0; b < layout_n_block(c->setup.layout) && c->stay; b++)
        tier_region_close(&c->stay[b]);
    tier_region_close(&c->always);
    mem_free(c->own);
    mem_free(c->first_weight);
    mem_free(c->ready);
    mem_free(c->comes);
    mem_free(c->keeps);
    mem_free(c->block_bytes);
    mem_free(c->stay);
    mem_free(c->demotion.left);
}

/* ---- moving out and in ---- */

static void forget_apart(const cuda *c, int b, int w, void *user) {
    gpu_weight *g = weights_own(c, b, w);
    (void)user;
    if (g->apart)
        g->there = false;
}

static void set_comes(cuda *c, int b, bool comes) {
    c->comes[b] = comes;
    c->ready[b] = false;
    c->arrivals.n_block += comes ? 1 : -1;
    weights_each_read(c, b, note_coming, NULL);
    weights_each_read(c, b, forget_apart, NULL);
    if (c->keeps[b])
        pager_set_elsewhere(c->demotion.pager, b, false);
}

void weights_leave(cuda *c, int b) {
    tier_region_close(&c->stay[b]);
    set_comes(c, b, true);
}

nib_status weights_return(cuda *c, int b, nib_error *err) {
    NIB_TRY(take_block(c, b, err));
    set_comes(c, b, false);
    return NIB_OK;
}

/* Of what stays. */
static uint8_t *region_of(const cuda *c, int b, const gpu_weight *g) {
    return g->apart ? c->stay[b].at : c->always.at;
}

void weights_view(const cuda *c, int b, int w, view *out) {
    memset(out, 0, sizeof *out); /* its padding too: launches are compared byte by byte */
    if (w < 0)
        return;
    const weight *of = weight_of(c, b, w);
    const gpu_weight *g = weights_own(c, b, w);
    out->data = (g->comes ? arrivals_at(c, b) : region_of(c, b, g)) + g->at;
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

/* Of a matrix that is streamed. */
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
        if (status == NIB_OK) /* the slot is filled anew behind it */
            status = device_cuda_ok(c->base.device, c->k->stream_sync(s), "copying weights", err);
        pager_release(p);
    }
    return status;
}

nib_status weights_copy(const cuda *c, int b, int w, const void *from, uint8_t *to, cuda_stream s,
                        nib_error *err) {
    const weight *of = weight_of(c, b, w);
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

typedef struct loading {
    nib_status status;
    nib_error *err;
} loading;

static void load_one(const cuda *c, int b, int w, void *user) {
    loading *x = user;
    gpu_weight *g = weights_own(c, b, w);
    if (x->status != NIB_OK || g->there || g->comes)
        return;
    uint8_t *to = region_of(c, b, g) + g->at;
    x->status = weights_copy(c, b, w, c->views[w].data, to, c->stream, x->err);
    if (x->status == NIB_OK)
        x->status = weights_order(c, b, w, to, c->stream, x->err);
    g->there = x->status == NIB_OK;
}

/* Kernels read weights before the launches before them have finished: so these have, when it returns. */
nib_status weights_load(cuda *c, nib_error *err) {
    const int b = c->run.visit.block;
    loading x = {NIB_OK, err};
    if (c->ready[b])
        return NIB_OK;
    weights_each_read(c, b, load_one, &x);
    NIB_TRY(x.status);
    NIB_TRY(device_cuda_ok(c->base.device, c->k->stream_sync(c->stream), "copying weights", err));
    c->ready[b] = true;
    c->demotion.pager = c->run.pager;
    if (c->keeps[b] && !c->comes[b])
        pager_set_elsewhere(c->run.pager, b, true);
    return NIB_OK;
}
