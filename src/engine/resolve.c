/* resolve.c - see resolve.h. */
#include "engine/resolve.h"

#include "base/mem.h"
#include "engine/apply_plan.h"
#include "engine/head.h"
#include "engine/planning/planning.h"
#include "engine/sizes.h"
#include "model/sites.h"

#include <string.h>

/* Makes a layout with all pages on disk. */
static nib_status keep_nothing(engine_core *e, nib_error *err) {
    const size_t n = (size_t)model_n_block(e->m);
    layout_place *places = mem_calloc(n, sizeof *places);
    layout *made;
    if (!places)
        return nib_fail_nomem(err, n * sizeof *places, "the blocks' places");
    for (size_t b = 0; b < n; b++)
        places[b].bytes[0][PLACE_DISK] = places[b].bytes[1][PLACE_DISK] = UINT64_MAX;
    const layout_choice choice = {.shortlist = layout_has_shortlist(e->layout), .places = places};
    const nib_status status = layout_make(e->m, &choice, &made, err);
    mem_free(places);
    return status == NIB_OK ? core_set_layout(e, made, err) : status;
}

/* Applies a plan; own: the engine made it, so weights.c places the pages when the free memory is known. All
 * blocks get the same activations, unless the plan has others. */
static nib_status resolve_with(engine_core *e, const engine_internal *internal, const plan *own,
                               nib_error *err) {
    const plan *p = own ? own : internal->plan;
    const size_t n = (size_t)model_n_block(e->m);
    e->resolved.act_bits = mem_alloc(n);
    if (!e->resolved.act_bits)
        return nib_fail_nomem(err, n, "the blocks' activations");
    memset(e->resolved.act_bits, e->resolved.activation ? e->resolved.activation : 8, n);
    if (p)
        return core_blame_plan(&e->requested, apply_blocks(e, p, !own, err), err);
    return internal->keep_nothing ? keep_nothing(e, err) : NIB_OK;
}

nib_status resolve_blocks(engine_core *e, const engine_internal *internal, nib_error *err) {
    return resolve_with(e, internal, NULL, err);
}

/* Activations of 4 and 8 bits need a file that says which inputs have which. */
static nib_status check_mixed(const engine_core *e, nib_error *err) {
    if (!container_meta(e->container, SITES_N8_KEY))
        return nib_fail(
            err, NIB_E_USAGE,
            "activations ax: expected a file that 'nibble quantize --permute' has made, found none "
            "of its key %s",
            SITES_N8_KEY);
    return NIB_OK;
}

/* The back end must be able to compute the layout's formats with the blocks' activations. */
static nib_status check_activations(const engine_core *e, nib_error *err) {
    for (int b = 0; b < layout_n_block(e->layout); b++) {
        const block *of = layout_block(e->layout, b);
        if (e->resolved.act_bits[b] == NIB_ACT_AX)
            NIB_TRY(check_mixed(e, err));
        for (int w = 0; w < of->n_weight && e->kind->plain_formats; w++)
            if (of->weights[w].format.rotated)
                return nib_fail(
                    err, NIB_E_USAGE,
                    "--backend %s: expected formats that are not rotated, found one of '%s' in block "
                    "%s, which only the processor computes",
                    e->kind->name, of->weights[w].name, of->name);
    }
    return NIB_OK;
}

/* Follows the given plan, or makes one if the options request it. */
nib_status resolve(engine_core *e, const engine_internal *internal, nib_error *err) {
    plan own = {0};
    nib_status status = NIB_OK;
    const bool plans = !internal->plan && e->requested.planning;
    if (plans) {
        NIB_TRY(sizes_resolve(e, err));
        NIB_TRY(head_resolve(e, NULL, err));
        status = planning_make(e, e->requested.planning, &own, err);
        e->cap_is_named = status == NIB_E_NOFIT;
        if (status == NIB_OK && own.without_costs)
            log_line(&e->log, "the costs of lower formats are not measured ('nibble profile MODEL --costs'): "
                              "the weights keep the file's own");
    }
    if (status == NIB_OK)
        status = resolve_with(e, internal, plans ? &own : NULL, err);
    plan_clear(&own);
    if (status != NIB_OK)
        return status;
    NIB_TRY(sizes_resolve(e, err));
    status = check_activations(e, err);
    if (status == NIB_OK)
        status = head_resolve(e, internal->plan, err);
    return internal->plan ? core_blame_plan(&e->requested, status, err) : status;
}
