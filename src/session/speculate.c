/* speculate.c - proposed tokens as rows of a pass, beside the known token of an answer (sequence/draft.h). It
 * pays where a pass costs about the same for several rows: while weights are streamed, or a GPU reads them
 * for one row. The answers are the same. */
#include "session/draft_model.h"
#include "session/driver.h"

#include "base/num.h"

/* Proposes at most n_max next tokens of a slot. A long match in the text needs no draft model. */
static void propose(const driver *d, driver_slot *s, int64_t n_max, draft_pass *p) {
    draft *to = &s->draft;
    draft_propose(to, s->of.tokens, s->of.n_token, n_max);
    p->each = 0;
    if (!d->draft_model || to->kind == DRAFT_LONG)
        return;
    to->kind = DRAFT_MODEL;
    to->n = draft_model_can(d->draft_model, s->of.n_token, NUM_MIN(n_max, (int64_t)DRAFT_MAX));
    p->each = draft_model_cost(d->draft_model);
}

static nib_status ask_model(const driver *d, driver_slot *s, draft_pass *p, nib_error *err) {
    draft *to = &s->draft;
    const double begun = time_now();
    if (to->kind != DRAFT_MODEL || to->n == 0)
        return NIB_OK;
    NIB_TRY(
        draft_model_follow(d->draft_model, s->index, s->of.tokens, s->of.n_token, to->n, to->tokens, err));
    p->seconds += time_now() - begun;
    return NIB_OK;
}

nib_status driver_open_draft(driver *d, nib_engine *with, nib_engine *target, int32_t n_slot, int64_t n_ctx,
                             nib_error *err) {
    if (model_state_bytes(d->on.m) > 0 && (with || d->n_draft > 0)) {
        engine_log(target, "no speculation: this model has recurrent layers, whose state cannot drop "
                           "rejected tokens");
        d->n_draft = 0;
    }
    return with && d->n_draft > 0 ? draft_model_open(with, target, n_slot, n_ctx, &d->draft_model, err)
                                  : NIB_OK;
}

nib_status driver_propose(driver *d, nib_error *err) {
    const bool by_role = d->on.step->backend->by_role;
    draft_pass p = {.n_row = d->n_row, .n_token = d->n};
    for (int i = 0; i < d->n && d->n_draft > 0; i++) {
        driver_slot *s = d->order[i];
        const int64_t end = driver_positions(s->g.options, s->of.n_ctx);
        const int64_t n_max = NUM_MIN(d->n_draft, driver_rows_left(d, s));
        if (by_role && s->of.n < s->generated) /* the last row of a prompt */
            continue;
        propose(d, s, sequence_can_propose(&s->of, n_max, end), &p);
        p.n_token += draft_choose(&s->draft, &d->cost, d->n_draft_min, &p);
        NIB_TRY(ask_model(d, s, &p, err));
        sequence_propose(&s->of, s->draft.tokens, s->draft.n);
        s->n_row += s->draft.n;
        d->n_row += s->draft.n;
        d->n_generated += s->draft.n;
        p.n_row = d->n_row;
    }
    return NIB_OK;
}
