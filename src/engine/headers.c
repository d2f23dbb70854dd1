/* headers.c - see headers.h. */
#include "engine/headers.h"

#include "base/mem.h"
#include "engine/head.h"
#include "engine/idle.h"
#include "engine/resolve.h"
#include "engine/sizes.h"

/* Opens the files; computes the memory of the vocabulary and the peak of reading the headers. */
static nib_status look_at_files(engine_core *e, nib_error *err) {
    vocabulary_sizes sizes = {0};
    const container_visitor visitor = vocabulary_visitor(&sizes);
    mem_bound b;
    mem_bound_set(&b, UINT64_MAX);
    const nib_status status = core_open_files(e, &visitor, err);
    mem_bound_end(&b);
    NIB_TRY(status);
    NIB_TRY(tokenizer_estimate(e->container, &sizes, &e->text.need, err));
    e->text.need.peak += (uint64_t)(b.peak - b.now);
    return NIB_OK;
}

nib_status headers_open(engine_core *e, const char *name, const nib_engine_options *options,
                        const engine_internal *internal, nib_error *err) {
    static const engine_internal nothing = {0};
    static const uint64_t none[NIB_N_TIER] = {NIB_AUTO, NIB_AUTO, NIB_AUTO};
    uint64_t residuals;
    internal = internal ? internal : &nothing;
    const plan *p = internal->plan;
    core_init(e, options);
    NIB_TRY(core_begin(e, name, internal, err));
    if (e->resolved.cap[NIB_TIER_RAM] != NIB_AUTO)
        mem_return_unused(); /* as an engine under that cap does */
    NIB_TRY(ledger_open(places_of(none), &e->ledger, err));
    NIB_TRY(look_at_files(e, err));
    if (!e->m)
        return NIB_OK;
    NIB_TRY(core_open_layout(e, err));
    NIB_TRY(idle_residuals(e, p != NULL, &residuals, err));
    NIB_TRY(ledger_charge(e->ledger, PLACE_RAM, NIB_OWNER_WEIGHTS, residuals, err));
    if (p)
        NIB_TRY(resolve_blocks(e, internal, err));
    NIB_TRY(sizes_resolve(e, err));
    return head_resolve(e, p, err);
}
