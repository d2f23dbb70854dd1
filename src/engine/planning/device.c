/* device.c - collects the facts for a plan with a GPU. They come from the back end's own functions,
 * so the plan and the opened back end decide with the same facts. */
#include "engine/planning/planning.h"

#include "base/mem.h"
#include "base/num.h"
#include "engine/device.h"
#include "engine/sessions.h"
#include "engine/sizes.h"

#include <string.h>

/* CUDA's resident bytes in RAM, if there is no CUDA to measure: the whole process with 8b on an H200 and
 * --ram 2G took 154 MiB (docs/gpu.md). */
#define GUESS_HOST (UINT64_C(128) << 20)

/* The rows that the engine will reserve, as in sizes_rows. */
static nib_status rows_of(const planning *f, const engine_core *e, backend_rows *out, nib_error *err) {
    uint64_t session;
    NIB_TRY(sessions_bytes(e, e->resolved.formats, e->resolved.n_ctx, &session, err));
    const bool streams = e->resolved.stream && sizes_will_stream(e, &f->q.need, f->workspace, session);
    const planning_rows *rows = streams ? &f->streamed : &f->base;
    *out = (backend_rows){.n_pass = rows->n_pass, .n_cell = rows->n_cell, .n_head = sizes_logits_rows(e)};
    return sessions_cache_bytes(e, e->resolved.formats, e->resolved.n_ctx, &out->n_kept, err);
}

static nib_status ask_backend(planning *f, const engine_core *e, const layout *lay, nib_error *err) {
    const size_t n = (size_t)f->q.n_block;
    backend_rows rows;
    backend_setup setup = core_backend_setup(e, f->q.rates.n_thread);
    uint8_t *bits = mem_alloc(n);
    if (!bits)
        return nib_fail_nomem(err, n, "planning");
    memset(bits, e->resolved.activation ? e->resolved.activation : 8, n);
    setup.layout = lay;
    setup.act_bits = e->resolved.act_bits ? e->resolved.act_bits : bits;
    nib_status status = rows_of(f, e, &rows, err);
    if (status == NIB_OK)
        status = engine_device_ask(e, NULL, &setup, &rows, e->resolved.cap[NIB_TIER_VRAM], &f->device, err);
    plan_rates_like(&f->device.like, &f->q.rates);
    if (status == NIB_OK)
        status = homes_split_make(&f->device, &f->q.rates, &f->split, err);
    mem_free(bits);
    return status;
}

/* RAM holds the KV cache of the layers that the processor computes, and of staged ones. */
static void share_caches(planning *f) {
    const homes_question *q = f->q.device;
    const double all = (double)(q->session + q->n_page * q->page);
    const double here = all > 0 ? (double)f->q.split->host / all : 0;
    for (int i = 0; i < f->q.n_cache; i++) {
        plan_cache *c = &f->q.caches[i];
        c->bytes = i ? (uint64_t)(here * (double)c->bytes) : f->q.split->host;
        c->touched = NUM_MIN(c->bytes, (uint64_t)(here * (double)c->touched));
    }
}

void planning_forget_share(planning *f) {
    homes_question_clear(&f->device);
    homes_split_clear(&f->split);
    f->q.device = NULL;
    f->q.split = NULL;
}

nib_status planning_share(planning *f, const engine_core *e, const layout *lay, nib_error *err) {
    const bool first = !f->q.split;
    if (!e->kind->share)
        return NIB_OK;
    planning_forget_share(f);
    f->q.n_cache = 0;
    NIB_TRY(planning_caches(f, e, err));
    if (!f->of.open)
        NIB_TRY(ask_backend(f, e, lay, err));
    f->q.device = f->of.open ? f->of.open->share : &f->device;
    plan_rates_like(&f->q.device->like, &f->q.rates);
    f->q.split = f->of.open ? f->of.open->split : &f->split;
    share_caches(f);
    if (first && f->q.device->absent) {
        f->q.held[NIB_OWNER_RUNTIME] += GUESS_HOST;
        f->q.touched[NIB_OWNER_RUNTIME] += GUESS_HOST;
    }
    return NIB_OK;
}
