/* driver.c - see driver.h. */
#include "session/driver.h"

#include "base/mem.h"
#include "base/num.h"
#include "session/draft_model.h"

#include <string.h>

static nib_status open_pass(driver_pass *p, int32_t n_slot, nib_error *err) {
    p->order = mem_calloc((size_t)n_slot, sizeof *p->order);
    p->segments = mem_calloc((size_t)n_slot, sizeof *p->segments);
    return p->order && p->segments
               ? NIB_OK
               : nib_fail_nomem(err, (size_t)n_slot * sizeof *p->segments, "the segments of a pass");
}

nib_status driver_open(driver *d, int32_t n_slot, int n_pass, nib_error *err) {
    d->max_started = NUM_MIN(NUM_MAX(n_pass, 1), (int)DRIVER_MAX_PASS);
    d->parted = mem_calloc((size_t)n_slot, sizeof *d->parted);
    if (!d->parted)
        return nib_fail_nomem(err, (size_t)n_slot * sizeof *d->parted, "the segments of a pass");
    for (int i = 0; i < d->max_started; i++)
        NIB_TRY(open_pass(&d->started[i], n_slot, err));
    return open_pass(&d->now, n_slot, err);
}

static void close_pass(driver_pass *p) {
    mem_free(p->order);
    mem_free(p->segments);
}

void driver_drop(driver *d) {
    for (int i = 0; i < d->n_started; i++) {
        driver_pass *p = &d->started[i];
        step_end(d->on.step, NULL, &p->parts, NULL);
        for (int k = 0; k < p->n; k++)
            p->order[k]->busy = false;
    }
    d->n_started = 0;
}

void driver_close(driver *d) {
    driver_drop(d);
    draft_model_close(d->draft_model);
    for (int i = 0; i < d->max_started; i++)
        close_pass(&d->started[i]);
    close_pass(&d->now);
    mem_free(d->parted);
}

void driver_slot_begin(driver_slot *s) {
    draft_begin(&s->draft);
    s->begun = s->first = 0;
    s->refused = false;
}

int64_t driver_positions(const nib_generate_options *o, int64_t n_ctx) {
    const int64_t n_free = n_ctx - (int64_t)o->n_prompt;
    const int64_t n = o->n_predict < 0 ? n_free : NUM_MIN(NUM_MAX(o->n_predict - 1, 0), n_free);
    return (int64_t)o->n_prompt + n;
}

/* ---- the rows of a pass ---- */

static bool generates(const driver_slot *s) {
    return s->of.n >= s->generated;
}

int64_t driver_rows_left(const driver *d, const driver_slot *s) {
    const backend *by = d->on.step->backend;
    const int64_t left = by->rows.n_pass - d->now.n_row;
    if (!by->by_role || !generates(s) || !by->max_generated)
        return left;
    return NUM_MIN(left, by->max_generated - d->now.n_generated);
}

void driver_begin(driver *d) {
    d->now.n = 0;
    d->now.n_row = d->now.n_generated = 0;
    d->now.n_proposed = d->now.n_right = 0;
}

/* The first of the slot's rows whose logits are needed. */
static int64_t head_row_of(const driver_slot *s) {
    const int64_t last = s->n_row - (s->of.n + s->n_row == s->of.n_token ? 1 : 0);
    const int64_t from = s->g.options ? generation_scores_from(&s->g) : INT64_MAX;
    return from == INT64_MAX ? last : NUM_MIN(last, NUM_MAX(from - s->of.n, 0));
}

void driver_add(driver *d, driver_slot *s, int64_t n_max) {
    s->n_row = NUM_MIN(s->of.n_token - s->of.n, NUM_MIN(n_max, driver_rows_left(d, s)));
    if (d->on.step->backend->by_role && !generates(s))
        s->n_row = NUM_MIN(s->n_row, s->generated - s->of.n);
    s->draft.n = s->n_fed = 0;
    s->follows = !s->g.done;
    s->head_row = head_row_of(s);
    d->now.order[d->now.n++] = s;
    d->now.n_row += s->n_row;
    d->now.n_generated += generates(s) ? s->n_row : 0;
    if (!s->g.options)
        return;
    if (s->begun == 0)
        s->begun = time_now();
    if (s->g.result->prompt_n == 0)
        s->g.result->prompt_n = s->of.n_token - s->of.n;
}

/* Moves slots with generated rows to the front, keeping the order within both kinds. */
static void part(driver *d) {
    int n = 0, n_prompt = 0;
    for (int i = 0; i < d->now.n; i++) {
        driver_slot *s = d->now.order[i];
        *(generates(s) ? &d->now.order[n++] : &d->parted[n_prompt++]) = s;
    }
    memcpy(d->now.order + n, d->parted, (size_t)n_prompt * sizeof *d->now.order);
}

/* Makes the pass's segments. */
static void lay_out(driver *d) {
    const bool by_role = d->on.step->backend->by_role;
    if (by_role)
        part(d);
    for (int i = 0; i < d->now.n; i++) {
        driver_slot *s = d->now.order[i];
        if (by_role && generates(s))
            sequence_generates(&s->of, s->of.n);
        d->now.segments[i] = sequence_rows(&s->of, s->n_row, s->head_row);
        d->now.segments[i].generated = generates(s);
    }
    segments_number(d->now.segments, d->now.n);
}

/* Computes this process's blocks of the pass. */
static nib_status begin(driver *d, const pass *how, nib_error *err) {
    driver_pass *p = &d->now;
    lay_out(d);
    p->how = *how;
    p->how.segments = p->segments;
    p->how.n_segment = p->n;
    p->how.n_head = d->on.step->backend->rows.n_head;
    p->drawn = 0;
    p->begun = time_now();
    return step_begin(d->on.step, &p->how, &p->parts, err);
}

static nib_status end(driver *d, nib_error *err) {
    driver_pass *p = &d->now;
    NIB_TRY(step_end(d->on.step, &p->how, &p->parts, err));
    p->seconds = time_now() - p->begun - p->drawn;
    return NIB_OK;
}

static void advance(driver *d) {
    for (int i = 0; i < d->now.n; i++) {
        driver_slot *s = d->now.order[i];
        if (s->draft.n > 0) {
            const int64_t n_right = NUM_MAX(s->n_fed - 1, 0);
            d->now.n_proposed += s->draft.n;
            d->now.n_right += n_right;
            draft_note(&s->draft, n_right);
            s->n_row = s->head_row + s->n_fed;
        }
        sequence_advance(&s->of, s->n_row);
    }
}

nib_status driver_run(driver *d, const pass *how, nib_error *err) {
    NIB_TRY(begin(d, how, err));
    NIB_TRY(end(d, err));
    advance(d);
    return NIB_OK;
}

/* ---- answers ---- */

/* Reports how many rows of the prompt are computed, before its first token. False: the answer must end. */
static bool tell_prompt(driver_slot *s, int64_t n_computed) {
    const nib_generate_options *o = s->g.options;
    const int64_t all = s->g.result->prompt_n;
    if (!o->on_prompt || all == 0 || s->first > 0 || s->refused)
        return !s->refused;
    const int64_t done = NUM_MAX(all - ((int64_t)o->n_prompt - n_computed), 0);
    s->refused = !o->on_prompt(o->user, "prompt", (uint64_t)done, (uint64_t)all);
    return !s->refused;
}

/* Reports parts of prompts; the end of a prompt is reported before its first token is drawn. */
static void tell_prompts(driver *d) {
    for (int i = 0; i < d->now.n; i++) {
        driver_slot *s = d->now.order[i];
        if (s->of.n < (int64_t)s->g.options->n_prompt)
            tell_prompt(s, s->of.n);
    }
}

static void note_first(driver_slot *s) {
    if (s->first > 0)
        return;
    s->first = time_now();
    s->g.result->prompt_s = s->first - s->begun;
}

void driver_feed(driver_slot *s, const int32_t *ids, const float *logits) {
    int32_t token;
    if (!tell_prompt(s, (int64_t)s->g.options->n_prompt)) {
        s->follows = false;
        return;
    }
    note_first(s);
    if (ids)
        generation_feed_best(&s->g, ids, logits, &token);
    else
        generation_feed(&s->g, logits, s->of.tokens, s->of.n_token, &token);
    if (!s->g.done)
        sequence_add(&s->of, token);
    s->follows = !s->g.done && s->n_fed < s->draft.n && s->draft.tokens[s->n_fed] == token;
    s->n_fed++;
}

/* Scores the prompt's token after the row. */
static void score(driver_slot *s, const float *logits) {
    generation_score(&s->g, logits);
    s->follows = !s->g.done;
    if (s->g.done)
        note_first(s);
}

/* Takes the logits of a segment's rows. Rows after the sequence's last token are of proposed tokens: their
 * logits are used as long as the drawn tokens equal the proposed ones. */
static nib_status take_logits(void *user, int segment_index, int64_t row, int64_t n_row, const float *logits,
                              nib_error *err) {
    driver *d = user;
    driver_slot *s = d->now.order[segment_index];
    const int64_t n_vocab = model_hparams(d->on.m)->n_vocab;
    const double begun = time_now();
    (void)err;
    for (int64_t i = 0; i < n_row && s->follows; i++)
        if (s->of.n + row + i == generation_scores_from(&s->g))
            score(s, logits + i * n_vocab);
        else
            driver_feed(s, NULL, logits + i * n_vocab);
    d->now.drawn += time_now() - begun;
    return NIB_OK;
}

static nib_status take_best(void *user, int segment_index, int64_t row, int64_t n_row, const int32_t *ids,
                            const float *logits, nib_error *err) {
    driver *d = user;
    driver_slot *s = d->now.order[segment_index];
    const double begun = time_now();
    (void)row, (void)err;
    if (d->now.later) {
        memcpy(d->best.ids, ids, (size_t)d->now.n_best * sizeof *ids);
        memcpy(d->best.logits, logits, (size_t)d->now.n_best * sizeof *logits);
    }
    for (int64_t i = 0; i < n_row && s->follows && !d->now.later; i++)
        driver_feed(s, ids + i * d->now.n_best, logits + i * d->now.n_best);
    d->now.drawn += time_now() - begun;
    return NIB_OK;
}

/* Maximum number of a row's largest logits that the pass's answers read; 0: all. *n_change: maximum number of
 * logits that they change first. *n_logits: rows with logits. */
static int32_t n_best_of(const driver *d, int64_t *n_logits, int64_t *n_change) {
    const backend_kind *kind = d->on.step->backend->kind;
    const int32_t max = NUM_MIN(kind->max_best, (int32_t)DRIVER_MAX_BEST);
    bool whole = false;
    int32_t n = 0;
    *n_change = *n_logits = 0;
    for (int i = 0; i < d->now.n; i++) {
        const driver_slot *s = d->now.order[i];
        int64_t each;
        const int32_t own = generation_n_best(&s->g, max, s->of.n + s->n_row, &each);
        whole = whole || own == 0 || each > kind->max_changes;
        n = NUM_MAX(n, own);
        *n_change += each * (s->n_row - s->head_row);
        *n_logits += s->n_row - s->head_row;
    }
    whole = whole || (d->on.step->links && *n_change > 0); /* changes do not cross a pipeline */
    return whole || *n_change > kind->max_changes || *n_logits < kind->best_from ? 0 : n;
}

static int64_t write_changes(void *user, int segment_index, int64_t row, logit_change *out, logit_row *how) {
    const driver *d = user;
    driver_slot *s = d->now.order[segment_index];
    return generation_changes(&s->g, s->of.tokens, s->of.n + row + 1, out, how);
}

static void take_states(void *user, int segment_index, const float *x) {
    driver *d = user;
    draft_model_keep(d->draft_model, d->now.order[segment_index], &d->now.segments[segment_index], x);
}

nib_status driver_start(driver *d, const canceller *cancel, nib_error *err) {
    driver_pass *p = &d->now;
    logit_processor processor = {write_changes, d, 0};
    int64_t n_logits;
    p->n_best = n_best_of(d, &n_logits, &processor.n_max);
    p->later = d->logits && n_logits == 1;
    const bool whole = p->n_best == 0;
    const pass how = {.logits = whole && p->later ? d->logits : NULL,
                      .rows = whole && !p->later ? take_logits : NULL,
                      .n_best = p->n_best,
                      .best = take_best,
                      .processor = processor.n_max > 0 && !whole ? &processor : NULL,
                      .output = draft_model_reads_states(d->draft_model) ? take_states : NULL,
                      .user = d,
                      .cancel = cancel};
    NIB_TRY(begin(d, &how, err));
    p->how.processor = NULL; /* both are of this call */
    p->how.cancel = NULL;
    for (int i = 0; i < p->n; i++)
        p->order[i]->busy = true;
    const driver_pass unused = d->started[d->n_started];
    d->started[d->n_started++] = *p;
    *p = unused;
    return NIB_OK;
}

/* Makes the pass that has started first the current one. */
static void take_first(driver *d) {
    const driver_pass unused = d->now;
    d->now = d->started[0];
    d->n_started--;
    memmove(d->started, d->started + 1, (size_t)d->n_started * sizeof *d->started);
    d->started[d->n_started] = unused;
    for (int i = 0; i < d->now.n; i++)
        d->now.order[i]->busy = false;
}

nib_status driver_finish(driver *d, nib_error *err) {
    take_first(d);
    const nib_status status = end(d, err);
    if (status != NIB_OK) {
        driver_drop(d);
        return status;
    }
    if (d->now.later && d->now.order[0]->follows) {
        driver_slot *s = d->now.order[0];
        if (d->now.n_best == 0)
            NIB_TRY(take_logits(d, 0, s->n_row - 1, 1, d->logits, err));
        else
            driver_feed(s, d->best.ids, d->best.logits);
    }
    advance(d);
    tell_prompts(d);
    return draft_model_reads_states(d->draft_model)
               ? draft_model_learn(d->draft_model, d->now.order, d->now.n, err)
               : NIB_OK;
}

nib_status driver_answer(driver *d, const canceller *cancel, nib_error *err) {
    NIB_TRY(driver_start(d, cancel, err));
    return driver_finish(d, err);
}
