/* estimates.c - the output head in two steps (exec/shortlist.h): makes the sketch on the device from the head
 * itself, and decides which passes use it.
 *
 * The whole head stays in memory beside the sketch, so each pass may use either, with the same bits. Two
 * steps are used in passes of a few generated rows in which only the largest logits are read. */
#include "base/num.h"
#include "exec/cuda/cuda.h"
#include "exec/shortlist.h"
#include "memory/device_cuda.h"

#include <string.h>

enum {
    ALIGN = 256,
    ROW_COST = 24 << 20 /* bytes that are read in the time of a row's second step: 8 us for one row, 49 us for
                           eight (H100, 151,936 x 896) */
};

static int head_block(const cuda *c) {
    return layout_n_block(c->setup.layout) - 1;
}

/* Whether the head's product ends its block, as one launch of `linear` to which nothing is added. */
static bool is_plain(const cuda *c) {
    const int b = head_block(c);
    const steps *all = &c->blocks[b];
    const step *last = all->n > 0 ? &all->list[all->n - 1] : NULL;
    return last && last->kind == STEP_LINEAR && last->n_w == 1 && !last->tail && last->out == REG_LOGITS &&
           !layout_block(c->setup.layout, b)->program.ops[last->first].adds && !fetches_has(c, b, last) &&
           !c->batched && !c->setup.a16 && !c->setup.sums;
}

/* The number of rows for which saving so many bytes pays. If a sketch was requested, all rows that the kernel
 * supports. */
static int64_t rows_worth(const cuda *c, uint64_t saved) {
    const int64_t n = c->setup.sketch ? CUDA_MAX_SHORT : (int64_t)(saved / ROW_COST);
    return NUM_MIN(NUM_MAX(n, 1), (int64_t)CUDA_MAX_SHORT);
}

/* Gives the sketch without data, and its bytes in memory. *step_at: offset of the rows' steps. */
static bool find(const cuda *c, view *sketch, uint64_t *step_at, uint64_t *bytes) {
    const weight *head;
    if (c->setup.whole_head || !is_plain(c) ||
        !shortlist_device_sketch(c->setup.layout, c->setup.n_best, c->setup.sketch, &head, sketch, bytes))
        return false;
    const view of = {NULL, head->format, head->n, head->k};
    if (!c->k->sketch_takes(&of))
        return false;
    *step_at = (*bytes + ALIGN - 1) / ALIGN * ALIGN;
    *bytes = *step_at + (uint64_t)num_round_up(head->n, PACK_PANEL) * sizeof(float);
    return true;
}

uint64_t estimates_bytes(const cuda *c) {
    view sketch;
    uint64_t step_at, bytes;
    return find(c, &sketch, &step_at, &bytes) ? bytes : 0;
}

nib_status estimates_reserve(cuda *c, nib_error *err) {
    estimates *e = &c->estimates;
    view sketch;
    uint64_t step_at, bytes;
    const weight *head;
    char size[32];
    if (!c->base.split->has_sketch || e->memory.at || !find(c, &sketch, &step_at, &bytes))
        return NIB_OK;
    NIB_TRY(memory_region_open(&e->memory, c->base.device, c->setup.ledger, NIB_OWNER_WEIGHTS, bytes, false,
                               "the output head's sketch", err));
    memset(&e->sketch, 0, sizeof e->sketch); /* its padding too: launches are compared byte by byte */
    e->sketch.data = e->memory.at;
    memcpy(&e->sketch.format, &sketch.format, sizeof sketch.format);
    e->sketch.n = sketch.n;
    e->sketch.k = sketch.k;
    layout_head(c->setup.layout, &head);
    e->max_rows = rows_worth(c, head->bytes - step_at);
    e->step = (float *)(void *)((uint8_t *)e->memory.at + step_at);
    log_detail(c->setup.log,
               "for up to %d sequences together, the output head is computed only for tokens that can be the "
               "likeliest, by a sketch of 4 bits (%s of VRAM): the answers are the same",
               (int)e->max_rows, num_format_size(bytes, size));
    return NIB_OK;
}

void estimates_close(cuda *c) {
    memory_region_close(&c->estimates.memory);
    memset(&c->estimates, 0, sizeof c->estimates);
}

/* The sketch is complete when the call returns, because kernels read weights before earlier launches have
 * ended. */
nib_status estimates_make(cuda *c, nib_error *err) {
    estimates *e = &c->estimates;
    const int b = head_block(c);
    const device *d = c->base.device;
    view head;
    if (!e->sketch.data || e->made)
        return NIB_OK;
    const steps *all = &c->blocks[b];
    const op *ops = layout_block(c->setup.layout, b)->program.ops;
    cuda_weight(c, b, ops[all->list[all->n - 1].first].w, &head);
    NIB_TRY(replay_flush(c, err));
    NIB_TRY(device_cuda_ok(d, c->k->sketch(&head, &e->sketch, e->step, c->stream), "the head's sketch", err));
    NIB_TRY(device_cuda_ok(d, c->k->stream_sync(c->stream), "the head's sketch", err));
    e->made = true;
    return NIB_OK;
}

bool estimates_serve(const cuda *c, const cuda_linear *a) {
    return c->estimates.made && !device_store_comes(c->base.store, head_block(c)) && c->now.pass.n_best > 0 &&
           !c->now.pass.hidden && a->n_row <= c->estimates.max_rows && a->n_w == 1 && !a->two && !a->adds;
}

double estimates_share(cuda *c) {
    const estimates *e = &c->estimates;
    uint64_t counted[2] = {0, 0}; /* cuda_shortlist.scratch */
    nib_error none;
    if (!e->made || device_cuda_enter(c->base.device, &none) != NIB_OK ||
        c->k->to_host(counted, (uint8_t *)c->mem.short_scratch + sizeof(uint64_t), sizeof counted,
                      c->stream) ||
        c->k->stream_sync(c->stream) || counted[0] == 0)
        return 1;
    const double panels = (double)num_div_up(e->sketch.n, PACK_PANEL);
    return (double)counted[1] / (double)counted[0] / panels;
}
