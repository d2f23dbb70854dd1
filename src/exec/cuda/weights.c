/* weights.c - weights on their way to the GPU: copied from where the pager has them, then put in the order of
 * the kernels there. */
#include "base/mem.h"
#include "base/num.h"
#include "exec/cuda/cuda.h"
#include "model/page_layout.h"
#include "tiers/device_cuda.h"

enum { ALIGN = 256 };

static gpu_weight *own_of(const cuda *c, int b, int w) {
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

/* Weight w of a block, if any, gets its place behind *bytes. */
static void want(const cuda *c, int b, int w, uint64_t *bytes) {
    gpu_weight *g = w < 0 ? NULL : own_of(c, b, w);
    if (!g || g->wanted)
        return;
    const weight *of = weight_of(c, b, w);
    *g = (gpu_weight){.wanted = true, .at = *bytes};
    *bytes += (bytes_of(of, of->n) + ALIGN - 1) / ALIGN * ALIGN;
}

static uint64_t want_all(const cuda *c) {
    const layout *l = c->setup.layout;
    uint64_t bytes = 0;
    for (int b = 0; b < layout_n_block(l); b++) {
        const program *p = &layout_block(l, b)->program;
        for (int i = 0; i < p->n_op; i++)
            if (steps_read_weights(&p->ops[i])) {
                want(c, b, p->ops[i].w, &bytes);
                want(c, b, p->ops[i].b, &bytes);
            }
    }
    return bytes;
}

/* Refused before anything is read, with what it would take. */
static nib_status check_room(const cuda *c, uint64_t bytes, nib_error *err) {
    char need[32], have[32];
    device_info info;
    c->base.device->kind->info(c->base.device, &info);
    if (info.bytes == 0 || bytes <= info.free)
        return NIB_OK;
    return nib_fail(err, NIB_E_NOFIT,
                    "VRAM: the weights need %s, and %s has %s free; --backend cuda keeps all of them there",
                    num_format_size(bytes, need), info.name, num_format_size(info.free, have));
}

nib_status weights_open(cuda *c, nib_error *err) {
    const layout *l = c->setup.layout;
    const int n_block = layout_n_block(l);
    int n = 0;
    c->first_weight = mem_calloc((size_t)n_block, sizeof *c->first_weight);
    c->ready = mem_calloc((size_t)n_block, sizeof *c->ready);
    for (int b = 0; b < n_block && c->first_weight; b++) {
        c->first_weight[b] = n;
        n += layout_block(l, b)->n_weight;
    }
    c->own = mem_calloc((size_t)NUM_MAX(n, 1), sizeof *c->own);
    if (!c->first_weight || !c->ready || !c->own)
        return nib_fail_nomem(err, (size_t)n * sizeof *c->own, "the list of weights on the GPU");
    const uint64_t bytes = want_all(c);
    NIB_TRY(check_room(c, bytes, err));
    return tier_region_open(&c->weights, c->base.device, c->setup.ledger, NIB_OWNER_WEIGHTS, bytes, false,
                            "the weights on the GPU", err);
}

void weights_close(cuda *c) {
    tier_region_close(&c->weights);
    mem_free(c->own);
    mem_free(c->first_weight);
    mem_free(c->ready);
}

view weights_view(const cuda *c, int b, int w) {
    if (w < 0)
        return (view){0};
    const weight *of = weight_of(c, b, w);
    return (view){(uint8_t *)c->weights.at + own_of(c, b, w)->at, of->format, of->n, of->k};
}

/* ---- copies ---- */

static nib_status copy_in(const cuda *c, uint8_t *to, const void *from, uint64_t bytes, nib_error *err) {
    return c->base.device->kind->copy(c->base.device, DEVICE_LOAD_WEIGHTS, to, from, bytes, err);
}

/* Of a matrix that is streamed. */
static nib_status copy_pieces(const cuda *c, int w, uint8_t *to, nib_error *err) {
    pager *p = c->run.pager;
    const int b = c->run.visit.block, n = pager_n_piece(p, b, w);
    const weight *of = weight_of(c, b, w);
    nib_status status = NIB_OK;
    for (int i = 0; i < n && status == NIB_OK; i++) {
        pager_piece piece;
        NIB_TRY(pager_fetch(p, b, w, i, &piece, err));
        status = copy_in(c, to + bytes_of(of, piece.first_row), piece.v.data, bytes_of(of, piece.v.n), err);
        if (status == NIB_OK) /* the slot is filled anew behind it */
            status = device_cuda_ok(c->base.device, c->k->stream_sync(c->stream), "copying weights", err);
        pager_release(p);
    }
    return status;
}

static nib_status bring(const cuda *c, int w, nib_error *err) {
    const int b = c->run.visit.block;
    gpu_weight *g = w < 0 ? NULL : own_of(c, b, w);
    if (!g || g->there)
        return NIB_OK;
    const weight *of = weight_of(c, b, w);
    const void *from = c->views[w].data;
    const view there = weights_view(c, b, w);
    uint8_t *to = (uint8_t *)c->weights.at + g->at;
    NIB_TRY(from ? copy_in(c, to, from, bytes_of(of, of->n), err) : copy_pieces(c, w, to, err));
    if (!of->vector)
        NIB_TRY(
            device_cuda_ok(c->base.device, c->k->gtile(&there, true, c->stream), "ordering weights", err));
    g->there = true;
    return NIB_OK;
}

/* Kernels read weights before the launches before them have finished: so these have, when it returns. */
nib_status weights_bring(cuda *c, nib_error *err) {
    const int b = c->run.visit.block;
    const program *p = &layout_block(c->setup.layout, b)->program;
    if (c->ready[b])
        return NIB_OK;
    for (int i = 0; i < p->n_op; i++)
        if (steps_read_weights(&p->ops[i])) {
            NIB_TRY(bring(c, p->ops[i].w, err));
            NIB_TRY(bring(c, p->ops[i].b, err));
        }
    NIB_TRY(device_cuda_ok(c->base.device, c->k->stream_sync(c->stream), "copying weights", err));
    c->ready[b] = true;
    return NIB_OK;
}
