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

typedef struct answering {
    nib_session *s;
    generation *g;
} answering;

static int64_t write_changes(void *user, int segment_index, int64_t row, logit_change *out, logit_row *how) {
    const answering *a = user;
    (void)segment_index;
    return generation_changes(a->g, a->s->of.tokens, a->s->of.n + row + 1, out, how);
}

/* Chooses the logits that the back end computes for the next token. */
static void choose_n_best(const answering *a, logit_processor *processor, session_best *best) {
    const backend_kind *kind = a->s->on.step->backend->kind;
    const int32_t max = kind->best_from > 1 ? 0 : NUM_MIN(kind->max_best, SESSION_MAX_BEST);
    best->n = generation_n_best(a->g, max, a->s->of.n + 1, &processor->n_max);
    best->n = processor->n_max > kind->max_changes ? 0 : best->n;
    best->processor = processor->n_max > 0 ? processor : NULL;
}

/* If the back end selects the largest logits itself, only the first token's logits are returned whole. */
static nib_status answer(nib_session *s, generation *g, nib_error *err) {
    nib_result *r = g->result;
    answering now = {s, g};
    logit_processor processor = {write_changes, &now, 0};
    session_best best = {.n = 0};
    while (!g->done) {
        int32_t token;
        if (best.n)
            generation_feed_best(g, best.ids, best.logits, &token);
        else
            generation_feed(g, s->logits, s->of.tokens, s->of.n, &token);
        if (g->done)
            break;
        choose_n_best(&now, &processor, &best);
        const double start = time_now();
        NIB_TRY(best.n ? session_append_best(s, token, &best, err) : session_append(s, token, err));
        r->token_s += time_now() - start;
        r->token_n++;
    }
    return NIB_OK;
}

/* The same with speculation. */
static nib_status answer_by_proposals(nib_session *s, generation *g, nib_error *err) {
    draft d;
    int32_t token;
    draft_begin(&d);
    if (g->done)
        return NIB_OK;
    generation_feed(g, s->logits, s->of.tokens, s->of.n, &token);
    if (!g->done)
        NIB_TRY(session_add_token(s, token, err));
    while (!g->done)
        NIB_TRY(session_speculate(s, g, &d, err));
    g->result->draft_n = d.n_row;
    g->result->draft_right = d.n_right;
    return NIB_OK;
}

static void on_row(void *user, int64_t position, const float *logits) {
    generation *g = user;
    if (position == generation_scores_from(g))
        generation_score(g, logits);
}

static bool on_progress(void *user, const char *what, uint64_t done, uint64_t total) {
    const nib_generate_options *o = ((const generation *)user)->options;
    return !o->on_prompt || o->on_prompt(o->user, what, done, total);
}

static nib_status generate(nib_session *s, generation *g, nib_error *err) {
    nib_result *r = g->result;
    const nib_generate_options *o = g->options;
    const sync_options how = {.first_row = o->on_prompt_candidates ? 0 : -1,
                              .row_fn = on_row,
                              .progress = on_progress,
                              .user = g,
                              .n_computed = &r->prompt_n};
    const double start = time_now();
    nib_status status = session_sync(s, o->prompt, o->n_prompt, &how, err);
    const double first = time_now();
    r->prompt_s = first - start;
    if (status != NIB_OK)
        return status;
    status = s->n_draft > 0 ? answer_by_proposals(s, g, err) : answer(s, g, err);
    if (status == NIB_OK && g->failed.status != NIB_OK) {
        status = g->failed.status;
        if (err)
            *err = g->failed;
    }
    r->predicted_n = (int64_t)r->n_token;
    r->predicted_s = time_now() - first;
    engine_generation_took(s->engine, s->of.n, r);
    return status;
}

nib_status nib_generate(nib_session *s, const nib_generate_options *options, nib_result *result,
                        nib_error *err) {
    generation g = {0};
    memset(result, 0, sizeof *result);
    const generation_setup with = engine_generation_setup(s->engine);
    NIB_TRY(generation_check(&with, options, err));
    NIB_TRY(generation_open(&g, &with, options, s->of.n_ctx, result, err));
    engine_generation_begin(s->engine);
    const nib_status status = generate(s, &g, err);
    engine_generation_end(s->engine);
    generation_close(&g);
    if (status == NIB_E_CANCELLED)
        result->finish = NIB_FINISH_CANCELLED;
    return session_answer(s, status);
}
