/* batch_slots.c - admits waiting requests to free slots, and frees slots whose answers have ended. Runs
 * between two steps, under the lock. */
#include "session/batch_parts.h"

#include <string.h>

static void finish(nib_batch *b, request *r, nib_status status, const nib_error *how) {
    if (how)
        r->how = *how;
    if (status == NIB_E_CANCELLED)
        r->result.finish = NIB_FINISH_CANCELLED;
    r->how.status = status;
    fairness_leave(&b->fairness, r->client);
    batch_append(&b->done, r);
}

void batch_free_slot(nib_batch *b, slot *s, nib_status status, const nib_error *how) {
    request *r = s->r;
    generation_close(&s->on.g);
    r->result.draft_n = s->on.draft.n_row;
    r->result.draft_right = s->on.draft.n_right;
    r->result.predicted_n = (int64_t)r->result.n_token;
    if (s->on.first > 0)
        r->result.predicted_s = time_now() - s->on.first;
    s->r = NULL;
    b->n_page_free += s->n_page;
    const int64_t n = sequence_described(&s->on.of);
    sequence_clear(&s->on.of); /* its pages can still be found by content */
    if (b->disk && n > 0 && s->on.first > 0)
        kv_disk_save(b->disk, s->on.of.tokens, (int64_t)r->options.n_prompt, 0, n, true);
    finish(b, r, status, how);
}

void batch_end_cancelled(nib_batch *b) {
    nib_error how;
    nib_fail(&how, NIB_E_CANCELLED, "cancelled");
    for (int32_t i = 0; i < b->n_slot; i++) {
        slot *s = &b->slots[i];
        if (s->r && !s->on.busy && (s->on.refused || atomic_load(&s->r->cancelled)))
            batch_free_slot(b, s, NIB_E_CANCELLED, &how);
    }
    for (int c = 0; c < b->fairness.n; c++) {
        request_list waiting = b->queue[c];
        b->queue[c] = (request_list){0};
        for (request *r; (r = batch_pop(&waiting));) {
            const bool ends = atomic_load(&r->cancelled);
            b->n_waiting -= ends;
            if (ends)
                finish(b, r, NIB_E_CANCELLED, &how);
            else
                batch_append(&b->queue[c], r);
        }
    }
}

/* Whether an answer runs, whose memory for sampling will be free. */
static bool some_run(const nib_batch *b) {
    for (int32_t i = 0; i < b->n_slot; i++)
        if (b->slots[i].r)
            return true;
    return false;
}

/* False: the request waits for memory. */
static bool admit(nib_batch *b, slot *s, request *r, int64_t n_page) {
    const generation_setup with = engine_generation_setup(b->engine);
    nib_error how;
    driver_slot_begin(&s->on);
    const nib_status status = generation_open(&s->on.g, &with, &r->options, b->n_ctx, &r->result, &how);
    if (status == NIB_E_NOFIT && some_run(b))
        return false;
    batch_pop(&b->queue[r->client]);
    b->n_waiting--;
    s->r = r;
    s->n_page = n_page;
    s->paused = false;
    b->n_page_free -= n_page;
    if (status != NIB_OK || s->on.g.done) {
        batch_free_slot(b, s, status, status == NIB_OK ? NULL : &how);
        return true;
    }
    const int64_t n_shared = batch_sharable(&r->options);
    batch_share(b, s, r->options.prompt, n_shared);
    sequence_set(&s->on.of, r->options.prompt, (int64_t)r->options.n_prompt, n_shared);
    if (r->options.on_prompt_candidates)
        sequence_keeps_apart(&s->on.of);
    s->on.generated = (int64_t)r->options.n_prompt;
    s->loads = n_shared > 0 && batch_loads(b);
    return true;
}

/* The first request of the client with the lowest counter. NULL: no request waits. */
static request *next_of(const nib_batch *b) {
    request *next = NULL;
    for (int c = 0; c < b->fairness.n; c++) {
        request *r = b->queue[c].first;
        const double served = fairness_served(&b->fairness, c);
        const double best = next ? fairness_served(&b->fairness, next->client) : 0;
        if (r && (!next || served < best || (served == best && r->id < next->id)))
            next = r;
    }
    return next;
}

/* Admits requests in order. If the next one does not fit, all later ones wait too, so that a large request is
 * not overtaken for ever. */
void batch_admit(nib_batch *b) {
    request *r;
    int64_t n_page;
    int64_t n_running = 0;
    for (int32_t i = 0; i < b->n_slot; i++)
        n_running += b->slots[i].r != NULL;
    sweeps_next(&b->sweeps, n_running);
    bool fits = batch_resume(b);
    for (int32_t i = 0; i < b->n_slot && fits; i++)
        while (fits && !b->slots[i].r && (r = next_of(b))) {
            fits = sweeps_admits(&b->sweeps, n_running) && batch_can_admit(b, &r->options, &n_page) &&
                   admit(b, &b->slots[i], r, n_page);
            n_running += b->slots[i].r != NULL;
            if (fits)
                sweeps_enter(&b->sweeps);
        }
    for (int32_t i = 0; i < b->n_slot; i++)
        if (b->slots[i].r)
            b->slots[i].served = fairness_served(&b->fairness, b->slots[i].r->client);
}

int32_t batch_count_left(nib_batch *b) {
    int32_t n = (int32_t)b->n_waiting;
    for (int32_t i = 0; i < b->n_slot; i++)
        n += b->slots[i].r != NULL;
    return n;
}
