/* tune.c - see tune.h. */
#include "plan/tune.h"

#include "base/mem.h"
#include "base/num.h"

#include <math.h>
#include <string.h>

enum { CHUNK = 1024 };

bool tune_is_viable(const tune_kind *kind, int n_tb) {
    const int64_t segments = num_div_up(kind->n, TUNE_SEGMENT), n = n_tb;
    if (n < 1)
        return false;
    return n <= num_div_up(kind->k, CHUNK) ||
           (n <= segments && num_div_up(segments, num_div_up(segments, n)) == n);
}

int tune_blocks(const tune_kind *kind, int max) {
    while (max > 1 && !tune_is_viable(kind, max))
        max--;
    return NUM_MAX(max, 1);
}

typedef struct search {
    const tune_ask *ask;
    float *times; /* [n_kind, max_blocks + 1, max_k + 1]; NaN: not measured */
    bool without[TUNE_MAX_KIND];
    double limit; /* seconds that all may take */
} search;

static nib_status time_of(const search *s, int kind, int64_t k, int n_tb, double *seconds, nib_error *err) {
    const tune_ask *a = s->ask;
    n_tb = k ? n_tb : 0; /* none are launched */
    float *at = &s->times[((int64_t)kind * (a->max_blocks + 1) + n_tb) * (a->max_k + 1) + k];
    double measured;
    if (isnan(*at)) {
        NIB_TRY(a->time(a->user, kind, k, NUM_MAX(n_tb, 1), &measured, err));
        *at = (float)measured;
    }
    *seconds = (double)*at;
    return NIB_OK;
}

static nib_status sum_of(const search *s, const tuned *t, double *sum, nib_error *err) {
    double one;
    *sum = 0;
    for (int i = 0; i < s->ask->n_kind; i++) {
        NIB_TRY(time_of(s, i, t->k_chunk[i], t->n_tb[i], &one, err));
        *sum += one;
    }
    return NIB_OK;
}

/* Phase 1 under one limit: how many channels all kinds can have together. */
static nib_status climb(const search *s, int max, tuned *t, nib_error *err) {
    t->max_blocks = max;
    for (int i = 0; i < s->ask->n_kind; i++) {
        t->n_tb[i] = tune_blocks(&s->ask->kinds[i], max);
        t->k_chunk[i] = 0;
    }
    t->seconds = t->base;
    for (int64_t k = 1; k <= s->ask->max_k; k++) {
        tuned next = *t;
        for (int i = 0; i < s->ask->n_kind; i++)
            next.k_chunk[i] = s->without[i] ? 0 : k;
        NIB_TRY(sum_of(s, &next, &next.seconds, err));
        if (next.seconds > s->limit)
            break;
        *t = next;
    }
    return NIB_OK;
}

static int64_t height(const search *s, const tuned *t) {
    int64_t k = 0;
    for (int i = 0; i < s->ask->n_kind; i++)
        k = NUM_MAX(k, t->k_chunk[i]);
    return k;
}

/* The kind with the smallest matrix that still has residuals goes without; false: there is none. */
static bool drop_smallest(search *s) {
    int smallest = -1;
    for (int i = 0; i < s->ask->n_kind; i++) {
        const tune_kind *k = &s->ask->kinds[i], *other = smallest < 0 ? NULL : &s->ask->kinds[smallest];
        if (!s->without[i] && (!other || k->n * k->k < other->n * other->k))
            smallest = i;
    }
    if (smallest >= 0)
        s->without[smallest] = true;
    return smallest >= 0;
}

static nib_status choose_blocks(search *s, tuned *best, nib_error *err) {
    const tuned none = *best;
    do {
        for (int max = 1; max <= s->ask->max_blocks; max++) {
            tuned t = none;
            NIB_TRY(climb(s, max, &t, err));
            const int64_t now = height(s, &t), before = height(s, best);
            if (now > before || (now == before && now > 0 && t.seconds < best->seconds))
                *best = t;
        }
    } while (height(s, best) == 0 && drop_smallest(s));
    return NIB_OK;
}

/* The kind whose time grows least by one channel more, of those that have not had one in this round. */
static nib_status cheapest(const search *s, const tuned *t, const bool *done, int *kind, double *seconds,
                           nib_error *err) {
    *kind = -1;
    for (int i = 0; i < s->ask->n_kind; i++) {
        tuned next = *t;
        if (done[i] || s->without[i] || t->k_chunk[i] >= s->ask->max_k)
            continue;
        next.k_chunk[i]++;
        NIB_TRY(sum_of(s, &next, &next.seconds, err));
        if (*kind < 0 || next.seconds < *seconds) {
            *kind = i;
            *seconds = next.seconds;
        }
    }
    return NIB_OK;
}

/* Phase 2. A kind that no longer fits has its final number; rounds end when no kind gets any. */
static nib_status choose_channels(const search *s, tuned *t, nib_error *err) {
    bool full[TUNE_MAX_KIND] = {false};
    for (bool more = height(s, t) > 0; more;) {
        bool done[TUNE_MAX_KIND];
        int kind;
        double seconds = 0;
        memcpy(done, full, sizeof done);
        more = false;
        for (;;) {
            NIB_TRY(cheapest(s, t, done, &kind, &seconds, err));
            if (kind < 0)
                break;
            done[kind] = true;
            full[kind] = seconds > s->limit;
            if (full[kind])
                continue;
            more = true;
            t->k_chunk[kind]++;
            t->seconds = seconds;
            if (s->ask->step)
                s->ask->step(s->ask->user, kind, t->k_chunk[kind], seconds);
        }
    }
    return NIB_OK;
}

nib_status tune(const tune_ask *a, tuned *out, nib_error *err) {
    search s = {.ask = a};
    if (a->n_kind < 1 || a->n_kind > TUNE_MAX_KIND || a->max_blocks < 1 || a->max_blocks > TUNE_MAX_BLOCKS ||
        a->max_k < 1 || a->max_k > CHUNK || !(a->target >= 0))
        return nib_fail(err, NIB_E_USAGE,
                        "expected 1 to %d kinds of products, 1 to %d blocks and 1 to %d channels",
                        TUNE_MAX_KIND, TUNE_MAX_BLOCKS, CHUNK);
    const size_t n = (size_t)a->n_kind * (size_t)(a->max_blocks + 1) * (size_t)(a->max_k + 1);
    s.times = mem_array(n, sizeof *s.times);
    if (!s.times)
        return nib_fail_nomem(err, n * sizeof *s.times, "times");
    for (size_t i = 0; i < n; i++)
        s.times[i] = NAN;
    *out = (tuned){.max_blocks = 1};
    for (int i = 0; i < TUNE_MAX_KIND; i++)
        out->n_tb[i] = 1;
    nib_status status = sum_of(&s, out, &out->base, err);
    out->seconds = out->base;
    s.limit = out->base * (1 + a->target);
    if (status == NIB_OK)
        status = choose_blocks(&s, out, err);
    if (status == NIB_OK)
        status = choose_channels(&s, out, err);
    mem_free(s.times);
    return status;
}
