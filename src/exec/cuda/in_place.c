/* in_place.c - layers that are not resident on the GPU and that the processor computes from their weights in
 * RAM, for generated rows. This back end owns a back end of the processor for them. At the same time
 * other layers are streamed (plan/homes.h). For prompts all of these layers are streamed, however few rows
 * there are, so a row's bits do not depend on the number of other rows. If more sequences may decode together
 * than the processor can compute faster than the link copies, no layer is computed in place. Each device has
 * the keys and values of the layers that it computes (kv_pool_split). The residual stream is copied when the
 * device changes. */
#include "base/mem.h"
#include "base/num.h"
#include "exec/cuda/cuda.h"
#include "memory/device_cuda.h"

#include <string.h>

nib_status in_place_open(cuda *c, nib_error *err) {
    in_place *p = &c->in_place;
    const size_t n_block = (size_t)layout_n_block(c->setup.layout);
    p->block = mem_calloc(n_block, sizeof *p->block);
    if (!p->block)
        return nib_fail_nomem(err, n_block * sizeof *p->block, "the list of layers in RAM");
    NIB_TRY(device_mapped_open(c->base.device, &c->base.host, err));
    backend_setup setup = c->setup;
    setup.kernels = NULL; /* the map is that of the GPU */
    return backend_cpu.open(&setup, &p->host, err);
}

void in_place_close(cuda *c) {
    if (c->in_place.host)
        backend_cpu.close(c->in_place.host);
    device_close(c->base.host);
    c->base.host = NULL;
    mem_free(c->in_place.block);
    memset(&c->in_place, 0, sizeof c->in_place);
}

/* The rows of the processor's back end, which computes no logits: those of blocks in place, or
 * with more sequences than those two cells of a launch's rows each, for which it may attend. */
static backend_rows rows_of(const backend_setup *s, const backend_rows *rows) {
    const int64_t max = s->n_sequence > IN_PLACE_MAX_ROWS ? 2 * CUDA_MAX_ROWS : IN_PLACE_MAX_ROWS;
    const int64_t n = NUM_MIN(rows->n_pass, max);
    return (backend_rows){.n_pass = n, .n_cell = n, .n_head = 1};
}

uint64_t in_place_row_bytes(const backend_setup *s, const backend_rows *rows, int64_t n_row,
                            uint64_t *touched) {
    const backend_rows host = rows_of(s, rows);
    return backend_cpu.row_bytes(s, &host, NUM_MIN(n_row, host.n_pass), touched);
}

void in_place_follow(cuda *c, const homes_split *split) {
    in_place *p = &c->in_place;
    p->n = split->n_in_place;
    for (int b = 0; b < split->n_block; b++)
        p->block[b] = split->of[b].kind == HOME_IN_PLACE;
}

nib_status in_place_reserve(cuda *c, const backend_rows *rows, nib_error *err) {
    in_place *p = &c->in_place;
    const backend_rows host = rows_of(&c->setup, rows);
    const bool parts = c->attend_host.n > 0 || c->experts_host.n > 0;
    if (p->n == 0 && !parts)
        return NIB_OK;
    p->first = 0;
    while (p->first < layout_n_block(c->setup.layout) && p->block[p->first])
        p->first++;
    p->host->device = parts ? c->base.host : device_host(); /* page-locked, or not */
    return p->host->kind->reserve(p->host, &host, err);
}

/* Whether the pass leaves a prompt unfinished, so that the next one has prompt rows. */
static bool prompt_goes_on(const backend_pass *p) {
    bool any = false;
    for (int i = 0; i < p->n_segment; i++)
        any = any || (!p->segments[i].generated && p->segments[i].head_row == p->segments[i].n_row);
    return any;
}

nib_status in_place_begin(cuda *c, nib_error *err) {
    in_place *p = &c->in_place;
    backend_pass pass = c->now.pass;
    p->begun = p->now = p->has_stream = false;
    p->n_row = 0;
    device_store_leave(c->base.store, p->n > 0 ? p->block : NULL, prompt_goes_on(&pass));
    if (p->n == 0 && c->attend_host.n == 0 && c->experts_host.n == 0)
        return NIB_OK;
    for (pass.n_segment = 0; pass.n_segment < c->now.pass.n_segment; pass.n_segment++) {
        if (!pass.segments[pass.n_segment].generated)
            break;
        p->n_row += pass.segments[pass.n_segment].n_row;
    }
    if (pass.n_segment == 0)
        return NIB_OK;
    pass.n_head = 0;
    pass.n_best = 0;
    pass.processor = NULL;
    pass.logits = NULL;
    pass.hidden = NULL;
    pass.attends = p->n == 0;
    NIB_TRY(p->host->kind->begin(p->host, &pass, err));
    p->begun = true;
    p->now = p->n > 0;
    return NIB_OK;
}

void in_place_end(cuda *c) {
    in_place *p = &c->in_place;
    if (p->begun)
        p->host->kind->end(p->host, NULL); /* its work is complete */
    p->begun = p->now = false;
}

bool in_place_has(const cuda *c, const visit *v) {
    return c->in_place.now && v->generated && c->in_place.block[v->block];
}

/* Copies the residual stream of the pass's rows to the GPU. */
static nib_status hand_up(cuda *c, nib_error *err) {
    in_place *p = &c->in_place;
    const int64_t n = model_reg_width(cuda_model(c), REG_X), ld = c->mem.ld[REG_X];
    const float *x;
    NIB_TRY(p->host->kind->read_stream(p->host, 0, p->n_row, &x, err));
    memcpy(c->mem.stream_copy, x, (size_t)(p->n_row * n) * sizeof *x);
    NIB_TRY(replay_flush(c, err));
    c->now.coded = NULL;
    p->has_stream = false;
    if (ld == n)
        return spans_copy(c, "copy rows", DEVICE_LOAD, c->mem.reg[REG_X], c->mem.stream_copy,
                          (uint64_t)(p->n_row * n) * sizeof *x, err);
    for (int64_t r = 0; r < p->n_row; r++)
        NIB_TRY(spans_copy(c, "copy rows", DEVICE_LOAD, c->mem.reg[REG_X] + r * ld,
                           c->mem.stream_copy + r * n, (uint64_t)n * sizeof *x, err));
    return NIB_OK;
}

static nib_status hand_down(cuda *c, nib_error *err) {
    in_place *p = &c->in_place;
    const float *x;
    NIB_TRY(c->base.kind->read_stream(&c->base, 0, p->n_row, &x, err));
    p->has_stream = true;
    return p->host->kind->write_stream(p->host, 0, p->n_row, x, err);
}

nib_status in_place_hand_over(cuda *c, nib_error *err) {
    in_place *p = &c->in_place;
    const visit *v = &c->now.run.visit;
    const bool host = in_place_has(c, v);
    if (v->block == 0 && v->generated) /* looked-up rows define the stream */
        p->has_stream = host;
    if (!p->now || !v->generated || host == p->has_stream)
        return NIB_OK;
    return host ? hand_down(c, err) : hand_up(c, err);
}

nib_status in_place_run(cuda *c, const backend_run *r, nib_error *err) {
    in_place *p = &c->in_place;
    const double start = c->spans ? time_now() : 0;
    const nib_status status = p->host->kind->run(p->host, r, err);
    spans_of_host(c, r->visit.block ? "layer in place" : "embeddings in place", start);
    return status;
}
