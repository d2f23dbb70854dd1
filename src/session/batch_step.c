/* batch_step.c - one step of a batch: selects the rows to compute, runs the passes, and samples the tokens.
 *
 * A step is one pass. If the back end has different kernels for prompt rows and generated rows
 * (backend.by_role), the generated rows come first. The position of a row decides which it is: rows after the
 * request's prompt are generated ones, also when they are computed again after a pause. */
#include "session/batch_parts.h"

#include <string.h>

enum { LOAD_PAGES = 16 /* pages read from disk for one sequence in one step, during which others wait */ };

static int64_t n_prompt_of(const slot *s) {
    return (int64_t)s->r->options.n_prompt;
}

/* Whether the slot's next row is after its prompt. */
static bool generates(const slot *s) {
    return s->of.n >= n_prompt_of(s);
}

/* Rows that are left in the pass for rows of the role that the slot's next row has. */
static int64_t rows_left(const nib_batch *b, const slot *s) {
    const backend *by = b->on.step->backend;
    const int64_t max = by->max_generated ? by->max_generated : by->rows.n_pass;
    return by->by_role && generates(s) ? max - b->n_generated : by->rows.n_pass;
}

/* The first row of the slot's rows in this step whose logits are needed: those of the last known token, and
 * of the prompt's tokens that are scored. */
static int64_t head_row_of(const slot *s) {
    const int64_t last = s->n_row - (s->of.n + s->n_row == s->of.n_token ? 1 : 0);
    const int64_t from = generation_scores_from(&s->g);
    return from == INT64_MAX ? last : NUM_MIN(last, NUM_MAX(from - s->of.n, 0));
}

/* Adds at most n_max rows of slot s to the step. */
static void add_rows(nib_batch *b, slot *s, int *n_segment, int64_t *row, int64_t n_max) {
    s->n_row = NUM_MIN(s->of.n_token - s->of.n, NUM_MIN(n_max, rows_left(b, s)));
    if (batch_by_role(b) && generates(s))
        b->n_generated += s->n_row;
    else if (batch_by_role(b))
        s->n_row = NUM_MIN(s->n_row, n_prompt_of(s) - s->of.n);
    s->draft.n = s->n_fed = 0;
    s->follows = true;
    s->head_row = head_row_of(s);
    b->order[(*n_segment)++] = s;
    *row += s->n_row;
    if (s->r->begun == 0)
        s->r->begun = time_now();
    if (s->r->result.prompt_n == 0)
        s->r->result.prompt_n = s->of.n_token - s->of.n;
}

/* Whether the slot's only row is of its last token. */
static bool can_decode(const slot *s) {
    return !s->loads && s->of.n_token - s->of.n == 1;
}

/* Reads pages of the slot's prompt from disk, at most LOAD_PAGES in each step. */
static void load(nib_batch *b, slot *s) {
    const double begun = time_now();
    const int64_t before = s->of.n / KV_BLOCK;
    if (s->r->begun == 0)
        s->r->begun = begun;
    s->loads = sequence_load(&s->of, b->disk, LOAD_PAGES);
    const int64_t n = s->of.n / KV_BLOCK - before;
    if (n > 0) {
        const double page_s = (time_now() - begun) / (double)n;
        b->load_s = b->load_s > 0 ? (b->load_s + page_s) / 2 : page_s;
    }
}

/* Proposes at most n_max next tokens of a slot. A long match in the text needs no draft model. */
static void propose(nib_batch *b, slot *s, int64_t n_max, draft_pass *p) {
    draft *d = &s->draft;
    draft_propose(d, s->of.tokens, s->of.n_token, n_max);
    p->each = 0;
    if (!b->draft_model || d->kind == DRAFT_LONG)
        return;
    d->kind = DRAFT_MODEL;
    d->n = draft_model_can(b->draft_model, s->of.n_token, NUM_MIN(n_max, (int64_t)DRAFT_MAX));
    p->each = draft_model_cost(b->draft_model);
}

static nib_status ask_model(nib_batch *b, slot *s, draft_pass *p, nib_error *err) {
    draft *d = &s->draft;
    const int32_t at = (int32_t)(s - b->slots);
    const double begun = time_now();
    if (d->kind != DRAFT_MODEL || d->n == 0)
        return NIB_OK;
    NIB_TRY(draft_model_follow(b->draft_model, at, s->of.tokens, s->of.n_token, d->n, d->tokens, err));
    p->seconds += time_now() - begun;
    return NIB_OK;
}

/* Adds rows of proposed tokens for decoding sequences, if no prompt has rows in the step. */
static nib_status add_drafts(nib_batch *b, int n_segment, nib_error *err) {
    draft_pass p = {.n_row = n_segment, .n_token = n_segment};
    for (int i = 0; i < n_segment; i++) {
        slot *s = b->order[i];
        const int64_t end = batch_positions_of(b, &s->r->options);
        const int64_t n_left = NUM_MIN(b->on.step->backend->rows.n_pass - p.n_row, rows_left(b, s));
        if (batch_by_role(b) && !generates(s)) /* the last row of a prompt */
            continue;
        propose(b, s, sequence_can_propose(&s->of, NUM_MIN(b->n_draft, n_left), end), &p);
        p.n_token += draft_choose(&s->draft, &b->cost, b->n_draft_min, &p);
        NIB_TRY(ask_model(b, s, &p, err));
        sequence_propose(&s->of, s->draft.tokens, s->draft.n);
        p.n_row += s->draft.n;
        b->n_generated += s->draft.n;
        s->n_row = 1 + s->draft.n;
    }
    return NIB_OK;
}

/* Whether a slot's first token is not drawn yet, or rows before its last token are computed again. */
static bool has_prompt(const slot *s) {
    return s->r && !s->paused && (s->r->first == 0 || !can_decode(s));
}

/* Whether answers decode in this step. The slots are up to date. */
static bool may_decode(const nib_batch *b) {
    for (int32_t i = 0; b->prompts_first && i < b->n_slot; i++)
        if (has_prompt(&b->slots[i]))
            return false;
    return true;
}

/* Prepares a slot for the step: pages that its sequence has lost or can share, or that are on disk. */
static void refresh(nib_batch *b, slot *s) {
    s->n_row = 0;
    if (!s->r || s->paused)
        return;
    sequence_resume(&s->of);
    sequence_adopt(&s->of);
    if (s->loads)
        load(b, s);
}

/* Composes the step: rows of decoding sequences first, then prompts, those that were begun first. */
static nib_status compose(nib_batch *b, int *n_out, nib_error *err) {
    int n_segment = 0;
    int64_t row = 0, left = b->n_prompt;
    b->n_generated = 0;
    batch_prompts_begin(b);
    for (int32_t i = 0; i < b->n_slot; i++)
        refresh(b, &b->slots[i]);
    const bool decode = may_decode(b);
    for (int32_t i = 0; i < b->n_slot; i++) {
        slot *s = &b->slots[i];
        if (!s->r || s->paused || s->loads)
            continue;
        if (!can_decode(s))
            batch_prompts_add(b, s);
        else if ((decode || has_prompt(s)) && rows_left(b, s) > 0)
            add_rows(b, s, &n_segment, &row, 1);
    }
    batch_prompts_sort(b);
    const int n_decode = n_segment;
    left = NUM_MIN(left, b->on.step->backend->rows.n_pass - row);
    b->n_decode = row;
    if (n_decode > 0 && b->latency_s > 0)
        left = NUM_MIN(left, prefill_budget_rows(&b->prefill, b->latency_s, draft_cost_of(&b->cost, row)));
    for (slot *next; left > 0 && (next = batch_prompts_next(b)); left -= next->n_row)
        if (rows_left(b, next) > 0)
            add_rows(b, next, &n_segment, &row, left);
    b->decodes = n_segment == n_decode;
    *n_out = n_segment;
    return b->decodes && b->n_draft > 0 ? add_drafts(b, n_segment, err) : NIB_OK;
}

/* Reports how many rows of the prompt are computed, before its first token. False: the request must end. */
static bool tell_prompt(const slot *s, int64_t n_computed) {
    const nib_generate_options *o = &s->r->options;
    const int64_t all = s->r->result.prompt_n;
    if (!o->on_prompt || s->r->first > 0)
        return true;
    const int64_t done = NUM_MAX(all - (n_prompt_of(s) - n_computed), 0);
    if (o->on_prompt(o->user, "prompt", (uint64_t)done, (uint64_t)all))
        return true;
    atomic_store(&s->r->cancelled, true);
    return false;
}

/* Reports parts of prompts; the end of a prompt is reported before its first token is drawn. */
static void tell_prompts(nib_batch *b, int n_segment) {
    for (int i = 0; i < n_segment; i++) {
        const slot *s = b->order[i];
        if (s->of.n + s->n_row < n_prompt_of(s))
            tell_prompt(s, s->of.n + s->n_row);
    }
}

static void note_first(slot *s) {
    if (s->r->first > 0)
        return;
    s->r->first = time_now();
    s->r->result.prompt_s = s->r->first - s->r->begun;
}

/* Draws a sequence's next token. ids: the tokens that `logits` are of; NULL: of all tokens. */
static void draw(slot *s, const int32_t *ids, const float *logits) {
    const int64_t n = s->of.n_token;
    int32_t token;
    if (!tell_prompt(s, n_prompt_of(s))) {
        s->follows = false;
        return;
    }
    note_first(s);
    if (ids)
        generation_feed_best(&s->g, ids, logits, &token);
    else
        generation_feed(&s->g, logits, s->of.tokens, n, &token);
    if (!s->g.done)
        sequence_add(&s->of, token);
    s->follows = !s->g.done && s->n_fed < s->draft.n && s->draft.tokens[s->n_fed] == token;
    s->n_fed++;
}

/* Scores the prompt's token after the row. */
static void score(slot *s, const float *logits) {
    generation_score(&s->g, logits);
    s->follows = !s->g.done;
    if (s->g.done)
        note_first(s);
}

/* Takes the logits of a segment's rows. Rows after the sequence's last token are of proposed tokens: their
 * logits are used as long as the drawn tokens equal the proposed ones. */
static nib_status take_logits(void *user, int segment_index, int64_t row, int64_t n_row, const float *logits,
                              nib_error *err) {
    nib_batch *b = user;
    slot *s = b->order[segment_index];
    const int64_t n_vocab = model_hparams(b->on.m)->n_vocab;
    (void)err;
    for (int64_t i = 0; i < n_row && s->follows; i++)
        if (s->of.n + row + i == generation_scores_from(&s->g))
            score(s, logits + i * n_vocab);
        else
            draw(s, NULL, logits + i * n_vocab);
    return NIB_OK;
}
static nib_status take_best(void *user, int segment_index, int64_t row, int64_t n_row, const int32_t *ids,
                            const float *logits, nib_error *err) {
    const nib_batch *b = user;
    slot *s = b->order[segment_index];
    (void)row, (void)err;
    for (int64_t i = 0; i < n_row && s->follows; i++)
        draw(s, ids + i * b->n_best, logits + i * b->n_best);
    return NIB_OK;
}

/* Maximum number of a row's largest logits that the pass's answers read; 0: all. *n_change: maximum number of
 * logits that they change first. */
static int32_t n_best_of(const nib_batch *b, int n_segment, int64_t *n_change) {
    const backend_kind *kind = b->on.step->backend->kind;
    int64_t n_logits = 0;
    int32_t n = 0;
    *n_change = 0;
    for (int i = 0; i < n_segment; i++) {
        const segment *s = &b->segments[i];
        int64_t each;
        const int32_t own = generation_n_best(&b->order[i]->g, kind->max_best, s->position + s->n_row, &each);
        if (own == 0 || each > kind->max_changes)
            return 0;
        n = NUM_MAX(n, own);
        *n_change += each * (s->n_row - s->head_row);
        n_logits += s->n_row - s->head_row;
    }
    return *n_change > kind->max_changes || n_logits < kind->best_from ? 0 : n;
}

static int64_t write_changes(void *user, int segment_index, int64_t row, logit_change *out, logit_row *how) {
    nib_batch *b = user;
    slot *s = b->order[segment_index];
    return generation_changes(&s->g, s->of.tokens, s->of.n + row + 1, out, how);
}

static void end_done(nib_batch *b, int n_segment) {
    for (int i = 0; i < n_segment; i++)
        if (b->order[i]->g.done) {
            const nib_error why = b->order[i]->g.failed;
            batch_free_slot(b, b->order[i], why.status, why.status == NIB_OK ? NULL : &why);
        }
}

/* Advances the slot by its computed rows. At the end of its prompt the pages are saved at once, because the
 * answer may take long. */
static void advance(nib_batch *b, slot *s) {
    const int64_t n_prompt = (int64_t)s->r->options.n_prompt, before = s->of.n;
    if (s->draft.n > 0) {
        b->n_proposed += (uint64_t)s->draft.n;
        b->n_right += (uint64_t)(s->n_fed - 1);
        draft_note(&s->draft, s->n_fed - 1);
        s->n_row = s->n_fed;
    }
    sequence_advance(&s->of, s->n_row);
    fairness_serve(&b->fairness, s->r->client, (double)s->n_row + (FAIRNESS_ANSWER - 1) * (double)s->n_fed);
    if (b->disk && before < n_prompt && s->of.n >= n_prompt)
        kv_disk_save(b->disk, s->of.tokens, n_prompt, n_prompt, false);
}

/* Learns the time of a pass by its rows. With rows of both roles, a prompt's last row alone does not
 * count. */
static void note_time(nib_batch *b, int64_t n_row, double seconds) {
    if (!b->decodes)
        prefill_budget_note(&b->prefill, seconds, b->n_decode ? draft_cost_of(&b->cost, b->n_decode) : 0,
                            n_row - b->n_decode);
    else if (!batch_by_role(b) || b->n_generated == n_row)
        draft_cost_note(&b->cost, n_row, seconds);
}

/* Moves slots with generated rows to the front, keeping the order within both kinds. */
static void part(nib_batch *b, int n_segment) {
    int n = 0, n_prompt = 0;
    for (int i = 0; i < n_segment; i++) {
        slot *s = b->order[i];
        *(generates(s) ? &b->order[n++] : &b->parted[n_prompt++]) = s;
    }
    memcpy(b->order + n, b->parted, (size_t)n_prompt * sizeof *b->order);
}

/* Runs the step's rows as one pass. */
static nib_status run_pass(nib_batch *b, int n_segment, nib_error *err) {
    logit_processor processor = {write_changes, b, 0};
    if (batch_by_role(b))
        part(b, n_segment);
    for (int i = 0; i < n_segment; i++) {
        const slot *s = b->order[i];
        b->segments[i] = sequence_rows(&b->order[i]->of, s->n_row, s->head_row);
        b->segments[i].generated = generates(s);
    }
    const int64_t n_row = segments_number(b->segments, n_segment);
    b->n_best = n_best_of(b, n_segment, &processor.n_max);
    const pass p = {.segments = b->segments,
                    .n_segment = n_segment,
                    .n_head = b->on.step->backend->rows.n_head,
                    .rows = b->n_best ? NULL : take_logits,
                    .n_best = b->n_best,
                    .best = take_best,
                    .processor = b->n_best && processor.n_max > 0 ? &processor : NULL,
                    .user = b};
    const double begun = time_now();
    NIB_TRY(step_pass(b->on.step, &p, err));
    note_time(b, n_row, time_now() - begun);
    return NIB_OK;
}

static nib_status take_step(nib_batch *b, int32_t *n_left, nib_error *err) {
    pthread_mutex_lock(&b->lock);
    batch_end_cancelled(b);
    batch_admit(b);
    *n_left = batch_count_left(b);
    pthread_mutex_unlock(&b->lock);
    int n_segment;
    NIB_TRY(compose(b, &n_segment, err));
    if (n_segment == 0)
        return NIB_OK;
    const nib_status status = run_pass(b, n_segment, err);
    if (status == NIB_OK)
        tell_prompts(b, n_segment); /* without the lock: a callback may add and cancel */
    pthread_mutex_lock(&b->lock);
    for (int i = 0; i < n_segment && status == NIB_OK; i++)
        advance(b, b->order[i]);
    end_done(b, n_segment);
    *n_left = batch_count_left(b);
    pthread_mutex_unlock(&b->lock);
    return status;
}

nib_status nib_batch_step(nib_batch *b, int32_t *n_left, nib_error *err) {
    if (atomic_exchange(&b->stepping, true))
        return nib_fail(err, NIB_E_USAGE,
                        "a step of this batch is being computed, by another thread or by the "
                        "caller of this callback");
    const nib_status status = take_step(b, n_left, err);
    atomic_store(&b->stepping, false);
    return status;
}
