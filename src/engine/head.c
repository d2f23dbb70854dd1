/* head.c - see head.h. */
#include "engine/head.h"

#include "base/num.h"
#include "engine/sessions.h"
#include "engine/sizes.h"
#include "exec/shortlist.h"

#include <string.h>

uint64_t head_bytes(const engine_core *e, uint64_t *staging) {
    uint64_t bytes = 0;
    *staging = 0;
    if (e->resolved.n_best && !e->has_sketch)
        e->kind->shortlist_bytes(e->layout, e->resolved.n_thread, e->resolved.n_best, &bytes, staging);
    return bytes;
}

bool head_fits(const engine_core *e, uint64_t session) {
    const int64_t n_pass = NUM_MIN(e->resolved.n_batch, e->resolved.n_ctx);
    const int64_t n_cell = NUM_MIN(n_pass, (int64_t)ENGINE_CELL_ROWS);
    if (e->resolved.cap[NIB_TIER_RAM] == NIB_AUTO)
        return true;
    const pager_need need = pager_needs(e->layout, e->resolved.n_thread);
    const uint64_t rows = sizes_pass_bytes(e, n_pass, n_cell);
    return !sizes_will_stream(e, &need, rows, session) ||
           (e->resolved.stream && sizes_min(e, &need, session, n_pass, n_cell) <= sizes_free_ram(e));
}

/* Under a cap, a shortlist helps in two cases: model and sketch fit together; or the model does not fit but
 * the sketch does, so that the head need not be streamed. Each row has its own shortlist, so the sketch is
 * read once for each sequence that decodes, where the whole head is multiplied with all rows at once. */
static bool helps(const engine_core *e, uint64_t sketch, uint64_t staging) {
    const settings *o = &e->resolved;
    const int64_t n_pass = NUM_MIN(o->n_batch, o->n_ctx), n_cell = NUM_MIN(n_pass, (int64_t)ENGINE_CELL_ROWS);
    uint64_t session;
    if (o->cap[NIB_TIER_RAM] == NIB_AUTO || o->n_sequence > 1 ||
        sessions_bytes(e, e->resolved.formats, o->n_ctx, &session, NULL) != NIB_OK)
        return false;
    const pager_need need = pager_needs(e->layout, e->resolved.n_thread);
    const uint64_t rows = sizes_pass_bytes(e, n_pass, n_cell);
    if (!sizes_will_stream(e, &need, rows + sketch, session))
        return true;
    /* for more than a few logits, looking up a small head's rows on disk costs more than the whole head */
    const weight *head = NULL;
    layout_head(e->layout, &head);
    if (e->resolved.n_best > SHORTLIST_FEW && (!head || head->bytes < need.image / 2))
        return false;
    const uint64_t running = sizes_min(e, &need, session, n_pass, n_cell), loading = staging + SIZES_SLACK;
    return sizes_will_stream(e, &need, rows, session) && o->stream && running < UINT64_MAX / 2 &&
           NUM_MAX(running, loading) + sketch <= sizes_free_ram(e);
}

/* Whether the request uses the file's own weights only. A plan that rounds them decides about the shortlist
 * itself. */
static bool is_plain(const engine_core *e) {
    const nib_plan_options *how = e->requested.planning;
    return e->resolved.activation != 4 &&
           (!how || ((!how->quality || !strcmp(how->quality, "lossless")) && how->speed <= 0 &&
                     (how->mode | 32) != 'b' && (how->mode | 32) != 'c'));
}

static nib_status resolve_by_plan(engine_core *e, const plan *p, nib_error *err) {
    if (p->n_best == 0)
        return NIB_OK;
    if (e->requested.shortlist == NIB_SHORTLIST_OFF)
        return nib_fail(err, NIB_E_USAGE,
                        "the plan uses a shortlist for the output head, but --shortlist off was requested: "
                        "make a plan without it");
    if (e->requested.n_best == 0 || e->requested.n_best > p->n_best)
        return nib_fail(err, NIB_E_USAGE, "the plan's shortlist gives the best %d tokens (top-k), but %s",
                        p->n_best,
                        e->requested.n_best ? "more were requested: make a plan for this sampling"
                                            : "all were requested: make a plan with --shortlist off");
    e->resolved.n_best = p->n_best;
    return NIB_OK;
}

nib_status head_resolve(engine_core *e, const plan *p, nib_error *err) {
    uint64_t bytes, staging;
    if (e->resolved.n_best)
        return NIB_OK;
    if (p)
        NIB_TRY(resolve_by_plan(e, p, err));
    else if (e->requested.shortlist != NIB_SHORTLIST_OFF && is_plain(e))
        e->resolved.n_best = e->requested.n_best;
    if (!e->resolved.n_best)
        return NIB_OK;
    const bool can =
        e->kind->shortlist_bytes &&
        e->kind->shortlist_bytes(e->layout, e->resolved.n_thread, e->resolved.n_best, &bytes, &staging);
    if (p && !can)
        return nib_fail(err, NIB_E_USAGE,
                        "the plan uses a shortlist, which this output head does not support");
    if (!can || (!p && e->requested.shortlist == NIB_SHORTLIST_AUTO && !helps(e, bytes, staging)))
        e->resolved.n_best = 0;
    if (!e->resolved.n_best)
        return NIB_OK;
    layout *with;
    NIB_TRY(layout_with_shortlist(e->layout, true, &with, err));
    return core_set_layout(e, with, err);
}
