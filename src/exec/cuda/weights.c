/* weights.c - which weights stay in the GPU's memory, and how those come there: copied from where the pager
 * has them, then put in the order of the kernels.
 *
 * Vectors, and matrices that several blocks read, always stay. Where not all blocks have room beside what the
 * back end and its sequences take, as many stay as fit behind two slots for the largest of the others, which
 * come for each visit (arrivals.c). Those that stay are spread evenly, so that a block has the time of its
 * neighbours to come. */
#include "base/mem.h"
#include "base/num.h"
#include "exec/cuda/cuda.h"
#include "model/page_layout.h"
#include "tiers/device_cuda.h"

#include <stdio.h>

enum { ALIGN = 256, NOBODY = 0, SEVERAL = -1 /* gpu_weight.reader */ };

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

/* Places that weights get, one behind the other. */
typedef struct places {
    bool comes;     /* the matrices of blocks that come; else everything that stays */
    uint64_t bytes; /* that were given so far */
} places;

static void place(const cuda *c, int b, int w, void *user) {
    places *p = user;
    gpu_weight *g = weights_own(c, b, w);
    const weight *of = weight_of(c, b, w);
    const bool comes = c->comes[b] && !of->vector && g->reader != SEVERAL;
    if (g->wanted || comes != p->comes)
        return;
    *g = (gpu_weight){.wanted = true, .comes = comes, .at = p->bytes, .reader = g->reader};
    p->bytes += room_of(of);
}

/* Everything's place, for c->comes as it is: bytes that stay, and of the largest block that comes. */
static void place_all(cuda *c, uint64_t *stay, uint64_t *slot) {
    const int n_block = layout_n_block(c->setup.layout);
    places staying = {.comes = false};
    *slot = 0;
    for (int i = 0; i < c->n_own; i++)
        c->own[i].wanted = c->own[i].comes = false;
    for (int b = 0; b < n_block; b++) {
        places coming = {.comes = true};
        weights_each_read(c, b, place, &staying);
        weights_each_read(c, b, place, &coming);
        *slot = NUM_MAX(*slot, coming.bytes);
    }
    *stay = staying.bytes;
}

/* ---- which blocks stay ---- */

static bool fits(cuda *c, uint64_t room, uint64_t *need) {
    uint64_t stay, slot;
    place_all(c, &stay, &slot);
    *need = stay + CUDA_SLOTS * slot;
    return *need <= room;
}

/* So many of the layers stay, evenly; the others come. */
static void keep_layers(cuda *c, int n_stay) {
    const int n_block = layout_n_block(c->setup.layout), n_layer = n_block - 2;
    for (int i = 0; i < n_layer; i++)
        c->comes[1 + i] = (int64_t)(i + 1) * n_stay / n_layer == (int64_t)i * n_stay / n_layer;
}

/* As many layers as have room, found by halving: *need at the end, also where not even none has. */
static bool keep_what_fits(cuda *c, uint64_t room, uint64_t *need) {
    int low = 0, high = layout_n_block(c->setup.layout) - 2;
    if (high < 0)
        return false;
    while (low < high) {
        const int middle = (low + high + 1) / 2;
        keep_layers(c, middle);
        if (fits(c, room, need))
            low = middle;
        else
            high = middle - 1;
    }
    keep_layers(c, low);
    return fits(c, room, need);
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

static nib_status refuse(uint64_t need, uint64_t others, uint64_t left, const char *whose, nib_error *err) {
    char least[32], weights[32], beside[32], have[32];
    return nib_fail(
        err, NIB_E_NOFIT,
        "VRAM: at least %s are needed, %s for weights (what always stays, and two blocks on their "
        "way) and %s for activations, keys and values; %s has %s free",
        num_format_size(need + others, least), num_format_size(need, weights),
        num_format_size(others, beside), whose, num_format_size(left, have));
}

nib_status weights_plan(cuda *c, uint64_t others, nib_error *err) {
    const int n_block = layout_n_block(c->setup.layout);
    char kept[32], whose[64];
    uint64_t need = 0, stay;
    if (c->weights.at)
        return NIB_OK;
    const uint64_t left = free_vram(c, whose), room = left - NUM_MIN(left, others);
    if (!fits(c, room, &need) && !keep_what_fits(c, room, &need)) {
        c->comes[n_block - 1] = true; /* the head too */
        if (!keep_what_fits(c, room, &need))
            return refuse(need, others, left, whose, err);
    }
    place_all(c, &stay, &c->arrivals.bytes);
    for (int b = 0; b < n_block; b++)
        c->arrivals.n_block += c->comes[b];
    if (c->arrivals.n_block > 0)
        log_line(c->setup.log, "%s of weights stay on the GPU; those of %d of %d blocks come for each pass",
                 num_format_size(stay, kept), c->arrivals.n_block, n_block);
    c->weight_bytes = stay;
    return NIB_OK;
}

/* ---- opening ---- */

nib_status weights_open(cuda *c, nib_error *err) {
    const layout *l = c->setup.layout;
    const int n_block = layout_n_block(l);
    c->first_weight = mem_calloc((size_t)n_block, sizeof *c->first_weight);
    c->ready = mem_calloc((size_t)n_block, sizeof *c->ready);
    c->comes = mem_calloc((size_t)n_block, sizeof *c->comes);
    for (int b = 0; b < n_block && c->first_weight; b++) {
        c->first_weight[b] = c->n_own;
        c->n_own += layout_block(l, b)->n_weight;
    }
    c->own = mem_calloc((size_t)NUM_MAX(c->n_own, 1), sizeof *c->own);
    if (!c->first_weight || !c->ready || !c->comes || !c->own)
        return nib_fail_nomem(err, (size_t)c->n_own * sizeof *c->own, "the list of weights on the GPU");
    for (int b = 0; b < n_block; b++)
        weights_each_read(c, b, note_reader, NULL);
    return NIB_OK;
}

nib_status weights_reserve(cuda *c, nib_error *err) {
    if (c->weights.at)
        return NIB_OK;
    NIB_TRY(tier_region_open(&c->weights, c->base.device, c->setup.ledger, NIB_OWNER_WEIGHTS,
                             NUM_MAX(c->weight_bytes, (uint64_t)ALIGN), false, "the weights on the GPU",
                             err));
    return arrivals_open(c, err);
}

void weights_close(cuda *c) {
    arrivals_close(c);
    tier_region_close(&c->weights);
    mem_free(c->own);
    mem_free(c->first_weight);
    mem_free(c->ready);
    mem_free(c->comes);
}

view weights_view(const cuda *c, int b, int w) {
    if (w < 0)
        return (view){0};
    const weight *of = weight_of(c, b, w);
    const gpu_weight *g = weights_own(c, b, w);
    uint8_t *base = g->comes ? arrivals_at(c, b) : c->weights.at;
    return (view){base + g->at, of->format, of->n, of->k};
}

/* ---- copies ---- */

static nib_status copy_in(const cuda *c, void *to, const void *from, uint64_t bytes, cuda_stream s,
                          nib_error *err) {
    return device_cuda_ok(c->base.device, c->k->to_device(to, from, (size_t)bytes, s), "copying weights",
                          err);
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
    const view there = {to, of->format, of->n, of->k};
    NIB_TRY(from ? copy_in(c, to, from, bytes_of(of, of->n), s, err) : copy_pieces(c, w, to, s, err));
    if (of->vector)
        return NIB_OK;
    return device_cuda_ok(c->base.device, c->k->gtile(&there, true, s), "ordering weights", err);
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
    x->status = weights_copy(c, b, w, c->views[w].data, (uint8_t *)c->weights.at + g->at, c->stream, x->err);
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
    return NIB_OK;
}
