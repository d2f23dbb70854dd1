/* batch_pages.c - distributes KV pages among running answers with optimistic admission: requests are admitted
 * before all pages that they may need are free. Runs between two steps, under the lock.
 *
 * Each slot has an account, n_page: the pages that its sequence may refer to in the next step. A full page of
 * several sequences is in several accounts and counts once, so sequences with a common prefix need the pages
 * of that prefix once. Full pages are never written, so a page leaves an account only together with the rest
 * of it, and the number of free pages never decreases when a sequence ends. The sum of all accounts, without
 * what is counted again, never exceeds the reserved pages. An account grows with its sequence. When no page
 * is left, the answer that was admitted last is preempted (paused): it returns its pages, and keeps its
 * tokens and the state of its sampler. It resumes when there are pages for its tokens; pages that are no
 * longer in the pool or on disk are computed again. The oldest answer is never paused for another one, and
 * alone it fits (batch_requests.c), so every answer ends. */
#include "session/batch_parts.h"

/* Additional free pages that are required when an answer starts or resumes, so that it is not preempted at
 * once. */
enum { SPARE_PAGES = 1 };

/* Number of pages for the positions of the next step. */
static int64_t pages_now(const nib_batch *b, const slot *s) {
    const int64_t max = driver_positions(&s->r->options, b->n_ctx);
    return kv_table_pages(b->kv, NUM_MIN(s->on.of.n_token + b->driver.n_draft, max));
}

/* Whether at least n pages are counted again, in a second account or a further one. */
static bool are_counted_again(const nib_batch *b, int64_t n) {
    const uint64_t walk = n > 0 ? kv_pool_walk(b->pages) : 0;
    for (int32_t i = 0; i < b->n_slot && n > 0; i++)
        n -= sequence_met(&b->slots[i].on.of, walk);
    return n <= 0;
}

/* Whether n more pages are free. */
static bool are_free(const nib_batch *b, int64_t n) {
    return are_counted_again(b, n - b->n_page_free);
}

/* The answer with the most full pages that begin these tokens; NULL: none has any. */
static const slot *find_shareable(const nib_batch *b, const int32_t *tokens, int64_t n, int64_t *n_page) {
    const slot *found = NULL;
    *n_page = 0;
    for (int32_t i = 0; i < b->n_slot && n >= KV_BLOCK; i++) {
        const int64_t each = sequence_shareable(&b->slots[i].on.of, tokens, n);
        if (each > *n_page) {
            *n_page = each;
            found = &b->slots[i];
        }
    }
    return found;
}

void batch_share(nib_batch *b, slot *s, const int32_t *tokens, int64_t n) {
    int64_t n_page;
    const slot *from = find_shareable(b, tokens, n, &n_page);
    if (from)
        sequence_share(&s->on.of, &from->on.of, n_page);
}

bool batch_loads(nib_batch *b) {
    enum { TRY_AGAIN = 16 };
    const double computed_s = b->prefill.row_s * KV_BLOCK;
    if (!b->disk || computed_s == 0 || b->load_s <= computed_s)
        return b->disk != NULL;
    return ++b->n_not_loaded % TRY_AGAIN == 0;
}

static void pause_slot(nib_batch *b, slot *s) {
    const int64_t n = sequence_described(&s->on.of);
    s->on.of.n = kv_call_keep(&s->on.of.kv, 0);
    s->on.of.reached = 0;
    b->n_page_free += s->n_page;
    s->n_page = 0;
    s->paused = true;
    b->n_paused++;
    if (b->disk && n > 0)
        kv_disk_save(b->disk, s->on.of.tokens, (int64_t)s->r->options.n_prompt, 0, n, true);
}

/* The paused answer that was admitted first; NULL: none. */
static slot *first_paused(nib_batch *b) {
    slot *found = NULL;
    for (int32_t i = 0; i < b->n_slot; i++) {
        slot *s = &b->slots[i];
        if (s->r && s->paused && (!found || s->r->id < found->r->id))
            found = s;
    }
    return found;
}

static int64_t age_of(const slot *s) {
    return s->r && !s->paused ? s->r->id : INT64_MAX;
}

/* Sorts b->aged: the running answers first, those that were admitted first before others. Returns their
 * number. It was sorted in the last step, so few slots move. */
static int sort_by_age(nib_batch *b) {
    int n = 0;
    for (int32_t i = 0; i < b->n_slot; i++) {
        slot *s = b->aged[i];
        int32_t to = i;
        for (; to > 0 && age_of(s) < age_of(b->aged[to - 1]); to--)
            b->aged[to] = b->aged[to - 1];
        b->aged[to] = s;
        n += age_of(s) < INT64_MAX;
    }
    return n;
}

static void grow(nib_batch *b, slot *s, int64_t n_page) {
    b->n_page_free -= n_page - s->n_page;
    s->n_page = n_page;
}

bool batch_preempt(nib_batch *b) {
    int n = sort_by_age(b);
    for (int i = 0; i < n; i++) {
        slot *s = b->aged[i];
        const int64_t need = pages_now(b, s);
        if (s->on.busy) /* it has the pages for its step */
            continue;
        while (!s->paused && need > s->n_page && !are_free(b, need - s->n_page)) {
            if (b->aged[n - 1]->on.busy)
                return false;
            pause_slot(b, b->aged[--n]);
        }
        if (!s->paused && need > s->n_page)
            grow(b, s, need);
    }
    return true;
}

bool batch_resume(nib_batch *b) {
    for (slot *s; (s = first_paused(b));) {
        const int64_t max = batch_pages_of(b, &s->r->options), need = pages_now(b, s);
        const int64_t n = NUM_MIN(s->on.of.n_token - 1, s->on.of.n_shared);
        int64_t n_page;
        find_shareable(b, s->on.of.tokens, n, &n_page);
        if (!are_free(b, NUM_MIN(need + SPARE_PAGES, max) - n_page))
            return false;
        s->paused = false;
        batch_share(b, s, s->on.of.tokens, n);
        s->loads = batch_loads(b);
        grow(b, s, need);
    }
    return true;
}

bool batch_can_admit(const nib_batch *b, const nib_generate_options *o, int64_t *n_page) {
    const int64_t max = batch_pages_of(b, o);
    const int64_t begin = kv_table_pages(b->kv, (int64_t)o->n_prompt);
    int64_t n_shared;
    find_shareable(b, o->prompt, batch_sharable(o), &n_shared);
    *n_page = b->optimistic ? NUM_MIN(begin, max) : max;
    return are_free(b, NUM_MIN(*n_page + (b->optimistic ? SPARE_PAGES : 0), max) - n_shared);
}
