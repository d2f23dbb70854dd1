/* device.c - see device.h. */
#include "engine/device.h"

#include "base/mem.h"
#include "base/num.h"
#include "engine/popular.h"
#include "engine/rates.h"

#include <string.h>

/* Counts a layer's matrices by its products. */
static homes_layer layer_of(const backend_setup *s, int b) {
    const block *of = layout_block(s->layout, b);
    homes_layer l = {.two = s->act_bits[b] == 16};
    for (int i = 0; i < of->program.n_op; i++) {
        const op *o = &of->program.ops[i];
        uint64_t bytes = 0;
        if (!op_is_product(o))
            continue;
        pack_bytes(&of->weights[o->w].format, of->weights[o->w].n, o->k, &bytes);
        l.bytes += bytes;
        if (o->kind == OP_EXPERTS) {
            l.chosen += bytes;
            l.share = (double)o->u.experts.n_used / (double)o->u.experts.n_expert;
        }
        l.macs += o->cost.macs;
        l.bits = of->weights[o->w].format.bits;
    }
    return l;
}

/* The number of experts of block b that a plan has in VRAM, by its bytes there. */
static nib_status count_given(const homes_question *q, int b, uint64_t kept, int *out, nib_error *err) {
    const homes_block *x = &q->blocks[b];
    const uint64_t experts = x->expert * (uint64_t)x->n_expert, others = x->bytes - experts;
    /* Stacks of any number of experts are padded alike, so the nearest number is meant. */
    const uint64_t padding = x->expert / 8,
                   n = (kept + padding - NUM_MIN(others, kept)) / NUM_MAX(x->expert, 1);
    if (!x->apart || kept + padding < others || kept >= x->bytes ||
        kept + padding - others - n * x->expert > 2 * padding)
        return nib_fail(
            err, NIB_E_USAGE,
            "plan: layer.%d: expected experts that the processor can compute, and all else of the layer "
            "in VRAM",
            b - 1);
    *out = (int)n;
    return NIB_OK;
}

/* The places that a plan for a GPU has given the blocks. */
static nib_status take_places(const layout *lay, homes_question *q, nib_error *err) {
    const layout_place *from = layout_places(lay);
    bool on_gpu = false, any = false;
    for (int b = 0; from && b < q->n_block; b++)
        on_gpu = on_gpu || from[b].on_gpu;
    if (!on_gpu)
        return NIB_OK;
    q->given = mem_calloc((size_t)q->n_block, sizeof *q->given);
    if (!q->given)
        return nib_fail_nomem(err, (size_t)q->n_block * sizeof *q->given, "the blocks' places");
    for (int b = 1; b < q->n_block; b++) {
        const bool resident = from[b].in_vram && !layout_place_is_cut(&from[b]);
        const uint64_t kept = from[b].bytes[0][PLACE_GPU] + from[b].bytes[1][PLACE_GPU];
        q->given[b].kind = layout_is_left_out(lay, b) || resident ? HOME_RESIDENT
                           : from[b].on_gpu                       ? HOME_STREAMED
                                                                  : HOME_IN_PLACE;
        q->given[b].away = q->blocks[b].bytes - NUM_MIN(kept, q->blocks[b].bytes);
        q->given[b].apart = from[b].apart;
        if (!from[b].apart)
            continue;
        const int before = q->n_kept;
        NIB_TRY(count_given(q, b, kept, &q->n_kept, err));
        if (any && before != q->n_kept)
            return nib_fail(err, NIB_E_USAGE,
                            "plan: expected as many experts of each layer in VRAM, found %d and %d", before,
                            q->n_kept);
        any = true;
    }
    return NIB_OK;
}

/* The facts of the weights: their bytes, by the store; what a layer's products take; and a plan's places. */
static nib_status add_weights(const device_store *s, const backend_setup *setup, homes_question *out,
                              nib_error *err) {
    const uint64_t *bytes = device_store_matrices(s, &out->n_matrix);
    const size_t n = (size_t)out->n_matrix;
    out->matrices = mem_alloc((n + 1) * sizeof *out->matrices);
    if (!out->matrices)
        return nib_fail_nomem(err, n * sizeof *out->matrices, "the matrices on the GPU");
    memcpy(out->matrices, bytes, n * sizeof *bytes);
    out->stack = mem_calloc(n + 1, sizeof *out->stack);
    if (!out->stack)
        return nib_fail_nomem(err, n * sizeof *out->stack, "the matrices on the GPU");
    for (int i = 0; i < out->n_matrix; i++)
        out->stack[i] = device_store_is_stack(s, i);
    for (int b = 0; b < out->n_block; b++) {
        out->blocks[b].bytes = device_store_block(s, b);
        out->blocks[b].first_matrix = device_store_first_matrix(s, b);
        out->blocks[b].expert =
            device_store_expert(s, b, &out->blocks[b].n_expert, &out->blocks[b].kept_more);
        out->blocks[b].apart = out->blocks[b].apart && out->blocks[b].n_expert > 0;
    }
    out->fixed = device_store_fixed(s);
    if (out->n_block > 2)
        out->layer = layer_of(setup, out->n_block / 2);
    return take_places(setup->layout, out, err);
}

/* What is known of the experts' popularity. */
static nib_status add_hits(const engine_core *e, homes_question *out, nib_error *err) {
    const popularity *p;
    bool any = false;
    for (int b = 0; b < out->n_block; b++)
        any = any || out->blocks[b].apart;
    if (!any)
        return NIB_OK;
    NIB_TRY(popular_read(e, &p, err));
    if (!p->share)
        return NIB_OK;
    const size_t n_byte = ((size_t)p->n_expert + 1) * sizeof *out->hits;
    out->hits = mem_alloc(n_byte);
    if (!out->hits)
        return nib_fail_nomem(err, n_byte, "the popularity of experts");
    if (!popular_hits(p, out->hits)) {
        mem_free(out->hits);
        out->hits = NULL;
    }
    return NIB_OK;
}

nib_status engine_device_ask(const engine_core *e, backend *open, const backend_setup *setup,
                             const backend_rows *rows, uint64_t cap, homes_question *out, nib_error *err) {
    device_store *s = NULL;
    nib_status status = e->kind->share(open, setup, rows, cap, out, err);
    if (status == NIB_OK)
        status = device_store_open(setup->layout, e->kind->memory, &s, err);
    if (status == NIB_OK)
        status = add_weights(s, setup, out, err);
    if (status == NIB_OK)
        status = add_hits(e, out, err);
    device_store_close(s);
    return status;
}

static nib_status share(const engine_core *e, backend *by, const backend_rows *rows, engine_device *d,
                        nib_error *err) {
    const backend_setup setup = core_backend_setup(e, e->resolved.n_thread);
    plan_rates rates = {0};
    char kept[32];
    engine_rates(e, 0, 0, &rates);
    NIB_TRY(
        engine_device_ask(e, by, &setup, rows, ledger_free(e->ledger, by->device->place), &d->share, err));
    plan_rates_like(&d->share.like, &rates);
    NIB_TRY(homes_split_make(&d->share, &rates, &d->split, err));
    by->share = &d->share;
    by->split = &d->split;
    by->kept[by->device->place] = d->split.device_kv;
    by->kept[PLACE_RAM] = d->split.host;
    if (d->split.n_apart > 0)
        log_line(
            &e->log,
            "%s of weights are resident on the GPU, with %d experts of each of %d layers; for generated rows "
            "the processor computes the other experts, for prompts they are streamed",
            num_format_size(d->split.resident, kept), d->split.n_kept, d->split.n_apart);
    if (d->split.n_apart > 0 && d->split.n_kept > 0 && !d->share.hits)
        log_line(&e->log,
                 "these are the experts with the lowest numbers: after 'nibble profile MODEL --experts' they "
                 "are the most popular ones");
    if (d->split.n_apart == 0 && e->requested.cpu_experts > 0)
        log_line(&e->log,
                 "no layer has experts that the processor can compute for the GPU: --cpu-experts is ignored");
    if (d->split.n_apart == 0 && d->split.n_not_resident > 0)
        log_line(
            &e->log,
            "%s of weights are resident on the GPU; of the other %d blocks the processor computes %d for "
            "generated rows, and the others are streamed%s",
            num_format_size(d->split.resident, kept), d->split.n_not_resident, d->split.n_in_place,
            d->split.n_in_part ? " in part" : "");
    if (d->split.n_staged > 0)
        log_line(&e->log,
                 "keys and values of %d layers that the GPU computes are in RAM; for generated rows the "
                 "processor attends in %d of them",
                 d->split.n_staged, d->split.n_attended);
    return NIB_OK;
}

nib_status engine_device_decide(const engine_core *e, backend *by, const backend_rows *rows, engine_device *d,
                                nib_error *err) {
    if (e->kind->share)
        NIB_TRY(share(e, by, rows, d, err));
    if (e->kind->memory)
        NIB_TRY(device_store_open(e->layout, e->kind->memory, &d->store, err));
    by->store = d->store;
    return NIB_OK;
}

/* Which experts are resident of layers of which some are: the most popular ones. */
static nib_status place_experts(const engine_core *e, engine_device *d, nib_error *err) {
    const popularity *known;
    const homes_split *s = &d->split;
    const size_t n_block = (size_t)s->n_block;
    for (int b = 0; b < s->n_block; b++)
        d->n_place = NUM_MAX(d->n_place, d->share.blocks[b].n_expert);
    const size_t n = n_block * (size_t)d->n_place;
    d->apart = mem_calloc(n_block, sizeof *d->apart);
    d->places = mem_calloc(n, sizeof *d->places);
    if (!d->apart || !d->places)
        return nib_fail_nomem(err, n * sizeof *d->places, "the places of experts");
    NIB_TRY(popular_read(e, &known, err));
    for (int b = 0; b < s->n_block; b++) {
        const double *share = popular_shares(e, known, b);
        d->apart[b] = s->of[b].apart;
        for (int i = 0; i < d->share.blocks[b].n_expert; i++) {
            const int rank = popular_rank(share, d->share.blocks[b].n_expert, i);
            d->places[b * d->n_place + i] = (int16_t)(rank < s->n_kept ? rank : -1);
        }
    }
    return NIB_OK;
}

nib_status engine_device_take(const engine_core *e, const backend *by, engine_device *d, nib_error *err) {
    const bool shares = e->kind->share != NULL;
    if (!d->store)
        return NIB_OK;
    if (d->split.n_apart > 0)
        NIB_TRY(place_experts(e, d, err));
    const device_store_setup how = {.device = by->device,
                                    .ledger = e->ledger,
                                    .log = &e->log,
                                    .threads = e->threads,
                                    .owner = shares ? NIB_OWNER_STAGING : NIB_OWNER_ACTIVATIONS,
                                    .comes = d->split.comes, /* NULL: all */
                                    .apart = d->apart,
                                    .n_kept = d->split.n_kept,
                                    .places = d->places,
                                    .n_place = d->n_place,
                                    .tables = d->split.tables,
                                    .host_too = d->split.n_in_place > 0,
                                    .next_pass = shares};
    return device_store_reserve(d->store, &how, err);
}

void engine_device_close(engine_device *d) {
    device_store_close(d->store);
    homes_question_clear(&d->share);
    homes_split_clear(&d->split);
    mem_free(d->apart);
    mem_free(d->places);
    *d = (engine_device){.store = NULL};
}
