/* device.c - see device.h. */
#include "engine/device.h"

#include "base/mem.h"
#include "base/num.h"
#include "engine/rates.h"

nib_status engine_device_ask(const engine_core *e, backend *open, const backend_setup *setup,
                             const backend_rows *rows, uint64_t cap, offload_question *out, nib_error *err) {
    device_store *s = NULL;
    nib_status status = e->kind->share(open, setup, rows, cap, out, err);
    if (status == NIB_OK)
        status = device_store_open(setup->layout, e->kind->memory, &s, err);
    for (int b = 0; status == NIB_OK && b < out->n_block; b++)
        out->blocks[b].bytes = device_store_block(s, b);
    if (status == NIB_OK)
        out->fixed = device_store_fixed(s);
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
    NIB_TRY(offload_split_make(&d->share, &rates, &d->split, err));
    by->share = &d->share;
    by->split = &d->split;
    by->kept[by->device->place] = d->split.device_kv;
    by->kept[PLACE_RAM] = d->split.host;
    if (d->split.n_not_resident > 0)
        log_line(
            &e->log,
            "%s of weights are resident on the GPU; of the other %d blocks the processor computes %d for "
            "generated rows, and the others are streamed",
            num_format_size(d->split.resident, kept), d->split.n_not_resident, d->split.n_in_place);
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

nib_status engine_device_take(const engine_core *e, const backend *by, engine_device *d, nib_error *err) {
    const int n_block = layout_n_block(e->layout);
    const bool shares = e->kind->share != NULL;
    if (!d->store)
        return NIB_OK;
    const size_t n = (size_t)device_store_first_matrix(d->store, n_block) + 1;
    bool *comes = mem_calloc(n, sizeof *comes);
    if (!comes)
        return nib_fail_nomem(err, n * sizeof *comes, "the matrices' homes");
    for (int b = 1; b < n_block; b++)
        for (int i = device_store_first_matrix(d->store, b); i < device_store_first_matrix(d->store, b + 1);
             i++)
            comes[i] = !shares || d->split.place[b] != OFFLOAD_RESIDENT;
    const device_store_setup how = {.device = by->device,
                                    .ledger = e->ledger,
                                    .log = &e->log,
                                    .owner = shares ? NIB_OWNER_STAGING : NIB_OWNER_ACTIVATIONS,
                                    .comes = comes,
                                    .tables = d->split.tables,
                                    .host_too = d->split.n_in_place > 0,
                                    .next_pass = shares};
    const nib_status status = device_store_reserve(d->store, &how, err);
    mem_free(comes);
    return status;
}

void engine_device_close(engine_device *d) {
    device_store_close(d->store);
    offload_question_clear(&d->share);
    offload_split_clear(&d->split);
    *d = (engine_device){.store = NULL};
}
