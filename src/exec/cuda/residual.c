/* residual.c - QDEC on the GPU: residuals are fetched from host memory while a step's products run, and their
 * corrections are added when both are done. One of the two is in a second stream, which is a branch in a
 * graph: the products if there is much to fetch (kernels/cuda/residual_first.h). Then the addition computes a
 * gate, because a gate needs both complete inputs. */
#include "base/num.h"
#include "exec/cuda/cuda.h"
#include "plan/tune.h"
#include "memory/device_cuda.h"

#include <string.h>

enum { MAX_BLOCKS = 32 /* more fetch no faster on an H200 (docs/paper-qdec.md) */ };

nib_status fetches_open(cuda *c, nib_error *err) {
    fetches *f = &c->fetches;
    const residual_use *r = c->setup.residuals;
    const device *d = c->base.device;
    if (!r)
        return NIB_OK;
    void *there = NULL;
    NIB_TRY(device_cuda_ok(d, c->k->map(r->memory, r->n_byte, &there), "residuals for the GPU to read", err));
    f->mapped = r->memory;
    f->there = there;
    NIB_TRY(device_cuda_ok(d, c->k->stream_new(&f->side), "a second stream", err));
    NIB_TRY(device_cuda_ok(d, c->k->event_new(&f->fork), "an event", err));
    return device_cuda_ok(d, c->k->event_new(&f->join), "an event", err);
}

void fetches_close(cuda *c) {
    const fetches *f = &c->fetches;
    if (f->side)
        c->k->stream_sync(f->side);
    if (f->fork)
        c->k->event_free(f->fork);
    if (f->join)
        c->k->event_free(f->join);
    if (f->side)
        c->k->stream_free(f->side);
    if (f->mapped)
        c->k->unpin(f->mapped);
    memset(&c->fetches, 0, sizeof c->fetches);
}

bool fetches_has(const cuda *c, int b, const step *s) {
    const op *o = &layout_block(c->setup.layout, b)->program.ops[s->first];
    for (int i = 0; i < s->n_w && s->kind == STEP_LINEAR; i++)
        if (residuals_of(c->setup.residuals, b, o[i].w))
            return true;
    return false;
}

int64_t fetches_widest(const cuda *c) {
    int64_t widest = 0;
    for (int b = 0; c->setup.residuals && b < layout_n_block(c->setup.layout); b++)
        for (int i = 0; i < c->blocks[b].n; i++) {
            const step *s = &c->blocks[b].list[i];
            const op *o = &layout_block(c->setup.layout, b)->program.ops[s->first];
            int64_t n = 0;
            for (int w = 0; w < s->n_w && s->kind == STEP_LINEAR; w++)
                n += o[w].n;
            widest = NUM_MAX(widest, n);
        }
    return widest;
}

/* A weight without a residual gets one of step 0. */
void fetches_args(const cuda *c, int b, const step *s, cuda_residual *a) {
    const residual_use *r = c->setup.residuals;
    const op *o = &layout_block(c->setup.layout, b)->program.ops[s->first];
    const ptrdiff_t apart = (uint8_t *)c->fetches.there - (uint8_t *)c->fetches.mapped;
    a->n_w = s->n_w;
    a->k = o->k;
    a->k_chunk = 0;
    a->part = c->mem.part;
    a->scratch = c->mem.fetch_scratch;
    a->ldp = 0;
    for (int i = 0; i < s->n_w; i++) {
        const residual *of = residuals_of(r, b, o[i].w);
        const int at = r->first[b] + o[i].w;
        a->n[i] = o[i].n;
        a->ldp += o[i].n;
        if (!of)
            continue;
        a->rows[i] = of->rows + apart;
        a->scale[i] = (const float *)(const void *)((const uint8_t *)of->scale + apart);
        a->step[i] = of->step;
        a->k_chunk = r->k_chunk[at];
        a->n_tb = r->n_tb[at];
    }
    if (a->n_tb == 0)
        a->n_tb = tune_blocks(&(tune_kind){.k = a->k, .n = a->ldp}, MAX_BLOCKS);
}

int fetches_launch(const cuda *c, const cuda_residual *a, cuda_stream on) {
    const fetches *f = &c->fetches;
    int e = c->k->event_record(f->fork, c->stream);
    e = e ? e : c->k->stream_wait(f->side, f->fork);
    return e ? e : c->k->residual(a, on);
}

int fetches_add(const cuda *c, const cuda_residual_add *a) {
    const fetches *f = &c->fetches;
    int e = c->k->event_record(f->join, f->side);
    e = e ? e : c->k->stream_wait(c->stream, f->join);
    return e ? e : c->k->residual_add(a, c->stream);
}
