/* resolve.c - see resolve.h. */
#include "engine/resolve.h"

#include "base/mem.h"
#include "engine/apply_plan.h"
#include "engine/head.h"
#include "engine/planning/planning.h"
#include "engine/sizes.h"

#include <string.h>

/* All blocks get the same activations, unless a plan has others. */
nib_status resolve_blocks(engine_core *e, const engine_internal *internal, nib_error *err) {
    const plan *p = internal->plan;
    const size_t n = (size_t)model_n_block(e->m);
    e->resolved.act_bits = mem_alloc(n);
    if (!e->resolved.act_bits)
        return nib_fail_nomem(err, n, "the blocks' activations");
    memset(e->resolved.act_bits, e->resolved.activation ? e->resolved.activation : 8, n);
    if (p)
        return core_blame_plan(&e->requested, apply_blocks(e, p, err), err);
    if (!internal->keep_nothing)
        return NIB_OK;
    e->resolved.kept = mem_calloc(n, sizeof *e->resolved.kept);
    return e->resolved.kept ? NIB_OK : nib_fail_nomem(err, n * sizeof *e->resolved.kept, "what stays");
}

/* Follows the given plan, or makes one if the options request it. */
nib_status resolve(engine_core *e, const engine_internal *internal, nib_error *err) {
    plan own = {0};
    engine_internal with = *internal;
    nib_status status = NIB_OK;
    if (!internal->plan && e->requested.planning) {
        NIB_TRY(sizes_resolve(e, err));
        NIB_TRY(head_resolve(e, NULL, err));
        status = planning_make(e, e->requested.planning, &own, err);
        e->cap_is_named = status == NIB_E_NOFIT;
        with.plan = &own;
    }
    if (status == NIB_OK)
        status = resolve_blocks(e, &with, err);
    /* Without a plan of the caller, weights.c places the pages, when the free memory is known. */
    if (with.plan == &own) {
        mem_free(e->resolved.kept);
        mem_free(e->resolved.places);
        e->resolved.kept = NULL;
        e->resolved.places = NULL;
    }
    plan_clear(&own);
    if (status != NIB_OK)
        return status;
    NIB_TRY(sizes_resolve(e, err));
    status = head_resolve(e, internal->plan, err);
    return internal->plan ? core_blame_plan(&e->requested, status, err) : status;
}
