/* generate.c - generates an answer in a session: computes the prompt, samples a token, computes it, and so
 * on. */
#include "session/session.h"

#include "base/mem.h"
#include "base/num.h"

#include <string.h>

void nib_generate_options_init(nib_generate_options *options) {
    memset(options, 0, sizeof *options);
    options->n_predict = -1;
    nib_sampling_init(&options->sampling);
}

void nib_result_clear(nib_result *result) {
    if (!result)
        return;
    mem_free(result->tokens);
    mem_free(result->text);
    memset(result, 0, sizeof *result);
}

/* Computes a pass of the answer: rows of its prompt, or of its last token with proposed ones after it. */
static nib_status compute(nib_session *s, const canceller *cancel, nib_error *err) {
    driver *d = &s->driver;
    driver_slot *at = &s->slot;
    nib_result *r = at->g.result;
    const bool decodes = at->first > 0 && driver_decodes(at);
    s->logits_valid = false;
    driver_begin(d);
    driver_add(d, at, INT64_MAX);
    if (decodes)
        NIB_TRY(driver_propose(d, err));
    NIB_TRY(driver_answer(d, cancel, err));
    s->logits_valid = d->now.later && d->now.n_best == 0;
    if (decodes)
        draft_cost_note(&d->cost, d->now.n_row, d->now.seconds);
    if (decodes &&
        d->now.n_proposed == 0) { /* the time of a token; others would say less about the next run */
        r->token_s += d->now.seconds;
        r->token_n++;
    }
    return NIB_OK;
}

static nib_status answer(nib_session *s, nib_error *err) {
    driver_slot *at = &s->slot;
    const nib_generate_options *o = at->g.options;
    const canceller cancel = session_canceller(s);
    NIB_TRY(session_set(s, o->prompt, o->n_prompt, o->on_prompt_candidates ? 0 : (int64_t)o->n_prompt, err));
    if (s->logits_valid && !at->g.done)
        driver_feed(at, NULL, s->driver.logits);
    while (sequence_left(&at->of) > 0 && !at->refused) {
        NIB_TRY(compute(s, &cancel, err));
        sequence_resume(&at->of);
    }
    if (at->refused)
        return nib_fail(err, NIB_E_CANCELLED, "cancelled");
    if (err && at->g.failed.status != NIB_OK)
        *err = at->g.failed;
    return at->g.failed.status;
}

static nib_status generate(nib_session *s, nib_error *err) {
    driver_slot *at = &s->slot;
    nib_result *r = at->g.result;
    driver_slot_begin(at);
    at->begun = time_now();
    const nib_status status = answer(s, err);
    const double now = time_now();
    if (at->first == 0) {
        r->prompt_s = now - at->begun;
        return status;
    }
    r->draft_n = at->draft.n_row;
    r->draft_right = at->draft.n_right;
    r->predicted_n = (int64_t)r->n_token;
    r->predicted_s = now - at->first;
    engine_generation_took(s->engine, sequence_reached(&at->of), r);
    return status;
}

nib_status nib_generate(nib_session *s, const nib_generate_options *options, nib_result *result,
                        nib_error *err) {
    generation *g = &s->slot.g;
    memset(result, 0, sizeof *result);
    const generation_setup with = engine_generation_setup(s->engine);
    NIB_TRY(generation_check(&with, options, err));
    NIB_TRY(generation_open(g, &with, options, s->slot.of.n_ctx, result, err));
    engine_generation_begin(s->engine);
    const nib_status status = generate(s, err);
    engine_generation_end(s->engine);
    generation_close(g);
    if (status == NIB_E_CANCELLED)
        result->finish = NIB_FINISH_CANCELLED;
    return session_answer(s, status);
}
