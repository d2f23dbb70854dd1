/* batch_step.c - one step of a batch: selects the rows to compute, and runs them as one pass of its driver.
 */
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
    s->on.n_row = 0;
    if (!s->r || s->paused)
        return;
    sequence_resume(&s->on.of);
    sequence_adopt(&s->on.of);
    if (s->loads)
        load(b, s);
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
    for (int32_t i = 0; i < b->n_slot; i++) {
        slot *s = &b->slots[i];
        if (!s->r || s->paused || s->loads)
            continue;
        if (!can_decode(s))
            batch_prompts_add(b, s);
        else if ((decode || has_prompt(s)) && driver_rows_left(d, &s->on) > 0)
            driver_add(d, &s->on, 1);
    }
    batch_prompts_sort(b);
    const int n_decode = d->n;
    b->n_decode = d->n_row;
    if (n_decode > 0 && b->latency_s > 0)
        left = NUM_MIN(left,
                       prefill_budget_rows(&b->prefill, b->latency_s, draft_cost_of(&d->cost, b->n_decode)));
    left = NUM_MIN(left, d->on.step->backend->rows.n_pass - d->n_row);
    for (slot *next; left > 0 && (next = batch_prompts_next(b)); left -= next->on.n_row)
        if (driver_rows_left(d, &next->on) > 0)
            driver_add(d, &next->on, left);
    b->decodes = d->n == n_decode;
    return b->decodes ? driver_propose(d, err) : NIB_OK;
}

/* A slot with rows in the pass. */
static slot *slot_of(const nib_batch *b, int i) {
    return (slot *)(void *)b->driver.order[i];
}

static void end_done(nib_batch *b) {
    for (int i = 0; i < b->driver.n; i++) {
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
    const int64_t n_prompt = (int64_t)s->r->options.n_prompt, before = on->of.n - on->n_row;
    const bool ends = on->of.n >= n_prompt, slides = kv_pool_paging(b->pages)->window > 0;
    fairness_serve(&b->fairness, s->r->client, (double)on->n_row + (FAIRNESS_ANSWER - 1) * (double)on->n_fed);
    if (b->disk && before < n_prompt && (ends || slides))
        kv_disk_save(b->disk, on->of.tokens, n_prompt, ends ? 0 : before, NUM_MIN(on->of.n, n_prompt), false);
}

/* Learns the time of the pass by its rows. With rows of both roles, a prompt's last row alone does not
 * count. */
static void note_time(nib_batch *b) {
    driver *d = &b->driver;
    if (!b->decodes)
        prefill_budget_note(&b->prefill, d->seconds, b->n_decode ? draft_cost_of(&d->cost, b->n_decode) : 0,
                            d->n_row - b->n_decode);
    else if (!d->on.step->backend->by_role || d->n_generated == d->n_row)
        draft_cost_note(&d->cost, d->n_row, d->seconds);
}

static nib_status take_step(nib_batch *b, int32_t *n_left, nib_error *err) {
    pthread_mutex_lock(&b->lock);
    batch_end_cancelled(b);
    batch_admit(b);
    *n_left = batch_count_left(b);
    pthread_mutex_unlock(&b->lock);
    NIB_TRY(compose(b, err));
    if (b->driver.n == 0)
        return NIB_OK;
    const nib_status status = driver_answer(&b->driver, NULL, err);
    pthread_mutex_lock(&b->lock);
    if (status == NIB_OK) {
        note_time(b);
        b->n_proposed += (uint64_t)b->driver.n_proposed;
        b->n_right += (uint64_t)b->driver.n_right;
        for (int i = 0; i < b->driver.n; i++)
            count(b, slot_of(b, i));
    }
    end_done(b);
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
