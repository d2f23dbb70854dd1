/* experts_host.c - see experts_host.h. */
#include "base/mem.h"
#include "base/num.h"
#include "exec/cuda/launch.h"
#include "exec/cut.h"
#include "memory/device_cuda.h"

#include <stdatomic.h>
#include <string.h>

enum { LINE = 128 /* bytes: a counter's */ };

bool experts_host_can(const layout *l, int b) {
    int first, end;
    return cut_experts(&layout_block(l, b)->program, &first, &end);
}

uint64_t experts_host_bytes(const layout *l, const backend_rows *rows) {
    const uint64_t n_row = (uint64_t)NUM_MIN(rows->n_pass, (int64_t)CUDA_MAX_ROWS);
    uint64_t most = 0;
    for (int b = 0; b < layout_n_block(l); b++) {
        const program *p = &layout_block(l, b)->program;
        if (!experts_host_can(l, b))
            continue;
        const op *sum = &p->ops[cut_end(p, VISIT_EXPERTS) - 1];
        most = NUM_MAX(most, (uint64_t)(sum->u.experts.n_used * sum->u.experts.n));
    }
    return most ? 2 * LINE + n_row * most * sizeof(float) : 0;
}

nib_status experts_host_open(cuda *c, nib_error *err) {
    const size_t n_block = (size_t)layout_n_block(c->setup.layout);
    c->experts_host.on = mem_calloc(n_block, sizeof *c->experts_host.on);
    return c->experts_host.on ? NIB_OK : nib_fail_nomem(err, n_block, "the layers whose experts are in RAM");
}

void experts_host_close(cuda *c) {
    memory_region_close(&c->experts_host.memory);
    mem_free(c->experts_host.on);
    memset(&c->experts_host, 0, sizeof c->experts_host);
}

void experts_host_follow(cuda *c, const homes_split *split) {
    c->experts_host.n = split->n_apart;
    for (int b = 0; b < split->n_block; b++)
        c->experts_host.on[b] = split->of[b].apart;
}

nib_status experts_host_reserve(cuda *c, const backend_rows *rows, nib_error *err) {
    experts_host *h = &c->experts_host;
    const uint64_t bytes = experts_host_bytes(c->setup.layout, rows);
    memory_region_close(&h->memory);
    h->waits = false;
    if (h->n == 0)
        return NIB_OK;
    NIB_TRY(memory_region_open(&h->memory, c->base.host, c->setup.ledger, NIB_OWNER_ACTIVATIONS, bytes, false,
                               "outputs of experts", err));
    uint8_t *at = h->memory.at;
    memset(at, 0, 2 * LINE);
    h->down = (uint32_t *)(void *)at;
    h->up = (uint32_t *)(void *)(at + LINE);
    h->outputs = (float *)(void *)(at + 2 * LINE);
    h->count = 0;
    return device_cuda_ok(c->base.device, c->k->fill(c->mem.mail, 0, CUDA_MAIL_BYTES, c->stream),
                          "memory for experts", err);
}

bool experts_host_has(const cuda *c, const visit *v) {
    return c->experts_host.n > 0 && v->generated && c->experts_host.on[v->block];
}

/* ---- launches ---- */

static cuda_mail mail_of(const cuda *c) {
    const experts_host *h = &c->experts_host;
    return (cuda_mail){device_mapped_there(c->base.host, h->down), device_mapped_there(c->base.host, h->up),
                       c->mem.mail};
}

/* The register of the processor's back end to which rows go down. */
static float *register_there(const cuda *c, reg r) {
    backend *host = c->in_place.host;
    return device_mapped_there(c->base.host, host->kind->register_at(host, r, 0));
}

static nib_status hand_down(const launch_walk *w, const op *o, nib_error *err) {
    cuda *c = w->c;
    cuda_hand_down a;
    memset(&a, 0, sizeof a); /* its padding too: launches are compared byte by byte */
    a.mail = mail_of(c);
    a.x = launch_at(w, o->in);
    a.ldx = launch_ld(w, o->in);
    a.chosen = launch_at(w, o->in2);
    a.ldc = launch_ld(w, o->in2);
    a.to_x = register_there(c, o->in);
    a.to_chosen = register_there(c, o->in2);
    a.k = o->u.experts.k;
    a.n_used = o->u.experts.n_used;
    a.n_row = w->g->n_row;
    a.two = w->g->two;
    a.ended = c->mem.mail + 2;
    return replay_add(c, LAUNCH_HAND_DOWN, o, &a, sizeof a, err);
}

/* part: the outputs of pairs whose experts are here; NULL: none is. */
static nib_status hand_up(const launch_walk *w, const step *s, const float *part, nib_error *err) {
    cuda *c = w->c;
    const op *o = &w->ops[s->first];
    const reg out = s->tail ? s->tail->out : o->out;
    cuda_hand_up a;
    memset(&a, 0, sizeof a); /* its padding too: launches are compared byte by byte */
    a.mail = mail_of(c);
    a.host = device_mapped_there(c->base.host, c->experts_host.outputs);
    a.part = part;
    a.here = part ? device_store_places(c->base.store, w->g->block) : NULL;
    a.chosen = launch_at(w, o->in2);
    a.ldc = launch_ld(w, o->in2);
    a.y = launch_at(w, out);
    a.ldy = launch_ld(w, out);
    a.n = o->u.experts.n;
    a.n_used = o->u.experts.n_used;
    a.n_row = w->g->n_row;
    a.weighted = o->u.experts.weighted;
    a.adds = o->adds || s->tail;
    a.leaves = launch_leaves(w, s);
    c->now.coded_whole = false;
    return replay_add(c, LAUNCH_HAND_UP, o, &a, sizeof a, err);
}

nib_status experts_host_launch(const launch_walk *w, const step *s, nib_error *err) {
    const program *p = &layout_block(w->c->setup.layout, w->g->block)->program;
    const op *o = &w->ops[s->first];
    const float *part = NULL;
    if (s->first == cut_first(p, VISIT_EXPERTS))
        NIB_TRY(hand_down(w, o, err));
    if (device_store_places(w->c->base.store, w->g->block))
        NIB_TRY(launch_experts_here(w, s, &part, err));
    return o->u.experts.sum ? hand_up(w, s, part, err) : NIB_OK;
}

/* ---- the host's part ---- */

static nib_status compute(cuda *c, int b, const cuda_hand_down *asked, nib_error *err) {
    const experts_host *h = &c->experts_host;
    backend *host = c->in_place.host;
    pager *p = c->now.run.pager;
    const backend_experts experts = {.here = device_store_places_host(c->base.store, b), .to = h->outputs};
    const visits none = {.next = NULL};
    backend_run run = {.visit = {.block = b, .part = VISIT_EXPERTS, .n_row = asked->n_row, .generated = true},
                       .weights.views = pager_views(p, b),
                       .act_bits = asked->two ? 16 : 8,
                       .experts = &experts,
                       .pager = p};
    const program *of = &layout_block(c->setup.layout, b)->program;
    const bool reads = !run.weights.views[of->ops[cut_first(of, VISIT_EXPERTS)].w].data;
    const double start = c->spans ? time_now() : 0;
    if (reads)
        pager_pin(p, &run.visit, &none, &run.weights.views);
    const nib_status status = host->kind->run(host, &run, err);
    if (reads)
        pager_unpin(p);
    spans_of_host(c, "experts on the processor", start);
    return status;
}

/* Waits for the rows; computes, unless `failed`; answers. */
static nib_status answer(cuda *c, int b, const cuda_hand_down *asked, bool failed, nib_error *err) {
    experts_host *h = &c->experts_host;
    NIB_TRY(device_cuda_ok(c->base.device, c->k->handed_down(h->down, h->count, c->stream), "experts", err));
    const nib_status status = failed ? NIB_OK : compute(c, b, asked, err);
    atomic_store_explicit((_Atomic uint32_t *)h->up, h->count, memory_order_release);
    return status;
}

void experts_host_after(cuda *c, const gpu_launch *l) {
    experts_host *h = &c->experts_host;
    if (l->kind != LAUNCH_HAND_DOWN)
        return;
    h->count++;
    h->waits = true;
    h->block = l->block;
    h->asked = l->u.hand_down;
}

nib_status experts_host_before(cuda *c, const gpu_launch *l, nib_error *err) {
    experts_host *h = &c->experts_host;
    if (l->kind != LAUNCH_HAND_UP || !h->waits)
        return NIB_OK;
    h->waits = false;
    return answer(c, h->block, &h->asked, false, err);
}

nib_status experts_host_serve(cuda *c, const gpu_launch *list, int n, nib_error *err) {
    nib_status status = NIB_OK;
    for (int i = 0; i < n; i++) {
        if (list[i].kind != LAUNCH_HAND_DOWN)
            continue;
        c->experts_host.count++;
        const bool failed = status != NIB_OK;
        nib_error why;
        const nib_status now = answer(c, list[i].block, &list[i].u.hand_down, failed, failed ? &why : err);
        if (now == NIB_E_DEVICE) /* it counts no more */
            return failed ? status : now;
        status = failed ? status : now;
    }
    return status;
}
