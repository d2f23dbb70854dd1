/* speculate.c - proposed tokens as rows of a pass, beside the known token of an answer (sequence/draft.h). It
 * pays where a pass costs about the same for several rows: while weights are streamed, or a GPU reads them
 * for one row. The answers are the same. */
#include "session/draft_model.h"

#include "base/num.h"

/* Finds what each slot can propose. A long match in the text needs no draft model. Returns the number of
 * slots that ask the draft model. */
static int look(driver *d) {
    const bool by_role = d->on.step->backend->by_role;
    int n_ask = 0;
    for (int i = 0; i < d->now.n; i++) {
        driver_slot *s = d->now.order[i];
        draft *to = &s->draft;
        if (by_role && s->of.n < s->generated) /* the last row of a prompt */
            continue;
        if (s->of.n + s->n_row < s->of.n_token) /* a pass had no room for all rows that are computed again */
            continue;
        const int64_t end = driver_positions(s->g.options, s->of.n_ctx);
        const int64_t n_max = sequence_can_propose(&s->of, d->n_draft, end);
        draft_propose(to, s->of.tokens, s->of.n_token, n_max);
        if (!d->draft_model || to->kind == DRAFT_LONG)
            continue;
        to->kind = DRAFT_MODEL;
        to->n = draft_model_can(d->draft_model, s, NUM_MIN(n_max, (int64_t)DRAFT_MAX));
        n_ask += to->n > 0;
    }
    return n_ask;
}

/* Chooses how many of them are rows of the pass. */
static void choose(driver *d, double each) {
    draft_pass p = {.n_token = d->now.n};
    for (int i = 0; i < d->now.n; i++) {
        driver_slot *s = d->now.order[i];
        draft *to = &s->draft;
        to->n = NUM_MIN(to->n, driver_rows_left(d, s));
        p.n_row = d->now.n_row;
        p.again = s->of.kv.second.at != NULL;
        p.each = to->kind == DRAFT_MODEL ? each : 0;
        p.n_free = to->kind == DRAFT_MODEL ? draft_model_free(d->draft_model) : 0;
        p.n_token += draft_choose(to, &d->cost, d->n_draft_min, &p);
        p.seconds += p.each * (double)NUM_MAX(to->n - p.n_free, 0);
        s->n_row += to->n;
        d->now.n_row += to->n;
        d->now.n_generated += to->n;
    }
}

nib_status driver_open_draft(driver *d, nib_engine *with, nib_engine *target, int32_t n_slot, int64_t n_ctx,
                             nib_error *err) {
    if (model_state_bytes(d->on.m) > 0 && d->on.step->links && d->n_draft > 0) {
        engine_log(target, "no speculation: several devices compute the model, and it has recurrent layers");
        d->n_draft = 0;
    }
    if (with && d->on.step->links && d->n_draft > 0 && model_is_ahead(engine_parts_of(with).m)) {
        engine_log(target, "no head predicts later tokens: several devices compute the model");
        with = NULL;
    }
    return with && d->n_draft > 0 ? draft_model_open(with, target, n_slot, n_ctx, &d->draft_model, err)
                                  : NIB_OK;
}

nib_status driver_propose(driver *d, nib_error *err) {
    if (d->n_draft == 0)
        return NIB_OK;
    const int n_ask = look(d);
    choose(d, d->draft_model ? draft_model_cost(d->draft_model, n_ask) : 0);
    if (n_ask > 0)
        NIB_TRY(draft_model_follow(d->draft_model, d->now.order, d->now.n, err));
    for (int i = 0; i < d->now.n; i++)
        sequence_propose(&d->now.order[i]->of, d->now.order[i]->draft.tokens, d->now.order[i]->draft.n);
    return NIB_OK;
}
