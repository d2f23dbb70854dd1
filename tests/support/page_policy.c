/* page_policy.c - see page_policy.h. Passes are the same each time, so the next use of every page is known.
 */
#include "support/page_policy.h"

#include "base/mem.h"

#include <string.h>

typedef struct resident {
    int64_t last, next; /* uses, counted over all passes: the last one and the next one */
    bool here;
} resident;

typedef struct pages {
    const page_trace *t;
    page_policy policy;
    resident *at; /* [n_page] */
    uint64_t left;
} pages;

/* For each use, the number of uses until the same page is used again, across the end of the pass. */
static void find_gaps(const page_trace *t, int64_t *gap, int64_t *seen) {
    for (int i = 0; i < t->n_page; i++)
        seen[i] = -1;
    for (int round = 0; round < 2; round++)
        for (int i = t->n_use - 1; i >= 0; i--) {
            const int page = t->uses[i];
            const int64_t now = (round ? 0 : t->n_use) + i;
            gap[i] = seen[page] < 0 ? t->n_use : seen[page] - now;
            seen[page] = now;
        }
}

/* Whether page a goes before page b. */
static bool goes_first(const pages *p, int a, int b) {
    const resident *x = &p->at[a], *y = &p->at[b];
    if (p->policy == PAGE_BELADY)
        return x->next > y->next;
    if (p->policy == PAGE_IMPORTANCE && (p->t->score[a] < p->t->score[b] || p->t->score[a] > p->t->score[b]))
        return p->t->score[a] < p->t->score[b];
    return x->last < y->last;
}

/* Evicts pages so that page `i` fits; false: `i` itself does not stay. */
static bool evict(pages *p, int i) {
    while (p->left < p->t->bytes[i]) {
        int victim = -1;
        for (int j = 0; j < p->t->n_page; j++)
            if (p->at[j].here && (victim < 0 || goes_first(p, j, victim)))
                victim = j;
        if (victim < 0 || (p->policy == PAGE_BELADY && goes_first(p, i, victim)))
            return false;
        p->at[victim].here = false;
        p->left += p->t->bytes[victim];
    }
    return true;
}

static void use(pages *p, int page, int64_t now, int64_t next, page_count *count) {
    resident *r = &p->at[page];
    r->last = now;
    r->next = next;
    count->hits += r->here;
    count->misses += !r->here;
    count->bytes += r->here ? 0 : p->t->bytes[page];
    if (r->here || !evict(p, page))
        return;
    r->here = true;
    p->left -= p->t->bytes[page];
}

bool page_policy_run(const page_trace *t, page_policy policy, uint64_t capacity, int n_pass, int skip,
                     page_count *out) {
    pages p = {t, policy, mem_calloc((size_t)t->n_page, sizeof *p.at), capacity};
    int64_t *gap = mem_calloc((size_t)t->n_use, sizeof *gap),
            *seen = mem_calloc((size_t)t->n_page, sizeof *seen);
    bool fits = p.at && gap && seen;
    memset(out, 0, sizeof *out);
    for (int i = 0; i < t->n_page; i++)
        fits = fits && t->bytes[i] <= capacity;
    if (fits)
        find_gaps(t, gap, seen);
    for (int64_t now = 0; fits && now < (int64_t)n_pass * t->n_use; now++) {
        const int i = (int)(now % t->n_use);
        if (now == (int64_t)skip * t->n_use)
            memset(out, 0, sizeof *out);
        use(&p, t->uses[i], now, now + gap[i], out);
    }
    mem_free(p.at);
    mem_free(gap);
    mem_free(seen);
    return fits;
}
