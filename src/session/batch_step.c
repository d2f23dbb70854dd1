/* batch_step.c - one step of a batch: selects the rows to compute, and runs them as one pass of its driver.
 *
 * With several devices, as many passes as there are ranks are on their way at the same time, each with a
 * share of the answers: a step starts one and finishes the one that has started first. A slot is busy
 * meanwhile; a pass takes its slots from those that are not, so the shares stay equal when answers end. */
#include "session/batch_parts.h"

#include <string.h>

enum { LOAD_PAGES = 16 /* pages read from disk for one sequence in one step, during which others wait */ };

/* Whether the slot's only row is of its last token. */
static bool can_decode(const slot *s) {
    return !s->loads && driver_decodes(&s->on);
}

/* Reads pages of the slot's prompt from disk, at most LOAD_PAGES in each step. */
static void load(nib_batch *b, slot *s) {
    const double begun = time_now();
    const int64_t before = s->on.of.n / KV_BLOCK;
    if (s->on.begun == 0)
        s->on.begun = begun;
    s->loads = sequence_load(&s->on.of, b->disk, LOAD_PAGES);
    const int64_t n = s->on.of.n / KV_BLOCK - before;
    if (n > 0) {
        const double page_s = (time_now() - begun) / (double)n;
        b->load_s = b->load_s > 0 ? (b->load_s + page_s) / 2 : page_s;
    }
}

/* Whether a slot's first token is not drawn yet, or rows before its last token are computed again. */
static bool has_prompt(const slot *s) {
    return s->r && !s->paused && (s->on.first == 0 || !can_decode(s));
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
    if (s->on.busy)
        return;
    s->on.n_row = 0;
    if (!s->r || s->paused)
        return;
    sequence_resume(&s->on.of);
    sequence_adopt(&s->on.of);
    if (s->loads)
        load(b, s);
}

/* Slots of a pass: a share of those with an answer. */
static int share_of(const nib_batch *b) {
    int n = 0;
    for (int32_t i = 0; i < b->n_slot; i++)
        n += b->slots[i].r && !b->slots[i].paused && !b->slots[i].loads;
    return (int)num_div_up(n, b->driver.max_started);
}

/* At most `left` rows of prompts: many are a multiple of those that take as long as fewer. */
static int64_t whole_rows(const backend *by, int64_t left) {
    enum { MANY = 4 };
    const int64_t each = by->kind->row_multiple;
    return each > 0 && left > MANY * each ? left / each * each : left;
}

/* Composes the step: rows of decoding sequences first, then prompts, those that were begun first. */
static nib_status compose(nib_batch *b, nib_error *err) {
    driver *d = &b->driver;
    int64_t left = b->n_prompt;
    driver_begin(d);
    batch_prompts_begin(b);
    for (int32_t i = 0; i < b->n_slot; i++)
        refresh(b, &b->slots[i]);
    const bool decode = may_decode(b);
    const int max = share_of(b);
    for (int32_t i = 0; i < b->n_slot; i++) {
        slot *s = &b->slots[i];
        if (!s->r || s->paused || s->loads)
            continue;
        if (s->on.busy && !can_decode(s))
            batch_prompts_mark(b, s);
        else if (s->on.busy)
            continue;
        else if (!can_decode(s))
            batch_prompts_add(b, s);
        else if ((decode || has_prompt(s)) && d->now.n < max && driver_rows_left(d, &s->on) > 0)
            driver_add(d, &s->on, s->on.of.n_token - s->on.of.n);
    }
    batch_prompts_sort(b);
    const int n_decode = d->now.n;
    d->now.n_decode = d->now.n_row;
    if (n_decode > 0 && b->latency_s > 0)
        left = NUM_MIN(
            left, prefill_budget_rows(&b->prefill, b->latency_s, draft_cost_of(&d->cost, d->now.n_decode)));
    left = whole_rows(d->on.step->backend, NUM_MIN(left, d->on.step->backend->rows.n_pass - d->now.n_row));
    for (slot *next; left > 0 && d->now.n < max && (next = batch_prompts_next(b)); left -= next->on.n_row)
        if (driver_rows_left(d, &next->on) > 0)
            driver_add(d, &next->on, left);
    d->now.decodes = d->now.n == n_decode;
    return d->now.decodes ? driver_propose(d, err) : NIB_OK;
}

/* A slot with rows in the pass. */
static slot *slot_of(const nib_batch *b, int i) {
    return (slot *)(void *)b->driver.now.order[i];
}

static void end_done(nib_batch *b) {
    for (int i = 0; i < b->driver.now.n; i++) {
        slot *s = slot_of(b, i);
        const nib_error why = s->on.g.failed;
        if (s->on.g.done)
            batch_free_slot(b, s, why.status, why.status == NIB_OK ? NULL : &why);
    }
}

/* Counts a slot's computed rows. At the end of its prompt the pages are saved at once, because the answer may
 * take long; with windows after each pass of it, because later passes reuse the parts of its pages. */
static void count(nib_batch *b, const slot *s) {
    const driver_slot *on = &s->on;
    const int64_t n_prompt = (int64_t)s->r->options.n_prompt, before = sequence_reached(&on->of) - on->n_row;
    const bool ends = on->of.n >= n_prompt, slides = kv_pool_paging(b->pages)->window > 0;
    fairness_serve(&b->fairness, s->r->client, (double)on->n_row + (FAIRNESS_ANSWER - 1) * (double)on->n_fed);
    if (b->disk && before < n_prompt && (ends || slides))
        kv_disk_save(b->disk, on->of.tokens, n_prompt, ends ? 0 : before, NUM_MIN(on->of.n, n_prompt), false);
}

/* Learns the time of the pass by its rows. With rows of both roles, a prompt's last row alone does not
 * count. */
static void note_time(nib_batch *b) {
    driver *d = &b->driver;
    const driver_pass *p = &d->now;
    if (!p->decodes)
        prefill_budget_note(&b->prefill, p->seconds, p->n_decode ? draft_cost_of(&d->cost, p->n_decode) : 0,
                            p->n_row - p->n_decode);
    else if (!d->on.step->backend->by_role || p->n_generated == p->n_row)
        draft_cost_note(&d->cost, p->n_row, p->seconds);
}

/* Finishes the pass that has started first. */
static nib_status finish(nib_batch *b, nib_error *err) {
    const nib_status status = driver_finish(&b->driver, err);
    pthread_mutex_lock(&b->lock);
    if (status == NIB_OK) {
        note_time(b);
        b->n_proposed += (uint64_t)b->driver.now.n_proposed;
        b->n_right += (uint64_t)b->driver.now.n_right;
        for (int i = 0; i < b->driver.now.n; i++)
            count(b, slot_of(b, i));
    }
    end_done(b);
    pthread_mutex_unlock(&b->lock);
    return status;
}

/* Decides which answers are computed next. Answers that must be preempted finish their step first. */
static nib_status admit(nib_batch *b, nib_error *err) {
    nib_status status = NIB_OK;
    pthread_mutex_lock(&b->lock);
    batch_end_cancelled(b);
    batch_admit(b);
    while (b->optimistic && status == NIB_OK && !batch_preempt(b)) {
        pthread_mutex_unlock(&b->lock);
        status = finish(b, err);
        pthread_mutex_lock(&b->lock);
    }
    pthread_mutex_unlock(&b->lock);
    return status;
}

static nib_status take_step(nib_batch *b, nib_error *err) {
    driver *d = &b->driver;
    NIB_TRY(admit(b, err));
    NIB_TRY(compose(b, err));
    const bool any = d->now.n > 0;
    nib_status status = any ? driver_start(d, NULL, err) : NIB_OK;
    if (status != NIB_OK) {
        pthread_mutex_lock(&b->lock);
        end_done(b);
        pthread_mutex_unlock(&b->lock);
    } else if (d->n_started > 0 && (!any || d->n_started == d->max_started))
        status = finish(b, err);
    return status;
}

nib_status nib_batch_step(nib_batch *b, int32_t *n_left, nib_error *err) {
    if (atomic_exchange(&b->stepping, true))
        return nib_fail(err, NIB_E_USAGE,
                        "a step of this batch is being computed, by another thread or by the "
                        "caller of this callback");
    const nib_status status = take_step(b, err);
    pthread_mutex_lock(&b->lock);
    *n_left = batch_count_left(b);
    pthread_mutex_unlock(&b->lock);
    atomic_store(&b->stepping, false);
    return status;
}
