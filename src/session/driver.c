/* driver.c - see driver.h. */
#include "session/driver.h"

#include "base/mem.h"
#include "base/num.h"
#include "session/draft_model.h"

#include <string.h>

nib_status driver_open(driver *d, int32_t n_slot, nib_error *err) {
    d->order = mem_calloc((size_t)n_slot, sizeof *d->order);
    d->parted = mem_calloc((size_t)n_slot, sizeof *d->parted);
    d->segments = mem_calloc((size_t)n_slot, sizeof *d->segments);
    return d->order && d->parted && d->segments
               ? NIB_OK
               : nib_fail_nomem(err, (size_t)n_slot * sizeof *d->segments, "the segments of a pass");
}

void driver_close(driver *d) {
    draft_model_close(d->draft_model);
    mem_free(d->order);
    mem_free(d->parted);
    mem_free(d->segments);
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
    const int64_t left = by->rows.n_pass - d->n_row;
    if (!by->by_role || !generates(s) || !by->max_generated)
        return left;
    return NUM_MIN(left, by->max_generated - d->n_generated);
}

void driver_begin(driver *d) {
    d->n = 0;
    d->n_row = d->n_generated = 0;
    d->n_proposed = d->n_right = 0;
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
    d->order[d->n++] = s;
    d->n_row += s->n_row;
    d->n_generated += generates(s) ? s->n_row : 0;
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
    for (int i = 0; i < d->n; i++) {
        driver_slot *s = d->order[i];
        *(generates(s) ? &d->order[n++] : &d->parted[n_prompt++]) = s;
    }
    memcpy(d->order + n, d->parted, (size_t)n_prompt * sizeof *d->order);
}

/* Makes the pass's segments. */
static void lay_out(driver *d) {
    const bool by_role = d->on.step->backend->by_role;
    if (by_role)
        part(d);
    for (int i = 0; i < d->n; i++) {
        driver_slot *s = d->order[i];
        if (by_role && generates(s))
            sequence_generates(&s->of, s->of.n);
        d->segments[i] = sequence_rows(&s->of, s->n_row, s->head_row);
        d->segments[i].generated = generates(s);
    }
    segments_number(d->segments, d->n);
}

static nib_status run(driver *d, const pass *how, nib_error *err) {
    pass p = *how;
    lay_out(d);
    p.segments = d->segments;
    p.n_segment = d->n;
    p.n_head = d->on.step->backend->rows.n_head;
    d->drawn = 0;
    const double begun = time_now();
    NIB_TRY(step_pass(d->on.step, &p, err));
    d->seconds = time_now() - begun - d->drawn;
    return NIB_OK;
}

static void advance(driver *d) {
    for (int i = 0; i < d->n; i++) {
        driver_slot *s = d->order[i];
        if (s->draft.n > 0) {
            const int64_t n_right = NUM_MAX(s->n_fed - 1, 0);
            d->n_proposed += s->draft.n;
            d->n_right += n_right;
            draft_note(&s->draft, n_right);
            s->n_row = s->n_fed;
        }
        sequence_advance(&s->of, s->n_row);
    }
}

nib_status driver_run(driver *d, const pass *how, nib_error *err) {
    NIB_TRY(run(d, how, err));
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
    for (int i = 0; i < d->n; i++) {
        driver_slot *s = d->order[i];
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
    driver_slot *s = d->order[segment_index];
    const int64_t n_vocab = model_hparams(d->on.m)->n_vocab;
    const double begun = time_now();
    (void)err;
    for (int64_t i = 0; i < n_row && s->follows; i++)
        if (s->of.n + row + i == generation_scores_from(&s->g))
            score(s, logits + i * n_vocab);
        else
            driver_feed(s, NULL, logits + i * n_vocab);
    d->drawn += time_now() - begun;
    return NIB_OK;
}

static nib_status take_best(void *user, int segment_index, int64_t row, int64_t n_row, const int32_t *ids,
                            const float *logits, nib_error *err) {
    driver *d = user;
    driver_slot *s = d->order[segment_index];
    const double begun = time_now();
    (void)row, (void)err;
    if (d->later) {
        memcpy(d->best.ids, ids, (size_t)d->n_best * sizeof *ids);
        memcpy(d->best.logits, logits, (size_t)d->n_best * sizeof *logits);
    }
    for (int64_t i = 0; i < n_row && s->follows && !d->later; i++)
        driver_feed(s, ids + i * d->n_best, logits + i * d->n_best);
    d->drawn += time_now() - begun;
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
    for (int i = 0; i < d->n; i++) {
        const driver_slot *s = d->order[i];
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
    driver_slot *s = d->order[segment_index];
    return generation_changes(&s->g, s->of.tokens, s->of.n + row + 1, out, how);
}

nib_status driver_answer(driver *d, const canceller *cancel, nib_error *err) {
    logit_processor processor = {write_changes, d, 0};
    int64_t n_logits;
    d->n_best = n_best_of(d, &n_logits, &processor.n_max);
    d->later = d->logits && n_logits == 1;
    const bool whole = d->n_best == 0;
    const pass p = {.logits = whole && d->later ? d->logits : NULL,
                    .rows = whole && !d->later ? take_logits : NULL,
                    .n_best = d->n_best,
                    .best = take_best,
                    .processor = processor.n_max > 0 && !whole ? &processor : NULL,
                    .user = d,
                    .cancel = cancel};
    NIB_TRY(run(d, &p, err));
    if (d->later && d->order[0]->follows) {
        driver_slot *s = d->order[0];
        if (whole)
            NIB_TRY(take_logits(d, 0, s->n_row - 1, 1, d->logits, err));
        else
            driver_feed(s, d->best.ids, d->best.logits);
    }
    advance(d);
    tell_prompts(d);
    return NIB_OK;
}
