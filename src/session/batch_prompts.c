/* batch_prompts.c - the prompts of a step, in the order in which they get rows: a heap of the slots, by the
 * counter of their client and then by the age of their request.
 *
 * Prompts that begin alike compute a common page once. The pages that the step's prompts complete next are in
 * a hash table, by all tokens up to their end; a prompt whose next page is there waits and shares it. */
#include "session/batch_parts.h"

#include "base/mem.h"

#include <string.h>
#include <xxhash.h>

nib_status batch_prompts_open(nib_batch *b, nib_error *err) {
    batch_prompts *p = &b->prompts;
    p->mask = 1;
    while (p->mask < 2 * b->n_slot)
        p->mask = 2 * p->mask + 1;
    p->heap = mem_calloc((size_t)b->n_slot, sizeof *p->heap);
    p->pages = mem_calloc((size_t)p->mask + 1, sizeof *p->pages);
    return p->heap && p->pages ? NIB_OK
                               : nib_fail_nomem(err, ((size_t)p->mask + 1) * sizeof *p->pages,
                                                "the order of a batch's prompts");
}

void batch_prompts_close(nib_batch *b) {
    mem_free(b->prompts.heap);
    mem_free(b->prompts.pages);
}

/* ---- the heap ---- */

static bool is_before(const slot *a, const slot *b) {
    return a->served != b->served ? a->served < b->served : a->r->id < b->r->id;
}

/* Moves the slot at i down to its place. */
static void sift(batch_prompts *p, int i) {
    slot *s = p->heap[i];
    for (int child; (child = 2 * i + 1) < p->n; i = child) {
        child += child + 1 < p->n && is_before(p->heap[child + 1], p->heap[child]);
        if (!is_before(p->heap[child], s))
            break;
        p->heap[i] = p->heap[child];
    }
    p->heap[i] = s;
}

void batch_prompts_add(nib_batch *b, slot *s) {
    b->prompts.heap[b->prompts.n++] = s;
}

static slot *pop(batch_prompts *p) {
    slot *first = p->heap[0];
    p->heap[0] = p->heap[--p->n];
    if (p->n > 0)
        sift(p, 0);
    return first;
}

/* ---- pages of this step ---- */

/* The end of the page that the slot's next row is in. */
static int64_t page_end(const slot *s) {
    return (s->on.of.n / KV_BLOCK + 1) * KV_BLOCK;
}

/* Where the slot that computes the same next page is, or where s goes. */
static slot **find(batch_prompts *p, const slot *s) {
    const int64_t n = page_end(s);
    const uint64_t hash = XXH3_64bits(s->on.of.tokens, (size_t)n * sizeof *s->on.of.tokens);
    for (int64_t i = (int64_t)(hash & (uint64_t)p->mask);; i = (i + 1) & p->mask) {
        const slot *other = p->pages[i];
        if (!other || (page_end(other) == n &&
                       !memcmp(other->on.of.tokens, s->on.of.tokens, (size_t)n * sizeof *s->on.of.tokens)))
            return &p->pages[i];
    }
}

/* Whether another slot computes the slot's next page in this step; if none does, s does from now on. */
static bool is_computed(nib_batch *b, slot *s) {
    const int64_t end = page_end(s);
    if (!b->prompts.share || end >= s->on.of.n_token || end > s->on.of.n_shared)
        return false;
    slot **at = find(&b->prompts, s);
    if (*at)
        return true;
    *at = s;
    return false;
}

void batch_prompts_mark(nib_batch *b, slot *s) {
    is_computed(b, s);
}

void batch_prompts_begin(nib_batch *b) {
    batch_prompts *p = &b->prompts;
    p->n = 0;
    p->share = kv_pool_shares(b->pages) && model_state_bytes(b->driver.on.m) == 0;
    if (p->share)
        memset(p->pages, 0, ((size_t)p->mask + 1) * sizeof *p->pages);
}

void batch_prompts_sort(nib_batch *b) {
    for (int i = b->prompts.n / 2 - 1; i >= 0; i--)
        sift(&b->prompts, i);
}

slot *batch_prompts_next(nib_batch *b) {
    while (b->prompts.n > 0) {
        slot *s = pop(&b->prompts);
        if (!is_computed(b, s))
            return s;
    }
    return NULL;
}
