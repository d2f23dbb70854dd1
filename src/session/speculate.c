/* speculate.c - speculation in a session: tokens that followed the same tokens earlier in the text are
 * computed beside the known one (sequence/draft.h). It pays where a pass costs about the same for several
 * rows: while weights are streamed from a disk. The answers are the same. */
#include "session/session.h"

#include "base/num.h"

/* The pass of a token and the proposed ones after it. */
typedef struct proposed {
    nib_session *s;
    generation *g;
    draft *d;
    int64_t n_fed; /* rows whose logits gave a token */
    bool follows;  /* the next row is the token that was drawn */
} proposed;

static nib_status take_rows(void *user, int segment_index, int64_t row, int64_t n_row, const float *logits,
                            nib_error *err) {
    proposed *p = user;
    sequence *of = &p->s->of;
    const int64_t n_vocab = model_hparams(p->s->on.m)->n_vocab;
    (void)segment_index, (void)row, (void)err;
    for (int64_t i = 0; i < n_row && p->follows; i++) {
        int32_t token;
        generation_feed(p->g, logits + i * n_vocab, of->tokens, of->n_token, &token);
        if (!p->g->done)
            sequence_add(of, token);
        p->follows = !p->g->done && p->n_fed < p->d->n && p->d->tokens[p->n_fed] == token;
        p->n_fed++;
    }
    return NIB_OK;
}

/* The positions that the answer may have. */
static int64_t end_of(const nib_session *s, const nib_generate_options *o) {
    const int64_t n = s->of.n_ctx - (int64_t)o->n_prompt;
    return (int64_t)o->n_prompt + (o->n_predict < 0 ? n : NUM_MIN(NUM_MAX(o->n_predict - 1, 0), n));
}

static void propose(nib_session *s, const generation *g, draft *d) {
    sequence *of = &s->of;
    draft_pass p = {.n_row = 1, .n_token = 1};
    const int64_t n_max = NUM_MIN((int64_t)s->n_draft, s->on.step->backend->rows.n_pass - 1);
    draft_propose(d, of->tokens, of->n_token, sequence_can_propose(of, n_max, end_of(s, g->options)));
    draft_choose(d, &s->cost, 0, &p);
    sequence_propose(of, d->tokens, d->n);
}

nib_status session_speculate(nib_session *s, generation *g, draft *d, nib_error *err) {
    proposed now = {.s = s, .g = g, .d = d, .follows = true};
    const double begun = time_now();
    propose(s, g, d);
    segment all = sequence_rows(&s->of, 1 + d->n, 0);
    all.generated = true;
    const canceller cancel = session_canceller(s);
    const pass p = {.segments = &all,
                    .n_segment = 1,
                    .n_head = s->on.step->backend->rows.n_head,
                    .rows = take_rows,
                    .user = &now,
                    .cancel = &cancel};
    s->logits_valid = false;
    if (s->on.step->backend->by_role)
        sequence_generates(&s->of, s->of.n);
    NIB_TRY(step_pass(s->on.step, &p, err));
    const double took = time_now() - begun;
    draft_cost_note(&s->cost, 1 + d->n, took);
    if (d->n == 0) { /* the time of a token; others would say less about the next run */
        g->result->token_s += took;
        g->result->token_n++;
    }
    if (d->n > 0)
        draft_note(d, now.n_fed - 1);
    sequence_advance(&s->of, now.n_fed);
    sequence_resume(&s->of);
    return NIB_OK;
}
